"""The door in front of native code: a trace that comes from a file does what the program and the launch allow.

The engine follows block numbers, offsets and cursors without looking: a file with whole checksums and wrong content
would have it read beyond arrays, or time nonsense."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from functional.arrays import Int32, Int64
from functional.errors import InputError, refuse
from functional.launches.case import Case
from functional.launches.launch import Launch, places
from functional.programs.program import Program
from functional.traces import line_record
from functional.traces.line_record import BARRIERS, PHASES, count_of, in_phases, line_of, more_follow
from functional.traces.trace import OFFSETS, STREAMS, Trace
from precharacterize.classify import Kind, kinds_of

SHARED = (Kind.SHARED_LOAD, Kind.SHARED_STORE, Kind.SHARED_ATOMIC)
LANES = 32


class BlockCounts(NamedTuple):
    """What each basic block of a program has: instructions, accesses that leave line records, and named shared ones."""

    instructions: Int32[np.ndarray, " basic_block"]
    accesses: Int32[np.ndarray, " basic_block"]
    shared: Int32[np.ndarray, " basic_block"]


def check_traces(case: Case, traces: Sequence[Trace]) -> None:
    """Raises InputError, saying what is wrong, unless there is one trace a launch, of all of its thread blocks: every
    warp with its basic blocks, and of each access as many records and conflicts as the engine will ask for."""
    refuse(len(traces) != len(case.launches), f"{case.name}: {len(traces)} traces of {len(case.launches)} launches")
    counts: dict[int, BlockCounts] = {}  # by program
    for number, (launch, trace) in enumerate(zip(case.launches, traces, strict=True)):
        program = launch.program
        if id(program) not in counts:
            counts[id(program)] = block_counts(program)
        if wrong := problem(trace, launch, counts[id(program)], np.arange(launch.thread_blocks)):
            raise InputError(f"{case.name}, launch {number}: the trace is not one of '{program.name}': {wrong}")


def problem(trace: Trace, launch: Launch, counts: BlockCounts, thread_blocks: Int64[np.ndarray, " tb"]) -> str:
    """What shows that a trace is not one of these thread blocks of a launch, "" if nothing does."""
    return _shape(trace, launch, thread_blocks) or _contents(trace, launch, counts)


def block_counts(program: Program) -> BlockCounts:
    """Of every basic block of a program."""
    kinds = np.array(kinds_of(program))
    shared = np.isin(kinds, SHARED)
    chosen = (np.ones(len(kinds), bool), (kinds >= Kind.PARAM_LOAD) & ~shared, shared)
    return BlockCounts(*(np.array(program.in_blocks(each), np.int32) for each in chosen))


def _shape(trace: Trace, launch: Launch, thread_blocks: Int64[np.ndarray, " tb"]) -> str:
    if trace.warps_per_block != launch.warps_per_block:
        return f"{trace.warps_per_block} warps a thread block, not {launch.warps_per_block}"
    if not np.array_equal(trace.thread_blocks, thread_blocks):
        return f"its thread blocks are not the {len(thread_blocks)} that ran"
    warps = len(thread_blocks) * launch.warps_per_block
    lengths = [len(getattr(trace, name)) - 1 for name in OFFSETS]
    lengths += [len(trace.warp_instructions), len(trace.thread_instructions)]
    if set(lengths) != {warps} or len(trace.masks) != len(trace.blocks):
        return f"not every array is as long as {warps} warps need"
    for stream, name in STREAMS.items():
        offsets = getattr(trace, name)
        if offsets[0] != 0 or offsets[-1] != len(getattr(trace, stream)) or (offsets[1:] < offsets[:-1]).any():
            return f"{name} do not rise from 0 to the number of {stream}"
    at = np.concatenate([[-1], trace.partial_at, [len(trace.records)]])
    if len(trace.partial_words) != len(trace.partial_at) or (np.diff(at) <= 0).any():
        return "what stores leave out is not said of records in order"
    return ""


def _contents(trace: Trace, launch: Launch, counts: BlockCounts) -> str:
    if (trace.block_offsets[1:] == trace.block_offsets[:-1]).any():
        return "a warp has no basic blocks"
    if len(trace.blocks) and int(trace.blocks.max()) >= len(counts.instructions):
        return f"basic block {int(trace.blocks.max())}, and the program has {len(counts.instructions)}"
    instructions, accesses, shared = (_by_warp(each.take(trace.blocks), trace.block_offsets) for each in counts)
    if not np.array_equal(instructions, trace.warp_instructions):
        return "its instructions are not those of its basic blocks"
    if ((trace.thread_instructions < 0) | (trace.thread_instructions > LANES * trace.warp_instructions)).any():
        return "more active lanes than there are"
    lengths, more = np.diff(trace.record_offsets), more_follow(trace.records)
    lasts = more[trace.record_offsets[1:][lengths > 0] - 1]
    if not np.array_equal(accesses, lengths - _by_warp(more, trace.record_offsets)) or lasts.any():
        return "its line records are not those of its memory accesses"
    if not np.array_equal(shared, np.diff(trace.conflict_offsets)):
        return "its bank conflicts are not those of its accesses to shared memory"
    return _phases(trace, launch)


def _phases(trace: Trace, launch: Launch) -> str:
    """Arrivals are made in the own cluster, and nobody waits at an `mbarrier` for more than are made in that phase."""
    chosen = np.flatnonzero(in_phases(trace.records))
    lines = line_of(trace.records[chosen].astype(np.int64))
    warp = np.searchsorted(trace.record_offsets, chosen, side="right") - 1
    away = line_record.away_of(trace.records[chosen].astype(np.int64))
    if (away >= launch.cluster.total).any():
        return "a warp arrives in a thread block that is not in its cluster"
    cluster, rank = (place[warp // trace.warps_per_block] for place in places(launch, trace.thread_blocks))
    block = cluster * launch.cluster.total + (rank + away) % launch.cluster.total
    phase = (block * BARRIERS + line_record.barrier_of(lines)) * PHASES + line_record.phase_of(lines)
    _, number = np.unique(phase, return_inverse=True)
    arrivals = np.bincount(number[count_of(lines) == 0], minlength=len(chosen) + 1)
    return "a warp waits for arrivals that nobody makes" if (count_of(lines) > arrivals[number]).any() else ""


def _by_warp(values: np.ndarray, offsets: Int64[np.ndarray, " warp_plus_1"]) -> Int64[np.ndarray, " warp"]:
    sums, some = np.zeros(len(offsets) - 1, np.int64), offsets[1:] > offsets[:-1]
    if some.any():
        sums[some] = np.add.reduceat(values, offsets[:-1][some], dtype=np.int64)
    return sums
