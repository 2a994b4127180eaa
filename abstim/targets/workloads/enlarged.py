"""Suite benchmarks at sizes at which a full simulation takes time."""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt

from functional import suite
from functional.launches.case import Case
from functional.suite._recipe import Recipe

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
