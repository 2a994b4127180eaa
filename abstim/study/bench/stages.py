"""Each stage with a stopwatch.

A stage is repeated within a round until it has taken `MIN_SECONDS`; the fastest repetition is the round's figure.
Rounds go over all benchmarks, so that those of one benchmark lie far enough apart to show the machine's other work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

from abstim.gpu.config import Gpu, load_gpu
from abstim.progress import Progress, silent
from abstim.study.bench.machine import yardstick_seconds
from abstim.study.bench.rate import STAGES, BenchResult, Rate
from functional.errors import InputError

if TYPE_CHECKING:
    from abstim.study.bench.against import Reference
    from abstim.target.execution import Workload

MIN_SECONDS = 0.2
MOST_ROUNDS = 1000


def bench(
    names: Sequence[str],
    stages: Sequence[str] = STAGES,
    gpu: Gpu | None = None,
    points: int = 1,
    rounds: int = 1,
    reference: Reference | None = None,
    progress: Progress = silent,
) -> BenchResult:
    """Measure the stages on suite benchmarks. `time` runs on `points` design points in one call (`design_points`).

    Raises InputError for an unknown benchmark or stage. Uses the trace cache unless `execute` itself is measured.
    With `reference` every benchmark is also timed on its variants.
    """
    from abstim.study.bench.against import against
    from abstim.target.execution import execute
    from abstim.target.resolve import open_target

    for stage in stages:
        if stage not in STAGES:
            raise InputError(f"no stage {stage!r}; there are {', '.join(STAGES)}")
    if not 1 <= rounds <= MOST_ROUNDS:
        raise InputError(f"rounds = {rounds} is not a whole number from 1 to {MOST_ROUNDS}")
    gpu = gpu or load_gpu("gtx480")
    gpus, found = design_points(gpu, points), BenchResult(gpu.name, points, {})
    workloads: dict[str, Workload] = {}
    for number in range(rounds):
        yardsticks = []
        for place, name in enumerate(names):
            progress(f"bench {name}", number * len(names) + place, len(names) * rounds)
            workload = workloads.get(name) or workloads.setdefault(name, execute(open_target(name)))
            yardsticks.append(yardstick_seconds())
            rates = {stage: _MEASURE[stage](workload, gpus) for stage in stages}
            earlier = found.rates.get(name)
            found.rates[name] = {s: earlier[s].merged(r) for s, r in rates.items()} if earlier else rates
        found.yardstick_seconds.append(median(yardsticks))
    if reference is not None:
        found.against.extend(against(reference, workloads, found.rates, rounds, progress))
    return found


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


def _rate(workload: Workload, run: Callable[[], Any], points: int = 1) -> tuple[Rate, Any]:
    """One round of a stage that walks every instruction it stands for, and its last result."""
    traces = workload.execution.traces
    threads = points * sum(int(t.thread_instructions.sum()) for t in traces)
    warps = points * sum(int(t.warp_instructions.sum()) for t in traces)
    seconds, first_seconds, result = _repeat(run)
    return Rate((seconds,), first_seconds, threads, warps, threads, warps), result


def _parse(workload: Workload, gpus: Sequence[Gpu]) -> Rate:
    from functional.link import link
    from functional.parser import parse

    case = workload.case
    kernels = {launch.program.name for launch in case.launches}

    def run() -> None:
        module = parse(case.module.path)
        for kernel in kernels:
            link(module, kernel)

    return _rate(workload, run)[0]


def _characterize(workload: Workload, gpus: Sequence[Gpu]) -> Rate:
    from precharacterize import characterize

    programs = {launch.program.name: launch.program for launch in workload.case.launches}
    return _rate(workload, lambda: [characterize(p, gpus[0].pipeline) for p in programs.values()])[0]


def _execute(workload: Workload, gpus: Sequence[Gpu]) -> Rate:
    from abstim.target.execution import execute_case
    from functional.default_executor import default_executor

    return _rate(workload, lambda: execute_case(workload.case, default_executor()))[0]


def _time(workload: Workload, gpus: Sequence[Gpu]) -> Rate:
    return time_stage(workload, gpus)[0]


def time_stage(workload: Workload, gpus: Sequence[Gpu]) -> tuple[Rate, list[list[Any]]]:
    """One round of timing every launch on every GPU, and the engine's results, `[launch][gpu]`."""
    from abstim.session.run import engine_results

    rate, results = _rate(workload, lambda: engine_results(workload, gpus), len(gpus))
    threads, warps = (
        sum(
            _stepped(r, kind, trace)
            for trace, launch in zip(workload.execution.traces, results, strict=True)
            for r in launch
        )
        for kind in ("thread_instructions", "warp_instructions")
    )
    return replace(rate, stepped_thread_instructions=threads, stepped_warp_instructions=warps), results


def _stepped(result: Any, kind: str, trace: Any) -> int:
    """Instructions the engine walked for a result; all of the trace's if it does not say."""
    return result.counters.get(f"stepped_{kind}", int(getattr(trace, kind).sum()))


_MEASURE = {"parse": _parse, "characterize": _characterize, "execute": _execute, "time": _time}
