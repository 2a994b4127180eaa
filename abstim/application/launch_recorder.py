"""What happens to a launch of a running program: executed always, timed and written to a store if it is chosen."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING

from abstim.application.launch_stores import LaunchStores
from abstim.application.timed_launches import LaunchTimer, Selection, Timed
from abstim.target.execution import default_budget

if TYPE_CHECKING:
    from functional.executor import Executor
    from functional.launch import Launch
    from functional.memory import Memory


@dataclass
class LaunchRecorder:
    """Executes launches, in order. `told` hears of each that was timed."""

    executor: Executor
    timer: LaunchTimer
    selection: Selection
    told: Callable[[Timed], None]
    stores: LaunchStores | None = None
    instruction_budget: int | None = None
    count: int = 0  # launches so far
    left_out: int = 0  # of these, not timed

    def launch(self, launch: Launch, memory: Memory) -> Future[float]:
        """Execute; the future has the seconds on the first GPU, 0 for a launch that is left out. Raises what the
        executor raises."""
        budget = self.instruction_budget or default_budget(launch)
        number, self.count = self.count, self.count + 1
        trace = self.executor.run(launch, memory, instruction_budget=budget)
        if self.selection.holds(number, launch.program.name):
            if self.stores is not None:
                self.stores.add(launch, self.timer.case.registers(launch), trace)
            return self.timer.time(number, launch, trace, self.told)
        self.left_out += 1
        nothing: Future[float] = Future()
        nothing.set_result(0.0)
        return nothing
