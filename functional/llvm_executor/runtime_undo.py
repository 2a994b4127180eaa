"""Stores that keep the pages they write to as they were (see undo.py).

The table of pages holds 0 for a page that is as it was, -1 while one thread copies it, else one more than the number of
its copy.
"""

from __future__ import annotations

from functional.jit.native import I32, I64, Flags, LanePointers, Lanes32, Lanes64, Pointer, inlined, op, routine
from functional.llvm_executor.context_layout import Context

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
