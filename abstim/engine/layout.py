"""What the compiled engine computes on: constants, and the memory layout of the machine, the code and an SM.

Times are int64 cycles. Fixed-size state is one record an SM (`SM`), state whose size depends on the GPU or the kernel
is a slice of that SM's `heap`, a flat int64 array cut up by the `*_at` offsets of the machine record. A *ring* holds
cycle tags, one row a cycle modulo `ring`: entry == cycle means taken, so nothing needs clearing when time jumps.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

NEVER = 1 << 60
SP, SFU, MEM, INT, DP, TENSOR = 0, 1, 2, 3, 4, 5  # precharacterize.parameters.UNITS
KINDS = 6  # of execution units
GTO, LRR, OLDEST, TWO_LEVEL = 0, 1, 2, 3
# What a scheduler's cycle went to; the order of abstim.session.result.SLOT_REASONS
ISSUED, NOT_READY, UNIT_BUSY, BARRIER_WAIT, MEMORY_WAIT, EMPTY = 0, 1, 2, 3, 4, 5
FROM_ALU, FROM_NEAR, FROM_PARAM, FROM_GLOBAL = 0, 1, 2, 3  # low bits of a scoreboard entry, (free cycle << 2) | FROM_*
SLOTS = 64  # most warps an SM (Spec.max_warps_per_sm)
SCHEDULERS = 4  # most an SM
PORTS = KINDS * SCHEDULERS  # most: with sub-cores each scheduler has its own
UNITS = 96  # most execution units an SM, all ports together
PORT_WIDTH = 16
COLLECTORS = 64
MSHRS = 8  # most miss registers of an instruction or constant cache
BUCKET_CYCLES_LOG2, BUCKETS, UNITS_A_CYCLE_LOG2 = 4, 4096, 6  # of the servers that SMs share
RESPONSES = 1 << 14  # cycles ahead a response can be booked
RESIDUES = 32  # bits of a line number above an index that a hash looks at
HINTS = 256  # where a line was found last, by its low bits
# Typed, because of a function that is called with literals there is one form for each
WHOLE_LINE = np.int64(15)  # the set of its four sectors
READ, WRITE = np.bool_(False), np.bool_(True)
LINE_WORDS = 9  # of an L1D line (tags.py) and of an L2 line (l2.py)
WHEEL = 64  # cycles ahead a warp can be put on the wheel; later ones go round again

MACHINE = np.dtype(
    [
        *((name, np.int64) for name in (
            "sm_count", "schedulers", "policy", "active_warps", "warp_slots", "warps_per_block", "blocks_per_sm",
            "sub_cores", "issues_a_turn", "register_steps", "shared_collectors",
            "result_bus", "banks", "fetch_width", "fetch_line", "fetch_line_log2", "fetches",
            "perfect_l1i", "perfect_const",
            "l1i_sets", "l1i_ways", "const_sets", "const_ways", "const_line_bytes",
            "l1d_sets", "l1d_ways", "l1d_index", "l1d_lines", "l1d_sectored", "l1d_banks", "l1d_bypassed",
            "l1t_sets", "l1t_ways", "l1d_write", "l1d_write_allocates", "l1d_allocates_on_miss", "l1d_fifo",
            "sector_coalescing", "shared_cycles", "const_cycles", "l1d_cycles", "miss_cycles",
            "atomic_cycles", "l1i_miss_cycles",
            "register_count",
            "perfect", "l1i_mshrs", "const_mshrs", "mshr_merges", "l1d_mshrs", "pipe_stages", "miss_queue",
            "flit_bytes", "packet_bytes",
            "request_cycles", "l2_reply_cycles", "dram_cycles", "dram_reply_cycles", "activate_cycles",
            "l2_sector_units", "l2_atomic_units", "dram_sector_units", "channels", "slices_per_channel",
            "interleave_log2", "slice_log2", "slice_hash_log2",
            "l2_sets", "l2_ways", "l2_merges", "l2_lines", "l2_hash_log2", "dram_banks", "row_log2", "bank_log2",
            "responses_at", "l2_at", "slices_at", "channels_at", "rows_at", "banks_at", "uses_at",
            "blocks_at", "warps_at", "windows_at", "windows", "window_log2", "far_words",
            "ring", "registers_at", "results_at", "bus_at", "bank_at", "l1i_at", "const_at", "l1t_at", "l1d_at",
            "hints_at", "mshrs_at", "pipe_at", "cache_words", "heap_words",
        )),
        ("port_width", np.int64, KINDS),
        ("collectors", np.int64, KINDS),  # of a port, or, if its scheduler's ports share them, of all of them
        ("scheduler_slots", np.uint64, SCHEDULERS),  # sets of warp slots
        ("scheduler_of", np.int64, SLOTS),
        ("first_unit", np.int64, PORTS + 1),  # units of port p: first_unit[p] .. first_unit[p + 1] - 1
        ("slice_residues", np.int64, RESIDUES),  # of x^i modulo the hash's polynomial
        ("l2_residues", np.int64, RESIDUES),
        ("l1d_residues", np.int64, RESIDUES),
    ],
    align=True,
)  # fmt: skip

CODE = np.dtype(
    [
        *((name, np.int32) for name in (
            "unit", "kind", "latency", "initiation", "access_bytes", "pc",
            "waits_at", "waits_end", "writes_at", "writes_end", "reads_at", "reads_end", "long_at", "long_end",
            "write_banks_at",
        )),
    ],
    align=True,
)  # fmt: skip

# What a launch goes on with after a pause
GRID = np.dtype([(name, np.int64) for name in ("first", "limit", "clock", "logged")], align=True)
LOG_COLUMNS = (  # of one issue; the last four are the SM's counters after it
    "cycle", "result_cycle", "sm", "slot", "warp", "instruction", "start_cycle",
    "l1d_misses", "l1i_misses", "l2_accesses", "dram_reads",
)  # fmt: skip

SM = np.dtype(
    [
        # the SM as a whole
        ("number", np.int64),
        ("clock", np.int64),
        ("port_wait", np.int64),  # earliest cycle in which a port that was refused this cycle is free
        ("horizon", np.int64),  # run no further: a thread block may come in then
        ("more_blocks", np.int64),
        ("response_free", np.int64),
        ("entered", np.int64),  # cycle in which the latest transaction entered the L1D pipe,
        ("pipe_position", np.int64),  # and where it stands in it
        ("tags_blocked", np.int64),  # L1D tags take no transaction before; so
        ("const_blocked", np.int64),  # the constant cache,
        ("fetch_blocked", np.int64),  # and the fetch stage
        ("inject_free", np.int64),  # the SM's port into the crossbar
        ("l1i_misses_until", np.int64, MSHRS),  # miss registers: when each is free
        ("const_misses_until", np.int64, MSHRS),
        ("stamp", np.int64),  # for least-recently-used
        ("last_exit", np.int64),
        ("last_dispatch", np.int64),
        ("live", np.int64),  # warps not noticed as gone
        # sets of warp slots
        ("running", np.uint64),  # instructions left
        ("visitable", np.uint64),  # `ready` has come
        ("held", np.uint64),  # at a barrier
        ("memory", np.uint64),  # `ready` waits for memory
        ("wanted", np.uint64),  # buffer empty
        ("missing", np.uint64),  # waiting for an instruction line
        ("fresh", np.uint64),  # nothing issued yet
        ("exiting", np.uint64),  # last instruction issued, not yet noticed as gone
        ("wheel", np.uint64, WHEEL),  # by cycle mod WHEEL: `ready` comes then
        ("wheel_used", np.uint64),  # places of the wheel that are not empty
        ("last_fetched", np.int64),
        *((name, np.int64) for name in (
            "l1d_accesses", "l1d_misses", "l1t_accesses", "l1t_misses",
            "const_accesses", "const_misses", "l1i_accesses", "l1i_misses",
            "l2_accesses", "l2_misses", "dram_reads", "dram_writes", "resident_warp_cycles",
        )),
        # warp slots
        ("ready", np.int64, SLOTS),  # cycle from which the scheduler may visit the warp
        ("not_before", np.int64, SLOTS),  # no issue earlier: barrier, atomic, fence
        ("front_end", np.int64, SLOTS),  # cycle in which the buffer's content can be looked at
        ("fetch_pc", np.int64, SLOTS),
        ("fetch_back", np.int64, SLOTS),  # cycle in which a missed instruction line is there
        ("drained", np.int64, SLOTS),  # cycle in which everything the warp issued is complete
        ("pc", np.int64, SLOTS),  # next instruction
        ("stop", np.int64, SLOTS),  # end of its basic block
        ("event", np.int64, SLOTS),  # cursors into the streams
        ("event_end", np.int64, SLOTS),
        ("record", np.int64, SLOTS),
        ("conflict", np.int64, SLOTS),
        ("buffered", np.int64, SLOTS),  # instructions left in the buffer
        ("warp", np.int64, SLOTS),  # position in the trace
        ("flush", np.int64, SLOTS),  # the instruction buffer holds the wrong path
        ("wrong", np.int64, SLOTS),  # and begins with this instruction
        # thread block slots
        ("block_running", np.int64, SLOTS),  # warps that have instructions left
        ("block_live", np.int64, SLOTS),  # warps not noticed as gone
        ("block_waiting", np.int64, SLOTS),
        ("block_free", np.int64, SLOTS),  # cycle in which the slot is free; NEVER while unknown
        ("block_start", np.int64, SLOTS),
        ("block_position", np.int64, SLOTS),  # in the trace
        # schedulers
        ("block_order", np.int64, SLOTS),  # resident blocks, oldest first
        ("resident", np.int64),
        ("order", np.int64, (SCHEDULERS, SLOTS)),  # two-level: active, then pending slots
        ("order_scratch", np.int64, SLOTS),
        ("count", np.int64, SCHEDULERS),
        ("last", np.int64, SCHEDULERS),  # slot issued last
        ("idle_reason", np.int64, SCHEDULERS),
        ("idle_since", np.int64, SCHEDULERS),
        ("slots", np.int64, 6),  # issue slots by reason
        # ports and units
        ("port_position", np.int64, PORTS),  # allocations so far
        ("port_alloc", np.int64, (PORTS, PORT_WIDTH)),  # latest allocation cycles
        ("port_start", np.int64, (PORTS, PORT_WIDTH)),  # latest unit starts
        ("last_start", np.int64, PORTS),  # the latest of them
        ("last_alloc", np.int64, KINDS),  # latest allocation of all ports of a kind, in steps of the register file
        ("collector", np.int64, (PORTS, COLLECTORS)),  # release times, in steps
        ("unit_free", np.int64, UNITS),
    ],
    align=True,
)  # fmt: skip


class Streams(NamedTuple):
    """A trace's arrays (functional.trace.Trace) and the program's basic blocks."""

    blocks: np.ndarray
    records: np.ndarray
    conflicts: np.ndarray
    block_start: np.ndarray
    block_stop: np.ndarray
    operands: np.ndarray  # registers of all instructions, cut by CODE's `*_at` and `*_end`
    log: np.ndarray  # LOG_COLUMNS, an issue a row, as long as there are rows


class Offsets(NamedTuple):
    """Where each warp of the trace starts in the streams."""

    blocks: np.ndarray
    records: np.ndarray
    conflicts: np.ndarray


def new_state(m: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Records and heaps of all SMs of a design point at cycle 0: caches empty, nothing resident."""
    sms = np.zeros(int(m["sm_count"]), SM)
    heaps = np.zeros((len(sms), int(m["heap_words"])), np.int64)  # nothing is booked for cycle 0, no line is 0
    sms["ready"], sms["last"], sms["idle_reason"], sms["last_dispatch"] = NEVER, -1, EMPTY, -1
    sms["last_fetched"], sms["number"] = -1, np.arange(len(sms))
    if m["policy"] == TWO_LEVEL:  # its queues hold every slot, resident or not
        for s in range(int(m["schedulers"])):
            supervised = np.arange(s, int(m["warp_slots"]), int(m["schedulers"]))
            sms["order"][:, s, : len(supervised)] = supervised
            sms["count"][:, s] = len(supervised)
    return sms, heaps
