"""Groups of asynchronous copies and products, and who waits for them (docs/timing-rules.md, rule 7)."""

from __future__ import annotations

from abstim.engine.state import MEM, NEVER
from abstim.engine.warp_slots import bit
from functional.jit.compile import jit
from precharacterize import synchronisation
from precharacterize.synchronisation import GROUPS, LAST_PRODUCT, WAITS

starts_work = jit(synchronisation.starts_work)
closes_group = jit(synchronisation.closes_group)
family_of = jit(synchronisation.family_of)


@jit
def copy_begins(sm, w, family):
    """A copy whose result is not known yet joins the warp's open group, which it yields."""
    group = sm.group[w, family]
    sm.copies_coming[w, family, group] += 1
    return group


@jit
def copy_ends(sm, w, family, group, result):
    """The result of such a copy is known."""
    sm.copies_coming[w, family, group] -= 1
    work_ends(sm, w, family, group, result)
    if sm.copying & bit(w):
        there = all_there(sm, w, sm.awaited[w])
        if there < NEVER:
            sm.copying &= ~bit(w)
            sm.not_before[w] = there


@jit
def work_ends(sm, w, family, group, result):
    """Something of a group is complete at `result`."""
    sm.copies_there[w, family, group] = max(sm.copies_there[w, family, group], result)


@jit
def all_there(sm, w, awaited):
    """Cycle in which the work is complete that a wait, as the latency table has it, is for; NEVER: not known yet."""
    there, family = 0, awaited // WAITS
    for age in range(awaited % WAITS, GROUPS):
        group = (sm.group[w, family] - age) & (GROUPS - 1)
        if sm.copies_coming[w, family, group]:
            return NEVER
        there = max(there, sm.copies_there[w, family, group])
    return there


@jit
def follow_groups(c, w, row, result):
    """Warp `w` has issued an instruction that does something with groups."""
    sm, copies = c.sm, row.copies
    if starts_work(copies):
        family = family_of(copies)
        if c.machine.perfect or row.unit != MEM:
            work_ends(sm, w, family, sm.group[w, family], result)
    if closes_group(copies) or copies == LAST_PRODUCT:
        family = family_of(copies)
        sm.group[w, family] = (sm.group[w, family] + 1) & (GROUPS - 1)
    elif copies >= 0:
        there = all_there(sm, w, copies)
        if there == NEVER:
            sm.copying |= bit(w)
            sm.awaited[w] = copies
        sm.not_before[w] = max(sm.not_before[w], there)
