"""How fast each stage is, in million instructions a second.

A *represented* instruction is one the result stands for, on every design point; a *stepped* one is one the engine
really walked: it may simulate equal SMs, launches or points once. Both are reported, never mixed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from time import perf_counter
from typing import TYPE_CHECKING, Any

from abstim.config import Gpu, load_gpu
from abstim.progress import Progress, silent
from functional.errors import InputError

if TYPE_CHECKING:
    from abstim.workload import Workload

STAGES = ("parse", "characterize", "execute", "time")
MIN_SECONDS = 0.2  # a stage is repeated until it has taken so long; the fastest repetition counts


@dataclass(frozen=True, slots=True)
class Rate:
    """One stage of one benchmark. Instructions are dynamic ones of all launches, times the design points in `time`."""

    seconds: float
    thread_instructions: int
    warp_instructions: int
    stepped_warp_instructions: int
    first_seconds: float  # the first repetition, compilers and caches included

    @property
    def thread_mips(self) -> float:
        """Represented thread instructions, in millions a second."""
        return self.thread_instructions / self.seconds / 1e6

    @property
    def warp_mips(self) -> float:
        """Represented warp instructions, in millions a second."""
        return self.warp_instructions / self.seconds / 1e6

    @property
    def stepped_warp_mips(self) -> float:
        """Warp instructions the stage really walked, in millions a second."""
        return self.stepped_warp_instructions / self.seconds / 1e6

    def to_json(self) -> dict[str, Any]:
        """Figures and rates."""
        rates = {name: getattr(self, name) for name in ("thread_mips", "warp_mips", "stepped_warp_mips")}
        return asdict(self) | rates


@dataclass(frozen=True, slots=True)
class BenchResult:
    """Rates by benchmark and stage."""

    gpu: str
    points: int
    backend: str
    rates: dict[str, dict[str, Rate]]
    cpus: int = field(default_factory=lambda: os.cpu_count() or 1)

    def geomean(self, stage: str, figure: str) -> float | None:
        """Geometric mean of a rate over the benchmarks that have the stage."""
        from math import exp, fsum, log

        values = [getattr(stages[stage], figure) for stages in self.rates.values() if stage in stages]
        return exp(fsum(map(log, values)) / len(values)) if values and min(values) > 0 else None

    def to_json(self) -> dict[str, Any]:
        """Everything, as what `json.dumps` takes."""
        figures = ("thread_mips", "warp_mips", "stepped_warp_mips")
        stages = dict.fromkeys(stage for found in self.rates.values() for stage in found)
        return {
            "gpu": self.gpu,
            "points": self.points,
            "backend": self.backend,
            "cpus": self.cpus,
            "benchmarks": {n: {s: r.to_json() for s, r in found.items()} for n, found in self.rates.items()},
            "geomean": {stage: {figure: self.geomean(stage, figure) for figure in figures} for stage in stages},
        }


def bench(
    names: Sequence[str],
    stages: Sequence[str] = STAGES,
    gpu: Gpu | None = None,
    points: int = 1,
    backend: str = "compiled",
    progress: Progress = silent,
) -> BenchResult:
    """Measure the stages on suite benchmarks. `time` runs on `points` design points in one call (`design_points`).

    Raises InputError for an unknown benchmark or stage. Uses the trace cache unless `execute` itself is measured.
    """
    from abstim.simulate import check_engine
    from abstim.target import open_target
    from abstim.workload import execute

    for stage in stages:
        if stage not in STAGES:
            raise InputError(f"no stage {stage!r}; there are {', '.join(STAGES)}")
    gpu, rates = gpu or load_gpu("gtx480"), {}
    gpus = design_points(gpu, points)
    check_engine(gpus, backend)
    for number, name in enumerate(names):
        progress(f"bench {name}", number, len(names))
        workload = execute(open_target(name))
        rates[name] = {stage: _MEASURE[stage](workload, gpus, backend) for stage in stages}
    return BenchResult(gpu.name, len(gpus), backend, rates)


def design_points(gpu: Gpu, count: int) -> list[Gpu]:
    """`gpu` itself, then variations of SM count, schedulers, policy and blocks an SM: up to 1,024 different points."""
    if not 1 <= count <= 1024:
        raise InputError(f"points = {count} is not a whole number from 1 to 1024")
    choices = {
        "sm_count": (15, 8, 24, 30, 12, 20, 4, 48),
        "schedulers_per_sm": (2, 1, 4, 3),
        "scheduler": ("gto", "lrr", "oldest", "two_level"),
        "max_blocks_per_sm": (8, 4, 16, 6, 12, 5, 7, 10),
    }
    found = {gpu: None}
    for values in product(*(choices[key] for key in reversed(choices))):
        if len(found) == count:
            break
        found[_varied(gpu, dict(zip(reversed(choices), values, strict=True)))] = None
    return list(found)


def _varied(gpu: Gpu, values: dict[str, Any]) -> Gpu:
    from dataclasses import replace

    return replace(gpu, spec=replace(gpu.spec, **values))


def _repeat(run: Callable[[], Any]) -> tuple[float, float, Any]:
    """(fastest, first) seconds and the last result of a function called for at least MIN_SECONDS."""
    times: list[float] = []
    while sum(times[1:]) < MIN_SECONDS:
        started = perf_counter()
        result = run()
        times.append(perf_counter() - started)
        if times[0] > 10 * MIN_SECONDS and len(times) > 1:
            break
    return min(times), times[0], result


def _rate(
    workload: Workload, run: Callable[[], Any], points: int = 1, stepped: Callable[[Any], int] | None = None
) -> Rate:
    traces = workload.execution.traces
    threads = points * sum(int(t.thread_instructions.sum()) for t in traces)
    warps = points * sum(int(t.warp_instructions.sum()) for t in traces)
    seconds, first_seconds, result = _repeat(run)
    return Rate(seconds, threads, warps, stepped(result) if stepped else warps, first_seconds)


def _parse(workload: Workload, gpus: Sequence[Gpu], backend: str) -> Rate:
    from functional.link import link
    from functional.parser import parse

    case = workload.case
    kernels = {launch.program.name for launch in case.launches}

    def run() -> None:
        module = parse(case.module.path)
        for kernel in kernels:
            link(module, kernel)

    return _rate(workload, run)


def _characterize(workload: Workload, gpus: Sequence[Gpu], backend: str) -> Rate:
    from precharacterize import characterize

    programs = {launch.program.name: launch.program for launch in workload.case.launches}
    return _rate(workload, lambda: [characterize(p, gpus[0].pipeline) for p in programs.values()])


def _execute(workload: Workload, gpus: Sequence[Gpu], backend: str) -> Rate:
    from abstim.workload import execute_case
    from functional.executor import default_executor

    return _rate(workload, lambda: execute_case(workload.case, default_executor()))


def _time(workload: Workload, gpus: Sequence[Gpu], backend: str) -> Rate:
    from abstim.simulate import engine_results

    def stepped(results: list[list[Any]]) -> int:
        return sum(_stepped(r, trace) for trace, launch in zip(traces, results, strict=True) for r in launch)

    traces = workload.execution.traces
    return _rate(workload, lambda: engine_results(workload, gpus, backend), len(gpus), stepped)


def _stepped(result: Any, trace: Any) -> int:
    """Warp instructions the engine walked for a result; all of the trace's if it does not say."""
    return result.counters.get("stepped_warp_instructions", int(trace.warp_instructions.sum()))


_MEASURE = {"parse": _parse, "characterize": _characterize, "execute": _execute, "time": _time}
