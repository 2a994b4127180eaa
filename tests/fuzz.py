"""`python tests/fuzz.py COUNT [FIRST]`: random kernels through both executors, which have to agree on everything.

The seed of a kernel is its number, so that a run can be continued or a failure repeated. Ends with exit code 1 at the
first difference.
"""

from __future__ import annotations

import sys
import time

import numpy as np
from test_llvm_executor import LLVM, assert_equal, random_launch

BLOCKS = ((32, 1), (8, 1), (70, 1), (64, 1), (16, 3), (5, 9), (128, 1))


def one(seed: int) -> None:
    """Make and compare the kernel of a seed."""
    rng = np.random.default_rng(seed)
    size, grid, block = int(rng.integers(1, 61)), int(rng.integers(1, 4)), BLOCKS[rng.integers(len(BLOCKS))]
    launch, memory = random_launch(seed, size, grid, block)
    if not LLVM.supports(launch.program):
        raise AssertionError("the program was handed over")
    assert_equal(launch, memory)


def main(count: int, first: int = 0) -> int:
    """Compare `count` kernels; yields the exit code."""
    begun = time.monotonic()
    for seed in range(first, first + count):
        try:
            one(seed)
        except Exception as error:  # whatever it is, the seed is what one wants to know
            print(f"seed {seed}: {type(error).__name__}: {error}")
            return 1
        if (seed + 1) % 100 == 0:
            print(f"{seed + 1 - first} of {count}", flush=True)
    print(f"{count} random kernels agree in memory and trace, {time.monotonic() - begun:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
