"""A launch in progress: what has been seen of it in detail, and when its slots free once the rest is dispatched."""

import heapq
import math
from dataclasses import replace

import numpy as np

from sampling.arrays import Float64, Int64
from sampling.estimate import Part
from sampling.protocol import Observation, Simulator

_WARPS = ("warp_issue_cycles", "warp_retire_cycles")
_BASIC_BLOCKS = ("basic_blocks", "basic_block_issue_cycles", "basic_block_retire_cycles")
FULL = 0.95  # of a cache's lines: a hash leaves a few unused


class Run:
    """Steps a simulator through a launch in order and keeps what predictions need."""

    def __init__(self, simulator: Simulator, chunk: int | None = None) -> None:
        self.simulator, self.shape = simulator, simulator.shape
        self.chunk = chunk or max(1, self.shape.wave_blocks // 4)
        simulator.begin()
        self.dispatched, self.watched = 0, True
        self.last: Observation | None = None
        self.finished = 0
        self.warm_since: float | None = None  # cycle from which caches are neither filling towards overflow nor empty
        self.warm_dispatched = 0  # thread blocks, at that time
        self._retired: list[tuple[np.ndarray, np.ndarray]] = []  # thread blocks and their cycles

    @property
    def remaining(self) -> Int64[np.ndarray, " tb"]:
        """Thread blocks not yet dispatched."""
        return np.arange(self.dispatched, self.shape.thread_blocks)

    @property
    def seen(self) -> Observation:
        """The last observation."""
        assert self.last is not None, "nothing has been stepped yet"
        return self.last

    def step(self, thread_blocks: Int64[np.ndarray, " tb"] | None = None) -> Observation:
        """Dispatch the next chunk, or these thread blocks."""
        blocks = self.remaining[: self.chunk] if thread_blocks is None else thread_blocks
        self.dispatched += len(blocks)
        return self._note(self.simulator.step(blocks))

    def advance(self, cycles: int) -> Observation:
        """Go on for so many cycles with what has been dispatched."""
        return self._note(self.simulator.advance(cycles))

    def forget(self) -> None:
        """From now on only the end is asked for."""
        self.simulator.forget()
        self.watched = False

    def earliest_skip(self) -> float:
        """Thread blocks dispatched when `settled` can hold at the earliest: one wave is in flight when caches are warm,
        and the one after it must have gone. Until then, caches fill as they have."""
        if self.warm_since is not None:
            return self.warm_dispatched + 2.0 * self.shape.wave_blocks
        done = self.finished + 0.5 * len(self.seen.resident_blocks)
        if self.seen.cache_fill <= 0.0 or not self.finished:
            return 2.0 * self.shape.wave_blocks
        return done * FULL / self.seen.cache_fill + 2.0 * self.shape.wave_blocks

    def finish(self) -> float:
        """Let everything retire; the launch's cycles."""
        return self._note(self.simulator.result()).clock_cycles

    def _note(self, seen: Observation) -> Observation:
        self.last = seen
        self.finished += len(seen.blocks)
        if not warm(seen, self.finished, self.shape.thread_blocks):
            self.warm_since = None
        elif self.warm_since is None:
            self.warm_since, self.warm_dispatched = seen.clock_cycles, self.dispatched
        if self.warm_since is None:
            self._retired.clear()
        else:
            steady = seen.block_dispatch_cycles >= self.warm_since
            cycles = seen.block_retire_cycles - seen.block_dispatch_cycles
            self._retired.append((seen.blocks[steady], cycles[steady]))
        return seen

    def parts(self, how: str, total_cycles: float, instructions_left: float) -> tuple[Part, Part]:
        """What was dispatched, its warp instructions counted, and the rest, whose cycles were found some other way."""
        now = self.seen.clock_cycles
        return (
            Part(name=f"thread blocks 0-{self.dispatched - 1}", how="detailed", cycles=now,
                 instructions=self.seen.dispatched_instructions),
            Part(name=f"thread blocks {self.dispatched}-{self.shape.thread_blocks - 1}", how=how,
                 cycles=total_cycles - now, instructions=instructions_left),
        )  # fmt: skip

    def whole(self, total_cycles: float) -> tuple[Part]:
        """Everything, once all of it was dispatched."""
        instructions = self.seen.dispatched_instructions
        return (Part(name=self.shape.name, how="detailed", instructions=instructions, cycles=total_cycles),)

    def detailed_share(self, instructions_left: float) -> float:
        """Share of the launch's warp instructions that was dispatched."""
        done = self.seen.dispatched_instructions
        return done / (done + instructions_left)

    @property
    def settled(self) -> bool:
        """Whether a wave of thread blocks has come and gone on warm caches; the first to go are short ones."""
        wave = min(self.shape.wave_blocks, self.shape.thread_blocks)
        return self.warm_since is not None and sum(len(blocks) for blocks, _ in self._retired) >= wave

    def steady(self) -> Observation:
        """The last observation without the warps and basic blocks that began before the caches were warm."""
        seen, since = self.seen, math.inf if self.warm_since is None else self.warm_since
        kept = dict.fromkeys(_WARPS, seen.warp_issue_cycles >= since)
        kept |= dict.fromkeys(_BASIC_BLOCKS, seen.basic_block_issue_cycles >= since)
        return replace(seen, **{name: getattr(seen, name)[rows] for name, rows in kept.items()})

    def retired(self, last: int) -> tuple[Int64[np.ndarray, " at_most_last"], Float64[np.ndarray, " at_most_last"]]:
        """The thread blocks that retired last, and the cycles each took; only those dispatched on warm caches."""
        kept: list[tuple[np.ndarray, np.ndarray]] = []
        for some in reversed(self._retired):
            kept.append(some)
            if sum(len(blocks) for blocks, _ in kept) >= last:
                break
        if not kept:
            return np.empty(0, np.int64), np.empty(0)
        blocks, cycles = (np.concatenate(column[::-1])[-last:] for column in zip(*kept, strict=True))
        return blocks, cycles

    def free_cycles(self, resident_durations: Float64[np.ndarray, " resident"]) -> Float64[np.ndarray, " slot"]:
        """When each slot frees, if what is in flight takes these cycles; not before now. Empty slots are free now."""
        now = self.seen.clock_cycles
        busy = np.maximum(self.seen.resident_dispatch_cycles + resident_durations, now)
        slots = min(self.shape.wave_blocks, self.shape.thread_blocks)
        return np.concatenate([busy, np.full(max(slots - len(busy), 0), now)])


def warm(seen: Observation, finished: int, thread_blocks: int) -> bool:
    """Whether the last-level cache is full, or will not be even at the launch's end, `finished` of its blocks being so.
    In between, nothing has been evicted or written back yet that will be later: what looks steady is not. Thread blocks
    in flight count half."""
    expected = seen.cache_fill * thread_blocks / max(finished + 0.5 * len(seen.resident_blocks), 1.0)
    return seen.cache_fill >= FULL or (finished > 0 and expected < FULL)


def dispatch(
    free_cycles: Float64[np.ndarray, " slot"], durations: Float64[np.ndarray, " tb"]
) -> tuple[Float64[np.ndarray, " tb"], Float64[np.ndarray, " slot"]]:
    """Each thread block in turn goes to the slot that frees first: (when each starts, when each slot is free)."""
    slots = [float(cycle) for cycle in free_cycles]
    heapq.heapify(slots)
    starts = np.empty(len(durations))
    for place, duration in enumerate(durations.tolist()):
        starts[place] = slots[0]
        heapq.heapreplace(slots, slots[0] + duration)
    return starts, np.array(slots)


def dispatch_equal(
    free_cycles: Float64[np.ndarray, " slot"], duration: float, count: int
) -> Float64[np.ndarray, " slot"]:
    """When each slot is free after `count` thread blocks of one duration; whole rounds in one step. Once every slot
    frees within one duration of the others, each takes exactly one block a round."""
    slots = np.sort(np.asarray(free_cycles, float))
    while count and slots[-1] - slots[0] > duration:  # a slot far behind takes several blocks first
        taken = min(count, int(np.searchsorted(slots, slots[0] + duration, side="right")))
        slots[:taken] += duration
        slots.sort()
        count -= taken
    rounds, rest = divmod(count, len(slots))
    slots += rounds * duration
    slots[:rest] += duration
    return slots


def finish(
    free_cycles: Float64[np.ndarray, " slot"], observed: Float64[np.ndarray, " n"], count: int,
    rng: np.random.Generator, replicates: int = 16, tail_rounds: int = 4,
) -> Float64[np.ndarray, " replicate"]:  # fmt: skip
    """When the last of `count` thread blocks retires, if their durations are drawn from those observed. Only the last
    rounds are drawn: the rounds before them take the mean, because there spread averages out, while the last block to
    finish depends on it."""
    drawn = min(count, tail_rounds * len(free_cycles))
    slots = dispatch_equal(free_cycles, float(observed.mean()), count - drawn)
    if drawn == 0:
        return np.full(replicates, float(slots.max()))
    return np.array([dispatch(slots, rng.choice(observed, drawn))[1].max() for _ in range(replicates)])
