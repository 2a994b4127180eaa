"""What a measurement ran on, and how fast that was at the time."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from time import perf_counter
from typing import Any

from functional.execution.computer import default_threads

LIBRARIES = ("numpy", "numba", "llvmlite", "jax", "jaxlib")


def describe_machine() -> dict[str, Any]:
    """Processor, CPUs this process may use, threads that it uses, Python, abstim and the libraries that decide its
    speed."""
    from abstim import __version__

    return {
        "processor": processor_name(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "threads": default_threads(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "abstim": __version__,
    } | {name: metadata.version(name) for name in LIBRARIES}


def processor_name() -> str:
    """As the kernel calls it; the architecture where it does not say."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = (line.partition(":")[2].strip() for line in file if line.startswith("model name"))
            return next(names, platform.machine())
    except OSError:
        return platform.processor() or platform.machine()


def yardstick_seconds() -> float:
    """Time of a fixed piece of work that is none of abstim's: how fast the machine is just now.

    Interpreted code, a sort and a pass over memory, about 30 ms together; the fastest of three.
    """
    import numpy as np

    values = np.random.default_rng(0).random(200_000)

    def work() -> float:
        started = perf_counter()
        table: dict[int, int] = {}
        for number in range(60_000):
            table[number % 977] = table.get(number % 977, 0) + number
        np.cumsum(np.sort(values)).sum()
        return perf_counter() - started

    return min(work() for _ in range(3))


@contextmanager
def so_many_threads(count: int) -> Iterator[None]:
    """As if ABSTIM_THREADS were `count`. Raises InputError if that is no number of threads."""
    before = os.environ.get("ABSTIM_THREADS")
    os.environ["ABSTIM_THREADS"] = str(count)
    try:
        default_threads()
        yield
    finally:
        if before is None:
            del os.environ["ABSTIM_THREADS"]
        else:
            os.environ["ABSTIM_THREADS"] = before
