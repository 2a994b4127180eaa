"""A sweep from a sample: launches chosen once, on the GPU that is varied; parts of them timed on every design point.

What a part takes on a point over what it takes on the first GPU, times the launch's own cycles there, stands for the
launch (a ratio estimator: the part is no truth, but what its cycles are correlated with). Some launches are timed whole
on some points, which tells the error of parts; where it is too large, more of each launch is timed. Of all pairs of a
part and a point some are timed, and the others read off between them (`sampling.auto.interpolation`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np

from abstim.gpu.config import Gpu
from abstim.study.explore.launch_parts import SHARES
from abstim.study.explore.part_factors import MakeTimer, PartFactors, roughly
from abstim.study.explore.sampled_points import SampledPoints
from abstim.study.explore.sampled_selection import Selection
from sampling import Estimate
from sampling.auto import TimedSelection, error_of_parts, read_off, timed_selection
from sampling.estimate import exact
from sampling.statistics import pooled_error, t_quantile

if TYPE_CHECKING:
    from jaxtyping import Float64

CHECKED_POINTS, CHECKS = 3, 6  # launches timed whole, each on one of these points, to tell the error of parts
# Of the half-width, squares adding up to one: what launches left out may take of it, parts in the place of launches,
# and what is read off between points, which may have both where launches are timed whole
OF_LAUNCHES, OF_PARTS, OF_POINTS = 0.7, 0.6, 0.4
ROUNDS = 3  # in which more launches are chosen


class SampledSweep:
    """A target's selection on all `gpus`, beside the one that is varied. `features` of the points: see `read_off`;
    `timer_of` makes a timer of sessions."""

    def __init__(
        self, selection: Selection, gpus: Sequence[Gpu], features: Float64[np.ndarray, "point feature"],
        timer_of: MakeTimer,
    ) -> None:  # fmt: skip
        self.selection, self.features, self.timer_of, self.aim = selection, features, timer_of, selection.aim
        self.gpus = [selection.program.gpu, *gpus]

    def _part(self, share: float) -> PartFactors:
        return PartFactors(self.selection, self.gpus, self.timer_of, share)

    def run(self) -> SampledPoints:
        """With more launches while the interval of a point is wider than was aimed at."""
        self._choose_enough()
        for _ in range(ROUNDS):
            found = self._points()
            if self.selection.complete or found.half_widths.max(initial=0.0) <= self.aim.error:
                break
            self.selection = self.selection.more()
        return found

    def _choose_enough(self) -> None:
        """More launches while those left out alone would make intervals too wide."""
        for _ in range(ROUNDS):
            selection = self.selection
            equal = np.ones((len(selection.of_points), len(selection.launches)))
            half = [point.half_width / point.total for point in self._estimates(equal, np.zeros(len(equal)))]
            if selection.complete or max(half, default=0.0) <= OF_LAUNCHES * self.aim.error:
                break
            self.selection = selection.more()

    def _points(self) -> SampledPoints:
        """With ever more of each launch, until parts say what launches do."""
        selection, aim, whole = self.selection, self.aim, self._part(1.0)
        base = timed_selection(selection.work, selection.chosen, chosen_here=True, confidence=aim.confidence)
        weights, rough = shares_of_cycles(selection, base), roughly(selection, self.gpus)
        rows = disagreeing(rough, weights)
        for share in SHARES:
            parts = whole if share == 1.0 else self._part(share)
            error, degrees, checked = self._checked(rows, parts, whole)
            if error * t_quantile(degrees, aim.confidence) <= OF_PARTS * aim.error:
                break
        of_points = math.hypot(OF_PARTS, OF_POINTS) if error == 0.0 else OF_POINTS
        found = read_off(
            parts.timed, rough, self.features, parts.described(weights), of_points * aim.error, aim.confidence,
            parts.known,
        )  # fmt: skip
        points = self._estimates(found.factors, found.errors, found.degrees, (error, degrees))
        work = parts.work + (0.0 if parts is whole else whole.work)
        return SampledPoints(base, points, len(found.timed), found.factors.size, work, checked)

    def _checked(self, rows: Sequence[int], parts: PartFactors, whole: PartFactors) -> tuple[float, float, int]:
        """Standard error of parts, its degrees of freedom and from how many comparisons: launches drawn in proportion
        to their cycles, each timed whole on one of these points, where launches disagree most with each other."""
        size = np.array([self.selection.chosen[number].total for number in self.selection.launches])
        turns = zip(cycle(rows), in_proportion(size, CHECKS), strict=False)
        pairs = [pair for pair in dict.fromkeys(turns) if parts is not whole and parts.in_part(pair[1])]
        if not pairs:
            return 0.0, math.inf, 0
        return *error_of_parts(parts.timed(pairs), whole.timed(pairs)), len(pairs)

    def _estimates(
        self, factors: Float64[np.ndarray, "point launch"], errors: Float64[np.ndarray, " point"],
        degrees: Float64[np.ndarray, " point"] | None = None, of_parts: tuple[float, float] = (0.0, math.inf),
    ) -> list[TimedSelection]:  # fmt: skip
        """All points. `errors` of each; `of_parts`, of all: their standard error and its degrees of freedom."""
        selection, found = self.selection, []
        for place, work in enumerate(selection.of_points):
            row = zip(selection.launches, factors[place].tolist(), strict=True)
            cycles = {number: scaled(selection.chosen[number], factor) for number, factor in row}
            freedom = np.inf if degrees is None else degrees[place]
            error, shared = pooled_error(np.array([of_parts[0], errors[place]]) ** 2, np.array([of_parts[1], freedom]))
            found.append(
                timed_selection(work, cycles, shared_error=error, degrees=shared, confidence=self.aim.confidence)
            )
        return found


def shares_of_cycles(selection: Selection, base: TimedSelection) -> Float64[np.ndarray, " launch"]:
    """Of the chosen launches in the target's cycles on the first GPU: each stands for others of its kernel."""
    found = np.array([selection.chosen[number].total for number in selection.launches])
    kernels = selection.work.kernels[selection.launches]
    for kernel in base.kernels:
        of_kernel = kernels == selection.work.kernels[kernel.rows[0]]
        found[of_kernel] *= float(kernel.predicted().cycles.sum()) / found[of_kernel].sum()
    return found / found.sum()


def in_proportion(size: Float64[np.ndarray, " launch"], count: int) -> list[int]:
    """`count` launches, at equal steps of their sizes one after the other: a large one may be there again."""
    ends = np.cumsum(size)
    return [int(k) for k in np.searchsorted(ends, (np.arange(count) + 0.5) / count * ends[-1])]


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
