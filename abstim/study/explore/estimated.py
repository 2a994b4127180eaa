"""A sweep with a stated error: some pairs of a launch and a point are timed, the others read off between them.

A formula says roughly what launches take on every point; `sampling.auto.interpolation` learns what it lacks. Launches
are all of a target's (`InterpolatedSweep`), or some that are chosen once, before anything is timed (`SampledSweep`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from abstim.engine.design_point import refuse_unsupported
from abstim.gpu.config import Gpu
from abstim.progress import Progress, silent
from abstim.session.session import Session
from abstim.study.explore.formula import analytic_points
from abstim.study.explore.jobs import Planner, Timer
from abstim.study.explore.points import Points
from abstim.study.explore.search import columns_at
from abstim.study.sample.automatic import Aim, check_turn, work_on
from abstim.study.sample.profiling import SomeBlocks, of_each_kind
from abstim.study.sample.sampled_program import SampledProgram
from abstim.targets.resolve import Target, open_target
from functional.arrays import Bool, Float64, Int64
from functional.errors import InputError
from sampling.auto.interpolation import Pair, PairCycles, Pairs, all_timed, all_within, most_within, read_off
from sampling.auto.launches import LaunchSampling, ProgramWork, TimedSelection, multiples, ratio, timed_selection
from sampling.estimate import Estimate, exact
from sampling.statistics import t_quantile

# Of one core, reckoned rather than measured, so that the same sweep times the same points on every machine: a warp
# instruction, a line of a memory access, a launch, and of the formula, loading it and summarising a launch; one unit of
# what simulating a launch costs; a kind of launches on one more GPU, looked at in four rounds
INSTRUCTION_SECONDS, LINE_SECONDS, LAUNCH_SECONDS = 1.5e-7, 2e-7, 3e-3
FORMULA_SECONDS, SUMMARY_SECONDS = 0.2, 0.01
COST_SECONDS, POINT_SECONDS = 1.5e-7, 2e-3
WORTH = 0.1  # of what timing everything takes, at most, for the formula
DRAWN = 64  # points of which the different jobs are counted
SHARE = 0.95  # of points that are to be within the error
LIMITS = 0.05  # of the cycles, where a bound of the formula is looked at
A_WAVE = 0.2  # an e-fold of waves of thread blocks, beside limits that are shares of the time
MORE, ROUNDS = 0.6, 3  # by what the aim shrinks where points miss it, and how often
# Of the half-width, squares adding up to one: what launches left out may take of it, and what is read off
OF_LAUNCHES, OF_PAIRS = 0.4, 0.9


@dataclass(frozen=True, eq=False)
class ReadPoints:
    """One target on the GPU that is varied and on all points, in this order. `work`: of all that was timed, in
    instructions over the target's own."""

    read: PairCycles
    confidence: float
    work: float

    @property
    def cycles(self) -> Float64[np.ndarray, " point"]:
        """Estimated; timed where `detailed`."""
        return np.asarray(self.read.cycles[1:].sum(1))

    @property
    def half_widths(self) -> Float64[np.ndarray, " point"]:
        """Half of each interval, relative."""
        return self.read.half_widths(self.confidence)[1:]

    @property
    def speed_ups(self) -> Float64[np.ndarray, "point 2"]:
        """In cycles over the GPU that is varied, and half of each interval."""
        ratios = self.read.cycles[0].sum() / self.cycles
        halves = self.read.of_ratios[1:] * t_quantile(self.read.degrees, self.confidence)
        return np.stack([ratios, ratios * halves], 1)

    @property
    def detailed(self) -> Bool[np.ndarray, " point"]:
        """Points on which every launch was timed."""
        return self.read.counts[1:] == self.read.cycles.shape[1]


@dataclass(frozen=True, eq=False)
class SampledPoints(ReadPoints):
    """The same from chosen launches, whose cycles `read` holds; the target's on the GPU that is varied and on all
    points: `selections`."""

    selections: list[TimedSelection]

    @property
    def detailed(self) -> Bool[np.ndarray, " point"]:
        """Points on which every launch of the target was timed."""
        return self.read.counts[1:] == sum(len(kernel.rows) for kernel in self.selections[0].kernels)

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
        base, *others = self.selections
        first, *errors = self.read.of_ratios.tolist()
        quantile = t_quantile(self.read.degrees, self.confidence)
        halves = [error and error * quantile for error in (math.hypot(first, own) for own in errors)]
        return np.array([ratio(base, own, half) for own, half in zip(others, halves, strict=True)]).reshape(-1, 2)


