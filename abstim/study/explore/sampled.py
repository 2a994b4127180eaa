"""A sweep from a sample: launches chosen once, pairs of a launch and a design point timed.

Launches are chosen, and all pairs of one of them and a point known roughly, by a formula, before anything is timed. Of
all pairs, those on the GPU that is varied included, as many are timed as the error takes, and the others are read off
between them (`sampling.auto.interpolation`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from abstim.gpu.config import Gpu
from abstim.progress import Progress, silent
from abstim.study.explore.interpolated import (
    FORMULA_SECONDS,
    INSTRUCTION_SECONDS,
    LAUNCH_SECONDS,
    LINE_SECONDS,
    SUMMARY_SECONDS,
    WORTH,
    MakeTimer,
    ReadPoints,
    TimedPairs,
)
from abstim.study.explore.points import Points
from abstim.study.explore.search import columns_at
from abstim.study.sample.automatic import Aim, check_turn, work_on
from abstim.study.sample.profiling import SomeBlocks, of_each_kind
from abstim.study.sample.sampled_program import SampledProgram
from abstim.study.sample.sampler import opened
from abstim.targets.resolve import Target, open_target
from functional.arrays import Bool, Float64, Int64
from sampling.auto.interpolation import Pair, Pairs, all_timed, all_within, read_off
from sampling.auto.launches import LaunchSampling, ProgramWork, TimedSelection, multiples, ratio, timed_selection
from sampling.estimate import Estimate, exact
from sampling.statistics import t_quantile

# Of one core, reckoned: one unit of what simulating a launch costs; a kind of launches on one more GPU, looked at in
# four rounds
COST_SECONDS, POINT_SECONDS = 1.5e-7, 2e-3
A_WAVE = 0.2  # an e-fold of waves of thread blocks, beside limits that are shares of the time


class Roughly(NamedTuple):
    """A launch on all GPUs: `cycles`; `limits`: numbers that are alike where the same decides them."""

    cycles: Float64[np.ndarray, " gpu"]
    limits: Float64[np.ndarray, "gpu limit"]


Formula = Callable[[int], Roughly]  # of a launch, by its number


def formula_of(launches: TimedPairs, kinds: Int64[np.ndarray, " launch"]) -> Formula:
    """The analytic model; of machine code, which it does not know, nothing but the cycles on the first GPU. Launches of
    equal `kinds` have the same."""
    machine_code = any(gpu.spec.timed_code != "ptx" for gpu in launches.gpus)
    find = as_on_first if machine_code else by_formula
    found: dict[int, Roughly] = {}

    def formula(number: int) -> Roughly:
        kind = int(kinds[number])
        return found.get(kind) or found.setdefault(kind, find(launches, number))

    return formula


def by_formula(launches: TimedPairs, number: int) -> Roughly:
    """By the analytic model. Of keys that it does not know it says that they change nothing."""
    from abstim.analytic import points_of, predict
    from abstim.analytic.predictions import summary_of

    found = predict(summary_of(launches.session, number, launches.gpus[0]), points_of(launches.gpus))
    limits = found["bounds_cycles"] / found["cycles"][:, None]
    return Roughly(found["cycles"], np.column_stack([limits, waves(launches, number)]))


def as_on_first(launches: TimedPairs, number: int) -> Roughly:
    """The same on all GPUs: what the engine says of the first."""
    cycles = launches.timed([(0, number)])[0]
    return Roughly(np.full(len(launches.gpus), cycles), waves(launches, number))


def waves(launches: TimedPairs, number: int) -> Float64[np.ndarray, "gpu 2"]:
    """Of the SM that gets most thread blocks: the logarithm of how many waves of them it runs, and by how much the
    last one, which may be small, makes them more."""
    session = launches.session
    blocks = session.launch(number).thread_blocks
    most = np.ceil(blocks / np.array([gpu.spec.sm_count for gpu in launches.gpus]))
    count = most / np.minimum(most, [session.blocks_per_sm(number, gpu) for gpu in launches.gpus])
    return np.column_stack([A_WAVE * np.log(count), np.ceil(count) / count])


@dataclass(frozen=True, eq=False)
class SampledPoints(ReadPoints):
    """The same from chosen launches, whose cycles `read` holds; the target's on the GPU that is varied and on all
    points: `selections`."""

    selections: list[TimedSelection]

    @property
    def detailed(self) -> Bool[np.ndarray, " point"]:
        """Points on which every launch of the target was timed."""
        launches = sum(len(kernel.rows) for kernel in self.selections[0].kernels)
        return self.read.counts[1:] == launches

    @property
    def cycles(self) -> Float64[np.ndarray, " point"]:
        """Estimated."""
        return np.array([point.total for point in self.selections[1:]])

    @property
    def half_widths(self) -> Float64[np.ndarray, " point"]:
        """Half of each interval, relative."""
        return np.array([point.half_width / point.total for point in self.selections[1:]])

    @property
    def speed_ups(self) -> Float64[np.ndarray, "point 2"]:
        """In cycles over the GPU that is varied, and half of each interval."""
        return np.array([self.speed_up(row) for row in range(len(self.selections) - 1)]).reshape(-1, 2)

    def speed_up(self, row: int, over: int = -1) -> tuple[float, float]:
        """Cycles on a point (-1: the GPU that is varied) over those on another, and half of the interval."""
        a, b = over + 1, row + 1
        error = math.hypot(self.read.of_ratios[a], self.read.of_ratios[b]) if a != b else 0.0
        half = error and error * t_quantile(self.read.degrees, self.confidence)
        return ratio(self.selections[a], self.selections[b], half)


MORE = 0.6  # by what the aim shrinks where points miss it
ROUNDS = 3  # in which it does


@dataclass(frozen=True, eq=False)
class Selection:
    """`launches` that were chosen, in order; `works`: the target's work on each GPU, the one that is varied first.
    They were chosen with `error` for those left out."""

    launches: list[int]
    works: list[ProgramWork]
    formula: Formula
    error: float
    confidence: float

    @property
    def complete(self) -> bool:
        """Whether nothing is left to choose."""
        return len(self.launches) == len(self.works[0].kernels)

    def estimates(
        self, cycles: Float64[np.ndarray, "gpu launch"], errors: Float64[np.ndarray, " gpu"] | None = None,
        degrees: float = math.inf,
    ) -> list[TimedSelection]:  # fmt: skip
        """The target on all GPUs, from cycles of the chosen launches; `errors`: see `timed_selection`."""
        shared = np.zeros(len(self.works)) if errors is None else errors
        return [self._estimate(k, cycles[k], float(shared[k]), degrees) for k in range(len(self.works))]

    def _estimate(
        self, place: int, cycles: Float64[np.ndarray, " launch"], shared_error: float = 0.0, degrees: float = math.inf
    ) -> TimedSelection:
        """On one GPU."""
        known = zip(self.launches, cycles.tolist(), strict=True)
        return timed_selection(
            self.works[place], {number: exact("sweep", each) for number, each in known}, chosen_here=place == 0,
            shared_error=shared_error, degrees=degrees, confidence=self.confidence,
        )  # fmt: skip

    def pairs(self, features: Float64[np.ndarray, "gpu feature"], keys: Int64[np.ndarray, " feature"]) -> Pairs:
        """Of GPUs and chosen launches, as the formula has them."""
        rough = [self.formula(number) for number in self.launches]
        cycles = np.stack([each.cycles for each in rough], 1)
        base = self._estimate(0, cycles[0])
        return Pairs(
            cycles=cycles,
            limits=np.stack([each.limits for each in rough], 1),
            features=features,
            keys=keys,
            kernels=self.works[0].kernels[self.launches],
            work=self.works[0].columns[self.launches],
            multiples=multiples(base, self.launches),
            seconds=COST_SECONDS * self.works[0].cost[self.launches],
        )

    def more(self) -> Selection:
        """With more launches, as many as less error takes."""
        return chosen(self.works, self.formula, MORE * self.error, self.confidence)


def chosen(works: list[ProgramWork], formula: Formula, error: float, confidence: float) -> Selection:
    """By auto, with the formula in place of the engine, on the first GPU."""
    asked: set[int] = set()

    def measure(rows: Sequence[int]) -> list[Estimate]:
        asked.update(rows)
        return [exact("formula", float(formula(row).cycles[0])) for row in rows]

    LaunchSampling(error=error, confidence=confidence).program(works[0], measure)
    return Selection(sorted(asked), works, formula, error, confidence)


def select(works: list[ProgramWork], formula: Formula, error: float, confidence: float) -> Selection:
    """As many launches as keep half of the interval that those left out give below `error` on all GPUs, as far as the
    formula tells, but for a last round that may not be enough."""
    selection = chosen(works, formula, error, confidence)
    for _ in range(ROUNDS):
        rough = np.stack([formula(number).cycles for number in selection.launches], 1)
        halves = [of_gpu.half_width / of_gpu.total for of_gpu in selection.estimates(rough)]
        if selection.complete or max(halves) <= error:
            break
        selection = selection.more()
    return selection


def open_program(target: Target, gpu: Gpu, progress: Progress = silent) -> SampledProgram:
    """A target on the GPU that is varied. Raises InputError for one whose launches must come in turn."""
    program = opened(open_target(target), gpu, online=False, progress=progress, keep=True)
    check_turn(program)
    return program


def counted(number: int, some: SomeBlocks) -> tuple[float, float]:
    """Warp instructions of a launch, and what timing it takes, reckoned."""
    instructions = some.total(lambda trace: float(trace.warp_instructions.sum()))
    lines = some.total(lambda trace: float(len(trace.records)))
    return instructions, INSTRUCTION_SECONDS * instructions + LINE_SECONDS * lines + LAUNCH_SECONDS


# Of the half-width, squares adding up to one: what launches left out may take of it, and what is read off
OF_LAUNCHES, OF_PAIRS = 0.4, 0.9


class SampledSweep:
    """A target on `points`, of which the first is the GPU that is varied; `gpus`: they as such; `timer_of` makes a
    timer of sessions."""

    def __init__(
        self, program: SampledProgram, points: Points, gpus: Sequence[Gpu], timer_of: MakeTimer, aim: Aim
    ) -> None:
        self.program, self.points, self.gpus, self.aim = program, points, gpus, aim
        self.launches = TimedPairs(program.session, gpus, timer_of)

    def run(self) -> ReadPoints:
        """With more launches while the interval of a point is wider than was aimed at; with all at once, where the
        formula costs more than it may save."""
        rows, kinds = of_each_kind(self.program, counted)  # kinds: which no formula tells apart
        instructions, seconds = np.array(rows)[kinds].sum(0).tolist()
        formula_seconds = (SUMMARY_SECONDS + POINT_SECONDS * len(self.gpus)) * len(np.unique(kinds)) + FORMULA_SECONDS
        if formula_seconds > WORTH * seconds * len(self.gpus):  # before anything is looked at on the other GPUs
            shape = (len(self.gpus), len(kinds))
            read = all_timed(self.launches.timed, shape, "timing all points costs no more")
            return ReadPoints(read, self.aim.confidence, self.launches.instructions / instructions)
        works = [replace(work, kinds=kinds) for work in work_on(self.program, self.gpus)]
        formula = formula_of(self.launches, kinds)
        selection = select(works, formula, OF_LAUNCHES * self.aim.error, self.aim.confidence)
        for _ in range(ROUNDS):
            found = self._points(selection, instructions)
            if selection.complete or found.half_widths.max(initial=0.0) <= self.aim.error:
                break
            selection = selection.more()
        return found

    def _points(self, selection: Selection, instructions: float) -> SampledPoints:
        numbers, place = selection.launches, {number: k for k, number in enumerate(selection.launches)}

        def time(pairs: Sequence[Pair]) -> Float64[np.ndarray, " pair"]:
            return self.launches.timed([(gpu, numbers[k]) for gpu, k in pairs])

        known = {(gpu, place[n]): cycles for (gpu, n), cycles in self.launches.known.items() if n in place}
        pairs, met = selection.pairs(*columns_at(self.points)), all_within(OF_PAIRS * self.aim.error)
        read = read_off(time, pairs, met, self.aim.confidence, known)
        estimates = selection.estimates(read.cycles, read.of_sums, read.degrees)
        return SampledPoints(read, self.aim.confidence, self.launches.instructions / instructions, estimates)
