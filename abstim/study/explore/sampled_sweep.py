"""A sweep from a sample: launches chosen once, on the GPU that is varied; parts of them timed on every design point.

What a part takes on a point over what it takes on the first GPU, times the launch's own cycles there, stands for the
launch (a ratio estimator: the part is no truth, but what its cycles are correlated with). Parts are timed on some
points and read off between them (`sampling.auto.interpolation`). Some launches are timed whole there, which tells the
error of parts; where it is too large, more of each launch is timed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np

from abstim.gpu.config import Gpu
from abstim.progress import Progress, silent
from abstim.session.session import Session
from abstim.study.explore.launch_parts import SHARES, part_of, reduced
from abstim.study.explore.timing import Timer
from abstim.study.sample.automatic import Aim, check_turn, choose, work_on
from abstim.study.sample.kept_parts import PartStore
from abstim.study.sample.kept_samples import MeasuredStore
from abstim.study.sample.sampled_program import SampledProgram
from abstim.study.sample.sampler import opened
from abstim.target.resolve import open_target
from functional.errors import InputError
from sampling import Estimate
from sampling.auto import (
    PointFactors,
    ProgramWork,
    TimedSelection,
    error_of_parts,
    first_points,
    ratio,
    read_off,
    timed_selection,
)
from sampling.estimate import exact
from sampling.statistics import pooled_error, t_quantile

if TYPE_CHECKING:
    from jaxtyping import Float64, Int64

    from abstim.target.resolve import Target
    from functional.trace import Trace

CHECKED_POINTS, CHECKS = 3, 6  # launches timed whole, each on one of these points, to tell the error of parts
OF_PARTS, OF_POINTS = 0.6, 0.4  # of the half-width: what parts may take of it, and what is read off between points
MORE, ROUNDS = 0.6, 3  # by what the aim shrinks on the first GPU while points miss it, and how often
MakeTimer = Callable[[Sequence[Session]], Timer]


@dataclass(frozen=True, eq=False)
class Selection:
    """A target and its chosen launches, on the GPU that is varied. `of_points`: its work on each design point."""

    program: SampledProgram
    chosen: dict[int, Estimate]
    work: ProgramWork
    of_points: list[ProgramWork]
    aim: Aim

    @property
    def launches(self) -> list[int]:
        """The chosen ones, in order."""
        return sorted(self.chosen)

    @property
    def complete(self) -> bool:
        """Whether nothing is left to choose."""
        return len(self.chosen) == len(self.program)

    def traces(self) -> list[Trace]:
        """Of the chosen ones, whole."""
        return [self.program.launches.trace(number) for number in self.launches]

    def more(self) -> Selection:
        """With more launches, as many as less error takes."""
        aim = replace(self.aim, error=MORE * self.aim.error)
        return replace(self, aim=aim, chosen=_kept(self.program, lambda: choose(self.program, self.work, aim)[1]))


def open_program(target: Target, gpu: Gpu, progress: Progress = silent) -> SampledProgram:
    """A target on the GPU that is varied. Raises InputError for one whose launches must come in turn."""
    program = opened(open_target(target), gpu, online=False, progress=progress, keep=True)
    check_turn(program)
    return program


def select(program: SampledProgram, gpus: Sequence[Gpu], aim: Aim) -> Selection:
    """As much of a target simulated as the aim takes. What was simulated is kept on disk, as of `abstim sample`."""
    program.prepare()
    program.measured = MeasuredStore(program.case, program.gpu).load()
    program.in_part = PartStore(program.case, program.gpu).load()
    work, *of_points = work_on(program, [program.gpu, *gpus])
    chosen = _kept(program, lambda: choose(program, work, aim)[1])
    return Selection(program, chosen, work, of_points, aim)


def _kept(program: SampledProgram, chosen: Callable[[], dict[int, Estimate]]) -> dict[int, Estimate]:
    """What was simulated is on disk afterwards, after an interrupt too."""
    try:
        return chosen()
    finally:
        MeasuredStore(program.case, program.gpu).save(program.measured)
        PartStore(program.case, program.gpu).save(program.in_part)


def refused_by(program: SampledProgram, gpu: Gpu) -> str:
    """Why a target cannot run on a GPU; nothing if it can."""
    from abstim.engine.unsupported import refuse_unsupported

    session = program.session
    try:
        for number, launch in enumerate(program.case.launches):
            blocks = session.blocks_per_sm(number, gpu)
            refuse_unsupported(gpu, session.table(number, gpu), launch.warps_per_block, blocks)
    except InputError as error:
        return str(error)
    return ""


@dataclass(frozen=True, eq=False)
class SampledPoints:
    """One target on all design points, of which one (`base`) is the GPU that is varied."""

    base: TimedSelection
    points: list[TimedSelection]
    timed: list[int]  # of them, those on which parts were timed; the others are read off between them
    share: float  # of the target, in instructions, that was timed on each of those
    checked: int  # comparisons of parts with launches

    @property
    def cycles(self) -> Float64[np.ndarray, " point"]:
        """Estimated."""
        return np.array([point.total for point in self.points])

    @property
    def half_widths(self) -> Float64[np.ndarray, " point"]:
        """Half of each interval, relative."""
        return np.array([point.half_width / point.total for point in self.points])

    @property
    def speed_ups(self) -> Float64[np.ndarray, "point 2"]:
        """In cycles over the GPU that is varied, and half of each interval."""
        return np.array([self.speed_up(row) for row in range(len(self.points))]).reshape(-1, 2)

    def speed_up(self, row: int, over: int | None = None) -> tuple[float, float]:
        """Cycles on a point (None: the GPU that is varied) over those on another, and half of the interval."""
        return ratio(self.base if over is None else self.points[over], self.points[row])


class SampledSweep:
    """A target's selection on all `gpus`, beside the one that is varied. `features` of the points: see `read_off`;
    `timer_of` makes a timer of sessions."""

    def __init__(
        self, selection: Selection, gpus: Sequence[Gpu], features: Float64[np.ndarray, "point feature"],
        timer_of: MakeTimer,
    ) -> None:  # fmt: skip
        self.selection, self.features, self.timer_of, self.aim = selection, features, timer_of, selection.aim
        self.gpus = [selection.program.gpu, *gpus]
        self.projected = any(gpu.spec.timed_code != "ptx" for gpu in self.gpus)

    def run(self) -> SampledPoints:
        """With more launches while the interval of a point is wider than was aimed at."""
        for _ in range(ROUNDS):
            found = self._points()
            if self.selection.complete or found.half_widths.max(initial=0.0) <= self.aim.error:
                break
            self.selection = self.selection.more()
        return found

    def _points(self) -> SampledPoints:
        """With ever more of each launch, until parts say what launches do."""
        selection, whole = self.selection, self.selection.traces()
        base = timed_selection(selection.work, selection.chosen, chosen_here=True, confidence=self.aim.confidence)
        weights = shares_of_cycles(selection, base)
        for share in SHARES:
            traces = [self._part(number, trace, share) for number, trace in zip(selection.launches, whole, strict=True)]
            in_part = [k for k in range(len(whole)) if traces[k] is not whole[k]]
            parts = PartFactors(self, traces)
            rough = parts.roughly()
            rows = disagreeing(rough, weights)
            error, degrees, checked = self._checked(rows, parts.timed(rows), in_part, whole)
            if error * t_quantile(degrees, self.aim.confidence) <= OF_PARTS * self.aim.error:
                break
        aim = self.aim
        found = read_off(parts.timed, rough, self.features, weights, OF_POINTS * aim.error, aim.confidence, rows)
        points = [self._point(work, k, found, (error, degrees)) for k, work in enumerate(selection.of_points)]
        timed = sum(t.warp_instructions.sum() for t in traces) / selection.work.instructions.sum()
        return SampledPoints(base, points, sorted(found.timed), float(timed), checked)

    def _part(self, number: int, trace: Trace, share: float) -> Trace:
        """Of a launch; all of it where machine code is timed, on which a trace is projected whole."""
        session = self.selection.program.session
        wave = max(session.blocks_per_sm(number, gpu) * gpu.spec.sm_count for gpu in self.gpus)
        return trace if self.projected else part_of(session.launch(number).program, trace, wave, share)

    def cycles(
        self, places: Iterable[int], traces: Sequence[Trace], gpus: Sequence[Gpu]
    ) -> Float64[np.ndarray, "gpu launch"]:
        """Of the chosen launches at these places, which do what the traces say."""
        launches = [self.selection.launches[place] for place in places]
        timer = self.timer_of([reduced(self.selection.program.session, launches, traces)])
        found, reasons = timer.launch_cycles(gpus)
        if wrong := next((reason for reason in reasons if reason), ""):
            raise InputError(f"a sampled sweep needs points on which everything runs: {wrong}")
        return np.array([cycles[0] for cycles in found], float)

    def _checked(
        self, rows: Sequence[int], factors: Float64[np.ndarray, "row launch"], in_part: Sequence[int],
        whole: Sequence[Trace],
    ) -> tuple[float, float, int]:  # fmt: skip
        """Standard error of parts, its degrees of freedom and from how many comparisons: launches drawn in proportion
        to their cycles, each timed whole on one of these points, where launches disagree most with each other."""
        if not in_part:
            return 0.0, math.inf, 0
        chosen = [self.selection.chosen[number] for number in self.selection.launches]
        size = np.array([estimate.total for estimate in chosen])
        turns = zip(in_proportion(size, in_part, CHECKS), cycle(range(len(rows))), strict=False)
        checks = list(dict.fromkeys(turns))
        said, true = [], []
        for place, k in checks:
            known = chosen[place].basis == "exact"
            gpus = [*([] if known else self.gpus[:1]), self.gpus[1 + rows[k]]]
            cycles = self.cycles([place], [whole[place]], gpus)[:, 0]
            said.append(factors[k, place] * (size[place] if known else cycles[0]))
            true.append(cycles[-1])
        return *error_of_parts(np.array(said), np.array(true)), len(checks)

    def _point(
        self, work: ProgramWork, place: int, found: PointFactors, of_parts: tuple[float, float]
    ) -> TimedSelection:  # fmt: skip
        """One point. `of_parts`: their standard error and its degrees of freedom."""
        selection, row = self.selection, found.factors[place].tolist()
        cycles = {n: scaled(selection.chosen[n], factor) for n, factor in zip(selection.launches, row, strict=True)}
        errors = np.array([of_parts[0], found.errors[place]])
        error, degrees = pooled_error(errors**2, np.array([of_parts[1], found.degrees]))
        return timed_selection(work, cycles, shared_error=error, degrees=degrees, confidence=self.aim.confidence)


class PartFactors:
    """The same part of every chosen launch."""

    def __init__(self, sweep: SampledSweep, traces: Sequence[Trace]) -> None:
        self.sweep, self.traces = sweep, traces
        self.first = self._cycles(sweep.gpus[:1])
        self._rows: dict[int, Float64[np.ndarray, " launch"]] = {}  # those looked at first are asked for again

    def timed(self, rows: Sequence[int]) -> Float64[np.ndarray, "row launch"]:
        """Cycles on points over those on the first GPU. Each point is simulated once."""
        if new := [k for k in rows if k not in self._rows]:
            cycles = self._cycles([self.sweep.gpus[1 + k] for k in new])
            self._rows.update(zip(new, cycles / self.first, strict=True))
        return np.array([self._rows[k] for k in rows])

    def _cycles(self, gpus: Sequence[Gpu]) -> Float64[np.ndarray, "gpu launch"]:
        return self.sweep.cycles(range(len(self.traces)), self.traces, gpus)

    def roughly(self) -> Float64[np.ndarray, "point launch"]:
        """The same of all points by a formula; of few, which are all timed anyway, as they are."""
        points = len(self.sweep.features)
        if first_points(self.sweep.features) == points:
            return self.timed(range(points))
        return np.ones((points, len(self.traces))) if self.sweep.projected else self.by_formula()

    def by_formula(self) -> Float64[np.ndarray, "point launch"]:
        """By the analytic model. Of keys that it does not know it says that they change nothing."""
        from abstim.analytic import points_of, predict_points, summaries

        selection, points = self.sweep.selection, points_of(self.sweep.gpus)
        session = reduced(selection.program.session, selection.launches, self.traces)
        found = [predict_points(each, points).cycles for each in summaries(session, self.sweep.gpus[0])]
        cycles = np.array(found, float)
        return (cycles[:, 1:] / cycles[:, :1]).T


def shares_of_cycles(selection: Selection, base: TimedSelection) -> Float64[np.ndarray, " launch"]:
    """Of the chosen launches in the target's cycles on the first GPU: each stands for others of its kernel."""
    found = np.array([selection.chosen[number].total for number in selection.launches])
    kernels = selection.work.kernels[selection.launches]
    for kernel in base.kernels:
        of_kernel = kernels == selection.work.kernels[kernel.rows[0]]
        found[of_kernel] *= float(kernel.predicted().cycles.sum()) / found[of_kernel].sum()
    return found / found.sum()


