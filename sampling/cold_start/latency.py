"""How long to warm up before a sample: reuse latencies of memory references. Thesis, sections 2.4.2 and 2.4.3.

Positions are instruction numbers from the start of the pre-sample, ascending; the sample begins at `boundary`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float64, Int64


@dataclass(frozen=True)
class Mrrl:
    """Memory reference reuse latency (Haskins and Skadron 2003): all references of pre-sample and sample count.

    `percentile` of the references must find their previous one in the warm-up; buckets of `bucket` instructions.
    """

    percentile: float = 0.999
    bucket: int = 1000
    name = "MRRL"

    def warm_up(
        self, positions: Int64[np.ndarray, " reference"], addresses: Int64[np.ndarray, " reference"], boundary: int
    ) -> int:
        """Instructions to simulate warm before the sample; at most all of the pre-sample."""
        previous = previous_reference(addresses)
        seen = previous >= 0
        latency = positions[seen] - positions[previous[seen]]
        return min(_percentile_length(latency, self.bucket, self.percentile), boundary)


@dataclass(frozen=True)
class Blrl:
    """Boundary line reuse latency (Eeckhout et al. 2005): only references of the sample whose line was last touched
    before it count, and only with the part of their latency that lies before the sample.
    """

    percentile: float = 0.999
    bucket: int = 1000
    name = "BLRL"

    def warm_up(
        self, positions: Int64[np.ndarray, " reference"], addresses: Int64[np.ndarray, " reference"], boundary: int
    ) -> int:
        """Instructions to simulate warm before the sample; 0 if nothing crosses the boundary."""
        previous = previous_reference(addresses)
        crossing = (positions >= boundary) & (previous >= 0)
        crossing[crossing] = positions[previous[crossing]] < boundary
        return min(_percentile_length(boundary - positions[previous[crossing]], self.bucket, self.percentile), boundary)


def previous_reference(addresses: Int64[np.ndarray, " reference"]) -> Int64[np.ndarray, " reference"]:
    """Index of the last earlier reference to the same address, or -1."""
    order = np.argsort(addresses, kind="stable")
    previous = np.full(len(addresses), -1)
    same = addresses[order][1:] == addresses[order][:-1]
    previous[order[1:][same]] = order[:-1][same]
    return previous


def histogram(latency: Int64[np.ndarray, " reference"], bucket: int) -> Float64[np.ndarray, " bucket"]:
    """p_i: share of the latencies in [i bucket, (i + 1) bucket)."""
    counts = np.bincount(latency // bucket)
    return counts / max(counts.sum(), 1)


def _percentile_length(latency: Int64[np.ndarray, " reference"], bucket: int, percentile: float) -> int:
    """k buckets such that this share of the latencies is below k buckets."""
    if len(latency) == 0:
        return 0
    reached = np.cumsum(histogram(latency, bucket)) >= percentile - 1e-12
    return (int(np.argmax(reached)) + 1) * bucket
