"""Sampling whole launches of a program: a cheap profile, a method's choice, and those launches in detail.

Where every trace provably depends on shapes alone (`workloads.dependence`), the profile executes a few thread blocks of
one launch a shape, and nothing else is executed but the launches chosen. Elsewhere all launches are executed in order.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

import numpy as np
from jaxtyping import Int64

from abstim.config import Gpu
from abstim.progress import Progress, silent
from abstim.sampled.features import kinds_of, launch_counts
from abstim.streamed import LaunchTimer, overlapped
from abstim.workload import default_budget
from abstim.workloads.dependence import signatures, trace_inputs
from abstim.workloads.streamed import execute_launch
from functional.case import Case
from functional.executor import default_executor
from sampling import Estimate, Profile, Selection, Stem
from sampling.baselines import RandomUnits
from sampling.pka import Pks, features
from sampling.sieve import Sieve

if TYPE_CHECKING:
    from functional.launch import Launch
    from functional.program import Program
    from functional.trace import Trace

PROFILED_BLOCKS = 16  # thread blocks a shape
METHODS: dict[str, Callable[[], Method]] = {
    "stem": Stem,
    "stem_ratio": partial(Stem, ratio=True),
    "stem_shape": partial(Stem, by_shape=True),
    "sieve": Sieve,
    "pks": Pks,
    "random": RandomUnits,
}


class Method(Protocol):
    """What chooses launches."""

    def select(self, profile: Profile) -> Selection:
        """Launches to simulate."""
        ...


@dataclass(frozen=True, eq=False, kw_only=True)
class LaunchProfile:
    """What is known of a program's launches before any is timed. `shapes`: equal where traces are provably equal up to
    where buffers lie; None where that is not known, and everything was executed."""

    profile: Profile
    shapes: Int64[np.ndarray, " launch"] | None
    executed_fraction: float  # of the thread blocks
    seconds: float


@dataclass(frozen=True, eq=False, kw_only=True)
class LaunchSample:
    """A sampled program: the estimate in cycles, the launches chosen with their cycles, and wall-clock seconds."""

    estimate: Estimate
    selection: Selection
    cycles: Int64[np.ndarray, " sample"]
    profile_seconds: float
    detail_seconds: float


def profile(case: Case, gpu: Gpu, progress: Progress = silent) -> LaunchProfile:
    """Counts of every launch. `cycles` are no measurement: warp instructions over the SMs that a grid can use."""
    started = perf_counter()
    keys = signatures(case)
    number_of: dict[object, int] = {}
    shapes = None if keys is None else np.array([number_of.setdefault(key, len(number_of)) for key in keys])
    executor, memory = default_executor(), case.memory.copy()
    rows: list[dict[str, float]] = []
    kernels: dict[str, tuple[int, bool]] = {}
    columns = np.zeros((len(case.launches), 3), np.int64)
    executed = 0
    for number, launch in enumerate(case.launches):
        progress(f"profile {case.name}", number, len(case.launches))
        program = launch.program
        if program.name not in kernels:
            kernels[program.name] = len(kernels), shapes is None or _irregular(program)
        kernel, irregular = kernels[program.name]
        columns[number] = kernel, launch.thread_blocks, launch.threads_per_block
        if shapes is None or shapes[number] == len(rows):
            some = launch.thread_blocks if irregular else PROFILED_BLOCKS
            rows.append(
                _counts(launch, partial(execute_launch, executor, launch, memory, default_budget(launch)), some)
            )
            executed += min(launch.thread_blocks, some)
    found = _profile(rows, np.arange(len(rows)) if shapes is None else shapes, columns, gpu)
    share = executed / int(columns[:, 1].sum())
    return LaunchProfile(profile=found, shapes=shapes, executed_fraction=share, seconds=perf_counter() - started)


def _irregular(program: Program) -> bool:
    """May thread blocks of one launch do different amounts of work, because data decide?"""
    inputs = trace_inputs(program)
    return inputs is None or bool(inputs.contents)


def _counts(launch: Launch, run: Callable[[Sequence[int]], Trace], some: int) -> dict[str, float]:
    """A launch's counts from `some` thread blocks: the first and the last as they are, those between by their mean."""
    blocks, program = launch.thread_blocks, launch.program
    kinds = kinds_of(program)
    if blocks <= some:
        return launch_counts(program, run(range(blocks)), kinds)
    between = np.unique(np.linspace(1, blocks - 2, some - 2).astype(np.int64))
    ends = launch_counts(program, run([0, blocks - 1]), kinds)
    inner = launch_counts(program, run(between.tolist()), kinds)
    share = (blocks - 2) / len(between)
    return {name: inner[name] if name == "divergence_efficiency" else ends[name] + share * inner[name] for name in ends}


def _profile(
    rows: list[dict[str, float]],
    each: Int64[np.ndarray, " launch"],
    columns: Int64[np.ndarray, "launch 3"],
    gpu: Gpu,
) -> Profile:
    counts = {name: np.array([row[name] for row in rows])[each] for name in rows[0]}
    instructions = counts["instructions"]
    return Profile(
        instructions=instructions,
        kernels=columns[:, 0],
        thread_instructions=instructions * counts["divergence_efficiency"],
        thread_blocks=columns[:, 1],
        threads_per_block=columns[:, 2],
        features=features(counts),
        cycles=instructions / np.minimum(columns[:, 1], gpu.spec.sm_count),
    )


def sample(case: Case, gpu: Gpu, known: LaunchProfile, method: Method, progress: Progress = silent) -> LaunchSample:
    """Simulate what a method chooses, with empty caches before each launch."""
    started = perf_counter()
    selection = method.select(known.profile)
    timer, cycles = LaunchTimer(case, [gpu]), np.zeros(len(selection.units), np.int64)
    jobs = _jobs(case, selection.units, known.shapes is not None, timer, gpu)
    for place, (result,) in enumerate(overlapped(timer, jobs, os.cpu_count() or 1)):
        progress(f"simulate {case.name}", place, len(cycles))
        cycles[place] = result.cycles
    estimate = selection.estimate(cycles.tolist())
    return LaunchSample(
        estimate=estimate, selection=selection, cycles=cycles, profile_seconds=known.seconds,
        detail_seconds=perf_counter() - started,
    )  # fmt: skip


def _jobs(
    case: Case, units: Int64[np.ndarray, " sample"], alone: bool, timer: LaunchTimer, gpu: Gpu
) -> Iterator[tuple[int, Launch, Trace, str]]:
    """The chosen launches, executed: `alone`, or after all that come before them."""
    executor, memory, chosen = default_executor(), case.memory.copy(), set(units.tolist())
    for number in units.tolist() if alone else range(int(units.max()) + 1):
        launch = case.launches[number]
        trace = execute_launch(executor, launch, memory, default_budget(launch))
        if number in chosen:
            timer.inputs(launch, trace, gpu)
            yield number, launch, trace, "all"
