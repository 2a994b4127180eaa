"""Ways to run what is left of a launch: several chunks of thread blocks at a time, one after the other, by
steps; how large chunks are.

Each yields traces in the order of the blocks. What it cannot finish it abandons, and another takes over."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING

from functional.launches.launch import Launch
from functional.llvm_executor.in_turns import in_turns
from functional.llvm_executor.launch_state import Abandoned, Job, Machine, OverBudget, Pool
from functional.llvm_executor.races import Shadow
from functional.traces.trace import Trace

if TYPE_CHECKING:
    import numpy as np

_FIRST_WARPS = 8
_MOST_GROWTH = 8
# Thread instructions of a chunk where several run at once: some milliseconds
_LEAST_INSTRUCTIONS, _MOST_INSTRUCTIONS = 1 << 24, 1 << 26
# Neighbouring blocks often write bytes of one sector, which belong in one chunk: 8 blocks a float each, 32 a byte each
_ALIGNMENTS = (32, 8)


class Sizes:
    """Sizes of the chunks of a launch, from what its chunks so far took. `chunk_bytes`: of a trace, None for any."""

    def __init__(self, launch: Launch, chunk_bytes: int | None, threads: int = 1) -> None:
        self.chunk_bytes, self.threads = chunk_bytes, threads
        self._first = max(1, _FIRST_WARPS // launch.warps_per_block)
        columns, rows = launch.grid.x, launch.grid.y * launch.grid.z
        self._alignments = (-(-_ALIGNMENTS[0] // columns) * columns, columns) if rows > 1 else _ALIGNMENTS
        self._size = self._blocks = self._bytes = self._instructions = 0

    @property
    def instructions_per_block(self) -> float:
        """Mean thread instructions of the thread blocks that have run."""
        return max(1, self._instructions) / max(1, self._blocks)

    def saw(self, trace: Trace) -> None:
        """Take account of a chunk."""
        self._blocks += len(trace.thread_blocks)
        self._bytes += trace.nbytes
        self._instructions += int(trace.thread_instructions.sum())

    def serial(self, left: int) -> int:
        """Thread blocks of the next chunk, where one runs after the other; `left` remain."""
        return left if self.chunk_bytes is None else self._next(left, self._fitting(left))

    def parallel(self, position: int, stop: int) -> int:
        """Thread blocks of the next chunk, where several run at once and `position` of `stop` are under way. Smaller
        towards the end, so that all threads end at about the same time; whole rows of a grid, if possible."""
        if not self._blocks:
            return self._next(stop - position, stop - position)
        least, most = (max(1, int(n / self.instructions_per_block)) for n in (_LEAST_INSTRUCTIONS, _MOST_INSTRUCTIONS))
        left = stop - position
        share = min(most, max(least, left // (2 * self.threads)), self._fitting(left))
        size = self._next(left, share)
        if size == left:
            return left
        ends = [(position + size) // unit * unit for unit in self._alignments]
        ends += [(position // unit + 1) * unit for unit in self._alignments if position % unit + share >= unit]
        return next((end for end in ends if end > position), position + size) - position

    def _fitting(self, left: int) -> int:
        if self.chunk_bytes is None or not self._bytes:
            return left
        return self.chunk_bytes * self._blocks // self._bytes

    def _next(self, left: int, wanted: int) -> int:
        self._size = max(1, min(wanted, _MOST_GROWTH * self._size if self._size else self._first))
        return min(left, self._size)


_WORTH_THREADS = 1 << 26  # thread instructions below which starting threads takes as long as it saves


class Conflict(Abandoned):
    """Chunks that ran at the same time touched each other's data."""


def interleaved(job: Job) -> Iterator[Trace]:
    """All thread blocks that are left in one chunk, of which as many as a GPU holds take turns."""
    assert job.interleaving is not None
    trace = in_turns(job.machine(0), job.blocks[job.done :], job.interleaving)
    job.done, job.used = len(job.blocks), job.machine(0).used
    yield trace


def serial(job: Job) -> Iterator[Trace]:
    """One chunk after the other."""
    sizes = Sizes(job.launch, job.chunk_bytes)
    while not job.finished:
        yield _next_chunk(job, sizes.serial(len(job.blocks) - job.done), sizes)


def _next_chunk(job: Job, size: int, sizes: Sizes) -> Trace:
    trace = job.machine(0).run(job.blocks[job.done : job.done + size])
    sizes.saw(trace)
    job.done, job.used = job.done + size, job.machine(0).used
    return trace


def parallel(job: Job, threads: int, shadows: Pool[Shadow]) -> Iterator[Trace]:
    """Several chunks at a time, after one alone that tells what a thread block takes: stops there if that is little.
    Raises Conflict if the order in which chunks ran may have mattered."""
    sizes = Sizes(job.launch, job.chunk_bytes, threads)
    first = _next_chunk(job, sizes.parallel(0, len(job.blocks)), sizes)
    yield first
    if (len(job.blocks) - job.done) * sizes.instructions_per_block < _WORTH_THREADS:
        return
    machines = [job.machine(number) for number in range(threads)]
    for machine in machines:
        machine.streams.note_stores()
    with ExitStack() as stack:
        shadow = stack.enter_context(shadows.one())
        if not shadow.begin(first, job.launch.program, job.memory):
            return
        pool = ThreadPoolExecutor(threads)
        stack.callback(pool.shutdown, wait=True, cancel_futures=True)
        yield from _in_order(job, sizes, lambda blocks: pool.submit(_checked, machines, shadow, blocks), 2 * threads)


def _checked(machines: list[Machine], shadow: Shadow, blocks: np.ndarray) -> tuple[Trace, int]:
    """A chunk on a machine that is free: its trace and thread instructions. Raises Abandoned, also for a conflict."""
    machine = machines.pop()
    before = machine.used
    try:
        trace = machine.run(blocks)
        if not shadow.clean(trace, machine.touched, machine.streams):
            raise Conflict
        return trace, machine.used - before
    finally:
        machines.append(machine)


def _in_order(
    job: Job, sizes: Sizes, submit: Callable[[np.ndarray], Future[tuple[Trace, int]]], ahead: int
) -> Iterator[Trace]:
    """Keep `ahead` chunks under way. A trace is handed out when every chunk that ran beside it is known to be clean:
    chunk k starts when chunk k - ahead is through, so those are the `ahead` - 1 before and behind it."""
    pending: deque[Future[tuple[Trace, int]]] = deque()
    clean: deque[Trace] = deque()
    submitted = job.done
    while pending or clean or submitted < len(job.blocks):
        while len(pending) < ahead and submitted < len(job.blocks):
            size = sizes.parallel(submitted, len(job.blocks))
            pending.append(submit(job.blocks[submitted : submitted + size]))
            submitted += size
        if pending:
            trace, used = pending.popleft().result()
            job.used += used
            if job.used > job.budget:
                raise OverBudget(job.launch.program.line_of(int(trace.blocks[-1])), int(trace.thread_blocks[-1]))
            sizes.saw(trace)
            clean.append(trace)
        if len(clean) == ahead or not pending:
            job.done += len(clean[0].thread_blocks)
            yield clean.popleft()
