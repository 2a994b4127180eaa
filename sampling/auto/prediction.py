"""Cycles of launches that were not simulated, from those of the same kernel that were, and how far off that may be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sampling.auto.nonnegative import non_negative

if TYPE_CHECKING:
    from jaxtyping import Float64

MOST_FOLDS = 24  # of a cross-validation; beyond, several launches are left out at a time
# What is assumed of a launch at a distance (`distances`) from all that were simulated, before errors have been seen;
# it counts as much as one observed error. Equal launches differ by where their buffers lie.
EQUAL_ERROR, ERROR_A_DISTANCE = 0.007, 0.2


@dataclass(frozen=True, eq=False)
class Prediction:
    """Of all launches of a kernel: `cycles` (of those simulated, their own), `errors` relative and of one launch,
    0 where it was simulated; `common_cycles`: the error of the sum that all share, because few were simulated.
    `residuals`: relative errors of those simulated, each predicted without it; `assumed`, `assumed_of_sample`: what
    was assumed of the errors; `reach`: `common_cycles` over the sum of all errors."""

    cycles: Float64[np.ndarray, " launch"]
    errors: Float64[np.ndarray, " launch"]
    common_cycles: float
    degrees: float
    scale: float  # mean square of the errors seen, each over what was assumed of it
    residuals: Float64[np.ndarray, " sample"]
    assumed: Float64[np.ndarray, " launch"]
    assumed_of_sample: Float64[np.ndarray, " sample"]
    reach: float

    @property
    def variance(self) -> float:
        """Of the sum of all cycles."""
        return float(np.sum((self.cycles * self.errors) ** 2)) + self.common_cycles**2


def predict(
    work: Float64[np.ndarray, "launch work"], sample: np.ndarray, measured: Float64[np.ndarray, " sample"]
) -> Prediction:
    """`work`: non-negative columns that cycles may grow with; `sample`: which launches have `measured` cycles."""
    apart = distances(work, work[sample])
    scale = assumed_error(_nearest_other(apart[sample]))
    seen = [_cross_validated(fit, work[sample], measured, apart[sample]) for fit in FITS]
    squares = [float(np.sum((residuals / scale) ** 2)) for residuals in seen]
    best = int(np.argmin(squares))
    cycles = FITS[best](work, work[sample], measured, apart)
    mean_square = (squares[best] + 1.0) / len(sample)
    assumed = assumed_error(apart.min(1))
    assumed[sample], cycles[sample] = 0.0, measured
    errors = assumed * np.sqrt(mean_square)
    left = cycles * (errors > 0)
    reach = _leverage(work[errors > 0], work[sample], measured, float(left.sum())) / max(float(left.sum()), 1e-300)
    common = reach * float(left @ errors)
    return Prediction(
        cycles, errors, common, max(len(sample) - 1.0, 1.0), mean_square, seen[best], assumed, scale, reach
    )  # fmt: skip


def _leverage(
    left: Float64[np.ndarray, "left work"], known: Float64[np.ndarray, "sample work"],
    measured: Float64[np.ndarray, " sample"], cycles: float,
) -> float:  # fmt: skip
    """Cycles that the sum of what is left is off by, if launches are off by all of theirs, independently: by their
    number, or by how many shares of work they were to tell."""
    shares = _shares(known, measured)
    used = shares > 0
    rows, wanted = known[:, used] / measured[:, None], left[:, used].sum(0)
    scale = np.maximum(rows.max(0, initial=0.0), 1e-300)
    told = np.linalg.pinv(rows / scale)
    return float(max(np.linalg.norm((wanted / scale) @ told), cycles / np.sqrt(len(measured))))


def assumed_error(distance: Float64[np.ndarray, " n"]) -> Float64[np.ndarray, " n"]:
    """Relative error of a launch predicted from others so far away, before any has been seen."""
    return EQUAL_ERROR + ERROR_A_DISTANCE * np.minimum(distance, 10.0)


def _nearest_other(apart: Float64[np.ndarray, "sample sample"]) -> Float64[np.ndarray, " sample"]:
    return (apart + np.diag(np.full(len(apart), np.inf))).min(1)


def distances(a: Float64[np.ndarray, "n work"], b: Float64[np.ndarray, "m work"]) -> Float64[np.ndarray, "n m"]:
    """How different launches are: the largest difference of a column's logarithms."""
    found = np.zeros((len(a), len(b)))
    for x, y in zip(np.log1p(a).T, np.log1p(b).T, strict=True):
        np.maximum(found, np.abs(x[:, None] - y), out=found)
    return found


def squared_distances(
    a: Float64[np.ndarray, "n column"], b: Float64[np.ndarray, "m column"] | None = None
) -> Float64[np.ndarray, "n m"]:
    """Of rows of `a` to rows of `b`, or to each other."""
    b = a if b is None else b
    found = (a**2).sum(1)[:, None] + (b**2).sum(1) - 2.0 * a @ b.T
    return np.asarray(np.maximum(found, 0.0))


def shares_of_work(
    work: Float64[np.ndarray, "launch work"], known: Float64[np.ndarray, "sample work"],
    measured: Float64[np.ndarray, " sample"], apart: Float64[np.ndarray, "launch sample"],
) -> Float64[np.ndarray, " launch"]:  # fmt: skip
    """A sum of shares of the columns, with the least relative squares."""
    return np.maximum(work @ _shares(known, measured), 1.0)


def _shares(
    known: Float64[np.ndarray, "sample work"], measured: Float64[np.ndarray, " sample"]
) -> Float64[np.ndarray, " work"]:
    scale = np.maximum(known.max(0), 1e-300)
    return non_negative((known / scale) / measured[:, None], np.ones(len(measured))) / scale


def as_neighbours(
    work: Float64[np.ndarray, "launch work"], known: Float64[np.ndarray, "sample work"],
    measured: Float64[np.ndarray, " sample"], apart: Float64[np.ndarray, "launch sample"],
) -> Float64[np.ndarray, " launch"]:  # fmt: skip
    """`shares_of_work`, times what the launches around lie above it, the nearest most."""
    both = shares_of_work(np.concatenate([work, known]), known, measured, apart)
    off = np.log(measured / both[len(work) :])
    weights = 1.0 / (apart + 1e-6) ** 2
    return both[: len(work)] * np.exp(weights @ off / weights.sum(1))


Fit = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], np.ndarray]
FITS: tuple[Fit, ...] = (as_neighbours, shares_of_work)  # the better one is taken


def off_shares(
    work: Float64[np.ndarray, "sample work"], measured: Float64[np.ndarray, " sample"]
) -> Float64[np.ndarray, " sample"]:
    """Logarithms of what shares of the work say of each, told by the others, over what was measured."""
    return _cross_validated(shares_of_work, work, measured, distances(work, work))


def _cross_validated(
    fit: Fit, known: Float64[np.ndarray, "sample work"], measured: Float64[np.ndarray, " sample"],
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
        guess = fit(known[out], known[~out], measured[~out], apart[np.ix_(out, ~out)])
        found[out] = np.log(guess / measured[out])
    return found
