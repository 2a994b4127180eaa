"""Executing a target: once, kept on disk; or launch by launch, where that is too much to hold. Kernels that are not
trusted run in a process of their own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import msgspec

from abstim.progress import Progress, silent
from abstim.targets.check_trace import check_traces
from functional.errors import InputError, note, refuse
from functional.execution.executor import Executor
from functional.keep.folder import trace_cache_bytes
from functional.keep.kept import Kept, key
from functional.launches.case import Case, StreamedCase, execute_launch
from functional.programs.program import Program
from functional.ptx.source import naming_source
from functional.traces.store import OutputCheck, StoredCase, StoreWriter, decode, encode
from functional.traces.trace import Trace, concatenate

if TYPE_CHECKING:
    from functional.execution.default_executor import StrictExecutor
    from functional.execution.executor import Interleaving
    from functional.launches.launch import Launch
    from functional.launches.memory import Memory
    from functional.llvm_executor import LlvmExecutor
    from functional.traces.store import Manifest


ISOLATE = "ABSTIM_ISOLATE"  # an environment variable: one of the following
NONE, ALL, FOREIGN = "0", "1", "foreign"  # kernels; foreign are those that did not come along with abstim
_ROOT = Path(__file__).parents[2]
_OURS = (_ROOT / "functional", _ROOT / "abstim")
_chosen: list[str] = []  # by the commands that run, the last one counts


def chosen_executor(strict: bool = False) -> Executor:
    """One a process: it keeps machine code and buffers. `strict`: one that refuses what no GPU promises.

    Raises InputError if isolation is asked for and impossible."""
    which = isolated()
    refuse(which not in (NONE, ALL, FOREIGN), f"{ISOLATE} = {which!r} is none of {NONE}, {ALL}, {FOREIGN}")
    return _inner(strict) if which == NONE else _isolated(which, strict)


def isolated() -> str:
    """Which kernels are isolated: the command's choice, else what the environment says."""
    return _chosen[-1] if _chosen else os.environ.get(ISOLATE) or NONE


def inherited() -> dict[str, str]:
    """The environment in which a process that this one starts has the command's choice, too."""
    return {ISOLATE: _chosen[-1]} if _chosen else {}


@contextmanager
def isolating(asked: bool | None) -> Iterator[None]:
    """A command's choice, as long as it runs: all kernels, none, or (None) what the environment says, else foreign ones
    where this system can. Raises InputError if all are asked for, and it cannot."""
    from abstim.targets.isolation.restrict import missing, refuse_where_impossible

    before = os.environ.get(ISOLATE)
    if asked or (before == ALL and asked is None):
        refuse_where_impossible()
    by_default = before or (NONE if missing() else FOREIGN)
    _chosen.append(by_default if asked is None else ALL if asked else NONE)
    try:
        yield
    finally:
        _chosen.pop()


def name_of(executor: Executor | None) -> str:
    """What an executor is called in the names of kept executions: where it runs decides nothing."""
    return type(getattr(executor, "inner", executor)).__name__


def came_along(program: Program) -> bool:
    """Is it a kernel of the suite or of the workloads?"""
    return any(Path(program.path).resolve().is_relative_to(folder) for folder in _OURS)


@cache
def _inner(strict: bool) -> LlvmExecutor | StrictExecutor:
    from functional.execution import default_executor as executors  # not imported where nothing is executed

    return executors.StrictExecutor() if strict else executors.default_executor()


@cache
def _isolated(which: str, strict: bool) -> Executor:
    from abstim.targets.isolation.isolated_executor import IsolatedExecutor

    return IsolatedExecutor(_inner(strict), came_along if which == FOREIGN else lambda program: False)


MODULES: tuple[str, ...] = ("functional.launches.case", "functional.execution.default_executor")
MODULES += ("functional.ptx.parser", "functional.traces.store", "abstim.targets.isolation.isolated_executor")


