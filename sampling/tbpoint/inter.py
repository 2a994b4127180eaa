"""Inter-launch sampling: launches with similar features have one representative. TBPoint, section III."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sampling.profile import Profile
from sampling.selection import Selection, profiled_spread, relabel

if TYPE_CHECKING:
    from jaxtyping import Float64, Int64

_MOST_POINTS = 4000  # of one hierarchical clustering, whose memory grows with the square


@dataclass(frozen=True)
class InterLaunch:
    """Hierarchical clustering of Equation 2's vectors at sigma = 0.1; the launch nearest each centre is simulated.

    Launches of different kernels share no cluster (not in the paper: two kernels may differ in what no feature shows).
    Total CPI weighs each representative's CPI by its cluster's instructions (Table IV). The interval takes the spread
    of CPI in a cluster from the profile's cycles where it has them, else assumes it is as large as sigma allows the
    instructions to be apart: a large share of those of small launches.
    """

    sigma: float = 0.1
    name = "TBPoint inter-launch"

    def select(self, profile: Profile) -> Selection:
        """One launch a cluster. Raises SamplingError if the profile misses one of the four features."""
        vectors = inter_features(profile, self.name)
        strata = complete_linkage(vectors, self.sigma)
        if profile.kernels is not None:
            strata = strata * (int(profile.kernels.max()) + 1) + profile.kernels
        strata = relabel(strata)
        size = np.asarray(profile.instructions, float)
        spread = self.sigma / np.minimum(np.bincount(strata, vectors[:, 1]) / np.bincount(strata), 1.0)
        if profile.cycles is not None:
            spread = profiled_spread(np.asarray(profile.cycles, float), size, strata)
        return Selection(
            method=self.name,
            units=nearest_to_centre(vectors, strata),
            strata=strata,
            size=size,
            instructions=size,
            spread=spread,
        )


def inter_features(profile: Profile, method: str) -> Float64[np.ndarray, "launch 4"]:
    """Equation 2: thread instructions, warp instructions, memory requests, each over its average; CoV of block size."""
    columns = [
        profile.need("thread_instructions", method),
        np.asarray(profile.instructions, float),
        profile.need("memory_requests", method),
    ]
    scaled = [column / (column.mean() or 1.0) for column in columns]
    return np.stack([*scaled, profile.need("block_size_variation", method)], axis=1)


def complete_linkage(vectors: Float64[np.ndarray, "n d"], sigma: float) -> Int64[np.ndarray, " n"]:
    """Clusters whose points are at most `sigma` apart, by complete linkage.

    Equal points are clustered once. Where even the distinct ones are too many, points of one cell of a grid of pitch
    sigma / 8 (doubled until they fit) count as one; a cluster may then exceed sigma by a cell's diagonal.
    """
    from scipy.cluster.hierarchy import fcluster, linkage

    pitch = sigma / 8
    points, inverse = np.unique(vectors, axis=0, return_inverse=True)
    while len(points) > _MOST_POINTS:
        points, inverse = np.unique(np.floor(vectors / pitch), axis=0, return_inverse=True)
        points = points * pitch
        pitch *= 2
    if len(points) == 1:
        return np.zeros(len(vectors), np.int64)
    return fcluster(linkage(points, "complete"), sigma, "distance")[inverse.reshape(-1)].astype(np.int64) - 1


def nearest_to_centre(
    vectors: Float64[np.ndarray, "n d"], strata: Int64[np.ndarray, " n"]
) -> Int64[np.ndarray, " stratum"]:
    """In every cluster the point nearest its mean; of equals the first."""
    members = np.bincount(strata)
    centres = np.stack([np.bincount(strata, column) / members for column in vectors.T], axis=1)
    apart = ((vectors - centres[strata]) ** 2).sum(1).round(15)
    order = np.lexsort((np.arange(len(strata)), apart, strata))
    return np.sort(order[np.unique(strata[order], return_index=True)[1]])
