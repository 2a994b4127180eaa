"""STEM + ROOT: as many launches of each kind as an error bound asks for (Chung et al., MICRO 2025)."""

import math
from dataclasses import dataclass

import numpy as np

from sampling.arrays import Float64, Int64
from sampling.selection import Labels, PerStratum, PerUnit, Profile, Selection, profiled_spread
from sampling.statistics import CONFIDENCE, members, numbered, t_quantile, two_means


@dataclass(frozen=True)
class Stem:
    """Sample sizes from the central limit theorem on profiled execution times, in clusters that ROOT finds.

    STEM: the total of N_i launches of mean time mu_i and deviation sigma_i, from m_i random ones, has the variance
    sum N_i^2 sigma_i^2 / m_i. The m_i that simulate least, sum m_i mu_i, while z standard errors stay below `error` of
    the total, follow from the Lagrange conditions (`sizes`). ROOT: halve a kernel's launches by two-means of their
    times as long as that makes the bound cheaper to meet. A kind is one kernel, and with `by_shape`
    one grid and block of it, which suits programs that repeat few shapes. `ratio`: not in the paper; scale a cluster by
    its profiled time in place of its number of launches, which is more exact where both machines agree on what is slow.
    `alone`: each kind meets `error` by itself, as in the authors' published evaluation scripts, which also take kinds
    `by_shape`; without it all together do, for which kinds may be less exact.

    A few samples may agree by luck: times are taken to vary in a cluster as in the profile (`ratio`: half as much)."""

    error: float = 0.05
    confidence: float = CONFIDENCE
    least: int = 2  # launches a cluster; one has no spread to state an interval with
    by_shape: bool = False
    alone: bool = False
    ratio: bool = False
    seed: int = 0
    name = "STEM + ROOT"

    def select(self, profile: Profile) -> Selection:
        """A random sample of every cluster. Raises SamplingError if the profile has no times or kernels."""
        times = np.asarray(profile.need("cycles", self.name), float)
        kind = kinds(profile, self.name, self.by_shape)
        strata = self.root(times, kind)
        wanted = self.sizes(times, strata) if not self.alone else self._sizes_alone(times, strata, kind)
        rng = np.random.default_rng(self.seed)
        rows = zip(members(strata), wanted.tolist(), strict=True)
        chosen = [rng.choice(part, count, replace=False) for part, count in rows]
        each = np.ones(len(profile))
        size, spread = (times, 0.5) if self.ratio else (each, 1.0)
        return Selection(
            method=self.name, units=np.sort(np.concatenate(chosen)), strata=strata, size=size,
            instructions=np.asarray(profile.instructions, float), spread=spread * profiled_spread(times, each, strata),
        )  # fmt: skip

    def root(self, times: PerUnit, kind: Labels) -> Labels:
        """Clusters of all launches, kind by kind."""
        together = math.sqrt(float(np.sum((np.bincount(kind, times) / times.sum()) ** 2)))
        error = self.error / (1.0 if self.alone else together)  # of each kind
        strata = np.zeros(len(times), np.int64)
        todo = members(kind)
        while todo:
            rows = todo.pop()
            first = self._first_half(times[rows], error)
            if first is None:
                strata[rows] = strata.max() + 1
            else:
                todo += [rows[first], rows[~first]]
        return numbered(strata.tolist())

    def _first_half(self, times: Float64[np.ndarray, " member"], error: float) -> np.ndarray | None:
        """Which members the first of two clusters has, or None where two cost as much as one."""
        if len(times) <= self.least or times.max() == times.min():
            return None
        first = times <= two_means(times)
        whole, halves = np.zeros(len(times), np.int64), (~first).astype(np.int64)
        before = np.dot(self.ideal_sizes(times, whole, error), _means(times, whole))
        after = np.dot(self.ideal_sizes(times, halves, error), _means(times, halves))
        return first if after < before else None

    def sizes(self, times: PerUnit, strata: Labels) -> Int64[np.ndarray, " stratum"]:
        """Launches to simulate of every cluster, whole numbers; all of them where more would be needed."""
        asked = np.ceil(self.ideal_sizes(times, strata, self.error) - 1e-9).astype(np.int64)
        return np.minimum(asked, np.bincount(strata))

    def _sizes_alone(self, times: PerUnit, strata: Labels, kind: Labels) -> Int64[np.ndarray, " stratum"]:
        """`sizes` of each kind's clusters, as if it were the program."""
        wanted = np.zeros(int(strata.max()) + 1, np.int64)
        for rows in members(kind):
            clusters, inside = np.unique(strata[rows], return_inverse=True)
            wanted[clusters] = self.sizes(times[rows], inside.reshape(-1))
        return wanted

    def ideal_sizes(self, times: PerUnit, strata: Labels, error: float) -> PerStratum:
        """m_i = (z / (error T))^2 (sum_j N_j s_j sqrt(mu_j)) N_i s_i / sqrt(mu_i), at least `least`."""
        members = np.bincount(strata)
        mean = _means(times, strata)
        deviation = np.sqrt(np.bincount(strata, (times - mean[strata]) ** 2) / members)
        total = float(times.sum())
        root = np.sqrt(np.maximum(mean, 1e-300))
        scale = (t_quantile(math.inf, self.confidence) / (error * total)) ** 2
        ideal = scale * float(np.sum(members * deviation * root)) * members * deviation / root
        return np.maximum(ideal, self.least)


def _means(times: PerUnit, strata: Labels) -> PerStratum:
    return np.bincount(strata, times) / np.bincount(strata)


def kinds(profile: Profile, method: str, by_shape: bool) -> Labels:
    """A number a kernel, or one for each grid and block size of it."""
    columns = [profile.need("kernels", method)]
    if by_shape:
        columns += [profile.need("thread_blocks", method), profile.need("threads_per_block", method)]
    return np.unique(np.stack(columns), axis=1, return_inverse=True)[1].reshape(-1)
