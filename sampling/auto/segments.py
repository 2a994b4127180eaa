"""A long launch from some stretches of its thread blocks: SMARTS (Wunderlich et al., ISCA 2003) over the grid."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sampling.auto.prediction import Prediction, predict
from sampling.auto.unlike import choose_unlike
from sampling.estimate import Estimate, Part, around
from sampling.protocol import LaunchShape, Simulator
from sampling.statistics import CONFIDENCE, t_quantile

if TYPE_CHECKING:
    from jaxtyping import Float64, Int64

FIRST_WAVES, LAST_WAVES = 2, 1  # always simulated: thread blocks in step on cold caches, and a launch that drains
WARM_WAVES = 2  # simulated before each: one to be rid of what was in flight, one to fill the queues
FIRST_SEGMENTS = 6
SEGMENTS = 48  # about so many, of so many waves
SHORTEST, LONGEST = 2, 16
FEWEST = 12  # segments that are worth choosing from
DEAREST = 0.6  # share of a launch beyond which the rest is simulated too
GIANT = 0.1  # of the mean time of all that one slot gets, in instructions: a warp so long may decide when a launch ends


@dataclass(frozen=True)
class SegmentSampling:
    """Thread blocks are cut into segments. Of those chosen, each after WARM_WAVES that are simulated to
    warm up, the time from the dispatch of its first to that of its last block is taken; caches see what is left out.
    The other segments are predicted from their work (`predict`), and more are chosen until half the interval is at
    most `error`. A launch for which that does not pay, or in which single blocks are long, is none for it.
    """

    error: float = 0.02
    confidence: float = CONFIDENCE
    seed: int = 0
    name = "segments"

    def launch(
        self, simulator: Simulator, work: Float64[np.ndarray, "tb work"], longest: Float64[np.ndarray, " tb"]
    ) -> Estimate | None:
        """`work` of every thread block, instructions first; `longest`: instructions of its longest warp. None where
        the error asked for takes a simulation in full."""
        cut = cut_into_segments(simulator.shape)
        if cut is None or has_giants(longest, simulator.shape):
            return None
        return _Launch(self, simulator, cut, work).estimate()


def cut_into_segments(shape: LaunchShape) -> Int64[np.ndarray, " bound"] | None:
    """Where segments begin and the last one ends; None where the first of them would cost nearly as much as all.
    Segments are whole waves, because equal thread blocks are dispatched in bursts, a wave each."""
    waves = min(max(shape.thread_blocks // (SEGMENTS * shape.wave_blocks), SHORTEST), LONGEST)
    first, each = FIRST_WAVES * shape.wave_blocks, waves * shape.wave_blocks
    count = (shape.thread_blocks - first - LAST_WAVES * shape.wave_blocks) // each
    cut = first + each * np.arange(max(count, 0) + 1)
    dear = FIRST_SEGMENTS * (WARM_WAVES * shape.wave_blocks + each) + WARM_WAVES * shape.wave_blocks + first
    return cut if count >= FEWEST and dear < DEAREST * shape.thread_blocks else None


def has_giants(longest: Float64[np.ndarray, " tb"], shape: LaunchShape) -> bool:
    """Whether a warp, of those that are `longest` in their thread block, may decide when the launch ends."""
    slot = float(longest.sum()) / shape.wave_blocks
    return float(longest.max()) > GIANT * slot


class _Launch:
    """One launch, of which some segments have been simulated."""

    def __init__(
        self, method: SegmentSampling, simulator: Simulator, cut: Int64[np.ndarray, " bound"],
        work: Float64[np.ndarray, "tb work"],
    ) -> None:  # fmt: skip
        self.method, self.simulator, self.cut = method, simulator, cut
        self.wave, self.blocks = simulator.shape.wave_blocks, simulator.shape.thread_blocks
        self.instructions = float(work[:, 0].sum())
        self.work = work_in_flight(work, cut, self.wave)
        self.rng = np.random.default_rng(method.seed)
        self.sample: list[int] = []
        self.cycles: list[float] = []
        self.ends = [0.0, 0.0]  # cycles of what comes before the first segment, and after the last
        self.stepped = 0  # thread blocks, those to warm up included
        self.dispatch_cycles = np.zeros(self.blocks)

    def estimate(self) -> Estimate | None:
        """First segments; then as many as their spread asks for, if that is less than everything."""
        self._run(choose_unlike(self.work, self.work[:, 0], self.sample, FIRST_SEGMENTS, self.rng))
        for _ in range(2):
            found, half = self._interval()
            wanted = self._wanted(half / self._total(found))
            if wanted == 0:
                return self._estimate(found, half)
            each = WARM_WAVES * self.wave + self.cut[1] - self.cut[0]
            if self.stepped + wanted * each > DEAREST * self.blocks:
                break
            self._run(choose_unlike(self.work, self.work[:, 0], self.sample, wanted, self.rng))
        return None

    def _run(self, segments: list[int]) -> None:
        """Segments in order, on one clock; the ends too, if they have not been."""
        state, at, ends = self.simulator.init(), 0, self.stepped == 0
        if ends:
            state, at, before = self._step(state, 0, int(self.cut[0]))
            self.ends[0] = before
        for segment in sorted(segments):
            first, last = self.cut[segment : segment + 2].tolist()
            state, at, before = self._warmed(state, at, first)
            state, at, after = self._step(state, at, last)
            self.sample.append(segment)
            self.cycles.append(after - before)
        if ends:
            state, at, before = self._warmed(state, at, int(self.cut[-1]))
            state, at, _ = self._step(state, at, self.blocks)
            self.ends[1] = self.simulator.result(state)[1].clock_cycles - before

    def _warmed(self, state: Any, at: int, first: int) -> tuple[Any, int, float]:
        """Leave out all but WARM_WAVES before a segment, and simulate those."""
        start = max(at, first - WARM_WAVES * self.wave)
        if start > at:
            state = self.simulator.leave_out(state, np.arange(at, start))
        if start < first:
            return self._step(state, start, first)
        return state, first, self._clock(first)

    def _step(self, state: Any, first: int, last: int) -> tuple[Any, int, float]:
        state, seen = self.simulator.step(state, np.arange(first, last))
        self.stepped += last - first
        self.dispatch_cycles[seen.blocks] = seen.block_dispatch_cycles
        self.dispatch_cycles[seen.resident_blocks] = seen.resident_dispatch_cycles
        return state, last, self._clock(last)

    def _clock(self, thread_block: int) -> float:
        """When a thread block is reached: the mean over the wave before it, which bursts do not move."""
        return float(self.dispatch_cycles[thread_block - self.wave : thread_block].mean())

    def _total(self, found: Prediction) -> float:
        return float(found.cycles.sum()) + sum(self.ends)

    def _interval(self) -> tuple[Prediction, float]:
        found = predict(self.work, np.array(self.sample), np.array(self.cycles))
        quantile = t_quantile(found.degrees, self.method.confidence)
        return found, quantile * math.sqrt(found.variance)

    def _wanted(self, half: float) -> int:
        """Segments more, so that the error is small enough if it falls with the root of their number."""
        if half <= self.method.error:
            return 0
        return math.ceil(len(self.sample) * ((half / self.method.error) ** 2 - 1.0))

    def _estimate(self, found: Prediction, half: float) -> Estimate:
        total, done = self._total(found), min(self.stepped / self.blocks, 1.0)
        seen = sum(self.ends) + sum(self.cycles)
        parts = (
            Part(name=f"{len(self.sample)} of {len(found.cycles)} segments", how="detailed", cycles=seen,
                 instructions=done * self.instructions),
            Part(name="the other segments", how="predicted", cycles=total - seen,
                 instructions=(1.0 - done) * self.instructions),
        )  # fmt: skip
        return around(
            self.method.name,
            total,
            half / t_quantile(math.inf),
            basis="sampled",
            detailed_fraction=done,
            parts=parts,
            confidence=self.method.confidence,
        )


def work_in_flight(
    work: Float64[np.ndarray, "tb work"], cut: Int64[np.ndarray, " bound"], wave_blocks: int
) -> Float64[np.ndarray, "segment work"]:
    """Work done between the dispatch of one thread block and another: each is in flight, and works as evenly, while as
    many are dispatched after it as the GPU holds. Means over the wave before either, as `_clock` has them. The last
    column is the place, by which cycles may drift."""
    done = np.cumsum(work, 0)
    for _ in range(2):
        done = _mean_over(done, wave_blocks)
    done = np.concatenate([np.zeros((1, work.shape[1])), done])[cut]
    blocks = np.diff(cut).astype(float)
    place = 1.0 + np.arange(len(blocks)) / len(blocks)
    return np.column_stack([np.diff(done, axis=0), blocks, blocks * place])


def _mean_over(values: Float64[np.ndarray, "tb work"], count: int) -> Float64[np.ndarray, "tb work"]:
    """Mean of each value and those before it, `count` together; before the first there is 0."""
    sums = np.cumsum(values, 0)
    sums[count:] -= sums[:-count].copy()
    return sums / count
