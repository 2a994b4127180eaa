"""Global memory as it was before a launch, so that the launch can be run again: stores keep the pages they write to.

The table of pages holds 0 for a page that is as it was, -1 while one thread copies it, else one more than the number of
its copy."""

from __future__ import annotations

import numpy as np

from functional.arrays import UInt8
from functional.jit.native import I32, I64, Flags, LanePointers, Lanes32, Lanes64, Pointer, inlined, op, routine
from functional.launches.memory import GLOBAL_BASE, Memory
from functional.llvm_executor.context_layout import MOST_KEPT_BYTES, Context

PAGE_SHIFT = 12
PAGE_BYTES = 1 << PAGE_SHIFT


@routine
def keep_pages(ctx: Context, first: I64, last: I64) -> None:
    """Pages by their numbers, each copied by the thread that claims it; others wait until it is."""
    page = first
    while True:
        cell = ctx.pages + page * 4
        state = op.acquire(I32, cell)
        if state == 0 and op.claim(cell, I32(0), I32(-1)):
            number = op.next(ctx.saved_count)
            original = Pointer(ctx.arena + (page << PAGE_SHIFT))
            op.copy(ctx.saved + (I64(number) << PAGE_SHIFT), original, PAGE_BYTES)
            op.release(cell, number + 1)
        elif (state == 0) | (state == -1):
            continue
        page += 1
        if page > last:
            return


@inlined
def keep_range(ctx: Context, first: I64, stop: I64) -> None:
    """The bytes `first` to `stop` - 1, no more than a page."""
    a, b = first >> PAGE_SHIFT, stop - 1 >> PAGE_SHIFT
    least = op.smin(op.acquire(I32, ctx.pages + a * 4), op.acquire(I32, ctx.pages + b * 4))
    if op.sle(least, 0):
        keep_pages(ctx, a, b)


@routine
def keep_lanes(ctx: Context, address: Lanes64, mask: I32) -> None:
    """Aligned words, each inside a region and on one page."""
    pages = address >> PAGE_SHIFT
    cells = op.gather(Lanes32, LanePointers(ctx.pages + pages * 4), Flags(mask))
    rest = I32(op.slt(cells, 1)) & mask
    if rest == 0:
        return
    array = op.room(Lanes64)
    array[Lanes64, 0] = pages
    while True:
        page = array[I64, op.cttz(rest)]
        rest &= rest - 1
        keep_pages(ctx, page, page)
        if rest == 0:
            break


@inlined
def keep_span(ctx: Context, first: I64, stop: I64, address: Lanes64, mask: I32) -> None:
    """The same bytes, or if they are further apart the words of the lanes."""
    if stop - first <= PAGE_BYTES:
        keep_range(ctx, first, stop)
    else:
        keep_lanes(ctx, address, mask)


class Undo:
    """Copies of the pages that a launch writes to, each made before the first write; buffers outlive the launch."""

    def __init__(self) -> None:
        self._pages, self._saved = np.zeros(0, np.int32), np.empty((0, PAGE_BYTES), np.uint8)
        self._count = np.zeros(1, np.int32)

    def trim(self) -> None:
        """Let go of copies that are too large to hold on to."""
        if int(self._count[0]) * PAGE_BYTES > MOST_KEPT_BYTES:
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
        pages = self._pages.ctypes.data - GLOBAL_BASE // PAGE_BYTES * self._pages.itemsize
        return {"pages": pages, "saved": self._saved.ctypes.data, "saved_count": self._count.ctypes.data}

    def restore(self, memory: Memory) -> None:
        """Undo every write since `begin`."""
        written = self._written()
        _pages(memory)[written] = self._saved[self._pages[written] - 1]

    def written(self, memory: Memory) -> UInt8[np.ndarray, "page byte"]:
        """The pages that have been written since `begin`, as they are now."""
        return _pages(memory)[self._written()]

    def unwritten(self, pages: np.ndarray) -> np.ndarray:
        """Those of some pages, by their numbers in the arena, that are as they were."""
        return pages[self._pages[pages] == 0]

    def _written(self) -> np.ndarray:
        return np.flatnonzero(self._pages)  # never the last, incomplete page: it belongs to a red zone


def _pages(memory: Memory) -> np.ndarray:
    whole = len(memory.arena) // PAGE_BYTES
    return memory.arena[: whole * PAGE_BYTES].reshape(whole, PAGE_BYTES)
