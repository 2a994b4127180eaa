"""The warp schedulers of an SM: who may issue in a cycle, by policy (MODEL.md rule 1)."""

from __future__ import annotations

from abstim.engine.compiled.compile import jit
from abstim.engine.compiled.layout import (
    BARRIER_WAIT,
    EMPTY,
    GTO,
    ISSUED,
    LRR,
    MEMORY_WAIT,
    NEVER,
    NOT_READY,
    OLDEST,
    TWO_LEVEL,
    UNIT_BUSY,
)  # fmt: skip
from abstim.engine.compiled.ports import port_free
from abstim.engine.compiled.warp import issue, refetch


@jit
def candidate(sm, m, s, k):
    """The k-th warp slot scheduler `s` looks at in this cycle, -1 to skip."""
    if m.policy == LRR:
        per = (m.warp_slots - s + m.schedulers - 1) // m.schedulers
        position = (sm.last[s] // m.schedulers + 1 + k) % per if sm.last[s] >= 0 else k
        return s + m.schedulers * position
    if m.policy == GTO:
        if k == 0:
            return sm.last[s]
        return sm.order[s, k - 1] if sm.order[s, k - 1] != sm.last[s] else -1
    return sm.order[s, k]


@jit
def candidates(sm, m, s):
    """How many slots `candidate` enumerates."""
    if m.policy == LRR:
        return (m.warp_slots - s + m.schedulers - 1) // m.schedulers
    if m.policy == TWO_LEVEL:
        return min(m.active_warps, sm.count[s])
    return sm.count[s] + (1 if m.policy == GTO else 0)


@jit
def retire(sm, m, s, w):
    """Take a finished warp out of an age order."""
    if m.policy != GTO and m.policy != OLDEST:
        return
    k = 0
    while sm.order[s, k] != w:
        k += 1
    for j in range(k, sm.count[s] - 1):
        sm.order[s, j] = sm.order[s, j + 1]
    sm.count[s] -= 1


@jit
def charge(sm, s, time):
    """Book the scheduler's idle cycles up to `time` under the reason last seen."""
    sm.slots[sm.idle_reason[s]] += time - sm.idle_since[s]
    sm.idle_since[s] = time


@jit
def is_long_wait(sm, heap, m, code, w, time):
    """Does a plain source of the warp's buffered next instruction wait for a load?"""
    if sm.buffered[w] == 0 or sm.front_end[w] > time:
        return False
    i = sm.wrong[w] if sm.flush[w] else sm.pc[w]
    for k in range(code[i].long_count):
        entry = heap[m.registers_at + w * m.register_count + code[i].long_waits[k]]
        if entry & 2:
            return True
    return False


@jit
def promote(sm, heap, m, code, s, time):
    """Two-level: demote active warps that wait for long operations, promote as many from the pending queue."""
    total = sm.count[s]
    active = min(m.active_warps, total)
    kept, demoted = 0, 0
    for k in range(active):
        w = sm.order[s, k]
        if not sm.alive[w] or sm.waiting[w] or sm.not_before[w] > time or is_long_wait(sm, heap, m, code, w, time):
            sm.order_scratch[demoted] = w
            demoted += 1
        else:
            sm.order[s, kept] = w
            kept += 1
    if demoted:
        for k in range(active, total):
            sm.order[s, k - demoted] = sm.order[s, k]
        for k in range(demoted):
            sm.order[s, total - demoted + k] = sm.order_scratch[k]


@jit
def rotate_active(sm, m, s, position):
    """Two-level: the active queue goes on after the warp that has just issued."""
    active = min(m.active_warps, sm.count[s])
    for k in range(position + 1):
        sm.order_scratch[k] = sm.order[s, k]
    for k in range(position + 1, active):
        sm.order[s, k - position - 1] = sm.order[s, k]
    for k in range(position + 1):
        sm.order[s, active - position - 1 + k] = sm.order_scratch[k]


@jit
def run_scheduler(sm, heap, m, code, streams, s, time):
    """One cycle of scheduler `s`. Issues at most one instruction; otherwise sets when to look again, and why not now."""
    if m.policy == TWO_LEVEL:
        promote(sm, heap, m, code, s, time)
    wake, blocked, memory, not_ready, barrier = NEVER, False, False, False, False
    for k in range(candidates(sm, m, s)):
        w = candidate(sm, m, s, k)
        if w < 0 or not sm.alive[w]:
            continue
        if sm.waiting[w]:
            barrier = True
            continue
        if sm.ready[w] <= time and sm.flush[w]:
            refetch(sm, code, w)
        if sm.ready[w] > time:
            wake = min(wake, sm.ready[w])
            memory |= sm.reason[w] == MEMORY_WAIT
            not_ready |= sm.reason[w] != MEMORY_WAIT
            continue
        free = port_free(sm, m, code[sm.pc[w]].unit)
        if free > time:
            wake = min(wake, free)
            blocked = True
            continue
        charge(sm, s, time)
        finished = issue(sm, heap, m, code, streams, w, time)
        if m.policy == TWO_LEVEL:
            rotate_active(sm, m, s, k)
        elif finished:
            retire(sm, m, s, w)
        sm.last[s] = w
        sm.slots[ISSUED] += 1
        sm.idle_since[s] = time + 1
        sm.wake[s] = time + 1
        return
    charge(sm, s, time)
    reason = UNIT_BUSY if blocked else MEMORY_WAIT if memory else NOT_READY if not_ready else EMPTY
    sm.idle_reason[s] = BARRIER_WAIT if reason == EMPTY and barrier else reason
    sm.wake[s] = time + 1 if m.policy == TWO_LEVEL else wake
