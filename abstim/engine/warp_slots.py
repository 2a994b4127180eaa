"""Sets of warp slots as bits of a uint64, and the timing wheel that says which warp can be visited when."""

import numpy as np

from abstim.engine.state import NEVER, WHEEL
from functional.jit.marked import lowest_bit, members

ONE = np.uint64(1)
EMPTY_SET = np.uint64(0)


def lowest(slots):
    """The lowest slot of a set that is not empty."""
    return lowest_bit(slots)


def bit(w):
    """The set that holds slot `w` alone."""
    return ONE << np.uint64(w)


def above(slots, w):
    """The slots of a set that are higher than `w` (-1: all)."""
    return slots & ~(bit(w + 1) - ONE) if w < 63 else EMPTY_SET


def first_after(slots, w):
    """The first slot after `w` in cyclic order; the set is not empty."""
    higher = above(slots, w)
    return lowest(higher if higher else slots)


def span(first, count):
    """The set of `count` slots from `first` on."""
    return ((bit(count) - ONE) if count < 64 else ~EMPTY_SET) << np.uint64(first)


def visit_from(sm, w, ready, time):
    """The warp can be visited from `ready` on; `time` is now."""
    if ready <= time:
        sm.visitable |= bit(w)
    elif ready < NEVER:
        place = min(ready, time + WHEEL - 1) & (WHEEL - 1)
        sm.wheel[place] |= bit(w)
        sm.wheel_used |= bit(place)
        if ready >= time + WHEEL:
            sm.early |= bit(w)


def turn_wheel(sm, time):
    """Warps whose `ready` has come by `time` become visitable; of those that may be early, those further ahead go round
    again. One that a barrier holds was put there by an instruction issued before it in the same cycle."""
    place = time & (WHEEL - 1)
    left = sm.wheel[place] & ~sm.held
    sm.wheel[place] = 0
    sm.wheel_used &= ~bit(place)
    sm.visitable |= left & ~sm.early
    for w in members(left & sm.early):
        if sm.warps.ready[w] <= time:
            sm.early &= ~bit(w)
        visit_from(sm, w, sm.warps.ready[w], time)


def next_on_wheel(sm, time):
    """First cycle after `time` at which the wheel holds something; it holds something."""
    turn = np.uint64((time + 1) & (WHEEL - 1))
    ahead = (sm.wheel_used >> turn) | (sm.wheel_used << (np.uint64(WHEEL) - turn)) if turn else sm.wheel_used
    return time + 1 + lowest(ahead)
