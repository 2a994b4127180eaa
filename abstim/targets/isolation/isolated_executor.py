"""An executor whose kernels run in a process of their own, which can do nothing but compute.

The process is forked: it has programs and their machine code in memory already, shares device memory, and gives up
privileges, files and system calls (`restrict`) before a kernel's first instruction. It lives as long as the launches
that come are of programs and on memory that it knows. What comes back is a trace, held against its launch, and device
memory, which is data. Compiling stays outside, so that only the owner's process writes machine code to the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Lock

from abstim.targets.check_trace import BlockCounts, block_counts, problem
from abstim.targets.isolation.isolated_process import Done, Failed, Inner, IsolatedProcess, Request
from abstim.targets.isolation.restrict import refuse_where_impossible
from functional.errors import ExecutionError
from functional.execution.executor import CHUNK_BYTES, DEFAULT_INSTRUCTION_BUDGET, ThreadBlocks
from functional.launches.launch import Launch
from functional.launches.memory import Memory
from functional.numpy_executor.run import checked_blocks
from functional.programs.program import Program
from functional.terminal import note
from functional.traces.trace import Trace

_KEPT_PROGRAMS = 64


class IsolatedExecutor:
    """`inner`, in a process without privileges; here those of programs that are `trusted`.

    Raises InputError where this system cannot isolate a process.
    """

    def __init__(self, inner: Inner, trusted: Callable[[Program], bool] = lambda program: False) -> None:
        refuse_where_impossible()
        self.inner, self._trusted = inner, trusted
        self._lock, self._idle = Lock(), list[IsolatedProcess]()
        self._programs: dict[int, tuple[Program, BlockCounts]] = {}  # by id

    def run(
        self,
        launch: Launch,
        memory: Memory,
        thread_blocks: ThreadBlocks | None = None,
        instruction_budget: int = DEFAULT_INSTRUCTION_BUDGET,
    ) -> Trace:
        """See `functional.execution.executor.Executor`. Raises ExecutionError, too, where the process crashes."""
        blocks = checked_blocks(launch, thread_blocks)
        if self._trusted(launch.program):
            return self.inner.run(launch, memory, blocks, instruction_budget)
        traces = list(self._traces(Request(launch, memory.unprinted(), blocks, instruction_budget), memory))
        if len(traces) != 1:
            raise Nonsense(launch, f"{len(traces)} traces")
        return traces[0]

    def stream(
        self,
        launch: Launch,
        memory: Memory,
        thread_blocks: ThreadBlocks | None = None,
        instruction_budget: int = DEFAULT_INSTRUCTION_BUDGET,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> Iterator[Trace]:
        """The same."""
        blocks = checked_blocks(launch, thread_blocks)
        if self._trusted(launch.program):
            return self.inner.stream(launch, memory, blocks, instruction_budget, chunk_bytes)
        return self._traces(Request(launch, memory.unprinted(), blocks, instruction_budget, chunk_bytes), memory)

    def _traces(self, request: Request, memory: Memory) -> Iterator[Trace]:
        """What the process answers, looked at; what else it leaves is put where it belongs."""
        launch, done = request.launch, 0
        process, counts = self._process_for(request)
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
        _leave(message, memory)
        if done != len(request.thread_blocks):
            raise Nonsense(launch, f"{done} of {len(request.thread_blocks)} thread blocks")

    def _process_for(self, request: Request) -> tuple[IsolatedProcess, BlockCounts]:
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
        process.ask(request)
        return process, counts

    def _counts(self, program: Program) -> BlockCounts:
        if id(program) not in self._programs:
            while len(self._programs) >= _KEPT_PROGRAMS:
                self._programs.pop(next(iter(self._programs)))
            self._programs[id(program)] = program, block_counts(program)
        return self._programs[id(program)][1]


def _leave(message: Done | Failed, memory: Memory) -> None:
    """Notes and what was printed. Raises the error that the process met."""
    for line in message.notes:
        note(line)
    if isinstance(message, Failed):
        raise message.error()
    memory.printed.add(message.printed)
    memory.printed.dropped_calls += message.dropped[0]
    memory.printed.dropped_bytes += message.dropped[1]


class Nonsense(ExecutionError):
    """What an isolated process says cannot be so."""

    def __init__(self, launch: Launch, what: str) -> None:
        super().__init__(f"kernel '{launch.program.name}': its isolated process tells nonsense ({what}); it is refused")
