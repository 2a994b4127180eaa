"""An executor whose kernels run in a process of their own, which can do nothing but compute.

Nothing of what that process tells is taken for true: lengths have a limit, kinds are a list, and a trace is held
against its launch before anybody uses it."""

import gc
import io
import os
import pickle
import select
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from threading import Lock
from typing import IO, Annotated, Any

import msgspec
import numpy as np

from abstim.targets.check_trace import BlockCounts, block_counts, problem
from abstim.targets.isolation.restrict import refuse_where_impossible, restrict, rules
from functional.errors import ExecutionError, InputError, note, plain
from functional.execution.computer import memory_bytes
from functional.execution.executor import Executor, Request
from functional.keep.folder import may_not_write
from functional.launches.launch import Launch
from functional.launches.memory import Memory, Store
from functional.programs.program import Program
from functional.traces.trace import DTYPES, Trace

Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 48)]
_MOST_HEAD_BYTES = 1 << 24  # texts included
_ERRORS: dict[str, type[Exception]] = {kind.__name__: kind for kind in (InputError, ExecutionError, MemoryError)}


class TraceFollows(msgspec.Struct, tag="trace"):
    """The arrays of a trace follow, in the order of DTYPES: so many elements each."""

    warps_per_block: Count
    lengths: list[Count]


class Done(msgspec.Struct, tag="done"):
    """The end. `printed`: calls of `printf`; `dropped`: calls and bytes without room; `notes`: lines to the user."""

    printed: list[str]
    dropped: tuple[Count, Count]
    notes: list[str]


class Failed(msgspec.Struct, tag="failed"):
    """The end, by an error: of which kind, and what it says."""

    kind: str
    message: str
    notes: list[str]

    def error(self) -> Exception:
        """To be raised again, as one line."""
        message = plain(" ".join(self.message.split()))
        if self.kind in _ERRORS:
            return _ERRORS[self.kind](message)
        return RuntimeError(f"{plain(self.kind)}: {message}")


Message = TraceFollows | Done | Failed
_decoder = msgspec.msgpack.Decoder(Message)


def failure(error: BaseException, notes: list[str]) -> Failed:
    """What is told of an error: the first of its kinds that the other side knows."""
    names = [kind.__name__ for kind in type(error).__mro__]
    kind = next((name for name in names if name in _ERRORS), names[0])
    return Failed(kind, str(error), notes)


def send(file: IO[bytes], message: Message) -> None:
    """Write a message."""
    head = msgspec.msgpack.encode(message)
    file.write(len(head).to_bytes(4, "little") + head)


def send_trace(file: IO[bytes], trace: Trace) -> None:
    """Write a trace."""
    arrays = [np.ascontiguousarray(getattr(trace, name), dtype) for name, dtype in DTYPES.items()]
    send(file, TraceFollows(trace.warps_per_block, list(map(len, arrays))))
    for array in arrays:
        file.write(array.data.cast("B"))


def receive(file: IO[bytes]) -> Trace | Done | Failed:
    """The next message, or the trace that it announces. Raises EOFError where the other side has ended, and ValueError
    for what is no message."""
    length = int.from_bytes(exactly(file, 4), "little")
    if length > _MOST_HEAD_BYTES:
        raise ValueError(f"a message of {length} bytes")
    try:
        message = _decoder.decode(exactly(file, length))
    except msgspec.MsgspecError:  # whose text may hold anything
        raise ValueError("a message of another form") from None
    if not isinstance(message, TraceFollows):
        return message
    sizes = [np.dtype(dtype).itemsize * n for dtype, n in zip(DTYPES.values(), message.lengths, strict=True)]
    if sum(sizes) > memory_bytes():
        raise ValueError("a trace larger than memory")
    pairs = zip(DTYPES.items(), sizes, strict=True)
    arrays = {name: np.frombuffer(exactly(file, size), dtype) for (name, dtype), size in pairs}
    return Trace(warps_per_block=message.warps_per_block, **arrays)


def exactly(file: IO[bytes], count: int) -> bytearray:
    """So many bytes. Raises EOFError where there are fewer."""
    found, at = bytearray(count), 0
    while at < count:
        got = file.readinto(memoryview(found)[at:])  # type: ignore[attr-defined]
        if not got:
            raise EOFError
        at += got
    return found


