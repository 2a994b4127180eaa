"""The executors to choose from: the default one, and one with eyes, which refuses what no GPU promises."""

from functools import cache

from functional.llvm_executor import LlvmExecutor
from functional.llvm_executor.pieces import Care
from functional.steps.sanitizer import Sanitizer


@cache
def default_executor() -> LlvmExecutor:
    """One a process: it keeps machine code and buffers."""
    return LlvmExecutor()


class StrictExecutor(LlvmExecutor):
    """Memory and traces of the default one, ExecutionError for uninitialised shared and local memory and for thread
    blocks that race. It runs one thread: the same answer everywhere."""

    def __init__(self, threads: int | None = None) -> None:
        super().__init__(threads, Care.FAULTS, lambda job: Sanitizer(job.launch, job.memory))
