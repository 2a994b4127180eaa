"""Every benchmark of the suite, executed once by each executor: equal traces and memory, the right outputs, thread
instructions (counts.json), and warp instructions and cache accesses of the reference (GPGPU-Sim), which shares no code
with these executors."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from oracle.array_executor import ArrayExecutor
from test_llvm_executor import assert_equal

from functional import suite
from functional.programs.program import Program
from functional.ptx.ir import TYPE_BYTES
from functional.traces.line_record import line_of, sectors_of
from functional.traces.trace import PARAM_WINDOW_LINE, Trace

_SLOW = {"nw", "particlefilter", "micro_pointer_chase", "lavamd", "pagerank"}
_CONST_LINES = (64 << 10) // 128


@cache
def _reference() -> dict[tuple[str, int], dict[str, str]]:
    """Row of (benchmark, launch) in the reference, perfect memory, one scheduler."""
    with open(Path(__file__).parent / "data" / "cycles.csv", newline="") as file:
        rows = [r for r in csv.DictReader(file) if r["variant"] == "GTX480_a"]
    return {(r["benchmark"], int(r["launch"])): r for r in rows}


def _names() -> list:
    return [pytest.param(n, marks=pytest.mark.slow) if n in _SLOW else n for n in suite.names()]


def _cache_accesses(trace: Trace) -> tuple[int, int]:
    """(128-byte lines of data accesses, 64-byte lines of constant and parameter accesses)."""
    line, sectors = line_of(trace.records), sectors_of(trace.records)
    constant = (line < _CONST_LINES) | (line >= PARAM_WINDOW_LINE)
    halves = ((sectors & 3) != 0).astype(int) + ((sectors & 12) != 0)
    return int((~constant & (sectors != 0)).sum()), int(halves[constant].sum())


def _counts_lines(program: Program) -> bool:
    """Does the reference make one L1D access a line? Atomics bypass L1D, sub-word data has smaller segments."""
    memory = [i for i in program.instructions if i.is_memory and i.space != "shared"]
    return all(i.opcode in ("ld", "st") and TYPE_BYTES[i.type] >= 4 for i in memory)


@pytest.mark.parametrize("name", _names())
def test_executors_outputs_instruction_counts_and_cache_accesses(name: str) -> None:
    case = suite.case(name)
    active = suite.instruction_counts(name)["active"]
    for number, launch in enumerate(case.launches):
        trace = assert_equal(launch, case.memory)
        assert int(trace.thread_instructions.sum()) == active[number], (name, number)
        row = _reference().get((name, number))
        if row is None:  # the reference cannot run this one
            continue
        assert int(trace.warp_instructions.sum()) == int(row["warp_instructions"]), (name, number)
        lines, constants = _cache_accesses(trace)
        assert constants == int(row["l1c_accesses"]), (name, number)
        if _counts_lines(launch.program):
            assert lines == int(row["l1d_accesses"]), (name, number)
    assert case.compare(case.memory) == []


def test_reference_covers_most_benchmarks() -> None:
    assert len({name for name, _ in _reference()}) >= 54


def test_a_subset_of_blocks_gives_the_same_streams() -> None:
    case = suite.case("pathfinder")
    launch, chosen = case.launches[0], [3, 7]
    whole = ArrayExecutor().run(launch, case.memory.copy())
    part = ArrayExecutor().run(launch, case.memory.copy(), chosen)
    warps = np.concatenate([np.arange(b * whole.warps_per_block, (b + 1) * whole.warps_per_block) for b in chosen])
    for stream, offsets in (
        ("blocks", "block_offsets"),
        ("records", "record_offsets"),
        ("conflicts", "conflict_offsets"),
    ):
        values, cuts = getattr(whole, stream), getattr(whole, offsets)
        expected = np.concatenate([values[cuts[w] : cuts[w + 1]] for w in warps])
        assert np.array_equal(getattr(part, stream), expected), stream
