"""A memory instruction on the load/store unit: transactions from the trace, occupancy of the unit, result cycle."""

from __future__ import annotations

import numpy as np

from abstim.engine.l1d import beyond, l1d_load, l1d_store
from abstim.engine.layout import READ
from abstim.engine.read_only_caches import const_line, texture_line
from functional.disk.compile import jit
from functional.trace import LOCAL_WINDOW_LINE, SHARED_WINDOW_LINE
from precharacterize.classify import Kind

PARAM_LOAD, CONST_LOAD, GLOBAL_LOAD, GLOBAL_STORE, GLOBAL_ATOMIC = (
    int(Kind.PARAM_LOAD), int(Kind.CONST_LOAD), int(Kind.GLOBAL_LOAD), int(Kind.GLOBAL_STORE), int(Kind.GLOBAL_ATOMIC),
)  # fmt: skip
SHARED_LOAD, SHARED_STORE, SHARED_ATOMIC = int(Kind.SHARED_LOAD), int(Kind.SHARED_STORE), int(Kind.SHARED_ATOMIC)
TEXTURE_LOAD = int(Kind.TEXTURE_LOAD)
LOCAL_LINE, SHARED_LINE = LOCAL_WINDOW_LINE, SHARED_WINDOW_LINE


@jit
def transaction_bytes(m, access_bytes):
    """Bytes of the segments that a warp's lanes are gathered into, as GPGPU-Sim 4.2 coalesces."""
    if m.sector_coalescing or access_bytes == 1:
        return 32
    return 64 if access_bytes == 2 else 128


@jit
def next_transaction(left, size):
    """The sectors, of those left of a line record, that the next transaction of `size` bytes touches."""
    if size == 128:
        return left
    if size == 64:
        return left & 12 if left & 12 else left
    sector = 8
    while not left & sector:
        sector >>= 1
    return sector


@jit
def next_cycle(m, busy, sectors):
    """(cycles until L1D takes the next transaction, set of its banks taken in that cycle).

    A bank holds every `l1d_banks`-th sector and takes one transaction a cycle.
    """
    if m.l1d_banks == 1:
        return 1, 0
    bank = sectors if m.l1d_banks == 4 else (1 if sectors & 5 else 2)
    return (1, bank) if busy & bank else (0, busy | bank)


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
    end = sm.record[w]
    while streams.records[end] & 1:
        end += 1
    return max(1, pipe_cycles(m, code, streams, i, sm.record[w], end + 1)), end + 1


@jit
def pipe_cycles(m, code, streams, i, first, end):
    """Cycles in which the transactions of the records `first` .. `end` - 1 enter the pipe."""
    if code[i].kind <= CONST_LOAD:
        if m.perfect_const:
            return 1
        count = 0
        for k in range(first, end):
            count += const_transactions(m, np.int64(streams.records[k]))
        return count
    count, busy, size = 0, -1, transaction_bytes(m, code[i].access_bytes)
    for k in range(end - 1, first - 1, -1):
        left = (np.int64(streams.records[k]) >> 1) & 15
        while left:
            sectors = next_transaction(left, size)
            left &= ~sectors
            later, busy = next_cycle(m, busy, sectors)
            count += later
    return count


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
    if m.perfect_const:
        return time
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
    """A global, local or generic access: one transaction a cycle into the L1D pipeline, last line first."""
    kind, size = code[i].kind, transaction_bytes(m, code[i].access_bytes)
    time, done, busy = start + m.l1d_cycles, start, -1
    sm.entered = start
    for k in range(end - 1, first - 1, -1):
        record = np.int64(streams.records[k])
        line, left = record >> 5, (record >> 1) & 15
        while left:
            sectors = next_transaction(left, size)
            left &= ~sectors
            later, busy = next_cycle(m, busy, sectors)
            enter_pipe(sm, heap, m, later)
            time = max(time + later, sm.tags_blocked, sm.entered + m.l1d_cycles)
            done = max(done, transaction(sm, heap, far, m, kind, line, time, sectors))
            leave_pipe(sm, heap, m, time)
    sm.tags_blocked = max(sm.tags_blocked, time + 1)
    return done


@jit
def enter_pipe(sm, heap, m, later):
    """The next transaction enters the L1D pipeline, `later` cycles after the one before it, or once there is room.

    While the tags are blocked, transactions close up behind them: as many as the pipeline has stages.
    """
    sm.entered += later
    if not m.perfect:  # whose tags are never blocked
        sm.entered = max(sm.entered, heap[m.pipe_at + sm.pipe_position])


@jit
def leave_pipe(sm, heap, m, time):
    """The transaction that met the tags at `time` leaves the pipeline; a blocked one stays until it can go on."""
    if not m.perfect:
        heap[m.pipe_at + sm.pipe_position] = max(time, sm.tags_blocked)
        sm.pipe_position = sm.pipe_position + 1 if sm.pipe_position + 1 < m.pipe_stages else 0


@jit
def transaction(sm, heap, far, m, kind, line, time, sectors):
    """Result cycle of one transaction that would meet the L1D tags at `time`."""
    if kind == GLOBAL_ATOMIC:
        return beyond(sm, heap, far, m, line, time - m.l1d_cycles - 1, sectors, READ, m.l2_atomic_units)
    if kind == TEXTURE_LOAD:
        return texture_line(sm, heap, far, m, line, time)
    if line >= LOCAL_LINE:
        return l1d_load(sm, heap, far, m, line, time, sectors)
    if m.l1d_bypassed:
        write = kind == GLOBAL_STORE
        return beyond(sm, heap, far, m, line, time - m.l1d_cycles - 1, sectors, write, m.l2_sector_units)
    if kind == GLOBAL_LOAD:
        return l1d_load(sm, heap, far, m, line, time, sectors)
    return l1d_store(sm, heap, far, m, line, time, sectors)