class IsolatedProcess:
    """A child that knows `programs` and the bytes of `memory`; the rest of a request is sent to it."""

    def __init__(self, inner: Executor, programs: Sequence[Program], memory: Memory) -> None:
        self._known: dict[int, object] = {id(one): one for one in (*programs, memory.store)}
        (asked, ask), (answers, answer) = os.pipe(), os.pipe()
        allowed = rules()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # threads of libraries: the child uses none of those
            self._process = os.fork()
        if not self._process:
            try:
                _live(inner, self._known, _only_files(asked, answer, allowed))
            finally:
                os._exit(0)
        os.close(asked)
        os.close(answer)
        self._ask, self._answers = os.fdopen(ask, "wb"), os.fdopen(answers, "rb")

    def knows(self, request: Request) -> bool:
        """Can it be asked?"""
        return id(request.launch.program) in self._known and id(request.memory.store) in self._known

    def ask(self, request: Request, whole: bool) -> None:
        """Send a request. `whole`: its trace is wanted in one piece."""
        buffer = io.BytesIO()
        _Pickler(buffer, self._known).dump((request, whole))
        try:
            self._ask.write(len(buffer.getvalue()).to_bytes(8, "little") + buffer.getvalue())
            self._ask.flush()
        except BrokenPipeError:
            raise self._ended(request) from None

    def answer(self, request: Request) -> Trace | Done | Failed:
        """The next. Raises ExecutionError if the process has ended without one, or says what is none."""
        try:
            return receive(self._answers)
        except EOFError:
            raise self._ended(request) from None
        except ValueError as error:
            raise Nonsense(request.launch, str(error)) from None

    def end(self) -> None:
        """Kill it, and wait until it is gone."""
        if self._process:
            os.kill(self._process, signal.SIGKILL)
            os.waitpid(self._process, 0)
        self._process = 0
        self._answers.close()
        with suppress(BrokenPipeError):
            self._ask.close()

    def _ended(self, request: Request) -> ExecutionError:
        status = os.waitpid(self._process, 0)[1]
        self._process = 0
        by = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else "its own will"
        return ExecutionError(f"kernel '{request.launch.program.name}': its isolated process ended by {by}")


class _Pickler(pickle.Pickler):
    """Leaves out what both sides have."""

    def __init__(self, file: IO[bytes], known: dict[int, object]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._known = known

    def persistent_id(self, thing: Any) -> int | None:
        return id(thing) if isinstance(thing, Program | Store) and id(thing) in self._known else None


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: IO[bytes], known: dict[int, object]) -> None:
        super().__init__(file)
        self._known = known

    def persistent_load(self, number: int) -> object:
        return self._known[number]


def _live(inner: Executor, known: dict[int, object], files: list[int]) -> None:
    """What the child does: give up what it can, then answer requests until nobody is there to ask."""
    asked, answer, allowed = files
    gc.disable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it, and ends this process
    notes = sys.stderr = io.StringIO()
    sys.stdout = io.StringIO()
    with open(asked, "rb") as requests, open(answer, "wb") as answers:
        try:
            restrict(allowed)
        except OSError as error:
            send(answers, failure(InputError(f"isolation is not possible here: {error.strerror}"), []))
            return
        may_not_write()
        threading.Thread(target=_end_with, args=(asked,), daemon=True).start()
        while True:
            length = int.from_bytes(exactly(requests, 8), "little")
            request, whole = _Unpickler(io.BytesIO(exactly(requests, length)), known).load()
            _answer(request, whole, inner, answers, notes)
            answers.flush()
            notes.seek(0)
            notes.truncate()


def _answer(request: Request, whole: bool, inner: Executor, answers: IO[bytes], notes: io.StringIO) -> None:
    try:
        for trace in [inner.whole(request)] if whole else inner.chunked(request):
            send_trace(answers, trace)
            answers.flush()
        printed = request.memory.printed
        dropped = printed.dropped_calls, printed.dropped_bytes
        send(answers, Done(printed.calls, dropped, notes.getvalue().splitlines()))
    except Exception as error:
        send(answers, failure(error, notes.getvalue().splitlines()))


