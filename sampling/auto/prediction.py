"""Cycles of launches that were not simulated, from those of the same kernel that were, and how far off that may be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float64

MOST_FOLDS = 24  # of a cross-validation; beyond, several launches are left out at a time
# What is assumed of a launch at a distance (`distances`) from all that were simulated, before errors have been seen;
# it counts as much as one observed error. Equal launches differ by where their buffers lie.
EQUAL_ERROR, ERROR_A_DISTANCE = 0.007, 0.2


@dataclass(frozen=True, eq=False)
class Prediction:
    """Of all launches of a kernel: `cycles` (of those simulated, their own), `errors` relative and of one launch,
    0 where it was simulated; `common`: the part of the errors that all share, because few were simulated."""

    cycles: Float64[np.ndarray, " launch"]
    errors: Float64[np.ndarray, " launch"]
    common: Float64[np.ndarray, " launch"]
    degrees: float

    @property
    def variance(self) -> float:
        """Of the sum of all cycles."""
        return float(np.sum((self.cycles * self.errors) ** 2) + np.dot(self.cycles, self.common) ** 2)


def predict(
    work: Float64[np.ndarray, "launch work"], sample: np.ndarray, measured: Float64[np.ndarray, " sample"]
) -> Prediction:
    """`work`: non-negative columns that cycles may grow with; `sample`: which launches have `measured` cycles."""
    apart = distances(work, work[sample])
    cycles = _fitted(work, work[sample], measured, apart)
    seen = _cross_validated(work[sample], measured, apart[sample])
    scaled = seen / assumed_error(_nearest_other(apart[sample]))
    errors = assumed_error(apart.min(1)) * np.sqrt((np.sum(scaled**2) + 1.0) / len(sample))
    errors[sample], cycles[sample] = 0.0, measured
    return Prediction(cycles, errors, errors / np.sqrt(len(sample)), max(len(sample) - 1.0, 1.0))


def assumed_error(distance: Float64[np.ndarray, " n"]) -> Float64[np.ndarray, " n"]:
    """Relative error of a launch predicted from others so far away, before any has been seen."""
    return EQUAL_ERROR + ERROR_A_DISTANCE * np.minimum(distance, 10.0)


def _nearest_other(apart: Float64[np.ndarray, "sample sample"]) -> Float64[np.ndarray, " sample"]:
    return (apart + np.diag(np.full(len(apart), np.inf))).min(1)


def distances(
    a: Float64[np.ndarray, "n work"], b: Float64[np.ndarray, "m work"]
) -> Float64[np.ndarray, "n m"]:
    """How different launches are: the largest difference of a column's logarithms."""
    found = np.zeros((len(a), len(b)))
    for x, y in zip(np.log1p(a).T, np.log1p(b).T, strict=True):
        np.maximum(found, np.abs(x[:, None] - y), out=found)
    return found


def _fitted(
    work: Float64[np.ndarray, "launch work"], known: Float64[np.ndarray, "sample work"],
    measured: Float64[np.ndarray, " sample"], apart: Float64[np.ndarray, "launch sample"],
) -> Float64[np.ndarray, " launch"]:  # fmt: skip
    """A sum of shares of the columns, with the least relative squares, times what the neighbours lie above it."""
    from scipy.optimize import nnls

    scale = np.maximum(known.max(0), 1e-300)
    shares = nnls((known / scale) / measured[:, None], np.ones(len(measured)))[0] / scale
    plain, seen = work @ shares, known @ shares
    off = np.log(measured / np.maximum(seen, 1e-300))
    weights = 1.0 / (apart + 1e-6) ** 2
    return np.maximum(plain, 1.0) * np.exp(weights @ off / weights.sum(1))


def _cross_validated(
    known: Float64[np.ndarray, "sample work"], measured: Float64[np.ndarray, " sample"],
    apart: Float64[np.ndarray, "sample sample"],
) -> Float64[np.ndarray, " sample"]:  # fmt: skip
    """Relative errors of launches that were simulated, each predicted without it; nothing of a single one."""
    count = len(measured)
    found = np.zeros(count)
    if count == 1:
        return found
    folds = np.arange(count) % min(count, MOST_FOLDS)
    for fold in range(int(folds.max()) + 1):
        out = folds == fold
        guess = _fitted(known[out], known[~out], measured[~out], apart[np.ix_(out, ~out)])
        found[out] = np.log(guess / measured[out])
    return found
