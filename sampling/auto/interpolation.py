"""What launches take on design points, of which only some pairs are timed: the rest is read off between them.

A formula says roughly what each launch takes on each point; what it lacks is alike for pairs that have something in
common (surface.py). How far off that is, is seen where pairs were timed, each predicted from the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sampling.auto.prediction import squared_distances
from sampling.auto.surface import BEFORE, Fit, Pair, Pairs, Places, Setting
from sampling.statistics import t_quantile

if TYPE_CHECKING:
    from jaxtyping import Bool, Float64


class Choice:
    """Of the pairs of some `points`, the first point among them, and some `launches`."""

    def __init__(
        self, pairs: Pairs, points: Sequence[int], launches: Sequence[int], setting: Setting, timed: Iterable[Pair]
    ) -> None:  # fmt: skip
        self.kernels, self.nugget = pairs.kernels, setting.nugget
        self.pairs = [(point, launch) for point in points for launch in launches]
        self.places = Places.of(self.pairs)
        self.among = pairs.covariance(setting, self.places, self.places)
        of_sums = [pairs.shares[p] @ pairs.covariance(setting, pairs.on([p]), self.places) for p in points]
        self.told = np.concatenate([of_sums, np.array(of_sums) - of_sums[list(points).index(0)]])
        self.open = np.ones(len(self.pairs), bool)
        number = {pair: k for k, pair in enumerate(self.pairs)}
        self._condition([number[pair] for pair in timed if pair in number])

    def _condition(self, timed: list[int]) -> None:
        """On pairs that are known."""
        of_timed = self.among[timed]
        weights = np.linalg.solve(of_timed[:, timed] + self.nugget * np.eye(len(timed)), of_timed)
        self.told -= self.told[:, timed] @ weights
        self.among -= of_timed.T @ weights
        self.open[timed] = False

    def next(self, kernel: int | None = None) -> Pair | None:
        """The best one, of one kernel or of all; none if all were timed."""
        wanted: Bool[np.ndarray, " pair"] = self.open.copy()
        if kernel is not None:
            wanted &= self.kernels[self.places.launches] == kernel
        if not wanted.any():
            return None
        gain = (self.told**2).sum(0) / (np.maximum(np.diag(self.among), 0.0) + self.nugget)
        best = int(np.argmax(np.where(wanted, gain, -1.0)))
        self.take(best)
        return self.pairs[best]

    def take(self, best: int) -> None:
        """A pair is known from now on."""
        told, of_sums = self.among[best].copy(), self.told[:, best].copy()
        variance = max(float(told[best]), 0.0) + self.nugget
        self.among -= np.outer(told / variance, told)
        self.told -= np.outer(of_sums / variance, told)
        self.open[best] = False


FEW_POINTS = 6  # and as many more as there are features: of no more points all pairs are timed
FIRST_PAIRS = 10  # or one of each kernel, before anything is read off between them
AT_ONCE = 0.15  # of the pairs timed so far, how many are added between two looks at the error
MOST_PAIRS = 2000  # among which is chosen, before the others: of large launches, and of points that are spread out
# By what intervals are wider than the errors of pairs say, since pairs are timed until these look small. Without it the
# 95 % quantiles of errors over half intervals were 1.0, 1.3 and 1.3 on three programs of the hard sets (seed 11); two
# of 13 points of ResNet-50 lay outside, at 1.06 and 1.55 times the half interval
WIDER = 1.4


@dataclass(frozen=True, eq=False)
class PairCycles:
    """Cycles of each launch on each point. `timed` pairs were; relative standard errors of the weighted sum on each
    point (`of_sums`), and of its ratio to that of the first (`of_ratios`), 0 where all launches were timed; so many
    `degrees` of freedom tell them."""

    cycles: Float64[np.ndarray, "point launch"]
    timed: list[Pair]
    of_sums: Float64[np.ndarray, " point"]
    of_ratios: Float64[np.ndarray, " point"]
    degrees: float

    def half_widths(self, confidence: float) -> Float64[np.ndarray, " point"]:
        """Half of each point's interval, relative."""
        return np.asarray(self.of_sums * t_quantile(self.degrees, confidence))


Time = Callable[[Sequence[Pair]], "Float64[np.ndarray, ' pair']"]


