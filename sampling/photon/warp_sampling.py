"""Warp sampling: once the dominant warps' time is stable, only the dispatcher runs. Photon, section 4.2, Figure 10."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sampling.dispatcher import finish
from sampling.estimate import Estimate, around
from sampling.photon.bbv import Analysis
from sampling.photon.launch_in_progress import Run
from sampling.photon.stability import Detector, StabilityRule
from sampling.protocol import Observation
from sampling.statistics import batch_means

if TYPE_CHECKING:
    from jaxtyping import Float64


@dataclass(frozen=True)
class WarpSampling:
    """Only where one type of warp is more than 95 % of them; n = 1024, delta = 3 %.

    A slot frees when a thread block's last warp retires, so the times of whole blocks, not of single warps, are carried
    on. What is skipped is not executed at all. The interval holds the error of the mean time, how far the last n
    warps and the n before them are apart, a trend within delta, and the spread of the last blocks to finish.
    """

    window: int = 1024
    delta: float = 0.03
    dominance: float = 0.95
    seed: int = 0
    name = "warp"

    def possible(self, analysis: Analysis) -> bool:
        """Whether one type of warp dominates."""
        return analysis.dominant_share > self.dominance

    def detector(self) -> Detector:
        """A fresh detector, to be fed with `watch`."""
        return Detector(StabilityRule(self.window, self.delta))

    def watch(self, detector: Detector, seen: Observation) -> None:
        """Feed the warps that retired."""
        detector.add(seen.warp_issue_cycles, seen.warp_retire_cycles)

    def predict(self, run: Run, detector: Detector, instructions_left: float, analysed: float) -> Estimate:
        """The launch's cycles, if everything not dispatched behaves as the last n warps. `instructions_left`: warp
        instructions of that; `analysed`: of what was executed for the analysis."""
        observed = run.retired(max(self.window // run.shape.warps_per_block, 1))[1]
        free = run.free_cycles(np.full(len(run.seen.resident_blocks), observed.mean()))
        return self.extrapolate(run, observed, free, len(run.remaining), detector.drift, instructions_left, analysed)

    def extrapolate(
        self,
        run: Run,
        observed: Float64[np.ndarray, " n"],
        free: Float64[np.ndarray, " slot"],
        count: int,
        drift: float,
        instructions_left: float,
        analysed: float,
    ) -> Estimate:
        """Cycles when `count` more thread blocks take times like those observed, from slots that free as given."""
        ends = finish(free, observed, count, np.random.default_rng(self.seed))
        total = float(ends.mean())
        now = run.seen.clock_cycles
        mean, error, degrees = batch_means(observed)
        unseen = self.delta / math.sqrt(3.0)  # uniform: what the rule of stability lets pass
        relative = math.hypot(error / mean if mean else 0.0, 2 * drift if math.isfinite(drift) else 0.0, unseen)
        spread = math.hypot((total - now) * relative, float(ends.std(ddof=1)))
        done = run.detailed_share(instructions_left)
        executed = done + analysed * done / run.seen.dispatched_instructions
        return around(
            self.name, total, spread, degrees, basis="sampled", detailed_fraction=done,
            functional_fraction=min(executed, 1.0), parts=run.parts(self.name, total, instructions_left),
        )  # fmt: skip
