"""Programs of many launches, and of long ones, built from the suite's kernels (docs/workloads.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pkgutil import resolve_name
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
    from functional.suite.workloads.transformer import SMALL, transformer

    if name not in SIZED:
        raise InputError(f"{', '.join(f'--{size}' for size in sizes)}: of {' and '.join(SIZED)} alone, not of {name}")
    return transformer(name, SMALL[name], **{"prompt": PROMPT, "steps": STEPS, "batch": BATCH, **sizes}).case()


def _makers() -> dict[str, Callable[[], Case]]:
    return {
        "pagerank_converged": partial(_made, "long_programs:pagerank_converged"),
        **{f"vgg{depth}": partial(_launched, "networks:vgg_network", depth) for depth in VGGS},
        **{f"resnet{depth}": partial(_launched, "networks:resnet_network", depth) for depth in RESNETS},
        "kernel_stream": partial(_made, "long_programs:kernel_stream"),
        **{name: partial(sized, name, {}) for name in SIZED},
        **{
            f"{name}_{times}x": partial(_made, "long_programs:enlarged", name, times)
            for times, own in ENLARGED.items()
            for name in own
        },
    }


def _made(maker: str, *arguments: Any) -> Any:
    return resolve_name(f"functional.suite.workloads.{maker}")(*arguments)


def _launched(maker: str, *arguments: Any) -> Case:
    case: Case = _made(maker, *arguments).case()
    return case