def in_proportion(size: Float64[np.ndarray, " launch"], places: Sequence[int], count: int) -> list[int]:
    """`count` of these places, at equal steps of their sizes one after the other: a large one may be there again."""
    ends = np.cumsum(size[list(places)])
    wanted = (np.arange(count) + 0.5) / count * ends[-1]
    return [places[k] for k in np.searchsorted(ends, wanted).tolist()]


def scaled(estimate: Estimate, factor: float) -> Estimate:
    """The same estimate of something `factor` times as long."""
    if estimate.basis == "exact":
        return exact(estimate.method, estimate.total * factor)
    ends = {name: getattr(estimate, name) * factor for name in ("total", "low", "high")}
    return replace(estimate, parts=(), unit_cycles=(), **ends)


def disagreeing(factors: Float64[np.ndarray, "point launch"], weights: Float64[np.ndarray, " launch"]) -> list[int]:
    """Points to look at first: where launches disagree most about how much faster it is than the first GPU, and the
    fastest and the slowest."""
    logs = np.log(factors)
    means = logs @ weights
    spread = ((logs - means[:, None]) ** 2) @ weights
    wanted = [int(np.argmin(means)), int(np.argmax(means)), *np.argsort(-spread, kind="stable").tolist()]
    return list(dict.fromkeys(wanted))[:CHECKED_POINTS]


