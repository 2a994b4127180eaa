"""When each warp can next be visited: a timing wheel of slot sets in front of the set of visitable warps."""

from __future__ import annotations

import numpy as np

from abstim.engine.layout import NEVER, WHEEL
from abstim.engine.sets import ONE, bit, lowest
from functional.disk.compile import jit


@jit
def schedule(sm, w, ready, time):
    """The warp can be visited from `ready` on; `time` is now."""
    if ready <= time:
        sm.visitable |= bit(w)
    elif ready < NEVER:
        place = min(ready, time + WHEEL - 1) & (WHEEL - 1)
        sm.wheel[place] |= bit(w)
        sm.wheel_used |= bit(place)


@jit
def turn_wheel(sm, time):
    """Warps whose `ready` has come by `time` become visitable; those further ahead go round again."""
    place = time & (WHEEL - 1)
    left = sm.wheel[place]
    sm.wheel[place] = 0
    sm.wheel_used &= ~bit(place)
    while left:
        w = lowest(left)
        left &= left - ONE
        schedule(sm, w, sm.ready[w], time)


@jit
def next_on_wheel(sm, time):
    """First cycle after `time` at which the wheel holds something; it holds something."""
    turn = np.uint64((time + 1) & (WHEEL - 1))
    ahead = (sm.wheel_used >> turn) | (sm.wheel_used << (np.uint64(WHEEL) - turn)) if turn else sm.wheel_used
    return time + 1 + lowest(ahead)
