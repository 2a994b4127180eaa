"""Cycles of launches on design points, of which only some pairs are timed: the rest is read off between them.

A formula says roughly what each launch takes on each point. What it lacks is a Gaussian process (Rasmussen and
Williams, Gaussian Processes for Machine Learning) over pairs of a point and a launch. Two pairs have in common what
they have in common by the keys of their points (a constant, a linear trend, a smooth rest) as far as their launches are
alike, and what they have in common because the formula says that the same limits them: where L2 decides, say, it is
short alike. How much of each, and how far off that is, is taken from the pairs that were timed, each predicted from
the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sampling.auto.prediction import squared_distances
from sampling.statistics import t_quantile

if TYPE_CHECKING:
    from jaxtyping import Bool, Float64, Int64


Pair = tuple[int, int]  # a point and a launch
# Settings that explain what was timed nearly as well as the best, in the logarithm of their likelihood: the largest of
# their errors is taken. That of the best alone held the truth of half of the points where few pairs were timed.
PLAUSIBLE = 3.0
# Of a pair, relative, before any was seen: counts as much as one that was, for few pairs may agree by chance. With
# less, intervals on programs of the hard sets held 70 to 90 % of points where some ten pairs had been timed.
ASSUMED_ERROR = 0.1
HELD = 2_000_000  # covariances of launches with each other, of as many points at a time as that allows
CONSTANT, TREND, SMOOTH = 0.5, 0.1, 0.3  # parts of the variance that goes by the keys of the points
# How alike launches of different kernels are; of one kernel it is more, the more alike their work, but for what each
# has of its own, if its work differs by more than a few per cent
OTHER_KERNEL, OWN, SAME = 0.2, 0.6, 0.05


class Setting(NamedTuple):
    """Of a covariance: the variance that goes by the `limits` of pairs, that by the keys being about 1, and how
    different limits are that have 0.6 of it in common (`limit_reach`); how different the logarithms of the work of two
    launches are, likewise (`work_reach`); by what neighbours differ (`nugget`)."""

    limits: float
    limit_reach: float
    work_reach: float
    nugget: float


SETTINGS = tuple(Setting(*each) for each in product((0.3, 1.0, 3.0), (0.15, 0.4), (0.5, 2.0), (0.02, 0.1, 0.5)))
BEFORE = Setting(1.0, 0.4, 0.5, 0.02)  # anything was timed


class Places(NamedTuple):
    """Some pairs, as indices."""

    points: Int64[np.ndarray, " pair"]
    launches: Int64[np.ndarray, " pair"]

    @classmethod
    def of(cls, pairs: Sequence[Pair]) -> Places:
        """Pairs, in their order."""
        return cls(*np.array(pairs, np.int64).reshape(-1, 2).T)


@dataclass(frozen=True, eq=False)
class Pairs:
    """All pairs of some points and launches. `cycles` by a formula; `limits`: numbers that say what decides them by
    it; `features` of points, about -1 to 1; `kernels` the launches are of; `work`, columns by which they are alike;
    `multiples`: each launch stands for so many of its size."""

    cycles: Float64[np.ndarray, "point launch"]
    limits: Float64[np.ndarray, "point launch limit"]
    features: Float64[np.ndarray, "point feature"]
    kernels: Int64[np.ndarray, " launch"]
    work: Float64[np.ndarray, "launch work"]
    multiples: Float64[np.ndarray, " launch"]

    @cached_property
    def shares(self) -> Float64[np.ndarray, "point launch"]:
        """Of each launch in the cycles of a point."""
        sizes = self.cycles * self.multiples
        return np.asarray(sizes / sizes.sum(1, keepdims=True))

    @cached_property
    def by_keys(self) -> Float64[np.ndarray, "point point"]:
        """Covariance of points by their keys."""
        smooth = np.exp(-squared_distances(self.features) / 2.0)
        return np.asarray(CONSTANT + TREND * self.features @ self.features.T + SMOOTH * smooth)

    @cached_property
    def unlike(self) -> Float64[np.ndarray, "launch launch"]:
        """Mean squared distances of the logarithms of the launches' work; infinite between kernels."""
        work = np.log1p(self.work)
        same = self.kernels[:, None] == self.kernels
        return np.where(same, squared_distances(work) / work.shape[1], np.inf)

    def on(self, points: Sequence[int]) -> Places:
        """The pairs of some points, one point after the other."""
        return Places(*(each.reshape(-1) for each in np.meshgrid(points, np.arange(len(self.kernels)), indexing="ij")))

    @property
    def stretches(self) -> list[slice]:
        """All points, a few at a time."""
        count, some = len(self.cycles), max(1, HELD // len(self.kernels) ** 2)
        return [slice(first, min(first + some, count)) for first in range(0, count, some)]

    def covariance(self, setting: Setting, a: Places, b: Places) -> Float64[np.ndarray, "a b"]:
        """Of pairs `a` with pairs `b`, but for what is each pair's own."""
        alike = self._alike(setting)[np.ix_(a.launches, b.launches)]
        apart = squared_distances(self.limits[a.points, a.launches], self.limits[b.points, b.launches])
        by_limits = np.exp(-apart / setting.limit_reach**2 / 2.0)
        return np.asarray(alike * self.by_keys[np.ix_(a.points, b.points)] + setting.limits * by_limits)

    def between(
        self, setting: Setting, points: slice, first: bool = False
    ) -> Float64[np.ndarray, "point launch launch"]:
        """The same of all launches on each of these points, with each other or with those on the first point."""
        own = self.limits[points]
        others = self.limits[:1] if first else own
        apart = (own**2).sum(-1)[:, :, None] + (others**2).sum(-1)[:, None, :] - 2.0 * own @ others.swapaxes(1, 2)
        keys = self.by_keys[points, 0] if first else np.diag(self.by_keys)[points]
        by_limits = np.exp(-np.maximum(apart, 0.0) / setting.limit_reach**2 / 2.0)
        return np.asarray(self._alike(setting) * keys[:, None, None] + setting.limits * by_limits)

    def _alike(self, setting: Setting) -> Float64[np.ndarray, "launch launch"]:
        of_kernel, own = (np.exp(-self.unlike / reach**2 / 2.0) for reach in (setting.work_reach, SAME))
        return np.asarray(OTHER_KERNEL + (1.0 - OTHER_KERNEL - OWN) * of_kernel + OWN * own)

    def fit(self, known: Mapping[Pair, float]) -> Fit:
        """From the logarithms of what the formula lacks on some pairs."""
        fits = [Conditioned(self, setting, known) for setting in SETTINGS]
        best = max(fits, key=lambda fit: fit.likelihood)
        plausible = [fit.variances() for fit in fits if fit.likelihood >= best.likelihood - PLAUSIBLE]
        of_sums, of_ratios = np.max(plausible, axis=0)
        return Fit(best.setting, best.lacking(), of_sums, of_ratios, max(len(known) - 1.0, 1.0))


@dataclass(frozen=True, eq=False)
class Fit:
    """`lacking`: logarithms of what the formula lacks, those timed as they are. Relative variances of the sum of all
    launches on a point, and of its ratio to that on the first point, which so many `degrees` of freedom tell."""

    setting: Setting
    lacking: Float64[np.ndarray, "point launch"]
    of_sums: Float64[np.ndarray, " point"]
    of_ratios: Float64[np.ndarray, " point"]
    degrees: float


@dataclass(eq=False)
class Conditioned:
    """On the pairs that were timed, by one setting."""

    pairs: Pairs
    setting: Setting
    known: Mapping[Pair, float]
    square: float = field(init=False)  # variance of one unit of covariance
    likelihood: float = field(init=False)

    def __post_init__(self) -> None:
        self.at = Places.of(list(self.known))
        among = self.pairs.covariance(self.setting, self.at, self.at) + self.setting.nugget * np.eye(len(self.known))
        self.inverse = np.linalg.inv(among)
        self.weights = self.inverse @ np.array(list(self.known.values()))
        # Errors of each pair predicted from the others, over what was expected of them (5.4.2 of the book)
        told = np.diag(self.inverse)
        off = self.weights / np.sqrt(told)
        self.square = (float(off @ off) + ASSUMED_ERROR**2 * float(told.mean())) / len(self.known)
        self.likelihood = 0.5 * float(np.log(told).sum()) - 0.5 * len(self.known) * math.log(self.square)

    def lacking(self) -> Float64[np.ndarray, "point launch"]:
        """See `Fit`."""
        found = np.concatenate([self._with_timed(points) @ self.weights for points in self.pairs.stretches])
        found[self.at] = list(self.known.values())
        return found

    def _with_timed(self, points: slice) -> Float64[np.ndarray, "point launch pair"]:
        places = self.pairs.on(range(points.start, points.stop))
        found = self.pairs.covariance(self.setting, places, self.at)
        return found.reshape(-1, len(self.pairs.kernels), len(self.known))

    def variances(self) -> Float64[np.ndarray, "2 point"]:
        """Of sums, and of their ratios to that of the first point; nothing of what was timed."""
        left = self.pairs.shares.copy()
        left[self.at] = 0.0
        parts = [self._before(left, points) for points in self.pairs.stretches]
        of_sums, with_first, told = (np.concatenate(each) for each in zip(*parts, strict=True))
        of_sums += self.setting.nugget * (left**2).sum(1) - ((told @ self.inverse) * told).sum(1)
        of_ratios = of_sums + of_sums[0] - 2.0 * (with_first - told @ self.inverse @ told[0])
        of_ratios[0] = 0.0
        return np.asarray(self.square * np.maximum([of_sums, of_ratios], 0.0))

    def _before(
        self, left: Float64[np.ndarray, "point launch"], points: slice
    ) -> tuple[Float64[np.ndarray, " point"], Float64[np.ndarray, " point"], Float64[np.ndarray, "point pair"]]:
        """Before anything was timed: variance of each point's sum, its covariance with that of the first point, and
        with the pairs that were timed."""
        some = left[points]
        own = np.einsum("pl,plm,pm->p", some, self.pairs.between(self.setting, points), some, optimize=True)
        first = np.einsum(
            "pl,plm,m->p", some, self.pairs.between(self.setting, points, first=True), left[0], optimize=True
        )
        return own, first, np.einsum("pl,plk->pk", some, self._with_timed(points))


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
