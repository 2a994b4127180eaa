"""The warp schedulers of an SM: who may issue in a cycle, by policy (docs/timing-rules.md, rules 1 and 2)."""

from __future__ import annotations

from abstim.engine.compiled.compile import jit
from abstim.engine.compiled.layout import (
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
from abstim.engine.compiled.ports import port_free
from abstim.engine.compiled.sets import ONE, above, bit, lowest, span
from abstim.engine.compiled.two_level import promote, rotate
from abstim.engine.compiled.warp import issue, refetch


@jit
def visit(sm, heap, m, code, streams, s, w, time):
    """Scheduler `s` looks at a visitable warp; returns True if it issues."""
    if sm.flush[w]:
        sm.visitable &= ~bit(w)
        refetch(sm, code, w)
        return False
    free = port_free(sm, m, code[sm.pc[w]].unit)
    if free > time:
        sm.port_wait = min(sm.port_wait, free)
        return False
    charge(sm, s, time)
    issue(sm, heap, m, code, streams, w, time)
    sm.last[s] = w
    sm.slots[ISSUED] += 1
    sm.idle_since[s] = time + 1
    return True


@jit
def visit_all(sm, heap, m, code, streams, s, slots, time):
    """Visit a set of warps, lowest slot first, until one issues."""
    while slots:
        w = lowest(slots)
        slots &= slots - ONE
        if visit(sm, heap, m, code, streams, s, w, time):
            return True
    return False


@jit
def oldest_first(sm, heap, m, code, streams, s, slots, time):
    """Launch order: resident blocks from the oldest, then warps by number."""
    for k in range(sm.resident):
        block = slots & span(sm.block_order[k] * m.warps_per_block, m.warps_per_block)
        if block and visit_all(sm, heap, m, code, streams, s, block, time):
            return True
    return False


@jit
def greedy_then_oldest(sm, heap, m, code, streams, s, slots, time):
    """The slot issued last, then launch order."""
    last = sm.last[s]
    if last >= 0 and slots & bit(last):
        slots &= ~bit(last)
        if visit(sm, heap, m, code, streams, s, last, time):
            return True
    return oldest_first(sm, heap, m, code, streams, s, slots, time)


@jit
def round_robin(sm, heap, m, code, streams, s, slots, time):
    """Slot order, beginning after the slot issued last."""
    after = above(slots, sm.last[s])
    if visit_all(sm, heap, m, code, streams, s, after, time):
        return True
    return visit_all(sm, heap, m, code, streams, s, slots & ~after, time)


@jit
def two_level(sm, heap, m, code, streams, s, slots, time):
    """The active queue, which goes on behind the warp that issues."""
    for k in range(min(m.active_warps, sm.count[s])):
        w = sm.order[s, k]
        if slots & bit(w) and visit(sm, heap, m, code, streams, s, w, time):
            rotate(sm, m, s, k)
            return True
    return False


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
def take_turn(sm, heap, m, code, streams, s, time):
    """One cycle of scheduler `s`; returns True if it issues an instruction."""
    if m.policy == TWO_LEVEL:
        promote(sm, heap, m, code, streams.operands, s, time)
    slots = sm.visitable & m.scheduler_slots[s]
    if slots:
        if m.policy == GTO:
            issued = greedy_then_oldest(sm, heap, m, code, streams, s, slots, time)
        elif m.policy == LRR:
            issued = round_robin(sm, heap, m, code, streams, s, slots, time)
        elif m.policy == TWO_LEVEL:
            issued = two_level(sm, heap, m, code, streams, s, slots, time)
        else:
            issued = oldest_first(sm, heap, m, code, streams, s, slots, time)
        if issued:
            return True
    charge(sm, s, time)
    sm.idle_reason[s] = idle_reason(sm, m, s)
    return False
