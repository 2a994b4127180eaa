"""Small statistics that several methods share: dispersion, standard errors, quantiles, one-dimensional two-means."""

import math
from collections.abc import Callable, Hashable, Iterable
from functools import lru_cache, wraps
from statistics import NormalDist
from typing import ParamSpec, TypeVar

import numpy as np

from sampling.arrays import Float64, Int64, Shaped

CONFIDENCE = 0.95
Taken = ParamSpec("Taken")
Given = TypeVar("Given")


def one_thread(function: Callable[Taken, Given]) -> Callable[Taken, Given]:
    """The function with linear algebra on one thread: on small matrices more threads wait most of their time, and the
    order of sums would depend on how many there are."""

    @wraps(function)
    def on_one(*arguments: Taken.args, **named: Taken.kwargs) -> Given:
        from threadpoolctl import threadpool_limits

        with threadpool_limits(1, user_api="blas"):
            return function(*arguments, **named)

    return on_one


@lru_cache(maxsize=1024)
def t_quantile(degrees: float, confidence: float = CONFIDENCE) -> float:
    """What |T| of Student's t stays below with this probability; of the normal distribution where `degrees` is
    infinite, of one degree where there are fewer."""
    if math.isinf(degrees):
        return NormalDist().inv_cdf((1.0 + confidence) / 2.0)
    from scipy.special import stdtrit  # takes 0.2 s to import, which what was simulated in full need not pay

    return float(stdtrit(max(degrees, 1.0), (1.0 + confidence) / 2.0))


def coefficient_of_variation(values: Shaped[np.ndarray, " n"]) -> float:
    """Population standard deviation over mean; 0 for fewer than two values or a mean of zero."""
    if len(values) < 2:
        return 0.0
    mean = float(np.mean(values))
    return float(np.std(values)) / abs(mean) if mean else 0.0


def numbered(keys: Iterable[Hashable]) -> Int64[np.ndarray, " n"]:
    """Equal numbers for equal keys, 0, 1, ... in the order of their first."""
    known: dict[Hashable, int] = {}
    return np.array([known.setdefault(key, len(known)) for key in keys], np.int64)


def members(labels: Int64[np.ndarray, " n"]) -> list[Int64[np.ndarray, " member"]]:
    """The places of each label from 0 on, ascending; none of a label that is not there."""
    return np.split(np.argsort(labels, kind="stable"), np.cumsum(np.bincount(labels))[:-1])


def batch_means(series: Float64[np.ndarray, " n"], batches: int = 16) -> tuple[float, float, float]:
    """Mean of a series whose neighbours are correlated: (mean, its standard error, degrees of freedom). Means of
    `batches` consecutive batches are nearly independent where single values are not (Conway 1963), so their spread
    gives an honest error. Fewer than four values: the error is that of independent values."""
    count = len(series)
    if count < 2:
        return (float(series[0]) if count else 0.0), 0.0, math.inf
    used = min(batches, count if count < 4 else count // 2)
    means = np.array([part.mean() for part in np.array_split(np.asarray(series, float), used)])
    return float(np.mean(series)), float(means.std(ddof=1) / math.sqrt(used)), used - 1.0


def slope_of(x: Float64[np.ndarray, " n"], y: Float64[np.ndarray, " n"]) -> float:
    """Of the best-fit line (Photon, Equation 1), centred so that large clocks do not cancel."""
    apart = x - x.mean()
    spread = float(np.dot(apart, apart))
    return float(np.dot(apart, y - y.mean())) / spread if spread else math.inf


def two_means(values: Float64[np.ndarray, " n"]) -> float:
    """The cut that minimises the squared error of two one-dimensional clusters, exactly: `values <= cut` is the first.
    Sorting and prefix sums find the best of the n - 1 cuts in O(n log n); no start values, no iterations."""
    ordered = np.sort(np.asarray(values, float))
    count = np.arange(1, len(ordered))
    left = np.cumsum(ordered)[:-1]
    total = float(ordered.sum())
    gain = left**2 / count + (total - left) ** 2 / (len(ordered) - count)
    gain[ordered[1:] == ordered[:-1]] = -math.inf  # equal values stay together
    return float(ordered[int(np.argmax(gain))])


def pooled_error(variances: Float64[np.ndarray, " n"], degrees: Float64[np.ndarray, " n"]) -> tuple[float, float]:
    """Standard error of a sum of independent estimates and its degrees of freedom (Welch-Satterthwaite)."""
    total = float(variances.sum())
    if total <= 0.0:
        return 0.0, math.inf
    finite = np.isfinite(degrees) & (variances > 0)
    spent = float(np.sum(variances[finite] ** 2 / np.maximum(degrees[finite], 1.0)))
    return math.sqrt(total), (total**2 / spent if spent else math.inf)


def spearman(a: Float64[np.ndarray, " n"], b: Float64[np.ndarray, " n"]) -> float:
    """Rank correlation, -1 to 1."""
    from scipy.stats import spearmanr

    return float(spearmanr(a, b)[0])
