"""A memory instruction on the load/store unit: transactions from the trace, occupancy of the unit, result cycle."""

from __future__ import annotations

import numpy as np

from abstim.engine.compiled.caches import atomic, const_line, l1d_load, l1d_store
from abstim.engine.compiled.compile import jit
from functional.trace import LOCAL_WINDOW_LINE, SHARED_WINDOW_LINE
from precharacterize.classify import Kind

PARAM_LOAD, CONST_LOAD, GLOBAL_LOAD, GLOBAL_STORE, GLOBAL_ATOMIC = (
    int(Kind.PARAM_LOAD), int(Kind.CONST_LOAD), int(Kind.GLOBAL_LOAD), int(Kind.GLOBAL_STORE), int(Kind.GLOBAL_ATOMIC),
)  # fmt: skip
SHARED_LOAD, SHARED_STORE, SHARED_ATOMIC = int(Kind.SHARED_LOAD), int(Kind.SHARED_STORE), int(Kind.SHARED_ATOMIC)
LOCAL_LINE, SHARED_LINE = LOCAL_WINDOW_LINE, SHARED_WINDOW_LINE


@jit
def transactions_of(m, record, access_bytes):
    """Transactions one line record makes (REFERENCE.md "Coalescing")."""
    sectors = (record >> 1) & 15
    if m.sector_coalescing or access_bytes == 1:  # 32 B segments
        return (sectors & 1) + ((sectors >> 1) & 1) + ((sectors >> 2) & 1) + (sectors >> 3)
    if access_bytes == 2:  # 64 B segments
        return int((sectors & 3) != 0) + int((sectors & 12) != 0)
    return 1


@jit
def const_transactions(m, record):
    """Constant-cache lines one 128 B record touches."""
    sectors = (record >> 1) & 15
    if m.const_line_bytes >= 128:
        return 1
    return int((sectors & 3) != 0) + int((sectors & 12) != 0)


@jit
def occupancy_of(sm, heap, far, m, code, streams, w, i):
    """Cycles instruction `i` of warp `w` keeps the load/store unit, and the end of its records."""
    kind = code[i].kind
    if SHARED_LOAD <= kind <= SHARED_ATOMIC:
        return max(1, np.int64(streams.conflicts[sm.conflict[w]])), sm.record[w]
    if kind < PARAM_LOAD:
        return 1, sm.record[w]
    end, count = sm.record[w], 0
    while True:
        record = np.int64(streams.records[end])
        end += 1
        if (record >> 1) & 15:
            count += (
                const_transactions(m, record)
                if kind <= CONST_LOAD
                else transactions_of(m, record, code[i].access_bytes)
            )
        if not record & 1:
            return max(1, count), end


@jit
def result_of(sm, heap, far, m, code, streams, w, i, start, end):
    """Cycle in which the access that starts at `start` is complete; moves the warp's cursors past it."""
    kind = code[i].kind
    if SHARED_LOAD <= kind <= SHARED_ATOMIC:
        degree = np.int64(streams.conflicts[sm.conflict[w]])
        sm.conflict[w] += 1
        return start + m.shared_cycles + degree - 1 if degree else start + 1
    if kind < PARAM_LOAD:
        return start + 1
    first = sm.record[w]
    sm.record[w] = end
    record = np.int64(streams.records[first])
    if not (record >> 1) & 15:
        return start + 1
    if (record >> 5) == SHARED_LINE:
        return start + m.shared_cycles + (end - first) - 1
    if kind <= CONST_LOAD:
        return const_result(sm, heap, far, m, streams, first, end, start)
    return global_result(sm, heap, far, m, code, streams, i, first, end, start)


@jit
def const_result(sm, heap, far, m, streams, first, end, start):
    """A parameter or constant load: one line a cycle."""
    time, done = start + m.const_cycles, start
    for k in range(end - 1, first - 1, -1):
        record = np.int64(streams.records[k])
        sectors, line = (record >> 1) & 15, record >> 5
        for half in range(2):
            if m.const_line_bytes >= 128 and half == 1:
                break
            if m.const_line_bytes >= 128 or (sectors >> (2 * half)) & 3:
                done = max(
                    done, const_line(sm, heap, far, m, line if m.const_line_bytes >= 128 else 2 * line + half, time)
                )
                time = max(time, sm.const_blocked) + 1
    return done


@jit
def global_result(sm, heap, far, m, code, streams, i, first, end, start):
    """A global, local or generic access: one transaction a cycle through the L1D pipeline, last line first."""
    kind = code[i].kind
    time, done = start + m.l1d_cycles + 1, start
    for k in range(end - 1, first - 1, -1):
        record = np.int64(streams.records[k])
        line, sectors = record >> 5, (record >> 1) & 15
        for _ in range(transactions_of(m, record, code[i].access_bytes)):
            time = max(time, sm.tags_blocked)
            if kind == GLOBAL_ATOMIC:
                done = max(done, atomic(sm, heap, far, m, line, time - m.l1d_cycles - 1, sectors))
            elif kind == GLOBAL_LOAD or line >= LOCAL_LINE:
                done = max(done, l1d_load(sm, heap, far, m, line, time))
            else:
                done = max(done, l1d_store(sm, heap, far, m, line, time, sectors))
            time = max(time, sm.tags_blocked) + 1
    sm.tags_blocked = time
    return done
