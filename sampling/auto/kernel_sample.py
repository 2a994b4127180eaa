"""Launches that are predicted from each other, some of them simulated, and the sum over all with its interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sampling.auto.fits import BY_ONE_SM, BY_WORK, Fit
from sampling.auto.prediction import Prediction, predict
from sampling.auto.unlike import choose_heavy, choose_unlike
from sampling.estimate import Estimate
from sampling.statistics import pooled_error, t_quantile

if TYPE_CHECKING:
    from jaxtyping import Float64, Int64

# By what intervals are wider than errors of launches left out say, since launches are chosen until these look small:
# the 95 % quantile of error over half interval on seed 7 of the hard sets is 1.33. With it intervals hold the truth of
# 95 and 98 % of seeds 8 and 9 (293 rows, two GPUs), which nobody had looked at; 89 and 93 % without
WIDER = 1.3
FEW = 10  # errors of a kernel
# Mean square of errors over what was assumed, beyond which one SM is not believed: of launches chosen because it says
# that they are long, it says too much, and of those left too little
TOLD_BADLY = 4.0


@dataclass(frozen=True, eq=False, kw_only=True)
class ProgramWork:
    """A row a launch. `kernels`: equal where launches are predicted from each other; `kinds`: where they are known to
    do the same, but for where their data lie; `cost`: of simulating it, in any unit; `columns`: see `predict`;
    `one_sm`: cycles on one SM, 0 where that is not known."""

    kernels: Int64[np.ndarray, " launch"]
    kinds: Int64[np.ndarray, " launch"]
    columns: Float64[np.ndarray, "launch work"]
    cost: Float64[np.ndarray, " launch"]
    instructions: Float64[np.ndarray, " launch"]
    one_sm: Float64[np.ndarray, " launch"] | None = None


class KernelSample:
    """The launches of one kernel, or all that one SM has told of, of which some have been simulated."""

    def __init__(self, rows: Int64[np.ndarray, " launch"], work: ProgramWork, rng: np.random.Generator) -> None:
        self.rows, self.columns, self.cost, self.rng = rows, work.columns[rows], work.cost[rows], rng
        self.fits: tuple[Fit, ...] = BY_WORK
        if work.one_sm is not None and work.one_sm[rows].all():
            self.columns, self.fits = np.column_stack([self.columns, work.one_sm[rows]]), BY_ONE_SM
        _, self.first, self.kinds = np.unique(work.kinds[rows], return_index=True, return_inverse=True)
        self.sample: list[int] = []
        self.estimates: list[Estimate] = []
        self.prediction: Prediction | None = None

    def add(self, place: int, estimate: Estimate) -> None:
        """A launch has been simulated."""
        self.sample.append(place)
        self.estimates.append(estimate)
        self.prediction = None

    def choose(self, count: int) -> list[int]:
        """Launches to simulate next: of kinds of which none was, unless those of the others weigh more."""
        found = self.prediction
        if found is not None and found.variance_of_equal > 0.5 * found.variance:
            return self._equal(found, count)
        size = np.bincount(self.kinds, self.cost if found is None else found.cycles)
        known = np.unique(self.kinds[self.sample])
        return self.first[self._unseen(size, known.tolist(), count)].tolist()

    def _unseen(self, size: Float64[np.ndarray, " kind"], known: Sequence[int], count: int) -> list[int]:
        """Kinds of which no launch was simulated. Where one SM has told of each, nothing else can make it differ."""
        if self.fits is BY_ONE_SM and (self.prediction is None or self.prediction.scale <= TOLD_BADLY):
            return choose_heavy(size, self.cost[self.first], known, count)
        return choose_unlike(self.columns[self.first], size, known, count, self.rng)

    def _equal(self, found: Prediction, count: int) -> list[int]:
        """Of kinds of which a launch was simulated, those that weigh most."""
        weights = np.bincount(self.kinds, found.cycles * found.errors * ~found.unseen)[self.kinds] * (found.errors > 0)
        most = np.argsort(-weights, kind="stable")[:count]
        return most[weights[most] > 0].tolist()

    def predicted(self) -> Prediction:
        """Cycles of all of them."""
        if self.prediction is None:
            measured = np.array([estimate.total for estimate in self.estimates])
            self.prediction = predict(self.columns, np.array(self.sample), measured, self.kinds, self.fits)
        return self.prediction

    @property
    def inner(self) -> float:
        """Variance from launches that were themselves sampled, of which each may stand for others."""
        share = float(self.predicted().cycles.sum()) / sum(estimate.total for estimate in self.estimates)
        return sum((share * estimate.standard_error) ** 2 for estimate in self.estimates)

    @property
    def done(self) -> bool:
        """Whether nothing is left out."""
        return len(self.sample) == len(self.rows)


def by_kernel(work: ProgramWork, rng: np.random.Generator) -> list[KernelSample]:
    """A program's launches, none of them simulated."""
    order = np.argsort(work.kernels, kind="stable")
    parts = np.split(order, np.cumsum(np.bincount(work.kernels))[:-1])
    return [KernelSample(rows, work, rng) for rows in parts if len(rows)]


def total_interval(kernels: Sequence[KernelSample], confidence: float) -> tuple[float, float]:
    """Cycles of the program, and half of their interval."""
    found = [kernel.predicted() for kernel in kernels]
    counts = np.array([len(kernel.sample) for kernel in kernels])
    own = WIDER**2 * np.array([p.variance for p in found]) * lucky(np.array([p.scale for p in found]), counts)
    half = half_width(own, [kernel.inner for kernel in kernels], found, confidence)
    return sum(float(p.cycles.sum()) for p in found), half


def lucky(scales: Float64[np.ndarray, " kernel"], counts: Int64[np.ndarray, " kernel"]) -> np.ndarray:
    """By what variances grow of kernels with few launches, which may agree by chance: to the mean of all kernels."""
    pooled = float(np.dot(scales, counts)) / float(counts.sum())
    return np.where(counts < FEW, np.maximum(pooled / scales, 1.0), 1.0)


def half_width(
    own: Float64[np.ndarray, " kernel"], inner: Sequence[float], found: Sequence[Prediction], confidence: float
) -> float:
    """Half of an interval from the variances of each kernel's predictions, and of samples inside of launches."""
    degrees = np.array([p.degrees for p in found] + [np.inf] * len(inner))
    error, freedom = pooled_error(np.append(own, inner), degrees)
    return t_quantile(freedom, confidence) * error
