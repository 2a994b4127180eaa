"""Executing a target: once, kept on disk; or launch by launch, where that is too much to hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import msgspec

from abstim.progress import Progress, silent
from abstim.targets import trace_cache
from abstim.targets.check_trace import check_traces
from abstim.targets.executors import chosen_executor, name_of
from abstim.targets.trace_cache import Execution, OutputCheck
from abstim.targets.workloads.lazy_launches import StreamedCase, execute_launch
from functional.errors import InputError
from functional.launches.case import Case
from functional.ptx.source import naming_source
from functional.terminal import note
from functional.traces.store import OutputEntry, StoredCase, StoreWriter
from functional.traces.trace import concatenate

if TYPE_CHECKING:
    from functional.execution.executor import Executor
    from functional.launches.launch import Launch
    from functional.launches.memory import Memory
    from functional.traces.store import Manifest
    from functional.traces.trace import Trace

LARGE_THREADS = 1 << 20  # of a launch that takes so long that one wants to see how far it is
LARGE_CHUNK_BYTES = 1 << 24  # of trace: a tenth of a second, or a few


def execute(
    case: Case,
    executor: Executor | None = None,
    instruction_budget: int | None = None,
    progress: Progress = silent,
) -> Execution:
    """Run every launch of a case, or take what an earlier process kept of it, in a trace store or in the cache.

    `instruction_budget`: thread instructions a launch after which it counts as endless (default: `default_budget`).
    Executions with another budget are kept apart. Raises InputError for a budget where nothing is executed.
    """
    if instruction_budget is not None and (case.traces or isinstance(case, StoredCase)):
        raise InputError(f"{case.name}: its trace is there, nothing is executed; leave the instruction budget out")
    if case.traces:
        return _checked(case, Execution(case.traces, from_cache=True))
    started = perf_counter()
    if isinstance(case, StoredCase):
        return replace(_checked(case, _stored(case, progress)), seconds=perf_counter() - started, from_cache=True)
    key = trace_cache.execution_key(case, name_of(executor), instruction_budget)
    execution = kept_execution(case, key)
    from_cache = execution is not None
    if execution is None:
        execution = execute_case(case, executor or chosen_executor(), instruction_budget, progress)
        trace_cache.save(key, execution)
    return replace(execution, seconds=perf_counter() - started, from_cache=from_cache)


def kept_execution(case: Case, key: str) -> Execution | None:
    """What is kept under a case's key, if anything; a file that is whole and holds something else is said so."""
    found = trace_cache.load(key)
    try:
        return found and _checked(case, found)
    except InputError as error:
        note(f"cache: {error}; executing again")
        return None


def _checked(case: Case, execution: Execution) -> Execution:
    """An execution that comes from files. Raises InputError for a trace that its launch cannot have made."""
    check_traces(case, execution.traces)
    return execution


def execute_in_turn(
    case: Case, executor: Executor | None, instruction_budget: int | None, progress: Progress
) -> Execution | Streaming:
    """`execute`, but of a StreamedCase each launch when it is its turn."""
    if isinstance(case, StreamedCase):
        return Streaming(case, executor, instruction_budget, progress)
    return execute(case, executor, instruction_budget, progress)


class Streaming:
    """Executes the launches of a StreamedCase when it is their turn, and holds none of their traces."""

    outputs: tuple[OutputCheck, ...] = ()  # not compared

    def __init__(
        self, case: Case, executor: Executor | None, instruction_budget: int | None, progress: Progress
    ) -> None:
        self._case, self._executor, self._budget, self._progress = case, executor, instruction_budget, progress
        self._memory: Memory | None = None
        self.seconds = 0.0

    @property
    def printed(self) -> str:
        """What the kernels executed so far wrote with `printf`."""
        return "" if self._memory is None else self._memory.printed.text()

    def trace(self, number: int) -> Trace:
        """Raises InputError: a launch reads what those before it wrote."""
        raise InputError(f"{self._case.name} is executed launch by launch; launch {number} cannot be had by itself")

    def accesses(self, number: int) -> Trace:
        """The same."""
        return self.trace(number)

    def in_order(self) -> Iterator[Trace]:
        """Every launch, executed from the start."""
        executor = self._executor or chosen_executor()
        self._memory, count = self._case.memory.copy(), len(self._case.launches)
        for number, launch in enumerate(self._case.launches):
            started = perf_counter()
            trace = execute_launch(executor, launch, self._memory, self._budget or default_budget(launch))
            self.seconds += perf_counter() - started
            self._progress(f"run {self._case.name}", number, count)
            yield trace


