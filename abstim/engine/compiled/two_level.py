"""The queues of a two-level scheduler (docs/timing-rules.md, rule 2)."""

from __future__ import annotations

from abstim.engine.compiled.compile import jit
from abstim.engine.compiled.sets import bit


@jit
def waits_long(sm, heap, m, code, operands, w, time):
    """Was a plain source of the warp's buffered next instruction last written by a long operation?"""
    if sm.buffered[w] == 0 or sm.front_end[w] > time:
        return False
    row = code[sm.wrong[w] if sm.flush[w] else sm.pc[w]]
    registers = m.registers_at + w * m.register_count
    for k in range(row.long_at, row.long_end):
        if heap[registers + operands[k]] & 2:
            return True
    return False


@jit
def promote(sm, heap, m, code, operands, s, time):
    """Demote active warps that wait for something long, promote as many from the pending queue."""
    total = sm.count[s]
    active = min(m.active_warps, total)
    kept, demoted = 0, 0
    for k in range(active):
        w = sm.order[s, k]
        waits = sm.held & bit(w) or not sm.running & bit(w) or sm.not_before[w] > time
        if waits or waits_long(sm, heap, m, code, operands, w, time):
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
def rotate(sm, m, s, position):
    """The active queue goes on behind the warp at `position`."""
    active = min(m.active_warps, sm.count[s])
    for k in range(position + 1):
        sm.order_scratch[k] = sm.order[s, k]
    for k in range(position + 1, active):
        sm.order[s, k - position - 1] = sm.order[s, k]
    for k in range(position + 1):
        sm.order[s, active - position - 1 + k] = sm.order_scratch[k]
