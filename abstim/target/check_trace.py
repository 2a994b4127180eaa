"""The door in front of native code: a trace that comes from a file does what the program and the launch allow.

The engine follows block numbers, offsets and cursors without looking: a file with whole checksums and wrong content
would have it read beyond arrays, or time nonsense.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Int64

from functional.errors import InputError
from functional.launch import Launch
from functional.line_record import more_follow
from functional.program import Program
from functional.trace import Trace
from precharacterize.classify import Kind, kind_of

SHARED = (Kind.SHARED_LOAD, Kind.SHARED_STORE, Kind.SHARED_ATOMIC)
STREAMS = {"blocks": "block_offsets", "records": "record_offsets", "conflicts": "conflict_offsets"}
LANES = 32


def check_trace(trace: Trace, launch: Launch, where: str) -> None:
    """Raises InputError, naming `where` the trace is from and what is wrong with it, unless it is one of all thread
    blocks of the launch: every warp with its basic blocks, and of each access as many records and conflicts as the
    engine will ask for."""
    for problem in (_shape(trace, launch), lambda: _offsets(trace), lambda: _contents(trace, launch.program)):
        found = problem() if callable(problem) else problem
        if found:
            raise InputError(f"{where}: the trace of '{launch.program.name}' is not one of this launch: {found}")


def _shape(trace: Trace, launch: Launch) -> str:
    if trace.warps_per_block != launch.warps_per_block:
        return f"{trace.warps_per_block} warps a thread block, not {launch.warps_per_block}"
    if not np.array_equal(trace.thread_blocks, np.arange(launch.thread_blocks)):
        return f"its thread blocks are not 0 to {launch.thread_blocks - 1}"
    warps = launch.thread_blocks * launch.warps_per_block
    lengths = [len(getattr(trace, name)) - 1 for name in STREAMS.values()]
    lengths += [len(trace.warp_instructions), len(trace.thread_instructions)]
    if set(lengths) != {warps} or len(trace.masks) != len(trace.blocks):
        return f"not every array is as long as {warps} warps need"
    return ""


def _offsets(trace: Trace) -> str:
    for stream, name in STREAMS.items():
        offsets = getattr(trace, name)
        if offsets[0] != 0 or offsets[-1] != len(getattr(trace, stream)) or (np.diff(offsets) < 0).any():
            return f"{name} do not rise from 0 to the number of {stream}"
    return ""


def _contents(trace: Trace, program: Program) -> str:
    if (np.diff(trace.block_offsets) == 0).any():
        return "a warp has no basic blocks"
    if len(trace.blocks) and int(trace.blocks.max()) >= len(program.blocks):
        return f"basic block {int(trace.blocks.max())}, and the program has {len(program.blocks)}"
    lengths = np.array([block.stop - block.start for block in program.blocks])
    if not np.array_equal(_by_warp(lengths[trace.blocks], trace.block_offsets), trace.warp_instructions):
        return "its instructions are not those of its basic blocks"
    if ((trace.thread_instructions < 0) | (trace.thread_instructions > LANES * trace.warp_instructions)).any():
        return "more active lanes than there are"
    kinds = np.array([kind_of(i, program.function_of[i.index] == program.name) for i in program.instructions])
    shared = np.isin(kinds, SHARED)
    accesses = _by_warp(_in_blocks((kinds >= Kind.PARAM_LOAD) & ~shared, program)[trace.blocks], trace.block_offsets)
    ends = _by_warp(more_follow(trace.records) == 0, trace.record_offsets)
    lasts = trace.records[trace.record_offsets[1:][np.diff(trace.record_offsets) > 0] - 1]
    if not np.array_equal(accesses, ends) or more_follow(lasts).any():
        return "its line records are not those of its memory accesses"
    conflicts = _by_warp(_in_blocks(shared, program)[trace.blocks], trace.block_offsets)
    if not np.array_equal(conflicts, np.diff(trace.conflict_offsets)):
        return "its bank conflicts are not those of its accesses to shared memory"
    return ""


def _in_blocks(chosen: Bool[np.ndarray, " instruction"], program: Program) -> Int64[np.ndarray, " basic_block"]:
    """How many of some instructions each basic block has."""
    before = np.concatenate([[0], np.cumsum(chosen)])
    return np.array([before[block.stop] - before[block.start] for block in program.blocks])


def _by_warp(values: np.ndarray, offsets: Int64[np.ndarray, " warp_plus_1"]) -> Int64[np.ndarray, " warp"]:
    """Sums of the values of each warp."""
    before = np.concatenate([[0], np.cumsum(values, dtype=np.int64)])
    return before[offsets[1:]] - before[offsets[:-1]]