def default_budget(launch: Launch) -> int:
    """Thread instructions: 2^18 a thread, and at least 2^27, so that an endless loop ends in a minute or so."""
    return max(1 << 27, launch.thread_blocks * launch.threads_per_block << 18)


def execute_case(
    case: Case, executor: Executor, instruction_budget: int | None = None, progress: Progress = silent
) -> Execution:
    """Run every launch of a case, in order, on a copy of its memory, and compare its outputs."""
    _check_executable(case)
    memory, traces = case.memory.copy(), []
    done, total = 0, sum(launch.thread_blocks for launch in case.launches)
    for launch in case.launches:
        report = partial(_told, progress, f"execute {case.name}", done, total)
        report(0)
        with naming_source(launch.program):
            traces.append(_executed(launch, memory, executor, instruction_budget or default_budget(launch), report))
        done += launch.thread_blocks
    return Execution(tuple(traces), _checked_outputs(case, memory), memory.printed.text())


def _told(progress: Progress, what: str, before: int, total: int, done: int) -> None:
    progress(what, before + done, total)


def _executed(launch: Launch, memory: Memory, executor: Executor, budget: int, report: Callable[[int], None]) -> Trace:
    """The trace of a launch; of a large one `report` is told on the way how many thread blocks have run."""
    if launch.thread_blocks * launch.threads_per_block < LARGE_THREADS:
        return executor.run(launch, memory, instruction_budget=budget)
    chunks: list[Trace] = []
    done = 0
    for chunk in executor.stream(launch, memory, instruction_budget=budget, chunk_bytes=LARGE_CHUNK_BYTES):
        chunks.append(chunk)
        done += len(chunk.thread_blocks)
        report(done)
    return concatenate(chunks, launch.warps_per_block)


def write_store(
    case: Case,
    folder: Path,
    executor: Executor,
    instruction_budget: int | None = None,
    overwrite: bool = False,
    progress: Progress = silent,
) -> Manifest:
    """Run every launch of a case and write its trace to a store in `folder`, a chunk at a time.

    Raises InputError if the folder cannot be used (see `StoreWriter`) and for whatever executing raises.
    """
    _check_executable(case)
    writer, memory = StoreWriter(folder, case.module, overwrite), case.memory.copy()
    done, total = 0, sum(launch.thread_blocks for launch in case.launches)

    def reported(chunks: Iterator[Trace]) -> Iterator[Trace]:
        nonlocal done
        for trace in chunks:
            yield trace
            done += len(trace.thread_blocks)
            progress(f"trace {case.name}", done, total)

    for launch in case.launches:
        budget = instruction_budget or default_budget(launch)
        chunks = executor.stream(launch, memory, instruction_budget=budget)
        with naming_source(launch.program):
            writer.launch(launch, case.registers(launch), reported(chunks))
    outputs = [OutputEntry(**asdict(check)) for check in _checked_outputs(case, memory)]
    return writer.finish(case.name, outputs, memory.printed.text())


def _stored(case: StoredCase, progress: Progress) -> Execution:
    """What a trace store holds."""
    traces = []
    for number in range(len(case.launches)):
        progress(f"read {case.name}", number, len(case.launches))
        traces.append(case.trace(number))
    outputs = tuple(OutputCheck(**msgspec.structs.asdict(output)) for output in case.manifest.outputs)
    return Execution(tuple(traces), outputs, case.manifest.printed)


def _check_executable(case: Case) -> None:
    if isinstance(case, StoredCase):
        raise InputError(f"{case.folder}: a trace store holds no data to execute on; name what it was made from")


def _checked_outputs(case: Case, memory: Memory) -> tuple[OutputCheck, ...]:
    wrong = {m.buffer: m for m in case.compare(memory)}
    return tuple(
        OutputCheck(
            buffer=name,
            elements=expected.count,
            mismatches=wrong[name].elements if name in wrong else 0,
            message=str(wrong[name]) if name in wrong else "",
        )
        for name, expected in case.expected.items()
    )
