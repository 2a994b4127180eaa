"""Cycles of launches that were not simulated, from those of others that were, and how far off that may be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from sampling.auto.distances import distances
from sampling.auto.fits import BY_WORK, KIND_DEGREES, KIND_ERROR, Fit, told_shares, tried
from sampling.statistics import pooled_error

if TYPE_CHECKING:
    from jaxtyping import Bool, Float64, Int64


@dataclass(frozen=True, eq=False)
class Prediction:
    """Of all launches of a kernel: `cycles` (of those simulated, their own), `errors` relative and of one launch,
    0 where it was simulated, which those of equal `kinds` share; `unseen`: no launch of the kind was simulated;
    `common_cycles`: the error of the sum that these share, because few kinds were. `residuals`: relative errors of
    those simulated, each predicted without its kind; `assumed`, `assumed_of_sample`: what was assumed of the errors;
    `reach`: `common_cycles` over the sum of all errors."""

    cycles: Float64[np.ndarray, " launch"]
    errors: Float64[np.ndarray, " launch"]
    common_cycles: float
    degrees: float
    scale: float  # mean square of the errors seen, each over what was assumed of it
    residuals: Float64[np.ndarray, " sample"]
    assumed: Float64[np.ndarray, " launch"]
    assumed_of_sample: Float64[np.ndarray, " sample"]
    reach: float
    kinds: Int64[np.ndarray, " launch"]
    unseen: Bool[np.ndarray, " launch"]

    @property
    def variance(self) -> float:
        """Of the sum of all cycles."""
        return self.variance_of(self.cycles * self.errors) + self.common_cycles**2

    @property
    def variance_of_equal(self) -> float:
        """Of launches of kinds of which others were simulated."""
        return self.variance_of(self.cycles * self.errors * ~self.unseen)

    def variance_of(self, errors_cycles: Float64[np.ndarray, " launch"]) -> float:
        """Of the sum of such errors, of which launches of one kind have the same."""
        return float(np.sum(np.bincount(self.kinds, errors_cycles) ** 2))


def predict(
    work: Float64[np.ndarray, "launch work"], sample: np.ndarray, measured: Float64[np.ndarray, " sample"],
    kinds: Int64[np.ndarray, " launch"] | None = None, fits: Sequence[Fit] | None = None,
) -> Prediction:  # fmt: skip
    """`work`: non-negative columns that cycles may grow with; `sample`: which launches have `measured` cycles; `kinds`,
    from 0 on: equal where launches do the same but for where their data lie; each does something else unless told. A
    launch lasts as long as those of its kind, and what is known of other kinds counts once a kind. Of the `fits`
    (BY_WORK unless told) the one that predicts best what was simulated is taken."""
    fits = fits or BY_WORK
    if kinds is None:
        return _of_kinds(work, sample, measured, np.ones(len(work)), fits)
    first, counts = np.unique(kinds, return_index=True, return_counts=True)[1:]
    known, of_sample = _in_order(kinds[sample])
    simulated = np.bincount(of_sample)
    means = np.bincount(of_sample, measured) / simulated
    found = _of_kinds(work[first], known, means, counts.astype(float), fits)
    return _of_launches(found, kinds, sample, measured, of_sample)


def _in_order(kinds: Int64[np.ndarray, " sample"]) -> tuple[Int64[np.ndarray, " kind"], Int64[np.ndarray, " sample"]]:
    """Different ones, in the order in which they come, and each one's place among them."""
    found, first, places = np.unique(kinds, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return found[order], np.argsort(order)[places]


def _of_launches(
    found: Prediction, kinds: Int64[np.ndarray, " launch"], sample: np.ndarray,
    measured: Float64[np.ndarray, " sample"], of_sample: Int64[np.ndarray, " sample"],
) -> Prediction:  # fmt: skip
    """What is known of kinds, of each of their launches."""
    simulated = np.bincount(kinds[sample], minlength=len(found.cycles))[kinds]
    one, degrees = _kind_error(measured, of_sample)
    equal = np.where(simulated > 0, one / np.sqrt(np.maximum(simulated, 1)), 0.0)
    equal[sample] = 0.0
    cycles = found.cycles[kinds]
    cycles[sample] = measured
    unlike = found.variance_of(found.cycles * found.errors * np.bincount(kinds)) + found.common_cycles**2
    of_equal = found.variance_of(np.bincount(kinds, cycles * equal))
    return replace(
        found,
        cycles=cycles,
        degrees=pooled_error(np.array([unlike, of_equal]), np.array([found.degrees, degrees]))[1],
        errors=found.errors[kinds] + equal,
        assumed=found.assumed[kinds] + equal,
        residuals=found.residuals[of_sample],
        assumed_of_sample=found.assumed_of_sample[of_sample],
        kinds=kinds,
        unseen=found.unseen[kinds],
    )


def _kind_error(
    measured: Float64[np.ndarray, " sample"], of_sample: Int64[np.ndarray, " sample"]
) -> tuple[float, float]:
    """Relative error of a launch told by one that does the same, and its degrees of freedom: what is assumed, and what
    those of one kind that were simulated differ by."""
    apart = measured / (np.bincount(of_sample, measured) / np.bincount(of_sample))[of_sample] - 1.0
    degrees = KIND_DEGREES + len(measured) - int(of_sample.max()) - 1
    return float(np.sqrt((KIND_DEGREES * KIND_ERROR**2 + float(apart @ apart)) / degrees)), degrees


def _of_kinds(
    work: Float64[np.ndarray, "kind work"], sample: np.ndarray, measured: Float64[np.ndarray, " sample"],
    launches: Float64[np.ndarray, " kind"], fits: Sequence[Fit],
) -> Prediction:  # fmt: skip
    """Each of so many `launches`."""
    apart = distances(work, work[sample])
    all_of = [tried(fit, work[sample], measured, apart[sample]) for fit in fits]
    fit, seen, scale, mean_square = min(all_of, key=lambda each: each.expected)[:4]
    cycles = fit.cycles(work, work[sample], measured, apart)
    assumed = fit.assumed_error(apart.min(1))
    assumed[sample], cycles[sample] = 0.0, measured
    errors = assumed * np.sqrt(mean_square)
    left = launches * (errors > 0)
    of_left = float(left @ cycles)
    reach = _leverage(left @ fit.of(work), fit.of(work[sample]), measured, of_left) / max(of_left, 1e-300)
    common = reach * float((left * cycles) @ errors)
    return Prediction(
        cycles, errors, common, max(len(sample) + fit.counts - 2.0, 1.0), mean_square, seen, assumed, scale, reach,
        np.arange(len(work)), errors > 0,
    )  # fmt: skip


def _leverage(
    left: Float64[np.ndarray, " work"], known: Float64[np.ndarray, "sample work"],
    measured: Float64[np.ndarray, " sample"], cycles: float,
) -> float:  # fmt: skip
    """Cycles that the sum of all `left` work is off by, if launches are off by all of theirs, independently: by their
    number, or by how many shares of work they were to tell."""
    shares = told_shares(known, measured)
    used = shares > 0
    rows, wanted = known[:, used] / measured[:, None], left[used]
    scale = np.maximum(rows.max(0, initial=0.0), 1e-300)
    told = np.linalg.pinv(rows / scale)
    return float(max(np.linalg.norm((wanted / scale) @ told), cycles / np.sqrt(len(measured))))
