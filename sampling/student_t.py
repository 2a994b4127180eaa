"""Quantiles of Student's t. scipy.special has them, but takes half a second to import."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

MOST_TERMS, MOST_STEPS = 10_000, 200
CLOSE = 1e-15  # relative


@lru_cache(maxsize=1024)
def two_sided(degrees: float, confidence: float) -> float:
    """What |T| stays below with this probability; of the normal distribution where `degrees` is infinite, of one degree
    where there are fewer.

    Newton's method from the normal quantile, which is smaller: the distribution is concave there, so that no step goes
    too far.
    """
    x = NormalDist().inv_cdf((1.0 + confidence) / 2.0)
    if math.isinf(degrees):
        return x
    degrees = max(degrees, 1.0)
    for _ in range(MOST_STEPS):
        step = (outside(x, degrees) - (1.0 - confidence)) / (2.0 * _density(x, degrees))
        x += step
        if abs(step) <= CLOSE * x:
            break
    return x


def outside(x: float, degrees: float) -> float:
    """Probability that |T| is above `x`, which is at least 0: the incomplete beta function I(a, 1/2) at
    degrees / (degrees + x^2)."""
    a, b = degrees / 2.0, 0.5
    at, rest = degrees / (degrees + x * x), x * x / (degrees + x * x)
    if rest == 0.0:
        return 1.0
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(at) + b * math.log(rest))
    if at < (a + 1.0) / (a + b + 2.0):
        return front / a * _fraction(a, b, at)
    return 1.0 - front / b * _fraction(b, a, rest)


def _density(x: float, degrees: float) -> float:
    front = math.lgamma((degrees + 1.0) / 2.0) - math.lgamma(degrees / 2.0) - 0.5 * math.log(degrees * math.pi)
    return math.exp(front - (degrees + 1.0) / 2.0 * math.log1p(x * x / degrees))


def _fraction(a: float, b: float, at: float) -> float:
    """The continued fraction of the incomplete beta function (Abramowitz and Stegun, 26.5.8), by Lentz's method."""
    upper = 1.0
    found = lower = 1.0 / (1.0 - (a + b) * at / (a + 1.0))
    for n in range(2, MOST_TERMS):
        m = n // 2
        if n % 2:
            term = -(a + m) * (a + b + m) * at / ((a + n - 1) * (a + n))
        else:
            term = m * (b - m) * at / ((a + n - 1) * (a + n))
        lower, upper = 1.0 / (1.0 + term * lower), 1.0 + term / upper
        found *= lower * upper
        if abs(lower * upper - 1.0) <= CLOSE:
            break
    return found
