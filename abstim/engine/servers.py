"""Servers that many SMs share, and an SM's ports to them.

SMs run a few cycles apart, and requests lie ahead of their clocks, so a server keeps what it can still do in each
stretch of time, a bucket, not when it is free: requests need not come in time order. A server is a row of BUCKETs.
"""

from __future__ import annotations

from abstim.engine.rules import UNITS_A_CYCLE_LOG2, WINDOW_CYCLES, WINDOW_CYCLES_LOG2
from abstim.engine.state import BUCKETS, RESPONSES
from functional.disk.compile import jit

CAPACITY = 1 << (WINDOW_CYCLES_LOG2 + UNITS_A_CYCLE_LOG2)  # of a bucket, in units


@jit
def bucket_of(servers, n, b):
    """Bucket `b` (a stretch of time) of server `n`; its place may have held one long past."""
    bucket = servers[n, b & (BUCKETS - 1)]
    if bucket.number != b:
        bucket.number = b
        bucket.used = 0
    return bucket


@jit
def serve(servers, n, time, units):
    """Book `units` of server `n`, not before `time`; returns the cycle in which they are done."""
    b = time >> WINDOW_CYCLES_LOG2
    while bucket_of(servers, n, b).used >= CAPACITY:
        b += 1
    bucket = servers[n, b & (BUCKETS - 1)]
    used = bucket.used
    bucket.used = min(CAPACITY, used + units)
    if used + units > CAPACITY:
        rest = bucket_of(servers, n, b + 1)
        rest.used = min(CAPACITY, rest.used + used + units - CAPACITY)
    start = max(time, (b << WINDOW_CYCLES_LOG2) + (used >> UNITS_A_CYCLE_LOG2))
    return start + (units >> UNITS_A_CYCLE_LOG2)


@jit
def block(servers, n, time, until):
    """Server `n` does nothing more from `time` to `until`."""
    for b in range(time >> WINDOW_CYCLES_LOG2, until >> WINDOW_CYCLES_LOG2):
        bucket_of(servers, n, b).used = CAPACITY
    last = bucket_of(servers, n, until >> WINDOW_CYCLES_LOG2)
    last.used = max(last.used, (until & (WINDOW_CYCLES - 1)) << UNITS_A_CYCLE_LOG2)


@jit
def inject(sm, m, time, flits):
    """A request of some flits leaves the SM for the crossbar, one a cycle; returns when it has. The L1D tags wait while
    the miss queue in front of the port is full."""
    sent = max(time + 1, sm.inject_free) + flits
    sm.inject_free = sent
    sm.tags_blocked = max(sm.tags_blocked, sent - m.miss_queue * flits)
    return sent


@jit
def respond_in_order(sm, time):
    """A response enters the SM's one-a-cycle FIFO at `time`, after those before it; returns when it comes out."""
    out = max(time, sm.response_free)
    sm.response_free = out + 1
    return out


@jit
def respond(responses, n, time):
    """The first cycle from `time` on in which the response path of SM `n` is free; books it."""
    while responses[n, time & (RESPONSES - 1)] == time:
        time += 1
    responses[n, time & (RESPONSES - 1)] = time
    return time