def _end_with(asked: int) -> None:
    """A thread: ends the process, whatever it is doing, once the other end of a pipe is closed."""
    waiting = select.poll()
    waiting.register(asked, 0)
    waiting.poll()
    os._exit(0)


def _only_files(*kept: int) -> list[int]:
    """Close every file but these, which move; nothing is left to read from or write to the terminal."""
    moved = [os.dup(number) for number in kept]
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    last = 3
    for number in sorted(moved):
        os.closerange(last, number)
        last = number + 1
    os.closerange(last, os.sysconf("SC_OPEN_MAX"))
    return moved


_KEPT_PROGRAMS = 64


class IsolatedExecutor(Executor):
    """`inner`, in a process without privileges; here those of programs that are `trusted`.

    Raises InputError where this system cannot isolate a process."""

    def __init__(self, inner: Executor, trusted: Callable[[Program], bool] = lambda program: False) -> None:
        refuse_where_impossible()
        self.inner, self._trusted = inner, trusted
        self._lock, self._idle = Lock(), list[IsolatedProcess]()
        self._programs: dict[int, tuple[Program, BlockCounts]] = {}  # by id

    def whole(self, request: Request) -> Trace:
        """See `Executor.run`. Raises ExecutionError, too, where the process crashes."""
        if self._trusted(request.launch.program):
            return self.inner.whole(request)
        traces = list(self._traces(request, True))
        if len(traces) != 1:
            raise Nonsense(request.launch, f"{len(traces)} traces")
        return traces[0]

    def chunked(self, request: Request) -> Iterator[Trace]:
        """See `Executor.stream`."""
        trusted = self._trusted(request.launch.program)
        return self.inner.chunked(request) if trusted else self._traces(request, False)

    def _traces(self, given: Request, whole: bool) -> Iterator[Trace]:
        """What the process answers, looked at; what else it leaves is put in place. Raises the error that it met."""
        launch, memory, done = given.launch, given.memory, 0
        request = replace(given, memory=memory.unprinted())
        process, counts = self._process_for(request, whole)
        try:
            while isinstance(message := process.answer(request), Trace):
                expected = request.thread_blocks[done : done + len(message.thread_blocks)]
                if wrong := problem(message, launch, counts, expected):
                    raise Nonsense(launch, wrong)
                done += len(expected)
                yield message
        except BaseException:  # also where nobody wants the rest
            process.end()
            raise
        self._idle.append(process)
        for line in message.notes:
            note(line)
        if isinstance(message, Failed):
            raise message.error()
        memory.printed.add(message.printed)
        memory.printed.dropped_calls += message.dropped[0]
        memory.printed.dropped_bytes += message.dropped[1]
        if done != len(request.thread_blocks):
            raise Nonsense(launch, f"{done} of {len(request.thread_blocks)} thread blocks")

    def _process_for(self, request: Request, whole: bool) -> tuple[IsolatedProcess, BlockCounts]:
        """A process that works on the request, and what to hold its answers against."""
        request.memory.share()
        with self._lock:  # nobody is preparing when a process is made: there, locks would stay closed
            counts = self._counts(request.launch.program)
            process = self._idle.pop() if self._idle else None
            if process and not process.knows(request):
                process.end()
                process = None
            if process is None:
                self.inner.prepare(request.launch.program)
                process = IsolatedProcess(self.inner, [known for known, _ in self._programs.values()], request.memory)
        process.ask(request, whole)
        return process, counts

    def _counts(self, program: Program) -> BlockCounts:
        if id(program) not in self._programs:
            while len(self._programs) >= _KEPT_PROGRAMS:
                self._programs.pop(next(iter(self._programs)))
            self._programs[id(program)] = program, block_counts(program)
        return self._programs[id(program)][1]


class Nonsense(ExecutionError):
    """What an isolated process says cannot be so."""

    def __init__(self, launch: Launch, what: str) -> None:
        super().__init__(f"kernel '{launch.program.name}': its isolated process tells nonsense ({what}); it is refused")
