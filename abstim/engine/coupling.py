"""Warps whose streams are made while they run: what is known of one ends where its outcome depends on the order of
thread blocks, and it waits there until whoever executes it says how it goes on."""

from __future__ import annotations

from abstim.engine.event_loop import context_of
from abstim.engine.issue import enter_block
from functional.jit.compile import indexed_from_zero, reference

COLUMNS = ("sm", "slot", "first_event", "event_end", "record", "conflict")  # of a part: positions in the streams


@indexed_from_zero
def resume(state, code, streams, parts, time):
    """Warps that wait go on in cycle `time`, each with a part of its stream, a row of COLUMNS."""
    gpu = reference(state)
    for k in range(len(parts)):
        n, w = parts[k, 0], parts[k, 1]
        sm = gpu.sms[n]
        sm.event[w], sm.event_end[w], sm.record[w], sm.conflict[w] = (
            parts[k, 2], parts[k, 3], parts[k, 4], parts[k, 5],
        )  # fmt: skip
        enter_block(context_of(gpu, code, streams, n), w)
        sm.clock = min(sm.clock, time)
