"""What happens to a launch of a running program: executed always; timed, and written to a store, if it is chosen.

What is not timed is executed as a stream, of which no more than some chunks are held.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING

from abstim.application.launch_stores import LaunchStores
from abstim.application.program_case import ProgramCase
from abstim.application.timed_launches import LaunchTimer, Selection, Timed
from abstim.target.execution import default_budget

if TYPE_CHECKING:
    from functional.executor import Executor
    from functional.launch import Launch
    from functional.memory import Memory
    from functional.trace import Trace


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

    def launch(self, launch: Launch, memory: Memory) -> Future[float]:
        """Execute; the future has the seconds on the first GPU, 0 for a launch that is left out. Raises what the
        executor raises."""
        budget = self.instruction_budget or default_budget(launch)
        number, self.count = self.count, self.count + 1
        chosen = self.selection.holds(number, launch.program.name)
        if chosen and self.timer is not None:
            trace = self.executor.run(launch, memory, instruction_budget=budget)
            self._keep(launch, [trace])
            return self.timer.time(number, launch, trace, self.told)
        chunks = self.executor.stream(launch, memory, instruction_budget=budget)
        if chosen and self.stores is not None:
            self._keep(launch, chunks)
        deque(chunks, maxlen=0)
        return _no_time()

    def _keep(self, launch: Launch, chunks: Iterable[Trace]) -> None:
        if self.stores is not None:
            self.stores.add(launch, self.case.registers(launch), chunks)


def _no_time() -> Future[float]:
    nothing: Future[float] = Future()
    nothing.set_result(0.0)
    return nothing
