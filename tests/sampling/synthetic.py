"""A stand-in for the engine: thread blocks on slots, warps that run basic blocks, warm-up, phases and noise.

Every duration is drawn when the launch is made, so its true total does not depend on what a method leaves out, except
through the clock (a cold start slows whatever is dispatched early).
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field

import numpy as np

from sampling.protocol import BlockCode, LaunchShape, Observation, WarpProfile


@dataclass
class State:
    slots: list[float]
    clock: float = 0.0
    flying: list[tuple[float, float, int]] = field(default_factory=list)  # retire, dispatch, thread block
    windows: np.ndarray = field(default_factory=lambda: np.zeros(64))
    told: int = 0
    requests: float = 0.0
    instructions: float = 0.0


class SyntheticLaunch:
    """Simulator and Functional in one. `sequences[t]` are the basic blocks a warp of type t runs, in order."""

    def __init__(
        self,
        seed: int = 0,
        *,
        name: str = "synthetic",
        thread_blocks: int = 1500,
        warps_per_block: int = 4,
        wave_blocks: int = 60,
        cores: int = 15,
        sequences: tuple[tuple[int, ...], ...] = ((0, 1, 1, 1, 2),),
        type_shares: tuple[float, ...] | None = None,
        block_cycles: tuple[float, ...] = (40.0, 120.0, 60.0),
        block_instructions: tuple[int, ...] = (10, 30, 12),
        noise: float = 0.2,
        cold: float = 0.3,
        cold_cycles: float = 500.0,
        phase: np.ndarray | None = None,  # slowness of every thread block
    ) -> None:
        rng = np.random.default_rng([20, seed])
        warps = thread_blocks * warps_per_block
        self.shape = LaunchShape(
            name=name,
            thread_blocks=thread_blocks,
            warps_per_block=warps_per_block,
            wave_blocks=wave_blocks,
            cores=cores,
        )
        self.block_instructions = np.array(block_instructions)
        longest = max(map(len, sequences))
        table = np.array([list(s) + [-1] * (longest - len(s)) for s in sequences])
        self.types = rng.choice(len(sequences), warps, p=type_shares)
        self.events = table[self.types].reshape(thread_blocks, warps_per_block, longest)
        slowness = np.ones(thread_blocks) if phase is None else phase
        drawn = rng.lognormal(-(noise**2) / 2, noise, self.events.shape)
        each = np.where(self.events >= 0, np.array(block_cycles)[self.events] * drawn, 0.0)
        self.cycles = each * slowness[:, None, None]
        self.slowness = slowness
        self.block_cycles = self.cycles.sum(2).max(1)
        self.cold, self.cold_cycles = cold, cold_cycles
        per_event = np.where(self.events >= 0, self.block_instructions[self.events], 0)
        self.warp_instructions = per_event.sum(2)
        self.event_instructions = per_event

    @property
    def instructions(self) -> np.ndarray:
        """Of every thread block."""
        return self.warp_instructions.sum(1).astype(float)

    @property
    def requests(self) -> np.ndarray:
        """Memory requests of every thread block: the more, the slower it is."""
        return (self.instructions * 0.1 * self.slowness).round()

    def total(self) -> float:
        """The launch's true cycles."""
        slots = [0.0] * min(self.shape.wave_blocks, self.shape.thread_blocks)
        for cycles in self.block_cycles.tolist():
            heapq.heapreplace(slots, slots[0] + cycles * (1.0 + self.cold * math.exp(-slots[0] / self.cold_cycles)))
        return max(slots)

    # Functional

    def profile(self, thread_blocks: np.ndarray) -> WarpProfile:
        events = self.events[thread_blocks]
        kinds = np.arange(len(self.block_instructions))
        counts = (events[..., None] == kinds).sum(2).reshape(-1, len(kinds))
        warps = (thread_blocks[:, None] * self.shape.warps_per_block + np.arange(self.shape.warps_per_block)).ravel()
        return WarpProfile(
            thread_blocks=thread_blocks,
            counts=counts,
            types=self.types[warps],
            memory_requests=np.repeat(self.requests[thread_blocks] / events.shape[1], events.shape[1]),
            lines=self.requests[thread_blocks].astype(int),
            all_lines=int(self.requests[thread_blocks].sum()),
        )

    def code(self, basic_block: int) -> BlockCode:
        count = int(self.block_instructions[basic_block])
        return BlockCode(classes=np.zeros(count, np.int64), sources=((), *((i,) for i in range(count - 1))))

    # Simulator

    def begin(self) -> None:
        self.state = State(slots=[0.0] * min(self.shape.wave_blocks, self.shape.thread_blocks))

    def step(self, thread_blocks: np.ndarray) -> Observation:
        state = self.state
        started, scales = np.empty(len(thread_blocks)), np.empty(len(thread_blocks))
        for place, block in enumerate(thread_blocks.tolist()):
            start = state.slots[0]
            scale = 1.0 + self.cold * np.exp(-start / self.cold_cycles)
            retire = start + self.block_cycles[block] * scale
            heapq.heapreplace(state.slots, retire)
            state.flying.append((retire, start, block))
            started[place], scales[place] = start, scale
        self._issue(state, thread_blocks, started, scales)
        state.instructions += float(self.instructions[thread_blocks].sum())
        state.clock = started[-1]
        return self._observe(state)

    def leave_out(self, thread_blocks: np.ndarray) -> None:
        pass

    def advance(self, cycles: int) -> Observation:
        self.state.clock = min(self.state.clock + cycles, max(self.state.slots))
        return self._observe(self.state)

    def forget(self) -> None:
        pass

    def result(self) -> Observation:
        self.state.clock = max(self.state.slots)
        return self._observe(self.state)

    def _issue(self, state: State, thread_blocks: np.ndarray, started: np.ndarray, scales: np.ndarray) -> None:
        issue, _ = self._times(thread_blocks, started, scales)
        window = (issue // self.shape.window_cycles).astype(int)
        last = int(window.max()) + 1
        if last > len(state.windows):
            state.windows = np.append(state.windows, np.zeros(2 * last - len(state.windows)))
        np.add.at(state.windows, window.ravel(), self.event_instructions[thread_blocks].ravel())

    def _times(self, thread_blocks: np.ndarray, started: np.ndarray, scales: np.ndarray) -> tuple:
        each = self.cycles[thread_blocks] * scales[:, None, None]
        ends = started[:, None, None] + np.cumsum(each, 2)
        return ends - each, ends

    def _observe(self, state: State) -> Observation:
        state.flying.sort()
        gone = [row for row in state.flying if row[0] <= state.clock]
        state.flying = state.flying[len(gone) :]
        retire, start, block = (np.array(column) for column in zip(*gone, strict=True)) if gone else [np.empty(0)] * 3
        block = block.astype(int)
        scales = 1.0 + self.cold * np.exp(-start / self.cold_cycles)
        issue, ends = self._times(block, start, scales)
        real = self.events[block] >= 0
        order = np.argsort(ends[real], kind="stable")
        warp_end = ends.max(2, initial=0.0)
        by_end = np.argsort(warp_end.ravel(), kind="stable")
        whole = int(state.clock // self.shape.window_cycles)
        windows = np.append(state.windows, np.zeros(max(whole - len(state.windows), 0)))[state.told : whole]
        state.told = max(state.told, whole)
        state.requests += float(self.requests[block].sum())
        return Observation(
            clock_cycles=state.clock,
            blocks=block,
            block_dispatch_cycles=start,
            block_retire_cycles=retire,
            resident_dispatch_cycles=np.array([row[1] for row in state.flying]),
            resident_blocks=np.array([row[2] for row in state.flying], int),
            dispatched_instructions=state.instructions,
            warp_issue_cycles=np.repeat(start, self.shape.warps_per_block)[by_end],
            warp_retire_cycles=warp_end.ravel()[by_end],
            basic_blocks=self.events[block][real][order],
            basic_block_issue_cycles=issue[real][order],
            basic_block_retire_cycles=ends[real][order],
            window_instructions=windows,
            class_latency_cycles=np.array([4.0]),
            counters={"dram_bytes": 128.0 * state.requests},
        )
