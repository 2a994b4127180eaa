"""From reuse distances to hit-rate curves: miss ratio against cache size, for some associativities."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from abstim.analytic.reuse_distance import BINS_AN_OCTAVE, DISTANCE_BINS, histogram

if TYPE_CHECKING:
    from jaxtyping import Float, Int64

SIZES = 2.0 ** np.arange(0, 20.5, 0.5)  # lines of the cache
WAYS = 2.0 ** np.arange(0, 6)
L1_STEP, L1_WAYS = 4, 4  # of the curve for both levels: two octaves a node


@cache
def miss_matrix() -> Float[np.ndarray, "bin ways size"]:
    """Probability that an access at a distance misses a cache of a size and associativity.

    Of `distance` other lines each lies in the set with probability 1 / sets, and `ways` of them drive the line out: the
    binomial of Smith (1978) and Hill and Smith (1989). The last bin has not been touched before.
    """
    from scipy.special import betainc  # scipy.stats would take a second and a half to import

    distance = np.round(2.0 ** (np.arange(DISTANCE_BINS) / BINS_AN_OCTAVE) - 1)[:, None, None]
    sets = np.maximum(1.0, SIZES[None, None, :] / WAYS[None, :, None])
    ways = np.floor(np.minimum(WAYS[None, :, None], SIZES[None, None, :]))
    missed = np.where(distance >= ways, betainc(ways, np.maximum(1.0, distance - ways + 1), 1 / sets), 0.0)
    missed[-1] = 1.0
    return missed


def miss_curves(
    histogram: Float[np.ndarray, "bin bin"],
) -> tuple[Float[np.ndarray, "ways size"], Float[np.ndarray, "l1_size ways size"]]:
    """Share of accesses that miss L1D, and that miss both L1D and L2, from a histogram of both distances.

    0 everywhere without accesses. The second has every `L1_STEP`-th L1D size, of `L1_WAYS` ways.
    """
    total = max(1.0, histogram.sum())
    missed = miss_matrix()
    l1 = np.tensordot(histogram.sum(1) / total, missed, 1)
    not_in_l1 = missed[:, int(np.log2(L1_WAYS)), ::L1_STEP]
    return l1, np.tensordot(not_in_l1.T @ histogram / total, missed, 1)


def write_curve(distances: Int64[np.ndarray, " sector"]) -> Float[np.ndarray, "ways size"]:
    """Share of written sectors whose line L2 has not, from the distance of each; 0 everywhere without any."""
    found = histogram(distances, distances).sum(0)
    return np.tensordot(found / max(1.0, found.sum()), miss_matrix(), 1)
