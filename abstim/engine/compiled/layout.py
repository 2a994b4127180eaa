"""What the compiled engine computes on: constants, the machine, the program, the streams, and the state of one SM.

Times are int64 cycles. A *ring* is an array of cycle tags indexed by cycle modulo its length: entry == cycle means taken,
so nothing needs clearing when time jumps.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

NEVER = np.int64(1) << 60
SP, SFU, MEM = 0, 1, 2
GTO, LRR, OLDEST, TWO_LEVEL = 0, 1, 2, 3
# Why a scheduler issued nothing; also the order of EngineResult.issue_slots
ISSUED, NOT_READY, UNIT_BUSY, BARRIER_WAIT, MEMORY_WAIT, EMPTY = 0, 1, 2, 3, 4, 5
REASONS = 6
RING = 512  # cycles ahead a result or an operand read can be booked; longer than any latency
FETCH_RING = 256
# Counters
L1D_ACCESSES, L1D_MISSES, CONST_ACCESSES, CONST_MISSES, L1I_ACCESSES, L1I_MISSES, RESIDENT_WARP_CYCLES = range(7)
COUNTERS = 7
# Slots of `SmState.now`, the scalars of an SM
CLOCK, HORIZON, LAST_SP_START, RESPONSE_FREE, STAMP, LAST_EXIT, LAST_DISPATCH, LIVE, SEQUENCE = range(9)
NOW = 9


class Machine(NamedTuple):
    """The numbers of a GPU the rules use (Spec and Params, flattened)."""

    sm_count: int
    schedulers: int
    policy: int
    active_warps: int
    warp_slots: int
    warp_slots_per_block: int
    blocks_per_sm: int
    port_width: np.ndarray  # [3]
    collectors: np.ndarray  # [3]
    first_unit: np.ndarray  # [4]: units of port p are first_unit[p] .. first_unit[p + 1] - 1
    result_bus: int
    banks: int
    fetch_width: int
    fetch_line: int
    l1i: np.ndarray  # sets, ways, line (instructions)
    const: np.ndarray  # sets, ways, line (bytes)
    l1d: np.ndarray  # sets, ways, hashed
    sector_coalescing: bool
    shared_cycles: int
    const_cycles: int
    l1d_cycles: int
    miss_cycles: int
    l1i_miss_cycles: int
    more_blocks: bool


class Code(NamedTuple):
    """A latency table as contiguous arrays (precharacterize.LatencyTable)."""

    unit: np.ndarray
    kind: np.ndarray
    latency: np.ndarray
    initiation: np.ndarray
    access_bytes: np.ndarray
    pc: np.ndarray
    waits: np.ndarray
    wait_count: np.ndarray
    writes: np.ndarray
    write_count: np.ndarray
    long_waits: np.ndarray
    reads: np.ndarray
    read_count: np.ndarray
    write_banks: np.ndarray
    block_start: np.ndarray
    block_stop: np.ndarray


class Streams(NamedTuple):
    """A trace as contiguous arrays (functional.trace.Trace)."""

    blocks: np.ndarray
    records: np.ndarray
    conflicts: np.ndarray
    block_offsets: np.ndarray
    record_offsets: np.ndarray
    conflict_offsets: np.ndarray
    warps_per_block: int
    block_count: int


class SmState(NamedTuple):
    """State of the SMs of one design point: arrays [sm, ...], or one SM's rows of them."""

    now: np.ndarray  # [NOW]
    # warp slots
    ready: np.ndarray  # cycle from which the scheduler may visit the warp
    held: np.ndarray  # `ready` of a warp that waits at a barrier
    waiting: np.ndarray  # at a barrier
    alive: np.ndarray
    reason: np.ndarray  # what `ready` waits for
    flush: np.ndarray  # the instruction buffer holds the wrong path
    buffered: np.ndarray  # instructions left in the buffer
    pc: np.ndarray  # next instruction
    stop: np.ndarray  # end of its basic block
    event: np.ndarray  # cursors into the streams
    event_end: np.ndarray
    record: np.ndarray
    conflict: np.ndarray
    drained: np.ndarray  # cycle in which everything the warp issued is complete
    registers: np.ndarray  # [slot, register]: (free cycle << 2) | scoreboard_flags
    launched: np.ndarray  # launch sequence number of the warp
    # thread block slots
    block_live: np.ndarray  # warps not exited
    block_waiting: np.ndarray
    block_free: np.ndarray  # cycle in which the slot is free; NEVER while unknown
    block_start: np.ndarray
    # schedulers
    order: np.ndarray  # [scheduler, position]: slots, oldest first (two-level: active, then pending)
    count: np.ndarray
    last: np.ndarray  # slot issued last
    wake: np.ndarray  # nothing to do for this scheduler before
    idle_reason: np.ndarray
    idle_since: np.ndarray
    slots: np.ndarray  # [REASONS] issue slots
    # ports and units
    port_position: np.ndarray  # [port]: allocations so far
    port_alloc: np.ndarray  # [port, width]: latest allocation cycles
    port_start: np.ndarray  # [port, width]: latest unit starts
    collector: np.ndarray  # [port, collector]: release cycle
    unit_free: np.ndarray
    unit_result: np.ndarray  # [unit, RING]
    bus: np.ndarray  # [bus, RING]
    bank: np.ndarray  # [bank, RING]
    fetch: np.ndarray  # [FETCH_RING]
    # tags: line number, last use, fill cycle
    l1i_tag: np.ndarray
    l1i_used: np.ndarray
    const_tag: np.ndarray
    const_used: np.ndarray
    const_fill: np.ndarray
    l1d_tag: np.ndarray
    l1d_used: np.ndarray
    l1d_fill: np.ndarray
    counters: np.ndarray


