"""A launch on a whole GPU: SMs run ahead until a thread block slot frees, blocks are handed out in time order."""

from __future__ import annotations

from abstim.engine.compiled.compile import compiled, jit
from abstim.engine.compiled.frontend import fetch, next_fetch, want_fetch
from abstim.engine.compiled.layout import GTO, NEVER, OLDEST
from abstim.engine.compiled.schedule import run_scheduler


@jit
def advance(sm, heap, m, code, streams):
    """Run one SM up to and including its horizon, or until nothing on it is left to issue."""
    time = sm.clock
    while time <= sm.horizon and sm.live > 0:
        first = (time - 1) % m.schedulers
        for k in range(m.schedulers):
            s = first + k if first + k < m.schedulers else first + k - m.schedulers
            if sm.wake[s] <= time:
                run_scheduler(sm, heap, m, code, streams, s, time)
        if sm.wanted | sm.missing | sm.exiting:
            fetch(sm, heap, m, code, time)
        following = next_fetch(sm, time)
        for s in range(m.schedulers):
            following = min(following, max(time + 1, sm.wake[s]))
        time = following
    sm.clock = time


@jit
def next_dispatch(sm, m):
    """Cycle in which this SM can take a block, as far as known."""
    free = sm.block_free[0]
    for k in range(1, m.blocks_per_sm):
        free = min(free, sm.block_free[k])
    return max(free, sm.last_dispatch + 1)


@jit
def launch_block(sm, heap, m, code, streams, offsets, block, time):
    """Thread block `block` (a position in the trace) enters the lowest free slot at the end of cycle `time`."""
    slot = 0
    while sm.block_free[slot] > time:
        slot += 1
    sm.block_free[slot], sm.block_start[slot], sm.last_dispatch = NEVER, time, time
    sm.block_live[slot], sm.block_running[slot], sm.block_waiting[slot] = m.warps_per_block, m.warps_per_block, 0
    for k in range(m.warps_per_block):
        w, warp = slot * m.warps_per_block + k, block * m.warps_per_block + k
        sm.event[w], sm.event_end[w] = offsets.blocks[warp], offsets.blocks[warp + 1]
        sm.record[w], sm.conflict[w] = offsets.records[warp], offsets.conflicts[warp]
        start_warp(sm, heap, m, code, streams, w)
    sm.clock = min(sm.clock, time + 1) if sm.live else time + 1
    sm.live += m.warps_per_block


@jit
def start_warp(sm, heap, m, code, streams, w):
    """The warp in slot `w` starts with an empty instruction buffer."""
    block = streams.blocks[sm.event[w]]
    sm.pc[w], sm.stop[w] = streams.block_start[block], streams.block_stop[block]
    for r in range(m.register_count):
        heap[m.registers_at + w * m.register_count + r] = 0
    sm.alive[w], sm.flush[w], sm.waiting[w], sm.drained[w], sm.not_before[w] = 1, 0, 0, 0, 0
    want_fetch(sm, w, code[sm.pc[w]].pc)
    s = w % m.schedulers
    if m.policy == GTO or m.policy == OLDEST:
        sm.order[s, sm.count[s]] = w
        sm.count[s] += 1


@compiled
def run_grid(sms, heaps, m, code, streams, offsets, block_count):
    """Run a launch of `block_count` thread blocks to its end."""
    last = m.sm_count - 1
    for block in range(block_count):
        best, best_time = 0, NEVER
        for k in range(m.sm_count):
            n = last + 1 + k if last + 1 + k < m.sm_count else last + 1 + k - m.sm_count
            sms[n].more_blocks = 1
            sms[n].horizon = next_dispatch(sms[n], m)
            advance(sms[n], heaps[n], m, code, streams)
            dispatch = next_dispatch(sms[n], m)
            if dispatch < best_time:
                best, best_time = n, dispatch
        launch_block(sms[best], heaps[best], m, code, streams, offsets, block, best_time)
        last = best
    for n in range(m.sm_count):
        sms[n].more_blocks = 0
        sms[n].horizon = NEVER
        advance(sms[n], heaps[n], m, code, streams)
