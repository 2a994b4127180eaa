"""SimPoint on basic-block vectors: k-means, one representative a cluster (Sherwood 2002; TBPoint, Equation 1)."""

import math
from dataclasses import dataclass

import numpy as np

from sampling.arrays import Float64, Int64
from sampling.selection import Profile, Selection, assumed_spread, by_instructions, first_of_each


@dataclass(frozen=True)
class SimPoint:
    """Cluster units by what they execute; simulate the one nearest each centre, weighted by instructions.

    Defaults are SimPoint 3's: 15 projected dimensions, at most 30 clusters, the fewest that reach 90 % of the best
    Bayesian information criterion. "Ideal" as in TBPoint, section V-A: units are intervals of the timed execution. Of
    units equally near, the one of the most typical size is taken. The interval is from the profile's own cycles where
    it has them, otherwise from `assumed_spread`."""

    dimensions: int = 15
    most_clusters: int = 30
    bic_share: float = 0.9
    seed: int = 0
    name = "SimPoint"

    def select(self, profile: Profile) -> Selection:
        """One unit a cluster. Raises SamplingError if the profile has no basic-block vectors."""
        vectors = projected(profile.need("basic_blocks", self.name), self.dimensions, self.seed)
        strata, centres = self._cluster(vectors)
        size = np.asarray(profile.instructions, float)
        distance = ((vectors - centres[strata]) ** 2).sum(1).round(9)
        typical = np.bincount(strata, size**2) / np.bincount(strata, size)  # of an instruction: how large its unit is
        units = first_of_each(strata, np.abs(size - typical[strata]), distance)
        return by_instructions(self.name, profile, strata, units, assumed_spread(size, strata))

    def _cluster(self, vectors: Float64[np.ndarray, "unit d"]) -> tuple[Int64[np.ndarray, " unit"], np.ndarray]:
        from sklearn.cluster import KMeans

        most = min(self.most_clusters, len(np.unique(vectors.round(12), axis=0)))
        models = [KMeans(k, n_init=1, random_state=self.seed).fit(vectors) for k in range(1, most + 1)]
        scores = np.array([bic(vectors, model.labels_, model.cluster_centers_) for model in models])
        enough = scores.min() + self.bic_share * (scores.max() - scores.min())
        best = models[int(np.flatnonzero(scores >= enough)[0])]
        return best.labels_.astype(np.int64), best.cluster_centers_


def projected(counts: Float64[np.ndarray, "unit block"], dimensions: int, seed: int) -> Float64[np.ndarray, "unit d"]:
    """Rows as shares (Equation 1), then a random linear projection where that makes them shorter."""
    total = counts.sum(1, keepdims=True)
    shares = counts / np.where(total == 0, 1, total)
    if shares.shape[1] <= dimensions:
        return shares
    return shares @ np.random.default_rng(seed).uniform(-1, 1, (shares.shape[1], dimensions))


def bic(
    vectors: Float64[np.ndarray, "unit d"], labels: Int64[np.ndarray, " unit"], centres: Float64[np.ndarray, "k d"]
) -> float:
    """Bayesian information criterion of a clustering into spherical Gaussians (Pelleg and Moore, X-means, 2000)."""
    units, dimensions = vectors.shape
    clusters = len(centres)
    members = np.bincount(labels, minlength=clusters)
    squares = float(((vectors - centres[labels]) ** 2).sum())
    scale = float(np.var(vectors, axis=0).sum()) or 1.0
    variance = max(squares / (dimensions * max(units - clusters, 1)), 1e-9 * scale)
    likelihood = float(np.sum(members * np.log(members / units)))
    likelihood -= units * dimensions / 2 * math.log(2 * math.pi * variance)
    likelihood -= squares / (2 * variance)
    return likelihood - (clusters * (dimensions + 1)) / 2 * math.log(units)
