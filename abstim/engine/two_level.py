"""The queues of a two-level scheduler (docs/timing-rules.md, rule 2)."""

from __future__ import annotations

from abstim.engine.layout import FROM_GLOBAL, FROM_PARAM
from abstim.engine.sets import EMPTY_SET, bit
from functional.disk.compile import jit


@jit
def waits_long(sm, heap, far, m, code, operands, w, time):
    """Does a plain source of the warp's buffered next instruction count as waiting for a long operation?"""
    if sm.buffered[w] == 0 or sm.front_end[w] > time:
        return False
    row = code[sm.wrong[w] if sm.flush[w] else sm.pc[w]]
    registers = m.registers_at + w * m.register_count
    for k in range(row.long_at, row.long_end):
        entry = heap[registers + operands[k]]
        if entry & 3 == FROM_GLOBAL or (entry & 3 == FROM_PARAM and entry >> 2 > time):
            return True
    return False


@jit
def promote(sm, heap, far, m, code, operands, s, time):
    """Demote active warps that wait for something long, promote as many from the pending queue."""
    total = sm.count[s]
    active = min(m.active_warps, total)
    kept, demoted = 0, 0
    for k in range(active):
        w = sm.order[s, k]
        waits = sm.held & bit(w) or not sm.running & bit(w) or sm.not_before[w] > time
        if waits or waits_long(sm, heap, far, m, code, operands, w, time):
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
def active_set(sm, m, s):
    """The slots in the active queue."""
    active = EMPTY_SET
    for k in range(min(m.active_warps, sm.count[s])):
        active |= bit(sm.order[s, k])
    return active


@jit
def first_active(sm, m, s, slots):
    """The first of the active queue that is in `slots`; there is one."""
    k = 0
    while not slots & bit(sm.order[s, k]):
        k += 1
    return sm.order[s, k]


@jit
def rotate(sm, m, s, w):
    """The active queue goes on behind warp `w`."""
    active, position = min(m.active_warps, sm.count[s]), 0
    while sm.order[s, position] != w:
        position += 1
    for k in range(active):
        sm.order_scratch[k] = sm.order[s, k]
    for k in range(active):
        source = position + 1 + k
        sm.order[s, k] = sm.order_scratch[source if source < active else source - active]
