"""A long launch from some stretches of its thread blocks: SMARTS (Wunderlich et al., ISCA 2003) over the grid.

Segments are simulated in detail, in order on one clock; what is between them warms the caches."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sampling.arrays import Float64, Int64
from sampling.auto.prediction import Prediction, choose_unlike, off_shares, predict, segment_work
from sampling.estimate import Estimate, from_a_part
from sampling.launch_in_progress import FULL, warm
from sampling.protocol import LaunchShape, Observation, Simulator
from sampling.statistics import CONFIDENCE, t_quantile

FIRST_WAVES, LAST_WAVES = 2, 1  # always simulated: thread blocks in step on cold caches, and a launch that drains
WARM_WAVES = 2  # simulated before each segment: one to be rid of what was in flight, one to fill the queues
# Shares of the time that memory moves data, and writes, beyond which what is written back decides the time. What was
# left out lies in the cache in an order that no run leaves: there a segment waits until the cache has been filled anew
# so many times. Of nine kernels bound by memory the waves after one filling were up to 2.5 % short, after three 0.3 %
BUSY, WRITING = 0.7, 0.1
FILLINGS = 3
CALM = 0.2  # share of the time below which memory decides nothing, even if as much is written back as is read
TELLING_WAVES = 8  # from which it is told when the cache will be full, and whether memory decides the time
LOOK_WAVES = 2  # after the cache is full, the last of which tells whether what it evicts is written back
FIRST_SEGMENTS = 4  # at least: so many are simulated first ...
# ... or as many as make a launch so many waves old, where that is at most this share of it: thread blocks fall out of
# step, and SMs lose what the first wave dealt them evenly, over some forty waves, by which the pace of launches that
# wait for nothing but each other moves by 2 to 4 %. What is younger cannot show it
AGED_WAVES, AGED_SHARE = 40, 0.35
FEWEST = 12  # segments that are worth choosing from
DEAREST = 0.6  # share of a launch beyond which the rest is simulated too


@dataclass(frozen=True, kw_only=True)
class Beginning:
    """Waves that are simulated until caches are warm, their cycles, waves that warm up what comes after something that
    was left out, and waves of a segment. `memory_bound`: memory decides the time; `writes_back`: and is written to."""

    waves: int = FIRST_WAVES
    warm_waves: int = WARM_WAVES
    segment_waves: int = WARM_WAVES
    memory_bound: bool = False
    writes_back: bool = False
    cycles: float = 0.0

    @property
    def waves_a_segment(self) -> int:
        """Those before it included."""
        return self.warm_waves + self.segment_waves


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Segments simulated together, and the cycles of the waves of each; `stepped`: thread blocks, the beginning and
    those to warm up included. `end_cycles`, of the first batch: of what comes after the last segment of all."""

    beginning: Beginning
    segments: list[int]
    wave_cycles: list[list[float]]
    stepped: int
    end_cycles: float = 0.0

    @property
    def cycles(self) -> list[float]:
        """Of each segment."""
        return [sum(waves) for waves in self.wave_cycles]


