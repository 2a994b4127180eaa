"""Which instruction made each memory access of a trace, and the trace as it would be with fewer of them."""

from dataclasses import replace

import numpy as np
from msgspec import Struct

from abstim.engine import LaunchInputs
from functional.arrays import Bool, Int, Int64, UInt32
from functional.programs.program import Program
from functional.traces.line_record import (
    ALL_SECTORS,
    MORE,
    SECTOR_SHIFT,
    in_local,
    is_data,
    line_of,
    more_follow,
    sectors_of,
)
from functional.traces.trace import LOCAL_WINDOW_LINE, SHARED_WINDOW_LINE, Trace
from precharacterize import LatencyTable
from precharacterize.classify import Kind
from precharacterize.synchronisation import FILLS, NONE


class Accesses(Struct, frozen=True):
    """Executed memory instructions, in the order of the trace.

    `instruction` and `first`, the first record, of those with line records, of which each record has an `owner` and a
    `place` among its records; `shared` the instruction of those with bank passes (`Trace.conflicts`)."""

    instruction: Int64[np.ndarray, " access"]
    first: Int64[np.ndarray, " access"]
    owner: Int64[np.ndarray, " record"]
    place: Int64[np.ndarray, " record"]
    shared: Int64[np.ndarray, " shared_access"]


def accesses_of(inputs: LaunchInputs) -> Accesses:
    """Of all thread blocks of a launch, as the engine reads them."""
    trace, table, kind = inputs.trace, inputs.table, inputs.table.kind
    is_shared = (kind >= Kind.SHARED_LOAD) & (kind <= Kind.SHARED_ATOMIC)
    on_lines = (kind >= Kind.PARAM_LOAD) & ~is_shared
    instruction, shared = (executed(trace, table.block_start, table.block_stop, c) for c in (on_lines, is_shared))
    is_first = first_records(trace)
    first, owner = np.flatnonzero(is_first), np.cumsum(is_first) - 1
    return Accesses(instruction, first, owner, np.arange(len(owner)) - first[owner], shared)


def transactions_of(inputs: LaunchInputs, kind: Kind) -> int:
    """Transactions of one kind of instructions."""
    chosen = inputs.table.kind == kind
    if not chosen.any():
        return 0
    found = accesses_of(inputs)
    return int(chosen[found.instruction][found.owner].sum())


def first_records(trace: Trace) -> Bool[np.ndarray, " record"]:
    """Which line records are the first of an instruction."""
    return np.concatenate([np.ones(1, bool), more_follow(trace.records[:-1]) == 0])[: len(trace.records)]


def executed(
    trace: Trace, block_start: Int[np.ndarray, " block"], block_stop: Int[np.ndarray, " block"],
    chosen: Bool[np.ndarray, " instr"],
) -> Int64[np.ndarray, " execution"]:  # fmt: skip
    """The chosen instructions as they were executed, warp by warp."""
    before = np.concatenate([[0], np.cumsum(chosen)])  # chosen ones before each instruction
    first, count = before[block_start], before[block_stop] - before[block_start]
    events = count[trace.blocks]
    place = np.arange(int(events.sum())) - np.repeat(np.cumsum(events) - events, events)
    return np.flatnonzero(chosen)[np.repeat(first[trace.blocks], events) + place]


def _atomics(table: LatencyTable) -> Bool[np.ndarray, " instr"]:
    """Atomics on global memory; an `mbarrier` is none."""
    return (table.kind == Kind.GLOBAL_ATOMIC) & (table.copies == NONE)


def atomic_transactions(inputs: LaunchInputs) -> tuple[Int64[np.ndarray, " line"], Int64[np.ndarray, " line"]]:
    """(line numbers, records of atomics on each), of atomics on global memory."""
    atomics = _atomics(inputs.table)
    if not atomics.any():
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    found = accesses_of(inputs)
    records = inputs.trace.records[atomics[found.instruction][found.owner]]
    return np.unique(line_of(records[sectors_of(records) > 0]).astype(np.int64), return_counts=True)


