"""Launches of a running program: executed, unless they would change nothing; timed, unless one that did the same was;
and written to a store, if they are chosen.

What is not timed is executed as a stream, of which no more than some chunks are held."""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from abstim.application.loaded_modules import LoadedModules, ProgramCase
from abstim.application.stream_clock import Operation, answered, overlapping, time_together
from abstim.engine.kept_caches import Caches
from abstim.engine.side_by_side import Kernel
from abstim.gpu.config import Gpu
from abstim.models import model_named
from abstim.progress import silent
from abstim.session.detailed import launch_result
from abstim.session.result import LaunchResult, again
from abstim.session.session import Session, likeness_of
from abstim.session.side_by_side import kernel_of
from abstim.session.turns import order_note, turns_of
from abstim.session.warm_up import Flushed, bring_code
from abstim.targets.execution import Execution, default_budget, is_ordered
from functional.arrays import UInt8
from functional.errors import InputError, note
from functional.execution.computer import default_threads
from functional.execution.executor import Executor, Interleaving
from functional.launches.case import Case
from functional.launches.launch import Launch
from functional.launches.memory import Memory, Region
from functional.programs.registers import Registers
from functional.ptx.source import shown_name
from functional.traces.store import StoreWriter
from functional.traces.trace import Trace

MOST_WAITING, MOST_WAITING_BYTES = 4, 1 << 30  # launches whose traces are held until they are timed


@dataclass(frozen=True)
class Selection:
    """Which launches are timed: of one kernel (a part of its name; "": of all), and a stretch of their numbers."""

    kernel: str = ""
    first: int = 0
    after: int | None = None

    def holds(self, number: int, kernel: str) -> bool:
        """Is this launch one of them?"""
        named = self.kernel in kernel or self.kernel in shown_name(kernel)
        return named and self.first <= number and (self.after is None or number < self.after)


EVERYTHING = Selection()


@dataclass(frozen=True)
class Timed:
    """A launch on every GPU, in their order."""

    number: int
    launch: Launch
    results: tuple[LaunchResult, ...]


class LaunchTimer:
    """Times launches on GPUs by a model, in a thread of its own, in order. `flush`: caches emptied before each."""

    def __init__(self, gpus: Sequence[Gpu], model: str, case: Case, flush: str) -> None:
        """`case` knows the registers of the kernels. Raises InputError for what the model cannot do."""
        self.gpus, self.case, self._model = list(gpus), case, model_named(model)
        self._model.refuse(self.gpus, flush)
        self._policies = [Flushed(flush) for _ in gpus]
        self._before = Caches()  # that the next kernels side by side find
        self.in_order = any(policy.in_order for policy in self._policies)  # a launch depends on those before it
        self._session = Session(case)
        self.pool = ThreadPoolExecutor(1)
        self._known: dict[str, tuple[LaunchResult, ...]] = {}
        self._waiting: deque[tuple[Future[Timed], int]] = deque()
        self.done: list[Future[Timed]] = []

    def time(
        self, number: int, launch: Launch, key: str, trace: Trace | None, also: Callable[[Timed], Any]
    ) -> Future[float]:
        """Begin to time a launch; the future has its seconds on the first GPU. `also` is told the result. `key`: its
        likeness; `trace`: None if one that it is like was given before, and caches are empty."""
        if key in self._known and not self.in_order:  # nothing to wait for
            future = answered(self._result(key, number, launch))
        else:
            size_bytes = 0 if trace is None else trace.nbytes
            while self._waiting and (
                len(self._waiting) >= MOST_WAITING
                or size_bytes + sum(held for _, held in self._waiting) > MOST_WAITING_BYTES
            ):
                self._waiting.popleft()[0].result()
            future = self.pool.submit(self._timed, key, number, launch, trace)
            self._waiting.append((future, size_bytes))
        self.done.append(future)
        seconds: Future[float] = Future()

        def told(finished: Future[Timed]) -> None:
            try:
                also(finished.result())
                seconds.set_result(finished.result().results[0].seconds)
            except BaseException as error:  # `stop` cancels launches, for which others may wait already
                seconds.set_exception(error)

        future.add_done_callback(told)
        return seconds

    def finish(self) -> list[Timed]:
        """All results, in order. Raises what timing raised."""
        self.pool.shutdown()
        return [future.result() for future in self.done]

    def side_by_side(self, operations: Sequence[Operation]) -> bool:
        """Time kernels beside each other and the copies between them, on the first GPU, if any overlap; do they? To be
        called as a task, the times of what they wait for known."""
        policy = self._policies[0]
        overlaps = overlapping(operations)
        if overlaps:
            self._before.flush(policy.flush)
            caches = self._before if self.in_order else Caches()
            for one in [x for x in operations if x.launch is not None and policy.flush == "data"]:
                self._hold(one.launch, one.trace)
                bring_code(self._session, 0, self.gpus[0], caches)
            time_together(operations, self._kernel, self.gpus[0], caches)
        elif self.in_order:
            self._before = replace(policy.caches)
        return overlaps

    def _kernel(self, operation: Operation, awaits: Sequence[int], programmatic: int) -> Kernel:
        self._hold(operation.launch, operation.trace)
        return kernel_of(self._session, 0, self.gpus[0], awaits, operation.priority, programmatic)

    def stop(self) -> list[Timed]:
        """The results that are there; nothing new is begun."""
        self.pool.shutdown(cancel_futures=True)
        ended = [future for future in self.done if future.done() and not future.cancelled()]
        return [future.result() for future in ended if future.exception() is None]

    def _timed(self, key: str, number: int, launch: Launch, trace: Trace | None) -> Timed:
        if key not in self._known or self.in_order:
            assert trace is not None  # the one that came first
            self._hold(launch, trace)
            self._known[key] = self._time(launch, trace)
        return self._result(key, number, launch)

    def _hold(self, launch: Launch | None, trace: Trace | None) -> None:
        """It is the session's one launch from now on."""
        assert launch is not None and trace is not None
        self._session.case.launches, self._session.traces = (launch,), Execution((trace,))

    def _time(self, launch: Launch, trace: Trace) -> tuple[LaunchResult, ...]:
        """What is to be timed is in the session; by the detailed model, which alone keeps caches, in order."""
        session, found, flush = self._session, list[LaunchResult](), self._policies[0].flush
        if not self.in_order:
            return tuple(run.launches[0] for run in self._model.time(session, self.gpus, flush, silent))
        for gpu, policy in zip(self.gpus, self._policies, strict=True):
            engine = session.simulate(0, gpu, trace, policy.before(session, 0, gpu), default_threads())
            found.append(launch_result(session, 0, launch, trace, gpu, engine))
        return tuple(found)

    def _result(self, key: str, number: int, launch: Launch) -> Timed:
        return Timed(number, launch, tuple(again(result, launch, number) for result in self._known[key]))


