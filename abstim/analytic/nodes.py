"""The dynamic instructions of one warp as a row each: what the latency table and the trace say of them together."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from abstim.gpu.spec import INSTRUCTION_CLASSES
from functional.jit.compile import jit
from functional.traces import line_record
from functional.traces.trace import LOCAL_WINDOW_LINE, SHARED_WINDOW_LINE, Trace
from precharacterize import LatencyTable
from precharacterize.classify import Kind

# Latencies a warp's time is made of: of the instruction classes, then these; `one` is a cycle no parameter changes.
_BEYOND = ("shared", "const", "load", "store", "atomic", "fetch_miss", "const_miss", "one")
LATENCIES = (*INSTRUCTION_CLASSES, *_BEYOND)
SHARED, CONST, LOAD, STORE, ATOMIC, FETCH_MISS, CONST_MISS, ONE = (LATENCIES.index(name) for name in _BEYOND)

PARAM_LOAD, SHARED_LOAD, SHARED_ATOMIC = int(Kind.PARAM_LOAD), int(Kind.SHARED_LOAD), int(Kind.SHARED_ATOMIC)
GLOBAL_LOAD, GLOBAL_STORE = int(Kind.GLOBAL_LOAD), int(Kind.GLOBAL_STORE)
LOCAL_LINE, SHARED_LINE = LOCAL_WINDOW_LINE, SHARED_WINDOW_LINE

# What a line record does: nothing, looks up L1D, passes it as a store, or as an atomic
NOTHING, LOOK_UP, WRITE, UPDATE = 0, 1, 2, 3

CODE = np.dtype(
    [("latency", "i2"), ("fixed", "i4"), ("times", "i4"), ("kind", "i2"), ("pc", "i4"), ("bytes", "i2")], align=True
)  # one a static instruction; `fixed`: cycles from issue to result beyond its latency; `times`: as how many it is to
# its unit, which a product of many rows holds for longer
NODE = np.dtype(
    [
        ("instr", "i4"), ("gap", "i4"), ("missed", "i4"), ("latency", "i4"), ("work", "i4"), ("record", "i8"),
        ("time", "f8"), ("done", "f8"), ("shift", "f8"), ("after", "i8"), ("issue_bound", "i4"),
    ],
    align=True,
)  # fmt: skip


line_of, sectors_of, more_follow = map(jit, (line_record.line_of, line_record.sectors_of, line_record.more_follow))


class Streams(NamedTuple):
    """A trace and the blocks of its program, as the loops read them."""

    blocks: np.ndarray
    first_block: np.ndarray
    records: np.ndarray
    first_record: np.ndarray
    conflicts: np.ndarray
    first_conflict: np.ndarray
    block_start: np.ndarray
    block_stop: np.ndarray
    fetch_width: int
    fetch_line: int
    by_sector: int


def streams_of(trace: Trace, table: LatencyTable, fetch: tuple[int, int], by_sector: bool) -> Streams:
    """`fetch`: instructions a fetch brings, and instructions a line; `by_sector`: one transaction a 32 B sector."""
    return Streams(
        trace.blocks, trace.block_offsets, trace.records, trace.record_offsets, trace.conflicts,
        trace.conflict_offsets, table.block_start, table.block_stop, *fetch, int(by_sector),
    )  # fmt: skip


@jit
def transactions_of(record, access_bytes, by_sector):
    """Transactions one line record makes (docs/timing-rules.md, rule 5)."""
    sectors = sectors_of(record)
    if by_sector or access_bytes == 1:
        return (sectors & 1) + ((sectors >> 1) & 1) + ((sectors >> 2) & 1) + (sectors >> 3)
    if access_bytes == 2:
        return np.int64((sectors & 3) != 0) + np.int64((sectors & 12) != 0)
    return np.int64(sectors != 0)


@jit
def fetch_of(node, pc, previous_pc, left, streams, lines, cold):
    """Issue cycles behind the previous instruction (rule 7); returns the instructions left of the pair."""
    node.missed = 0
    if pc == previous_pc + 1 and left > 0:
        node.gap = 1
        return left - 1
    node.gap = 2 if pc == previous_pc + 1 or previous_pc < -1 else 4 if left == 0 else 3
    line = pc // streams.fetch_line
    if cold and not lines[line]:
        lines[line] = 1
        node.missed = 1
    return min(streams.fetch_width, streams.fetch_line - pc % streams.fetch_line) - 1


@jit
def is_in(lines, line):
    """Is a line in a list that ends with -1? If not, it is from now on: a kernel has few lines of constants."""
    k = 0
    while lines[k] >= 0:
        if lines[k] == line:
            return True
        k += 1
    lines[k] = line
    return False


@jit
def access_of(node, row, streams, record, actions, transactions, constants, cold):
    """Latency and work of a memory instruction with line records; returns where the next one's begin."""
    node.work, first = 0, record
    action = NOTHING
    if row.kind >= GLOBAL_LOAD:
        action = LOOK_UP if row.kind == GLOBAL_LOAD else WRITE if row.kind == GLOBAL_STORE else UPDATE
        node.latency = LOAD if action == LOOK_UP else STORE if action == WRITE else ATOMIC
    while True:
        word = np.int64(streams.records[record])
        line = line_of(word)
        done = transactions_of(word, row.bytes if action else 2, streams.by_sector and action != NOTHING)
        node.work += done
        if action and done and line != SHARED_LINE:
            actions[record] = LOOK_UP if line >= LOCAL_LINE and action == WRITE else action
            transactions[record] = done
        record += 1
        if not more_follow(word):
            break
    line = line_of(np.int64(streams.records[first]))
    if not action:
        node.latency = CONST
        if cold and node.work and not is_in(constants, line):
            node.latency = CONST_MISS
    elif line == SHARED_LINE:
        node.latency = SHARED
    return record


@jit
def expand(code, streams, warp, cold, nodes, actions, transactions, lines, constants):
    """Fill `nodes` with the warp's instructions, and what its records do; returns how many instructions.

    `lines`, `constants` are scratch: whether a line of code is fetched, and the lines of constants that are.
    """
    if cold:
        lines[:] = 0
        constants[:] = -1
    record, conflict = streams.first_record[warp], streams.first_conflict[warp]
    n, previous_pc, left = 0, -2, 0
    for event in range(streams.first_block[warp], streams.first_block[warp + 1]):
        block = streams.blocks[event]
        for i in range(streams.block_start[block], streams.block_stop[block]):
            node, row = nodes[n], code[i]
            left = fetch_of(node, np.int64(row.pc), previous_pc, left, streams, lines, cold)
            node.instr, node.latency, node.work, node.record = i, row.latency, 1, record
            if SHARED_LOAD <= row.kind <= SHARED_ATOMIC:
                node.work = streams.conflicts[conflict]
                conflict += 1
            elif row.kind >= PARAM_LOAD:
                record = access_of(node, row, streams, record, actions, transactions, constants, cold)
            previous_pc = np.int64(row.pc)
            n += 1
    nodes[n].record = record
    return n
