"""A launch on a whole GPU: SMs run ahead until a thread block slot frees, blocks are handed out in time order."""

from __future__ import annotations

from numba import njit

from abstim.engine.compiled.layout import CLOCK, GTO, HORIZON, LAST_DISPATCH, LIVE, NEVER, OLDEST, SEQUENCE, SmState
from abstim.engine.compiled.schedule import run_scheduler
from abstim.engine.compiled.warp import refill, wait_for_operands


@njit(cache=True)
def rows(state, k):
    """The state of SM `k`."""
    return SmState(
        state.now[k], state.ready[k], state.held[k], state.waiting[k], state.alive[k], state.reason[k], state.flush[k],
        state.buffered[k], state.pc[k], state.stop[k], state.event[k], state.event_end[k], state.record[k],
        state.conflict[k], state.drained[k], state.registers[k], state.launched[k], state.block_live[k],
        state.block_waiting[k], state.block_free[k], state.block_start[k], state.order[k], state.count[k],
        state.last[k], state.wake[k], state.idle_reason[k], state.idle_since[k], state.slots[k],
        state.port_position[k], state.port_alloc[k], state.port_start[k], state.collector[k], state.unit_free[k],
        state.unit_result[k], state.bus[k], state.bank[k], state.fetch[k], state.l1i_tag[k], state.l1i_used[k],
        state.const_tag[k], state.const_used[k], state.const_fill[k], state.l1d_tag[k], state.l1d_used[k],
        state.l1d_fill[k], state.counters[k],
    )  # fmt: skip


@njit(cache=True)
def advance(sm, m, code, streams):
    """Run one SM up to and including its horizon, or until nothing on it is left to issue."""
    time = sm.now[CLOCK]
    while time <= sm.now[HORIZON] and sm.now[LIVE] > 0:
        following = NEVER
        for k in range(m.schedulers):
            s = (time + k) % m.schedulers
            if sm.wake[s] <= time:
                run_scheduler(sm, m, code, streams, s, time)
        for s in range(m.schedulers):
            following = min(following, sm.wake[s])
        time = max(time + 1, following)
    sm.now[CLOCK] = time


@njit(cache=True)
def next_dispatch(sm, m):
    """Cycle in which this SM can take a block, as far as known."""
    free = NEVER
    for k in range(m.blocks_per_sm):
        free = min(free, sm.block_free[k])
    return max(free, sm.now[LAST_DISPATCH] + 1)


@njit(cache=True)
def launch_block(sm, m, code, streams, block, time):
    """Thread block `block` (a position in the trace) enters the lowest free slot at the end of cycle `time`."""
    slot = 0
    while sm.block_free[slot] > time:
        slot += 1
    sm.block_free[slot], sm.block_start[slot], sm.now[LAST_DISPATCH] = NEVER, time, time
    sm.block_live[slot] = streams.warps_per_block
    sm.block_waiting[slot] = 0
    for k in range(streams.warps_per_block):
        start_warp(sm, m, code, streams, slot * m.warp_slots_per_block + k, block * streams.warps_per_block + k, time + 1)
    sm.now[LIVE] += streams.warps_per_block
    sm.now[CLOCK] = min(sm.now[CLOCK], time + 1)


@njit(cache=True)
def start_warp(sm, m, code, streams, w, warp, time):
    """Warp `warp` of the trace starts in slot `w`, its first fetch requested at `time`."""
    sm.event[w], sm.event_end[w] = streams.block_offsets[warp], streams.block_offsets[warp + 1]
    sm.record[w], sm.conflict[w] = streams.record_offsets[warp], streams.conflict_offsets[warp]
    block = streams.blocks[sm.event[w]]
    sm.pc[w], sm.stop[w] = code.block_start[block], code.block_stop[block]
    sm.registers[w, :] = 0
    sm.alive[w], sm.flush[w], sm.waiting[w], sm.drained[w] = True, False, False, 0
    sm.launched[w] = sm.now[SEQUENCE]
    sm.now[SEQUENCE] += 1
    wait_for_operands(sm, code, w, refill(sm, m, code, w, time))
    s = w % m.schedulers
    if m.policy == GTO or m.policy == OLDEST:
        sm.order[s, sm.count[s]] = w
        sm.count[s] += 1
    sm.wake[s] = min(sm.wake[s], time)


@njit(cache=True, nogil=True)
def run_grid(state, m, last_m, code, streams):
    """Run a launch to its end. `last_m` is `m` with `more_blocks` off, used once every block has been handed out."""
    last_sm = m.sm_count - 1
    for block in range(streams.block_count):
        best, best_time = -1, NEVER
        for offset in range(m.sm_count):
            k = (last_sm + 1 + offset) % m.sm_count
            sm = rows(state, k)
            sm.now[HORIZON] = next_dispatch(sm, m)
            advance(sm, m, code, streams)
            dispatch = next_dispatch(sm, m)
            if dispatch < best_time:
                best, best_time = k, dispatch
        launch_block(rows(state, best), m, code, streams, block, best_time)
        last_sm = best
    for k in range(m.sm_count):
        sm = rows(state, k)
        sm.now[HORIZON] = NEVER
        advance(sm, last_m, code, streams)
