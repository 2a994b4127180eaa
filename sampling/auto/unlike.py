"""What to simulate next of things that are known by their work: what is large and unlike all that was simulated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from sampling.auto.distances import distances

if TYPE_CHECKING:
    from jaxtyping import Float64, Int64

FARTHEST = 10.0  # distances beyond are one
CANDIDATES = 256  # that are looked at for how much of the whole is like them


def choose_unlike(
    work: Float64[np.ndarray, "n work"], size: Float64[np.ndarray, " n"], sample: Sequence[int], count: int,
    rng: np.random.Generator,
) -> list[int]:  # fmt: skip
    """At most `count` that are not in `sample`: those that much is like, and unlike all that were chosen; every other
    one at random, in proportion to the root of its size (STEM's allocation), because they may differ in what no column
    shows."""
    left = np.ones(len(work), bool)
    chosen: list[int] = []
    left[list(sample)] = False
    nearest = np.full(len(work), FARTHEST)
    if len(sample):
        nearest = np.minimum(distances(work, work[list(sample)]).min(1), FARTHEST)
    for _ in range(min(count, int(left.sum()))):
        places = np.flatnonzero(left)
        if (len(sample) + len(chosen)) % 2 == 0 and (size[places] * nearest[places]).max() > 0:
            place = _nearest_to_most(work, size, nearest, places)
        else:
            root = np.sqrt(size[places]) + 1e-300
            place = int(rng.choice(places, p=root / root.sum()))
        chosen.append(place)
        left[place] = False
        nearest = np.minimum(nearest, distances(work, work[[place]])[:, 0])
    return chosen


def choose_heavy(
    size: Float64[np.ndarray, " n"], cost: Float64[np.ndarray, " n"], sample: Sequence[int], count: int
) -> list[int]:
    """At most `count` that are not in `sample`: those that for their cost take most off the variance of the whole, if
    all are off by as much, relatively and independently."""
    gain = size**2 / cost
    gain[list(sample)] = 0.0
    most = np.argsort(-gain, kind="stable")[:count]
    return [int(place) for place in most if gain[place] > 0.0]


def _nearest_to_most(
    work: Float64[np.ndarray, "n work"], size: Float64[np.ndarray, " n"], nearest: Float64[np.ndarray, " n"],
    places: Int64[np.ndarray, " left"],
) -> int:  # fmt: skip
    """The one that brings everything nearest to what is chosen, each by its size: greedy facility location (Nemhauser,
    Wolsey and Fisher, Mathematical Programming 1978). Of many, those unlike the others and large are looked at."""
    tried = places[np.argsort(-(size * nearest)[places], kind="stable")[:CANDIDATES]]
    closer = nearest[:, None] - np.minimum(distances(work, work[tried]), nearest[:, None])
    return int(tried[np.argmax(np.round(size @ closer, 9))])
