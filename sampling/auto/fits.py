"""Ways to say a launch's cycles from those of others, and how well each says those that were simulated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sampling.auto.distances import distances
from sampling.auto.nonnegative import non_negative

if TYPE_CHECKING:
    from jaxtyping import Float64

MOST_FOLDS = 24  # of a cross-validation; beyond, several launches are left out at a time
# What is assumed of a launch at a distance (`distances`) from all that were simulated, before errors have been seen;
# it counts as much as one observed error. Equal launches differ by where their buffers lie
EQUAL_ERROR, ERROR_A_DISTANCE = 0.007, 0.2
KIND_ERROR, KIND_DEGREES = 0.01, 10.0  # of large launches that do the same, one told by another, and what tells it
# The same where one SM has told, and as how many observed errors it counts: cycles over those of one SM spread by 2 %
# over the 23 convolutions of ResNet-50 on the GTX 480, by 6 % on the RTX 3070
ONE_SM_ERROR, ONE_SM_COUNTS = 0.03, 3.0


def shares_of_work(
    work: Float64[np.ndarray, "launch work"], known: Float64[np.ndarray, "sample work"],
    measured: Float64[np.ndarray, " sample"], apart: Float64[np.ndarray, "launch sample"],
) -> Float64[np.ndarray, " launch"]:  # fmt: skip
    """A sum of shares of the columns, with the least relative squares."""
    return np.maximum(work @ told_shares(known, measured), 1.0)


def told_shares(
    known: Float64[np.ndarray, "sample work"], measured: Float64[np.ndarray, " sample"]
) -> Float64[np.ndarray, " work"]:
    """Cycles a unit of each column."""
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


def in_proportion(
    work: Float64[np.ndarray, "launch one"], known: Float64[np.ndarray, "sample one"],
    measured: Float64[np.ndarray, " sample"], apart: Float64[np.ndarray, "launch sample"],
) -> Float64[np.ndarray, " launch"]:  # fmt: skip
    """A single column, times what those known lie above it: the geometric mean, which no launch outweighs."""
    return np.asarray(work[:, 0] * np.exp(np.log(measured / known[:, 0]).mean()))


Rule = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Fit:
    """A way to predict launches from the columns of their work from `first` on. `most`: what is assumed at most of the
    relative error of one, however far it is from those that were simulated; it counts as so many observed errors."""

    rule: Rule
    first: int = 0
    most: float = 2.0
    counts: float = 1.0

    def of(self, work: Float64[np.ndarray, "*n work"]) -> Float64[np.ndarray, "*n used"]:
        """The columns it looks at."""
        return work[..., self.first :]

    def cycles(
        self, work: Float64[np.ndarray, "launch work"], known: Float64[np.ndarray, "sample work"],
        measured: Float64[np.ndarray, " sample"], apart: Float64[np.ndarray, "launch sample"],
    ) -> Float64[np.ndarray, " launch"]:  # fmt: skip
        """Of launches so far `apart` from those known."""
        return self.rule(self.of(work), self.of(known), measured, apart)

    def assumed_error(self, distance: Float64[np.ndarray, " n"]) -> Float64[np.ndarray, " n"]:
        """Relative error of a launch predicted from others so far away, before any has been seen."""
        return EQUAL_ERROR + np.minimum(ERROR_A_DISTANCE * distance, self.most)


BY_WORK = (Fit(as_neighbours), Fit(shares_of_work))
# Where the last column is what a launch takes on one SM
BY_ONE_SM = (*BY_WORK, Fit(in_proportion, -1, ONE_SM_ERROR, ONE_SM_COUNTS))


def off_shares(
    work: Float64[np.ndarray, "sample work"], measured: Float64[np.ndarray, " sample"]
) -> Float64[np.ndarray, " sample"]:
    """Logarithms of what shares of the work say of each, told by the others, over what was measured."""
    return _cross_validated(shares_of_work, work, measured, distances(work, work))


def _cross_validated(
    fit: Rule, known: Float64[np.ndarray, "sample work"], measured: Float64[np.ndarray, " sample"],
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


class Tried(NamedTuple):
    """A fit held against what was simulated: `residuals`, what was `assumed` of them, the `mean_square` of one over the
    other, what was assumed counted in, and the logarithm of the error that is `expected` of a launch."""

    fit: Fit
    residuals: Float64[np.ndarray, " sample"]
    assumed: Float64[np.ndarray, " sample"]
    mean_square: float
    expected: float


def tried(
    fit: Fit, known: Float64[np.ndarray, "sample work"], measured: Float64[np.ndarray, " sample"],
    apart: Float64[np.ndarray, "sample sample"],
) -> Tried:  # fmt: skip
    """Each that was simulated predicted without it."""
    residuals = _cross_validated(fit.cycles, known, measured, apart)
    assumed = fit.assumed_error(_nearest_other(apart))
    mean_square = (float(np.sum((residuals / assumed) ** 2)) + fit.counts) / (len(measured) + fit.counts - 1.0)
    return Tried(fit, residuals, assumed, mean_square, float(np.log(assumed).mean() + 0.5 * np.log(mean_square)))


def _nearest_other(apart: Float64[np.ndarray, "sample sample"]) -> Float64[np.ndarray, " sample"]:
    return (apart + np.diag(np.full(len(apart), np.inf))).min(1)
