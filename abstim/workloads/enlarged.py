"""Suite benchmarks at sizes at which a full simulation takes time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from functional import suite
from functional.case import Case
from functional.suite._recipe import Recipe

TIMES = 16
PAGERANK_NODES, PAGERANK_CHANGE = 61_200, 1e-6


def enlarged(name: str) -> Case:
    """A benchmark of irregular work at 16 times the suite's size: nodes, rows, boxes or pixels."""
    return suite.case_of(f"{name}_{TIMES}x", name, _recipes()[name]())


def pagerank_converged() -> Case:
    """PageRank until no step moves more than 1e-6 of all rank; how many steps that takes is found with numpy."""
    from functional.suite._apps_data import pagerank

    return suite.case_of("pagerank_converged", "pagerank", pagerank(PAGERANK_NODES, None, PAGERANK_CHANGE))


def _recipes() -> dict[str, Callable[[], Recipe]]:
    from functional.suite._apps_data import spmv_csr
    from functional.suite._apps_science import mandelbrot
    from functional.suite._table1_grids import lavamd
    from functional.suite._table1_networks import bfs

    return {
        "bfs": partial(bfs, TIMES * 15_300),
        "spmv_csr": partial(spmv_csr, TIMES * 15_300),
        "lavamd": partial(lavamd, (16, 8, 8)),
        "mandelbrot": partial(mandelbrot, 4 * 125, 4 * 123),
    }
