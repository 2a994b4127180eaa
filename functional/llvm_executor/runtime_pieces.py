"""Thread blocks that are all there, a piece of a basic block at a time (by_piece.py says whose turn it is)."""

from __future__ import annotations

from functional.jit.native import I32, I64, Pointer, inlined, op, routine
from functional.llvm_executor import context_layout as at
from functional.llvm_executor.context_layout import Context
from functional.llvm_executor.runtime_schedule import begin, begin_turn, frame_of, place
from functional.steps.stack import DONE


@inlined
def select_block(ctx: Context, block: I64) -> None:
    """A thread block of the list is the running one."""
    ctx.thread_block, ctx.rank_base = block, ctx.rank_bases[I64, block]
    ctx.frames = ctx.slot_frames + block * (ctx.warps * ctx.frame_bytes)
    ctx.shared = ctx.slot_shared + block * ctx.shared_stride
    ctx.local_base = ctx.slot_local + block * (ctx.warps * ctx.local_bytes)
    place(ctx)


@routine
def begin_blocks(ctx: Context) -> I32:
    """All thread blocks of the list begin."""
    for block in range(ctx.thread_block_stop):
        select_block(ctx, block)
        begin(ctx)
    return at.FINISHED


@routine
def run_piece(ctx: Context, rows: Pointer, count: I64, entry: I64) -> I32:
    """Warps `rows`, counted in the order of their thread blocks, run a piece. Another call goes on after STOPPED."""
    while ctx.piece_row < count:
        if ctx.segment >= ctx.segment_stop:
            return at.STOPPED
        row = rows[I64, ctx.piece_row]
        select_block(ctx, row // ctx.warps)
        warp = row % ctx.warps
        frame = frame_of(ctx, warp)
        begin_turn(ctx, warp, row)
        ctx.turn_stop = ctx.used + 1  # up to where the next basic block begins
        frame.block = I32(entry)
        code = op.call(ctx.kernel, I32, ctx, frame)
        if code == at.FINISHED:
            frame.block = DONE
        elif code == at.STOPPED:
            if ctx.used < ctx.turn_stop:
                return at.STOPPED
        elif code != at.AT_STEP:
            return at.FAULT
        ctx.piece_row = ctx.piece_row + 1
    return at.FINISHED