class Traces:
    """Where a session's traces come from."""

    outputs: tuple[OutputCheck, ...] = ()  # the verdict on each output buffer, if there is one
    printed: str  # what the kernels executed so far wrote with `printf`
    seconds: float  # that executing took so far, or reading, in this process

    def trace(self, number: int) -> Trace:
        """A whole launch."""
        raise NotImplementedError

    def accesses(self, number: int) -> Trace:
        """A whole launch that nobody asks for again: it need not be held."""
        return self.trace(number)

    def in_order(self) -> Iterator[Trace]:
        """Every launch; none is held here once the next is asked for, unless all of them are."""
        raise NotImplementedError


@dataclass(frozen=True)
class Execution(Traces):
    """What a target did: one trace a launch, and its output buffers compared with what they should hold."""

    traces: tuple[Trace, ...]
    outputs: tuple[OutputCheck, ...] = ()
    printed: str = ""
    seconds: float = 0.0

    def trace(self, number: int) -> Trace:
        return self.traces[number]

    def in_order(self) -> Iterator[Trace]:
        return iter(self.traces)


Turns = Callable[[int], "Interleaving | None"]  # how the thread blocks of a launch, by its number, take turns


def in_block_order(number: int) -> Interleaving | None:
    """One after the other: `Turns` where no GPU is known."""
    return None


def is_ordered(launch: Launch) -> bool:
    """Can its outcome depend on the order of its thread blocks?"""
    return launch.thread_blocks > 1 and bool(launch.program.order_points)


_said: set[tuple[str, str, str]] = set()  # kernels of which it was


def say_block_order(launch: Launch) -> None:
    """Tell the user, once a kernel, what follows from thread blocks that run one after the other, if anything does."""
    program = launch.program
    key = (program.path, program.digest, program.name)
    if is_ordered(launch) and key not in _said:
        _said.add(key)
        first = program.order_points[0]
        note(
            f"abstim: kernel '{program.name}', line {first.line}: what '{first.name}' yields depends on the order of "
            "thread blocks; here they ran one after the other, not as on a GPU; `abstim run` executes them in turns"
        )


def execution_key(
    case: Case, executor: str, instruction_budget: int | None = None, turns: Turns = in_block_order
) -> str:
    """What an execution depends on: programs, launches and how their thread blocks take turns, contents of memory and
    where buffers begin and end, expected outputs, executor, budget, code. Of one that was recorded elsewhere, which has
    no memory and need have no parameters, the traces."""
    parts: list[Any] = [executor] if instruction_budget is None else [executor, instruction_budget]
    for number, launch in enumerate(case.launches):
        program, shape = launch.program, f"{launch.grid}:{launch.block}:{launch.dynamic_shared_bytes}:{launch.cluster}"
        parts += [program.digest, program.name, shape, launch.parameters]
        parts += interleaving.parts() if (interleaving := turns(number)) else ()
    parts += [launch.checksum for launch in case.manifest.launches] if isinstance(case, StoredCase) else ()
    parts += [column for trace in case.traces for column in vars(trace).values()]
    parts += [(region.name, region.address, region.bytes) for region in case.memory.regions]
    parts += case.memory.contents()
    for name, expected in case.expected.items():
        how = f"{expected.values.dtype}:{expected.rtol}:{expected.atol}:{expected.first}:{expected.compared is None}"
        parts += [name, how, expected.values, b"" if expected.compared is None else expected.compared]
    return key(MODULES, *parts)


def load(key: str) -> Execution | None:
    """The execution kept under `key`, if any. A damaged file is deleted and said so on stderr."""

    def decoded(content: bytes) -> Execution:
        *traces, rest = msgspec.msgpack.decode(content)
        outputs = msgspec.convert(rest["outputs"], tuple[OutputCheck, ...])
        return Execution(tuple(map(decode, traces)), outputs, rest["printed"])

    return Kept("traces").load(key, decoded)


