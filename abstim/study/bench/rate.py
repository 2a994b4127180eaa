"""The results of a benchmark of abstim, and the machine it ran on: plain data, `to_json` is the contract of
`abstim bench --json`."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from statistics import geometric_mean, median
from time import perf_counter
from typing import Any

import numpy as np

from abstim import __version__
from functional.execution.computer import default_threads

LIBRARIES = ("numpy", "llvmlite", "jax", "jaxlib")


def describe_machine() -> dict[str, Any]:
    """Processor, CPUs this process may use, threads that it uses, Python, abstim and the libraries that decide its
    speed."""
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
    values = np.random.default_rng(0).random(200_000)

    def work() -> float:
        started = perf_counter()
        table: dict[int, int] = {}
        for number in range(60_000):
            table[number % 977] = table.get(number % 977, 0) + number
        np.cumsum(np.sort(values)).sum()
        return perf_counter() - started

    return min(work() for _ in range(3))


STAGES = ("parse", "characterize", "execute", "time")
FIGURES = ("thread_mips", "warp_mips", "stepped_thread_mips", "stepped_warp_mips")


@dataclass(frozen=True, slots=True)
class Rate:
    """One stage of one benchmark. Instructions are dynamic ones of all launches, times the design points in `time`.

    A *represented* instruction is one the result stands for, on every design point; a *stepped* one is one the stage
    really walked: it may treat equal SMs, launches or points once. Both are reported, never mixed.
    """

    round_seconds: tuple[float, ...]  # the fastest repetition of each round
    round_cpu_seconds: tuple[float, ...]  # processor time, of all threads: the least of a repetition of each round
    first_seconds: float  # the very first repetition, compilers and caches included
    thread_instructions: int
    warp_instructions: int
    stepped_thread_instructions: int
    stepped_warp_instructions: int

    @property
    def seconds(self) -> float:
        """Median over the rounds."""
        return median(self.round_seconds)

    @property
    def cpu_seconds(self) -> float:
        """Processor time, median over the rounds."""
        return median(self.round_cpu_seconds)

    @property
    def mad_seconds(self) -> float:
        """Median absolute deviation of the rounds."""
        return mad(self.round_seconds)

    @property
    def mips(self) -> dict[str, float]:
        """Millions of instructions a second, by FIGURES."""
        return {f: getattr(self, f.replace("mips", "instructions")) / self.seconds / 1e6 for f in FIGURES}

    def merged(self, later: Rate) -> Rate:
        """The same work, measured again."""
        return replace(
            self,
            round_seconds=self.round_seconds + later.round_seconds,
            round_cpu_seconds=self.round_cpu_seconds + later.round_cpu_seconds,
        )

    def to_json(self) -> dict[str, Any]:
        """Figures and rates."""
        found = {name: getattr(self, name) for name in ("seconds", "cpu_seconds", "mad_seconds")}
        return asdict(self) | found | self.mips


@dataclass(frozen=True, slots=True)
class Against:
    """A benchmark on a variant of the reference's GPU: how exact and how fast abstim is beside the reference.

    `seconds` is what executing and timing take; parsing and characterising, done once a kernel, are in `all_seconds`.
    """

    benchmark: str
    group: str
    variant: str
    predicted_cycles: int
    measured_cycles: int
    thread_instructions: int
    seconds: float
    all_seconds: float
    reference_seconds: float

    @property
    def error(self) -> float:
        """Signed, as a fraction of the measured cycles."""
        return self.predicted_cycles / self.measured_cycles - 1

    @property
    def speedup(self) -> float:
        """The reference's processor time over abstim's."""
        return self.reference_seconds / self.seconds

    @property
    def thread_mips(self) -> float:
        """Thread instructions executed and timed, in millions a second."""
        return self.thread_instructions / self.seconds / 1e6

    def to_json(self) -> dict[str, Any]:
        """Everything, derived figures included."""
        return asdict(self) | {name: getattr(self, name) for name in ("error", "speedup", "thread_mips")}


@dataclass(frozen=True, slots=True)
class BenchResult:
    """Rates by benchmark and stage, and the comparison with the reference if one was asked for."""

    gpu: str
    points: int
    rates: dict[str, dict[str, Rate]]
    against: list[Against] = field(default_factory=list)
    yardstick_seconds: list[float] = field(default_factory=list)  # of each round: `machine.yardstick_seconds`
    machine: dict[str, Any] = field(default_factory=describe_machine)
    model: str = "detailed"  # of the stage `time`
    memory_model: str = ""  # of the GPU
    scaling: dict[int, dict[str, Rate]] = field(default_factory=dict)  # by threads and benchmark: the stage `time`

    def stages(self) -> list[str]:
        """Those that were measured, in order."""
        return [stage for stage in STAGES if any(stage in found for found in self.rates.values())]

    def geomean(self, stage: str, figure: str) -> float | None:
        """Geometric mean of a rate over the benchmarks that have the stage."""
        return geomean([stages[stage].mips[figure] for stages in self.rates.values() if stage in stages])

    def scaled(self, threads: int) -> float | None:
        """How much faster the stage `time` is on so many threads than on the first number of them that was measured:
        geometric mean over the benchmarks."""
        first = next(iter(self.scaling.values()))
        return geomean([first[name].seconds / rate.seconds for name, rate in self.scaling[threads].items()])

    def to_json(self) -> dict[str, Any]:
        """Everything, as what `json.dumps` takes."""
        return {
            "kind": "bench",
            "machine": self.machine,
            "gpu": self.gpu,
            "memory_model": self.memory_model,
            "points": self.points,
            "model": self.model,
            "yardstick_seconds": self.yardstick_seconds,
            "benchmarks": {n: {s: r.to_json() for s, r in found.items()} for n, found in self.rates.items()},
            "geomean": {s: {figure: self.geomean(s, figure) for figure in FIGURES} for s in self.stages()},
            "against": [row.to_json() for row in self.against],
            "scaling": [
                {"threads": threads, "speedup": self.scaled(threads)}
                | {"benchmarks": {name: rate.to_json() for name, rate in rates.items()}}
                for threads, rates in self.scaling.items()
            ],
        }


def geomean(values: Sequence[float]) -> float | None:
    """Geometric mean; None without values, or if one is not positive."""
    return geometric_mean(values) if values and min(values) > 0 else None


def mad(values: Sequence[float]) -> float:
    """Median absolute deviation."""
    middle = median(values)
    return median(abs(value - middle) for value in values)
