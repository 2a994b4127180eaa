"""The thread blocks of one launch, executed when somebody asks for them, and each of them once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from functional.launches.launch import Launch
from functional.traces.trace import Trace, concatenate

if TYPE_CHECKING:
    from jaxtyping import Int64

# A call of the executor costs a copy of memory: a batch is at least this share of what was executed, and of the grid.
_OF_EXECUTED, _OF_GRID = 1 / 2, 1 / 64


class ThreadBlocks:
    """A growing trace of a launch; `positions` says where in it a thread block is, -1 if it has not been executed.

    Kernels may change what they read, so no block is executed twice: what one part of a method has executed serves the
    others. Blocks may be executed in another order than the GPU's (`in_order` says so), which only a kernel whose
    blocks race can tell. `run` executes some; `complete` is given: the launch was executed before.
    """

    def __init__(
        self, launch: Launch, run: Callable[[Launch, Sequence[int]], Trace], complete: Trace | None = None
    ) -> None:
        self.launch, self._execute_some = launch, run
        self.positions = np.full(launch.thread_blocks, -1)
        self.trace: Trace | None = None
        self.ever = 0  # thread blocks executed, traces kept or not
        self.seconds = 0.0  # that executing took
        self.in_order = True  # as a whole run executes them
        if complete is not None:
            self.ever = len(complete.thread_blocks)
            self._append(complete)

    @property
    def executed(self) -> int:
        """How many thread blocks have been."""
        return 0 if self.trace is None else len(self.trace.thread_blocks)

    def at(self, thread_blocks: Int64[np.ndarray, " tb"]) -> Int64[np.ndarray, " tb"]:
        """Where these thread blocks are in the trace; those not in it yet, and some that follow, are executed first."""
        found = self.positions[thread_blocks]
        if (found < 0).any():
            self._execute(np.unique(thread_blocks[found < 0]))
            found = self.positions[thread_blocks]
        return found

    def finish(self, keep: bool = True) -> None:
        """Execute whatever is left: later launches read what this one writes. `keep`: its trace too."""
        left = np.flatnonzero(self.positions < 0)
        if len(left) and keep:
            self._execute(left)
        elif len(left):
            self._run(left)
            self.positions[left] = np.iinfo(np.int64).max

    def _execute(self, missing: Int64[np.ndarray, " tb"]) -> None:
        batch = int(max(self.executed * _OF_EXECUTED, self.launch.thread_blocks * _OF_GRID)) if self.executed else 0
        if len(missing) < batch:
            behind = np.flatnonzero(self.positions[int(missing[0]) :] < 0) + int(missing[0])
            missing = np.union1d(missing, behind[:batch])
        self._append(self._run(missing))

    def _run(self, thread_blocks: Int64[np.ndarray, " tb"]) -> Trace:
        self.in_order &= bool((thread_blocks == self.ever + np.arange(len(thread_blocks))).all())
        started = perf_counter()
        trace = self._execute_some(self.launch, thread_blocks.tolist())
        self.seconds += perf_counter() - started
        self.ever += len(trace.thread_blocks)
        return trace

    def _append(self, trace: Trace) -> None:
        self.positions[trace.thread_blocks] = self.executed + np.arange(len(trace.thread_blocks))
        parts = [trace] if self.trace is None else [self.trace, trace]
        self.trace = concatenate(parts, trace.warps_per_block)
