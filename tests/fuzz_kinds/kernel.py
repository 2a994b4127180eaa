"""Kernels that are right."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np

BLOCKS = ((32, 1), (8, 1), (70, 1), (64, 1), (16, 3), (5, 9), (128, 1))


def make_kernel(rng: Random) -> bytes:
    """A seed."""
    return str(rng.randrange(1 << 40)).encode()


def judge_kernel(data: bytes, _: Path) -> str:
    """A valid random kernel of several blocks: executors agree on everything."""
    from test_llvm_executor import LLVM as COMPILED
    from test_llvm_executor import assert_equal, random_launch

    seed = int(data)
    rng = np.random.default_rng(seed)
    size, grid, block = int(rng.integers(1, 61)), int(rng.integers(1, 4)), BLOCKS[rng.integers(len(BLOCKS))]
    launch, memory = random_launch(seed, size, grid, block)
    assert COMPILED.compiled(launch.program) is not None, "handed over"
    assert_equal(launch, memory)
    return "runs"
