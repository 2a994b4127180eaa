"""Barriers, the end of a warp, the end of a thread block (docs/timing-rules.md, rules 8 and 9)."""

from __future__ import annotations

from abstim.engine.compiled.compile import jit
from abstim.engine.compiled.layout import BARRIER_WAIT, EMPTY, NEVER, NOT_READY

RETIRE_CYCLES = 6  # a `ret` from issue to the end of the pipeline


@jit
def release(sm, m, block, time):
    """Every warp of the block has reached the barrier or exited."""
    sm.block_waiting[block] = 0
    first = block * m.warps_per_block
    for w in range(first, first + m.warps_per_block):
        if sm.waiting[w]:
            sm.waiting[w] = 0
            sm.not_before[w] = max(sm.not_before[w], time)
            sm.ready[w] = max(sm.ready[w], time)
            sm.reason[w] = NOT_READY
            s = w % m.schedulers
            sm.wake[s] = min(sm.wake[s], sm.ready[w])


@jit
def arrive(sm, m, w, time):
    """The warp waits at a barrier from `time`."""
    block = w // m.warps_per_block
    sm.reason[w] = BARRIER_WAIT
    sm.waiting[w] = 1
    sm.block_waiting[block] += 1
    if sm.block_waiting[block] == sm.block_running[block]:
        release(sm, m, block, time)


@jit
def leave(sm, m, w, time):
    """The warp has issued its last instruction at `time`."""
    block = w // m.warps_per_block
    sm.alive[w] = 0
    sm.ready[w] = NEVER
    sm.drained[w] = max(sm.drained[w], time + RETIRE_CYCLES)
    sm.block_running[block] -= 1
    if sm.block_running[block] > 0 and sm.block_waiting[block] == sm.block_running[block]:
        release(sm, m, block, time)


@jit
def notice(sm, m, w, time):
    """The fetch stage finds the warp drained: it is gone, and with the last one of a block its slot is free."""
    block = w // m.warps_per_block
    sm.live -= 1
    sm.last_exit = time
    sm.block_live[block] -= 1
    if sm.block_live[block] == 0:
        sm.block_free[block] = time
        sm.resident_warp_cycles += m.warps_per_block * (time - sm.block_start[block])
        if sm.more_blocks:
            sm.horizon = min(sm.horizon, max(time, sm.last_dispatch + 1))
    if sm.live == 0:
        sm.idle_reason[:] = EMPTY
