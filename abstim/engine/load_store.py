"""A memory instruction on the load/store unit: transactions from the trace, bank conflicts of shared memory; with
perfect memory, occupancy of the unit and result cycle (docs/timing-rules.md, rule 5)."""

from __future__ import annotations

import numpy as np

from abstim.engine import l1d
from abstim.engine.read_only_caches import const_line, texture_line
from functional.jit.compile import jit
from functional.traces import line_record
from functional.traces.trace import LINE_BYTES, LOCAL_WINDOW_LINE, SHARED_WINDOW_LINE
from precharacterize.classify import Kind

PARAM_LOAD, CONST_LOAD, GLOBAL_LOAD, GLOBAL_STORE, GLOBAL_ATOMIC = (
    int(Kind.PARAM_LOAD), int(Kind.CONST_LOAD), int(Kind.GLOBAL_LOAD), int(Kind.GLOBAL_STORE), int(Kind.GLOBAL_ATOMIC),
)  # fmt: skip
SHARED_LOAD, SHARED_ATOMIC, TEXTURE_LOAD = int(Kind.SHARED_LOAD), int(Kind.SHARED_ATOMIC), int(Kind.TEXTURE_LOAD)
L2_LOAD = int(Kind.L2_LOAD)
LOCAL_LINE, SHARED_LINE = LOCAL_WINDOW_LINE, SHARED_WINDOW_LINE
line_of, sectors_of, more_follow = map(jit, (line_record.line_of, line_record.sectors_of, line_record.more_follow))
is_phase = jit(line_record.is_phase)
LOWER_HALF, UPPER_HALF = 3, 12  # of a line: sets of sectors


@jit
def line_and_sectors(streams, k):
    """Line number and set of touched sectors of record `k` (functional.traces.line_record)."""
    record = np.int64(streams.records[k])
    return line_of(record), sectors_of(record)


@jit
def shared_passes(streams, first, end):
    """Passes of shared memory among the records `first` .. `end` - 1, where they touch nothing else; else 0."""
    count = 0
    for k in range(first, end):
        line, _ = line_and_sectors(streams, k)
        if line == SHARED_LINE:
            count += 1
        elif not is_phase(line):
            return 0
    return count


@jit
def transaction_bytes(m, access_bytes):
    """Bytes of the segments that a warp's lanes are gathered into: of all accesses the same, or as GPGPU-Sim 4.2's
    Fermi does."""
    if m.coalesced_bytes:
        return m.coalesced_bytes
    if access_bytes == 1:
        return 32
    return 64 if access_bytes == 2 else 128


@jit
def next_transaction(left, size):
    """The sectors, of those left of a line record, that the next transaction of `size` bytes touches."""
    if size == 128:
        return left
    if size == 64:
        return left & UPPER_HALF if left & UPPER_HALF else left
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
def const_transactions(m, sectors):
    """Constant-cache lines that the sectors of one 128 B record lie in."""
    if m.const_line_bytes >= LINE_BYTES:
        return 1
    return int((sectors & LOWER_HALF) != 0) + int((sectors & UPPER_HALF) != 0)


@jit
def occupancy_of(c, w, i):
    """Cycles instruction `i` of warp `w` keeps the load/store unit, and the end of its records."""
    sm, kind = c.sm, c.code[i].kind
    if SHARED_LOAD <= kind <= SHARED_ATOMIC:
        return shared_cycles_of(c, i, np.int64(c.streams.conflicts[sm.conflict[w]])), sm.record[w]
    if kind < PARAM_LOAD:
        return 1, sm.record[w]
    end = sm.record[w]
    while more_follow(c.streams.records[end]):
        end += 1
    return max(1, pipe_cycles(c, i, sm.record[w], end + 1)), end + 1


@jit
def shared_cycles_of(c, i, degree):
    """Cycles an access of shared memory keeps the load/store unit, for `degree` passes of the banks. A round of a loop
    of compare-and-swap is one pass; those behind the first find the unit free."""
    return 1 if c.code[i].round else max(1, degree)


