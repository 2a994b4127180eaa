"""What a method may ask of a simulator: a functional profile, and time in chunks of thread blocks; plain arrays."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from sampling.arrays import Float64, Int64


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchShape:
    """Counts of one launch on one GPU."""

    name: str
    thread_blocks: int
    warps_per_block: int
    wave_blocks: int  # thread blocks the whole GPU holds at once ("system occupancy")
    cores: int  # SMs
    kernel: str = ""  # what it runs; launches of different kernels have nothing in common
    window_cycles: int = 100  # length of one entry of Observation.window_instructions

    @property
    def warps(self) -> int:
        """Warps of the launch."""
        return self.thread_blocks * self.warps_per_block

    @property
    def held_at_once(self) -> bool:
        """Whether the GPU has room for all of it."""
        return self.thread_blocks <= self.wave_blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class WarpProfile:
    """What the warps of some thread blocks execute, in thread-block order; knows no clock."""

    thread_blocks: Int64[np.ndarray, " tb"]
    counts: Int64[np.ndarray, "warp basic_block"]  # executions of every basic block
    types: Int64[np.ndarray, " warp"]  # equal where two warps execute identical sequences of instructions
    memory_requests: Int64[np.ndarray, " warp"]  # global and local, after coalescing
    lines: Int64[np.ndarray, " tb"]  # distinct cache lines of global and local memory of each thread block ...
    all_lines: int  # ... and of all of them together


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCode:
    """The instructions of one basic block, as the interval model needs them."""

    classes: Int64[np.ndarray, " instruction"]  # index into a latency table
    sources: tuple[tuple[int, ...], ...]  # for every instruction, earlier ones of the block it waits for


class Functional(Protocol):
    """Executes thread blocks on demand, without time."""

    block_instructions: Int64[np.ndarray, " basic_block"]  # warp instructions of every basic block

    def profile(self, thread_blocks: Int64[np.ndarray, " tb"]) -> WarpProfile:
        """Execute these thread blocks."""

    def code(self, basic_block: int) -> BlockCode:
        """The instructions of a basic block."""


def _none() -> np.ndarray:
    return np.empty(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What happened since the last step. Cycles count from the launch's start; rows are in order of retirement. A
    warp's or basic block's issue is that of its first instruction; a basic block retires when the warp issues the first
    instruction of its next one (Photon, section 3). A simulator that does not record them leaves theirs empty."""

    clock_cycles: float
    blocks: Int64[np.ndarray, " tb"]  # thread blocks that retired
    block_dispatch_cycles: Float64[np.ndarray, " tb"]
    block_retire_cycles: Float64[np.ndarray, " tb"]
    resident_dispatch_cycles: Float64[np.ndarray, " resident"]  # of the thread blocks still in flight ...
    resident_blocks: Int64[np.ndarray, " resident"]  # ... and which they are
    dispatched_instructions: float  # warp instructions of all thread blocks dispatched since the launch's start
    warp_issue_cycles: Float64[np.ndarray, " warp"] = field(default_factory=_none)
    warp_retire_cycles: Float64[np.ndarray, " warp"] = field(default_factory=_none)
    basic_blocks: Int64[np.ndarray, " event"] = field(default_factory=_none)
    basic_block_issue_cycles: Float64[np.ndarray, " event"] = field(default_factory=_none)
    basic_block_retire_cycles: Float64[np.ndarray, " event"] = field(default_factory=_none)
    window_instructions: Float64[np.ndarray, " window"] = field(default_factory=_none)  # issued, whole windows only
    class_latency_cycles: Float64[np.ndarray, " class"] = field(default_factory=_none)  # mean so far, NaN if never seen
    initial_latency_cycles: Float64[np.ndarray, " class"] = field(default_factory=_none)  # of one never seen
    cache_fill: float = 1.0  # share of the last-level cache's lines in use
    memory_read_cycles: float = 0.0  # in which memory moved data, mean of its channels, since the launch's start ...
    memory_write_cycles: float = 0.0  # ... to it
    counters: Mapping[str, float] = field(default_factory=dict)  # any statistic, since the launch's start


class Simulator(Protocol):
    """One launch on one GPU, in detail. A method decides between two steps whether to go on."""

    shape: LaunchShape

    def begin(self) -> None:
        """Cycle 0 with nothing dispatched, once more if it has begun before."""

    def step(self, thread_blocks: Int64[np.ndarray, " tb"]) -> Observation:
        """Dispatch these thread blocks in this order as slots free, and advance until the last one is dispatched.
        Blocks may be left out for good: the clock then does not hold the time they would have taken."""

    def leave_out(self, thread_blocks: Int64[np.ndarray, " tb"]) -> None:
        """The next thread blocks are never dispatched; caches see what they would have touched, without time."""

    def advance(self, cycles: int) -> Observation:
        """Go on for about so many cycles (to the end, where a simulator cannot stop between), dispatching nothing."""

    def forget(self) -> None:
        """From now on only the end is asked for: observations may leave out warps, basic blocks and windows."""

    def result(self) -> Observation:
        """Advance until everything dispatched has retired; `clock_cycles` is then the launch's time."""
