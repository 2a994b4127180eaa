"""Relative accuracy: does the model rank GPUs, kernel by kernel, as the measurements do?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from abstim.study.validate import Comparison


@dataclass(frozen=True, slots=True)
class RelativeAccuracy:
    """Kendall's tau between predicted and measured speed-ups of one variant over another.

    `pooled` over all kernels and pairs of variants together; `mean` and `least` over the pairs, each over its kernels.
    """

    variants: int
    speed_ups: int
    pooled: float
    mean: float
    least: float
    least_pair: tuple[str, str]


def relative_accuracy(comparisons: Sequence[Comparison]) -> RelativeAccuracy | None:
    """Of every pair of variants that have three benchmarks or more in common; None if there is no such pair."""
    from scipy.stats import kendalltau

    cycles = {(c.variant, c.benchmark): (c.predicted_cycles, c.measured_cycles) for c in comparisons}
    variants = list(dict.fromkeys(c.variant for c in comparisons))
    found: dict[tuple[str, str], np.ndarray] = {}
    for pair in combinations(variants, 2):
        shared = [b for v, b in cycles if v == pair[0] and (pair[1], b) in cycles]
        if len(shared) > 2:
            first, second = (np.array([cycles[v, b] for b in shared], float) for v in pair)
            found[pair] = first / second
    if not found:
        return None
    taus = {pair: float(kendalltau(*ratios.T).statistic) for pair, ratios in found.items()}
    everything = np.concatenate(list(found.values()))
    least = min(taus, key=taus.__getitem__)
    pooled = float(kendalltau(*everything.T).statistic)
    return RelativeAccuracy(
        len(variants), len(everything), pooled, float(np.mean(list(taus.values()))), taus[least], least
    )


def median_miss_errors(comparisons: Sequence[Comparison]) -> dict[str, tuple[float, int]]:
    """Counter -> (median relative error, benchmarks it is over), of those with misses to compare."""
    errors: dict[str, list[float]] = {}
    for c in comparisons:
        for name, measured in c.measured_misses.items():
            if measured:
                errors.setdefault(name, []).append(abs(c.predicted_misses[name] / measured - 1))
    return {name: (float(np.median(values)), len(values)) for name, values in errors.items()}
