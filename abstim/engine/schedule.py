"""The warp schedulers of an SM: who may issue in a cycle, by policy (docs/timing-rules.md, rules 1 and 2)."""

from __future__ import annotations

from abstim.engine.layout import (
    BARRIER_WAIT,
    EMPTY,
    GTO,
    ISSUED,
    LRR,
    MEMORY_WAIT,
    NOT_READY,
    TWO_LEVEL,
    UNIT_BUSY,
)  # fmt: skip
from abstim.engine.ports import port_free, port_of
from abstim.engine.sets import bit, first_after, lowest, span
from abstim.engine.two_level import active_set, first_active, promote, rotate
from abstim.engine.warp import issue, refetch
from functional.disk.compile import jit


@jit
def oldest(sm, m, slots):
    """Launch order: resident blocks from the oldest, then warps by number."""
    for k in range(sm.resident):
        block = slots & span(sm.block_order[k] * m.warps_per_block, m.warps_per_block)
        if block:
            return lowest(block)
    return -1


@jit
def pick(sm, m, s, slots):
    """The warp that scheduler `s` visits first among `slots`, which is not empty."""
    if m.policy == LRR:
        return first_after(slots, sm.last[s])
    if m.policy == TWO_LEVEL:
        return first_active(sm, m, s, slots)
    if m.policy == GTO and sm.last[s] >= 0 and slots & bit(sm.last[s]):
        return sm.last[s]
    return oldest(sm, m, slots)


@jit
def charge(sm, s, time):
    """Book the scheduler's idle cycles up to `time` under the reason last seen."""
    sm.slots[sm.idle_reason[s]] += time - sm.idle_since[s]
    sm.idle_since[s] = time


@jit
def idle_reason(sm, m, s):
    """Why scheduler `s`, which has just visited its warps in vain, issues nothing."""
    slots = m.scheduler_slots[s]
    if sm.visitable & slots:
        return UNIT_BUSY
    waiting = sm.running & slots & ~sm.held
    if waiting & sm.memory:
        return MEMORY_WAIT
    if waiting:
        return NOT_READY
    return BARRIER_WAIT if sm.held & slots else EMPTY


@jit
def refuse(sm, m, code, w, time):
    """May the visited warp not issue? Flushes a wrong path, notes when a busy port will be free."""
    if sm.flush[w]:
        sm.visitable &= ~bit(w)
        refetch(sm, code, w)
        return True
    free = port_free(sm, port_of(m, code[sm.pc[w]].unit, w))
    sm.port_wait = min(sm.port_wait, free) if free > time else sm.port_wait
    return free > time


@jit
def issues_again(sm, heap, m, code, operands, w, first, time):
    """Can the warp that has just issued to a unit of kind `first` issue its next instruction in the same cycle?

    It must be in the buffer, go to another kind of unit, and wait for nothing.
    """
    if sm.buffered[w] == 0 or sm.flush[w] or sm.held & bit(w) or not sm.running & bit(w) or sm.not_before[w] > time:
        return False
    row = code[sm.pc[w]]
    if row.unit == first or port_free(sm, port_of(m, row.unit, w)) > time:
        return False
    registers = m.registers_at + w * m.register_count
    free = 0
    for k in range(row.waits_at, row.waits_end):
        free = max(free, heap[registers + operands[k]] >> 2)
    return free <= time


@jit
def take_turn(sm, heap, far, m, code, streams, grid, s, time):
    """One cycle of scheduler `s`; returns True if it issues an instruction."""
    slots = sm.visitable & m.scheduler_slots[s]
    if m.policy == TWO_LEVEL:
        promote(sm, heap, far, m, code, streams.operands, s, time)
        slots &= active_set(sm, m, s)
    while slots:
        w = pick(sm, m, s, slots)
        slots &= ~bit(w)
        if refuse(sm, m, code, w, time):
            continue
        charge(sm, s, time)
        first = code[sm.pc[w]].unit
        issue(sm, heap, far, m, code, streams, grid, w, time)
        if m.issues_a_turn > 1 and issues_again(sm, heap, m, code, streams.operands, w, first, time):
            issue(sm, heap, far, m, code, streams, grid, w, time)
        if m.policy == TWO_LEVEL:
            rotate(sm, m, s, w)
        sm.last[s] = w
        sm.slots[ISSUED] += 1
        sm.idle_since[s] = time + 1
        return True
    charge(sm, s, time)
    sm.idle_reason[s] = idle_reason(sm, m, s)
    return False
