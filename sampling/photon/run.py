"""A launch in progress: what has been seen of it in detail, and what would be left to predict."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from sampling.protocol import Observation, Simulator


class Run:
    """Steps a simulator through a launch in order and keeps what predictions need."""

    def __init__(self, simulator: Simulator, chunk: int | None = None) -> None:
        self.simulator, self.shape = simulator, simulator.shape
        self.chunk = chunk or max(1, self.shape.wave_blocks // 4)
        self.state: Any = simulator.init()
        self.dispatched = 0
        self.last: Observation | None = None
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

    def step(self) -> Observation:
        """Dispatch the next chunk."""
        blocks = self.remaining[: self.chunk]
        self.state, seen = self.simulator.step(self.state, blocks)
        self.dispatched += len(blocks)
        return self._note(seen)

    def finish(self) -> float:
        """Let everything retire; the launch's cycles."""
        self.state, seen = self.simulator.result(self.state)
        return self._note(seen).clock_cycles

    def _note(self, seen: Observation) -> Observation:
        self.last = seen
        self._retired.append((seen.blocks, seen.block_retire_cycles - seen.block_dispatch_cycles))
        return seen

    def retired(self, last: int) -> tuple[Int64[np.ndarray, " at_most_last"], Float64[np.ndarray, " at_most_last"]]:
        """The thread blocks that retired last, and the cycles each took."""
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
