"""Kernels of clusters, asynchronous copies and products of warpgroups that are right."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
from oracle.array_executor import ArrayExecutor

from functional.traces.trace import Trace


def judge_hopper(data: bytes, _: Path) -> str:
    """Of two clusters, from a seed: executors agree, chunks of any size too, and warps' streams fit the kinds of their
    instructions."""
    from both_executors import assert_streams_fit
    from random_hopper import random_hopper_launch
    from test_llvm_executor import assert_equal

    seed = int(data)
    rng = np.random.default_rng(seed)
    launch, memory = random_hopper_launch(seed, int(rng.choice([1, 1, 2, 3, 5, 8])), int(rng.choice([1, 2, 4])))
    other = memory.copy()
    trace = assert_equal(launch, memory)
    assert_streams_fit(trace, launch.program)
    in_chunks = ArrayExecutor(4).run(launch, other)
    assert np.array_equal(memory.arena, other.arena), "memory, in chunks"
    for field in fields(Trace):
        assert np.array_equal(getattr(trace, field.name), getattr(in_chunks, field.name)), field.name
    return "runs"
