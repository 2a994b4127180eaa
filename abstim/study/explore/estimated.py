"""A sweep with a stated error: some points are timed, the others read off between them.

A formula says roughly what launches take on every point; `sampling.auto.interpolation` learns what it lacks. Launches
are all of a target's (`InterpolatedSweep`), or some that are chosen once, before anything is timed (`SampledSweep`)."""

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
from abstim.study.explore.formula import RESIDENCY, analytic_points
from abstim.study.explore.jobs import Planner, Timer
from abstim.study.explore.points import Points
from abstim.study.explore.search import columns_at
from abstim.study.sample.automatic import Aim, check_turn, work_on
from abstim.study.sample.profiling import SomeBlocks, of_each_kind
from abstim.study.sample.sampled_program import SampledProgram
from abstim.targets.resolve import Target, open_target
from functional.arrays import Bool, Float64, Int64
from functional.errors import InputError
from sampling.auto.interpolation import ReadOff, Rough, Timed, all_timed, all_within, few_points, most_within, read_off
from sampling.auto.launches import LaunchSampling, ProgramWork, TimedSelection, ratio, timed_selection
from sampling.estimate import Estimate, exact

# Of one core, reckoned rather than measured, so that the same sweep times the same points on every machine: a warp
# instruction, a line of a memory access, a launch, and of the formula, loading it and summarising a launch; a kind of
# launches on one more GPU, looked at in four rounds
INSTRUCTION_SECONDS, LINE_SECONDS, LAUNCH_SECONDS = 1.5e-7, 2e-7, 3e-3
FORMULA_SECONDS, SUMMARY_SECONDS = 0.2, 0.01
POINT_SECONDS = 2e-3
WORTH = 0.1  # of what timing everything takes, at most, for the formula
DRAWN = 64  # points of which the different jobs are counted
SHARE = 0.95  # of points that are to be within the error
LIMITS = 0.05  # of the cycles, where a bound of the formula is looked at
IN_FULL = 12  # points that say how far off launches are from the first of their kind
# The least of that; and of the error, the most that all launches together may be off from what keys tell, as those of
# a kind are from each other
LEAST_OFF, OF_ALIKE = 1e-6, 0.5
MORE, ROUNDS = 0.6, 3  # by what the aim shrinks where points miss it, and how often
# Of the half-width, squares adding up to one: what launches left out may take of it, and what is read off
OF_LAUNCHES, OF_POINTS = 0.4, 0.9


@dataclass(frozen=True, eq=False)
class ReadPoints:
    """One target on the GPU that is varied (first in `read`) and on all points, in this order. `work`: of all that was
    timed, in instructions over the target's own."""

    read: ReadOff
    work: float

    @property
    def cycles(self) -> Float64[np.ndarray, " point"]:
        """Estimated; timed where `detailed`."""
        return self.read.cycles[1:]

    @property
    def half_widths(self) -> Float64[np.ndarray, " point"]:
        """Half of each interval, relative."""
        return self.read.half_widths[1:]

    @property
    def speed_ups(self) -> Float64[np.ndarray, "point 2"]:
        """In cycles over the GPU that is varied, which was timed, and half of each interval."""
        ratios = self.read.cycles[0] / self.cycles
        return np.stack([ratios, ratios * self.half_widths], 1)

    @property
    def detailed(self) -> Bool[np.ndarray, " point"]:
        """Points on which every launch was timed."""
        return self.read.timed[1:]


@dataclass(frozen=True, eq=False)
class SampledPoints(ReadPoints):
    """The same from chosen launches: what they say of the target on the GPU that is varied and on all points
    (`selections`), and whether they are `all` of its launches."""

    selections: list[TimedSelection]
    all: bool

    @property
    def detailed(self) -> Bool[np.ndarray, " point"]:
        """Points on which every launch of the target was timed."""
        return self.read.timed[1:] & self.all

    @property
    def half_widths(self) -> Float64[np.ndarray, " point"]:
        """Half of each interval, relative."""
        return np.array([point.half_width / point.total for point in self.selections[1:]])

    @property
    def speed_ups(self) -> Float64[np.ndarray, "point 2"]:
        """In cycles over the GPU that is varied, and half of each interval."""
        base, *others = self.selections
        halves = self.read.half_widths[1:].tolist()
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


