"""Is the execution time of a kind of warp or basic block stable? Photon, section 4.1, Equation 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sampling.statistics import least_squares

if TYPE_CHECKING:
    from jaxtyping import Float64


@dataclass(frozen=True)
class StabilityRule:
    """|1 - slope| < delta for retire over issue time of the last n, and the means of the last n and 2n within delta."""

    window: int
    delta: float = 0.03


class Detector:
    """The last 2n executions of one kind, fed in order of retirement."""

    def __init__(self, rule: StabilityRule) -> None:
        self.rule = rule
        self.issue: Float64[np.ndarray, " kept"] = np.empty(0)
        self.retire: Float64[np.ndarray, " kept"] = np.empty(0)

    def add(self, issue: Float64[np.ndarray, " new"], retire: Float64[np.ndarray, " new"]) -> None:
        """Append executions; only the last 2n are kept."""
        kept = 2 * self.rule.window
        self.issue = np.concatenate([self.issue, issue])[-kept:]
        self.retire = np.concatenate([self.retire, retire])[-kept:]

    @property
    def durations(self) -> Float64[np.ndarray, " at_most_n"]:
        """Cycles of the last n executions."""
        last = self.rule.window
        return self.retire[-last:] - self.issue[-last:]

    @property
    def slope(self) -> float:
        """Of the last n executions; infinite with fewer."""
        if len(self.issue) < self.rule.window:
            return float("inf")
        return least_squares(self.issue[-self.rule.window :], self.retire[-self.rule.window :])[0]

    @property
    def drift(self) -> float:
        """Relative difference between the mean times of the last n and the last 2n executions; infinite with fewer."""
        if len(self.issue) < 2 * self.rule.window:
            return float("inf")
        longer = float((self.retire - self.issue).mean())
        return abs(float(self.durations.mean()) - longer) / longer if longer else 0.0

    @property
    def stable(self) -> bool:
        """Both conditions of the rule: the second guards against a local optimum of the first."""
        return abs(1.0 - self.slope) < self.rule.delta and self.drift < self.rule.delta
