"""Barriers, the end of a warp, the end of a thread block (docs/timing-rules.md, rules 8 and 9)."""

from abstim.engine.kernel_queue import trigger
from abstim.engine.mbarriers import wake
from abstim.engine.room import next_room
from abstim.engine.rules import RETIRE_CYCLES
from abstim.engine.state import EMPTY, NEVER
from abstim.engine.warp_slots import bit, visit_from
from functional.jit.marked import add, members, raise_to
from precharacterize.table import BARRIERS


def release(c, block, number, time):
    """All warps that a barrier of the block is for have reached it or exited; they go on when its unit has counted
    them."""
    sm = c.sm
    open_from = max(time, sm.barrier_free) + c.machine.barrier_cycles
    c.barriers[block, number].arrived = 0
    for w in members(sm.held & sm.block_slots[block]):
        if sm.waits_at[w] != number:
            continue
        sm.held &= ~bit(w)
        sm.warps.not_before[w] = max(sm.warps.not_before[w], open_from)
        if not sm.flush & bit(w):  # what it fetched for nothing it throws away at once
            sm.warps.ready[w] = max(sm.warps.ready[w], open_from)
        visit_from(sm, w, sm.warps.ready[w], time)


def arrive(c, w, time, barrier):
    """The warp reaches a barrier, as the latency table has it, at `time`; if it is held, it waits there."""
    sm, number, warps = c.sm, barrier % BARRIERS, barrier // BARRIERS
    block = sm.warps.block_of[w]
    row = c.barriers[block, number]
    sm.waits_at[w] = number
    sm.barrier_free = max(sm.barrier_free, time) + c.machine.barrier_warp_cycles
    row.needed = warps
    row.arrived += 1
    if row.arrived >= (warps if warps else sm.block_running[block]):
        release(c, block, number, time)


def settle(c, w, time):
    """Something that warp `w` issued is complete at `time`; NEVER: not known yet."""
    sm = c.sm
    sm.warps.drained[w] = max(sm.warps.drained[w], time)
    if not c.machine.perfect_memory and time < NEVER:
        sm.warps.settled[w] = max(sm.warps.settled[w], time)


def leave(c, w, time):
    """The warp has issued its last instruction at `time`."""
    sm, block = c.sm, c.sm.warps.block_of[w]
    sm.running &= ~bit(w)
    sm.warps.ready[w] = NEVER
    settle(c, w, time + RETIRE_CYCLES)
    sm.next_exit = min(sm.warps.drained[w], sm.next_exit if sm.exiting else NEVER)
    sm.exiting |= bit(w)
    sm.block_running[block] -= 1
    if sm.block_running[block] > 0:
        for number in range(BARRIERS):
            row = c.barriers[block, number]
            if row.arrived == sm.block_running[block] and not row.needed:
                release(c, block, number, time)


def change_registers(c, w, count, time):
    """The warp wants `count` registers a thread, or gives all but -count back; warps that want some take what their
    thread block has to spare, in order of slots."""
    sm, block = c.sm, c.sm.warps.block_of[w]
    if count < 0:
        sm.block_spare[block] += sm.registers[w] + count
        sm.registers[w] = -count
    else:
        sm.registers_wanted[w], sm.warps.not_before[w] = count, NEVER
        sm.wanting |= bit(w)
    for k in members(sm.wanting & sm.block_slots[block]):
        needed = sm.registers_wanted[k] - sm.registers[k]
        if needed <= sm.block_spare[block]:
            sm.block_spare[block] -= needed
            sm.registers[k], sm.warps.not_before[k] = sm.registers_wanted[k], time + 1
            sm.wanting &= ~bit(k)
            wake(c, k, time)


def charge(sm, s, time):
    """Book the scheduler's idle cycles up to `time` under the reason last seen."""
    sm.slots[sm.idle_reason[s]] += time - sm.idle_since[s]
    sm.idle_since[s] = time


def notice(c, w, time):
    """The fetch stage finds the warp drained: it is gone, and with the last one of a block its slot is free."""
    sm, block = c.sm, c.sm.warps.block_of[w]
    sm.live -= 1
    c.record.warps[sm.warps.warp[w]].retire_cycle = time
    sm.last_exit = time
    sm.resident_warp_cycles += time - sm.block_start[block]
    sm.block_live[block] -= 1
    if sm.block_live[block] == 0:
        c.record.blocks[sm.block_position[block]].retire_cycle = time
        free = time + c.machine.block_launch_cycles
        sm.block_free[block] = free
        if c.machine.side_by_side:
            trigger(c, block, time)
            raise_to(c.record.retired, sm.block_kernel[block], time)
            add(c.record.left, sm.block_kernel[block], -1)
            free = next_room(c, free) if sm.more_blocks else free
        if sm.more_blocks:
            sm.horizon = min(sm.horizon, max(free, sm.last_dispatch + 1))
        k = 0
        while sm.block_order[k] != block:
            k += 1
        sm.resident -= 1
        for j in range(k, sm.resident):
            sm.block_order[j] = sm.block_order[j + 1]
    if sm.live == 0:
        for s in range(c.machine.schedulers_per_sm):
            charge(sm, s, sm.turned)
            sm.idle_reason[s] = EMPTY
