"""Thread blocks an SM, against the reference's own figures."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from ptx_kernels import HEADER, REGISTERS

import abstim
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


@pytest.mark.parametrize("name, kib, blocks", [("h100", 16, 13), ("a100", 32, 4), ("v100", 32, 3), ("gtx480", 16, 3)])
def test_cuda_keeps_shared_memory_of_a_thread_block_from_8_0_on(name, kib, blocks):
    """Nsight Compute's "driver shared memory per block": a kibibyte; 228 KiB hold 13 blocks of 17 KiB, not 14 of 16."""
    assert occupancy(load_gpu(name).spec, (9999, 1, 1), (32, 1, 1), 16, kib << 10).blocks_per_sm == blocks


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


@pytest.mark.parametrize(
    "grid, cluster, blocks", [(128, 4, 1), (132, 4, 2), (132, 2, 1), (132, 1, 1), (128, 16, 1), (144, 16, 2)]
)
def test_clusters_have_a_place_at_once_if_gpcs_can_hold_them(grid, cluster, blocks):
    """33 clusters of 4 on 132 SMs, in GPCs of 16 and 18: of the latter two SMs are left over, a block on each SM."""
    got = occupancy(load_gpu("h100").spec, (grid, 1, 1), (128, 1, 1), 32, 0, cluster_blocks=cluster)
    assert (got.blocks_per_sm, got.limiter) == (blocks, "grid")


def test_a_cluster_more_than_an_even_spread_holds_is_no_second_wave(tmp_path):
    chain = "add.u32 %r0, %r0, %r0; " * 2000
    (tmp_path / "k.ptx").write_text(f"{HEADER}.entry k() .reqnctapercluster 4 {{ {REGISTERS} {chain} ret; }}")
    kernel = abstim.load(tmp_path / "k.ptx").kernel()
    launches = [kernel.launch(grid=4 * clusters, block=128, args=[]) for clusters in (32, 33)]
    one, more = (abstim.run(x, "h100", ["timed_code=ptx"]).totals["cycles"] for x in launches)
    assert more == pytest.approx(one, rel=0.05)
