"""The executors to choose from: the default one, and the NumPy executor with eyes, whose launches end with an error
where they do what no GPU promises.
"""

from __future__ import annotations

from functools import cache

from functional.launches.launch import Launch
from functional.launches.memory import Memory
from functional.llvm_executor import LlvmExecutor
from functional.numpy_executor import NumpyExecutor
from functional.numpy_executor.sanitizer import Sanitizer


@cache
def default_executor() -> LlvmExecutor:
    """One a process: it keeps machine code and buffers."""
    return LlvmExecutor()


class StrictExecutor(NumpyExecutor):
    """Memory and traces of the other executors, ExecutionError for uninitialised shared and local memory and for thread
    blocks that race. It runs one thread: the same answer everywhere."""

    def watch(self, launch: Launch, memory: Memory) -> Sanitizer:
        """What looks at every access."""
        return Sanitizer(launch, memory)
