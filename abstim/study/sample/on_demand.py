"""Launches of a target executed only where a method asks for them, in whole or in part: a session's `Traces`."""

from collections.abc import Callable, Iterator, Sequence
from threading import Lock
from time import perf_counter

import numpy as np

from abstim.targets.execution import Traces, chosen_executor, default_budget
from functional.arrays import Bool, Int64
from functional.launches.case import Case, execute_launch
from functional.launches.launch import Launch, Pointer
from functional.programs.dependence import ignores_block_order, signatures
from functional.traces.trace import Trace, concatenate

# A call of the executor costs a copy of memory: a batch is at least this share of what was executed, and of the grid.
_OF_EXECUTED, _OF_GRID = 1 / 2, 1 / 64


class ThreadBlocks:
    """A growing trace of a launch; `positions` says where in it a thread block is, -1 if it has not been executed.

    Kernels may change what they read, so no block is executed twice: what one part of a method has executed serves the
    others. Blocks may be executed in another order than the GPU's (`in_order` says so), which only a kernel whose
    blocks race can tell. `run` executes some; `complete` is given: the launch was executed before."""

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
        if self.executed == len(self.positions):
            return
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
        self.trace = concatenate([trace] if self.trace is None else [self.trace, trace], trace.warps_per_block)


class OnDemand(Traces):
    """`given`: an execution there is already. Without one, launches are executed as they are asked for.

    Where no launch of the program decides what another does (`programs.dependence`), each is executed alone, and
    `signatures` tell which are equal. Elsewhere a launch reads what those before it wrote: before one is opened, those
    before it are executed to their end, unless `partial`, where what a method skips is not executed at all: right where
    values decide no control flow and no address, wrong elsewhere. `slow_paths`: traces have those of divisions and
    roots, for machine code, which data decide, too. `keep`: traces, once executed; otherwise each is dropped with its
    launch. `seconds` is wall-clock time of all threads."""

    def __init__(
        self, case: Case, given: Sequence[Trace] = (), partial: bool = False, keep: bool = False,
        slow_paths: bool = False,
    ) -> None:  # fmt: skip
        self.case, self.keep, self.slow_paths = case, keep or bool(given), slow_paths
        self.signatures = None if given else signatures(case, slow_paths)
        self.alone = partial or self.signatures is not None
        self.given = bool(given)
        self.executed_instructions, self.looked_instructions = 0.0, 0.0  # warp instructions; the latter by `look_at`
        self.seconds = 0.0
        self._lock, self._executing = Lock(), Lock()
        self._finished = 0  # launches executed to their end, where that matters
        self._memory = None if given else case.memory.copy()
        self._executor = chosen_executor()
        self._opened: dict[int, ThreadBlocks] = {
            number: ThreadBlocks(launch, self._run, self._asked_for(launch, trace))
            for number, (launch, trace) in enumerate(zip(case.launches, given, strict=False))
        }

    @property
    def in_full(self) -> bool:
        """Whether every launch is executed to its end, whatever is asked for."""
        return self.given or not self.alone

    @property
    def printed(self) -> str:  # type: ignore[override]  # it grows
        """What the thread blocks executed so far wrote with `printf`."""
        return "" if self._memory is None else self._memory.printed.text()

    def _run(self, launch: Launch, thread_blocks: Sequence[int]) -> Trace:
        """One launch at a time: the executor itself uses every core."""
        assert self._memory is not None, "a complete trace has every thread block"
        budget = default_budget(launch)
        with self._executing:
            started = perf_counter()
            if self.signatures is None:
                trace = self._executor.run(launch, self._memory, list(thread_blocks), budget)
            else:
                trace = execute_launch(self._executor, launch, self._memory, budget, list(thread_blocks))
            self.executed_instructions += float(trace.warp_instructions.sum())
            self.seconds += perf_counter() - started
        return self._asked_for(launch, trace)

    def _asked_for(self, launch: Launch, trace: Trace) -> Trace:
        return trace if self.slow_paths else trace.without_slow_paths(len(launch.program.code_blocks))

    def look_at(self, number: int, thread_blocks: Sequence[int]) -> Trace:
        """Execute some thread blocks of a launch that can be executed alone, and again later if need be."""
        trace = self._run(self.case.launches[number], thread_blocks)
        self.looked_instructions += float(trace.warp_instructions.sum())
        return trace

    def thread_blocks(self, number: int) -> ThreadBlocks:
        """A launch, ready to be executed; one that was dropped, and can be executed alone, is anew."""
        known = self._opened.get(number)
        if known is not None and self.signatures is not None and known.ever and known.trace is None:
            del self._opened[number]
        if number not in self._opened:
            if not self.alone:  # it may read what those before it write
                for earlier in range(self._finished, number):
                    self._open(earlier).finish(self.keep)
                self._finished = number
            self._open(number)
        return self._opened[number]

    def _open(self, number: int) -> ThreadBlocks:
        with self._lock:
            if number not in self._opened:
                self._opened[number] = ThreadBlocks(self.case.launches[number], self._run)
        return self._opened[number]

    def trace(self, number: int) -> Trace:
        """A whole launch, executed."""
        blocks = self.thread_blocks(number)
        blocks.finish()
        assert blocks.trace is not None
        return blocks.trace

    def accesses(self, number: int) -> Trace:
        """A whole launch, to be walked for what it leaves in the caches."""
        if self.given or self.signatures is None:
            return self.trace(number)
        launch = self.case.launches[number]
        return self._run(launch, range(launch.thread_blocks))

    def in_order(self) -> Iterator[Trace]:
        """Every launch, each dropped behind the next unless traces are kept."""
        for number in range(len(self.case.launches)):
            yield self.trace(number)
            self.drop(number)

    def drop(self, number: int) -> None:
        """Forget a launch's trace, having executed what later ones need of it."""
        if self.keep or number not in self._opened:
            return
        if not self.alone and number + 1 < len(self.case.launches):
            self._opened[number].finish(keep=False)
        self._opened[number].trace = None

    def reordered(self) -> list[str]:
        """Kernels whose thread blocks were executed in another order than in a run, and may have told."""
        if self.signatures is not None:  # nothing that traces depend on is written at all
            return []
        found: dict[tuple[object, ...], Launch] = {}  # one of each kernel and its buffers
        for blocks in self._opened.values():
            if not blocks.in_order:
                buffers = (a.buffer for a in blocks.launch.arguments if isinstance(a, Pointer))
                found.setdefault((blocks.launch.program.name, *buffers), blocks.launch)
        return sorted({launch.program.name for launch in found.values() if not ignores_block_order(launch)})

    def executed(self, number: int, thread_blocks: Int64[np.ndarray, " tb"]) -> Bool[np.ndarray, " tb"]:
        """Which of a launch's thread blocks were executed."""
        opened = self._opened.get(number)
        return np.zeros(len(thread_blocks), bool) if opened is None else opened.positions[thread_blocks] >= 0
