"""Servers that many SMs share. SMs run a few cycles apart, and requests lie ahead of their clocks, so a server keeps
what it can still do in each stretch of time, not when it is free: requests need not come in time order.
"""

from __future__ import annotations

from abstim.engine.layout import BUCKET_CYCLES_LOG2, BUCKETS, RESPONSES, UNITS_A_CYCLE_LOG2
from functional.disk.compile import jit

CAPACITY = 1 << (BUCKET_CYCLES_LOG2 + UNITS_A_CYCLE_LOG2)  # of a bucket, in units


@jit
def bucket_at(far, at, b):
    """Position of bucket `b` (a stretch of time) of the server at `at`: its number, then the units used of it."""
    k = at + 2 * (b & (BUCKETS - 1))
    if far[k] != b:
        far[k] = b
        far[k + 1] = 0
    return k


@jit
def serve(far, at, time, units):
    """Book `units` of the server at `at`, not before `time`; returns the cycle in which they are done."""
    b = time >> BUCKET_CYCLES_LOG2
    k = bucket_at(far, at, b)
    while far[k + 1] >= CAPACITY:
        b += 1
        k = bucket_at(far, at, b)
    used = far[k + 1]
    far[k + 1] = min(CAPACITY, used + units)
    if used + units > CAPACITY:
        rest = bucket_at(far, at, b + 1)
        far[rest + 1] = min(CAPACITY, far[rest + 1] + used + units - CAPACITY)
    start = max(time, (b << BUCKET_CYCLES_LOG2) + (used >> UNITS_A_CYCLE_LOG2))
    return start + (units >> UNITS_A_CYCLE_LOG2)


@jit
def block(far, at, time, until):
    """Nothing more is served from `time` to `until`."""
    for b in range(time >> BUCKET_CYCLES_LOG2, until >> BUCKET_CYCLES_LOG2):
        far[bucket_at(far, at, b) + 1] = CAPACITY
    last = bucket_at(far, at, until >> BUCKET_CYCLES_LOG2)
    gone = (until & ((1 << BUCKET_CYCLES_LOG2) - 1)) << UNITS_A_CYCLE_LOG2
    far[last + 1] = max(far[last + 1], gone)


@jit
def respond_in_order(sm, time):
    """A response enters the SM's one-a-cycle FIFO at `time`, after those before it; returns when it comes out."""
    out = max(time, sm.response_free)
    sm.response_free = out + 1
    return out


@jit
def respond(heap, m, time):
    """The first cycle from `time` on in which the SM's response path is free; books it."""
    while heap[m.responses_at + (time & (RESPONSES - 1))] == time:
        time += 1
    heap[m.responses_at + (time & (RESPONSES - 1))] = time
    return time
