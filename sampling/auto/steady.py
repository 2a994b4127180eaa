"""A launch of many waves of equal thread blocks, from its first waves, whose pace goes on, and its end."""

import math
from dataclasses import dataclass

import numpy as np

from sampling.arrays import Float64
from sampling.auto.segments import BUSY, LAST_WAVES, WARM_WAVES, Batch, Beginning, SegmentSimulation
from sampling.estimate import Estimate, from_a_part
from sampling.protocol import LaunchShape, Simulator
from sampling.statistics import CONFIDENCE, coefficient_of_variation, t_quantile

FIRST_WAVES, FIRST_SHARE = 4, 1 / 12  # at least: the first two fill the pipelines and are in step
LOOKS = 1  # waves more that there must be room for: the first look alone seldom tells enough
MOST = 0.4  # share of a launch beyond which the rest is simulated too
# Coefficients of variation of what thread blocks, or waves of them, do: where a tile lies decides how many lines it has
EQUAL_WORK, EQUAL_BLOCK_LINES = 0.02, 0.3
# Half of the interval of what is left out, at least: thread blocks fall out of step over some forty waves, by which the
# pace moves by 2 to 4 % (segments.py)
LEAST = 0.04


def equal_blocks(
    work: Float64[np.ndarray, "tb work"], lines: Float64[np.ndarray, "tb lines"], wave_blocks: int
) -> bool:
    """Whether thread blocks do the same: of each column they have as much, and waves of them (where all are there, else
    `wave_blocks` is 1) touch as many `lines`."""
    most = EQUAL_WORK if wave_blocks > 1 else EQUAL_BLOCK_LINES
    waves = np.add.reduceat(lines, np.arange(0, max(len(lines) - wave_blocks, 0) + 1, wave_blocks))
    whole = waves if wave_blocks == 1 else waves[:-1]
    return all(coefficient_of_variation(column) <= EQUAL_WORK for column in work.T) and all(
        coefficient_of_variation(column) <= most for column in whole.T
    )


@dataclass(frozen=True)
class SteadySampling:
    """The first waves are simulated until caches are warm and the spread of the waves' pace is small enough; the others
    but the last go on at that pace. What is left out warms the caches, and the end is simulated."""

    error: float = 0.02
    confidence: float = CONFIDENCE
    name = "steady"

    def worth_trying(self, shape: LaunchShape) -> bool:
        """Whether a narrow enough interval is possible for less than a launch of this shape costs."""
        least = FIRST_WAVES + LOOKS + WARM_WAVES + LAST_WAVES
        return self.error >= LEAST and least * shape.wave_blocks <= MOST * shape.thread_blocks

    def launch(self, simulator: Simulator, instructions: float, done: list[Batch]) -> Estimate | None:
        """A launch of so many warp instructions; `done` has what was simulated before, and gets what is simulated now.
        None where the error asked for takes a simulation in full."""
        if not done:
            found = self._simulated(simulator)
            if found is None:
                return None
            done.append(found)
        half, total = self._interval(simulator.shape, done[0])
        if half > self.error:
            return None
        batch, work = done[0], (instructions, done[0].stepped / simulator.shape.thread_blocks)
        seen = f"{batch.beginning.waves} first waves and the end", batch.beginning.cycles + batch.end_cycles
        left = "the waves between", "extrapolated"
        return from_a_part(self.name, total, half, self.confidence, "sampled", work, seen, left)

    def _simulated(self, simulator: Simulator) -> Batch | None:
        """Beginning and end; None where the pace does not settle in time, or memory decides it."""
        shape, begun = simulator.shape, SegmentSimulation(simulator)
        clocks: list[float] = []
        fewest = max(FIRST_WAVES, int(FIRST_SHARE * shape.thread_blocks / shape.wave_blocks))
        while (begun.at + (1 + WARM_WAVES + LAST_WAVES) * shape.wave_blocks) <= MOST * shape.thread_blocks:
            settled = begun.next_wave()
            clocks.append(begun.clock(begun.at))
            if len(clocks) < fewest or settled is None:
                continue
            if settled > BUSY:
                return None
            paces = np.diff(clocks[-(max(2, len(clocks) // 2) + 1) :]).tolist()  # of the later half, two at least
            beginning = Beginning(waves=len(clocks), cycles=clocks[-1])
            batch = Batch(beginning=beginning, segments=[], wave_cycles=[paces], stepped=begun.at)
            if self._interval(shape, batch)[0] <= self.error:
                return begun.ended(batch, _last_cut(shape))
        return None

    def _interval(self, shape: LaunchShape, batch: Batch) -> tuple[float, float]:
        """Half of the interval, relative, and the cycles."""
        paces = np.array(batch.wave_cycles[0])
        left = _last_cut(shape) / shape.wave_blocks - batch.beginning.waves
        pace, error = float(paces.mean()), float(paces.std(ddof=1)) / math.sqrt(len(paces))
        total = batch.beginning.cycles + left * pace + (batch.end_cycles or pace)
        spread = t_quantile(len(paces) - 1.0, self.confidence) * error / pace
        return max(spread, LEAST) * left * pace / total, total


def _last_cut(shape: LaunchShape) -> int:
    """The thread block from which on a launch is simulated to its end: whole waves are before it."""
    return (shape.thread_blocks // shape.wave_blocks - LAST_WAVES) * shape.wave_blocks
