"""What parts of launches take on design points, of which only some are timed: the rest is read off between them.

A formula says roughly how each part's cycles change over the design space; what it leaves over is smooth, and is
interpolated (universal kriging: a linear trend and a Gaussian covariance; Sacks, Welch, Mitchell and Wynn, Statistical
Science 1989). How far off that is, is seen where points were timed, each predicted from the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sampling.statistics import t_quantile

if TYPE_CHECKING:
    from jaxtyping import Float64

FIRST_POINTS = 6  # timed before anything is read off between them, and as many more as there are features
AT_ONCE = 2  # added while that is not good enough
# Variance by which neighbours differ, in that of what is smooth: that of these which predicts left-out points best
NUGGETS = (0.001, 0.01, 0.1, 1.0, 10.0)
# The same, where errors of left-out points are carried over to others. Not what predicts best: points are added until
# their errors look small, and with that these came out up to 3 times too small on the hard sets and on noise
EVEN = 1.0
TREND = 25.0  # variance of the trend, in the same: hardly bound


@dataclass(frozen=True, eq=False)
class PointFactors:
    """Cycles of each part on each point over those on the first GPU. `timed` points were; `errors`: relative standard
    error of the weighted sum on each point, 0 on those, which as many `degrees` of freedom tell."""

    factors: Float64[np.ndarray, "point part"]
    timed: list[int]
    errors: Float64[np.ndarray, " point"]
    degrees: float = math.inf


Time = Callable[[list[int]], "Float64[np.ndarray, 'row part']"]


def first_points(features: Float64[np.ndarray, "point feature"]) -> int:
    """So many are timed whatever comes of it; of no more points nothing is read off."""
    return min(FIRST_POINTS + features.shape[1], len(features))


def read_off(
    time: Time, formula: Float64[np.ndarray, "point part"], features: Float64[np.ndarray, "point feature"],
    weights: Float64[np.ndarray, " part"], error: float, confidence: float, begin: list[int],
) -> PointFactors:  # fmt: skip
    """`time` simulates points: factors of all parts. `formula`: its factors; `features` of points, -1 to 1; `weights`
    of parts in the sum. Points, those to `begin` with first, are added until half the interval of the sum is at most
    `error` of it, or all are timed."""
    order = spread_out(features, first_points(features), begin)
    known = np.log(time(order))
    while len(order) < len(features):
        found = _read_off(known, order, formula, features, weights)
        if float(found.errors.max()) * t_quantile(found.degrees, confidence) <= error:
            return found
        more = spread_out(features, len(order) + AT_ONCE, order)[len(order) :]
        known, order = np.concatenate([known, np.log(time(more))]), order + more
    factors = np.empty_like(known)
    factors[order] = np.exp(known)
    return PointFactors(factors, order, np.zeros(len(order)))


def _read_off(
    known: Float64[np.ndarray, "timed part"], timed: list[int], formula: Float64[np.ndarray, "point part"],
    features: Float64[np.ndarray, "point feature"], weights: Float64[np.ndarray, " part"],
) -> PointFactors:  # fmt: skip
    rough, total = np.log(formula), np.log(np.exp(known) @ weights)
    covariance = _covariance(features)
    among = covariance[np.ix_(timed, timed)]

    def off(nugget: float) -> Float64[np.ndarray, " timed"]:
        left_out = rough[timed] + _left_out(among, nugget, known - rough[timed])
        return np.asarray(np.log(np.exp(left_out) @ weights) - total)

    nugget = min(NUGGETS, key=lambda nugget: float(np.sum(off(nugget) ** 2)))
    found = rough + covariance[:, timed] @ np.linalg.solve(among + nugget * np.eye(len(timed)), known - rough[timed])
    found[timed] = known
    errors = _errors(off(nugget), covariance, timed)
    return PointFactors(np.exp(found), timed, errors, float(len(timed)))


def _errors(
    off: Float64[np.ndarray, " timed"], covariance: Float64[np.ndarray, "point point"], timed: list[int]
) -> Float64[np.ndarray, " point"]:
    """Standard errors of points, 0 of those timed, from the errors of these where each was left out: by how far a point
    is from all that were timed."""
    inverse = np.linalg.inv(covariance[np.ix_(timed, timed)] + EVEN * np.eye(len(timed)))
    mean_square = float(np.mean(off**2 * np.diag(inverse)))
    told = np.einsum("pt,ts,ps->p", covariance[:, timed], inverse, covariance[:, timed])
    apart = np.maximum(np.diag(covariance) + EVEN - told, 0.0)
    apart[timed] = 0.0
    return np.sqrt(mean_square * apart)


def _left_out(
    covariance: Float64[np.ndarray, "timed timed"], nugget: float, known: Float64[np.ndarray, "timed part"]
) -> Float64[np.ndarray, "timed part"]:
    """Each point predicted from the others (Rasmussen and Williams, Gaussian Processes for Machine Learning, 5.4.2)."""
    inverse = np.linalg.inv(covariance + nugget * np.eye(len(known)))
    return known - (inverse @ known) / np.diag(inverse)[:, None]


def spread_out(features: Float64[np.ndarray, "point feature"], count: int, begin: list[int]) -> list[int]:
    """At most `count` points: those to `begin` with, then each the one that tells most about all of them (Cohn, Neural
    Networks 1996): the mean variance of what is not timed falls most."""
    left = _covariance(features)
    chosen: list[int] = []
    while len(chosen) < min(count, len(features)):
        told = (left**2).sum(0) / (np.diag(left) + NUGGETS[1])
        told[chosen] = -1.0
        best = begin[len(chosen)] if len(chosen) < len(begin) else int(np.argmax(np.round(told, 9)))
        left = left - np.outer(left[:, best], left[best]) / (left[best, best] + NUGGETS[1])
        chosen.append(best)
    return chosen


def _covariance(features: Float64[np.ndarray, "point feature"]) -> Float64[np.ndarray, "point point"]:
    """Of what the formula leaves over, between points, in its variance around the trend."""
    apart = ((features[:, None] - features[None]) ** 2).sum(-1)
    return np.exp(-apart / 2.0) + TREND * (1.0 + features @ features.T)