@dataclass(frozen=True, eq=False)
class EstimatedTargets:
    """What was estimated, a target each; `rows`: the points of the sweep they have; `names` of the targets."""

    names: tuple[str, ...]
    found: Sequence[ReadPoints]
    rows: Int64[np.ndarray, " timed"]

    def settled(self, count: int) -> Bool[np.ndarray, " point"]:
        """Of so many points those that can be called best: on which every launch of all targets was timed; any of a
        sweep of chosen launches."""
        found = np.zeros(count, bool)
        found[self.rows] = np.all([isinstance(each, SampledPoints) | each.detailed for each in self.found], axis=0)
        return found

    def columns(self, clock_hz: Float64[np.ndarray, " point"], base_hz: float) -> dict[str, np.ndarray]:
        """Half of each interval of cycles, relative; how many times faster than the GPU that is varied a point is in
        time, and half of that interval; `found`: `detailed`, where every launch of all targets was timed, or
        `estimated`. NaN where nothing was timed; of several targets geometric means."""
        halves = np.stack([points.half_widths for points in self.found])
        ratios = np.stack([points.speed_ups for points in self.found])
        speed_up = np.exp(np.log(ratios[..., 0]).mean(0)) * clock_hz[self.rows] / base_hz
        columns = {f"cycles_{name}_half_width": half for name, half in zip(self.names, halves, strict=True)}
        columns = {} if len(self.found) == 1 else columns
        columns |= {"cycles_half_width": _of_mean(halves), "speed_up": speed_up}
        columns |= {"speed_up_half_width": _of_mean(ratios[..., 1] / ratios[..., 0]) * speed_up}
        detailed = np.all([each.detailed for each in self.found], axis=0)
        spread = {name: np.full(len(clock_hz), np.nan) for name in columns}
        spread["found"] = np.full(len(clock_hz), "", object)
        for name, values in (columns | {"found": np.where(detailed, "detailed", "estimated")}).items():
            spread[name][self.rows] = values
        return spread


def _of_mean(halves: Float64[np.ndarray, "target point"]) -> Float64[np.ndarray, " point"]:
    """Relative half-width of a geometric mean of independent estimates."""
    return np.sqrt((halves**2).sum(0)) / len(halves)


def _reckoned_seconds(instructions, lines):
    """What timing launches takes."""
    return INSTRUCTION_SECONDS * instructions + LINE_SECONDS * lines + LAUNCH_SECONDS


class TimedPairs:
    """A target on `points`, of which the first is the GPU that is varied; `timer_of` makes a timer of sessions.
    `known`: cycles of pairs of a GPU and a launch, both by number."""

    def __init__(
        self, session: Session, points: Points, timer_of: Callable[[Sequence[Session]], Timer], aim: Aim
    ) -> None:
        self.session, self.points, self.aim = session, points, aim
        self.known: dict[tuple[int, int], float] = {}
        self._timer = timer_of([session])

    def timed(self, pairs: Sequence[tuple[int, int]]) -> Float64[np.ndarray, " pair"]:
        """Cycles of pairs."""
        new: dict[int, list[int]] = {}
        for gpu, number in dict.fromkeys(pairs):
            if (gpu, number) not in self.known:
                new.setdefault(gpu, []).append(number)
        found = self._timer.timed([(0, self.points.gpu(gpu), numbers) for gpu, numbers in new.items()]) if new else []
        for (gpu, numbers), (cycles, reason) in zip(new.items(), found, strict=True):
            if reason:
                raise InputError(f"a sweep with --error needs points on which everything runs: {reason}")
            self.known |= {(gpu, n): float(own) for n, own in zip(numbers, cycles, strict=True)}
        return np.array([self.known[pair] for pair in pairs])

    def all_timed(self) -> PairCycles:
        """Every launch on every GPU, where learning costs more than it may save."""
        return all_timed(self.timed, (len(self.points), len(self.session)), "timing all points costs no more")

    @cached_property
    def gpus(self) -> list[Gpu]:
        """All points as such."""
        return [self.points.gpu(k) for k in range(len(self.points))]

    def work(self, instructions: float) -> float:
        """Warp instructions of all that was timed, over the target's own."""
        often = Counter(number for _, number in self.known)
        timed = sum(n * float(self.session.traces.trace(k).warp_instructions.sum()) for k, n in often.items())
        return timed / instructions


