"""Programs that take long: suite benchmarks enlarged, and 100,000 launches of ten kernels whose shapes drift."""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt
from typing import Any

import numpy as np

from functional import suite
from functional.arrays import Float64, Int64
from functional.launches.case import Case, LazyLaunches, StreamedCase
from functional.launches.launch import Launch, Pointer, Scalar, make_launch
from functional.suite._recipe import Recipe
from functional.suite.workloads.launched_program import LAYERS, LaunchedProgram

PAGERANK_NODES, PAGERANK_CHANGE = 61_200, 1e-6


def enlarged(name: str, times: int) -> Case:
    """A benchmark with `times` (16 or 256) the suite's elements, and as many more thread blocks or nearly so."""
    return suite.case_of(f"{name}_{times}x", name, _recipes()[name](times))


def pagerank_converged() -> Case:
    """PageRank until no step moves more than 1e-6 of all rank; how many steps that takes is found with numpy."""
    from functional.suite._apps_data import pagerank

    return suite.case_of("pagerank_converged", "pagerank", pagerank(PAGERANK_NODES, None, PAGERANK_CHANGE))


def _recipes() -> dict[str, Callable[[int], Recipe]]:
    """Of `times`: the suite's sizes, those of images and matrices enlarged each way by its square root."""
    from functional.suite import _apps_data as data
    from functional.suite import _apps_dense as dense
    from functional.suite._apps_science import mandelbrot
    from functional.suite._table1_grids import lavamd
    from functional.suite._table1_networks import bfs
    from functional.suite._table1_particles import nn_euclid

    return {
        "bfs": lambda times: bfs(15_300 * times),
        "spmv_csr": lambda times: data.spmv_csr(15_300 * times),
        "lavamd": lambda times: lavamd((4 * isqrt(times), *2 * (4 * isqrt(isqrt(times)),))),
        "mandelbrot": lambda times: mandelbrot(125 * isqrt(times), 123 * isqrt(times)),
        "relu": lambda times: dense.relu(61_400 * times),
        "fir": lambda times: dense.fir(15_360 * times),
        "matmul_tiled": lambda times: dense.matmul_tiled(128 * isqrt(times)),
        "matmul_naive": lambda times: dense.matmul_naive(128 * isqrt(times)),
        "black_scholes": lambda times: data.black_scholes(15_300 * times),
        "nn_euclid": lambda times: nn_euclid(30_700 * times),
        "aes256_encrypt": lambda times: dense.aes256_encrypt(7_680 * times),
        "histogram_atomics": lambda times: data.histogram_atomics(122_801 * times, 60 * times),
    }


LAUNCHES = 100_000
BENCHMARKS = ("relu", "batchnorm_relu", "maxpool", "transpose", "matmul_tiled", "black_scholes", "reduction")
KINDS: tuple[str, ...] = ("relu", "batchnorm_relu", "maxpool3x3s2", "transpose_naive", "transpose_padded")
KINDS += ("matmul_tiled", "black_scholes", "reduce_sum", "fully_connected_single", "conv2d")
MOST = 1 << 18  # elements of a buffer
BUFFERS = ("x", "y", "z", "out", "out2")  # the first three are never written


def kernel_stream(launches: int = LAUNCHES, seed: int = 7) -> StreamedCase:
    """The stream: kinds repeat in bursts, sizes wander by a factor of eight around each kind's own."""
    program, rng = LaunchedProgram("kernel_stream", seed, BENCHMARKS, LAYERS), np.random.default_rng(seed)
    for name in BUFFERS:
        program.memory.allocate(name, 4 * MOST, rng.uniform(0.5, 1.5, MOST).astype(np.float32))
    kind, scale = drift(launches, rng)

    def make(number: int) -> Launch:
        name = KINDS[int(kind[number])]
        return make_launch(program.programs[name], *_shape(name, float(scale[number])), program.memory)

    return program.case(LazyLaunches(launches, make))


def drift(
    launches: int, rng: np.random.Generator
) -> tuple[Int64[np.ndarray, " launch"], Float64[np.ndarray, " launch"]]:
    """Kind and size (1 to 8) of every launch. The logarithm of a kind's size is a slow sine plus a random walk that is
    pulled back to the middle."""
    kind = rng.permuted(np.arange(launches) // 4 % len(KINDS)) if launches else np.zeros(0, np.int64)
    steps, walk = rng.normal(0.0, 0.02, launches), np.zeros(launches)
    for number in range(1, launches):
        walk[number] = 0.999 * walk[number - 1] + steps[number]
    phase = 2 * np.pi * (np.arange(launches) / 20_000 + kind / len(KINDS))
    return kind, np.exp(np.clip(1.04 + 0.5 * np.sin(phase) + walk, 0.0, 2.08))


def _shape(name: str, size: float) -> tuple[Any, Any, list]:
    """Grid, block and arguments of a kernel at a size of 1 to 8."""
    x, y, z, out, out2 = (Pointer(buffer) for buffer in BUFFERS)
    n, side, tile, edge = int(12_000 * size), 32 * int(3 + 1.6 * size), 16 * int(2 + 0.7 * size), int(12 + 3 * size)
    area, half = n // 16, (edge + 1) // 2
    square, transposed = (-(-edge * edge // 16), 1), ((side // 32, side // 32), (32, 8), [x, out, side, side])
    rates = [Scalar("f32", 0.02), Scalar("f32", 0.3)]
    shapes: dict[str, tuple[Any, Any, list]] = {
        "relu": (-(-n // 256), 256, [x, out, n]),
        "batchnorm_relu": (-(-area // 16), 256, [x, y, z, y, z, out, 16 * area, 16, area, Scalar("f32", 1e-5)]),
        "maxpool3x3s2": (-(-24 * half * half // 256), 256, [x, out, 24, edge, edge, half, half]),
        "transpose_naive": transposed,
        "transpose_padded": transposed,
        "matmul_tiled": ((tile // 16, tile // 16), (16, 16), [x, y, out, tile, tile]),
        "black_scholes": (-(-n // 2048), 256, [x, y, z, out, out2, n // 8, *rates]),
        "reduce_sum": (-(-n // 256), 128, [x, out, n]),
        "fully_connected_single": (-(-tile // 8), 256, [x, y, z, out, tile * 4, tile, 0]),
        "conv2d": (square, (16, 16), [x, y, out, 8, edge, edge, 16, edge, edge, 3, 1, 1]),
    }
    return shapes[name]
