"""Which level answers each access: a walk of a launch's accesses through the tags of all caches, without timing.

SMs take turns of a stretch of nominal time; within it an SM's warps go on by the policy's order, each to the next
result it waits for (docs/occupancy-vector.md, "Cache walk"). Nominal latencies and items are the same for every GPU, so
that a walk serves all design points with the same caches, residency and dealing of thread blocks."""

from typing import NamedTuple

import numpy as np

from abstim.engine.rules import SECTORS
from abstim.gpu.config import Gpu
from abstim.occupancy_vector.records import MOST_BLOCKS, MOST_SLOTS, TOGETHER, whole_numbers
from functional.arrays import Int32

NOMINAL_CYCLES = FIRST_CYCLES, L2_CYCLES, DRAM_CYCLES = 40, 200, 400  # from an access to its answer, by level

# Of an access: nominal cycles to its answer beyond the first level (0: it hits), what it asks of L2, and of DRAM; which
# other access has asked for what it waits for, + 1 (0: none); which one's data it waits for before the tags take it,
# how many times for data of its own, and how many loads `back` that one asked (Streams.fill_behind); how many of the SM
# had asked before; the nominal cycles its own data are there in, and `until` which it waits for another one's; its
# `turn` among the SM's that ask from the tags (0: none), how many sectors had come there with its last, and had left
# with the last of its own to leave (0: none had to wait), and how many of them wait
ANSWER = np.dtype([
    ("wait", "i4"), ("way", "i4"), ("sectors", "i2"), ("dram_sectors", "i2"), ("waits_for", "i4"), ("behind", "i4"),
    ("trips", "i2"), ("back", "i2"), ("number", "i4"), ("there", "i4"), ("until", "i4"), 
    ("turn", "i4"), ("came", "i4"), ("left", "i4"), ("waits", "i4"),
], align=True)  # fmt: skip
# `joined`: accesses that wait for each sector, a byte a sector; `there`: nominal cycle it comes in
LINE = np.dtype(
    [("there", "i4"), ("asker", "i4"), ("joined", "u4"), ("written", "u4"), ("valid", "i1"), ("dirty", "i1")],
    align=True,
)
# Of lines: the number of the latest, and of the latest before the walk; has a store evicted one since?
USES = whole_numbers("latest before evicted")
SERVERS = np.dtype([("l2", "f8"), ("dram", "f8"), ("asks", "i8")])  # an SM's shares; 1: it asks in the stretch
PIPED = whole_numbers("stop taken")  # transactions up to its last one; when the tags have taken that
MOST_WAYS, FEW_WAYS = 1 << 20, 16  # of a set; up to which all are looked at
FILLED_WAYS = 8  # of a set; of more it is known which a walk has used
HINT = np.dtype([("line", "i4"), ("way", "i4")])  # the one line of some low bits that was placed, + 1; -1: several
HINTS = 1024  # of an SM
PIPE_PLACES = 128  # accesses that it holds: a transaction of each stage at most, a stage a cycle of the first level
BANK = whole_numbers("came left first stop")  # of L1D: sectors that came to it, that left it; the ends of its ring
WAITING = whole_numbers("access last")  # an access at a bank, and the number of its sector there
BANK_PLACES = 64
FETCHED = whole_numbers("line there asker")  # the latest instruction line, + 1, and as of that
READ = whole_numbers("line way")  # the latest line of constants, + 1, and where it is
REGISTER = whole_numbers("there asker")  # of a miss: as of its line
SLICE = whole_numbers("blocked free")  # of L2: nominal cycles from which, and up to which, it takes nothing
SLOT = whole_numbers("item stop access to_fetch back back_near state loaded asked", np.int32)
# `due`: the nominal cycle each slot's warp can go on in; `ready`: slots due by `clock`; `first`: when the next one is;
# `order`: thread-block slots, that of the oldest block first; `room`: places of the miss queue that were free when the
# sectors that wait for them were last `served`
SM = np.dtype([
    ("ready", "u8"), ("due", "i8", MOST_SLOTS), ("order", "i8", MOST_BLOCKS),
    *whole_numbers("clock first last next stop memory_free started piped entered tail asks").descr,
    *whole_numbers("served room waits came left turns sectors dram_sectors held longest").descr,
])  # fmt: skip
OPENED = whole_numbers("row read")  # a bank's row, + 1; sectors read before it was asked for
OPENED_ROWS = 128  # of a channel, at most one with the same low bits
TOTALS = whole_numbers(
    "asks rows_opened dram_reads slice_sectors port_sectors channel_sectors busiest_slice busiest_channel bursts "
    "asking l1d_uses l2_uses"
)
# Of an L1D, or of L2, in a walk: was the line there; `how` (rec.USED, ...); the cycle by which the way that a line
# takes must have nothing on its way, and the one in which the line is there from then on
USE = np.dtype([("line", "i4"), ("idle_by", "i4"), ("there", "i4"), ("sm", "i2"), ("was_there", "i1"), ("how", "i1")])
MOST_USES = 1 << 19  # of caches of a walk that others are compared with