MOST_BYTES = 1 << 28  # of memory that is copied and compared
_BYTES_AN_INSTRUCTION = 16  # to compare so many takes about as long as to execute a thread instruction
_MOST_CHANGES = 2  # a launch that changed something so often is no longer watched


Snapshot = dict[Region, UInt8[np.ndarray, " byte"]]  # global memory at a moment


def _is_as_then(memory: Memory, then: Snapshot | None) -> bool:
    if then is None or [*then] != [*memory.regions]:
        return False
    return all(np.array_equal(memory.bytes_of(region), content) for region, content in then.items())


@dataclass
class _Kind:
    """Launches of one kernel with the same parameters, constants and shape."""

    instructions: int = 0  # thread instructions that one takes
    changes: int = 0


@dataclass
class IdleLaunches:
    """What is known of the launches so far. Programs that take times launch a kernel again and again on the same data.
    What a kernel does depends on its launch and on memory alone: if a launch has once left memory as it found it, then
    on that memory it need not be executed again."""

    _kinds: dict[Hashable, _Kind] = field(default_factory=dict)
    _state: Snapshot | None = None
    _idle: dict[Hashable, str] = field(default_factory=dict)  # on memory as in `_state` -> likeness to be timed by

    def likeness(self, launch: Launch, memory: Memory) -> str | None:
        """If a launch would change nothing, what `ended` was told of the one like it; else None."""
        key = _key(launch, memory)
        return self._idle[key] if key in self._idle and _is_as_then(memory, self._state) else None

    def before(self, launch: Launch, memory: Memory) -> Snapshot | None:
        """Memory before a launch that is executed, if that is worth while; `ended` is told of it."""
        kind = self._kinds.get(_key(launch, memory))
        size_bytes = sum(region.bytes for region in memory.regions)
        if kind is None or kind.changes >= _MOST_CHANGES or size_bytes > MOST_BYTES:
            return None
        if size_bytes > _BYTES_AN_INSTRUCTION * kind.instructions:
            return None
        if _is_as_then(memory, self._state):
            return self._state
        return {region: memory.bytes_of(region).copy() for region in memory.regions}

    def ended(self, launch: Launch, memory: Memory, before: Snapshot | None, instructions: int, likeness: str) -> None:
        """A launch was executed. `likeness`: what it is timed by, "" if it is not."""
        key = _key(launch, memory)
        kind = self._kinds.setdefault(key, _Kind())
        kind.instructions = instructions
        if before is None or memory.printed.calls:
            return
        if not _is_as_then(memory, before):
            kind.changes += 1
            return
        if before is not self._state:
            self._state, self._idle = before, {}
        self._idle[key] = likeness


