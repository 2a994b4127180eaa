"""Tags of the caches that `walk_kernel` goes through, compiled: who is in a set, and who leaves it. What a use before
this walk has left there is none."""

import numpy as np

from abstim.engine.accesses import sectors_in
from abstim.engine.warp_slots import ONE, lowest
from abstim.occupancy_vector import records as rec
from abstim.occupancy_vector.cache_walk import FEW_WAYS, FILLED_WAYS, HINTS, MOST_WAYS
from abstim.occupancy_vector.ready_slots import equal, first_of_least


def filled(caches, lines, first):
    """Ways of a set, from its first on, that this walk may have used: free ones are taken in order."""
    return max(0, lines.filled[first // FILLED_WAYS] - caches.uses[0].before * MOST_WAYS)


def position(caches, lines, first, ways, line):
    """Where a line is in its set, -1: nowhere. What no use of this walk has left there is none."""
    stop = first + (ways if ways <= FILLED_WAYS else filled(caches, lines, first))
    for n in range(first, stop, rec.TOGETHER):
        there = equal(lines.tag, n, line + 1)
        while there:
            k = n + lowest(there)
            if k < stop and lines.used[k] > caches.uses[0].before:
                return k
            there &= there - ONE
    return -1


def in_l1d(walk, caches, number, first, line):
    """`position` in an SM's L1D, where lines that no other shares a hint with need no search."""
    hint, tags = caches.hints[number, line & (HINTS - 1)], caches.l1d.tag
    if walk.machine[0].l1d_ways <= FEW_WAYS or hint.line < 0:
        return position(caches, caches.l1d, first, walk.machine[0].l1d_ways, line)
    if hint.line == line + 1 and tags[hint.way] == line + 1 and caches.l1d.used[hint.way] > caches.uses[0].before:
        return hint.way
    return np.int64(-1)


def place_in_l1d(caches, number, k, line):
    """A line takes a way of an SM's L1D; nothing of it is there."""
    hint = caches.hints[number, line & (HINTS - 1)]
    hint.line = line + 1 if hint.line == 0 or hint.line == line + 1 else -1
    hint.way = k
    caches.l1d.tag[k], row = line + 1, caches.l1d.row[k]
    row.valid = row.dirty = row.written = 0


def oldest_way(caches, lines, first, ways):
    """The least recently used of a set, the first of those that this walk has not used."""
    before = caches.uses[0].before
    if ways <= FILLED_WAYS:
        return first_of_least(lines.used, first, ways, before)
    count = filled(caches, lines, first)
    if count < ways and not caches.uses[0].evicted:
        lines.filled[first // FILLED_WAYS] = before * MOST_WAYS + count + 1
        return first + count
    k = first_of_least(lines.used, first, min(ways, count + 1), before)
    lines.filled[first // FILLED_WAYS] = before * MOST_WAYS + max(count, k - first + 1)
    return k


def find(caches, lines, first, ways, line):
    """(position, is it there): where it is, or the least recently used of its set."""
    k = position(caches, lines, first, ways, line)
    return (k, True) if k >= 0 else (oldest_way(caches, lines, first, ways), False)


def use(caches, lines, k):
    """The line is the youngest of its set."""
    caches.uses[0].latest += 1
    lines.used[k] = caches.uses[0].latest


def is_idle(caches, lines, k, time):
    """Is a line not on its way?"""
    return lines.used[k] < caches.uses[0].before or lines.row[k].there <= time


def free_way(caches, lines, first, ways, time):
    """The least recently used line of a set that is not on its way; of a set in which all are, the next to come."""
    best = oldest_way(caches, lines, first, ways)
    if is_idle(caches, lines, best, time):  # nearly always
        return best
    best, soonest, used = -1, first, rec.FAR_OFF
    for k in range(first, first + ways):
        own = max(lines.used[k], caches.uses[0].before)
        if is_idle(caches, lines, k, time) and own < used:
            best, used = k, own
        if lines.row[k].there < lines.row[soonest].there:
            soonest = k
    return best if best >= 0 else soonest


def place_in_l2(caches, k, line):
    """A line takes a way of L2; returns how many sectors leave that for DRAM."""
    before = caches.l2.used[k]
    caches.l2.tag[k] = line + 1
    return sectors_in(caches.l2.row[k].dirty) if before > caches.uses[0].before else 0


def empty(caches):
    """Nothing is in any cache: what lines are left are of uses before."""
    caches.uses[0].latest += 1
    caches.uses[0].before, caches.uses[0].evicted = caches.uses[0].latest, 0


def evict(caches, lines, k):
    """A line leaves its way, which is free."""
    lines.tag[k], lines.used[k] = 0, caches.uses[0].before
    caches.uses[0].evicted = 1
