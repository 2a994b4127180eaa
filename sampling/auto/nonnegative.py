"""Least squares without negative coefficients: Lawson and Hanson, Solving Least Squares Problems (1974), chapter 23.

Of a few columns, for which importing scipy.optimize would take a second and solving a millisecond.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Bool, Float64

MOST_STEPS = 30  # a column


def non_negative(
    a: Float64[np.ndarray, "row column"], b: Float64[np.ndarray, " row"]
) -> Float64[np.ndarray, " column"]:
    """The `x` >= 0 for which `a @ x` is nearest to `b`. Where several are, one of them."""
    x = np.zeros(a.shape[1])
    used, refused = np.zeros(len(x), bool), np.zeros(len(x), bool)
    least = 10.0 * max(a.shape) * np.finfo(float).eps * float(np.abs(a).sum(0).max(initial=0.0))
    for _ in range(MOST_STEPS * len(x)):  # a few a column; rounding might let two take turns for ever
        gain = np.where(used | refused, -np.inf, a.T @ (b - a @ x))
        column = int(np.argmax(gain))
        if gain[column] <= least:
            break
        used[column] = True
        wanted = _with(a, b, used)
        if wanted[column] <= 0.0:  # it only looked as if it would help: rounding
            used[column], refused[column] = False, True
            continue
        x = _towards(a, b, x, wanted, used)
        refused[:] = False
    return x


def _with(
    a: Float64[np.ndarray, "row column"], b: Float64[np.ndarray, " row"], used: Bool[np.ndarray, " column"]
) -> Float64[np.ndarray, " column"]:
    """Least squares of the columns that are used, of either sign."""
    found = np.zeros(len(used))
    found[used] = np.linalg.lstsq(a[:, used], b, rcond=None)[0]
    return found


def _towards(
    a: Float64[np.ndarray, "row column"], b: Float64[np.ndarray, " row"], x: Float64[np.ndarray, " column"],
    wanted: Float64[np.ndarray, " column"], used: Bool[np.ndarray, " column"],
) -> Float64[np.ndarray, " column"]:  # fmt: skip
    """From `x` to what is `wanted`, giving up the columns (in `used`) that would become negative on the way."""
    while (negative := used & (wanted <= 0.0)).any():
        share = float(np.min(x[negative] / (x[negative] - wanted[negative])))
        x = x + share * (wanted - x)
        used &= ~(negative & (x <= 1e-14 * np.abs(x).max(initial=0.0)))
        x[~used] = 0.0
        wanted = _with(a, b, used)
    return wanted
