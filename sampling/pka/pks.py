"""Principal Kernel Selection: PCA, then k-means with as few clusters as the error allows. PKA, section 3.1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sampling.profile import Profile
from sampling.selection import MODEL_ERROR, Selection, first_of_each, profiled_spread, relabel

if TYPE_CHECKING:
    from jaxtyping import Float64, Int64


@dataclass(frozen=True)
class Pks:
    """K = 1..20, the first whose projection of the profiled cycles is within 5 %; the first launch of each cluster.

    A cluster's cycles are its representative's times its number of launches. Where no K is within the error, the best
    one is taken. Without profiled cycles the warp instructions stand for them. `variance`: share of it that the kept
    principal components explain. `measured = False` (not in the paper): nobody has measured the profile's cycles, so
    the projection must meet the error for each of the twelve characteristics too, and kernels share no cluster. The
    interval assumes that the projection is as good on the simulated GPU as on the profiled one (within `error`, or what
    was reached), and that a representative differs from its cluster by MODEL_ERROR and as much as profiled cycles do.
    """

    error: float = 0.05
    most_clusters: int = 20
    variance: float = 0.9995
    measured: bool = True
    seed: int = 0
    name = "PKS"

    def select(self, profile: Profile) -> Selection:
        """One launch a cluster. Raises SamplingError if the profile has no features."""
        cycles = np.asarray(profile.instructions if profile.cycles is None else profile.cycles, float)
        features = profile.need("features", self.name)
        points = principal(features, self.variance)
        if self.measured:
            strata = self.sweep(points, cycles[:, None], np.zeros(len(profile), np.int64))
        else:
            everything = np.column_stack([cycles, features])
            strata = self.sweep(points, everything, profile.need("kernels", self.name))
        apart = max(self.error, projection_error(strata, cycles[:, None]))
        return Selection(
            method=self.name,
            units=first_of_each(strata),
            strata=strata,
            size=np.ones(len(profile)),
            instructions=np.asarray(profile.instructions, float),
            spread=np.hypot(MODEL_ERROR, profiled_spread(cycles, np.ones(len(profile)), strata)),
            bias=apart / (1.0 - min(apart, 0.9)),  # of the truth; a bias is of the estimate, which may be the smaller
        )

    def sweep(
        self,
        points: Float64[np.ndarray, "launch d"],
        reference: Float64[np.ndarray, "launch quantity"],
        kernels: Int64[np.ndarray, " launch"],
    ) -> Int64[np.ndarray, " launch"]:
        """Labels of the smallest K within the error, numbered by first appearance; kernels are kept apart."""
        from sklearn.cluster import KMeans

        distinct, inverse, weight = np.unique(points.round(9), axis=0, return_inverse=True, return_counts=True)
        best = (np.inf, np.zeros(len(points), np.int64))
        for k in range(1, min(self.most_clusters, len(distinct)) + 1):
            model = KMeans(k, n_init=1, random_state=self.seed).fit(distinct, sample_weight=weight)
            strata = relabel(model.labels_[inverse.reshape(-1)].astype(np.int64) + k * kernels)
            apart = projection_error(strata, reference)
            if apart < best[0]:
                best = (apart, strata)
            if apart <= self.error:
                break
        return best[1]


def principal(features: Float64[np.ndarray, "launch f"], variance: float) -> Float64[np.ndarray, "launch d"]:
    """Standardised features on the principal components that explain this share of their variance."""
    deviation = features.std(0)
    standard = (features - features.mean(0)) / np.where(deviation == 0, 1, deviation)
    _, singular, rows = np.linalg.svd(standard, full_matrices=False)
    power = singular**2
    if power.sum() == 0:
        return np.zeros((len(features), 1))
    kept = int(np.searchsorted(np.cumsum(power) / power.sum(), variance)) + 1
    return standard @ rows[:kept].T


def projection_error(strata: Int64[np.ndarray, " launch"], reference: Float64[np.ndarray, "launch quantity"]) -> float:
    """Relative error of the totals when every cluster is its first launch times its size; the largest of them."""
    first = np.unique(strata, return_index=True)[1]
    totals = reference.sum(0)
    projected = np.bincount(strata) @ reference[first]
    return float(np.abs(projected / np.where(totals == 0, 1, totals) - (totals != 0)).max())
