"""L1D of one SM: loads, stores by write policy, atomics, which pass it by (docs/timing-rules.md, rules 5, 11, 12)."""

from __future__ import annotations

from abstim.engine.address_map import hashed
from abstim.engine.l2 import WHOLE_LINE, WRITE, access, sectors_in
from abstim.engine.read_only_caches import supply
from abstim.engine.rules import SECTORS
from abstim.engine.servers import inject, respond_in_order
from abstim.engine.state import HINTS, INDEX_HASH, INDEX_IPOLY, NEVER, WRITE_BACK, WRITE_THROUGH
from abstim.engine.tags import arrived_victim, drop, find, place, touch, victim
from functional.disk.compile import jit
from functional.trace import SECTOR_BYTES


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
    """Make room for a line that is not there; returns (position, cycle in which that could be done).

    Where lines are allocated on a miss, one still on its way cannot be replaced: the tags wait.
    """
    sm, m, l1d = c.sm, c.machine, c.l1d
    first = set_of(m, line)
    if m.perfect or not m.l1d_allocates_on_miss:
        k = victim(l1d.last_use, first, m.l1d_ways)
    else:
        k = arrived_victim(l1d, first, m.l1d_ways, time)
        time = max(time, l1d.there[k])
        sm.tags_blocked = max(sm.tags_blocked, time)
    row = l1d.line[k]
    if row.dirty and not m.perfect:
        store_below(c, l1d.tag[k] - 1, row.dirty, time)
    place(l1d, k, line, time)
    row.merged = 1
    row.dirty = 0
    for j in range(SECTORS):
        row.sector_there[j] = NEVER
    touch(sm, l1d.last_use, k)
    l1d.hint[line & (HINTS - 1)] = k
    return k, time


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
def merge(c, k, sectors, time):
    """A hit on a line that is still on its way joins its miss, or blocks the tags until then if no more can join."""
    there = arrival(c, k, sectors)
    if not c.machine.perfect and there > time:
        row = c.l1d.line[k]
        if row.merged >= c.machine.mshr_merges:
            c.sm.tags_blocked = max(c.sm.tags_blocked, there)
        row.merged += 1
    return max(time, there)


@jit
def wait_for_mshr(c, time):
    """Cycle from `time` on in which a miss register is free: the first of a binary heap. The tags wait for it."""
    if c.l1d.miss_until[0] > time:
        time = c.l1d.miss_until[0]
        c.sm.tags_blocked = max(c.sm.tags_blocked, time)
    return time


@jit
def take_mshr(c, until):
    """Take the miss register that is free first, until a line is there."""
    k, heap = 0, c.l1d.miss_until
    while True:
        child = 2 * k + 1
        if child + 1 < c.machine.l1d_mshrs and heap[child + 1] < heap[child]:
            child += 1
        if child >= c.machine.l1d_mshrs or heap[child] >= until:
            heap[k] = until
            return
        heap[k] = heap[child]
        k = child


@jit
def miss(c, k, line, time, sectors):
    """A load that finds its line, or the sectors it wants of the one at `k` (-1: no line), missing: (position, cycle in
    which they are there)."""
    m = c.machine
    if not m.perfect:
        time = wait_for_mshr(c, time)
    if k < 0:
        k, time = allocate(c, line, time)
    wanted = sectors if m.l1d_sectored else WHOLE_LINE
    if m.l1d_sectored and not m.perfect:
        time = inject(c.sm, m, time, 1) - 1
    there = supply(c, line, wanted, time)
    if not m.perfect:
        take_mshr(c, there)
    arrive_at(c, k, wanted, there)
    return k, there


@jit
def load(c, line, time, sectors):
    """Result cycle of one load (or local store) transaction, a hit at `time`. Allocates on a miss."""
    k = find_line(c, line)
    c.sm.l1d_accesses += 1
    if k >= 0 and not absent(c, k, sectors):
        done = merge(c, k, sectors, time)
    else:
        c.sm.l1d_misses += 1
        k, done = miss(c, k, line, time, sectors)
    use(c, k)
    return done


@jit
def segment(sectors):
    """The sectors of the aligned 32, 64 or 128 B segment that holds some sectors."""
    return 15 if sectors & 3 and sectors & 12 else sectors


@jit
def store_below(c, line, sectors, time):
    """Acknowledgement of a store that leaves L1D at `time` for the L2."""
    m = c.machine
    if m.perfect:
        return respond_in_order(c.sm, time + m.miss_cycles)
    sectors = segment(sectors)
    size = SECTOR_BYTES * sectors_in(sectors)
    sent = inject(c.sm, m, time, (size + m.packet_bytes + m.flit_bytes - 1) // m.flit_bytes)
    return access(c.sm, c.shared, line, sectors, sent, WRITE, m.l2_sector_units)


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
        return store_below(c, line, sectors, time)
    if k < 0 and m.l1d_write_allocates:
        k, time = allocate(c, line, time)
    if k >= 0:
        if m.l1d_write_allocates:  # what is written need not be fetched
            arrive_at(c, k, sectors, time)
        use(c, k)
        if m.l1d_write == WRITE_BACK:
            c.l1d.line[k].dirty |= sectors
            return time
    return store_below(c, line, sectors, time)


@jit
def pass_by(c, line, time, sectors, write, units):
    """Result cycle of one transaction that enters the memory pipe at `time` and passes L1D by."""
    if c.machine.perfect:
        return respond_in_order(c.sm, time + c.machine.atomic_cycles)
    return access(c.sm, c.shared, line, sectors, time + 1, write, units)