class Roughly(NamedTuple):
    """A launch on all points: `cycles`, what each of the formula's bounds would take alone, and the thread blocks that
    an SM holds, which is all that RESIDENCY decides."""

    cycles: Float64[np.ndarray, " point"]
    bounds_cycles: Float64[np.ndarray, "point bound"]
    resident_blocks: Float64[np.ndarray, "point number"]


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

    def cycles(self, points: Sequence[int], launches: Sequence[int]) -> Float64[np.ndarray, "point launch"]:
        """Of launches on each of some points."""
        pairs = [(point, number) for point in points for number in launches]
        return self.timed(pairs).reshape(len(points), len(launches))

    def totals(self, points: Sequence[int]) -> Float64[np.ndarray, " point"]:
        """Cycles of all launches together."""
        return np.asarray(self.cycles(points, range(len(self.session))).sum(1))

    def all_timed(self, why: str = "timing all points costs no more") -> ReadOff:
        """Every launch on every point, where learning costs more than it may save."""
        return all_timed(self.totals, len(self.points), why)

    def roughly(self, number: int) -> Roughly:
        """A launch on all points by the analytic model. Of keys that it does not know it says that they change nothing;
        machine code it does not know."""
        if self.points.space.gpu.spec.timed_code != "ptx":
            return self.as_on_first(number)
        found = self._predicted(number)
        return Roughly(found["cycles"], found["bounds_cycles"], found["resident_blocks"][:, None])

    def as_on_first(self, number: int) -> Roughly:
        """The same on all points: what the engine says of the first."""
        nothing = np.zeros((len(self.points), 0))
        return Roughly(np.full(len(self.points), self.timed([(0, number)])[0]), nothing, nothing)

    @cached_property
    def _predicted(self) -> Callable[[int], np.ndarray]:
        """PREDICTION of a launch; from tables as for one GPU, for those of each SM count differ by chance as well."""
        from abstim.analytic.predictions import look_at, look_once
        from abstim.analytic.summary import Asking, nodes_around

        traces, gpu = self.session.traces, self.points.space.gpu
        columns = analytic_points(gpu, self.points.keys_of_gpu)
        asking = Asking(columns, lambda sms, residents: nodes_around(sms[:1], residents[:1]))
        return lambda number: look_at(self.session, number, gpu, traces.trace(number), asking, look_once)[1].copy()

    def rough(self, launches: Sequence[Roughly], often: Sequence[float]) -> Rough:
        """Of launches together, each so often."""
        cycles = np.sum([count * each.cycles for each, count in zip(launches, often, strict=True)], 0)
        bounds = np.sum([count * each.bounds_cycles for each, count in zip(launches, often, strict=True)], 0)
        limits, held = bounds / cycles[:, None], np.column_stack([each.resident_blocks for each in launches])
        held = np.log(np.unique(held, axis=1))
        features, keys = columns_at(self.points)
        if held.size:
            told = [number for number, axis in enumerate(self.points.space.axes) if axis.key in RESIDENCY]
            features, keys = features[:, ~np.isin(keys, told)], keys[~np.isin(keys, told)]
        return Rough(cycles, limits[:, (limits > LIMITS).any(0)], held, features, keys)

    def work(self, instructions: float) -> float:
        """Warp instructions of all that was timed, over the target's own."""
        often = Counter(number for _, number in self.known)
        timed = sum(n * float(self.session.traces.trace(k).warp_instructions.sum()) for k, n in often.items())
        return timed / instructions


