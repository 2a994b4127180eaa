"""Barriers, the end of a warp, the end of a thread block (docs/timing-rules.md, rules 8 and 9)."""

from __future__ import annotations

from abstim.engine.rules import RETIRE_CYCLES
from abstim.engine.state import EMPTY, NEVER
from abstim.engine.warp_slots import ONE, bit, lowest, span, visit_from
from functional.disk.compile import jit


@jit
def release(sm, m, block, time):
    """Every warp of the block has reached the barrier or exited."""
    sm.block_waiting[block] = 0
    left = sm.held & span(block * m.warps_per_block, m.warps_per_block)
    sm.held &= ~left
    while left:
        w = lowest(left)
        left &= left - ONE
        sm.not_before[w] = max(sm.not_before[w], time)
        sm.ready[w] = max(sm.ready[w], time)
        visit_from(sm, w, sm.ready[w], time)


@jit
def arrive(sm, m, w, time):
    """The warp waits at a barrier from `time`."""
    block = w // m.warps_per_block
    sm.block_waiting[block] += 1
    if sm.block_waiting[block] == sm.block_running[block]:
        release(sm, m, block, time)


@jit
def settle(sm, w, time):
    """Something that warp `w` issued is complete at `time`; NEVER: not known yet."""
    sm.drained[w] = max(sm.drained[w], time)
    if time < NEVER:
        sm.settled[w] = max(sm.settled[w], time)


@jit
def leave(sm, m, w, time):
    """The warp has issued its last instruction at `time`."""
    block = w // m.warps_per_block
    sm.running &= ~bit(w)
    sm.exiting |= bit(w)
    sm.ready[w] = NEVER
    settle(sm, w, time + RETIRE_CYCLES)
    sm.block_running[block] -= 1
    if sm.block_running[block] > 0 and sm.block_waiting[block] == sm.block_running[block]:
        release(sm, m, block, time)


@jit
def notice(c, w, time):
    """The fetch stage finds the warp drained: it is gone, and with the last one of a block its slot is free."""
    sm, block = c.sm, w // c.machine.warps_per_block
    sm.live -= 1
    c.record.warps[sm.warp[w]].retire_cycle = time
    sm.last_exit = time
    sm.resident_warp_cycles += time - sm.block_start[block]
    sm.block_live[block] -= 1
    if sm.block_live[block] == 0:
        c.record.blocks[sm.block_position[block]].retire_cycle = time
        free_slot(sm, block, time + c.machine.block_launch)
    if sm.live == 0:
        sm.idle_reason[:] = EMPTY


@jit
def free_slot(sm, block, time):
    """A thread block has left."""
    sm.block_free[block] = time
    if sm.more_blocks:
        sm.horizon = min(sm.horizon, max(time, sm.last_dispatch + 1))
    k = 0
    while sm.block_order[k] != block:
        k += 1
    sm.resident -= 1
    for j in range(k, sm.resident):
        sm.block_order[j] = sm.block_order[j + 1]
