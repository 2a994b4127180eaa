"""What parts of launches take on design points, of which only some pairs are timed: the rest is read off between them.

A formula says roughly how each part's cycles change over the design space; what it lacks is alike at points near each
other and for launches of one kernel that do alike work (surface.py). How far off that is, is seen where pairs were
timed, each predicted from the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sampling.auto.pair_choice import Choice
from sampling.auto.prediction import squared_distances
from sampling.auto.surface import Fit, Pair, Surface
from sampling.statistics import pooled_error, t_quantile

if TYPE_CHECKING:
    from jaxtyping import Float64, Int64

FEW_POINTS = 6  # and as many more as there are features: of no more points all pairs are timed
FIRST_PAIRS = 8  # of each kernel, before anything is read off between them
FEW_PAIRS = 20  # of a kernel, which may agree by chance: its errors are taken to be no less than those of the others
AT_ONCE = 0.15  # of the pairs timed so far, how many are added between two looks at the error
MOST_POINTS = 256  # among which pairs are chosen, before the others


@dataclass(frozen=True, eq=False)
class Parts:
    """What is timed in the place of launches: `kernels` they are of; `work`, columns by which they are alike;
    `weights`, their shares in the cycles of the first GPU."""

    kernels: Int64[np.ndarray, " part"]
    work: Float64[np.ndarray, "part work"]
    weights: Float64[np.ndarray, " part"]


@dataclass(frozen=True, eq=False)
class PointFactors:
    """Cycles of each part on each point over those on the first GPU. `timed` pairs were; `errors`: relative standard
    error of the weighted sum on each point, 0 where all parts were timed, and how many `degrees` of freedom tell it."""

    factors: Float64[np.ndarray, "point part"]
    timed: list[Pair]
    errors: Float64[np.ndarray, " point"]
    degrees: Float64[np.ndarray, " point"]

    def half_widths(self, confidence: float) -> Float64[np.ndarray, " point"]:
        """Half of each point's interval, relative."""
        quantiles = [t_quantile(degrees, confidence) for degrees in self.degrees.tolist()]
        return np.asarray(self.errors * np.array(quantiles))


Time = Callable[[Sequence[Pair]], "Float64[np.ndarray, ' pair']"]


def few_points(features: Float64[np.ndarray, "point feature"]) -> bool:
    """Whether all of them are timed whatever comes of it."""
    return len(features) <= FEW_POINTS + features.shape[1]


def read_off(
    time: Time, formula: Float64[np.ndarray, "point part"], features: Float64[np.ndarray, "point feature"],
    parts: Parts, error: float, confidence: float, known: Mapping[Pair, float] | None = None,
) -> PointFactors:  # fmt: skip
    """`time` simulates pairs: their factors, of which some are `known`. `formula`: its factors; `features` of points,
    -1 to 1. Pairs are added until half the interval of the sum is at most `error` of it on all points, or all are
    timed."""
    reading = _Reading(time, formula, features, parts, dict(known or {}))
    if few_points(features):
        reading.time_all()
        return reading.found()
    reading.begin()
    while reading.left and float((found := reading.found()).half_widths(confidence).max()) > error:
        reading.go_on()
    return found if reading.left else reading.found()