class InterpolatedSweep(TimedPairs):
    """All launches of a target."""

    def run(self) -> ReadPoints:
        """Timed in part, or in full where that is what it takes or costs no more."""
        launches = [(self.session.launch(n), self.session.traces.trace(n)) for n in range(len(self.session))]
        rows = [
            (launch.program.name, launch.thread_blocks, int(trace.warp_instructions.sum()), len(trace.records))
            for launch, trace in launches
        ]
        self._instructions = float(sum(row[2] for row in rows))
        if few_points(len(self.points), len(self.points.space.axes)):
            return self._found(self.all_timed("few points"))
        alone = np.array([_reckoned_seconds(*row[2:]) for row in rows])
        seconds = float(alone.sum()) * self._different(int(np.argmax(alone))) * len(self.points)
        kinds = Counter(rows)  # no formula tells equal ones apart
        if FORMULA_SECONDS + SUMMARY_SECONDS * len(kinds) > WORTH * seconds:
            return self._found(self.all_timed())
        rough = self.rough([self.roughly(rows.index(kind)) for kind in kinds], list(kinds.values()))
        met = most_within(self.aim.error, SHARE, self.aim.confidence)
        self._alike = {rows.index(kind): often for kind, often in kinds.items()}
        quick = self.quickly if len(kinds) < len(rows) else None
        return self._found(read_off(self.totals, rough, met, self.aim.confidence, seconds, quick=quick))

    def quickly(self, points: Sequence[int]) -> Timed:
        """From one launch of each kind, once a few points say what all launches take over that, and how far off that
        is; unless that is too far."""
        count, often = len(self.session), Counter(point for point, _ in self.known)
        full = [point for point, timed in often.items() if timed == count]
        full += [point for point in points if point not in full][: max(0, IN_FULL - len(full))]
        ratios = np.log(self.totals(full) / self._of_kinds(full))
        exact = np.isin(points, full)
        spread = max(LEAST_OFF, float(ratios.std(ddof=1)) * math.sqrt(1.0 + 1.0 / len(full)))
        own = spread / math.sqrt(count / len(self._alike) - 1)
        if own > OF_ALIKE * self.aim.error:
            return Timed(self.totals(points), np.zeros(len(points)))
        cycles = self._of_kinds(points) * np.exp(ratios.mean())
        cycles[exact] = self.totals(np.array(points)[exact].tolist())
        return Timed(cycles, np.where(exact, 0.0, spread), own)

    def _of_kinds(self, points: Sequence[int]) -> Float64[np.ndarray, " point"]:
        """Cycles of all launches, each as long as the first of its kind."""
        return self.cycles(points, list(self._alike)) @ np.array(list(self._alike.values()), float)

    def more(self, found: ReadPoints, rows: Int64[np.ndarray, " row"]) -> ReadPoints:
        """After timing every launch on these points (without the first one)."""
        return self._found(found.read.with_timed(rows + 1, self.totals((rows + 1).tolist())))

    def _found(self, read: ReadOff) -> ReadPoints:
        return ReadPoints(read, self.work(self._instructions))

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
        self._seconds = seconds * len(self.points)
        if of_formula > WORTH * self._seconds:  # before anything is looked at on the other GPUs
            return ReadPoints(self.all_timed(), self.work(instructions))
        gpus = [self.points.gpu(k) for k in range(len(self.points))]
        self.works = [replace(work, kinds=self.kinds) for work in work_on(program, gpus)]
        self._rough: dict[int, Roughly] = {}
        self._begun = [0]  # points on which some launches were timed
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
            self._rough[kind] = super().roughly(number)
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

    def _estimate(self, point: int, cycles: Float64[np.ndarray, " launch"], half_width: float = 0.0) -> TimedSelection:
        """The target on one point, from cycles of the chosen launches, which are that far off together, relative."""
        known = zip(self.selection, cycles.tolist(), strict=True)
        return timed_selection(
            self.works[point], {number: exact("sweep", each) for number, each in known}, chosen_here=point == 0,
            shared_half_width=half_width, confidence=self.aim.confidence,
        )  # fmt: skip

    def _estimated(self, points: Sequence[int]) -> Float64[np.ndarray, " point"]:
        rows = zip(points, self.cycles(points, self.selection), strict=True)
        return np.array([self._estimate(point, cycles).total for point, cycles in rows])

    def _points(self, instructions: float) -> SampledPoints:
        launches = [self.roughly(number) for number in self.selection]
        cycles = np.stack([each.cycles for each in launches], 1)
        totals = np.array([self._estimate(point, own).total for point, own in enumerate(cycles)])
        rough = replace(self.rough(launches, np.ones(len(launches)).tolist()), cycles=totals)
        met = all_within(OF_POINTS * self.aim.error)
        read = read_off(self._estimated, rough, met, self.aim.confidence, self._seconds, self._begun)
        self._begun = np.flatnonzero(read.timed).tolist()
        cycles *= (read.cycles / totals)[:, None]
        cycles[self._begun] = self.cycles(self._begun, self.selection)
        halves = read.half_widths.tolist()
        found = [self._estimate(point, own, half) for point, (own, half) in enumerate(zip(cycles, halves, strict=True))]
        read = replace(read, cycles=np.array([each.total for each in found]))
        return SampledPoints(read, self.work(instructions), found, self._complete)


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
