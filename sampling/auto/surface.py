"""How what a formula lacks changes over design points and launches.

A Gaussian process (Rasmussen and Williams, Gaussian Processes for Machine Learning) over pairs of a point and a launch.
Two pairs have in common what they have in common by the keys of their points (a constant, a linear trend, a smooth
rest) as far as their launches are alike, and what they have in common because the formula says that the same limits
them: where L2 decides, say, it is short alike. How much of each, is taken from the pairs that were timed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sampling.auto.prediction import squared_distances

if TYPE_CHECKING:
    from jaxtyping import Float64, Int64

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
