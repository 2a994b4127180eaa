"""A launch of which segments are simulated in detail, in order on one clock; what is between them warms the caches."""

import math
from dataclasses import dataclass, replace

import numpy as np

from sampling.arrays import Int64
from sampling.launch_in_progress import FULL, warm
from sampling.protocol import LaunchShape, Observation, Simulator

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
