"""A sweep with a stated error: some pairs of a launch and a point are timed, the others read off between them.

The formula says roughly what every launch takes on every point; `sampling.auto.interpolation` learns what it lacks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from abstim.engine.design_point import refuse_unsupported
from abstim.gpu.config import Gpu
from abstim.session.session import Session
from abstim.study.explore.formula import analytic_points
from abstim.study.explore.jobs import Planner
from abstim.study.explore.points import Points
from abstim.study.explore.search import columns_at
from abstim.study.explore.timing import Timer
from abstim.study.sample.automatic import Aim
from functional.arrays import Bool, Float64, Int64
from functional.errors import InputError
from sampling.auto.interpolation import PairCycles, Pairs, all_timed, most_within, read_off
from sampling.statistics import t_quantile

MakeTimer = Callable[[Sequence[Session]], Timer]


class TimedPairs:
    """Of a session, on `gpus`; `timer_of` makes a timer of sessions. `known`: cycles of pairs of a GPU and a launch,
    both by number."""

    def __init__(self, session: Session, gpus: Sequence[Gpu], timer_of: MakeTimer) -> None:
        self.session, self.gpus = session, gpus
        self.known: dict[tuple[int, int], float] = {}
        self._timer = timer_of([session])

    def timed(self, pairs: Sequence[tuple[int, int]]) -> Float64[np.ndarray, " pair"]:
        """Cycles of pairs."""
        new: dict[int, list[int]] = {}
        for gpu, number in dict.fromkeys(pairs):
            if (gpu, number) not in self.known:
                new.setdefault(gpu, []).append(number)
        found = self._timer.timed([(0, self.gpus[gpu], numbers) for gpu, numbers in new.items()]) if new else []
        for (gpu, numbers), (cycles, reason) in zip(new.items(), found, strict=True):
            if reason:
                raise InputError(f"a sweep with --error needs points on which everything runs: {reason}")
            self.known |= {(gpu, n): float(own) for n, own in zip(numbers, cycles, strict=True)}
        return np.array([self.known[pair] for pair in pairs])

    @property
    def instructions(self) -> float:
        """Warp instructions of all that was timed."""
        often = Counter(number for _, number in self.known)
        return sum(n * float(self.session.traces.trace(k).warp_instructions.sum()) for k, n in often.items())


# Of one core, reckoned rather than measured, so that the same sweep times the same points on every machine: a warp
# instruction, a line of a memory access, a launch; and of the formula, loading it and summarising a launch
INSTRUCTION_SECONDS, LINE_SECONDS, LAUNCH_SECONDS = 1.5e-7, 2e-7, 3e-3
FORMULA_SECONDS, SUMMARY_SECONDS = 0.2, 0.01
WORTH = 0.1  # of what timing everything takes, at most, for the formula
DRAWN = 64  # points of which the different jobs are counted
SHARE = 0.95  # of points that are to be within the error
LIMITS = 0.05  # of the cycles, where a bound of the formula is looked at


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
class EstimatedTargets:
    """What was estimated, a target each; `rows`: the points of the sweep they have; `names` of the targets."""

    names: tuple[str, ...]
    found: Sequence[ReadPoints]
    rows: Int64[np.ndarray, " timed"]

    def columns(self, clock_hz: Float64[np.ndarray, " point"], base_hz: float) -> dict[str, np.ndarray]:
        """Half of each interval of cycles, relative; how many times faster than the GPU that is varied a point is in
        time, and half of that interval; `found`: `detailed`, where every launch of all targets was timed, or
        `estimated`. NaN where nothing was timed; of several targets geometric means."""
        halves = np.stack([points.half_widths for points in self.found])
        ratios = np.stack([points.speed_ups for points in self.found])
        speed_up = np.exp(np.log(ratios[..., 0]).mean(0)) * clock_hz[self.rows] / base_hz
        columns = {f"cycles_{name}_half_width": half for name, half in zip(self.names, halves, strict=True)}
        columns = {} if len(self.found) == 1 else columns
        columns |= {"cycles_half_width": of_mean(halves), "speed_up": speed_up}
        columns |= {"speed_up_half_width": of_mean(ratios[..., 1] / ratios[..., 0]) * speed_up}
        detailed = np.all([each.detailed for each in self.found], axis=0)
        spread = {name: np.full(len(clock_hz), np.nan) for name in columns}
        spread["found"] = np.full(len(clock_hz), "", object)
        for name, values in (columns | {"found": np.where(detailed, "detailed", "estimated")}).items():
            spread[name][self.rows] = values
        return spread


def of_mean(halves: Float64[np.ndarray, "target point"]) -> Float64[np.ndarray, " point"]:
    """Relative half-width of a geometric mean of independent estimates."""
    return np.sqrt((halves**2).sum(0)) / len(halves)


class Launches(NamedTuple):
    """Of a target: what each launch is, its warp instructions, and its lines."""

    kernels: Int64[np.ndarray, " launch"]
    work: Float64[np.ndarray, "launch 3"]

    @classmethod
    def of(cls, session: Session) -> Launches:
        """All of them."""
        launches = [(session.launch(number), session.traces.trace(number)) for number in range(len(session))]
        names = [launch.program.name for launch, _ in launches]
        work = [(launch.thread_blocks, trace.warp_instructions.sum(), len(trace.records)) for launch, trace in launches]
        return cls(np.unique(names, return_inverse=True)[1].reshape(-1), np.array(work, float))

    @property
    def seconds(self) -> Float64[np.ndarray, " launch"]:
        """Reckoned, of timing each."""
        _, instructions, lines = self.work.T
        return np.asarray(INSTRUCTION_SECONDS * instructions + LINE_SECONDS * lines + LAUNCH_SECONDS)

    @property
    def kinds(self) -> tuple[Int64[np.ndarray, " kind"], Int64[np.ndarray, " launch"]]:
        """The first of each that no formula tells apart, and which of them each launch is like."""
        rows = np.column_stack([self.kernels, self.work])
        _, first, kind = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        return first, kind.reshape(-1)


class InterpolatedSweep:
    """A target on `points`, of which the first is the GPU that is varied; `gpus`: they as such; `timer_of` makes a
    timer of sessions."""

    def __init__(self, session: Session, points: Points, gpus: Sequence[Gpu], timer_of: MakeTimer, aim: Aim) -> None:
        self.session, self.points, self.aim = session, points, aim
        self.launches = Launches.of(session)
        self.pairs = TimedPairs(session, gpus, timer_of)

    def run(self) -> ReadPoints:
        """Timed in part, or in full where that is what it takes or costs no more."""
        seconds = self.launches.seconds * self._different()
        known = FORMULA_SECONDS + SUMMARY_SECONDS * len(self.launches.kinds[0])
        if known > WORTH * seconds.sum() * len(self.points):
            shape = (len(self.points), len(self.session))
            return self._found(all_timed(self.pairs.timed, shape, "timing all points costs no more"))
        met = most_within(self.aim.error, SHARE, self.aim.confidence)
        read = read_off(self.pairs.timed, self._pairs(seconds), met, self.aim.confidence, spent_seconds=known)
        return self._found(read)

    def more(self, found: ReadPoints, rows: Int64[np.ndarray, " row"]) -> ReadPoints:
        """After timing every launch on these points (without the first one)."""
        new = [(int(row) + 1, number) for row in rows for number in range(len(self.session))]
        return self._found(found.read.with_timed(new, self.pairs.timed(new)))

    def _found(self, read: PairCycles) -> ReadPoints:
        work = self.pairs.instructions / float(self.launches.work[:, 1].sum())
        return ReadPoints(read, self.aim.confidence, work)

    def _different(self) -> float:
        """The share of points that are different to the engine, from those among a few that are: of `n` drawn out of
        `N` different ones, n (n - 1) / 2N pairs are alike."""
        count = len(self.points)
        drawn = np.random.default_rng(0).permutation(count)[:DRAWN]
        planner, largest = Planner([self.session]), [int(np.argmax(self.launches.seconds))]
        keys = [job.key for k in drawn for job in planner.jobs(0, self.pairs.gpus[k], largest)]
        alike = len(keys) - len(set(keys))
        if len(drawn) == count:
            return len(set(keys)) / count
        return min(1.0, len(keys) * (len(keys) - 1) / (2.0 * alike * count)) if alike else 1.0

    def _pairs(self, seconds: Float64[np.ndarray, " launch"]) -> Pairs:
        cycles, limits = self._roughly()
        features, keys = columns_at(self.points)
        return Pairs(
            cycles=cycles, limits=limits, features=features, keys=keys, kernels=self.launches.kernels,
            work=self.launches.work, multiples=np.ones(len(self.session)), seconds=seconds,
        )  # fmt: skip

    def _roughly(self) -> tuple[Float64[np.ndarray, "point launch"], Float64[np.ndarray, "point launch limit"]]:
        """Cycles by the formula, and which part of them each of its bounds is; of machine code, which it does not know,
        the cycles on the first GPU."""
        first, kind = self.launches.kinds
        if self.pairs.gpus[0].spec.timed_code != "ptx":
            cycles = self.pairs.timed([(0, number) for number in range(len(self.session))])
            return np.tile(cycles, (len(self.points), 1)), np.zeros((len(self.points), len(cycles), 0))
        from abstim.analytic import predict
        from abstim.analytic.predictions import summary_of

        base = self.points.space.gpu
        columns = analytic_points(base, self.points.keys_of_gpu)
        found = [predict(summary_of(self.session, int(number), base), columns) for number in first]
        cycles = np.stack([each["cycles"] for each in found], 1)
        limits = np.stack([each["bounds_cycles"] for each in found], 1) / cycles[..., None]
        return cycles[:, kind], limits[:, :, limits.max((0, 1)) > LIMITS][:, kind]


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