class InterpolatedSweep(TimedPairs):
    """All launches of a target: what `kernels` they are of, and their thread blocks, warp instructions and lines."""

    def run(self) -> ReadPoints:
        """Timed in part, or in full where that is what it takes or costs no more."""
        launches = [(self.session.launch(n), self.session.traces.trace(n)) for n in range(len(self.session))]
        names = [launch.program.name for launch, _ in launches]
        self.kernels = np.unique(names, return_inverse=True)[1].reshape(-1)
        counts = [
            (launch.thread_blocks, trace.warp_instructions.sum(), len(trace.records)) for launch, trace in launches
        ]
        self.counts = np.array(counts, float)
        alone = _reckoned_seconds(*self.counts.T[1:])
        seconds = alone * self._different(int(np.argmax(alone)))
        rows = np.column_stack([self.kernels, self.counts])  # no formula tells equal ones apart
        _, first, kind = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        known = FORMULA_SECONDS + SUMMARY_SECONDS * len(first)
        if known > WORTH * seconds.sum() * len(self.points):
            return self._found(self.all_timed())
        met = most_within(self.aim.error, SHARE, self.aim.confidence)
        pairs = self._pairs(first, kind.reshape(-1), seconds)
        return self._found(read_off(self.timed, pairs, met, self.aim.confidence, spent_seconds=known))

    def more(self, found: ReadPoints, rows: Int64[np.ndarray, " row"]) -> ReadPoints:
        """After timing every launch on these points (without the first one)."""
        new = [(int(row) + 1, number) for row in rows for number in range(len(self.session))]
        return self._found(found.read.with_timed(new))

    def _found(self, read: PairCycles) -> ReadPoints:
        return ReadPoints(read, self.aim.confidence, self.work(float(self.counts[:, 1].sum())))

    def _different(self, launch: int) -> float:
        """The share of points on which a launch is different to the engine, from those among a few that are: of `n`
        drawn out of `N` different ones, n (n - 1) / 2N pairs are alike."""
        count = len(self.points)
        drawn = np.random.default_rng(0).permutation(count)[:DRAWN]
        planner = Planner([self.session])
        keys = [job.key for k in drawn for job in planner.jobs(0, self.points.gpu(int(k)), [launch])]
        alike = len(keys) - len(set(keys))
        if len(drawn) == count:
            return len(set(keys)) / count
        return min(1.0, len(keys) * (len(keys) - 1) / (2.0 * alike * count)) if alike else 1.0

    def _pairs(
        self, first: Int64[np.ndarray, " kind"], kind: Int64[np.ndarray, " launch"],
        seconds: Float64[np.ndarray, " launch"],
    ) -> Pairs:  # fmt: skip
        """With cycles by the formula, and which part of them each of its bounds is; of machine code, which it does not
        know, with the cycles on the first GPU."""
        if self.points.space.gpu.spec.timed_code != "ptx":
            on_first = self.timed([(0, number) for number in range(len(self.session))])
            cycles, limits = np.tile(on_first, (len(self.points), 1)), np.zeros((len(self.points), len(on_first), 0))
        else:
            from abstim.analytic import predict
            from abstim.analytic.predictions import summary_of

            base = self.points.space.gpu
            columns = analytic_points(base, self.points.keys_of_gpu)
            found = [predict(summary_of(self.session, int(number), base), columns) for number in first]
            cycles = np.stack([each["cycles"] for each in found], 1)
            limits = np.stack([each["bounds_cycles"] for each in found], 1) / cycles[..., None]
            cycles, limits = cycles[:, kind], limits[:, :, limits.max((0, 1)) > LIMITS][:, kind]
        features, keys = columns_at(self.points)
        return Pairs(
            cycles=cycles, limits=limits, features=features, keys=keys, kernels=self.kernels, work=self.counts,
            multiples=np.ones(len(self.session)), seconds=seconds,
        )  # fmt: skip


