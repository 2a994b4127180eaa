"""The cold-start problem of sampled launches: how large it is, and what to do about it (thesis, 2024)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sampling.arrays import Float64, Int64

THRESHOLDS = (0.05, 0.10, 0.15, 0.20)  # of the relative difference of IPC, section 4.2


def forward_reuse(footprints: Sequence[np.ndarray]) -> Float64[np.ndarray, " launch"]:
    """Equation 4.1: share of launch i's footprint (distinct lines) that launch i + 1 touches too; NaN for the last."""
    return _reuse(footprints, footprints[1:])


def backward_reuse(footprints: Sequence[np.ndarray]) -> Float64[np.ndarray, " launch"]:
    """Equation 4.2: share of launch i's footprint that launch i - 1 touched too; NaN for the first launch."""
    return _reuse(footprints[::-1], footprints[-2::-1])[::-1]


def _reuse(mine: Sequence[np.ndarray], others: Sequence[np.ndarray]) -> Float64[np.ndarray, " launch"]:
    """Share of each that is in its other one; NaN where it has none."""
    shared = [len(np.intersect1d(*pair, assume_unique=True)) for pair in zip(mine, others, strict=False)]
    found = [part / len(whole) if len(whole) else 0.0 for part, whole in zip(shared, mine, strict=False)]
    return np.array([*found, np.nan][: len(mine)])


def affected_share(
    difference: Float64[np.ndarray, " launch"], instructions: Float64[np.ndarray, " launch"]
) -> dict[float, float]:
    """Share of the instructions in launches whose IPC differs by at least each of THRESHOLDS (Figures 4.2 and 5.2)."""
    weight = instructions / instructions.sum()
    return {threshold: float(weight[difference >= threshold].sum()) for threshold in THRESHOLDS}


# Instructions between references to one address, of those that count: from where among the instructions each reference
# is, the index of the one before it to its address, and where the sample begins
Latencies = Callable[[np.ndarray, np.ndarray, int], np.ndarray]


def mrrl(positions: np.ndarray, previous: np.ndarray, boundary: int) -> np.ndarray:
    """Memory reference reuse latency (Haskins and Skadron 2003): all references of pre-sample and sample count."""
    seen = previous >= 0
    return positions[seen] - positions[previous[seen]]


def blrl(positions: np.ndarray, previous: np.ndarray, boundary: int) -> np.ndarray:
    """Boundary line reuse latency (Eeckhout et al. 2005): only references of the sample whose line was last touched
    before it count, and only with the part of their latency that lies before the sample."""
    last = positions[previous[(positions >= boundary) & (previous >= 0)]]
    return boundary - last[last < boundary]


def warm_up(
    latencies: Latencies, positions: Int64[np.ndarray, " reference"], addresses: Int64[np.ndarray, " reference"],
    boundary: int, percentile: float = 0.999, bucket: int = 1000,
) -> int:  # fmt: skip
    """Instructions to simulate warm before the sample, which begins at the `boundary`: as many as `percentile` of the
    latencies reach back, in buckets; at most all before it."""
    latency = latencies(positions, previous_reference(addresses), boundary)
    if len(latency) == 0:
        return 0
    most = int(np.quantile(latency, percentile, method="inverted_cdf"))
    return min((most // bucket + 1) * bucket, boundary)


def previous_reference(addresses: Int64[np.ndarray, " reference"]) -> Int64[np.ndarray, " reference"]:
    """Index of the last earlier reference to the same address, or -1."""
    order = np.argsort(addresses, kind="stable")
    previous = np.full(len(addresses), -1)
    same = addresses[order][1:] == addresses[order][:-1]
    previous[order[1:][same]] = order[:-1][same]
    return previous


@dataclass(frozen=True)
class Correction:
    """cycles = cycles_flushed - delta, delta = accesses / (controllers line) fwd_(i-1) (DRAM - L2) (Equation 6.2).

    `accesses` is the number of distinct requests that reach DRAM; controllers serve them in parallel. Their number, not
    their bytes, is divided by the line size, as the formula says; bytes would make delta the time of all misses one
    after the other, several times a launch that overlaps them. It can only shorten, so it is applied only where reuse
    says that the previous launch warmed the cache: at least `least_reuse`
    of its footprint is used again. Below that a launch may be slower with kept caches (OceanFFT, section 5.3.1)."""

    dram_latency_cycles: float = 254.0  # Figure 5.1
    l2_latency_cycles: float = 187.0
    line_bytes: int = 128
    least_reuse: float = 0.5

    def apply(self, flushed_cycles: float, dram_requests: float, controllers: float, previous_reuse: float) -> float:
        """Cycles with the previous launch's data in the cache. `dram_requests`: distinct ones, of 32 B here; reuse NaN:
        no launch before. Delta is an upper bound: at most half is taken off."""
        if not previous_reuse >= self.least_reuse or controllers <= 0:
            return flushed_cycles
        lines = dram_requests / (controllers * self.line_bytes)
        saved = lines * previous_reuse * (self.dram_latency_cycles - self.l2_latency_cycles)
        return max(flushed_cycles - saved, 0.5 * flushed_cycles)


def evenly_used_controllers(
    reads: Float64[np.ndarray, "controller bank"], writes: Float64[np.ndarray, "controller bank"]
) -> float:
    """Equations 6.3 and 6.4: sum over controllers of their mean occupancy, over the largest; 0 without any access."""
    occupancy = (reads.sum(1) + writes.sum(1)) / (2 * reads.shape[1])
    most = float(occupancy.max()) if len(occupancy) else 0.0
    return float(occupancy.sum()) / most if most else 0.0