def save(key: str, execution: Execution) -> None:
    """Keep an execution, and throw away what has been unused longest if the folder is over its cap."""
    rest = {"outputs": execution.outputs, "printed": execution.printed}
    content = msgspec.msgpack.encode([*map(encode, execution.traces), rest])
    Kept("traces").save(key, content, trace_cache_bytes())


LARGE_THREADS = 1 << 20  # of a launch that takes so long that one wants to see how far it is
LARGE_CHUNK_BYTES = 1 << 24  # of trace: a tenth of a second, or a few


def execute(
    case: Case, executor: Executor | None = None, instruction_budget: int | None = None, progress: Progress = silent,
    turns: Turns = in_block_order,
) -> Execution:  # fmt: skip
    """Run every launch of a case, or take what an earlier process kept of it, in a trace store or in the cache.

    `instruction_budget`: thread instructions a launch after which it counts as endless (default: `default_budget`).
    Executions with another budget are kept apart. `turns`: how thread blocks whose order matters take turns; where they
    do not, the user is told. Raises InputError for a budget where nothing is executed."""
    if instruction_budget is not None and (case.traces or isinstance(case, StoredCase)):
        raise InputError(f"{case.name}: its trace is there, nothing is executed; leave the instruction budget out")
    for number, launch in enumerate(case.launches):
        if case.traces or isinstance(case, StoredCase) or turns(number) is None:
            say_block_order(launch)
    if case.traces:
        return _checked(case, Execution(case.traces))
    started = perf_counter()
    if isinstance(case, StoredCase):
        traces = list[Trace]()
        for number in range(len(case.launches)):
            progress(f"read {case.name}", number, len(case.launches))
            traces.append(case.trace(number))
        stored = Execution(tuple(traces), case.manifest.outputs, case.manifest.printed)
        return replace(_checked(case, stored), seconds=perf_counter() - started)
    key = execution_key(case, name_of(executor), instruction_budget, turns)
    execution = kept_execution(case, key)
    if execution is None:
        execution = execute_case(case, executor or chosen_executor(), instruction_budget, progress, turns)
        save(key, execution)
    return replace(execution, seconds=perf_counter() - started)


def kept_execution(case: Case, key: str) -> Execution | None:
    """What is kept under a case's key, if anything; a file that is whole and holds something else is said so."""
    found = load(key)
    try:
        return found and _checked(case, found)
    except InputError as error:
        note(f"cache: {error}; executing again")
        return None


def _checked(case: Case, execution: Execution) -> Execution:
    """An execution that comes from files. Raises InputError for a trace that its launch cannot have made."""
    check_traces(case, execution.traces)
    return execution


class How(TypedDict, total=False):
    """How a target is executed."""

    executor: Executor | None  # None: `chosen_executor`
    instruction_budget: int | None  # of thread instructions, after which a launch counts as endless; `default_budget`
    progress: Progress  # (what, done, total): told how far it is


def execute_in_turn(case: Case, turns: Turns = in_block_order, **how: Unpack[How]) -> Execution | Streaming:
    """`execute`, but of a StreamedCase each launch when it is its turn."""
    if isinstance(case, StreamedCase):
        return Streaming(case, turns, **how)
    return execute(case, turns=turns, **how)


