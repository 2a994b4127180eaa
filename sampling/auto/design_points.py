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
NUGGET = 1e-2  # of the covariance: what neighbouring points differ by although nothing does
TREND = 25.0  # variance of the trend, in that of what is left around it: hardly bound


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
    rough = np.log(formula)
    covariance = _covariance(features)
    inverse = np.linalg.inv(covariance[np.ix_(timed, timed)] + NUGGET * np.eye(len(timed)))
    told = inverse @ (known - rough[timed])
    found = rough + covariance[:, timed] @ told
    found[timed] = known
    left_out = known - told / np.diag(inverse)[:, None]  # each point predicted from the others
    off = np.log(np.exp(left_out) @ weights) - np.log(np.exp(known) @ weights)
    variance = float(np.mean(off**2 * np.diag(inverse)))
    apart = np.diag(covariance) + NUGGET - np.einsum("pt,ts,ps->p", covariance[:, timed], inverse, covariance[:, timed])
    apart[timed] = 0.0
    return PointFactors(np.exp(found), timed, np.sqrt(variance * np.maximum(apart, 0.0)), float(len(timed)))


def spread_out(features: Float64[np.ndarray, "point feature"], count: int, begin: list[int]) -> list[int]:
    """At most `count` points: those to `begin` with, then each the one that tells most about all of them (Cohn, Neural
    Networks 1996): the mean variance of what is not timed falls most."""
    left = _covariance(features)
    chosen: list[int] = []
    while len(chosen) < min(count, len(features)):
        told = (left**2).sum(0) / (np.diag(left) + NUGGET)
        told[chosen] = -1.0
        best = begin[len(chosen)] if len(chosen) < len(begin) else int(np.argmax(np.round(told, 9)))
        left = left - np.outer(left[:, best], left[best]) / (left[best, best] + NUGGET)
        chosen.append(best)
    return chosen


def _covariance(features: Float64[np.ndarray, "point feature"]) -> Float64[np.ndarray, "point point"]:
    """Of what the formula leaves over, between points, in its variance around the trend."""
    apart = ((features[:, None] - features[None]) ** 2).sum(-1)
    return np.exp(-apart / 2.0) + TREND * (1.0 + features @ features.T)
