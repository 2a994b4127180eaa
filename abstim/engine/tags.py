"""What all tag stores do: find a line in its set, choose the one that leaves, keep the order of use. The arrays are
columns of Tags, L1D or L2 (state.py); a set is `ways` places from `first` on."""

from __future__ import annotations

from functional.jit.marked import jit


@jit
def find(tag, first, ways, line):
    """Position of `line` in a set, or -1."""
    for k in range(first, first + ways):
        if tag[k] == line + 1:
            return k
    return -1


@jit
def victim(last_use, first, ways):
    """Least recently used way of a set."""
    best = first
    for k in range(first + 1, first + ways):
        if last_use[k] < last_use[best]:
            best = k
    return best


@jit
def touch(sm, last_use, k):
    """Make the line at `k` the most recently used."""
    sm.stamp += 1
    last_use[k] = sm.stamp


@jit
def place(cache, k, line, there):
    """Allocate `line` at `k`; its data is there in cycle `there`."""
    cache.tag[k] = line + 1
    cache.there[k] = there


@jit
def drop(cache, k):
    """Invalidate the line at `k`."""
    cache.tag[k] = 0
    cache.last_use[k] = 0
    cache.there[k] = 0


@jit
def oldest_idle(cache, first, ways):
    """The least recently used way of a set that waits for nothing, -1 if there is none."""
    best = victim(cache.last_use, first, ways)
    if cache.line[best].coming == 0:  # nearly always, and the lines themselves lie far apart
        return best
    best = -1
    for k in range(first, first + ways):
        if cache.line[k].coming == 0 and (best < 0 or cache.last_use[k] < cache.last_use[best]):
            best = k
    return best
