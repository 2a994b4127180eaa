"""Which launches to simulate next, until the sum of all is known as well as was asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from sampling.auto.prediction import Prediction, predict
from sampling.auto.unlike import choose_unlike
from sampling.estimate import Estimate, Part, around, worst
from sampling.statistics import CONFIDENCE, pooled_error, t_quantile

if TYPE_CHECKING:
    from jaxtyping import Float64, Int64

FIRST = 3  # launches of a kernel that are simulated before anything is predicted from them
FEW = 10  # errors of a kernel
AT_ONCE = 0.1  # of the launches simulated so far, how many are added between two looks at the error


@dataclass(frozen=True, eq=False, kw_only=True)
class ProgramWork:
    """A row a launch. `cost`: of simulating it, in any unit; `columns`: see `prediction.predict`."""

    kernels: Int64[np.ndarray, " launch"]
    columns: Float64[np.ndarray, "launch work"]
    cost: Float64[np.ndarray, " launch"]
    instructions: Float64[np.ndarray, " launch"]


class _Kernel:
    """The launches of one kernel, of which some have been simulated."""

    def __init__(self, rows: Int64[np.ndarray, " launch"], work: ProgramWork, rng: np.random.Generator) -> None:
        self.rows, self.columns, self.cost, self.rng = rows, work.columns[rows], work.cost[rows], rng
        self.sample: list[int] = []
        self.estimates: list[Estimate] = []
        self.prediction: Prediction | None = None

    def add(self, place: int, estimate: Estimate) -> None:
        self.sample.append(place)
        self.estimates.append(estimate)
        self.prediction = None

    def choose(self, count: int) -> list[int]:
        """Launches to simulate next."""
        size = self.cost if self.prediction is None else self.prediction.cycles
        return choose_unlike(self.columns, size, self.sample, count, self.rng)

    def predicted(self) -> Prediction:
        if self.prediction is None:
            self.prediction = predict(self.columns, np.array(self.sample), np.array([e.total for e in self.estimates]))
        return self.prediction

    @property
    def inner(self) -> float:
        """Variance from launches that were themselves sampled, of which each may stand for others."""
        share = float(self.predicted().cycles.sum()) / sum(estimate.total for estimate in self.estimates)
        return sum((share * estimate.standard_error) ** 2 for estimate in self.estimates)

    @property
    def done(self) -> bool:
        return len(self.sample) == len(self.rows)


@dataclass(eq=False)
class LaunchSampling:
    """Two-phase sampling over launches with a regression estimator.

    FIRST launches of every kernel are simulated; then, AT_ONCE more at a time, launches of the kernel in which a unit
    of cost takes most off the variance, until half the interval is at most `error` of the total, or everything was
    simulated. What is left is predicted from the work of each launch (`predict`).
    """

    error: float = 0.02
    confidence: float = CONFIDENCE
    seed: int = 0
    name = "auto"
    history: list[tuple[int, float]] = field(default_factory=list)  # launches simulated, relative half-width

    def program(self, work: ProgramWork, measure: Callable[[Sequence[int]], Sequence[Estimate]]) -> Estimate:
        """`measure` simulates launches, given by number."""
        rng = np.random.default_rng(self.seed)
        order = np.argsort(work.kernels, kind="stable")
        parts = np.split(order, np.cumsum(np.bincount(work.kernels))[:-1])
        kernels = [_Kernel(rows, work, rng) for rows in parts]
        asked = [(kernel, place) for kernel in kernels for place in kernel.choose(FIRST)]
        while asked:
            rows = [int(kernel.rows[place]) for kernel, place in asked]
            for (kernel, place), estimate in zip(asked, measure(rows), strict=True):
                kernel.add(place, estimate)
            total, half = self.interval(kernels)
            self.history.append((sum(len(kernel.sample) for kernel in kernels), half / total))
            asked = [] if half <= self.error * total else self._next(kernels)
        return _estimate(self, kernels, work)

    def _next(self, kernels: list[_Kernel]) -> list[tuple[_Kernel, int]]:
        open_ones = [kernel for kernel in kernels if not kernel.done]
        if not open_ones:
            return []
        best = max(open_ones, key=_gain)
        count = max(1, int(AT_ONCE * sum(len(kernel.sample) for kernel in kernels)))
        return [(best, place) for place in best.choose(count)]

    def interval(self, kernels: list[_Kernel]) -> tuple[float, float]:
        """Cycles of the program, and half of their interval."""
        found = [kernel.predicted() for kernel in kernels]
        scales, counts = np.array([p.scale for p in found]), np.array([len(kernel.sample) for kernel in kernels])
        pooled = float(np.dot(scales, counts)) / float(counts.sum())
        lucky = np.where(counts < FEW, np.maximum(pooled / scales, 1.0), 1.0)  # few may agree by chance
        own = np.array([p.variance for p in found]) * lucky
        variances = np.append(own, [kernel.inner for kernel in kernels])
        degrees = np.array([p.degrees for p in found] + [np.inf] * len(kernels))
        error, freedom = pooled_error(variances, degrees)
        total = sum(float(p.cycles.sum()) for p in found)
        return total, t_quantile(freedom, self.confidence) * error


def _estimate(method: LaunchSampling, kernels: list[_Kernel], work: ProgramWork) -> Estimate:
    total, half = method.interval(kernels)
    cycles, share = np.zeros(len(work.kernels)), np.zeros(len(work.kernels))
    inner: list[Estimate] = []
    for kernel in kernels:
        cycles[kernel.rows] = kernel.predicted().cycles
        share[kernel.rows[kernel.sample]] = [estimate.detailed_fraction for estimate in kernel.estimates]
        inner += kernel.estimates
    left = share == 0.0
    parts = [part for estimate in inner for part in estimate.parts]
    if left.any():
        of = float(work.instructions[left].sum())
        parts.append(
            Part(name=f"{left.sum():,} launches", how="predicted", instructions=of, cycles=float(cycles[left].sum()))
        )
    done = float(np.dot(share, work.instructions) / work.instructions.sum())
    return around(
        method.name,
        total,
        half / t_quantile(math.inf),
        confidence=method.confidence,
        basis="sampled" if left.any() else worst(inner),
        parts=tuple(parts),
        unit_cycles=tuple(cycles.tolist()),
        detailed_fraction=min(round(done, 12), 1.0),
    )


def _gain(kernel: _Kernel) -> float:
    """Variance that a unit of cost takes off, roughly: a launch more in `n` takes an n-th off."""
    left = np.ones(len(kernel.rows), bool)
    left[kernel.sample] = False
    return kernel.predicted().variance / len(kernel.sample) / float(kernel.cost[left].mean())
