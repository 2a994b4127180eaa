"""Rounds over benchmarks and stages: far enough apart in time to show the machine's other work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from statistics import median
from typing import Any

from abstim.gpu.config import Gpu, load_gpu
from abstim.models import DETAILED
from abstim.progress import Progress, silent
from abstim.session.session import Session, open_session
from abstim.study.bench.against import Reference, against
from abstim.study.bench.host import so_many_threads, yardstick_seconds
from abstim.study.bench.rate import STAGES, BenchResult
from abstim.study.bench.stages import MEASURE, time_by
from functional.errors import InputError

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

    if reference is not None and model != DETAILED:
        raise InputError("the comparison with the reference is of the detailed model; leave --model out")
    measure = MEASURE | {"time": time_by(model)}
    for stage in stages:
        if stage not in STAGES:
            raise InputError(f"no stage {stage!r}; there are {', '.join(STAGES)}")
    if not 1 <= rounds <= MOST_ROUNDS:
        raise InputError(f"rounds = {rounds} is not a whole number from 1 to {MOST_ROUNDS}")
    gpu = gpu or load_gpu("gtx480")
    gpus, found = (
        design_points(gpu, points),
        BenchResult(gpu.name, points, {}, model=model, memory_model=gpu.memory_model),
    )
    sessions: dict[str, Session] = {}
    for number in range(rounds):
        yardsticks = []
        for place, name in enumerate(names):
            progress(f"bench {name}", number * len(names) + place, len(names) * rounds)
            session = sessions.get(name) or sessions.setdefault(name, open_session(name))
            yardsticks.append(yardstick_seconds())
            rates = {stage: measure[stage](session, gpus) for stage in stages}
            earlier = found.rates.get(name)
            found.rates[name] = {s: earlier[s].merged(r) for s, r in rates.items()} if earlier else rates
            for count in threads:
                with so_many_threads(count):
                    rate = measure["time"](session, gpus)
                of_count = found.scaling.setdefault(count, {})
                of_count[name] = of_count[name].merged(rate) if name in of_count else rate
        found.yardstick_seconds.append(median(yardsticks))
    if reference is not None:
        found.against.extend(against(reference, sessions, found.rates, rounds, progress))
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