class Lines(NamedTuple):
    """Of a cache, or of all SMs' one after the other."""

    size: int  # of one
    tag: np.ndarray  # number of the line + 1
    used: np.ndarray  # the number of its latest use; `before` of USES: evicted; less: it is none of this walk
    row: np.ndarray  # LINE
    # Of sets of many ways, by the first // FILLED_WAYS: `before` of a walk, so many MOST_WAYS, ways it may have used
    filled: np.ndarray


class Caches(NamedTuple):
    """What a walk keeps: lines of every cache, and what SMs, slices and channels are at."""

    uses: np.ndarray  # USES
    l1d: Lines
    const: Lines
    code: Lines
    l2: Lines
    registers: np.ndarray  # REGISTER, by SM: those of the latest misses
    servers: np.ndarray  # SERVERS, by SM: the nominal cycle each is free in
    shares: np.ndarray  # SERVERS: cycles a sector takes
    missed: np.ndarray  # by SM: misses so far
    pipes: np.ndarray  # PIPED, by SM: the latest accesses on their way to the tags
    hints: np.ndarray  # HINT, by SM and the low bits of a line of L1D
    banks: np.ndarray  # BANK, by SM and bank of L1D
    waiting: np.ndarray  # WAITING, by SM and bank
    fetched: np.ndarray  # FETCHED, by SM
    read: np.ndarray  # READ, by SM
    starts: np.ndarray  # by SM: of the latest memory instructions, as many as can wait for the unit
    open_rows: np.ndarray
    opened: np.ndarray  # OPENED, by channel and the low bits of bank and row
    slice_sectors: np.ndarray  # of the stretch
    window_sectors: np.ndarray  # of the window, by slice
    slices: np.ndarray  # SLICE
    channel_sectors: np.ndarray
    totals: np.ndarray
    code_found: np.ndarray  # ANSWER of the latest fetch: scratch


class Telling(NamedTuple):
    """Scratch of what is told of a walk."""

    lines: np.ndarray  # one a fetch
    numbers: np.ndarray  # one an access, and one more


class Answers(NamedTuple):
    """What a walk finds, until another one does."""

    answers: np.ndarray  # ANSWER
    followed: np.ndarray  # 1: an access that others wait for, or that waits for more than its own data; one more
    fetch_offsets: np.ndarray  # of a warp's items
    fetch_waits: np.ndarray  # nominal cycles each waits for its instruction line
    fetch_askers: np.ndarray  # which of them has asked for it, + 1


class Uses(NamedTuple):
    """USEs of a walk, in order, as far as there is room; of caches that let nothing go that would be missed."""

    l1d: np.ndarray
    l2: np.ndarray


class Walk(NamedTuple):
    """What a walk is of, and what it finds: Answers, and Uses."""

    machine: np.ndarray  # MACHINE, of the detailed engine: one element
    items: np.ndarray  # and so on: Items
    terms: np.ndarray
    offsets: np.ndarray
    accesses: np.ndarray  # and so on: Warps
    paths: np.ndarray
    access_offsets: np.ndarray
    records: np.ndarray
    words: np.ndarray
    dealt: np.ndarray  # thread blocks, those of an SM one after the other
    answers: np.ndarray
    followed: np.ndarray
    fetch_offsets: np.ndarray
    fetch_waits: np.ndarray
    fetch_askers: np.ndarray
    l1d_uses: np.ndarray
    l2_uses: np.ndarray


