"""The first-level caches of one SM (docs/timing-rules.md, rules 5, 6 and 11). What lies behind them is perfect memory,
which answers a miss after a fixed time, or the L2."""

from __future__ import annotations

from abstim.engine.compiled.compile import jit
from abstim.engine.compiled.l2 import access
from abstim.engine.compiled.layout import NEVER
from abstim.engine.compiled.servers import respond_in_order
from abstim.engine.compiled.tags import arrived_victim, drop, find, first_free, place, touch, victim

# Where instructions and constants lie among the lines of memory: apart from each other and from global memory
CODE_LINE, CONST_LINE = 0xF000_0000 >> 7, 0x1_0000_0000 >> 7


@jit
def supply(sm, heap, far, m, line, sectors, time):
    """Cycle in which a line missed by a hit time of `time` is there."""
    if m.perfect:
        return respond_in_order(sm, time + m.miss_cycles)
    return access(sm, heap, far, m, line, sectors, time + 1, False, m.l2_sector_units)


@jit
def l1i_lookup(sm, heap, far, m, pc, time):
    """Cycle in which the instruction line of `pc` is there: `time` on a hit, NEVER if no miss register is free."""
    line, lines = pc >> m.fetch_line_log2, m.l1i_sets * m.l1i_ways
    first = m.l1i_at + (line & (m.l1i_sets - 1)) * m.l1i_ways
    k = find(heap, first, m.l1i_ways, line)
    if k < 0:
        entry = first_free(sm.l1i_misses_until, m.l1i_mshrs)
        if not m.perfect and sm.l1i_misses_until[entry] > time:
            sm.fetch_blocked = sm.l1i_misses_until[entry]
            return NEVER
        k = victim(heap, first, m.l1i_ways, lines)
        there = time + m.l1i_miss_cycles if m.perfect else supply(sm, heap, far, m, CODE_LINE + line, 15, time)
        place(heap, k, lines, line, there)
        sm.l1i_misses_until[entry] = there
        sm.l1i_misses += 1
    sm.l1i_accesses += 1
    touch(sm, heap, k, lines)
    return max(time, heap[k + 2 * lines])


@jit
def const_line(sm, heap, far, m, line, time):
    """Result cycle of one constant-cache line whose hit result would be at `time`."""
    lines = m.const_sets * m.const_ways
    first = m.const_at + (line & (m.const_sets - 1)) * m.const_ways
    k = find(heap, first, m.const_ways, line)
    sm.const_accesses += 1
    if k < 0:
        sm.const_misses += 1
        k = victim(heap, first, m.const_ways, lines)
        entry = first_free(sm.const_misses_until, m.const_mshrs)
        if not m.perfect:
            time = max(time, sm.const_misses_until[entry])
            sm.const_blocked = time
        wide = m.const_line_bytes >= 128
        sectors = 15 if wide else 3 << (2 * (line & 1))
        there = supply(sm, heap, far, m, CONST_LINE + (line if wide else line >> 1), sectors, time)
        place(heap, k, lines, line, there)
        sm.const_misses_until[entry] = there
    touch(sm, heap, k, lines)
    return max(time, heap[k + 2 * lines])


@jit
def l1d_first(m, line):
    """First way of an L1D line's set: linear, or the hash of Nugteren et al. (HPCA 2014) that the reference uses."""
    index = line & (m.l1d_sets - 1)
    if m.l1d_hashed:
        upper = ((line >> 6) & 7) | (((line >> 10) & 1) << 3) | (((line >> 12) & 1) << 4)
        index = (index ^ upper) & (m.l1d_sets - 1)
    return m.l1d_at + index * m.l1d_ways


@jit
def merge(sm, heap, m, k, lines, time):
    """A hit on a line that is still on its way joins its miss, or blocks the tags until then if no more can join."""
    if not m.perfect and heap[k + 2 * lines] > time:
        if heap[k + 3 * lines] >= m.mshr_merges:
            sm.tags_blocked = heap[k + 2 * lines]
        heap[k + 3 * lines] += 1
    return max(time, heap[k + 2 * lines])


@jit
def l1d_load(sm, heap, far, m, line, time):
    """Result cycle of one load (or local store) transaction, a hit at `time`. Allocates on a miss."""
    lines = m.l1d_sets * m.l1d_ways
    first = l1d_first(m, line)
    k = find(heap, first, m.l1d_ways, line)
    sm.l1d_accesses += 1
    if k >= 0:
        done = merge(sm, heap, m, k, lines, time)
    else:
        sm.l1d_misses += 1
        if m.perfect:
            k = victim(heap, first, m.l1d_ways, lines)
        else:  # a line on its way cannot be replaced: the tags wait
            k = arrived_victim(heap, first, m.l1d_ways, lines, time)
            time = max(time, heap[k + 2 * lines])
            sm.tags_blocked = time
        done = supply(sm, heap, far, m, line, 15, time)
        place(heap, k, lines, line, done)
    touch(sm, heap, k, lines)
    return done


@jit
def segment(sectors):
    """The sectors of the aligned 32, 64 or 128 B segment that holds some sectors."""
    return 15 if sectors & 3 and sectors & 12 else sectors


@jit
def l1d_store(sm, heap, far, m, line, time, sectors):
    """Acknowledgement of one global store transaction: a hit evicts, a miss does not allocate, both go on to L2."""
    lines = m.l1d_sets * m.l1d_ways
    k = find(heap, l1d_first(m, line), m.l1d_ways, line)
    sm.l1d_accesses += 1
    if k < 0:
        sm.l1d_misses += 1
    else:
        drop(heap, k, lines)
    if m.perfect:
        return respond_in_order(sm, time + m.miss_cycles)
    sectors = segment(sectors)
    size = 32 * ((sectors & 1) + ((sectors >> 1) & 1) + ((sectors >> 2) & 1) + (sectors >> 3))
    flits = (size + m.packet_bytes + m.flit_bytes - 1) // m.flit_bytes
    sent = max(time + 1, sm.inject_free) + flits
    sm.inject_free = sent
    sm.tags_blocked = max(sm.tags_blocked, sent - m.miss_queue * flits)  # no room for another in the miss queue
    return access(sm, heap, far, m, line, sectors, sent, True, m.l2_sector_units)


@jit
def atomic(sm, heap, far, m, line, time, sectors):
    """Result cycle of one atomic transaction that enters the memory pipe at `time`: it bypasses L1D."""
    if m.perfect:
        return respond_in_order(sm, time + m.atomic_cycles)
    return access(sm, heap, far, m, line, sectors, time + 1, False, m.l2_atomic_units)
