"""The cold-start problem of sampled launches: how large it is, and what to do about it (thesis, 2024)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sampling.arrays import Float64, Int64

THRESHOLDS = (0.05, 0.10, 0.15, 0.20)  # of the relative difference of IPC, section 4.2


def footprint(lines: Int64[np.ndarray, " reference"]) -> Int64[np.ndarray, " line"]:
    """The set of addresses (here: cache lines) a launch touches, sorted."""
    return np.unique(lines)


def forward_reuse(footprints: Sequence[np.ndarray]) -> Float64[np.ndarray, " launch"]:
    """Equation 4.1: share of launch i's footprint that launch i + 1 touches too; NaN for the last launch."""
    return _reuse(footprints, footprints[1:])


def backward_reuse(footprints: Sequence[np.ndarray]) -> Float64[np.ndarray, " launch"]:
    """Equation 4.2: share of launch i's footprint that launch i - 1 touched too; NaN for the first launch."""
    return _reuse(footprints[::-1], footprints[-2::-1])[::-1]


def _reuse(mine: Sequence[np.ndarray], others: Sequence[np.ndarray]) -> Float64[np.ndarray, " launch"]:
    """Share of each that is in its other one; NaN where it has none."""
    shared = [len(np.intersect1d(*pair, assume_unique=True)) for pair in zip(mine, others, strict=False)]
    found = [part / len(whole) if len(whole) else 0.0 for part, whole in zip(shared, mine, strict=False)]
    return np.array([*found, np.nan][: len(mine)])


def ipc_difference(
    flushed_cycles: Float64[np.ndarray, " launch"], kept_cycles: Float64[np.ndarray, " launch"]
) -> Float64[np.ndarray, " launch"]:
    """|IPC flushed - IPC kept| / IPC kept; the instructions are the same, so cycles say it all."""
    return np.abs(kept_cycles / np.asarray(flushed_cycles, float) - 1.0)


def affected_share(
    difference: Float64[np.ndarray, " launch"], instructions: Float64[np.ndarray, " launch"]
) -> dict[float, float]:
    """Share of the instructions in launches whose IPC differs by at least each of THRESHOLDS (Figures 4.2 and 5.2)."""
    weight = instructions / instructions.sum()
    return {threshold: float(weight[difference >= threshold].sum()) for threshold in THRESHOLDS}


@dataclass(frozen=True)
class ReuseLatency:
    """As many instructions as `percentile` of some reuse latencies reach back, in buckets of `bucket` instructions."""

    percentile: float = 0.999
    bucket: int = 1000
    name = ""

    def warm_up(
        self, positions: Int64[np.ndarray, " reference"], addresses: Int64[np.ndarray, " reference"], boundary: int
    ) -> int:
        """Instructions to simulate warm before the sample, which begins at the `boundary`; at most all before it."""
        latency = self.latencies(positions, previous_reference(addresses), boundary)
        if len(latency) == 0:
            return 0
        most = int(np.quantile(latency, self.percentile, method="inverted_cdf"))
        return min((most // self.bucket + 1) * self.bucket, boundary)

    def latencies(self, positions: np.ndarray, previous: np.ndarray, boundary: int) -> np.ndarray:
        """Instructions between references to the same address, of those that count."""
        raise NotImplementedError


class Mrrl(ReuseLatency):
    """Memory reference reuse latency (Haskins and Skadron 2003): all references of pre-sample and sample count."""

    name = "MRRL"

    def latencies(self, positions: np.ndarray, previous: np.ndarray, boundary: int) -> np.ndarray:
        """See `ReuseLatency`."""
        seen = previous >= 0
        return positions[seen] - positions[previous[seen]]


class Blrl(ReuseLatency):
    """Boundary line reuse latency (Eeckhout et al. 2005): only references of the sample whose line was last touched
    before it count, and only with the part of their latency that lies before the sample."""

    name = "BLRL"

    def latencies(self, positions: np.ndarray, previous: np.ndarray, boundary: int) -> np.ndarray:
        """See `ReuseLatency`."""
        last = positions[previous[(positions >= boundary) & (previous >= 0)]]
        return boundary - last[last < boundary]


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
    of its footprint is used again. Below that a launch may be slower with kept caches (OceanFFT, section 5.3.1).
    """

    dram_latency_cycles: float = 254.0  # Figure 5.1
    l2_latency_cycles: float = 187.0
    line_bytes: int = 128
    least_reuse: float = 0.5
    name = "correction factor"

    def saved_cycles(self, dram_requests: float, controllers: float, previous_forward_reuse: float) -> float:
        """Delta. `dram_requests`: distinct ones, of 32 B here; reuse NaN (no previous launch): 0."""
        if not previous_forward_reuse >= self.least_reuse or controllers <= 0:
            return 0.0
        lines = dram_requests / (controllers * self.line_bytes)
        return lines * previous_forward_reuse * (self.dram_latency_cycles - self.l2_latency_cycles)

    def apply(
        self, flushed_cycles: float, dram_requests: float, controllers: float, previous_forward_reuse: float
    ) -> float:
        """Cycles with the previous launch's data in the cache. Delta is an upper bound: at most half is taken off."""
        saved = self.saved_cycles(dram_requests, controllers, previous_forward_reuse)
        return max(flushed_cycles - saved, 0.5 * flushed_cycles)


def evenly_used_controllers(
    reads: Float64[np.ndarray, "controller bank"], writes: Float64[np.ndarray, "controller bank"]
) -> float:
    """Equations 6.3 and 6.4: sum over controllers of their mean occupancy, over the largest; 0 without any access."""
    occupancy = (reads.sum(1) + writes.sum(1)) / (2 * reads.shape[1])
    most = float(occupancy.max()) if len(occupancy) else 0.0
    return float(occupancy.sum()) / most if most else 0.0
