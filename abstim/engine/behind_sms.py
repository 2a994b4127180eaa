"""What lies behind the SMs when memory is not perfect, as state.py has it: requests, the switch, L2, DRAM."""

from typing import NamedTuple

import numpy as np

from abstim.engine.rules import SECTORS
from functional.jit.marked import of, record

REQUEST = record(  # from an SM to L2 and back, or from L2 to DRAM; as long as a line of the simulating CPU's cache
    "due",
    ("line", np.int32),
    ("words", np.uint32),  # of the line that a store writes
    "row",  # where it lies in DRAM,
    ("bank flits", np.int16),
    ("l2_set", np.int32),  # and in its slice
    ("home near", np.int32),  # slices: where the line lies, and whom the SM asked
    ("slice output next place sm", np.int32),
    ("sectors kind who from_dram", np.int8),
)
QUEUE = record("first last count")  # of REQUESTs
# The latest read of a sector (from 1): its place, and when it was answered; NEVER: it waits
SOUGHT_SECTOR = record("sector answered reader")


class Requests(NamedTuple):
    """All requests there are."""

    rows: np.ndarray = of("request", REQUEST)
    unused: np.ndarray = of("pair")  # the first given back, how many have ever been used
    followers: np.ndarray = of("follower", np.int32)  # of each: the last read that waits for its answer, too


class Switch(NamedTuple):
    """One direction of the crossbar."""

    inputs: np.ndarray = of("input", QUEUE)
    flits: np.ndarray = of("input")  # in each input's queue; with queues at the outputs, of each input in the switch
    input_free: np.ndarray = of("input")  # when each can send its next packet: a cycle; with output queues in units
    late: np.ndarray = of("input_word", np.uint64)  # set of inputs whose first packet has not been looked at
    outputs: np.ndarray = of("output", QUEUE)
    output_free: np.ndarray = of("output")
    filled: np.ndarray = of("output_word", np.uint64)  # set of outputs with a packet
    asked: np.ndarray = of("output_word", np.uint64)  # set of outputs that an input's first packet is for
    wants: np.ndarray = of("output input_word", np.uint64)  # set of those inputs
    turn: np.ndarray = of("output")  # the input whose turn it is


L2_LINE = record(
    ("waiting waiting_last", np.int32, SECTORS),  # the second and the last of the reads that wait for each sector,
    ("joined", np.int16, SECTORS),  # and how many do
    ("valid dirty coming", np.int8),  # sets of sectors: can be read, written, asked of DRAM
    ("written", np.uint32),  # set of words: since the line came
)


class L2(NamedTuple):
    """The tags of all slices, laid out as L1D's: [slice, set, way] in one."""

    tag: np.ndarray = of("l2_line", np.int32)
    last_use: np.ndarray = of("l2_line")
    line: np.ndarray = of("l2_line", L2_LINE)
    uses: np.ndarray = of("one")  # accesses so far, the clock of last_use
    placed: np.ndarray = of("l2_placed")


SLICE = record(
    "port_free",  # in units of time
    "mshrs_used",
    "far_mshrs_used",  # the latter for lines of the other part of L2
    "blocked",  # its first request must wait until something leaves the slice or comes back
)


class Slices(NamedTuple):
    """L2 slices: queues of REQUESTs in the order of their way."""

    state: np.ndarray = of("slice", SLICE)
    wake: np.ndarray = of("slice")  # cycle in which each has something to do
    delayed: np.ndarray = of("slice", QUEUE)
    asking: np.ndarray = of("slice", QUEUE)
    crossing: np.ndarray = of("slice", QUEUE)  # from the other part of L2
    afar: np.ndarray = of("slice", QUEUE)  # atomics of the other part's SMs
    missing: np.ndarray = of("slice", QUEUE)
    to_dram: np.ndarray = of("slice", QUEUE)
    from_dram: np.ndarray = of("slice", QUEUE)
    filled: np.ndarray = of("slice", QUEUE)
    replying: np.ndarray = of("slice", QUEUE)
    sought: np.ndarray = of("slice sought", SOUGHT_SECTOR)


# The last four: free from; before them a cycle before which no bank can be given a command
CHANNEL = record("turn first_bank pending draining", "commands", "burst row write read")
BANK = record(
    "open_row",  # row + 1, 0: none
    "request writes ready",  # in service, does it write, and from when on a command to the bank may be possible
    "first last count",  # of those that wait
    "served_row",  # row + 1
    "read write row_active row_cycle precharge written was_read",  # free from
)


class Channels(NamedTuple):
    """DRAM channels. Times are cycles of their own clock."""

    state: np.ndarray = of("channel", CHANNEL)
    wake: np.ndarray = of("channel")
    delayed: np.ndarray = of("channel", QUEUE)
    writes: np.ndarray = of("channel", QUEUE)  # that wait to be a batch
    returning: np.ndarray = of("channel", QUEUE)
    returned: np.ndarray = of("channel", QUEUE)
    banks: np.ndarray = of("bank", BANK)  # those of a channel side by side
    groups: np.ndarray = of("channel bank_group pair")  # free from, for a burst and for a precharge
    serving: np.ndarray = of("channel bank_word", np.uint64)  # sets of banks that serve a request,
    waiting: np.ndarray = of("channel bank_word", np.uint64)  # that do not, and have some


DRAWN = record("block slice", kind=np.int32)  # a run of bytes that lies in one slice (+ 1, 0: none), and which


class Drawn(NamedTuple):
    """Slices that have been drawn for lines."""

    table: np.ndarray = of("drawn", DRAWN)  # by a hash of the block, or behind it
    places: np.ndarray = of("drawn_placed", np.int32)  # how many there are, and where in the table
    terms: np.ndarray = of("draw_term")  # the generator's latest, by their number modulo DRAW_TERMS


TRAFFIC = record(  # of an SM, as the memory side sees it
    "l2_accesses l2_misses dram_reads dram_writes",
    "ended",  # requests that nobody waits for, done with and not yet taken off SM.in_flight
    "last_ended",  # when the last of them was
    "undrawn",  # the first of its requests, in the switch already, whose slice is not drawn
    "reply_free",  # when, in units of rules.py, its next reply may come
)
