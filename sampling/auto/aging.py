"""How the pace of a launch changes as its thread blocks fall out of step, which leaving some out puts off."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from sampling.auto.segment_simulation import Batch

if TYPE_CHECKING:
    from jaxtyping import Float64

FEWEST = 4  # segments that a slope is read off


def ages(batch: Batch) -> list[float]:
    """Waves that were simulated before the middle of each of its segments."""
    begun = batch.beginning
    at = age = begun.waves
    found = []
    for segment in batch.segments:
        first = begun.waves + segment * begun.segment_waves
        age += min(first - at, begun.warm_waves)
        found.append(age + begun.segment_waves / 2)
        at, age = first + begun.segment_waves, age + begun.segment_waves
    return found


def put_off(used: Sequence[Batch], residuals: Float64[np.ndarray, " sample"], segments: int) -> float:
    """By what share the pace of all `segments` lies beside that of the sample, since a launch that is simulated whole
    is older: its slope over the logarithm of the age, as things do that relax, beyond its standard error.
    `residuals`: of the sample's logarithms, each predicted without it."""
    age = np.log([age for batch in used for age in ages(batch)])
    apart = age - age.mean()
    spread = float(apart @ apart)
    if len(age) < FEWEST or spread == 0.0:
        return 0.0
    slope = float(apart @ residuals) / spread
    around = residuals - residuals.mean() - slope * apart
    error = np.sqrt(float(around @ around) / (len(age) - 2) / spread)
    begun = used[0].beginning
    whole = begun.waves + begun.segment_waves * (np.arange(segments) + 0.5)
    return max(abs(slope) - error, 0.0) * abs(float(np.log(whole).mean() - age.mean()))
