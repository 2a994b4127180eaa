"""What happens to a launch of a running program: executed, unless it would change nothing; timed, and written to a
store, if it is chosen.

What is not timed is executed as a stream, of which no more than some chunks are held.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from abstim.application.idle_launches import IdleLaunches
from abstim.application.launch_stores import LaunchStores
from abstim.application.program_case import ProgramCase
from abstim.application.timed_launches import LaunchTimer, Selection, Timed, likeness_of
from abstim.targets.execution import default_budget

if TYPE_CHECKING:
    from functional.execution.executor import Executor
    from functional.launches.launch import Launch
    from functional.launches.memory import Memory
    from functional.traces.trace import Trace


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

    def launch(self, launch: Launch, memory: Memory) -> Future[float]:
        """Execute, unless it would change nothing; the future has the seconds on the first GPU, 0 for a launch that is
        left out. Raises what the executor raises."""
        number, self.count = self.count, self.count + 1
        chosen = self.selection.holds(number, launch.program.name)
        is_timed, is_kept = chosen and self.timer is not None, chosen and self.stores is not None
        likeness = None if is_kept else self.idle.likeness(launch, memory)
        trace = None
        if likeness is None or (is_timed and not likeness):
            before = self.idle.before(launch, memory)
            trace, instructions = self._executed(launch, memory, is_timed, is_kept)
            likeness = "" if trace is None else likeness_of(launch, trace)
            self.idle.ended(launch, memory, before, instructions, likeness)
        if not is_timed:
            return _no_time()
        assert self.timer is not None
        return self.timer.time(number, launch, likeness, trace, self.told)

    def _executed(self, launch: Launch, memory: Memory, is_timed: bool, is_kept: bool) -> tuple[Trace | None, int]:
        """The trace, if it is to be timed, and thread instructions."""
        budget = self.instruction_budget or default_budget(launch)
        if is_timed:
            trace = self.executor.run(launch, memory, instruction_budget=budget)
            if is_kept:
                self._keep(launch, [trace])
            return trace, int(trace.thread_instructions.sum())
        counted = _Counted(self.executor.stream(launch, memory, instruction_budget=budget))
        if is_kept:
            self._keep(launch, counted)
        deque(counted, maxlen=0)
        return None, counted.instructions

    def _keep(self, launch: Launch, chunks: Iterable[Trace]) -> None:
        if self.stores is not None:
            self.stores.add(launch, self.case.registers(launch), chunks)


@dataclass
class _Counted:
    """Chunks of a trace as they pass, each held by nobody here."""

    chunks: Iterator[Trace]
    instructions: int = 0

    def __iter__(self) -> Iterator[Trace]:
        for trace in self.chunks:
            self.instructions += int(trace.thread_instructions.sum())
            yield trace


def _no_time() -> Future[float]:
    nothing: Future[float] = Future()
    nothing.set_result(0.0)
    return nothing
