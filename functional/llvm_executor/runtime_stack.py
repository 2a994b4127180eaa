"""The reconvergence stack of a warp, the same machine as steps.stack; calls and jump tables on it.

What moves lanes yields the block to run next, -1 where no lane is left."""

from __future__ import annotations

from functional.jit.native import I32, I64, Pointer, inlined, op, routine
from functional.llvm_executor.context_layout import ENTRY_BYTES, Context, Entry, Frame
from functional.steps.stack import DONE


@inlined
def entry_of(ctx: Context, frame: Frame, number: I32) -> Entry:
    """A saved entry."""
    return Entry(frame + (ctx.frame_bytes - I64(number + 1) * ENTRY_BYTES))


@inlined
def set_top(frame: Frame, block: I32, meet: I32, mask: I32) -> None:
    """What runs, until where, in which lanes."""
    frame.block, frame.meet, frame.mask = block, meet, mask


@routine
def settle(ctx: Context, frame: Frame) -> I32:
    """Drop entries that reached their reconvergence block or have no lane left."""
    while (frame.mask == 0) | (frame.block == frame.meet):
        depth = frame.depth
        if depth == 0:
            return -1
        entry = entry_of(ctx, frame, depth - 1)
        frame.depth = depth - 1
        set_top(frame, entry.block, entry.meet, entry.mask)
        frame.base, frame.level = entry.base, entry.level
    return frame.block


@routine
def save(ctx: Context, frame: Frame) -> None:
    """Save the top. There is room (`Compiled`)."""
    depth = frame.depth
    entry = entry_of(ctx, frame, depth)
    entry.block, entry.meet, entry.mask = frame.block, frame.meet, frame.mask
    entry.base, entry.level = frame.base, frame.level
    frame.depth = depth + 1


@routine
def diverge(ctx: Context, frame: Frame, target: I32, taken: I32, after: I32, meeting: I32) -> I32:
    """Lanes `taken` go to block `target`, the others to `after`; both are not empty."""
    others, free = frame.mask & ~taken, frame.meet == meeting  # free: nothing but to wait is left for the top
    frame.block = meeting
    if after != meeting:
        if not free:
            save(ctx, frame)
        set_top(frame, after, meeting, others)
        free = False
    if target != meeting:
        if not free:
            save(ctx, frame)
        set_top(frame, target, meeting, taken)
    return settle(ctx, frame)


@routine
def leave(ctx: Context, frame: Frame, lanes: I32, after: I32, lowest: I32) -> I32:
    """Lanes leave the top and the saved entries from `lowest` on; the others go to block `after`."""
    frame.block, frame.mask = after, frame.mask & ~lanes
    for number in range(lowest, frame.depth):
        entry = entry_of(ctx, frame, number)
        entry.mask = entry.mask & ~lanes
    return settle(ctx, frame)


@inlined
def begin_function(ctx: Context, frame: Frame, first: I32, lanes: I32) -> None:
    """Lanes run the function at block `first`; what the top holds goes on when they are back."""
    save(ctx, frame)
    set_top(frame, first, -1, lanes)
    frame.base, frame.level = frame.depth, frame.level + 1


@routine
def enter(ctx: Context, frame: Frame, lanes: I32, first: I32, after: I32) -> I32:
    """Lanes `lanes` run the function at block `first`; all active lanes go on at `after`."""
    frame.block = after
    if lanes != 0:
        begin_function(ctx, frame, first, lanes)
    return settle(ctx, frame)


@routine
def fork(ctx: Context, frame: Frame, paths: Pointer, count: I32, meeting: I32) -> I32:
    """The active lanes split into `count` paths {block, lanes}, some of them empty; the first one runs first."""
    ways, only = I32(0), I32(-1)
    for number in range(count):
        some = paths[I32, number * 2 + 1] != 0
        ways, only = ways + I32(some), op.where(some, paths[I32, number * 2], only)
    if ways <= 1:
        frame.block = only
        return settle(ctx, frame)
    left, free = count, frame.meet == meeting
    frame.block = meeting
    while left != 0:
        left -= 1
        block, lanes = paths[I32, left * 2], paths[I32, left * 2 + 1]
        if lanes != 0 and block != meeting:
            if not free:
                save(ctx, frame)
            set_top(frame, block, meeting, lanes)
            free = False
    return settle(ctx, frame)


@inlined
def row_of(ctx: Context, rows: Pointer, number: I64) -> Frame:
    """The frame of a warp of a list, by its row."""
    return Frame(ctx.slot_frames + rows[I64, number] * ctx.frame_bytes)


@inlined
def end_if(frame: Frame, block: I32) -> None:
    """A warp is done if no block is left to run."""
    if block == -1:
        frame.block = DONE


@routine
def settle_rows(ctx: Context, count: I64, rows: Pointer) -> I32:
    """`settle`, of warps."""
    for number in range(count):
        frame = row_of(ctx, rows, number)
        end_if(frame, settle(ctx, frame))
    return 0


@routine
def fork_rows(ctx: Context, count: I64, rows: Pointer, paths: Pointer, ways: I64, meeting: I64) -> I32:
    """`fork`, of warps."""
    for number in range(count):
        frame = row_of(ctx, rows, number)
        end_if(frame, fork(ctx, frame, paths + number * ways * 8, I32(ways), I32(meeting)))
    return 0


@routine
def leave_rows(ctx: Context, count: I64, rows: Pointer, lanes: Pointer, after: I64, whole: I64) -> I32:
    """`leave`, of warps: threads that end, or return."""
    for number in range(count):
        frame = row_of(ctx, rows, number)
        lowest = op.where(whole != 0, I32(0), frame.base)
        end_if(frame, leave(ctx, frame, I32(lanes[I64, number]), I32(after), lowest))
    return 0


@routine
def call_rows(ctx: Context, count: I64, rows: Pointer, paths: Pointer, ways: I64, after: I64) -> I32:
    """Lanes run functions by paths {block, lanes}, the last first; each returns to an entry that goes at once."""
    for number in range(count):
        frame = row_of(ctx, rows, number)
        own, level = paths + number * ways * 8, frame.level
        frame.block = I32(after)
        for way in range(ways):
            lanes = own[I32, way * 2 + 1]
            if lanes != 0:
                save(ctx, frame)
                set_top(frame, I32(after), I32(after), lanes)
                frame.level = level
                begin_function(ctx, frame, own[I32, way * 2], lanes)
        end_if(frame, settle(ctx, frame))
    return 0
