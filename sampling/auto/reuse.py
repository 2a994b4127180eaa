"""A selection that was made on one GPU and timed on others: cycles there, and the ratio of two, with intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sampling.auto.distances import distances
from sampling.auto.kernel_sample import (
    WIDER,
    KernelSample,
    ProgramWork,
    by_kernel,
    half_width,
    lucky,
    total_interval,
)
from sampling.estimate import Estimate
from sampling.statistics import CONFIDENCE, t_quantile

if TYPE_CHECKING:
    from jaxtyping import Float64

# By what intervals are wider than errors of left-out launches say on a GPU that launches were not chosen on:
# the 95 % quantile of errors over half intervals on the hard sets, 1.57 of either half of 15 programs (four GPUs each,
# seeds 0 to 3), so that each half's factor holds on the other
ELSEWHERE = 1.6


@dataclass(frozen=True, eq=False, kw_only=True)
class TimedSelection:
    """The chosen launches on one GPU. `shared_error`: relative standard error that all of them have together, because
    not all were timed; `degrees` of freedom tell it."""

    kernels: list[KernelSample]
    total: float
    half_width: float
    confidence: float
    shared_error: float
    degrees: float

    @property
    def shared_half_width(self) -> float:
        """Half of the interval, relative, that cycles of the chosen launches alone would give."""
        return self.shared_error * t_quantile(self.degrees, self.confidence) if self.shared_error else 0.0


def timed_selection(
    work: ProgramWork, timed: Mapping[int, Estimate], *, shared_error: float = 0.0, degrees: float = math.inf,
    confidence: float = CONFIDENCE, chosen_here: bool = False,
) -> TimedSelection:  # fmt: skip
    """From the launches that were timed, by number; each kernel has some. `chosen_here`: for this GPU's interval."""
    kernels = by_kernel(work, np.random.default_rng(0))
    for kernel in kernels:
        for place, row in enumerate(kernel.rows.tolist()):
            if row in timed:
                kernel.add(place, timed[row])
    total, half = total_interval(kernels, confidence)
    half *= 1.0 if chosen_here else ELSEWHERE / WIDER
    found = TimedSelection(
        kernels=kernels, total=total, half_width=half, confidence=confidence, shared_error=shared_error, degrees=degrees
    )  # fmt: skip
    width = math.hypot(half, total * found.shared_half_width)
    return TimedSelection(**vars(found) | {"half_width": width})


def multiples(found: TimedSelection, launches: Sequence[int]) -> Float64[np.ndarray, " launch"]:
    """Of the timed launches, in the order given: cycles of each with all those that are most like it, over its own."""
    of: dict[int, float] = {}
    for kernel in found.kernels:
        nearest = distances(kernel.columns, kernel.columns[kernel.sample]).argmin(1)
        nearest[kernel.sample] = np.arange(len(kernel.sample))
        cycles = kernel.predicted().cycles
        together = np.bincount(nearest, cycles, len(kernel.sample)) / cycles[kernel.sample]
        of |= dict(zip(kernel.rows[kernel.sample].tolist(), together.tolist(), strict=True))
    return np.array([of[number] for number in launches])


def ratio(a: TimedSelection, b: TimedSelection, shared_half_width: float = 0.0) -> tuple[float, float]:
    """The cycles of `a` over those of `b`, and half of the interval; `shared_half_width`, relative: what the chosen
    launches' own cycles make of it.

    The same launches were timed on both, and where the prediction of one is too long on both, the ratio does not
    notice: what counts is the error of cycles on `a` less ratio times cycles on `b` (the linearised ratio estimator,
    Cochran 1977, section 6.3).
    """
    found = a.total / b.total
    pairs = list(zip(a.kernels, b.kernels, strict=True))
    differences = [_difference(x, y, found) for x, y in pairs]
    scales = np.array([scale for _, scale in differences])
    own = np.array([variance for variance, _ in differences]) * lucky(
        scales, np.array([len(x.sample) for x, _ in pairs])
    )
    half = ELSEWHERE * half_width(own, [], [x.predicted() for x, _ in pairs], a.confidence)
    return found, math.hypot(half / b.total, found * shared_half_width)


def _difference(x: KernelSample, y: KernelSample, of: float) -> tuple[float, float]:
    """Variance of one kernel's cycles on a GPU less `of` times those on another, and the mean square of the errors
    seen, each over what was assumed of it."""
    p, q = x.predicted(), y.predicted()
    size = 0.5 * (p.cycles + of * q.cycles)
    sample = np.array(x.sample)
    off = p.cycles[sample] * p.residuals - of * q.cycles[sample] * q.residuals
    assumed = np.maximum(p.assumed_of_sample, q.assumed_of_sample)
    mean_square = (float(np.sum((off / size[sample] / assumed) ** 2)) + 1.0) / len(sample)
    errors = np.maximum(p.assumed, q.assumed) * math.sqrt(mean_square) * size
    common = max(p.reach, q.reach) * float(errors[p.unseen].sum())
    return p.variance_of(errors) + common**2, mean_square
