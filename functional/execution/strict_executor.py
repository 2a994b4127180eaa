"""The NumPy executor with eyes: a launch ends with an error where it does what no GPU promises."""

from __future__ import annotations

from functional.launches.launch import Launch
from functional.launches.memory import Memory
from functional.numpy_executor import NumpyExecutor
from functional.numpy_executor.sanitizer import Sanitizer


class StrictExecutor(NumpyExecutor):
    """Memory and traces of the other executors, ExecutionError for uninitialised shared and local memory and for thread
    blocks that race. It runs one thread: the same answer everywhere."""

    def watch(self, launch: Launch, memory: Memory) -> Sanitizer:
        """What looks at every access."""
        return Sanitizer(launch, memory)
