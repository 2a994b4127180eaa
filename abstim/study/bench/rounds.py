"""Each stage with a stopwatch, in rounds over all benchmarks.

A stage is repeated within a round until it has taken `MIN_SECONDS`; the fastest repetition is the round's figure.
Rounds go over all benchmarks, so that those of one benchmark lie far enough apart to show the machine's other work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

from abstim.gpu.config import Gpu, load_gpu
from abstim.models import DETAILED, model_named
from abstim.progress import Progress, silent
from abstim.session.detailed import engine_results
from abstim.session.session import Session, open_session
from abstim.study.bench.rate import STAGES, Against, BenchResult, Rate, yardstick_seconds
from abstim.study.validate import Measured, known_variants, read_reference, select
from abstim.targets.execution import execute_case
from functional.errors import InputError
from functional.execution.computer import so_many_threads
from functional.files import number_in, table_rows
from functional.programs.link import link
from functional.ptx.parser import parse
from precharacterize import characterize

MIN_SECONDS = 0.2


def _rate(session: Session, run: Callable[[], Any], points: int = 1) -> tuple[Rate, Any]:
    """One round of a stage that walks every instruction it stands for, called for at least MIN_SECONDS, and its last
    result."""
    times, cpu_times = list[float](), list[float]()
    while sum(times[1:]) < MIN_SECONDS:
        started, cpu_started = perf_counter(), process_time()
        result = run()
        times.append(perf_counter() - started)
        cpu_times.append(process_time() - cpu_started)
        if times[0] > 10 * MIN_SECONDS and len(times) > 1:
            break
    traces = list(session.traces.in_order())
    threads, warps = (points * sum(int(getattr(trace, kind).sum()) for trace in traces) for kind in _KINDS)
    return Rate((min(times),), (min(cpu_times),), times[0], threads, warps, threads, warps), result


def stage_rate(stage: str, session: Session, gpus: Sequence[Gpu], model: str) -> Rate:
    """One round of a stage."""
    from functional.execution.default_executor import default_executor

    case, programs = session.case, {launch.program.name: launch.program for launch in session.case.launches}

    def parsed() -> None:
        module = parse(case.module.path)
        for kernel in programs:
            link(module, kernel)

    before: dict[str, Callable[[], Any]] = {
        "parse": parsed,
        "characterize": lambda: [characterize(program, gpus[0].pipeline) for program in programs.values()],
        "execute": lambda: execute_case(case, default_executor()),
    }
    return (_rate(session, before[stage]) if stage in before else time_stage(session, gpus, model))[0]


_KINDS = ("thread_instructions", "warp_instructions")


def time_stage(session: Session, gpus: Sequence[Gpu], model: str = DETAILED) -> tuple[Rate, list[int]]:
    """One round of timing every launch on every GPU, and cycles of all launches by GPU."""
    if model == DETAILED:
        rate, results = _rate(session, lambda: engine_results(session, gpus), len(gpus))
        launches = zip(session.traces.in_order(), results, strict=True)
        cycles = [sum(of_gpu.cycles for of_gpu in column) for column in zip(*results, strict=True)]
        stepped = [  # all of the trace's where the engine does not say
            [result.counters.get(f"stepped_{kind}", int(getattr(trace, kind).sum())) for kind in _KINDS]
            for trace, launch in launches
            for result in launch
        ]
    else:
        rate, results = _rate(session, lambda: model_named(model).time(session, gpus, "all", silent), len(gpus))
        cycles = [sum(row.cycles for row in result.launches) for result in results]
        rows = [row for result in results for row in result.launches]
        stepped = [[getattr(row, "stepped_fraction", 0.0) * getattr(row, kind) for kind in _KINDS] for row in rows]
    threads, warps = (round(sum(column)) for column in zip(*stepped, strict=True))
    return replace(rate, stepped_thread_instructions=threads, stepped_warp_instructions=warps), cycles


SECONDS_COLUMN = "reference_cpu_s"
VARIANTS = ("GTX480_a", "GTX480_b", "GTX480_c", "GTX480_d")  # of Figures 4 and 6: perfect and real memory


@dataclass(frozen=True)
class Reference:
    """Measured cycles, and the reference's processor time by (benchmark, variant), summed over the launches."""

    measured: list[Measured]
    seconds: dict[tuple[str, str], float]


