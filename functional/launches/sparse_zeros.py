"""Zeros of which only the pages that are touched take memory, few bytes at a time."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import UInt8

LEAST_BYTES = 1 << 22  # below, NumPy's own does not ask for huge pages


def sparse_zeros(size_bytes: int) -> UInt8[np.ndarray, " byte"]:
    """As np.zeros, which asks for pages of 2 MiB: with 1 MiB between buffers, one byte of each would take all of it.

    Raises MemoryError.
    """
    advice = getattr(mmap, "MADV_NOHUGEPAGE", None)
    if advice is None or size_bytes < LEAST_BYTES:
        return np.zeros(size_bytes, np.uint8)
    try:
        pages = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"{size_bytes} bytes: {error.strerror}") from None
    pages.madvise(advice)
    return np.frombuffer(pages, np.uint8)
