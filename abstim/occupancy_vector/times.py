"""Times of the compiled lanes: whole numbers of ticks, kept in arrays."""

from __future__ import annotations

from functional.disk.compile import jit


@jit
def get(times, k):
    """Time `k` of an array."""
    return times[k]


@jit
def put(times, k, time):
    """Time `k` of an array becomes `time`."""
    times[k] = time


@jit
def at(time):
    """The tick of a time."""
    return time


@jit
def later(a, b):
    """The later one of two times."""
    return max(a, b)


@jit
def zero(times):
    """All times of an array become zero."""
    times[:] = 0
