"""The cycles a flushed cache cost, estimated without simulating anything else. Thesis, section 6.3."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Float64


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
