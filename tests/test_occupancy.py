"""Thread blocks an SM, against the reference's own figures."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from abstim.gpu.config import load_gpu
from abstim.gpu.occupancy import occupancy
from functional.errors import InputError

CYCLES = Path(__file__).parent / "data" / "cycles.csv"
GTX480 = load_gpu("gtx480_perfect").spec


def dim3(text: str) -> tuple[int, int, int]:
    x, y, z = map(int, text.split("x"))
    return x, y, z


def test_blocks_per_sm_of_every_reference_launch():
    checked = 0
    with CYCLES.open() as file:
        for row in csv.DictReader(file):
            if not row["variant"].startswith("GTX480"):
                continue
            got = occupancy(
                GTX480, dim3(row["grid"]), dim3(row["block"]), int(row["registers"]), int(row["shared_bytes"])
            )
            assert got.blocks_per_sm == int(row["blocks_per_sm"]), row
            checked += 1
    assert checked > 2000


@pytest.mark.parametrize(
    "grid, block, registers, shared, blocks, limiter",
    [
        ((1000, 1, 1), (256, 1, 1), 16, 0, 6, "threads"),
        ((1000, 1, 1), (16, 16, 1), 16, 16384, 3, "shared memory"),
        ((1000, 1, 1), (256, 1, 1), 33, 0, 3, "registers"),  # 33 -> 36 registers a thread
        ((1000, 1, 1), (33, 1, 1), 16, 0, 8, "blocks"),
        ((16, 1, 1), (64, 1, 1), 16, 0, 2, "grid"),
        ((1, 1, 1), (1, 1, 1), 0, 0, 1, "grid"),
    ],
)
def test_limiter(grid, block, registers, shared, blocks, limiter):
    got = occupancy(GTX480, grid, block, registers, shared)
    assert (got.blocks_per_sm, got.limiter) == (blocks, limiter)


@pytest.mark.parametrize(
    "block, registers, shared, message",
    [
        ((2048, 1, 1), 8, 0, r"2,048 threads, more than max_threads_per_sm = 1,536"),
        ((32, 1, 1), 8, 49153, r"49,153 B of shared memory, more than shared_bytes_per_sm = 49,152"),
        ((1024, 1, 1), 63, 0, r"65,536 registers, more than registers_per_sm = 32,768"),
    ],
)
def test_block_over_a_limit_names_it(block, registers, shared, message):
    with pytest.raises(InputError, match=message):
        occupancy(GTX480, (1, 1, 1), block, registers, shared)