def halved_conflicts(inputs: LaunchInputs) -> LaunchInputs:
    """Half of the passes that shared memory's banks take for an access, one at least."""
    trace = inputs.trace
    return replace(inputs, trace=replace(trace, conflicts=(trace.conflicts + np.uint8(1)) // np.uint8(2)))


def without_conflicts(inputs: LaunchInputs) -> LaunchInputs:
    """One pass of shared memory's banks for every access."""
    return replace(inputs, trace=replace(inputs.trace, conflicts=np.minimum(inputs.trace.conflicts, np.uint8(1))))


def coalesced(inputs: LaunchInputs) -> LaunchInputs:
    """Loads and stores of global memory that touch no more sectors than 32 lanes side by side: as many as an element
    has bytes (a vector: all of them). Those that touch more keep their first lines."""
    trace, table, found = inputs.trace, inputs.table, accesses_of(inputs)
    data = np.isin(table.kind, (Kind.GLOBAL_LOAD, Kind.L2_LOAD, Kind.GLOBAL_STORE)) & (table.copies != FILLS)
    if not data.any():
        return inputs
    owner = found.owner
    size = np.where(line_of(trace.records) == SHARED_WINDOW_LINE, 0, np.bitwise_count(sectors_of(trace.records)))
    touched = np.bincount(owner, size, len(found.first))
    # bytes a lane: of an element times the registers that a load writes, or a store reads besides its address
    loaded, read = (table.writes >= 0).sum(1), (table.waits >= 0).sum(1) - 1
    registers = np.clip(np.where(table.kind == Kind.GLOBAL_STORE, read, loaded), 1, 4)
    enough = np.maximum(4, (table.access_bytes.astype(np.int64) * registers)[found.instruction])
    is_global = is_data(line_of(trace.records[found.first])) & (line_of(trace.records[found.first]) < LOCAL_WINDOW_LINE)
    wide = data[found.instruction] & (touched > enough) & is_global
    keep = ~wide[owner] | (found.place < enough[owner] // 4)
    whole = wide[owner] & keep
    records = np.where(whole, trace.records | np.uint32(ALL_SECTORS << SECTOR_SHIFT), trace.records)
    partial = ~whole[trace.partial_at]
    trace = replace(trace, partial_at=trace.partial_at[partial], partial_words=trace.partial_words[partial])
    return replace(inputs, trace=_kept(trace, records, owner, keep))


def words_of_vectors(program: Program, table: LatencyTable) -> Int64[np.ndarray, " instr"] | None:
    """Words a lane of each instruction that may access local memory by vectors, 0 of others; None if there is none."""
    spaces = "local", "generic"
    words = np.array([i.access_bytes // 4 if i.is_memory and i.space in spaces else 0 for i in program.instructions])
    words[words <= _element_words(table)] = 0
    return words if words.any() else None


def first_elements(trace: Trace, table: LatencyTable, words: Int64[np.ndarray, " instr"]) -> Trace:
    """Of vectors in local memory the first element alone is accessed, as in GPGPU-Sim 4.2 (translate_local_memaddr).
    `words`: see `words_of_vectors`."""
    local = in_local(trace.records)
    if not local.any():
        return trace
    found = accesses_of(LaunchInputs(table, trace))
    made_by = found.instruction[found.owner]
    word = (line_of(trace.records) - np.uint32(LOCAL_WINDOW_LINE)) % np.maximum(words, 1)[made_by]
    keep = ~local | (words == 0)[made_by] | (word < _element_words(table)[made_by])
    return _kept(trace, trace.records, found.owner, keep)


def _element_words(table: LatencyTable) -> Int64[np.ndarray, " instr"]:
    return np.maximum(1, table.access_bytes.astype(np.int64) // 4)


def _kept(
    trace: Trace, records: UInt32[np.ndarray, " record"], owner: Int64[np.ndarray, " record"],
    keep: Bool[np.ndarray, " record"],
) -> Trace:  # fmt: skip
    """A trace with some of its records, one at least of each access."""
    kept = owner[keep]
    more = np.append(kept[1:] == kept[:-1], False)
    return trace.keeping(keep, records[keep] & ~np.uint32(MORE) | more)


def halved_atomics(inputs: LaunchInputs) -> LaunchInputs:
    """Half of the transactions of the atomics on global memory: as if those were served twice as fast.

    Of an atomic of several records every other one stays, of one record half the sectors; and of atomics on one sector
    every other one."""
    atomics = _atomics(inputs.table)
    if not atomics.any():
        return inputs
    trace, found = inputs.trace, accesses_of(inputs)
    owner, mine = found.owner, atomics[found.instruction]
    count = np.diff(found.first, append=len(trace.records))
    several = (mine & (count > 1))[owner]
    keep = ~several | ((found.place + owner) % 2 == 0)  # now the even ones, now the odd: no line is spared more
    records = trace.records.copy()
    single = found.first[mine & (count == 1)]
    records[single] = _half_of_the_sectors(records[single])
    return replace(inputs, trace=_kept(trace, records, owner, keep))


def _half_of_the_sectors(records: UInt32[np.ndarray, " record"]) -> UInt32[np.ndarray, " record"]:
    sectors = sectors_of(records)
    lowest = sectors & (~sectors + np.uint32(1))
    left = sectors & ~lowest
    next_one = left & (~left + np.uint32(1))
    fewer = np.where(left & ~next_one != 0, lowest | next_one, np.where(left != 0, lowest, sectors))
    found = records & ~np.uint32(ALL_SECTORS << SECTOR_SHIFT) | fewer << SECTOR_SHIFT
    alone = np.flatnonzero((sectors != 0) & (left == 0))[::2]
    found[alone] = 0  # as where no lane is active
    return found