def new_state(m: Machine, register_count: int) -> SmState:
    """All SMs of a design point at cycle 0, caches empty, nothing resident."""
    n, slots, tb = m.sm_count, m.warp_slots, m.blocks_per_sm
    units = int(m.first_unit[3])

    def full(*shape: int, value: int = 0, dtype: type = np.int64) -> np.ndarray:
        return np.full((n, *shape), value, dtype)

    width, collectors = int(m.port_width.max()), int(m.collectors.max())
    l1i, const, l1d = (int(c[0] * c[1]) for c in (m.l1i, m.const, m.l1d))
    state = SmState(
        now=full(NOW),
        ready=full(slots, value=NEVER), held=full(slots), waiting=full(slots, dtype=np.bool_),
        alive=full(slots, dtype=np.bool_), reason=full(slots, dtype=np.int8), flush=full(slots, dtype=np.bool_),
        buffered=full(slots), pc=full(slots), stop=full(slots), event=full(slots), event_end=full(slots),
        record=full(slots), conflict=full(slots), drained=full(slots), registers=full(slots, register_count),
        launched=full(slots),
        block_live=full(tb), block_waiting=full(tb), block_free=full(tb), block_start=full(tb),
        order=full(m.schedulers, slots), count=full(m.schedulers), last=full(m.schedulers, value=-1),
        wake=full(m.schedulers), idle_reason=full(m.schedulers, value=EMPTY), idle_since=full(m.schedulers),
        slots=full(REASONS),
        port_position=full(3), port_alloc=full(3, width), port_start=full(3, width), collector=full(3, collectors),
        unit_free=full(units), unit_result=full(units, RING, value=-1), bus=full(m.result_bus, RING, value=-1),
        bank=full(m.banks, RING, value=-1), fetch=full(FETCH_RING, value=-1),
        l1i_tag=full(l1i, value=-1), l1i_used=full(l1i), const_tag=full(const, value=-1), const_used=full(const),
        const_fill=full(const), l1d_tag=full(l1d, value=-1), l1d_used=full(l1d), l1d_fill=full(l1d),
        counters=full(COUNTERS),
    )  # fmt: skip
    state.now[:, LAST_DISPATCH] = -1
    if m.policy == TWO_LEVEL:  # its queues hold every slot, resident or not
        for s in range(m.schedulers):
            supervised = np.arange(s, slots, m.schedulers)
            state.order[:, s, : len(supervised)] = supervised
            state.count[:, s] = len(supervised)
    return state
