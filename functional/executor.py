"""The seam behind which kernels are executed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from functional.launch import Launch
from functional.memory import Memory
from functional.trace import Trace

DEFAULT_INSTRUCTION_BUDGET = 1 << 34  # thread instructions a launch


class Executor(Protocol):
    """Executes launches functionally. Every executor gives the same memory and the same trace."""

    def run(
        self,
        launch: Launch,
        memory: Memory,
        thread_blocks: Sequence[int] | None = None,
        instruction_budget: int = DEFAULT_INSTRUCTION_BUDGET,
    ) -> Trace:
        """Execute `thread_blocks` (linear ids, all if None) of a launch on `memory`, which changes.

        Raises PtxError for an instruction that is not supported, before anything runs, and ExecutionError for an access
        out of bounds or misaligned, a deadlock at a barrier, a trap, or more thread instructions than
        `instruction_budget`.
        """
        ...


def default_executor() -> Executor:
    """The executor that everything uses unless told otherwise."""
    from functional.llvm_executor import LlvmExecutor

    return LlvmExecutor()
