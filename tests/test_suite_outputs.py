"""Every benchmark of the suite: outputs, thread instructions (counts.json) and warp instructions (the reference's)."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

import pytest

from functional import suite
from functional.numpy_executor import NumpyExecutor

_SLOW = {"nw", "particlefilter", "micro_pointer_chase", "lavamd", "pagerank"}


@cache
def _reference() -> dict[tuple[str, int], int]:
    """Warp instructions of (benchmark, launch) in the reference."""
    with open(Path(__file__).parent / "data" / "cycles.csv", newline="") as file:
        rows = [r for r in csv.DictReader(file) if r["variant"] == "GTX480_a"]
    return {(r["benchmark"], int(r["launch"])): int(r["warp_instructions"]) for r in rows}


def _names() -> list:
    return [pytest.param(n, marks=pytest.mark.slow) if n in _SLOW else n for n in suite.names()]


@pytest.mark.parametrize("name", _names())
def test_outputs_and_instruction_counts(name: str) -> None:
    case, executor = suite.case(name), NumpyExecutor()
    active = suite.instruction_counts(name)["active"]
    for number, launch in enumerate(case.launches):
        trace = executor.run(launch, case.memory)
        assert int(trace.thread_instructions.sum()) == active[number], (name, number)
        assert int(trace.warp_instructions.sum()) == _reference().get(
            (name, number), int(trace.warp_instructions.sum())
        )
    assert case.compare(case.memory) == []
