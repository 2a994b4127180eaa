"""A launch in numbers, from its trace: PKA's twelve characteristics, and what the other methods look at."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from abstim.study.sample.counts import in_memory, memory_requests, ranges
from functional.programs.program import Program
from functional.traces.line_record import line_of, more_follow, sectors_of
from functional.traces.trace import LOCAL_WINDOW_LINE, Trace
from precharacterize.classify import Kind, kind_of

if TYPE_CHECKING:
    from jaxtyping import Bool, Int64

_SECTORS = np.array([bin(bits).count("1") for bits in range(16)])
ON_LINES = {  # make records
    Kind.PARAM_LOAD, Kind.CONST_LOAD, Kind.GLOBAL_LOAD, Kind.GLOBAL_STORE, Kind.GLOBAL_ATOMIC, Kind.TEXTURE_LOAD,
}  # fmt: skip


def kinds_of(program: Program) -> Int64[np.ndarray, " instruction"]:
    """The `Kind` of every instruction."""
    names = zip(program.instructions, program.function_of, strict=True)
    return np.array([kind_of(instruction, name == program.name) for instruction, name in names])


def launch_counts(program: Program, trace: Trace, kinds: Int64[np.ndarray, " instruction"]) -> dict[str, float]:
    """PKA's twelve (`sampling.nsight.METRICS`): sums over the launch, as Nsight Compute counts them on hardware.

    Loads, stores and atomics are warp instructions, "coalesced" ones 32-byte sectors; a generic access counts where it
    went; `kinds` are the program's. Divergence efficiency is thread instructions a warp instruction.
    """
    blocks = np.bincount(trace.blocks, minlength=len(program.blocks))
    executed = np.repeat(blocks, [b.stop - b.start for b in program.blocks])
    found = _on_lines(program, trace, kinds)
    warp_instructions = float(trace.warp_instructions.sum())
    return found | {
        "shared_loads": float(executed[kinds == Kind.SHARED_LOAD].sum()),
        "shared_stores": float(executed[kinds == Kind.SHARED_STORE].sum()),
        "instructions": warp_instructions,
        "divergence_efficiency": float(trace.thread_instructions.sum()) / max(warp_instructions, 1.0),
        "thread_blocks": float(len(trace.thread_blocks)),
    }


def _on_lines(program: Program, trace: Trace, kinds: Int64[np.ndarray, " instruction"]) -> dict[str, float]:
    """Global and local accesses."""
    kind, first = kinds_of_records(program, trace, kinds)
    where = in_memory(trace.records)
    local = where & (line_of(trace.records) >= LOCAL_WINDOW_LINE)
    sectors = _SECTORS[sectors_of(trace.records)] * where
    load, store, atomic = (kind == k for k in (Kind.GLOBAL_LOAD, Kind.GLOBAL_STORE, Kind.GLOBAL_ATOMIC))
    return {
        "coalesced_global_loads": float(sectors[load & ~local].sum()),
        "coalesced_global_stores": float(sectors[store & ~local].sum()),
        "coalesced_local_loads": float(sectors[load & local].sum()),
        "global_loads": float((load & where & ~local & first).sum()),
        "global_stores": float((store & where & ~local & first).sum()),
        "local_loads": float((load & local & first).sum()),
        "global_atomics": float((atomic & where & first).sum()),
    }


def kinds_of_records(
    program: Program, trace: Trace, kinds: Int64[np.ndarray, " instruction"]
) -> tuple[Int64[np.ndarray, " record"], Bool[np.ndarray, " record"]]:
    """The `Kind` of the instruction that made each line record, and whether it is the first of its instruction.

    Records are in the order of the instructions that made them, one or more each.
    """
    on_lines = np.isin(kinds, list(ON_LINES))
    per_block = [np.flatnonzero(on_lines[b.start : b.stop]) + b.start for b in program.blocks]
    flat = np.concatenate([*per_block, np.zeros(0, np.int64)])
    ends = np.cumsum([len(block) for block in per_block])
    starts = ends - [len(block) for block in per_block]
    accesses = kinds[flat[ranges(starts[trace.blocks], ends[trace.blocks])]]  # a kind an executed instruction
    last = more_follow(trace.records) == 0
    first = np.concatenate([np.ones(min(len(last), 1), bool), last[:-1]])
    return np.repeat(accesses, np.diff(np.append(np.flatnonzero(first), len(last)))), first


def basic_block_vector(program: Program, trace: Trace) -> Int64[np.ndarray, " basic_block"]:
    """Warp instructions of a launch in each of its basic blocks."""
    lengths = np.array([b.stop - b.start for b in program.blocks])
    return np.bincount(trace.blocks, minlength=len(lengths)) * lengths


def by_thread_block(trace: Trace) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Memory requests, warp instructions and thread instructions of every thread block, in the trace's order."""
    warps = np.arange(len(trace.warp_instructions))
    columns = (memory_requests(trace, warps), trace.warp_instructions, trace.thread_instructions)
    requests, issued, threads = (c.reshape(-1, trace.warps_per_block).sum(1).astype(float) for c in columns)
    return requests, issued, threads
