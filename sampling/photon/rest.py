"""The rest of a launch once basic blocks are stable: executed, predicted, dispatched. Photon, section 4.1, step 3."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from sampling.dispatcher import dispatch
from sampling.estimate import Estimate, around
from sampling.photon.bbv import Analysis
from sampling.photon.block_sampling import BlockTimes
from sampling.photon.launch_in_progress import Run
from sampling.photon.stability import Detector
from sampling.photon.warp_sampling import WarpSampling
from sampling.statistics import batch_means

if TYPE_CHECKING:
    from jaxtyping import Float64, Int64

_FEWEST_BLOCKS = 256  # executed at once


class BlockPrediction:
    """Warps' times are sums of their basic blocks' times; a thread block takes as long as its slowest warp.

    The slowest of several noisy warps is slower than their mean times say. So predicted thread blocks are multiplied
    with ratios, observed over predicted, drawn from the last wave simulated in detail, with a chance in proportion to
    what was predicted: long blocks, whose ratio may differ, are most of the work. The interval holds the errors of
    the blocks' mean times, of the ratios' mean and its change over two waves, and the spread of the last thread block.
    """

    def __init__(self, run: Run, times: BlockTimes, analysis: Analysis, analysed: float, seed: int = 0) -> None:
        self.run, self.functional = run, times.functional
        self.analysis, self.analysed, self.delta = analysis, analysed, times.method.delta
        self.executed = 0.0  # warp instructions of the thread blocks predicted so far, counted
        self.cycles, self.errors = times.cycles()
        self.rng = np.random.default_rng(seed)
        blocks, observed = run.retired(2 * run.shape.wave_blocks)
        predicted = self.warp_cycles(blocks).max(1, initial=1.0)
        ratios, wave = observed / predicted, run.shape.wave_blocks
        self.ratios = ratios[-wave:] if len(ratios) else np.ones(1)
        self.shares = predicted[-wave:] / predicted[-wave:].sum() if len(ratios) else np.ones(1)
        self.drift = abs(float(self.ratios.mean()) - float(ratios.mean())) if len(ratios) else 0.0
        self.mean_cycles = float(observed.mean()) if len(observed) else 0.0
        self.free = run.free_cycles(self._block_cycles(self.warp_cycles(run.seen.resident_blocks)))

    def warp_cycles(self, thread_blocks: Int64[np.ndarray, " tb"]) -> Float64[np.ndarray, "tb warp"]:
        """Predicted cycles of every warp of some thread blocks, which are executed for it."""
        if len(thread_blocks) == 0:
            return np.empty((0, self.run.shape.warps_per_block))
        counts = self.functional.profile(np.asarray(thread_blocks)).counts
        return self._cycles_of(counts, len(thread_blocks))

    def _cycles_of(
        self, counts: Int64[np.ndarray, "warp basic_block"], thread_blocks: int
    ) -> Float64[np.ndarray, "tb warp"]:
        return np.maximum(counts @ self.cycles, 1.0).reshape(thread_blocks, -1)

    def _block_cycles(self, warps: Float64[np.ndarray, "tb warp"]) -> Float64[np.ndarray, " tb"]:
        return warps.max(1, initial=0.0) * self.rng.choice(self.ratios, len(warps), p=self.shares)

    def finish(self, warp: WarpSampling | None, detector: Detector | None) -> Estimate:
        """Execute and predict chunk by chunk; hand over once the warp detector is content with predicted warps."""
        remaining, chunk = self.run.remaining, max(self.run.chunk, _FEWEST_BLOCKS)
        predicted: list[np.ndarray] = []
        for start in range(0, len(remaining), chunk):
            blocks = remaining[start : start + chunk]
            counts = self.functional.profile(blocks).counts
            self.executed += float((counts @ self.functional.block_instructions).sum())
            warps = self._cycles_of(counts, len(blocks))
            predicted.append(self._block_cycles(warps))
            starts, self.free = dispatch(self.free, predicted[-1])
            left = len(remaining) - start - len(warps)
            if warp is None or detector is None or left == 0:
                continue
            scaled = warps * (predicted[-1] / warps.max(1))[:, None]
            detector.add(np.repeat(starts, warps.shape[1]), (starts[:, None] + scaled).ravel())
            if detector.stable:
                return self._hand_over(warp, detector, np.concatenate(predicted), left)
        return self._estimate(float(self.free.max()), 0.0, self.executed, "basic block")

    def _hand_over(
        self, warp: WarpSampling, detector: Detector, predicted: Float64[np.ndarray, " tb"], left: int
    ) -> Estimate:
        last = predicted[-max(warp.window // self.run.shape.warps_per_block, 1) :]
        blocks = self.run.shape.thread_blocks
        unseen = self.executed + self.analysis.instructions_from(blocks - left, blocks)
        rest = warp.extrapolate(self.run, last, self.free, left, detector.drift, unseen, 0.0)
        return self._estimate(rest.total, rest.standard_error, unseen, "basic block, then warp")

    def _estimate(self, total: float, error: float, left: float, how: str) -> Estimate:
        run, now = self.run, self.run.seen.clock_cycles
        mean, ratio_error, degrees = batch_means(self.ratios)
        unseen = self.delta / math.sqrt(3.0)
        relative = math.hypot(self._block_error(), (ratio_error + self.drift) / mean, unseen)
        last = float(self.ratios.std()) * self.mean_cycles
        spread = math.sqrt(((total - now) * relative) ** 2 + error**2 + last**2)
        done = run.seen.dispatched_instructions
        executed = (done + self.analysed + self.executed) / (done + left)
        return around(
            "basic block", total, spread, degrees, basis="sampled", detailed_fraction=run.detailed_share(left),
            functional_fraction=min(executed, 1.0), parts=run.parts(how, total, left),
        )  # fmt: skip

    def _block_error(self) -> float:
        """Relative error of a warp's time from those of its basic blocks' times."""
        blocks, _ = self.run.retired(2 * self.run.shape.wave_blocks)
        if len(blocks) == 0:
            return 1.0
        work = self.functional.profile(blocks).counts.sum(0) * self.cycles
        return float(np.linalg.norm(work * self.errors) / work.sum()) if work.sum() else 0.0