@dataclass(eq=False)
class Streaming(Traces):
    """Executes the launches of a StreamedCase when it is their turn, as `How` says, and holds none of their traces."""

    case: Case
    turns: Turns
    executor: Executor | None = None
    instruction_budget: int | None = None
    progress: Progress = silent
    memory: Memory | None = None
    seconds: float = 0.0

    @property
    def printed(self) -> str:  # type: ignore[override]
        """As the kernels are executed, more."""
        return "" if self.memory is None else self.memory.printed.text()

    def trace(self, number: int) -> Trace:
        """Raises InputError: a launch reads what those before it wrote."""
        raise InputError(f"{self.case.name} is executed launch by launch; launch {number} cannot be had by itself")

    def in_order(self) -> Iterator[Trace]:
        executor = self.executor or chosen_executor()
        self.memory, count = self.case.memory.copy(), len(self.case.launches)
        for number, launch in enumerate(self.case.launches):
            started = perf_counter()
            budget, turns = self.instruction_budget or default_budget(launch), self.turns(number)
            if turns is None:
                say_block_order(launch)
            trace = execute_launch(executor, launch, self.memory, budget, interleaving=turns)
            self.seconds += perf_counter() - started
            self.progress(f"run {self.case.name}", number, count)
            yield trace


def default_budget(launch: Launch) -> int:
    """Thread instructions, so that an endless loop of few threads ends in minutes: 2^26 a thread, from 2^30 to 2^38,
    or 2^18 a thread."""
    threads = launch.thread_blocks * launch.threads_per_block
    return max(1 << 30, min(threads << 26, 1 << 38), threads << 18)


def execute_case(
    case: Case, executor: Executor, instruction_budget: int | None = None, progress: Progress = silent,
    turns: Turns = in_block_order,
) -> Execution:  # fmt: skip
    """Run every launch of a case, in order, on a copy of its memory, and compare its outputs."""
    memory, told, traces = case.to_execute_on(), _telling(f"execute {case.name}", case, progress), []
    for number, launch in enumerate(case.launches):
        how: dict[str, Any] = {"instruction_budget": instruction_budget or default_budget(launch)}
        how["interleaving"] = turns(number)
        with naming_source(launch.program):
            if launch.thread_blocks * launch.threads_per_block < LARGE_THREADS:
                chunks = list(told([executor.run(launch, memory, **how)]))
            else:
                chunks = list(told(executor.stream(launch, memory, chunk_bytes=LARGE_CHUNK_BYTES, **how)))
        traces.append(chunks[0] if len(chunks) == 1 else concatenate(chunks, launch.warps_per_block))
    return Execution(tuple(traces), _checked_outputs(case, memory), memory.printed.text())


def _telling(what: str, case: Case, progress: Progress) -> Callable[[Iterable[Trace]], Iterator[Trace]]:
    """Passes the traces of a case's launches on, and tells how many thread blocks of all have run."""
    done, total = 0, sum(launch.thread_blocks for launch in case.launches)
    progress(what, done, total)

    def told(chunks: Iterable[Trace]) -> Iterator[Trace]:
        nonlocal done
        for trace in chunks:
            yield trace
            done += len(trace.thread_blocks)
            progress(what, done, total)

    return told


def write_store(
    case: Case, folder: Path, executor: Executor, instruction_budget: int | None = None, overwrite: bool = False,
    progress: Progress = silent,
) -> Manifest:  # fmt: skip
    """Run every launch of a case and write its trace to a store in `folder`, a chunk at a time.

    Raises InputError if the folder cannot be used (see `StoreWriter`) and for whatever executing raises."""
    memory, told = case.to_execute_on(), _telling(f"trace {case.name}", case, progress)
    writer = StoreWriter(folder, case.module, overwrite)
    for launch in case.launches:
        say_block_order(launch)
        chunks = executor.stream(launch, memory, instruction_budget=instruction_budget or default_budget(launch))
        with naming_source(launch.program):
            writer.launch(launch, case.registers(launch), told(chunks))
    return writer.finish(case.name, _checked_outputs(case, memory), memory.printed.text())


def _checked_outputs(case: Case, memory: Memory) -> tuple[OutputCheck, ...]:
    wrong = {m.buffer: {"mismatches": m.elements, "message": str(m)} for m in case.compare(memory)}
    fine = {"mismatches": 0}
    return tuple(
        OutputCheck(buffer=name, elements=expected.count, **wrong.get(name, fine))
        for name, expected in case.expected.items()
    )
