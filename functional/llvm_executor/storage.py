"""Bytes that machine code reads and writes: with some room around them, or, to find faults, between guard pages."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

GUARD = "ABSTIM_GUARD_PAGES"  # an environment variable: every storage lies between pages that nobody may touch
_NOT_AT_ALL = 0  # PROT_NONE
PAD_BYTES = 512  # around every storage: vector loads reach beyond the lanes that are active


class Storage(NamedTuple):
    """Zeroed bytes with room around them; `address` is that of the first, a multiple of 64."""

    data: np.ndarray
    address: int

    @classmethod
    def of(cls, size_bytes: int) -> Storage:
        """Room for `size_bytes`."""
        if guarded():
            return cls._between_guards(size_bytes)
        data = np.zeros(size_bytes + 2 * PAD_BYTES + 64, np.uint8)
        start = -(-(data.ctypes.data + PAD_BYTES) // 64) * 64 - data.ctypes.data
        return cls(data, data.ctypes.data + start)

    @classmethod
    def _between_guards(cls, size_bytes: int) -> Storage:
        """The last byte, and PAD_BYTES, lie as near to the page behind as 64 allows."""
        page = mmap.PAGESIZE
        inside = -(-(size_bytes + 2 * PAD_BYTES + 64) // page) * page
        data = np.frombuffer(mmap.mmap(-1, inside + 2 * page), np.uint8)
        first = data.ctypes.data
        for guard in (first, first + page + inside):
            if ctypes.CDLL(None, use_errno=True).mprotect(ctypes.c_void_p(guard), page, _NOT_AT_ALL):
                raise OSError(ctypes.get_errno(), "mprotect")
        return cls(data, first + page + (inside - PAD_BYTES - size_bytes) // 64 * 64)

    def view(self, size_bytes: int) -> np.ndarray:
        """The first bytes."""
        start = self.address - self.data.ctypes.data
        return self.data[start : start + size_bytes]


def guarded() -> bool:
    """Is it asked for?"""
    return bool(os.environ.get(GUARD))


class LaunchStorages:
    """Storages of one launch after the other, in one allocation: fresh pages cost as much as the work."""

    def __init__(self) -> None:
        self._all = Storage.of(1 << 16)

    def of(self, sizes_bytes: Sequence[int]) -> list[Storage]:
        """One of each size; what an earlier launch left is still in them."""
        if guarded():
            return [Storage.of(size) for size in sizes_bytes]
        steps = [-(-size // 64) * 64 + PAD_BYTES for size in sizes_bytes]
        if len(self._all.data) < sum(steps) + 2 * PAD_BYTES + 64:
            self._all = Storage.of(sum(steps))
        begins = [sum(steps[:i]) for i in range(len(steps))]
        return [Storage(self._all.data, self._all.address + begin) for begin in begins]
