"""L1D of one SM: loads, stores by write policy, atomics, which pass it by (docs/timing-rules.md, rules 5 and 11)."""

from __future__ import annotations

from abstim.engine.l2 import access, hashed
from abstim.engine.layout import HINTS, NEVER, WHOLE_LINE, WRITE
from abstim.engine.read_only_caches import supply
from abstim.engine.servers import respond_in_order
from abstim.engine.tags import arrived_victim, drop, find, place, touch, victim
from functional.disk.compile import jit

INDEX_HASH, INDEX_IPOLY = 1, 2  # abstim.engine.design_point.INDICES
WRITE_THROUGH, WRITE_BACK = 2, 3  # abstim.engine.design_point.WRITES; the others evict on a hit


@jit
def l1d_first(m, line):
    """First way of an L1D line's set: linear, or the hash of Nugteren et al. (HPCA 2014) that the reference uses, or
    polynomial."""
    index = line & (m.l1d_sets - 1)
    if m.l1d_index == INDEX_HASH:
        upper = ((line >> 6) & 7) | (((line >> 10) & 1) << 3) | (((line >> 12) & 1) << 4)
        index = (index ^ upper) & (m.l1d_sets - 1)
    elif m.l1d_index == INDEX_IPOLY:
        index = hashed(index, line // m.l1d_sets, m.l1d_residues)
    return m.l1d_at + index * (m.l1d_lines // m.l1d_sets)


@jit
def l1d_find(heap, m, line):
    """Position of a line, or -1. Looks first where it was last: the sets of a modern L1D are 256 ways long."""
    hint = m.hints_at + (line & (HINTS - 1))
    k = heap[hint]
    if k and heap[k] == line + 1:
        return k
    k = find(heap, l1d_first(m, line), m.l1d_ways, line)
    if k >= 0:
        heap[hint] = k
    return k


@jit
def inject(sm, m, time, flits):
    """A request of some flits leaves for the crossbar, one a cycle; returns when it has. The tags wait while the miss
    queue in front of the port is full."""
    sent = max(time + 1, sm.inject_free) + flits
    sm.inject_free = sent
    sm.tags_blocked = max(sm.tags_blocked, sent - m.miss_queue * flits)
    return sent


@jit
def allocate(sm, heap, far, m, line, time):
    """Make room for a line that is not there; returns (position, cycle in which that could be done).

    Where lines are allocated on a miss, one still on its way cannot be replaced: the tags wait.
    """
    lines, first = m.l1d_lines, l1d_first(m, line)
    if m.perfect or not m.l1d_allocates_on_miss:
        k = victim(heap, first, m.l1d_ways, lines)
    else:
        k = arrived_victim(heap, first, m.l1d_ways, lines, time)
        time = max(time, heap[k + 2 * lines])
        sm.tags_blocked = max(sm.tags_blocked, time)
    if heap[k + 4 * lines] and not m.perfect:
        store_below(sm, heap, far, m, heap[k] - 1, heap[k + 4 * lines], time)
    place(heap, k, lines, line, time)
    heap[k + 4 * lines] = 0
    for j in range(5, 9):
        heap[k + j * lines] = NEVER
    touch(sm, heap, k, lines)
    heap[m.hints_at + (line & (HINTS - 1))] = k
    return k, time


@jit
def absent(heap, m, k, sectors):
    """Is a sector wanted of the line at `k` neither there nor on its way?"""
    if m.l1d_sectored:
        for j in range(4):
            if (sectors >> j) & 1 and heap[k + (5 + j) * m.l1d_lines] == NEVER:
                return True
    return False


@jit
def arrival(heap, m, k, sectors):
    """Cycle in which the sectors wanted of the line at `k` are there."""
    if not m.l1d_sectored:
        return heap[k + 2 * m.l1d_lines]
    there = 0
    for j in range(4):
        if (sectors >> j) & 1:
            there = max(there, heap[k + (5 + j) * m.l1d_lines])
    return there


@jit
def arrive_at(heap, m, k, sectors, there):
    """The sectors of the line at `k` are there from cycle `there` on."""
    heap[k + 2 * m.l1d_lines] = max(heap[k + 2 * m.l1d_lines], there)
    for j in range(4):
        if (sectors >> j) & 1:
            heap[k + (5 + j) * m.l1d_lines] = there


@jit
def merge(sm, heap, m, k, sectors, time):
    """A hit on a line that is still on its way joins its miss, or blocks the tags until then if no more can join."""
    lines, there = m.l1d_lines, arrival(heap, m, k, sectors)
    if not m.perfect and there > time:
        if heap[k + 3 * lines] >= m.mshr_merges:
            sm.tags_blocked = max(sm.tags_blocked, there)
        heap[k + 3 * lines] += 1
    return max(time, there)


@jit
def wait_for_mshr(sm, heap, m, time):
    """Cycle from `time` on in which a miss register is free: the first of a binary heap. The tags wait for it."""
    if heap[m.mshrs_at] > time:
        time = heap[m.mshrs_at]
        sm.tags_blocked = max(sm.tags_blocked, time)
    return time


@jit
def take_mshr(heap, m, until):
    """Take the miss register that is free first, until a line is there."""
    k = 0
    while True:
        child = 2 * k + 1
        if child + 1 < m.l1d_mshrs and heap[m.mshrs_at + child + 1] < heap[m.mshrs_at + child]:
            child += 1
        if child >= m.l1d_mshrs or heap[m.mshrs_at + child] >= until:
            heap[m.mshrs_at + k] = until
            return
        heap[m.mshrs_at + k] = heap[m.mshrs_at + child]
        k = child


@jit
def l1d_load(sm, heap, far, m, line, time, sectors):
    """Result cycle of one load (or local store) transaction, a hit at `time`. Allocates on a miss."""
    k = l1d_find(heap, m, line)
    sm.l1d_accesses += 1
    if k >= 0 and not absent(heap, m, k, sectors):
        done = merge(sm, heap, m, k, sectors, time)
    else:
        sm.l1d_misses += 1
        if not m.perfect:
            time = wait_for_mshr(sm, heap, m, time)
        if k < 0:
            k, time = allocate(sm, heap, far, m, line, time)
        if m.l1d_sectored:
            wanted = sectors
            if not m.perfect:
                time = inject(sm, m, time, 1) - 1
        else:
            wanted = WHOLE_LINE
        done = supply(sm, heap, far, m, line, wanted, time)
        if not m.perfect:
            take_mshr(heap, m, done)
        arrive_at(heap, m, k, wanted, done)
    if not m.l1d_fifo:
        touch(sm, heap, k, m.l1d_lines)
    return done


@jit
def segment(sectors):
    """The sectors of the aligned 32, 64 or 128 B segment that holds some sectors."""
    return 15 if sectors & 3 and sectors & 12 else sectors


@jit
def store_below(sm, heap, far, m, line, sectors, time):
    """Acknowledgement of a store that leaves L1D at `time` for the L2."""
    if m.perfect:
        return respond_in_order(sm, time + m.miss_cycles)
    sectors = segment(sectors)
    size = 32 * ((sectors & 1) + ((sectors >> 1) & 1) + ((sectors >> 2) & 1) + (sectors >> 3))
    sent = inject(sm, m, time, (size + m.packet_bytes + m.flit_bytes - 1) // m.flit_bytes)
    return access(sm, heap, far, m, line, sectors, sent, WRITE, m.l2_sector_units)


@jit
def l1d_store(sm, heap, far, m, line, time, sectors):
    """Acknowledgement of one global store transaction that meets the tags at `time`."""
    k = l1d_find(heap, m, line)
    sm.l1d_accesses += 1
    if k < 0 or absent(heap, m, k, sectors):
        sm.l1d_misses += 1
    if m.l1d_write < WRITE_THROUGH:  # a hit evicts, a miss does not allocate
        if k >= 0:
            drop(heap, k, m.l1d_lines)
        return store_below(sm, heap, far, m, line, sectors, time)
    if k < 0 and m.l1d_write_allocates:
        k, time = allocate(sm, heap, far, m, line, time)
    if k >= 0:
        if m.l1d_write_allocates:  # what is written need not be fetched
            arrive_at(heap, m, k, sectors, time)
        if not m.l1d_fifo:
            touch(sm, heap, k, m.l1d_lines)
        if m.l1d_write == WRITE_BACK:
            heap[k + 4 * m.l1d_lines] |= sectors
            return time
    return store_below(sm, heap, far, m, line, sectors, time)


@jit
def beyond(sm, heap, far, m, line, time, sectors, write, units):
    """Result cycle of one transaction that enters the memory pipe at `time` and passes L1D by."""
    if m.perfect:
        return respond_in_order(sm, time + m.atomic_cycles)
    return access(sm, heap, far, m, line, sectors, time + 1, write, units)
