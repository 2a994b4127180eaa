"""Basic-block sampling: a warp's time is the sum of its blocks' times. Photon, section 4.1, Figure 7."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sampling.photon.bbv import Analysis
from sampling.photon.interval import interval_cycles
from sampling.photon.stability import Detector, StabilityRule
from sampling.protocol import Functional, Observation
from sampling.statistics import batch_means

if TYPE_CHECKING:
    from jaxtyping import Bool, Float64


@dataclass(frozen=True)
class BlockSampling:
    """n = 2048, delta = 3 %; on once blocks with more than 95 % of the instructions are stable.

    Blocks that never became stable take their mean so far; those never seen, the interval model over the latencies
    observed ("rare basic blocks").
    """

    window: int = 2048
    delta: float = 0.03
    stable_rate: float = 0.95
    name = "basic block"


class BlockTimes:
    """The basic blocks of one launch as they are observed."""

    def __init__(self, method: BlockSampling, functional: Functional) -> None:
        self.method, self.functional = method, functional
        rule = StabilityRule(method.window, method.delta)
        self.detectors = [Detector(rule) for _ in functional.block_instructions]
        self.latency_cycles: Float64[np.ndarray, " class"] = np.empty(0)
        self.initial_cycles: Float64[np.ndarray, " class"] = np.empty(0)

    def watch(self, seen: Observation) -> None:
        """Feed the basic blocks that retired."""
        order = np.argsort(seen.basic_blocks, kind="stable")
        kinds, starts = np.unique(seen.basic_blocks[order], return_index=True)
        for kind, rows in zip(kinds.astype(int).tolist(), np.split(order, starts[1:]), strict=False):
            self.detectors[kind].add(seen.basic_block_issue_cycles[rows], seen.basic_block_retire_cycles[rows])
        if len(seen.class_latency_cycles):
            self.latency_cycles, self.initial_cycles = seen.class_latency_cycles, seen.initial_latency_cycles

    @property
    def stable(self) -> Bool[np.ndarray, " basic_block"]:
        """Which blocks are stable now."""
        return np.array([detector.stable for detector in self.detectors])

    def rate(self, analysis: Analysis) -> float:
        """Share of the analysed instructions that lies in stable blocks."""
        return float(analysis.block_shares[self.stable].sum())

    def ready(self, analysis: Analysis) -> bool:
        """Whether to switch to basic-block sampling."""
        return self.rate(analysis) > self.method.stable_rate

    def cycles(self) -> tuple[Float64[np.ndarray, " basic_block"], Float64[np.ndarray, " basic_block"]]:
        """Predicted cycles of every block and their relative error (drift between the last n and 2n included)."""
        found = [self._block(number, detector) for number, detector in enumerate(self.detectors)]
        return np.array([cycles for cycles, _ in found]), np.array([error for _, error in found])

    def _block(self, number: int, detector: Detector) -> tuple[float, float]:
        if len(detector.durations) == 0:
            code = self.functional.code(number)
            return interval_cycles(code, self.latency_cycles, self.initial_cycles), 1.0
        mean, error, _ = batch_means(detector.durations)
        drift = detector.drift if math.isfinite(detector.drift) else 0.0
        return mean, math.hypot(error / mean, drift) if mean else 0.0
