"""Tag stores. A cache of n lines is 4 n words of the heap: line numbers + 1, last use, cycle in which the line is
there, requests merged into its miss."""

from __future__ import annotations

from functional.disk.compile import jit


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
def arrived_victim(heap, first, ways, lines, time):
    """Least recently used way whose line is there by `time`; if none is, the one that is there first."""
    best, earliest = -1, first
    for k in range(first, first + ways):
        if heap[k + 2 * lines] <= time and (best < 0 or heap[k + lines] < heap[best + lines]):
            best = k
        if heap[k + 2 * lines] < heap[earliest + 2 * lines]:
            earliest = k
    return best if best >= 0 else earliest


@jit
def touch(sm, heap, k, lines):
    """Make the line at `k` the most recently used."""
    sm.stamp += 1
    heap[k + lines] = sm.stamp


@jit
def place(heap, k, lines, line, there):
    """Allocate `line` at `k`; its data is there in cycle `there`."""
    heap[k] = line + 1
    heap[k + 2 * lines] = there
    heap[k + 3 * lines] = 1


@jit
def drop(heap, k, lines):
    """Invalidate the line at `k`."""
    heap[k] = 0
    heap[k + lines] = 0
    heap[k + 2 * lines] = 0


@jit
def first_free(entries, count):
    """The miss register that is free first."""
    best = 0
    for k in range(1, count):
        if entries[k] < entries[best]:
            best = k
    return best
