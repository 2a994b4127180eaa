"""Sieve: strata of launches of one kernel with similar instruction counts (Naderan-Tahan et al., ISPASS 2023)."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sampling.arrays import Float64, Int64
from sampling.selection import Profile, Selection, assumed_spread, by_instructions, first_of_each
from sampling.statistics import coefficient_of_variation, members, numbered, two_means


@dataclass(frozen=True)
class Sieve:
    """Three tiers of kernels, by the variation of their instruction counts.

    Tier 1: none at all, one stratum. Tier 2: a coefficient of variation below theta = 0.4, one stratum. Tier 3: the
    rest, cut at the valleys of a kernel density estimate until every stratum is below theta. The representative is the
    first launch of the stratum's dominant block size (tier 1: the first). IPC is the harmonic mean of the
    representatives' IPC weighted by instructions, that is, every stratum keeps its representative's CPI."""

    theta: float = 0.4
    name = "Sieve"

    def select(self, profile: Profile) -> Selection:
        """One launch a stratum. Raises SamplingError if the profile has no kernels or block sizes."""
        kernels, threads = (profile.need(name, self.name) for name in ("kernels", "threads_per_block"))
        size = np.asarray(profile.instructions, float)
        strata = numbered(_split(kernels, lambda rows: self.tiers(size[rows])).tolist())
        return by_instructions(self.name, profile, strata, dominant(strata, threads), assumed_spread(size, strata))

    def tiers(self, counts: Float64[np.ndarray, " launch"]) -> Int64[np.ndarray, " launch"]:
        """Strata of one kernel's launches."""
        if coefficient_of_variation(counts) < self.theta:
            return np.zeros(len(counts), np.int64)
        cuts = valleys(counts)
        if len(cuts) == 0:  # no valley, but too much variation: the best single cut
            cuts = np.array([two_means(counts)])
        return _split(np.searchsorted(cuts, counts, side="left"), lambda rows: self.tiers(counts[rows]))


def _split(
    labels: Int64[np.ndarray, " launch"], tiers: Callable[[np.ndarray], np.ndarray]
) -> Int64[np.ndarray, " launch"]:
    """Strata of launches that share none unless their labels are equal: `tiers` of each label's rows."""
    strata = np.zeros(len(labels), np.int64)
    for rows in members(np.unique(labels, return_inverse=True)[1]):
        strata[rows] = strata.max() + 1 + tiers(rows)
    return strata


def dominant(strata: Int64[np.ndarray, " unit"], threads: Int64[np.ndarray, " unit"]) -> Int64[np.ndarray, " stratum"]:
    """In every stratum the first launch that has its most frequent block size."""
    which, count = np.unique(np.stack([strata, threads]), axis=1, return_inverse=True, return_counts=True)[1:]
    return first_of_each(strata, threads, -count[which.reshape(-1)])


def valleys(counts: Float64[np.ndarray, " launch"], points: int = 512) -> Float64[np.ndarray, " cut"]:
    """Instruction counts at the local minima of a Gaussian kernel density estimate (Silverman's bandwidth). On a
    histogram, so that 100,000 launches cost what 100 do."""
    from scipy.ndimage import gaussian_filter1d

    low, high = float(counts.min()), float(counts.max())
    quartiles = np.percentile(counts, (25, 75))
    width = min(float(counts.std()), float(quartiles[1] - quartiles[0]) / 1.34 or float(counts.std()))
    bandwidth = 0.9 * width * len(counts) ** -0.2
    step = (high - low) / (points - 1)
    heights = np.histogram(counts, low - step / 2 + step * np.arange(points + 1))[0].astype(float)
    density = gaussian_filter1d(heights, max(bandwidth / step, 1.0), mode="constant")
    runs = np.flatnonzero(np.diff(density) != 0)  # a flat valley counts once
    slope = np.sign(np.diff(density))[runs]
    lowest = np.flatnonzero((slope[:-1] < 0) & (slope[1:] > 0))
    middle = (runs[lowest] + 1 + runs[lowest + 1]) // 2
    cuts = low + step * middle
    return np.array([cut for cut in cuts if low <= cut < high])
