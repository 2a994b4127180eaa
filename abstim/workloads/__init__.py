"""Programs of many launches, built from the suite's kernels: where sampling matters (docs/workloads.md)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from functional.case import Case

RESNETS = (18, 34, 50, 101, 152)
VGGS = (16, 19)
ENLARGED = ("bfs", "spmv_csr", "lavamd", "mandelbrot")  # at 16 times the suite's size


def names() -> tuple[str, ...]:
    """Names of all workloads."""
    return tuple(_makers())


def is_name(target: str) -> bool:
    """Does `target` name a workload?"""
    return target in _makers()


def case(name: str) -> Case:
    """A workload ready to run. Raises KeyError for an unknown name (`is_name`)."""
    return _makers()[name]()


def _makers() -> dict[str, Callable[[], Case]]:
    return {
        "pagerank_converged": _pagerank,
        **{f"vgg{depth}": partial(_vgg, depth) for depth in VGGS},
        **{f"resnet{depth}": partial(_resnet, depth) for depth in RESNETS},
        "kernel_stream": _stream,
        **{f"{name}_16x": partial(_enlarged, name) for name in ENLARGED},
    }


def _pagerank() -> Case:
    from abstim.workloads.enlarged import pagerank_converged

    return pagerank_converged()


def _vgg(depth: int) -> Case:
    from abstim.workloads.vgg import vgg

    return vgg(depth)


def _resnet(depth: int) -> Case:
    from abstim.workloads.resnet import resnet

    return resnet(depth)


def _stream() -> Case:
    from abstim.workloads.kernel_stream import kernel_stream

    return kernel_stream()


def _enlarged(name: str) -> Case:
    from abstim.workloads.enlarged import enlarged

    return enlarged(name)
