"""Uses of L1D and L2 that a walk notes, and whether other caches would answer as they did; compiled.

As long as all answers are the same, so is the walk. Then a line is in both or in neither, and all is the same of it. So
other caches are told by their tags alone, use by use, if no line leaves them that is written back, or on its way."""

from abstim.engine.address_map import l2_set_of, slice_of
from abstim.engine.l1d import set_of
from abstim.engine.state import WRITE_THROUGH
from abstim.occupancy_vector import records as rec
from abstim.occupancy_vector.walk_tags import empty, evict, find, use


def note(uses, count, sm, line, was_there, how, idle_by, there):
    """A use (cache_walk.USE) is noted, if there is room for it; returns how many there are then."""
    if count < len(uses):
        own = uses[count]
        own.sm, own.line, own.was_there, own.how, own.idle_by, own.there = sm, line, was_there, how, idle_by, there
    return count + 1


def agrees(caches, lines, first, ways, own):
    """Does a set answer a use as in the walk it is of, and let nothing go that is on its way or written?"""
    k, there = find(caches, lines, first, ways, own.line)
    row = lines.row[k]
    if there != own.was_there:
        return 0
    if not there and own.how != rec.LOOKED_UP:
        if lines.used[k] > caches.uses[0].before and (row.dirty or row.there > own.idle_by):
            return 0
        lines.tag[k], row.dirty = own.line + 1, 0
    if own.how == rec.EVICTED:
        evict(caches, lines, k)
    elif own.how != rec.LOOKED_UP:
        row.there = own.there
        row.dirty |= own.how == rec.WRITTEN
        use(caches, lines, k)
    return 1


def l1d_agrees(machine, caches, uses, found):
    """Do L1Ds answer as in a walk of other caches? Then they are the same to it."""
    m, n = machine[0], 0
    empty(caches)
    found[0] = 1
    while found[0] and n < len(uses.l1d):
        own = uses.l1d[n]
        found[0] = agrees(caches, caches.l1d, own.sm * caches.l1d.size + set_of(m, own.line), m.l1d_ways, own)
        n += 1


def l2_agrees(machine, caches, uses, found):
    """The same of L2."""
    m, n = machine[0], 0
    empty(caches)
    found[0] = 1
    while found[0] and n < len(uses.l2):
        found[0] = agrees(caches, caches.l2, l2_set(m, uses.l2[n].line), m.l2_ways, uses.l2[n])
        n += 1


def l2_set(m, line):
    """The first way of the set of L2 that a line belongs to."""
    number, _, _, in_slice = slice_of(m, line)
    return (number * m.l2_sets + l2_set_of(m, in_slice)) * m.l2_ways


def note_store(walk, caches, number, line, there, how, row):
    """What is written through is in L1D as if it had been read."""
    totals = caches.totals[0]
    how = rec.USED if how == rec.WRITTEN and walk.machine[0].l1d_write == WRITE_THROUGH else how
    totals.l1d_uses = note(walk.l1d_uses, totals.l1d_uses, number, line, there, how, rec.NEVER_LATE, row.there)
