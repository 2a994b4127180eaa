"""Programs of many launches, and of long ones, built from the suite's kernels (docs/workloads.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from functional.launches.case import Case

RESNETS = (18, 34, 50, 101, 152)
VGGS = (16, 19)
STREAMING = ("relu", "fir", "matmul_tiled", "black_scholes", "nn_euclid", "histogram_atomics")
ENLARGED = {  # by how much; the suite's names
    16: ("bfs", "spmv_csr", "lavamd", "mandelbrot", *STREAMING, "aes256_encrypt", "matmul_naive"),
    256: STREAMING,
}
SIZED = ("gpt", "llama")  # `sized` sets prompt, steps and batch
PROMPT, STEPS, BATCH = 16, 64, 1
GROUPS: tuple[str, ...] = ("programs", *(f"{times}x" for times in ENLARGED))  # programs: many launches


def names(group: str | None = None) -> tuple[str, ...]:
    """Names of all workloads, or of one of GROUPS."""
    if group is None:
        return tuple(_makers())
    if group == "programs":
        return tuple(name for name in _makers() if not name.endswith(GROUPS[1:]))
    return tuple(name for name in _makers() if name.endswith(f"_{group}"))


def is_name(target: str) -> bool:
    """Does `target` name a workload?"""
    return target in _makers()


def case(name: str) -> Case:
    """A workload ready to run. Raises KeyError for an unknown name (`is_name`)."""
    return _makers()[name]()


def sized(name: str, sizes: Mapping[str, int]) -> Case:
    """One of SIZED with some of `prompt`, `steps`, `batch`. Raises InputError for others, or sizes that cannot be."""
    from functional.errors import InputError

    if name not in SIZED:
        raise InputError(f"{', '.join(f'--{size}' for size in sizes)}: of {' and '.join(SIZED)} alone, not of {name}")
    return _transformer(name, **sizes)


def _makers() -> dict[str, Callable[[], Case]]:
    return {
        "pagerank_converged": partial(_made, "long_programs", "pagerank_converged"),
        **{f"vgg{depth}": partial(_made, "networks", "vgg", depth) for depth in VGGS},
        **{f"resnet{depth}": partial(_made, "networks", "resnet", depth) for depth in RESNETS},
        "kernel_stream": partial(_made, "long_programs", "kernel_stream"),
        **{name: partial(_transformer, name) for name in SIZED},
        **{
            f"{name}_{times}x": partial(_made, "long_programs", "enlarged", name, times)
            for times, own in ENLARGED.items()
            for name in own
        },
    }


def _made(module: str, maker: str, *arguments: Any) -> Case:
    found: Case = getattr(import_module(f"abstim.targets.workloads.{module}"), maker)(*arguments)
    return found


def _transformer(name: str, prompt: int = PROMPT, steps: int = STEPS, batch: int = BATCH) -> Case:
    from abstim.targets.workloads.transformer import SMALL, transformer

    return transformer(name, SMALL[name], prompt, steps, batch).case()
