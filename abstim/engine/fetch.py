"""Fetch: one warp a cycle, round robin over empty instruction buffers; warps that have drained are noticed in passing
(docs/timing-rules.md, rules 6 and 9)."""

from abstim.engine.barriers_and_exits import notice
from abstim.engine.drawn_slices import note_fetch
from abstim.engine.read_only_caches import l1i_lookup
from abstim.engine.scoreboard import make_ready
from abstim.engine.state import NEVER
from abstim.engine.warp_slots import bit, first_after, visit_from
from functional.jit.marked import members
from precharacterize.table import brought


def want_fetch(sm, w, pc):
    """The warp's buffer is empty: it asks for `pc` from now on."""
    sm.wanted |= bit(w)
    sm.fetch_blocked = 0  # which holds for whoever came first before
    sm.memory &= ~bit(w)
    sm.warps.fetch_pc[w] = pc
    sm.warps.buffered[w] = 0
    sm.warps.ready[w] = NEVER


def deliver(c, w, time, ready):
    """A fetch pair reaches the warp, which can issue from it from cycle `ready` on."""
    sm, m = c.sm, c.machine
    sm.warps.front_end[w] = ready
    sm.warps.buffered[w] = brought(m.instructions_per_fetch, 1 << m.fetch_line_log2, sm.warps.fetch_pc[w])
    if not sm.flush & bit(w):
        make_ready(c, w, ready, time)
        return
    sm.warps.ready[w] = ready
    if not sm.held & bit(w):
        visit_from(sm, w, ready, time)


def notice_exits(c, fetched, time):
    """Drained warps between the last fetched slot and `fetched` (all of them if it is -1) leave."""
    sm, n = c.sm, c.machine.max_warps_per_sm
    reach = (fetched - sm.last_fetched - 1) % n if fetched >= 0 else n
    sm.next_exit = NEVER
    for w in members(sm.exiting):
        if sm.warps.drained[w] <= time and (w - sm.last_fetched - 1) % n < reach:
            sm.exiting &= ~bit(w)
            notice(c, w, time)
        else:
            sm.next_exit = min(sm.next_exit, sm.warps.drained[w])


def take_returned(sm):
    """The slot whose missed line is back the longest waits no more."""
    best, sm.next_back = -1, NEVER
    for w in members(sm.missing):
        if best < 0 or sm.fetch_back[w] < sm.fetch_back[best]:
            best = w
    sm.missing &= ~bit(best)
    for w in members(sm.missing):
        sm.next_back = min(sm.next_back, sm.fetch_back[w])
    return best


def fetch(c, time, ready):
    """One fetch; what it brings is decoded by the next one, and can issue in cycle `ready`."""
    sm = c.sm
    if sm.missing and sm.next_back <= time:  # takes the whole stage
        deliver(c, take_returned(sm), time, ready)
        return
    fetched = first_after(sm.wanted, sm.last_fetched) if sm.wanted else -1
    if sm.exiting and sm.next_exit <= time:
        notice_exits(c, fetched, time)
    if fetched < 0 or sm.fetch_blocked > time:
        return
    there = time if c.machine.perfect_instruction_cache else l1i_lookup(c, sm.warps.fetch_pc[fetched], time)
    if there == NEVER:
        return
    if c.machine.slice_random and c.machine.perfect_instruction_cache:
        note_fetch(c, sm.warps.fetch_pc[fetched], time)
    sm.last_fetched = fetched
    sm.wanted &= ~bit(fetched)
    if there <= time:
        deliver(c, fetched, time, ready)
    else:
        sm.next_back = min(there, sm.next_back if sm.missing else NEVER)
        sm.missing |= bit(fetched)
        sm.fetch_back[fetched], sm.fetch_place[fetched] = there, sm.code_place


def next_fetch(sm, time):
    """First cycle after `time` in which the fetch stage has something to do."""
    if sm.wanted and sm.fetch_blocked <= time + 1:
        return time + 1
    following = sm.fetch_blocked if sm.wanted else NEVER
    if sm.missing:
        following = min(following, sm.next_back)
    if sm.exiting:
        following = min(following, sm.next_exit)
    return max(following, time + 1)
