"""A long launch from some stretches of its thread blocks: SMARTS (Wunderlich et al., ISCA 2003) over the grid."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sampling.arrays import Float64, Int64
from sampling.auto.prediction import Prediction, choose_unlike, off_shares, predict, segment_work
from sampling.auto.segment_simulation import DEAREST, Batch, SegmentSimulation, cut_into_segments, first_segments
from sampling.estimate import Estimate, from_a_part
from sampling.protocol import LaunchShape, Simulator
from sampling.statistics import CONFIDENCE, t_quantile

BlockWork = Float64[np.ndarray, "tb work"]


FEWEST = 4  # segments that a slope is read off


def ages(batch: Batch) -> list[float]:
    """Waves that were simulated before the middle of each of its segments."""
    begun = batch.beginning
    at = age = begun.waves
    found = []
    for segment in batch.segments:
        first = begun.waves + segment * begun.segment_waves
        age += min(first - at, begun.warm_waves)
        found.append(age + begun.segment_waves / 2)
        at, age = first + begun.segment_waves, age + begun.segment_waves
    return found


def put_off(used: Sequence[Batch], residuals: Float64[np.ndarray, " sample"], segments: int) -> float:
    """By what share the pace of all `segments` lies beside that of the sample, since a launch that is simulated whole
    is older: its slope over the logarithm of the age, as things do that relax, beyond its standard error.
    `residuals`: of the sample's logarithms, each predicted without it."""
    age = np.log([age for batch in used for age in ages(batch)])
    apart = age - age.mean()
    spread = float(apart @ apart)
    if len(age) < FEWEST or spread == 0.0:
        return 0.0
    slope = float(apart @ residuals) / spread
    around = residuals - residuals.mean() - slope * apart
    error = np.sqrt(float(around @ around) / (len(age) - 2) / spread)
    begun = used[0].beginning
    whole = begun.waves + begun.segment_waves * (np.arange(segments) + 0.5)
    return max(abs(slope) - error, 0.0) * abs(float(np.log(whole).mean() - age.mean()))


MORE = 0.5  # of the segments simulated so far, how many are added between two looks at the error
# Half of the interval at least: of all launches; of those in which memory decides the time, and is only read; and of
# those in which it is written to. A launch may run at one pace for dozens of waves and then at another, by what went
# before, of which no segment knows: a copy of three streams 5 % slower after its first quarter, a histogram 4 % faster
# once its thread blocks are out of step. The most that segments were off is 2.3 % of 18 kernels that do not wait for
# memory on two GPUs (1.6 % without one of them), 3.0 % of six that read, and 4.1 % of 14 that write
LEAST, READING, WRITING_BACK = 0.015, 0.03, 0.05
TELLING = 6  # segments from whose spread it is told how many are enough; from fewer nobody can
GIANT = 0.1  # of the mean time of all that one slot gets, in instructions: a warp so long may decide when a launch ends


@dataclass(frozen=True)
class SegmentSampling:
    """Thread blocks are cut into segments. Of those chosen, each after waves that are simulated to warm up, the time
    from the dispatch of its first to that of its last block is taken; caches see what is left out. The other segments
    are predicted from their work (`predict`), and more are chosen until half the interval is at most `error`. A launch
    for which that does not pay, or in which single blocks are long, is none for it. Which segments are simulated
    together does not depend on `error`, so that less error goes on from what was simulated before, and ends as if that
    had been aimed at in the first place."""

    error: float = 0.02
    confidence: float = CONFIDENCE
    seed: int = 0
    name = "segments"

    def launch(
        self, simulator: Simulator, work: BlockWork, longest: Float64[np.ndarray, " tb"],
        done: list[Batch] | None = None,
    ) -> Estimate | None:  # fmt: skip
        """`work` of every thread block, instructions first; `longest`: instructions of its longest warp; `done`: what
        was simulated before with the same `seed`, which what is simulated now joins. None where the error asked for
        takes a simulation in full."""
        if cut_into_segments(simulator.shape) is None or has_giants(longest, simulator.shape):
            return None
        return _Launch(self, simulator, work, [] if done is None else done).estimate()


def has_giants(longest: Float64[np.ndarray, " tb"], shape: LaunchShape) -> bool:
    """Whether a warp, of those that are `longest` in their thread block, may decide when the launch ends."""
    slot = float(longest.sum()) / shape.wave_blocks
    return float(longest.max()) > GIANT * slot