# Of an SM: where its thread blocks begin and end in `dealt`; instructions, what they ask of L2 and DRAM, cycles they
# hold the load/store unit, the most that one access does, and how much all that is; the nominal cycle in which it
# ended; 1: its lane is to be run
TOLD_SM = whole_numbers("first stop instructions sectors dram_sectors held longest load ended is_run")

# Of a launch, how evenly slices and rows served: sectors of the busiest L2 slice of each window over those of the mean
# one; the same of DRAM channels; DRAM rows opened for each sector read; the share of sectors asked of L2 that takes a
# slice's port: hits, and what leaves dirty; the share of those asked that follow another one of their line
FOUND = np.dtype(
    [(name, "f8") for name in ("slice_imbalance", "channel_imbalance", "rows_a_sector", "port_share", "in_runs")]
)


class Told(NamedTuple):
    """A launch, dealt and walked through the caches of a design point, as its lanes read it: see records.Streams."""

    sms: np.ndarray  # TOLD_SM
    found: np.ndarray  # FOUND
    dealt: Int32[np.ndarray, " position"]
    accesses: Int32[np.ndarray, " access"]
    fills: Int32[np.ndarray, " access"]
    late_starts: Int32[np.ndarray, " warp"]
    late_begins: Int32[np.ndarray, " late"]
    late_fills: Int32[np.ndarray, " late"]
    fill_words: Int32[np.ndarray, " fill"]
    fill_behind: Int32[np.ndarray, " fill"]
    fill_trips: Int32[np.ndarray, " fill"]
    turn_starts: Int32[np.ndarray, " position"]
    turns: Int32[np.ndarray, " access"]


def lines_of(gpu: Gpu) -> tuple[int, ...]:
    """Of each L1D, constant cache and L1I, and of L2."""
    spec = gpu.spec
    slices = spec.dram_channels * spec.l2_slices_per_channel
    own = spec.l1d_sets * spec.l1d_ways, spec.const_sets * spec.const_ways, spec.l1i_sets * spec.l1i_ways
    return *own, slices * spec.l2_sets * spec.l2_ways


def _no_lines(size: int, caches: int) -> Lines:
    count = size * caches + TOGETHER  # which are looked at together
    used, filled = (np.zeros(n, np.int64) for n in (count, count // FILLED_WAYS))
    return Lines(size, np.zeros(count, np.int32), used, np.zeros(count, LINE), filled)


def empty_caches(gpu: Gpu, waiting: int, l1d: int, const: int, code: int, l2: int) -> Caches:
    """Caches for walks, which empty them, of so many lines: `lines_of` the GPU, at least. `waiting`: memory
    instructions of an SM that can wait for the load/store unit."""
    spec, sm_count = gpu.spec, gpu.spec.sm_count
    slices = spec.dram_channels * spec.l2_slices_per_channel
    return Caches(
        uses=np.zeros(1, USES),
        l1d=_no_lines(l1d, sm_count),
        const=_no_lines(const, sm_count),
        code=_no_lines(code, sm_count),
        l2=_no_lines(l2, 1),
        registers=np.zeros((sm_count, spec.l1d_mshrs), REGISTER),
        servers=np.zeros(sm_count, SERVERS),
        shares=np.zeros(1, SERVERS),
        missed=np.zeros(sm_count, np.int64),
        pipes=np.zeros((sm_count, PIPE_PLACES), PIPED),
        hints=np.zeros((sm_count, HINTS), HINT),
        banks=np.zeros((sm_count, SECTORS), BANK),
        waiting=np.zeros((sm_count, SECTORS, BANK_PLACES), WAITING),
        fetched=np.zeros(sm_count, FETCHED),
        read=np.zeros(sm_count, READ),
        starts=np.zeros((sm_count, waiting), np.int64),
        open_rows=np.zeros((spec.dram_channels, spec.dram_banks), np.int64),
        opened=np.zeros((spec.dram_channels, OPENED_ROWS), OPENED),
        slice_sectors=np.zeros(slices, np.int64),
        window_sectors=np.zeros(slices, np.int64),
        slices=np.zeros(slices, SLICE),
        channel_sectors=np.zeros(spec.dram_channels, np.int64),
        totals=np.zeros(1, TOTALS),
        code_found=np.zeros(1, ANSWER),
    )
