"""A long launch from some stretches of its thread blocks: SMARTS (Wunderlich et al., ISCA 2003) over the grid."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
MORE = 0.5  # of those simulated so far, how many are added between two looks at the error
SEGMENTS = 48  # about so many, of so many waves
SHORTEST, LONGEST = 2, 16
FEWEST = 12  # segments that are worth choosing from
DEAREST = 0.6  # share of a launch beyond which the rest is simulated too
GIANT = 0.1  # of the mean time of all that one slot gets, in instructions: a warp so long may decide when a launch ends


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Segments simulated together, in order on one clock, and their cycles; `stepped`: thread blocks, those to warm up
    included. `ends`, of the first batch: cycles of what comes before the first segment of all, and after the last."""

    segments: list[int]
    cycles: list[float]
    stepped: int
    ends: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True)
class SegmentSampling:
    """Thread blocks are cut into segments. Of those chosen, each after WARM_WAVES that are simulated to
    warm up, the time from the dispatch of its first to that of its last block is taken; caches see what is left out.
    The other segments are predicted from their work (`predict`), and more are chosen until half the interval is at
    most `error`. A launch for which that does not pay, or in which single blocks are long, is none for it. Which
    segments are simulated together does not depend on `error`, so that less error goes on from what was simulated
    before, and ends as if that had been aimed at in the first place.
    """

    error: float = 0.02
    confidence: float = CONFIDENCE
    seed: int = 0
    name = "segments"

    def launch(
        self, simulator: Simulator, work: Float64[np.ndarray, "tb work"], longest: Float64[np.ndarray, " tb"],
        done: list[Batch] | None = None,
    ) -> Estimate | None:  # fmt: skip
        """`work` of every thread block, instructions first; `longest`: instructions of its longest warp; `done`: what
        was simulated before with the same `seed`, which what is simulated now joins. None where the error asked for
        takes a simulation in full."""
        cut = cut_into_segments(simulator.shape)
        if cut is None or has_giants(longest, simulator.shape):
            return None
        return _Launch(self, simulator, cut, work, [] if done is None else done).estimate()


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
        work: Float64[np.ndarray, "tb work"], done: list[Batch],
    ) -> None:  # fmt: skip
        self.method, self.simulator, self.cut, self.done = method, simulator, cut, done
        self.wave, self.blocks = simulator.shape.wave_blocks, simulator.shape.thread_blocks
        self.instructions = float(work[:, 0].sum())
        self.work = work_in_flight(work, cut, self.wave)

    def estimate(self) -> Estimate | None:
        """First segments; then ever more, while those that their spread asks for are less than everything."""
        rng, used = np.random.default_rng(self.method.seed), list[Batch]()
        while True:
            sample = [segment for batch in used for segment in batch.segments]
            count = math.ceil(MORE * len(sample)) or FIRST_SEGMENTS
            used.append(self._batch(len(used), choose_unlike(self.work, self.work[:, 0], sample, count, rng)))
            found, half = self._interval(used)
            if half <= self.method.error:
                return self._estimate(used, found, half)
            if not self._pays(used, half):
                return None

    def _batch(self, place: int, segments: list[int]) -> Batch:
        """The one that is simulated as the `place`-th, now or before."""
        if place >= len(self.done) or self.done[place].segments != sorted(segments):
            self.done[place:] = [_Simulation(self.simulator, self.cut, ends=place == 0).run(sorted(segments))]
        return self.done[place]

    def _pays(self, used: list[Batch], half: float) -> bool:
        """Whether as many more as make the error small enough, if it falls with the root of their number, are less than
        everything."""
        sample = sum(len(batch.segments) for batch in used)
        wanted = max(sample * ((half / self.method.error) ** 2 - 1.0), math.ceil(MORE * sample))
        each = WARM_WAVES * self.wave + int(self.cut[1] - self.cut[0])
        return sum(batch.stepped for batch in used) + wanted * each <= DEAREST * self.blocks

    def _interval(self, used: list[Batch]) -> tuple[Prediction, float]:
        """Cycles of all segments, and half of the launch's interval, relative."""
        sample = [segment for batch in used for segment in batch.segments]
        cycles = [cycles for batch in used for cycles in batch.cycles]
        found = predict(self.work, np.array(sample), np.array(cycles))
        total = float(found.cycles.sum()) + sum(used[0].ends)
        return found, t_quantile(found.degrees, self.method.confidence) * math.sqrt(found.variance) / total

    def _estimate(self, used: list[Batch], found: Prediction, half: float) -> Estimate:
        total = float(found.cycles.sum()) + sum(used[0].ends)
        done = min(sum(batch.stepped for batch in used) / self.blocks, 1.0)
        seen = sum(used[0].ends) + sum(sum(batch.cycles) for batch in used)
        count = sum(len(batch.segments) for batch in used)
        parts = (
            Part(name=f"{count} of {len(found.cycles)} segments", how="detailed", cycles=seen,
                 instructions=done * self.instructions),
            Part(name="the other segments", how="predicted", cycles=total - seen,
                 instructions=(1.0 - done) * self.instructions),
        )  # fmt: skip
        return around(
            self.method.name,
            total,
            half * total / t_quantile(math.inf),
            basis="sampled",
            detailed_fraction=done,
            parts=parts,
            confidence=self.method.confidence,
        )


class _Simulation:
    """A launch from its beginning, of which a batch of segments is simulated; with its `ends`, if asked for."""

    def __init__(self, simulator: Simulator, cut: Int64[np.ndarray, " bound"], ends: bool) -> None:
        self.simulator, self.cut, self.ends = simulator, cut, ends
        self.wave, self.blocks = simulator.shape.wave_blocks, simulator.shape.thread_blocks
        self.state, self.at, self.stepped = simulator.init(), 0, 0
        self.dispatch_cycles = np.zeros(self.blocks)

    def run(self, segments: list[int]) -> Batch:
        """In ascending order, on one clock."""
        first = self._step(int(self.cut[0])) if self.ends else 0.0
        cycles = []
        for segment in segments:
            begin, end = self.cut[segment : segment + 2].tolist()
            before = self._warmed(begin)
            cycles.append(self._step(end) - before)
        last = self._to_the_end() if self.ends else 0.0
        return Batch(segments=segments, cycles=cycles, stepped=self.stepped, ends=(first, last))

    def _to_the_end(self) -> float:
        """Cycles of what comes after the last segment."""
        before = self._warmed(int(self.cut[-1]))
        self._step(self.blocks)
        return self.simulator.result(self.state)[1].clock_cycles - before

    def _warmed(self, first: int) -> float:
        """Leave out all but WARM_WAVES before a segment, and simulate those."""
        start = max(self.at, first - WARM_WAVES * self.wave)
        if start > self.at:
            self.state, self.at = self.simulator.leave_out(self.state, np.arange(self.at, start)), start
        return self._step(first) if start < first else self._clock(first)

    def _step(self, last: int) -> float:
        """Thread blocks until `last`; when that is reached."""
        self.state, seen = self.simulator.step(self.state, np.arange(self.at, last))
        self.stepped += last - self.at
        self.at = last
        self.dispatch_cycles[seen.blocks] = seen.block_dispatch_cycles
        self.dispatch_cycles[seen.resident_blocks] = seen.resident_dispatch_cycles
        return self._clock(last)

    def _clock(self, thread_block: int) -> float:
        """When a thread block is reached: the mean over the wave before it, which bursts do not move."""
        return float(self.dispatch_cycles[thread_block - self.wave : thread_block].mean())


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