class _Launch:
    """One launch, of which some segments have been simulated."""

    def __init__(self, method: SegmentSampling, simulator: Simulator, work: BlockWork, done: list[Batch]) -> None:
        self.method, self.simulator, self.done = method, simulator, done
        self.wave, self.blocks = simulator.shape.wave_blocks, simulator.shape.thread_blocks
        self.instructions = float(work[:, 0].sum())
        self.begun = None if done else SegmentSimulation(simulator)  # for the batch that follows
        self.beginning = self.begun.begin(idle=method.error < READING) if self.begun else done[0].beginning
        self.cut = cut_into_segments(simulator.shape, self.beginning) if self.beginning else None
        self.work = np.zeros((0, 0)) if self.cut is None else work_in_flight(work, self.cut, self.wave)

    @property
    def least(self) -> float:
        """The narrowest that half of the interval gets, relative."""
        if self.beginning is None or not self.beginning.memory_bound:
            return LEAST
        return WRITING_BACK if self.beginning.writes_back else READING

    def estimate(self) -> Estimate | None:
        """First segments; then ever more, while those that their spread asks for are less than everything."""
        if self.beginning is None or self.cut is None or self.least > self.method.error:
            return None
        rng, used = np.random.default_rng(self.method.seed), list[Batch]()
        while True:
            sample = [segment for batch in used for segment in batch.segments]
            count = math.ceil(MORE * len(sample)) or first_segments(self.simulator.shape, self.beginning)
            chosen = choose_unlike(segment_work(self.work), self.work[:, 0], sample, count, rng)
            used.append(self._batch(len(used), chosen))
            found, half = self._interval(used)
            if half <= self.method.error:
                return self._estimate(used, found, half)
            if not self._pays(used, found, half):
                return None

    def _batch(self, place: int, segments: list[int]) -> Batch:
        """The one that is simulated as the `place`-th, now or before."""
        assert self.beginning is not None and self.cut is not None
        if place >= len(self.done) or self.done[place].segments != sorted(segments):
            simulation, self.begun = self.begun or SegmentSimulation(self.simulator), None
            if not simulation.at:
                simulation.begin()
            self.done[place:] = [simulation.run(self.beginning, self.cut, sorted(segments), end=place == 0)]
        return self.done[place]

    def _pays(self, used: list[Batch], found: Prediction, half: float) -> bool:
        """Whether as many more as make the error small enough, if it falls with the root of their number and few are no
        longer punished for being few, are less than everything; the next of them follow on the beginning again."""
        assert self.beginning is not None
        sample = sum(len(batch.segments) for batch in used)
        few = t_quantile(math.inf, self.method.confidence) / t_quantile(found.degrees, self.method.confidence)
        enough = sample * ((half * few / self.method.error) ** 2 - 1.0) if sample >= TELLING else 0.0
        waves = self.beginning.waves + max(enough, math.ceil(MORE * sample)) * self.beginning.waves_a_segment
        return sum(batch.stepped for batch in used) + waves * self.wave <= DEAREST * self.blocks

    def _interval(self, used: list[Batch]) -> tuple[Prediction, float]:
        """Cycles of all segments, and half of the launch's interval, relative."""
        sample = [segment for batch in used for segment in batch.segments]
        cycles = [cycles for batch in used for cycles in batch.cycles]
        found = predict(segment_work(self.work), np.array(sample), np.array(cycles))
        left = float(found.cycles.sum()) - sum(cycles)
        # if nothing but the spread of the sample says how alike segments are: a value predicted without itself is off
        # by n / (n - 1) of what it differs from the mean
        n = len(found.residuals)
        of_mean = math.sqrt(float(np.sum(found.residuals**2)) * (n - 1) / n**3)
        of_waves = _error_of_waves([waves for batch in used for waves in batch.wave_cycles])
        error = max(math.sqrt(found.variance), left * of_mean, left * of_waves)
        older = left * put_off(used, off_shares(segment_work(self.work[sample]), np.array(cycles)), len(found.cycles))
        half = t_quantile(found.degrees, self.method.confidence) * error + older
        return found, max(half / _total(found, used), self.least)

    def _estimate(self, used: list[Batch], found: Prediction, half: float) -> Estimate:
        total = _total(found, used)
        done = min(sum(batch.stepped for batch in used) / self.blocks, 1.0)
        seen = total - float(found.cycles.sum()) + sum(sum(batch.cycles) for batch in used)
        count = sum(len(batch.segments) for batch in used)
        return from_a_part(
            self.method.name, total, half, self.method.confidence, "sampled", (self.instructions, done),
            (f"{count} of {len(found.cycles)} segments", seen), ("the other segments", "predicted"),
        )  # fmt: skip


def _total(found: Prediction, used: list[Batch]) -> float:
    """Cycles of the launch."""
    return used[0].beginning.cycles + float(found.cycles.sum()) + used[0].end_cycles


def _error_of_waves(segments: list[list[float]]) -> float:
    """Relative standard error of what was left out, if waves are as unlike as those within segments, independently.
    Segments that each follow on something left out are more alike than those of a launch that fluctuates slowly:
    of `nn_euclid` at 256 times the suite's size they spread by 1 %, in the whole launch by 2.6 %."""
    unlike = [(np.array(waves) / np.mean(waves) - 1.0) for waves in segments]
    count = sum(len(waves) for waves in unlike)
    return math.sqrt(sum(float(waves @ waves) for waves in unlike) / (count - len(unlike)) / count)


def work_in_flight(
    work: BlockWork, cut: Int64[np.ndarray, " bound"], wave_blocks: int
) -> Float64[np.ndarray, "segment work"]:
    """Work done between the dispatch of one thread block and another: each is in flight, and works as evenly, while as
    many are dispatched after it as the GPU holds. Means over the wave before either, as `clock` has them. The last
    column is the place, by which cycles may drift."""
    done = np.cumsum(work, 0)
    for _ in range(2):  # the mean of each and those before it, a wave together; before the first there is 0
        sums = np.cumsum(done, 0)
        sums[wave_blocks:] -= sums[:-wave_blocks].copy()
        done = sums / wave_blocks
    done = np.concatenate([np.zeros((1, work.shape[1])), done])[cut]
    blocks = np.diff(cut).astype(float)
    place = 1.0 + np.arange(len(blocks)) / len(blocks)
    return np.column_stack([np.diff(done, axis=0), blocks, blocks * place])
