"""What is known of a launch that was simulated in full."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Measured:
    """The engine's counters (of other models none), and the seconds that executing and timing it took."""

    cycles: int
    instructions: float  # of warps
    execute_seconds: float
    time_seconds: float
    counters: Mapping[str, int]
