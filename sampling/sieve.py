"""Sieve: strata of launches of one kernel with similar instruction counts (Naderan-Tahan et al., ISPASS 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sampling.profile import Profile
from sampling.selection import Selection, assumed_spread, first_of_each, profiled_spread, relabel
from sampling.statistics import coefficient_of_variation, two_means

if TYPE_CHECKING:
    from jaxtyping import Float64, Int64


@dataclass(frozen=True)
class Sieve:
    """Three tiers of kernels, by the variation of their instruction counts.

    Tier 1: none at all, one stratum. Tier 2: a coefficient of variation below theta = 0.4, one stratum. Tier 3: the
    rest, cut at the valleys of a kernel density estimate until every stratum is below theta. The representative is the
    first launch of the stratum's dominant block size (tier 1: the first). IPC is the harmonic mean of the
    representatives' IPC weighted by instructions, that is, every stratum keeps its representative's CPI.
    """

    theta: float = 0.4
    name = "Sieve"

    def select(self, profile: Profile) -> Selection:
        """One launch a stratum. Raises SamplingError if the profile has no kernels or block sizes."""
        kernels = profile.need("kernels", self.name)
        threads = profile.need("threads_per_block", self.name)
        size = np.asarray(profile.instructions, float)
        strata = np.zeros(len(size), np.int64)
        following = 0
        for kernel in np.unique(kernels):
            rows = np.flatnonzero(kernels == kernel)
            strata[rows] = following + self.tiers(size[rows])
            following = int(strata[rows].max()) + 1
        strata = relabel(strata)
        cycles = profile.cycles
        spread = None if cycles is None else profiled_spread(np.asarray(cycles, float), size, strata)
        spread = assumed_spread(size, strata) if spread is None else spread
        units = dominant(strata, threads)
        return Selection(method=self.name, units=units, strata=strata, size=size, instructions=size, spread=spread)

    def tiers(self, counts: Float64[np.ndarray, " launch"]) -> Int64[np.ndarray, " launch"]:
        """Strata of one kernel's launches."""
        if coefficient_of_variation(counts) < self.theta:
            return np.zeros(len(counts), np.int64)
        cuts = valleys(counts)
        if len(cuts) == 0:  # no valley, but too much variation: the best single cut
            cuts = np.array([two_means(counts)])
        parts = np.searchsorted(cuts, counts, side="left")
        strata = np.zeros(len(counts), np.int64)
        following = 0
        for part in np.unique(parts):
            rows = np.flatnonzero(parts == part)
            strata[rows] = following + self.tiers(counts[rows])
            following = int(strata[rows].max()) + 1
        return strata


def dominant(strata: Int64[np.ndarray, " unit"], threads: Int64[np.ndarray, " unit"]) -> Int64[np.ndarray, " stratum"]:
    """In every stratum the first launch that has its most frequent block size."""
    pairs, which, count = np.unique(np.stack([strata, threads]), axis=1, return_inverse=True, return_counts=True)
    which = which.reshape(-1)
    order = np.lexsort((-count, pairs[0]))
    best = order[np.unique(pairs[0][order], return_index=True)[1]]
    keep = np.isin(which, best)
    rows = np.flatnonzero(keep)
    return np.sort(rows[first_of_each(strata[keep])])


def valleys(counts: Float64[np.ndarray, " launch"], points: int = 512) -> Float64[np.ndarray, " cut"]:
    """Instruction counts at the local minima of a Gaussian kernel density estimate (Silverman's bandwidth).

    On a histogram, so that 100,000 launches cost what 100 do.
    """
    from scipy.ndimage import gaussian_filter1d

    low, high = float(counts.min()), float(counts.max())
    quartiles = np.percentile(counts, (25, 75))
    width = min(float(counts.std()), float(quartiles[1] - quartiles[0]) / 1.34 or float(counts.std()))
    bandwidth = 0.9 * width * len(counts) ** -0.2
    step = (high - low) / (points - 1)
    edges = low - step / 2 + step * np.arange(points + 1)
    density = gaussian_filter1d(
        np.histogram(counts, edges)[0].astype(float), max(bandwidth / step, 1.0), mode="constant"
    )
    runs = np.flatnonzero(np.diff(density) != 0)  # a flat valley counts once
    slope = np.sign(np.diff(density))[runs]
    lowest = np.flatnonzero((slope[:-1] < 0) & (slope[1:] > 0))
    middle = (runs[lowest] + 1 + runs[lowest + 1]) // 2
    cuts = low + step * middle
    return np.array([cut for cut in cuts if low <= cut < high])
