"""The seam behind which kernels are executed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from functional.arrays import Int64
from functional.launches.launch import Launch, ThreadBlocks, checked_blocks
from functional.launches.memory import Memory
from functional.programs.program import Program
from functional.traces.trace import Trace

PACE = 1 << 10  # of a place that takes as long as others do


@dataclass(frozen=True)
class Interleaving:
    """Of one launch on a GPU that holds `resident_blocks` at the same time.

    Every warp has a time, that of its thread block's entry plus `block_cycles` of the basic blocks that it has run; the
    warp whose time comes first goes first. Blocks enter `dispatch_cycles` apart at least. `paces`: in 1024ths, what a
    place for a resident block takes, in relation to others (an SM may prefer older warps); none: all the same."""

    resident_blocks: int
    block_cycles: Int64[np.ndarray, " basic_block"]
    dispatch_cycles: float = 0.0
    paces: Int64[np.ndarray, " place"] = field(default_factory=lambda: np.zeros(0, np.int64))

    def parts(self) -> tuple[float | np.ndarray, ...]:
        """What the key of a kept execution holds of it."""
        return self.resident_blocks, self.block_cycles, self.dispatch_cycles, self.paces


DEFAULT_INSTRUCTION_BUDGET = 1 << 34  # thread instructions a launch
CHUNK_BYTES = 1 << 22  # of trace in a chunk of a stream, about


@dataclass(frozen=True)
class Request:
    """Thread blocks of a launch to be executed. `chunk_bytes`: of `Executor.stream`. `interleaving`: how they take
    turns; None: one runs after the other."""

    launch: Launch
    memory: Memory
    thread_blocks: Int64[np.ndarray, " tb"]
    instruction_budget: int
    chunk_bytes: int = CHUNK_BYTES
    interleaving: Interleaving | None = None


class Executor(Protocol):
    """Executes launches functionally. Every executor gives the same memory and the same trace."""

    def whole(self, request: Request) -> Trace:
        """What `run` does."""

    def chunked(self, request: Request) -> Iterator[Trace]:
        """What `stream` does."""

    def prepare(self, program: Program) -> object:
        """Make what a launch of the program needs, and keep it. Raises PtxError if it is not supported."""
        return None

    def run(
        self, launch: Launch, memory: Memory, thread_blocks: ThreadBlocks | None = None,
        instruction_budget: int = DEFAULT_INSTRUCTION_BUDGET, interleaving: Interleaving | None = None,
    ) -> Trace:  # fmt: skip
        """Execute `thread_blocks` (linear ids in any order, all if None) of a launch on `memory`, which changes.

        With an `interleaving`, several are resident and take turns (`Interleaving`); else one runs
        after the other. If some are left out, memory afterwards holds only the writes of those that ran, and a block
        that reads what another one writes finds what the blocks before it in the list have left.
        Raises PtxError for an instruction that is not supported, before anything runs, and ExecutionError for an access
        out of bounds or misaligned, a deadlock, a trap, or more thread instructions than
        `instruction_budget`; InputError for thread blocks outside the grid, or some of a cluster."""
        blocks = checked_blocks(launch, thread_blocks)
        return self.whole(Request(launch, memory, blocks, instruction_budget, interleaving=interleaving))

    def stream(
        self, launch: Launch, memory: Memory, thread_blocks: ThreadBlocks | None = None,
        instruction_budget: int = DEFAULT_INSTRUCTION_BUDGET, chunk_bytes: int = CHUNK_BYTES,
        interleaving: Interleaving | None = None,
    ) -> Iterator[Trace]:  # fmt: skip
        """What `run` does, as traces of successive thread blocks: their concatenation is the trace that `run` gives.

        A trace ends with the thread block that makes its streams `chunk_bytes` long, and no more than some of them are
        held at a time. `memory` belongs to the stream until it is exhausted or closed: blocks run ahead of what has
        been handed out. So an error may come before the traces of blocks that ran well."""
        blocks = checked_blocks(launch, thread_blocks)
        return self.chunked(Request(launch, memory, blocks, instruction_budget, chunk_bytes, interleaving))
