"""The warp schedulers of an SM: who may issue in a cycle, by policy (docs/timing-rules.md, rules 1 and 2)."""

from abstim.engine import state
from abstim.engine.barriers_and_exits import charge
from abstim.engine.fetch import want_fetch
from abstim.engine.issue import issue
from abstim.engine.operand_collectors import first_free, pool_of, port_free, port_of, waits_at_port
from abstim.engine.scoreboard import registers_free, waits_long
from abstim.engine.warp_slots import EMPTY_SET, bit, first_after, lowest
from precharacterize.synchronisation import NONE


def oldest(sm, slots):
    """Launch order: resident blocks from the oldest, then warps by number."""
    for k in range(sm.resident):
        block = slots & sm.block_slots[sm.block_order[k]]
        if block:
            return lowest(block)
    return -1


def pick(sm, m, s, slots):
    """The warp that scheduler `s` visits first among `slots`, which is not empty."""
    if m.policy == state.LRR:
        return first_after(slots, sm.last[s])
    if m.policy == state.TWO_LEVEL:
        return first_active(sm, s, slots)
    if m.policy == state.GTO and sm.last[s] >= 0 and slots & bit(sm.last[s]):
        return sm.last[s]
    return oldest(sm, slots)


def promote(c, s, time):
    """Two-level: demote active warps that wait for something long, promote as many from the pending queue."""
    sm = c.sm
    total = sm.count[s]
    active = min(c.machine.two_level_active_warps, total)
    kept, demoted = 0, 0
    for k in range(active):
        w = sm.order[s, k]
        waits = sm.held & bit(w) or not sm.running & bit(w) or sm.warps.not_before[w] > time
        if waits or waits_long(c, w, time):
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


def active_set(sm, m, s):
    """Two-level: the slots in the active queue."""
    active = EMPTY_SET
    for k in range(min(m.two_level_active_warps, sm.count[s])):
        active |= bit(sm.order[s, k])
    return active


def first_active(sm, s, slots):
    """Two-level: the first of the active queue that is in `slots`; there is one."""
    k = 0
    while not slots & bit(sm.order[s, k]):
        k += 1
    return sm.order[s, k]


def rotate(sm, m, s, w):
    """Two-level: the active queue goes on behind warp `w`."""
    active, position = min(m.two_level_active_warps, sm.count[s]), 0
    while sm.order[s, position] != w:
        position += 1
    for k in range(active):
        sm.order_scratch[k] = sm.order[s, k]
    for k in range(active):
        source = position + 1 + k
        sm.order[s, k] = sm.order_scratch[source if source < active else source - active]


def idle_reason(sm, m, s):
    """Why scheduler `s`, which has just visited its warps in vain, issues nothing."""
    slots = m.scheduler_slots[s]
    if sm.visitable & slots:
        return state.UNIT_BUSY
    waiting = sm.running & slots & ~sm.held
    if waiting & sm.memory:
        return state.MEMORY_WAIT
    if waiting:
        return state.NOT_READY
    return state.BARRIER_WAIT if sm.held & slots else state.EMPTY


def issue_from(c, unit, w):
    """First cycle in which warp `w` can issue to a kind of unit; NEVER: not known."""
    sm, m = c.sm, c.machine
    port = port_of(m, unit, w)
    if not m.perfect_memory and sm.issued_count:
        if unit == state.MEM:  # which waits at its port for a collector
            room = sm.accesses_unused[0] != 0 or sm.accesses_unused[1] < state.ACCESSES
            return port_free(sm, port) if room and sm.issued_count < state.ISSUED_ACCESSES else state.NEVER
        waits = waits_at_port(m) and c.code[sm.warps.pc[w]].copies == NONE
        if not waits and first_free(c, pool_of(m, port, w)) >= state.NEVER:
            return state.NEVER
    return port_free(sm, port)


def passed_over(c, w, time):
    """The warps that need not be visited in this turn once `w` is, none if it can issue: it alone, its wrong path
    flushed, or all that wait for its port, noting when that will be free."""
    sm, code = c.sm, c.code
    if sm.flush & bit(w):
        sm.visitable &= ~bit(w)
        sm.flush &= ~bit(w)
        want_fetch(sm, w, code[sm.warps.pc[w]].pcs)
        return bit(w)
    row = code[sm.warps.pc[w]]
    free = issue_from(c, row.unit, w)
    if free <= time:
        return EMPTY_SET
    sm.port_wait = min(sm.port_wait, free)
    if row.copies != NONE:  # which may not wait at the port for a collector, as others may
        return bit(w)
    return sm.of_kind[row.unit] & ~sm.flush


def issues_again(c, w, first, time):
    """Can the warp that has just issued to a unit of kind `first` issue its next instruction in the same cycle?

    It must be in the buffer, go to another kind of unit, and wait for nothing."""
    sm = c.sm
    if sm.warps.buffered[w] == 0 or (sm.flush | sm.held | ~sm.running) & bit(w) or sm.warps.not_before[w] > time:
        return False
    row = c.code[sm.warps.pc[w]]
    if row.unit == first or issue_from(c, row.unit, w) > time:
        return False
    return registers_free(c, w, row) <= time


def take_turn(c, s, time):
    """One cycle of scheduler `s`; returns True if it issues an instruction."""
    sm, m, code = c.sm, c.machine, c.code
    slots = sm.visitable & m.scheduler_slots[s]
    if m.policy == state.TWO_LEVEL:
        promote(c, s, time)
        slots &= active_set(sm, m, s)
    while slots:
        w = pick(sm, m, s, slots)
        passed = passed_over(c, w, time)
        if passed:
            slots &= ~passed
            continue
        charge(sm, s, time)
        first = code[sm.warps.pc[w]].unit
        issue(c, w, time)
        if m.issues_per_turn > 1 and issues_again(c, w, first, time):
            sm.early |= bit(w)
            issue(c, w, time)
        if m.policy == state.TWO_LEVEL:
            rotate(sm, m, s, w)
        sm.last[s] = w
        sm.slots[state.ISSUED] += 1
        sm.idle_since[s] = time + 1
        return True
    reason = idle_reason(sm, m, s)
    if reason != sm.idle_reason[s]:
        charge(sm, s, time)
        sm.idle_reason[s] = reason
    return False