class Roughly(NamedTuple):
    """A launch on all GPUs: `cycles`; `limits`: numbers that are alike where the same decides them."""

    cycles: Float64[np.ndarray, " gpu"]
    limits: Float64[np.ndarray, "gpu limit"]


def waves(launches: TimedPairs, number: int) -> Float64[np.ndarray, "gpu 2"]:
    """Of the SM that gets most thread blocks: the logarithm of how many waves of them it runs, and by how much the
    last one, which may be small, makes them more."""
    session = launches.session
    blocks = session.launch(number).thread_blocks
    most = np.ceil(blocks / np.array([gpu.spec.sm_count for gpu in launches.gpus]))
    count = most / np.minimum(most, [session.blocks_per_sm(number, gpu) for gpu in launches.gpus])
    return np.column_stack([A_WAVE * np.log(count), np.ceil(count) / count])


def by_formula(launches: TimedPairs, number: int) -> Roughly:
    """By the analytic model. Of keys that it does not know it says that they change nothing."""
    from abstim.analytic import points_of, predict
    from abstim.analytic.predictions import summary_of

    found = predict(summary_of(launches.session, number, launches.gpus[0]), points_of(launches.gpus))
    limits = found["bounds_cycles"] / found["cycles"][:, None]
    return Roughly(found["cycles"], np.column_stack([limits, waves(launches, number)]))


def as_on_first(launches: TimedPairs, number: int) -> Roughly:
    """The same on all GPUs: what the engine says of the first. So of machine code, which the formula does not know."""
    cycles = launches.timed([(0, number)])[0]
    return Roughly(np.full(len(launches.gpus), cycles), waves(launches, number))


def open_program(target: Target, gpu: Gpu, progress: Progress = silent) -> SampledProgram:
    """A target on the GPU that is varied. Raises InputError for one whose launches must come in turn."""
    from abstim.study.sample.sampler import opened

    program = opened(open_target(target), gpu, online=False, progress=progress, keep=True)
    check_turn(program)
    return program


def _counted(number: int, some: SomeBlocks) -> tuple[float, float]:
    """Warp instructions of a launch, and what timing it takes, reckoned."""
    instructions = some.total(lambda trace: float(trace.warp_instructions.sum()))
    return instructions, _reckoned_seconds(instructions, some.total(lambda trace: float(len(trace.records))))


