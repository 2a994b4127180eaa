"""A launch on a whole GPU: SMs run ahead until a thread block slot frees, blocks are handed out in time order."""

from __future__ import annotations

from abstim.engine.frontend import fetch, next_fetch, want_fetch
from abstim.engine.layout import NEVER, TWO_LEVEL, WHEEL
from abstim.engine.schedule import take_turn
from abstim.engine.sets import bit
from abstim.engine.wheel import next_on_wheel, turn_wheel
from functional.disk.compile import jit, outlined

WINDOW_CYCLES = 16  # SMs that share an L2 run no further apart


@jit
def next_event(sm, m, time, issued):
    """First cycle after `time` in which something can happen on the SM."""
    if m.policy == TWO_LEVEL or (issued and sm.visitable):
        return time + 1
    following = next_fetch(sm, time)
    if sm.visitable:  # all of them wait for a port
        following = min(following, sm.port_wait)
    if sm.wheel_used:
        following = min(following, next_on_wheel(sm, time))
    return following


@jit
def first_turn(m, time):
    """The scheduler whose turn comes first: their order rotates every cycle."""
    if m.schedulers & (m.schedulers - 1) == 0:  # a division costs as much as a turn
        return (time - 1) & (m.schedulers - 1)
    return (time - 1) % m.schedulers


@outlined
def advance(sm, heap, far, m, code, streams, grid):
    """Run one SM up to and including its horizon, or until nothing on it is left to issue."""
    time = sm.clock
    while time <= sm.horizon and sm.live > 0:
        if sm.wheel_used & bit(time & (WHEEL - 1)):
            turn_wheel(sm, time)
        sm.port_wait = NEVER
        issued = False
        s = first_turn(m, time)
        for _ in range(m.schedulers):
            issued |= take_turn(sm, heap, far, m, code, streams, grid, s, time)
            s = s + 1 if s + 1 < m.schedulers else 0
        for k in range(m.fetches):
            if sm.wanted | sm.missing | sm.exiting:  # all but the last fetch are decoded in the same cycle
                ready = time + 1 if k + 1 < m.fetches else time + 2
                fetch(sm, heap, far, m, code, streams.operands, time, ready)
        time = next_event(sm, m, time, issued)
    sm.clock = time


@jit
def next_dispatch(sm, m):
    """Cycle in which this SM can take a block, as far as known."""
    free = sm.block_free[0]
    for k in range(1, m.blocks_per_sm):
        free = min(free, sm.block_free[k])
    return max(free, sm.last_dispatch + 1)


@outlined
def launch_block(sm, heap, far, m, code, streams, offsets, block, time):
    """Thread block `block` (a position in the trace) enters the lowest free slot at the end of cycle `time`."""
    slot = 0
    while sm.block_free[slot] > time:
        slot += 1
    sm.block_free[slot], sm.block_start[slot], sm.last_dispatch = NEVER, time, time
    sm.block_live[slot], sm.block_running[slot], sm.block_waiting[slot] = m.warps_per_block, m.warps_per_block, 0
    sm.block_order[sm.resident], sm.block_position[slot] = slot, block
    far[m.blocks_at + 3 * block], far[m.blocks_at + 3 * block + 1] = sm.number, time
    sm.resident += 1
    for k in range(m.warps_per_block):
        w, warp = slot * m.warps_per_block + k, block * m.warps_per_block + k
        sm.warp[w] = warp
        sm.event[w], sm.event_end[w] = offsets.blocks[warp], offsets.blocks[warp + 1]
        sm.record[w], sm.conflict[w] = offsets.records[warp], offsets.conflicts[warp]
        start_warp(sm, heap, far, m, code, streams, w)
    sm.clock = min(sm.clock, time + 1) if sm.live else time + 1
    sm.live += m.warps_per_block


@jit
def start_warp(sm, heap, far, m, code, streams, w):
    """The warp in slot `w` starts with an empty instruction buffer."""
    block = streams.blocks[sm.event[w]]
    sm.pc[w], sm.stop[w] = streams.block_start[block], streams.block_stop[block]
    for r in range(m.register_count):
        heap[m.registers_at + w * m.register_count + r] = 0
    sm.flush[w], sm.drained[w], sm.not_before[w] = 0, 0, 0
    sm.running |= bit(w)
    sm.fresh |= bit(w)
    want_fetch(sm, w, code[sm.pc[w]].pc)


def run_grid(sms, heaps, far, m, code, streams, offsets, grid, order, drain):
    """Hand out the thread blocks `order` (positions in the trace), and run to the end, or to the last dispatch.

    Each round takes every SM, in cyclic order from the one after the last that took a block, to cycle `limit`, or to
    where it can take a block if there are more.
    """
    window = NEVER if m.perfect else WINDOW_CYCLES
    if grid.limit == 0:
        grid.limit = window
    position, count, clock = 0, len(order), 0
    while position < count or (drain and clock < NEVER):
        taker, taken, clock = 0, NEVER, NEVER
        more = position < count or not drain
        for k in range(m.sm_count):
            n = grid.first + k if grid.first + k < m.sm_count else grid.first + k - m.sm_count
            sms[n].more_blocks = more
            sms[n].horizon = min(next_dispatch(sms[n], m), grid.limit) if more else grid.limit
            advance(sms[n], heaps[n], far, m, code, streams, grid)
            if sms[n].live > 0:
                clock = min(clock, sms[n].clock)
            dispatch = next_dispatch(sms[n], m)
            if dispatch < taken:
                taker, taken = n, dispatch
        if position < count and taken <= grid.limit:
            launch_block(sms[taker], heaps[taker], far, m, code, streams, offsets, order[position], taken)
            grid.first = taker + 1 if taker + 1 < m.sm_count else 0
            grid.clock = taken
            position += 1
            clock = 0
        elif clock < NEVER:
            grid.limit = max(grid.limit + window, clock)
