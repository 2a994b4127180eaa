"""A launch of long warps from a share of their iterations: what SMARTS does along the grid, along the life of a warp.

For persistent thread blocks and for launches of few waves, which have no thread blocks to leave out. Every warp does
runs of its iterations, spread over its life; the grid, its waves and its phases stay. Cycles grow with the instructions
that are left, so that those of several shares tell what all would take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from sampling.arrays import Float64
from sampling.estimate import Estimate, from_a_part
from sampling.statistics import CONFIDENCE

if TYPE_CHECKING:
    import numpy as np

SHARES = (1 / 16, 1 / 8, 1 / 4)
UNEVEN = 3.0  # times the mean: a warp so long may be alone at the end, whatever the others do
LARGEST_FIRST = 0.12  # of the instructions at the smallest share: warps of few iterations cannot be cut further
# Half of the interval: so many times what the extrapolations from two pairs of shares differ by, and no less than of
# this difference. The most it took of 30 launches without giants (three programs of the hard set, seeds 0 to 3, two
# GPUs, and three benchmarks at 16 times their size), which is their conformal bound at 95 %, is 3.9.
TIMES, LEAST_DIFFERENCE = 4.0, 0.02


class Timed(NamedTuple):
    """A launch that does a share of its iterations: warp instructions, and cycles without the launch's latency."""

    instructions: float
    cycles: float


@dataclass(frozen=True)
class IterationSampling:
    """From shares of the iterations, if the interval that follows is narrow enough; not tried where it never is."""

    error: float = 0.02
    confidence: float = CONFIDENCE
    name = "iterations"

    @property
    def worth_trying(self) -> bool:
        """Whether the narrowest interval that it states would do."""
        return self.confidence <= CONFIDENCE and self.error >= TIMES * LEAST_DIFFERENCE

    def launch(self, instructions: float, latency: float, timed: Callable[[float], Timed | None]) -> Estimate | None:
        """A launch of so many warp instructions; `timed` simulates a share of its iterations, None if it cannot. None
        where shares do not tell enough."""
        found: list[Timed] = []
        for share in SHARES:
            part = timed(share) if self.worth_trying else None
            if part is None or (not found and part.instructions > LARGEST_FIRST * instructions):
                return None
            found.append(part)
        before, last = (_extrapolated(a, b, instructions) for a, b in pairwise(found))
        half = TIMES * max(abs(before / last - 1.0), LEAST_DIFFERENCE) if last > 0 else float("inf")
        if half > self.error:
            return None
        done = sum(part.instructions for part in found) / instructions
        return from_a_part(
            self.name, last + latency, half, self.confidence, "model", (instructions, done),
            (f"{len(found)} shares of iterations", found[-1].cycles), ("the other iterations", "extrapolated"),
        )  # fmt: skip


def uneven(longest: Float64[np.ndarray, " tb"]) -> bool:
    """Whether a warp, of those that are `longest` in their thread block, is far longer than the others."""
    return float(longest.max()) > UNEVEN * float(longest.mean())


def _extrapolated(a: Timed, b: Timed, instructions: float) -> float:
    """Cycles of all instructions on the line through two shares; 0 where they are one."""
    if b.instructions <= a.instructions:
        return 0.0
    slope = (b.cycles - a.cycles) / (b.instructions - a.instructions)
    return b.cycles + slope * (instructions - b.instructions)