def few_points(features: Float64[np.ndarray, "point feature"]) -> bool:
    """Whether all of them are timed whatever comes of it."""
    return len(features) <= FEW_POINTS + features.shape[1]


def read_off(
    time: Time, pairs: Pairs, error: float, confidence: float, known: Mapping[Pair, float] | None = None
) -> PairCycles:
    """`time` simulates pairs: their cycles, of which some are `known`. Pairs are added until half the interval of the
    sum is at most `error` of it on all points, or all are timed."""
    reading = _Reading(time, pairs, dict(known or {}))
    if few_points(pairs.features):
        reading.time_all()
        return reading.found()
    reading.begin()
    while reading.left and float((found := reading.found()).half_widths(confidence).max()) > error:
        reading.go_on()
    return found if reading.left else reading.found()


class _Reading:
    """Pairs timed so far, and what they say."""

    def __init__(self, time: Time, pairs: Pairs, known: dict[Pair, float]) -> None:
        self.time, self.pairs, self.known = time, pairs, known

    @property
    def left(self) -> bool:
        """Whether there are pairs that were not timed."""
        return len(self.known) < self.pairs.cycles.size

    def begin(self) -> None:
        """Some pairs, of every kernel at least one."""
        choice = self._choice()
        known = {int(self.pairs.kernels[launch]) for _, launch in self.known}
        wanted = [choice.next(kernel) for kernel in np.unique(self.pairs.kernels).tolist() if kernel not in known]
        self._add([*wanted, *(choice.next() for _ in range(FIRST_PAIRS - len(wanted) - len(self.known)))])

    def go_on(self) -> None:
        """Those that tell most; all others, if none is left of those among which is chosen."""
        choice = self._choice()
        if not self._add([choice.next() for _ in range(max(2, int(AT_ONCE * len(self.known))))]):
            self.time_all()

    def time_all(self) -> None:
        """Every pair."""
        points, launches = self.pairs.cycles.shape
        self._add([(p, k) for p in range(points) for k in range(launches) if (p, k) not in self.known])

    def _choice(self) -> Choice:
        points = len(self.pairs.cycles)
        launches = largest(self.pairs, MOST_PAIRS // min(points, FEW_POINTS))
        most = max(MOST_PAIRS // len(launches), FEW_POINTS)
        setting = self._fit().setting if self.known else BEFORE
        return Choice(self.pairs, spread_out(self.pairs.features, min(most, points)), launches, setting, self.known)

    def _add(self, wanted: Sequence[Pair | None]) -> bool:
        new = [pair for pair in wanted if pair is not None]
        if new:
            self.known |= dict(zip(new, self.time(new).tolist(), strict=True))
        return bool(new)

    def _fit(self) -> Fit:
        return self.pairs.fit({pair: math.log(found / self.pairs.cycles[pair]) for pair, found in self.known.items()})

    def found(self) -> PairCycles:
        """As far as it is known."""
        timed = sorted(self.known)
        if not self.left:
            nothing, all_of = np.zeros(len(self.pairs.cycles)), [self.known[pair] for pair in timed]
            return PairCycles(np.reshape(all_of, self.pairs.cycles.shape), timed, nothing, nothing, math.inf)
        fit = self._fit()
        cycles = self.pairs.cycles * np.exp(fit.lacking)
        of_sums, of_ratios = (WIDER * np.sqrt(variances) for variances in (fit.of_sums, fit.of_ratios))
        return PairCycles(cycles, timed, of_sums, of_ratios, fit.degrees)


def largest(pairs: Pairs, count: int) -> list[int]:
    """So many launches, those with most cycles on all points, and one of each kernel."""
    order = np.argsort(-pairs.shares.sum(0), kind="stable")
    first = order[np.unique(pairs.kernels[order], return_index=True)[1]]
    return sorted({*order[:count].tolist(), *first.tolist()})


def spread_out(features: Float64[np.ndarray, "point feature"], count: int) -> list[int]:
    """So many points, each the one farthest from those before; the first is the first."""
    apart = squared_distances(features)
    chosen = [0]
    nearest = apart[0]
    while len(chosen) < count:
        chosen.append(int(np.argmax(np.round(nearest, 9))))
        nearest = np.minimum(nearest, apart[chosen[-1]])
    return chosen
