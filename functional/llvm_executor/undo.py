"""Global memory as it was before a launch, so that the launch can be run again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from functional.launches.memory import GLOBAL_BASE, Memory
from functional.llvm_executor.runtime_undo import PAGE_BYTES
from functional.llvm_executor.streams import MOST_KEPT_BYTES

if TYPE_CHECKING:
    from jaxtyping import UInt8


class Undo:
    """Copies of the pages that a launch writes to, each made by the machine code before the first write to it.

    Its buffers outlive the launch, for the next one.
    """

    def __init__(self) -> None:
        self._pages, self._saved = np.zeros(0, np.int32), np.empty((0, PAGE_BYTES), np.uint8)
        self._count = np.zeros(1, np.int32)

    def trim(self) -> None:
        """Let go of copies that are too large to hold on to."""
        if self._count[0] * PAGE_BYTES > MOST_KEPT_BYTES:
            self._pages, self._saved = np.zeros(0, np.int32), np.empty((0, PAGE_BYTES), np.uint8)

    def begin(self, memory: Memory) -> None:
        """Take `memory` for what it is now; its regions must stay the same from now on."""
        pages = -(-len(memory.arena) // PAGE_BYTES)
        self._count[0] = 0
        if pages > len(self._pages):  # memory that is not touched is not taken
            self._pages, self._saved = np.zeros(pages, np.int32), np.empty((pages, PAGE_BYTES), np.uint8)
        else:
            self._pages[:] = 0

    def slots(self) -> dict[str, int]:
        """What the context of a launch holds of it."""
        first = GLOBAL_BASE // PAGE_BYTES * self._pages.itemsize
        return {
            "pages": self._pages.ctypes.data - first, "saved": self._saved.ctypes.data,
            "saved_count": self._count.ctypes.data,
        }  # fmt: skip

    def restore(self, memory: Memory) -> None:
        """Undo every write since `begin`."""
        written = self._written()
        _pages(memory)[written] = self._saved[self._pages[written] - 1]

    def written(self, memory: Memory) -> UInt8[np.ndarray, "page byte"]:
        """The pages that have been written since `begin`, as they are now."""
        return _pages(memory)[self._written()]

    def _written(self) -> np.ndarray:
        return np.flatnonzero(self._pages)  # never the last, incomplete page: it belongs to a red zone


def _pages(memory: Memory) -> np.ndarray:
    whole = len(memory.arena) // PAGE_BYTES
    return memory.arena[: whole * PAGE_BYTES].reshape(whole, PAGE_BYTES)
