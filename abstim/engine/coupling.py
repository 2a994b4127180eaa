"""Warps whose streams are made while they run: what is known of one ends where its outcome depends on the order of
thread blocks, and it waits there until whoever executes it says how it goes on."""

from abstim.engine.clear import context_of
from abstim.engine.issue import enter_block
from functional.jit.marked import outlined

COLUMNS = ("sm", "slot", "first_event", "event_end", "record", "conflict")  # of a part: positions in the streams


@outlined
def resume(gpu, parts, time):
    """Warps that wait go on in cycle `time`, each with a part of its stream, a row of COLUMNS."""
    for k in range(len(parts)):
        n, w = parts[k, 0], parts[k, 1]
        sm = gpu.sm[n]
        sm.warps.event[w], sm.warps.event_end[w] = parts[k, 2], parts[k, 3]
        sm.warps.record[w], sm.warps.conflict[w] = parts[k, 4], parts[k, 5]
        enter_block(context_of(gpu, n), w)
        sm.clock = min(sm.clock, time)