class _Reading:
    """Pairs timed so far, and what they say."""

    def __init__(
        self, time: Time, formula: Float64[np.ndarray, "point part"], features: Float64[np.ndarray, "point feature"],
        parts: Parts, known: dict[Pair, float],
    ) -> None:  # fmt: skip
        self.time, self.formula, self.features, self.parts = time, formula, features, parts
        self.rows = [np.flatnonzero(parts.kernels == kernel) for kernel in np.unique(parts.kernels)]
        shares = parts.weights * formula
        self.surfaces = self._surfaces(shares / shares.sum(1, keepdims=True))
        self.factors: dict[Pair, float] = known
        self.fits = [self._fit(surface, rows) for surface, rows in zip(self.surfaces, self.rows, strict=True)]

    def _surfaces(self, shares: Float64[np.ndarray, "point part"]) -> list[Surface]:
        apart, linear = squared_distances(self.features), 1.0 + self.features @ self.features.T
        work = np.log1p(self.parts.work)
        unlike = squared_distances(work) / work.shape[1]
        return [Surface(apart, linear, unlike[np.ix_(rows, rows)], shares[:, rows]) for rows in self.rows]

    @property
    def left(self) -> bool:
        """Whether there are pairs that were not timed."""
        return len(self.factors) < self.formula.size

    def begin(self) -> None:
        """Some pairs of every kernel."""
        choice = self._choice()
        wanted = [choice.next(k) for k in range(len(self.rows)) for _ in range(FIRST_PAIRS)]
        self._add([pair for pair in wanted if pair is not None])

    def go_on(self) -> None:
        """Those that tell most; all others, if none is left of the points among which is chosen."""
        choice = self._choice()
        wanted = [choice.next() for _ in range(max(2, int(AT_ONCE * len(self.factors))))]
        if found := [pair for pair in wanted if pair is not None]:
            self._add(found)
        else:
            self.time_all()

    def time_all(self) -> None:
        """Every pair."""
        points, parts = self.formula.shape
        self._add([(p, k) for p in range(points) for k in range(parts) if (p, k) not in self.factors])

    def _choice(self) -> Choice:
        points = np.array(spread_out(self.features, min(MOST_POINTS, len(self.features))))
        settings = [(fit.setting, fit.scale) for fit in self.fits]
        return Choice(self.surfaces, self.rows, points, settings, self.factors)

    def _add(self, pairs: Sequence[Pair]) -> None:
        new = dict(zip(pairs, self.time(pairs).tolist(), strict=True)) if pairs else {}
        self.factors |= new
        for place, rows in enumerate(self.rows):
            if not {part for _, part in new}.isdisjoint(rows.tolist()):
                self.fits[place] = self._fit(self.surfaces[place], rows)

    def _fit(self, surface: Surface, rows: Int64[np.ndarray, " part"]) -> Fit:
        place = {int(part): k for k, part in enumerate(rows)}
        timed = [(pair, factor) for pair, factor in self.factors.items() if pair[1] in place]
        known = {(p, place[k]): float(np.log(factor / self.formula[p, k])) for (p, k), factor in timed}
        return surface.fit(known) if known else surface.prior

    def found(self) -> PointFactors:
        """As far as it is known."""
        factors = self.formula.copy()
        for fit, rows in zip(self.fits, self.rows, strict=True):
            factors[:, rows] *= np.exp(fit.lacking)
        degrees = np.array([fit.degrees for fit in self.fits])
        variances = np.array([fit.variance for fit in self.fits]) * self._lucky()[:, None]
        pooled = [pooled_error(each, degrees) for each in variances.T]
        errors, freedom = np.array(pooled).T
        return PointFactors(factors, sorted(self.factors), errors, freedom)

    def _lucky(self) -> Float64[np.ndarray, " kernel"]:
        """By what variances grow of kernels with few pairs: to the mean of all, weighted as the kernels are."""
        squares = np.array([fit.scale**2 for fit in self.fits])
        shares = np.array([self.parts.weights[rows].sum() for rows in self.rows])
        few = np.array([fit.degrees + 1.0 < FEW_PAIRS for fit in self.fits])
        return np.where(few, np.maximum(squares @ shares / shares.sum() / squares, 1.0), 1.0)


def spread_out(features: Float64[np.ndarray, "point feature"], count: int) -> list[int]:
    """So many points, each the one farthest from those before; the first is the farthest from the middle."""
    apart = squared_distances(features)
    chosen = [int(np.argmax(np.round((features**2).sum(1), 9)))]
    nearest = apart[chosen[0]]
    while len(chosen) < count:
        chosen.append(int(np.argmax(np.round(nearest, 9))))
        nearest = np.minimum(nearest, apart[chosen[-1]])
    return chosen
