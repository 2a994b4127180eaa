"""Tag stores and the response path of one SM, perfect memory behind them (MODEL.md rules 4 and 6).

A cache of n lines is 3 n words of the heap: line numbers + 1, last use, cycle in which the line is filled.
"""

from __future__ import annotations

from abstim.engine.compiled.compile import jit


@jit
def find(heap, first, ways, line):
    """Position of `line` among the ways from `first`, or -1."""
    for k in range(first, first + ways):
        if heap[k] == line + 1:
            return k
    return -1


@jit
def victim(heap, first, ways, lines):
    """Least recently used way of the set that starts at `first`."""
    best = first
    for k in range(first + 1, first + ways):
        if heap[k + lines] < heap[best + lines]:
            best = k
    return best


@jit
def touch(sm, heap, k, lines):
    """Make the line at `k` the most recently used."""
    sm.stamp += 1
    heap[k + lines] = sm.stamp


@jit
def respond(sm, time):
    """A response enters the one-a-cycle FIFO at `time`; returns the cycle it comes out."""
    out = max(time, sm.response_free)
    sm.response_free = out + 1
    return out


@jit
def l1i_lookup(sm, heap, m, pc, time):
    """Cycle in which the instruction line of `pc` is there: `time` itself on a hit."""
    line, lines = pc >> m.fetch_line_log2, m.l1i_sets * m.l1i_ways
    first = m.l1i_at + (line & (m.l1i_sets - 1)) * m.l1i_ways
    k = find(heap, first, m.l1i_ways, line)
    sm.l1i_accesses += 1
    if k < 0:
        sm.l1i_misses += 1
        k = victim(heap, first, m.l1i_ways, lines)
        heap[k] = line + 1
        heap[k + 2 * lines] = time + m.l1i_miss_cycles
    touch(sm, heap, k, lines)
    return max(time, heap[k + 2 * lines])


@jit
def fill(sm, heap, m, k, lines, line, time):
    """Allocate `line` at `k` for a miss found at `time`; returns the cycle its data is there."""
    done = respond(sm, time + m.miss_cycles)
    heap[k] = line + 1
    heap[k + 2 * lines] = done
    return done


@jit
def const_line(sm, heap, m, line, time):
    """Result cycle of one constant-cache line whose hit result would be at `time`."""
    lines = m.const_sets * m.const_ways
    first = m.const_at + (line & (m.const_sets - 1)) * m.const_ways
    k = find(heap, first, m.const_ways, line)
    sm.const_accesses += 1
    if k >= 0:
        done = max(time, heap[k + 2 * lines])
    else:
        sm.const_misses += 1
        k = victim(heap, first, m.const_ways, lines)
        done = fill(sm, heap, m, k, lines, line, time)
    touch(sm, heap, k, lines)
    return done


@jit
def l1d_first(m, line):
    """First way of an L1D line's set: linear, or the hash of Nugteren et al. (HPCA 2014) that the reference uses."""
    index = line & (m.l1d_sets - 1)
    if m.l1d_hashed:
        upper = ((line >> 6) & 7) | (((line >> 10) & 1) << 3) | (((line >> 12) & 1) << 4)
        index = (index ^ upper) & (m.l1d_sets - 1)
    return m.l1d_at + index * m.l1d_ways


@jit
def l1d_load(sm, heap, m, line, time):
    """Result cycle of one load (or local store) transaction, a hit at `time`. Allocates on a miss."""
    lines = m.l1d_sets * m.l1d_ways
    first = l1d_first(m, line)
    k = find(heap, first, m.l1d_ways, line)
    sm.l1d_accesses += 1
    if k >= 0:
        done = max(time, heap[k + 2 * lines])
    else:
        sm.l1d_misses += 1
        k = victim(heap, first, m.l1d_ways, lines)
        done = fill(sm, heap, m, k, lines, line, time)
    touch(sm, heap, k, lines)
    return done


@jit
def l1d_store(sm, heap, m, line, time):
    """Acknowledgement of one global store transaction: a hit evicts, a miss does not allocate, both go on to L2."""
    lines = m.l1d_sets * m.l1d_ways
    k = find(heap, l1d_first(m, line), m.l1d_ways, line)
    sm.l1d_accesses += 1
    if k < 0:
        sm.l1d_misses += 1
    else:
        heap[k] = heap[k + lines] = heap[k + 2 * lines] = 0
    return respond(sm, time + m.miss_cycles)
