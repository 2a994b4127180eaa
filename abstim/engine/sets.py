"""Sets of warp slots as bits of a uint64."""

from __future__ import annotations

import numpy as np
from numba.cpython.unsafe.numbers import trailing_zeros

from functional.disk.compile import jit

ONE = np.uint64(1)
EMPTY_SET = np.uint64(0)


@jit
def lowest(slots):
    """The lowest slot of a set that is not empty."""
    return np.int64(trailing_zeros(slots))


@jit
def bit(w):
    """The set that holds slot `w` alone."""
    return ONE << np.uint64(w)


@jit
def above(slots, w):
    """The slots of a set that are higher than `w` (-1: all)."""
    return slots & ~(bit(w + 1) - ONE) if w < 63 else EMPTY_SET


@jit
def first_after(slots, w):
    """The first slot after `w` in cyclic order; the set is not empty."""
    higher = above(slots, w)
    return lowest(higher if higher else slots)


@jit
def span(first, count):
    """The set of `count` slots from `first` on."""
    return ((bit(count) - ONE) if count < 64 else ~EMPTY_SET) << np.uint64(first)
