"""The seam behind which kernels are executed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

from functional.launches.launch import Launch
from functional.launches.memory import Memory
from functional.traces.trace import Trace

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Int64

DEFAULT_INSTRUCTION_BUDGET = 1 << 34  # thread instructions a launch
ThreadBlocks: TypeAlias = 'Sequence[int] | Int64[np.ndarray, " tb"]'  # linear ids, x fastest
CHUNK_BYTES = 1 << 22  # of trace in a chunk of a stream, about


class Executor(Protocol):
    """Executes launches functionally. Every executor gives the same memory and the same trace."""

    def run(
        self,
        launch: Launch,
        memory: Memory,
        thread_blocks: ThreadBlocks | None = None,
        instruction_budget: int = DEFAULT_INSTRUCTION_BUDGET,
    ) -> Trace:
        """Execute `thread_blocks` (linear ids in any order, all if None) of a launch on `memory`, which changes.

        If some are left out, memory afterwards holds only the writes of those that ran, and a block that reads what
        another one writes finds what the blocks before it in the list have left.
        Raises PtxError for an instruction that is not supported, before anything runs, and ExecutionError for an access
        out of bounds or misaligned, a deadlock at a barrier, a trap, or more thread instructions than
        `instruction_budget`.
        """
        ...

    def stream(
        self,
        launch: Launch,
        memory: Memory,
        thread_blocks: ThreadBlocks | None = None,
        instruction_budget: int = DEFAULT_INSTRUCTION_BUDGET,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> Iterator[Trace]:
        """What `run` does, as traces of successive thread blocks: their concatenation is the trace that `run` gives.

        A trace ends with the thread block that makes its streams `chunk_bytes` long, and no more than some of them are
        held at a time. `memory` belongs to the stream until it is exhausted or closed: blocks run ahead of what has
        been handed out. So an error may come before the traces of blocks that ran well.
        """
        ...