@jit
def shared_result(c, w, i, start, degree):
    """Result of an access of shared memory: of `degree` passes; of a loop of compare-and-swap, of as many rounds, which
    begin when the warps of its block that came to its word before have done theirs."""
    sm, row = c.sm, c.code[i]
    if not degree:
        return start + 1
    if not row.round:
        return start + c.machine.shared_cycles + degree - 1
    block = w // c.machine.warps_per_block
    alone = start + c.machine.shared_cycles + (degree - 1) * row.round
    sm.word_free[block, row.word] = max(alone, sm.word_free[block, row.word] + degree * row.round)
    return np.int64(sm.word_free[block, row.word])


@jit
def pipe_cycles(c, i, first, end):
    """Cycles in which the transactions of the records `first` .. `end` - 1 enter the pipe."""
    m, count = c.machine, 0
    if c.code[i].kind <= CONST_LOAD:
        if m.perfect_const:
            return 1
        for k in range(first, end):
            _, sectors = line_and_sectors(c.streams, k)
            count += const_transactions(m, sectors)
        return count
    busy, size = -1, transaction_bytes(m, c.code[i].access_bytes)
    for k in range(end - 1, first - 1, -1):
        line, left = line_and_sectors(c.streams, k)
        if line == SHARED_LINE:
            count += 1
            continue
        if is_phase(line):
            continue
        while left:
            sectors = next_transaction(left, size)
            left &= ~sectors
            later, busy = next_cycle(m, busy, sectors)
            count += later
    return count


@jit
def result_of(c, w, i, start, end):
    """Cycle in which the access that starts at `start` is complete; moves the warp's cursors past it."""
    sm, m, kind = c.sm, c.machine, c.code[i].kind
    if SHARED_LOAD <= kind <= SHARED_ATOMIC:
        degree = np.int64(c.streams.conflicts[sm.conflict[w]])
        sm.conflict[w] += 1
        return shared_result(c, w, i, start, degree)
    if kind < PARAM_LOAD:
        return start + 1
    first = sm.record[w]
    sm.record[w] = end
    line, sectors = line_and_sectors(c.streams, first)
    if not sectors:
        return start + 1
    if line == SHARED_LINE or is_phase(line):
        return start + m.shared_cycles + shared_passes(c.streams, first, end) - 1
    if kind <= CONST_LOAD:
        return const_result(c, first, end, start)
    return global_result(c, i, first, end, start)


@jit
def const_result(c, first, end, start):
    """A parameter or constant load: one line a cycle."""
    m = c.machine
    time, done, wide = start + m.const_cycles, start, m.const_line_bytes >= LINE_BYTES
    if m.perfect_const:
        return time
    for k in range(end - 1, first - 1, -1):
        line, sectors = line_and_sectors(c.streams, k)
        for half in range(1 if wide else 2):
            if wide or (sectors >> (2 * half)) & LOWER_HALF:
                done = max(done, const_line(c, line if wide else 2 * line + half, time))
                time += 1
    return done


@jit
def global_result(c, i, first, end, start):
    """A global, local or generic access: passes of shared memory, then one transaction a cycle into the L1D pipeline,
    last line first."""
    m = c.machine
    kind, size = c.code[i].kind, transaction_bytes(m, c.code[i].access_bytes)
    time, done, busy = start + m.l1d_cycles, start, -1
    for k in range(end - 1, first - 1, -1):
        line, left = line_and_sectors(c.streams, k)
        if line == SHARED_LINE:
            time += 1
            continue
        if is_phase(line):
            continue
        while left:
            sectors = next_transaction(left, size)
            left &= ~sectors
            later, busy = next_cycle(m, busy, sectors)
            time += later
            done = max(done, transaction(c, kind, line, time, sectors))
    return done


@jit
def transaction(c, kind, line, time, sectors):
    """Result cycle of one transaction that would meet the L1D tags at `time`."""
    m = c.machine
    if kind == GLOBAL_ATOMIC:
        return l1d.pass_by(c, time - m.l1d_cycles - 1)
    if kind == TEXTURE_LOAD:
        return texture_line(c, line, time)
    if line >= LOCAL_LINE:
        return l1d.load(c, line, time, sectors)
    if m.l1d_bypassed or kind == L2_LOAD:
        return l1d.pass_by(c, time - m.l1d_cycles - 1)
    if kind == GLOBAL_LOAD:
        return l1d.load(c, line, time, sectors)
    return l1d.store(c, line, time, sectors)
