"""Cases whose launches are made, executed and dropped one by one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from functional.execution.executor import Executor, Interleaving
from functional.launches.case import Case
from functional.launches.launch import Launch, Pointer
from functional.launches.memory import Memory
from functional.traces.trace import Trace

KEPT = 64  # launches


@dataclass
class StreamedCase(Case):
    """A case that is executed and timed launch by launch. `launches` may be `LazyLaunches`. Its kernels reach memory
    through their arguments only: a launch sees the buffers its arguments point into."""


class LazyLaunches(Sequence[Launch]):
    """`count` launches, each made when it is asked for; the latest are kept, because many ask for the same."""

    def __init__(self, count: int, make: Callable[[int], Launch]) -> None:
        self._count, self._make = count, lru_cache(KEPT)(make)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: Any) -> Any:
        found = range(self._count)[number]
        return tuple(map(self._make, found)) if isinstance(number, slice) else self._make(found)


def execute_launch(
    executor: Executor, launch: Launch, memory: Memory, budget: int, thread_blocks: Sequence[int] | None = None,
    interleaving: Interleaving | None = None,
) -> Trace:  # fmt: skip
    """Execute a launch of a StreamedCase on `memory`, which changes. An executor may copy the memory it is given, to
    undo a launch that fails: that of this launch alone, not all weights of a network."""
    seen = memory.part(a.buffer for a in launch.arguments if isinstance(a, Pointer))
    return executor.run(launch, seen, thread_blocks, budget, interleaving)
