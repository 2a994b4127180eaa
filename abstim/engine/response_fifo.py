"""Perfect memory: replies come into the SM one a cycle (docs/timing-rules.md, rule 5)."""

from __future__ import annotations

from functional.jit.compile import jit


@jit
def respond_in_order(sm, time):
    """A response enters the SM's one-a-cycle FIFO at `time`, after those before it; returns when it comes out."""
    out = max(time, sm.fifo_free)
    sm.fifo_free = out + 1
    return out
