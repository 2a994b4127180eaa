"""L1D of one SM with perfect memory: loads, stores by write policy, atomics, which pass it by (docs/timing-rules.md,
rules 5 and 12); and where a line lies in it."""

from __future__ import annotations

from abstim.engine.address_map import hashed
from abstim.engine.l2 import WHOLE_LINE
from abstim.engine.read_only_caches import supply
from abstim.engine.response_fifo import respond_in_order
from abstim.engine.rules import SECTORS
from abstim.engine.state import HINTS, INDEX_HASH, INDEX_IPOLY, NEVER, WRITE_BACK, WRITE_THROUGH
from abstim.engine.tags import drop, find, place, touch, victim
from functional.jit.compile import jit


@jit
def set_of(m, line):
    """First way of a line's set: linear, or the hash of Nugteren et al. (HPCA 2014) that the reference uses, or
    polynomial."""
    index = line & (m.l1d_sets - 1)
    if m.l1d_index == INDEX_HASH:
        upper = ((line >> 6) & 7) | (((line >> 10) & 1) << 3) | (((line >> 12) & 1) << 4)
        index = (index ^ upper) & (m.l1d_sets - 1)
    elif m.l1d_index == INDEX_IPOLY:
        index = hashed(index, line // m.l1d_sets, m.l1d_residues)
    return index * m.l1d_set_lines


@jit
def find_line(c, line):
    """Position of a line, or -1. Looks first where it was last: the sets of a modern L1D are 256 ways long."""
    l1d, m = c.l1d, c.machine
    k = l1d.hint[line & (HINTS - 1)]
    if l1d.tag[k] == line + 1:
        return k
    k = find(l1d.tag, set_of(m, line), m.l1d_ways, line)
    if k >= 0:
        l1d.hint[line & (HINTS - 1)] = k
    return k


@jit
def use(c, k):
    """The line at `k` is used: the youngest, unless the policy goes by arrival alone."""
    if not c.machine.l1d_fifo:
        touch(c.sm, c.l1d.last_use, k)


@jit
def allocate(c, line, time):
    """Make room for a line that is not there; returns its position."""
    m, l1d = c.machine, c.l1d
    k = victim(l1d.last_use, set_of(m, line), m.l1d_ways)
    row = l1d.line[k]
    place(l1d, k, line, time)
    row.dirty = 0
    for j in range(SECTORS):
        row.sector_there[j] = NEVER
    touch(c.sm, l1d.last_use, k)
    l1d.hint[line & (HINTS - 1)] = k
    return k


@jit
def absent(c, k, sectors):
    """Is a sector wanted of the line at `k` neither there nor on its way?"""
    if c.machine.l1d_sectored:
        for j in range(SECTORS):
            if (sectors >> j) & 1 and c.l1d.line[k].sector_there[j] == NEVER:
                return True
    return False


@jit
def arrival(c, k, sectors):
    """Cycle in which the sectors wanted of the line at `k` are there."""
    if not c.machine.l1d_sectored:
        return c.l1d.there[k]
    there = 0
    for j in range(SECTORS):
        if (sectors >> j) & 1:
            there = max(there, c.l1d.line[k].sector_there[j])
    return there


@jit
def arrive_at(c, k, sectors, there):
    """The sectors of the line at `k` are there from cycle `there` on."""
    c.l1d.there[k] = max(c.l1d.there[k], there)
    for j in range(SECTORS):
        if (sectors >> j) & 1:
            c.l1d.line[k].sector_there[j] = there


@jit
def miss(c, k, line, time, sectors):
    """A load that finds its line, or the sectors it wants of the one at `k` (-1: no line), missing: (position, cycle in
    which they are there)."""
    if k < 0:
        k = allocate(c, line, time)
    there = supply(c, time)
    arrive_at(c, k, sectors if c.machine.l1d_sectored else WHOLE_LINE, there)
    return k, there


@jit
def load(c, line, time, sectors):
    """Result cycle of one load (or local store) transaction, a hit at `time`. Allocates on a miss."""
    k = find_line(c, line)
    c.sm.l1d_accesses += 1
    if k >= 0 and not absent(c, k, sectors):
        done = max(time, arrival(c, k, sectors))
    else:
        c.sm.l1d_misses += 1
        k, done = miss(c, k, line, time, sectors)
    use(c, k)
    return done


@jit
def segment(m, sectors):
    """The sectors that a store of some sectors writes: those, or, of Fermi's segments, the aligned 32, 64 or 128 B."""
    return 15 if not m.coalesced_bytes and sectors & 3 and sectors & 12 else sectors


@jit
def store_below(c, time):
    """Acknowledgement of a store that leaves L1D at `time`."""
    return respond_in_order(c.sm, time + c.machine.miss_cycles)


@jit
def store(c, line, time, sectors):
    """Acknowledgement of one global store transaction that meets the tags at `time`."""
    m, k = c.machine, find_line(c, line)
    c.sm.l1d_accesses += 1
    if k < 0 or absent(c, k, sectors):
        c.sm.l1d_misses += 1
    if m.l1d_write < WRITE_THROUGH:  # a hit evicts, a miss does not allocate
        if k >= 0:
            drop(c.l1d, k)
        return store_below(c, time)
    if k < 0 and m.l1d_write_allocates:
        k = allocate(c, line, time)
    if k >= 0:
        if m.l1d_write_allocates:  # what is written need not be fetched
            arrive_at(c, k, sectors, time)
        use(c, k)
        if m.l1d_write == WRITE_BACK:
            c.l1d.line[k].dirty |= sectors
            return time
    return store_below(c, time)


@jit
def pass_by(c, time):
    """Result cycle of one transaction that enters the memory pipe at `time` and passes L1D by."""
    return respond_in_order(c.sm, time + c.machine.atomic_cycles)
