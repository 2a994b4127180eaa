"""Ways to run what is left of a launch: several chunks of thread blocks at a time, one after the other, by
steps, or resident ones in turns, with the proof that they wait for each other; how large chunks are.

Each yields traces in the order of the blocks. What it cannot finish it abandons, and another takes over."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import cached_property
from hashlib import blake2b

import numpy as np

from functional.errors import ExecutionError
from functional.execution.executor import PACE, Interleaving
from functional.launches.launch import Launch
from functional.llvm_executor import context_layout as at
from functional.llvm_executor.launch_state import Abandoned, Job, Machine, OverBudget, Pool
from functional.llvm_executor.object_code import call
from functional.llvm_executor.streams import Shadow, StreamPart
from functional.traces.trace import Trace

_FIRST_LOOK = 1 << 16  # turns until somebody looks whether anything happens; then at twice as many
_SPREAD = 8  # of so many cycles one, by which warps that do the same come apart
_ROUND = 4  # turns a warp, on average, in which all should have had one
_NEVER, _HELD = -1, 0  # of the time of a warp, as a signed number: below 0 it cannot run


class Stepped:
    """All thread blocks of a launch, each warp of which stands before an order point, at a barrier, or has ended;
    somebody else says whose turn it is. `new`: parts of streams since it was asked last."""

    def __init__(self, machine: Machine, thread_blocks: np.ndarray, basic_blocks: int) -> None:
        self.machine = machine
        costs = np.zeros(basic_blocks, np.int64)
        self._turns = _Turns(machine, machine.begin(thread_blocks), Interleaving(machine.resident, costs))
        self._told = 0
        call("start_interleaved", machine.context.ctypes.data)
        for block in range(machine.resident):
            self._run(block)

    def is_before_point(self, warp: int) -> bool:
        """Has a warp, counted in the order of the thread blocks, to be told when it passes an order point?"""
        return self._state(warp) == at.BEFORE_POINT

    def is_done(self, warp: int) -> bool:
        """Has it ended?"""
        return self._state(warp) == at.DONE

    def step(self, warp: int) -> None:
        """The warp passes its order point. Raises Abandoned for a fault or when the budget is spent."""
        self._run(*divmod(warp, self.machine.launch.warps_per_block))

    def new(self) -> list[StreamPart]:
        """Parts of streams that have come since the last call."""
        parts = self.machine.streams.parts(self._told)
        self._told += len(parts)
        return parts

    def trace(self) -> Trace:
        """Of the whole launch, when all warps have ended."""
        return self.machine.end(at.FINISHED, self._turns.thread_blocks)

    def _state(self, warp: int) -> int:
        return int(self._frames[self.machine.compiled.frame_bytes * warp + at.STATE])

    @cached_property
    def _frames(self) -> np.ndarray:
        return self._turns.frames().reshape(-1)

    def _run(self, block: int, warp: int | None = None) -> None:
        """A warp of a thread block takes its turn, if one is named; then the block runs."""
        call("select_slot", self.machine.context.ctypes.data, block)
        self.machine.set(warp=warp or 0)
        for routine in ("run_block",) if warp is None else ("take_turn", "run_block"):
            if (code := self.machine.go(routine)) != at.FINISHED:
                self.machine.end(code, self._turns.thread_blocks)


def in_turns(machine: Machine, thread_blocks: np.ndarray, interleaving: Interleaving) -> Trace:
    """Run thread blocks to their end, as many at a time as the machine has room for. Raises Abandoned for a fault or
    when the budget is spent, ExecutionError if they wait for each other for ever."""
    turns = _Turns(machine, machine.begin(thread_blocks), interleaving)
    call("start_interleaved", machine.context.ctypes.data)
    look = _FIRST_LOOK
    while (code := turns.run_to(look)) == at.PAUSED and (code := turns.look_for_deadlock()) == at.PAUSED:
        look *= 2
    return machine.end(code, turns.thread_blocks)


class _Turns:
    """The tables that runtime_schedule.py works on."""

    def __init__(self, machine: Machine, thread_blocks: np.ndarray, interleaving: Interleaving) -> None:
        self.machine, self.thread_blocks = machine, thread_blocks
        warps, slots = machine.launch.warps_per_block, machine.resident
        leaves = 1 << max(1, (slots - 1).bit_length())
        self.rows = np.full((leaves, at.SLOT_WORDS), _NEVER, np.int64)
        tree = np.concatenate([np.zeros(leaves, np.int64), np.arange(leaves)])
        for node in range(leaves - 1, 0, -1):
            tree[node] = tree[2 * node]
        self.times, self.turns_of = (np.full(slots * warps, value, np.int64) for value in (_NEVER, 0))
        # Compare-and-swap loops would take the most rounds they can if warps always came in the order of their numbers
        program, costs = machine.launch.program, interleaving.block_cycles
        swaps = [any("cas" in i.modifiers for i in program.instructions[b.start : b.stop]) for b in program.blocks]
        tables = {
            "slots": self.rows, "tree": tree, "times": self.times, "turns_of": self.turns_of,
            "block_cycles": costs, "spreads": np.where(swaps, costs * PACE // _SPREAD, 0),
        }  # fmt: skip
        tables["paces"] = np.append(interleaving.paces, np.full(leaves, PACE))[:leaves]
        self.kept = {name: np.ascontiguousarray(table, np.int64) for name, table in tables.items()}
        machine.set(
            interleaved=1, midway=0, leaves=leaves, resident=slots, next_block=0, blocks_done=0, now=0, turns=0,
            dispatch_ticks=round(interleaving.dispatch_cycles * PACE), next_entry=0,
            **{name: table.ctypes.data for name, table in self.kept.items()},
        )  # fmt: skip

    def run_to(self, turns: int) -> int:
        self.machine.set(turns_stop=turns)
        return self.machine.go("run_interleaved")

    def look_for_deadlock(self) -> int:
        """Run each warp that can run once. If neither memory nor a warp changes, none will: raises ExecutionError."""
        before, taken = self._state(), self.turns_of.copy()
        for _ in range(_ROUND):
            code = self.run_to(int(self.machine.context[at.SLOT["turns"] // 8]) + _ROUND * len(self.times))
            running = self.times >= _HELD
            if code != at.PAUSED or (self.turns_of > taken)[running].all():
                break
        if code == at.PAUSED and (self.turns_of > taken)[running].all() and self._state() == before:
            raise self._deadlock(np.flatnonzero(running))
        return code

    def frames(self) -> np.ndarray:
        machine = self.machine
        size, count = machine.compiled.frame_bytes, len(self.times)
        return machine.frames.view(count * size).reshape(count, size)

    def _state(self) -> bytes:
        """A digest of all that the next turns depend on: warps, shared memory, and global memory that was written."""
        machine, found = self.machine, blake2b(self.rows[:, :2].tobytes())
        frames = self.frames().copy()
        frames[:, at.WARP_INSTRUCTIONS : at.EXPECTED] = 0  # which only count
        found.update(frames.tobytes())
        found.update(machine.shared.view(machine.resident * machine.shared_stride).tobytes())
        found.update(machine.undo.written(machine.memory).tobytes())
        return found.digest()

    def _deadlock(self, waiting: np.ndarray) -> ExecutionError:
        launch = self.machine.launch
        program, count = launch.program, len(np.unique(waiting // launch.warps_per_block))
        block = program.blocks[int(self.frames()[waiting[0], :4].view(np.uint32)[0])]
        points = [i for i in program.instructions[block.start : block.stop] if i.opcode in ("atom", "red", "ld", "st")]
        at_point = points[0] if points else program.instructions[block.start]
        return ExecutionError(
            f"kernel '{program.name}', {program.path}:{at_point.line}: {at_point.name}: deadlock: {len(waiting)} warps "
            f"of {count} thread blocks wait for what none of them does; {self.machine.resident:,} of "
            f"{len(self.thread_blocks):,} thread blocks are resident at a time"
        )


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