def cut_into_segments(shape: LaunchShape, beginning: Beginning | None = None) -> Int64[np.ndarray, " bound"] | None:
    """Where segments begin and the last one ends; None where the first of them would cost nearly as much as all.
    Segments are whole waves, because equal thread blocks are dispatched in bursts, a wave each. `beginning`: the least
    there can be, where it is not known."""
    begun = beginning or Beginning()
    waves, each = shape.thread_blocks / shape.wave_blocks, begun.segment_waves
    count = int((waves - begun.waves - LAST_WAVES) // each)
    dear = begun.waves + FIRST_SEGMENTS * (begun.warm_waves + each) + begun.warm_waves
    if count < FEWEST or dear >= DEAREST * waves:
        return None
    return shape.wave_blocks * (begun.waves + each * np.arange(count + 1))


def first_segments(shape: LaunchShape, begun: Beginning) -> int:
    """How many to simulate before the spread is looked at. Each time that there are to be more, the beginning is
    simulated again: as many follow on it as take as long."""
    waves = shape.thread_blocks / shape.wave_blocks
    aged = min(AGED_WAVES, AGED_SHARE * waves) - begun.waves
    as_long = min(begun.waves, DEAREST * waves - begun.waves - LAST_WAVES - begun.warm_waves)
    return max(FIRST_SEGMENTS, int(max(aged, as_long) / begun.waves_a_segment))


class SegmentSimulation:
    """A launch from its beginning."""

    def __init__(self, simulator: Simulator) -> None:
        self.simulator, self.wave, self.blocks = simulator, simulator.shape.wave_blocks, simulator.shape.thread_blocks
        simulator.begin()
        self.at = self.stepped = 0
        self.dispatch_cycles = np.zeros(self.blocks)
        self.seen: Observation | None = None

    def begin(self, idle: bool = False) -> Beginning | None:
        """Until caches are warm; None where that takes so long that segments no longer pay, and, if memory must be
        `idle` some of the time, where it is not. What they write back needs FILLINGS times as many waves again to
        settle as they took to fill."""
        seen = self._fill(idle)
        if seen is None:
            return None
        found = self._looked_at(self.at // self.wave, seen)
        if cut_into_segments(self.simulator.shape, found) is None or (idle and found.memory_bound):
            return None
        if self.at < found.waves * self.wave:
            self._step(found.waves * self.wave)
        return replace(found, cycles=self.clock(self.at))

    def _looked_at(self, waves: int, seen: Observation) -> Beginning:
        """What a launch needs whose caches were warm after so many waves."""
        for _ in range(LOOK_WAVES):
            before, seen = seen, self._step(self.at + self.wave)
        busy, written = _memory_use(before, seen)
        if seen.cache_fill < FULL or busy <= BUSY or written <= WRITING:
            return Beginning(waves=waves + LOOK_WAVES, memory_bound=busy > BUSY)
        warm_waves = WARM_WAVES + FILLINGS * waves
        return Beginning(
            waves=waves + warm_waves, warm_waves=warm_waves, segment_waves=WARM_WAVES + waves,
            memory_bound=True, writes_back=True,
        )  # fmt: skip

    def _fill(self, idle: bool) -> Observation | None:
        """Until the last-level cache is full, or it is clear that it will not be; None if neither in time."""
        before = None
        while cut_into_segments(self.simulator.shape, Beginning(waves=self.at // self.wave + 1)) is not None:
            seen = self._step(self.at + self.wave)
            finished = self.at - len(seen.resident_blocks)
            if self.at >= FIRST_WAVES * self.wave and warm(seen, finished, self.blocks):
                return seen
            if self.at >= TELLING_WAVES * self.wave and before is not None:
                busy = idle and _memory_use(before, seen)[0] > BUSY
                full = Beginning(waves=math.ceil(self.at / self.wave / seen.cache_fill))  # if it goes on as it does
                if busy or cut_into_segments(self.simulator.shape, full) is None:
                    return None
            before = seen
        return None

    def next_wave(self) -> float | None:
        """One wave more; the share of it in which memory moved data, None while that may still grow: until the cache is
        full what it writes back is not among it."""
        before, self.seen = self.seen, self._step(self.at + self.wave)
        if before is None:
            return None
        busy, finished = _memory_use(before, self.seen)[0], self.at - len(self.seen.resident_blocks)
        return busy if busy <= CALM or warm(self.seen, finished, self.blocks) else None

    def ended(self, batch: Batch, last: int) -> Batch:
        """The same with the launch's end, from the thread block `last` on."""
        end_cycles = self._to_the_end(last, WARM_WAVES * self.wave)
        return replace(batch, stepped=self.stepped, end_cycles=end_cycles)

    def run(self, beginning: Beginning, cut: Int64[np.ndarray, " bound"], segments: list[int], end: bool) -> Batch:
        """Segments in ascending order, and the launch's end if asked for. The beginning has been simulated."""
        warm_blocks, cycles = beginning.warm_waves * self.wave, []
        for segment in segments:
            first, last = cut[segment : segment + 2].tolist()
            self._warmed(first, warm_blocks)
            self._step(last)
            cycles.append(np.diff([self.clock(block) for block in range(first, last + 1, self.wave)]).tolist())
        end_cycles = self._to_the_end(int(cut[-1]), warm_blocks) if end else 0.0
        return Batch(
            beginning=beginning, segments=segments, wave_cycles=cycles, stepped=self.stepped, end_cycles=end_cycles
        )  # fmt: skip

    def _to_the_end(self, first: int, warm_blocks: int) -> float:
        """Cycles of what comes after the last segment."""
        before = self._warmed(first, warm_blocks)
        self._step(self.blocks)
        return self.simulator.result().clock_cycles - before

    def _warmed(self, first: int, warm_blocks: int) -> float:
        """Leave out all but `warm_blocks` before a segment, and simulate those."""
        start = max(self.at, first - warm_blocks)
        if start > self.at:
            self.simulator.leave_out(np.arange(self.at, start))
            self.at = start
        if start < first:
            self._step(first)
        return self.clock(first)

    def _step(self, last: int) -> Observation:
        """Thread blocks until `last`."""
        seen = self.simulator.step(np.arange(self.at, last))
        self.stepped += last - self.at
        self.at = last
        self.dispatch_cycles[seen.blocks] = seen.block_dispatch_cycles
        self.dispatch_cycles[seen.resident_blocks] = seen.resident_dispatch_cycles
        return seen

    def clock(self, thread_block: int) -> float:
        """When a thread block is reached: the mean over the wave before it, which bursts do not move."""
        return float(self.dispatch_cycles[thread_block - self.wave : thread_block].mean())


def _memory_use(before: Observation, seen: Observation) -> tuple[float, float]:
    """Shares of the time between two observations in which memory moves data, and in which it writes."""
    cycles = max(seen.clock_cycles - before.clock_cycles, 1.0)
    read = (seen.memory_read_cycles - before.memory_read_cycles) / cycles
    written = (seen.memory_write_cycles - before.memory_write_cycles) / cycles
    return read + written, written


BlockWork = Float64[np.ndarray, "tb work"]


FEWEST_FOR_SLOPE = 4  # segments that a slope is read off


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
    if len(age) < FEWEST_FOR_SLOPE or spread == 0.0:
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