def _key(launch: Launch, memory: Memory) -> Hashable:
    shape = (launch.grid, launch.block, launch.cluster, launch.dynamic_shared_bytes, launch.grid_workspace)
    return launch.program.digest, launch.program.name, shape, launch.parameters, memory.const_arena.tobytes()


class LaunchStores:
    """A store for each module whose kernels are launched, `module-1` and so on, in a folder that is new or empty."""

    def __init__(self, folder: Path, modules: LoadedModules) -> None:
        """Raises InputError for a folder that holds something."""
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InputError(f"{folder}: is there already; choose another folder to record in")
        self.folder, self._modules = folder, modules
        self._writers: dict[str, StoreWriter] = {}

    def add(self, launch: Launch, registers: Registers, chunks: Iterable[Trace]) -> None:
        """The next launch."""
        digest = launch.program.digest
        if digest not in self._writers:
            module = self._modules.of_digest(digest)
            self._writers[digest] = StoreWriter(self.folder / f"module-{len(self._writers) + 1}", module.module)
        self._writers[digest].launch(launch, registers, chunks)

    def finish(self, name: str) -> None:
        """Make them whole; until then, nobody takes them for stores."""
        for writer in self._writers.values():
            writer.finish(name, [])


@dataclass
class LaunchRecorder:
    """Executes launches, in order. `timer`: None for nothing timed; `told` hears of each that was."""

    executor: Executor
    case: ProgramCase
    timer: LaunchTimer | None
    selection: Selection
    told: Callable[[Timed], None]
    stores: LaunchStores | None = None
    instruction_budget: int | None = None
    count: int = 0  # launches so far
    idle: IdleLaunches = field(default_factory=IdleLaunches)
    _interleavings: dict[Hashable, Interleaving | None] = field(default_factory=dict)

    def launch(
        self, launch: Launch, memory: Memory, may_overlap: bool = False
    ) -> tuple[Future[float], Launch, Trace | None]:
        """Execute, unless it would change nothing; the future has the seconds on the first GPU, 0 for a launch that is
        left out. With it comes the trace that was timed; one that `may_overlap` others has one always. Raises what the
        executor raises."""
        number, self.count = self.count, self.count + 1
        chosen = self.selection.holds(number, launch.program.name)
        is_timed, is_kept = chosen and self.timer is not None, chosen and self.stores is not None
        needs_trace = is_kept or (is_timed and (may_overlap or (self.timer is not None and self.timer.in_order)))
        likeness = None if needs_trace else self.idle.likeness(launch, memory)
        trace = None
        if likeness is None or (is_timed and not likeness):
            before = self.idle.before(launch, memory)
            trace, instructions = self._executed(launch, memory, is_timed, is_kept)
            likeness = "" if trace is None else likeness_of(launch, trace)
            self.idle.ended(launch, memory, before, instructions, likeness)
        if not is_timed:
            return answered(0.0), launch, None
        assert self.timer is not None
        return self.timer.time(number, launch, likeness, trace, self.told), launch, trace

    def _interleaving(self, launch: Launch) -> Interleaving | None:
        """How the thread blocks of a launch take turns, where that matters: as on the first GPU."""
        if self.timer is None or not is_ordered(launch):
            return None
        program = launch.program
        key = (program.digest, program.name, launch.grid, launch.block, launch.dynamic_shared_bytes)
        if key not in self._interleavings:
            session = Session(replace(self.case, launches=(launch,)))
            self._interleavings[key] = turns_of(session, self.timer.gpus[0])(0)
            note(f"abstim: {order_note(session.case)}, as on {self.timer.gpus[0].name}")
        return self._interleavings[key]

    def _executed(self, launch: Launch, memory: Memory, is_timed: bool, is_kept: bool) -> tuple[Trace | None, int]:
        """The trace, if it is to be timed, and thread instructions."""
        budget, turns = self.instruction_budget or default_budget(launch), self._interleaving(launch)
        if is_timed:
            trace = self.executor.run(launch, memory, instruction_budget=budget, interleaving=turns)
            if is_kept:
                self._keep(launch, [trace])
            return trace, int(trace.thread_instructions.sum())
        instructions = 0

        def counted() -> Iterator[Trace]:  # each chunk held by nobody here
            nonlocal instructions
            for trace in self.executor.stream(launch, memory, instruction_budget=budget, interleaving=turns):
                instructions += int(trace.thread_instructions.sum())
                yield trace

        chunks = counted()
        if is_kept:
            self._keep(launch, chunks)
        deque(chunks, maxlen=0)
        return None, instructions

    def _keep(self, launch: Launch, chunks: Iterable[Trace]) -> None:
        if self.stores is not None:
            self.stores.add(launch, self.case.registers(launch), chunks)
