"""How what a formula lacks changes over design points and over the launches of one kernel.

A Gaussian process (Rasmussen and Williams, Gaussian Processes for Machine Learning) over pairs of a point and a part:
the covariance of two pairs is that of their points, a linear trend and a smooth rest, times that of their parts, which
is the higher the more alike their work is. How much of each, is taken from the pairs that were timed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float64, Int64

Pair = tuple[int, int]  # a point and a part
# Settings that explain what was timed nearly as well as the best, in the logarithm of their likelihood: the largest of
# their errors is taken. That of the best alone held the truth of half of the points where few pairs were timed.
PLAUSIBLE = 3.0
# Of a pair, relative, before any was seen: counts as much as one that was, for few pairs may agree by chance. With
# less, intervals on programs of the hard sets held 70 to 90 % of points where some ten pairs had been timed.
ASSUMED_ERROR = 0.1


class Setting(NamedTuple):
    """Of a covariance, in the variance of what is smooth: the linear `trend`'s, and that by which neighbours differ
    (`nugget`); `reach`: how different the logarithms of the work of two parts are that have 0.6 of it in common."""

    trend: float
    reach: float
    nugget: float


SETTINGS = tuple(Setting(*each) for each in product((0.1, 1.0, 10.0), (0.25, 1.0, 4.0), (0.001, 0.01, 0.1, 1.0)))
BEFORE = Setting(1.0, 1.0, 0.01)  # anything was timed


@dataclass(frozen=True, eq=False)
class Surface:
    """Of points: squared distances (`apart`) and products (`linear`) of their features; of parts: mean squared
    distances of the logarithms of their work (`unlike`). `shares`: of each part in the cycles of a point."""

    apart: Float64[np.ndarray, "point point"]
    linear: Float64[np.ndarray, "point point"]
    unlike: Float64[np.ndarray, "part part"]
    shares: Float64[np.ndarray, "point part"]

    def covariances(
        self, setting: Setting
    ) -> tuple[Float64[np.ndarray, "point point"], Float64[np.ndarray, "part part"]]:
        """Of points, and of parts: that of pairs is their product."""
        points = np.exp(-self.apart / 2.0) + setting.trend * self.linear
        return points, np.exp(-self.unlike / setting.reach**2 / 2.0)

    @property
    def prior(self) -> Fit:
        """Before anything was timed: any scale will do, which is that of all kernels."""
        points, parts = self.shares.shape
        return Fit(BEFORE, np.zeros((points, parts)), np.ones(points), 1.0, 1.0)

    def fit(self, known: Mapping[Pair, float]) -> Fit:
        """From the logarithms of what the formula lacks on some pairs."""
        fits = [_Conditioned(self, setting, known) for setting in SETTINGS]
        best = max(fits, key=lambda fit: fit.likelihood)
        plausible = [fit for fit in fits if fit.likelihood >= best.likelihood - PLAUSIBLE]
        variance = np.max([fit.variance() for fit in plausible], axis=0)
        return Fit(best.setting, best.lacking(known), variance, math.sqrt(best.square), max(len(known) - 1.0, 1.0))


@dataclass(frozen=True, eq=False)
class Fit:
    """`lacking`: logarithms of what the formula lacks, those timed as they are. `variance` of the sum of a point's
    shares of them, which so many `degrees` of freedom tell; `scale`: standard deviation of what is smooth."""

    setting: Setting
    lacking: Float64[np.ndarray, "point part"]
    variance: Float64[np.ndarray, " point"]
    scale: float
    degrees: float


class _Conditioned:
    """On the pairs that were timed, by one setting."""

    def __init__(self, surface: Surface, setting: Setting, known: Mapping[Pair, float]) -> None:
        self.surface, self.setting = surface, setting
        self.at, self.part = _places(list(known))
        self.points, self.parts = surface.covariances(setting)
        among = self.points[np.ix_(self.at, self.at)] * self.parts[np.ix_(self.part, self.part)]
        self.inverse = np.linalg.inv(among + setting.nugget * np.eye(len(known)))
        self.weights = self.inverse @ np.array(list(known.values()))
        # Errors of each pair predicted from the others, over what was expected of them (5.4.2 of the book)
        told = np.diag(self.inverse)
        off = self.weights / np.sqrt(told)
        self.square = (float(off @ off) + ASSUMED_ERROR**2 * float(told.mean())) / len(known)
        self.likelihood = 0.5 * float(np.log(told).sum()) - 0.5 * len(known) * math.log(self.square)

    def lacking(self, known: Mapping[Pair, float]) -> Float64[np.ndarray, "point part"]:
        found = np.einsum("pk,lk,k->pl", self.points[:, self.at], self.parts[:, self.part], self.weights)
        found[self.at, self.part] = list(known.values())
        return found

    def variance(self) -> Float64[np.ndarray, " point"]:
        """Of the sum of the shares; none where all parts were timed."""
        left = self.surface.shares.copy()
        left[self.at, self.part] = 0.0
        with_parts = left @ self.parts
        with_known = self.points[:, self.at] * with_parts[:, self.part]
        before = np.diag(self.points) * np.einsum("pl,pl->p", with_parts, left)
        told = np.einsum("pk,kj,pj->p", with_known, self.inverse, with_known)
        return self.square * np.maximum(before - told + self.setting.nugget * (left**2).sum(1), 0.0)


def _places(pairs: Sequence[Pair]) -> tuple[Int64[np.ndarray, " pair"], Int64[np.ndarray, " pair"]]:
    found = np.array(pairs, int).reshape(-1, 2)
    return found[:, 0], found[:, 1]
