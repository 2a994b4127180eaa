"""Groups of asynchronous copies, and who waits for them (docs/timing-rules.md, rule 7)."""

from __future__ import annotations

from abstim.engine.state import NEVER
from abstim.engine.warp_slots import bit
from functional.disk.compile import jit
from precharacterize.asynchronous_copies import COMMIT, COPY, GROUPS


@jit
def copy_begins(sm, w):
    """A copy whose result is not known yet joins the warp's open group, which it yields."""
    group = sm.group[w]
    sm.copies_coming[w, group] += 1
    return group


@jit
def copy_ends(sm, w, group, result):
    """The result of such a copy is known."""
    sm.copies_coming[w, group] -= 1
    sm.copies_there[w, group] = max(sm.copies_there[w, group], result)
    if sm.copying & bit(w):
        there = all_there(sm, w, sm.allowed[w])
        if there < NEVER:
            sm.copying &= ~bit(w)
            sm.not_before[w] = there


@jit
def all_there(sm, w, allowed):
    """Cycle in which the copies of all groups but the latest `allowed` are complete; NEVER: not known yet."""
    there = 0
    for age in range(allowed, GROUPS):
        group = (sm.group[w] - age) & (GROUPS - 1)
        if sm.copies_coming[w, group]:
            return NEVER
        there = max(there, sm.copies_there[w, group])
    return there


@jit
def follow_copies(c, w, copies, result):
    """Warp `w` has issued an instruction that does something with groups; `copies` as the latency table has it."""
    sm = c.sm
    if copies == COPY:
        if c.machine.perfect:
            group = sm.group[w]
            sm.copies_there[w, group] = max(sm.copies_there[w, group], result)
    elif copies == COMMIT:
        sm.group[w] = (sm.group[w] + 1) & (GROUPS - 1)
    else:
        there = all_there(sm, w, copies)
        if there == NEVER:
            sm.copying |= bit(w)
            sm.allowed[w] = copies
        sm.not_before[w] = max(sm.not_before[w], there)