def read_rows(path: Path, variants: Sequence[str], benchmarks: Sequence[str]) -> Reference:
    """The rows of a table that are to be compared. Raises InputError as `read_reference` does, and without seconds."""
    chosen, _ = select(read_reference(path), variants or VARIANTS, (), ())
    chosen = [entry for entry in chosen if entry.benchmark in benchmarks]
    if not chosen:
        raise InputError(f"{path}: has none of the benchmarks to be measured")
    seconds: dict[tuple[str, str], float] = {}
    for where, row in table_rows(path):
        if row.get("flush") in (None, "", "all"):
            key = (row["benchmark"], row["variant"])
            seconds[key] = seconds.get(key, 0.0) + number_in(where, row, SECONDS_COLUMN)
    return Reference(chosen, seconds)


def against(
    reference: Reference,
    sessions: Mapping[str, Session],
    rates: Mapping[str, Mapping[str, Rate]],
    rounds: int,
    model: str,
    progress: Progress,
) -> Iterator[Against]:
    """Every benchmark on every variant. Raises InputError for a stage not measured, or a launch not in the table."""
    gpus = known_variants()
    for number, entry in enumerate(reference.measured):
        progress(f"bench {entry.benchmark} on {entry.variant}", number, len(reference.measured))
        session, stages = sessions[entry.benchmark], rates[entry.benchmark]
        if missing := [stage for stage in STAGES if stage not in stages]:
            raise InputError(f"a comparison with the reference needs every stage; not measured: {', '.join(missing)}")
        if sorted(entry.cycles) != list(range(len(session.case.launches))):
            raise InputError(f"the table does not have every launch of {entry.benchmark} on {entry.variant}")
        timed = [time_stage(session, [gpus[entry.variant]], model) for _ in range(rounds)]
        rate, (cycles,) = timed[0]
        seconds = stages["execute"].seconds + median(each.seconds for each, _ in timed)
        yield Against(
            entry.benchmark,
            entry.group,
            entry.variant,
            predicted_cycles=cycles,
            measured_cycles=sum(entry.cycles.values()),
            thread_instructions=rate.thread_instructions,
            seconds=seconds,
            all_seconds=seconds + stages["parse"].seconds + stages["characterize"].seconds,
            reference_seconds=reference.seconds[entry.benchmark, entry.variant],
        )


MOST_ROUNDS = 1000


def bench(
    names: Sequence[str],
    stages: Sequence[str] = STAGES,
    gpu: Gpu | None = None,
    points: int = 1,
    rounds: int = 1,
    reference: Reference | None = None,
    progress: Progress = silent,
    model: str = DETAILED,
    threads: Sequence[int] = (),
) -> BenchResult:
    """Measure the stages on suite benchmarks. `time` runs on `points` design points in one call (`design_points`), and
    once more on each number of `threads`.

    Raises InputError for an unknown benchmark or stage. Uses the trace cache unless `execute` itself is measured.
    With `reference` every benchmark is also timed on its variants.
    """
    _check(stages, rounds, model)
    gpu = gpu or load_gpu("gtx480")
    gpus = design_points(gpu, points)
    found = BenchResult(gpu.name, points, {}, model=model, memory_model=gpu.memory_model)
    sessions: dict[str, Session] = {}
    for number in range(rounds):
        yardsticks = []
        for place, name in enumerate(names):
            progress(f"bench {name}", number * len(names) + place, len(names) * rounds)
            session = sessions.get(name) or sessions.setdefault(name, open_session(name))
            yardsticks.append(yardstick_seconds())
            rates = {stage: stage_rate(stage, session, gpus, model) for stage in stages}
            earlier = found.rates.get(name)
            found.rates[name] = {s: earlier[s].merged(r) for s, r in rates.items()} if earlier else rates
            for count in threads:
                with so_many_threads(count):
                    rate = stage_rate("time", session, gpus, model)
                of_count = found.scaling.setdefault(count, {})
                of_count[name] = of_count[name].merged(rate) if name in of_count else rate
        found.yardstick_seconds.append(median(yardsticks))
    if reference is not None:
        found.against.extend(against(reference, sessions, found.rates, rounds, model, progress))
    return found


def _check(stages: Sequence[str], rounds: int, model: str) -> None:
    """Raises InputError for what `bench` does not measure."""
    model_named(model)
    for stage in stages:
        if stage not in STAGES:
            raise InputError(f"no stage {stage!r}; there are {', '.join(STAGES)}")
    if not 1 <= rounds <= MOST_ROUNDS:
        raise InputError(f"rounds = {rounds} is not a whole number from 1 to {MOST_ROUNDS}")


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
        changed: dict[str, Any] = dict(zip(reversed(choices), values, strict=True))
        found[replace(gpu, spec=replace(gpu.spec, **changed))] = None
    return list(found)