class SampledSweep(TimedPairs):
    """Some launches of a target, chosen by auto with the formula in place of the engine. `kinds`: which no formula
    tells apart; `works`: the target's work on each GPU; `selection`: what was chosen, in order, with the error
    `chosen_with` for those left out."""

    works: list[ProgramWork]
    kinds: Int64[np.ndarray, " launch"]
    selection: list[int]
    chosen_with: float

    def run(self, program: SampledProgram) -> ReadPoints:
        """With more launches while the interval of a point is wider than was aimed at; with all at once, where the
        formula costs more than it may save."""
        rows, self.kinds = of_each_kind(program, _counted)
        instructions, seconds = np.array(rows)[self.kinds].sum(0).tolist()
        of_formula = (SUMMARY_SECONDS + POINT_SECONDS * len(self.points)) * len(np.unique(self.kinds)) + FORMULA_SECONDS
        if of_formula > WORTH * seconds * len(self.points):  # before anything is looked at on the other GPUs
            return ReadPoints(self.all_timed(), self.aim.confidence, self.work(instructions))
        self.works = [replace(work, kinds=self.kinds) for work in work_on(program, self.gpus)]
        self._rough: dict[int, Roughly] = {}
        self._select(OF_LAUNCHES * self.aim.error)
        for _ in range(ROUNDS):
            found = self._points(instructions)
            if self._complete or found.half_widths.max(initial=0.0) <= self.aim.error:
                break
            self._choose(MORE * self.chosen_with)
        return found

    def roughly(self, number: int) -> Roughly:
        """By the formula, once a kind of launches."""
        kind = int(self.kinds[number])
        if kind not in self._rough:
            machine_code = any(gpu.spec.timed_code != "ptx" for gpu in self.gpus)
            self._rough[kind] = (as_on_first if machine_code else by_formula)(self, number)
        return self._rough[kind]

    @property
    def _complete(self) -> bool:
        """Whether nothing is left to choose."""
        return len(self.selection) == len(self.kinds)

    def _select(self, error: float) -> None:
        """As many launches as keep half of the interval that those left out give below `error` on all GPUs, as far as
        the formula tells, but for a last round that may not be enough."""
        self._choose(error)
        for _ in range(ROUNDS):
            rough = np.stack([self.roughly(number).cycles for number in self.selection], 1)
            halves = [own.half_width / own.total for own in map(self._estimate, range(len(self.works)), rough)]
            if self._complete or max(halves) <= error:
                break
            self._choose(MORE * self.chosen_with)

    def _choose(self, error: float) -> None:
        asked: set[int] = set()

        def measure(rows: Sequence[int]) -> list[Estimate]:
            asked.update(rows)
            return [exact("formula", float(self.roughly(row).cycles[0])) for row in rows]

        LaunchSampling(error=error, confidence=self.aim.confidence).program(self.works[0], measure)
        self.selection, self.chosen_with = sorted(asked), error

    def _estimate(
        self, gpu: int, cycles: Float64[np.ndarray, " launch"], error: float = 0.0, degrees: float = math.inf
    ) -> TimedSelection:
        """The target on one GPU, from cycles of the chosen launches; `error`: see `timed_selection`."""
        known = zip(self.selection, cycles.tolist(), strict=True)
        return timed_selection(
            self.works[gpu], {number: exact("sweep", each) for number, each in known}, chosen_here=gpu == 0,
            shared_error=error, degrees=degrees, confidence=self.aim.confidence,
        )  # fmt: skip

    def _points(self, instructions: float) -> SampledPoints:
        numbers, place = self.selection, {number: k for k, number in enumerate(self.selection)}

        def time(pairs: Sequence[Pair]) -> Float64[np.ndarray, " pair"]:
            return self.timed([(gpu, numbers[k]) for gpu, k in pairs])

        known = {(gpu, place[n]): cycles for (gpu, n), cycles in self.known.items() if n in place}
        met = all_within(OF_PAIRS * self.aim.error)
        read = read_off(time, self._pairs(), met, self.aim.confidence, known)
        estimates = [
            self._estimate(k, read.cycles[k], float(read.of_sums[k]), read.degrees) for k in range(len(self.works))
        ]
        return SampledPoints(read, self.aim.confidence, self.work(instructions), estimates)

    def _pairs(self) -> Pairs:
        """Of GPUs and chosen launches, as the formula has them."""
        rough, work = [self.roughly(number) for number in self.selection], self.works[0]
        cycles = np.stack([each.cycles for each in rough], 1)
        features, keys = columns_at(self.points)
        return Pairs(
            cycles=cycles, limits=np.stack([each.limits for each in rough], 1), features=features, keys=keys,
            kernels=work.kernels[self.selection], work=work.columns[self.selection],
            multiples=multiples(self._estimate(0, cycles[0]), self.selection),
            seconds=COST_SECONDS * work.cost[self.selection],
        )  # fmt: skip


def refused_by(session: Session, gpu: Gpu) -> str:
    """Why a target cannot run on a GPU; nothing if it can. Of launches of one shape the first tells."""
    shapes: dict[tuple, int] = {}
    for number, launch in enumerate(session.case.launches):
        shapes.setdefault((id(launch.program), launch.warps_per_block, launch.shared_bytes), number)
    try:
        for (_, warps_per_block, _), number in shapes.items():
            blocks = session.blocks_per_sm(number, gpu)
            refuse_unsupported(gpu, session.table(number, gpu), warps_per_block, blocks)
    except InputError as error:
        return str(error)
    return ""
