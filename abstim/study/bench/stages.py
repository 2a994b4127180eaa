"""Each stage with a stopwatch.

A stage is repeated within a round until it has taken `MIN_SECONDS`; the fastest repetition is the round's figure.
Rounds go over all benchmarks, so that those of one benchmark lie far enough apart to show the machine's other work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any

from abstim.gpu.config import Gpu
from abstim.progress import silent
from abstim.study.bench.rate import Rate

if TYPE_CHECKING:
    from abstim.session.session import Session

MIN_SECONDS = 0.2


def _repeat(run: Callable[[], Any]) -> tuple[float, float, float, Any]:
    """(fastest, least of the processor's, first) seconds and the last result of a function called for at least
    MIN_SECONDS."""
    times: list[float] = []
    cpu_times: list[float] = []
    while sum(times[1:]) < MIN_SECONDS:
        started, cpu_started = perf_counter(), process_time()
        result = run()
        times.append(perf_counter() - started)
        cpu_times.append(process_time() - cpu_started)
        if times[0] > 10 * MIN_SECONDS and len(times) > 1:
            break
    return min(times), min(cpu_times), times[0], result


def _rate(session: Session, run: Callable[[], Any], points: int = 1) -> tuple[Rate, Any]:
    """One round of a stage that walks every instruction it stands for, and its last result."""
    traces = list(session.traces.in_order())
    threads = points * sum(int(t.thread_instructions.sum()) for t in traces)
    warps = points * sum(int(t.warp_instructions.sum()) for t in traces)
    seconds, cpu_seconds, first_seconds, result = _repeat(run)
    return Rate((seconds,), (cpu_seconds,), first_seconds, threads, warps, threads, warps), result


def _parse(session: Session, gpus: Sequence[Gpu]) -> Rate:
    from functional.programs.link import link
    from functional.ptx.parser import parse

    case = session.case
    kernels = {launch.program.name for launch in case.launches}

    def run() -> None:
        module = parse(case.module.path)
        for kernel in kernels:
            link(module, kernel)

    return _rate(session, run)[0]


def _characterize(session: Session, gpus: Sequence[Gpu]) -> Rate:
    from precharacterize import characterize

    programs = {launch.program.name: launch.program for launch in session.case.launches}
    return _rate(session, lambda: [characterize(p, gpus[0].pipeline) for p in programs.values()])[0]


def _execute(session: Session, gpus: Sequence[Gpu]) -> Rate:
    from abstim.targets.execution import execute_case
    from functional.execution.default_executor import default_executor

    return _rate(session, lambda: execute_case(session.case, default_executor()))[0]


def _time(session: Session, gpus: Sequence[Gpu]) -> Rate:
    return time_stage(session, gpus)[0]


def time_stage(session: Session, gpus: Sequence[Gpu]) -> tuple[Rate, list[list[Any]]]:
    """One round of timing every launch on every GPU, and the engine's results, `[launch][gpu]`."""
    from abstim.session.detailed import engine_results

    rate, results = _rate(session, lambda: engine_results(session, gpus), len(gpus))
    threads, warps = (
        sum(
            _stepped(r, kind, trace)
            for trace, launch in zip(session.traces.in_order(), results, strict=True)
            for r in launch
        )
        for kind in ("thread_instructions", "warp_instructions")
    )
    return replace(rate, stepped_thread_instructions=threads, stepped_warp_instructions=warps), results


def _stepped(result: Any, kind: str, trace: Any) -> int:
    """Instructions the engine walked for a result; all of the trace's if it does not say."""
    return result.counters.get(f"stepped_{kind}", int(getattr(trace, kind).sum()))


def time_by(model: str) -> Callable[[Session, Sequence[Gpu]], Rate]:
    """The stage `time` of a model. Raises InputError for a name that is none."""
    from abstim.models import DETAILED, model_named

    if model == DETAILED:
        return _time
    chosen = model_named(model)

    def measured(session: Session, gpus: Sequence[Gpu]) -> Rate:
        rate, results = _rate(session, lambda: chosen.time(session, gpus, "all", silent), len(gpus))
        threads, warps = (
            sum(_stepped_fraction(row) * getattr(row, kind) for result in results for row in result.launches)
            for kind in ("thread_instructions", "warp_instructions")
        )
        return replace(rate, stepped_thread_instructions=round(threads), stepped_warp_instructions=round(warps))

    return measured


def _stepped_fraction(row: Any) -> float:
    """Of a launch's instructions, those that were walked: none by a formula."""
    return getattr(row, "stepped_fraction", 0.0)


MEASURE = {"parse": _parse, "characterize": _characterize, "execute": _execute, "time": _time}