@dataclass(frozen=True, eq=False)
class SampledTargets:
    """What was estimated, a target each; `rows`: the points of the sweep they have; `names` of the targets."""

    names: tuple[str, ...]
    found: list[SampledPoints]
    rows: Int64[np.ndarray, " timed"]

    def columns(
        self, clock_hz: Float64[np.ndarray, " point"], base_hz: float
    ) -> dict[str, Float64[np.ndarray, " point"]]:
        """Half of each interval of cycles, relative; how many times faster than the GPU that is varied a point is in
        time, and half of that interval. NaN where nothing was timed; of several targets geometric means."""
        halves = np.stack([points.half_widths for points in self.found])
        columns = {f"cycles_{name}_half_width": half for name, half in zip(self.names, halves, strict=True)}
        ratios = np.stack([points.speed_ups for points in self.found])
        speed_up = np.exp(np.log(ratios[..., 0]).mean(0)) * clock_hz[self.rows] / base_hz
        relative = ratios[..., 1] / ratios[..., 0]
        columns = {} if len(self.found) == 1 else columns
        columns |= {"cycles_half_width": of_mean(halves), "speed_up": speed_up}
        columns |= {"speed_up_half_width": of_mean(relative) * speed_up}
        return {name: self._spread(values, len(clock_hz)) for name, values in columns.items()}

    def _spread(self, values: Float64[np.ndarray, " timed"], points: int) -> Float64[np.ndarray, " point"]:
        found = np.full(points, np.nan)
        found[self.rows] = values
        return found


def of_mean(halves: Float64[np.ndarray, "target point"]) -> Float64[np.ndarray, " point"]:
    """Relative half-width of a geometric mean of independent estimates."""
    return np.sqrt((halves**2).sum(0)) / len(halves)
