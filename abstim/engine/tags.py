"""What all tag stores do: find a line in its set, choose the one that leaves, keep the order of use. The arrays are
columns of Tags, L1D or L2 (state.py); a set is `ways` places from `first` on."""

import numpy as np

from functional.jit.marked import vectors, zero

DROPPED = -1  # in place of a tag
MANY_WAYS = 32  # from here on several are looked at at once


def find(tag, first, ways, line):
    """Position of `line` in a set, or -1."""
    if ways >= MANY_WAYS:
        return find_among_many(tag, first, ways, line)
    for k in range(first, first + ways):
        if tag[k] == line + 1:
            return k
    return -1


@vectors
def find_among_many(tag, first, ways, line):
    """The same without a way out of the loop, which is compiled to vectors."""
    found = np.int64(-1)
    for k in range(first, first + ways):
        found = max(found, k if tag[k] == line + 1 else -1)
    return found


def victim(last_use, first, ways):
    """Least recently used way of a set."""
    if ways >= MANY_WAYS:
        return victim_of_many(last_use, first, ways)
    best = first
    for k in range(first + 1, first + ways):
        if last_use[k] < last_use[best]:
            best = k
    return best


@vectors
def victim_of_many(last_use, first, ways):
    """The same: when it was used, and then which it is."""
    least, best = np.int64(last_use[first]), first
    for k in range(first + 1, first + ways):
        least = min(least, last_use[k])
    while last_use[best] != least:
        best += 1
    return best


def touch(sm, last_use, k):
    """Make the line at `k` the most recently used."""
    sm.stamp += 1
    last_use[k] = sm.stamp


def take_way(cache, k, line):
    """`line` takes the way `k`; those that have ever been taken are known, because only they need be cleared."""
    if cache.tag[k] == 0:
        cache.placed[0] += 1
        cache.placed[cache.placed[0]] = k
    cache.tag[k] = line + 1


def clear_ways(cache):
    """No line is there, nor has been."""
    for n in range(1, cache.placed[0] + 1):
        k = cache.placed[n]
        cache.tag[k] = cache.last_use[k] = cache.placed[n] = 0
        zero(cache.line[k])
    cache.placed[0] = 0


def place(cache, k, line, there):
    """Allocate `line` at `k`; its data is there in cycle `there`."""
    take_way(cache, k, line)
    cache.there[k] = there


def drop(cache, k):
    """Invalidate the line at `k`."""
    cache.tag[k] = DROPPED
    cache.last_use[k] = 0


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
