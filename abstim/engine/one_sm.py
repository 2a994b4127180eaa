"""One SM: what happens in a cycle, up to the next in which anything can; thread blocks and warps come in
(docs/timing-rules.md, rules 1 and 10)."""

from abstim.engine.fetch import fetch, next_fetch
from abstim.engine.issue import enter_block, park
from abstim.engine.memory_pipe import memory_stage
from abstim.engine.operand_collectors import waits_at_port
from abstim.engine.port_queues import fill_collectors, next_collector
from abstim.engine.room import first_warp_slot
from abstim.engine.rules import DECODE_CYCLES
from abstim.engine.schedulers import take_turn
from abstim.engine.state import KINDS, NEVER, TWO_LEVEL, WHEEL
from abstim.engine.warp_slots import bit, next_on_wheel, span, turn_wheel
from functional.jit.marked import outlined, zero
from precharacterize.table import BARRIERS


def next_event(c, time, issued):
    """First cycle after `time` in which something can happen on the SM."""
    sm, m = c.sm, c.machine
    if m.policy == TWO_LEVEL or (issued and sm.visitable):
        return time + 1
    following = next_fetch(sm, time)
    if sm.visitable:  # all of them wait for a port
        following = min(following, sm.port_wait)
    if sm.wheel_used:
        following = min(following, next_on_wheel(sm, time))
    if waits_at_port(m) and sm.at_port and following > time + 1:
        following = min(following, next_collector(c, time))
    return following if m.perfect_memory else min(following, sm.memory_due)


def take_turns(c, time):
    """All schedulers, in an order that rotates every cycle; true if one issues."""
    m, issued = c.machine, False
    c.sm.port_wait, c.sm.turned = NEVER, time
    if m.schedulers_per_sm & (m.schedulers_per_sm - 1) == 0:  # a division costs as much as a turn
        s = (time - 1) & (m.schedulers_per_sm - 1)
    else:
        s = (time - 1) % m.schedulers_per_sm
    for _ in range(m.schedulers_per_sm):
        issued |= take_turn(c, s, time)
        s = s + 1 if s + 1 < m.schedulers_per_sm else 0
    return issued


@outlined
def advance(c):
    """Run one SM up to and including its horizon, or until nothing on it is left to issue."""
    sm, m = c.sm, c.machine
    time, idle = sm.clock, False
    while time <= sm.horizon and sm.live > 0:
        if sm.wheel_used & bit(time & (WHEEL - 1)):
            turn_wheel(sm, time)
        if not m.perfect_memory:
            if sm.memory_due <= time:
                memory_stage(c, time)
            if waits_at_port(m) and sm.at_port:
                fill_collectors(c, time)
        issued = False
        if sm.visitable or not idle or m.policy == TWO_LEVEL:  # else nothing has changed for them
            idle = not sm.visitable and not m.perfect_memory
            issued = take_turns(c, time)
        for k in range(m.fetches_per_cycle):
            if sm.wanted | sm.missing | sm.exiting:  # all but the last fetch are decoded in the same cycle
                fetch(c, time, time + (1 if k + 1 < m.fetches_per_cycle else DECODE_CYCLES))
        time = next_event(c, time, issued)
    sm.clock = time


@outlined
def launch_block(c, kernel, place, time):
    """The thread block at a place in the order enters the lowest free slot at the end of cycle `time`."""
    sm, m, warps, block = c.sm, c.machine, kernel.warps_per_block, c.order[place]
    slot = 0
    while sm.block_free[slot] > time:
        slot += 1
    first = first_warp_slot(c, kernel, time) if m.side_by_side else slot * warps
    sm.block_free[slot], sm.block_start[slot], sm.last_dispatch = NEVER, time, time
    sm.block_live[slot], sm.block_running[slot] = warps, warps
    sm.block_kernel[slot], sm.block_slots[slot] = c.record.launch.kernel, span(first, warps)
    sm.block_spare[slot] = 0
    for number in range(BARRIERS):
        c.barriers[slot, number].arrived = 0
    for k in range(m.phase_rows):
        c.phases[slot, k].tag = 0
    sm.block_order[sm.resident], sm.block_position[slot], sm.block_place[slot] = slot, block, place
    sm.triggered &= ~bit(slot)
    c.record.blocks[block].sm = sm.number
    c.record.blocks[block].dispatch_cycle = time
    sm.resident += 1
    warp = kernel.first_warp + (block - kernel.first_block) * warps
    for k in range(warps):
        sm.warps.block_of[first + k], sm.registers[first + k] = slot, kernel.registers
        start_warp(c, first + k, warp + k)
    sm.clock = min(sm.clock, time + 1) if sm.live else time + 1
    sm.live += warps


def start_warp(c, w, warp):
    """Warp `warp` (a position in the trace) enters slot `w`, its instruction buffer empty."""
    sm = c.sm
    sm.warps.warp[w] = warp
    sm.warps.event[w], sm.warps.event_end[w] = c.offsets.blocks[warp], c.offsets.blocks[warp + 1]
    sm.warps.record[w], sm.warps.conflict[w] = c.offsets.records[warp], c.offsets.conflicts[warp]
    zero(c.scoreboard[w])
    sm.warps.drained[w], sm.warps.settled[w], sm.warps.not_before[w] = 0, 0, 0
    sm.flush &= ~bit(w)
    sm.at_phase &= ~bit(w)
    sm.copying &= ~bit(w)
    sm.running |= bit(w)
    sm.fresh |= bit(w)
    for kind in range(KINDS):
        sm.of_kind[kind] &= ~bit(w)
    if sm.warps.event[w] < sm.warps.event_end[w]:
        enter_block(c, w)
    else:
        park(c, w, sm.last_dispatch)


def aim(gpu, n, more):
    """SM `n` may run to the end of the window, or to where it can take a block if there are more; has it to?"""
    sm, limit = gpu.sm[n], gpu.record.launch.limit
    sm.more_blocks = more
    sm.horizon = min(gpu.free[n], limit) if more else limit
    return sm.live > 0 and sm.clock <= sm.horizon
