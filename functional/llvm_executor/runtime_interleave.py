"""Resident thread blocks in turns: of all warps that can run, the one whose time has come first passes the order point
that it stands before, and runs to its next one.

A slot holds a thread block, and the next one of the list when that has ended. A tournament tree says whose earliest
time is the earliest; of several the first slot."""

from __future__ import annotations

from functional.jit.native import I32, I64, inlined, op, routine
from functional.llvm_executor import context_layout as at
from functional.llvm_executor.context_layout import Context, Slot
from functional.llvm_executor.runtime_schedule import HELD, begin, frame_of, time_of, turn, use_slot

_OVER = (1 << 64) - 1


@inlined
def slot_of(ctx: Context, slot: I64) -> Slot:
    """A row of the table of slots."""
    return Slot(ctx.slots + slot * (8 * at.SLOT_WORDS))


@routine
def select_slot(ctx: Context, slot: I64) -> None:
    """The thread block of a slot is the running one."""
    ctx.slot, ctx.thread_block = slot, slot_of(ctx, slot).thread_block
    use_slot(ctx, slot)


@routine
def set_earliest(ctx: Context, time: I64) -> None:
    """Of the running slot; the winners above it are found anew."""
    slot_of(ctx, ctx.slot).time = time
    node = ctx.leaves + ctx.slot >> 1
    while node != 0:
        one, other = ctx.tree[I64, node * 2], ctx.tree[I64, node * 2 + 1]
        earlier = slot_of(ctx, other).time < slot_of(ctx, one).time
        ctx.tree[I64, node] = op.where(earlier, other, one)
        node = node >> 1


@routine
def on_the_way(ctx: Context, warp: I64) -> I64:
    """How much later than another warp that set out with it this one comes to where they meet: as good as random."""
    number = ctx.slot * ctx.warps + warp
    mixed = (number * 0x9E3779B97F4A7C15) ^ (ctx.turns_of[I64, number] * 0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> 31)) * 0x94D049BB133111EB
    return (mixed >> 32) * ctx.spreads[I64, I64(frame_of(ctx, warp).block)] >> 32


@routine
def find_earliest(ctx: Context) -> None:
    """Of the running slot's warps: which, and when."""
    earliest = I64(_OVER)
    for warp in range(ctx.warps):
        time = time_of(ctx, warp)[I64, 0]
        if time < earliest:
            earliest = time
    set_earliest(ctx, earliest)


@routine
def admit(ctx: Context, slot: I64, time: I64) -> None:
    """The next thread block of the list, if there is one, enters a slot."""
    row, number = slot_of(ctx, slot), ctx.next_block
    ctx.slot = slot
    if number >= ctx.thread_block_stop:
        set_earliest(ctx, _OVER)
        return
    ctx.next_block = number + 1
    entry = op.umax(time, ctx.next_entry)
    ctx.next_entry = entry + ctx.dispatch_ticks
    row.thread_block, row.live = number, ctx.warps
    select_slot(ctx, slot)
    begin(ctx)
    for warp in range(ctx.warps):
        time_of(ctx, warp)[I64, 0] = entry
    find_earliest(ctx)


@routine
def start_interleaved(ctx: Context) -> None:
    """The first thread blocks enter the slots."""
    for slot in range(ctx.resident):
        admit(ctx, slot, 0)


@routine
def next_warp(ctx: Context) -> I32:
    """Select the warp that runs next; WAITING if none can."""
    slot = ctx.tree[I64, 1]
    earliest = slot_of(ctx, slot).time
    if earliest >= HELD:
        return at.WAITING
    select_slot(ctx, slot)
    warp = I64(0)
    while time_of(ctx, warp)[I64, 0] != earliest:
        warp += 1
    late = op.where(frame_of(ctx, warp).state == at.BEFORE_POINT, on_the_way(ctx, warp), I64(0))
    ctx.warp, ctx.now = warp, earliest - late
    return at.RUNNABLE


@routine
def take_turn(ctx: Context) -> I32:
    """The selected warp passes its order point, and runs to the next; what `turn` says. STOPPED without room."""
    if ctx.segment >= ctx.segment_stop:
        return at.STOPPED
    frame = frame_of(ctx, ctx.warp)
    ctx.points_left = I64(frame.state == at.BEFORE_POINT)
    frame.state = at.RUNNABLE
    code = turn(ctx, frame, ctx.warp)
    if (code == at.STOPPED) & (ctx.points_left != 0):
        frame.state = at.BEFORE_POINT
    return code


@routine
def run_block(ctx: Context) -> I32:
    """All warps of the selected thread block run, each to its next order point, a barrier that is not complete, or its
    end. Another call goes on after STOPPED."""
    while True:
        ran = I32(0)
        for warp in range(ctx.warps):
            if frame_of(ctx, warp).state == at.RUNNABLE:
                ctx.warp = warp
                code = take_turn(ctx)
                if code != at.FINISHED:
                    return code
                ran += 1
        if ran == 0:
            return at.FINISHED


@routine
def end_turn(ctx: Context) -> None:
    """The selected warp has come to an order point, a barrier, its end, or the end of its quantum."""
    state, row = frame_of(ctx, ctx.warp).state, slot_of(ctx, ctx.slot)
    ctx.turns = ctx.turns + 1
    turns = ctx.turns_of + (ctx.slot * ctx.warps + ctx.warp) * 8
    turns[I64, 0] = turns[I64, 0] + 1
    late = op.where(state == at.BEFORE_POINT, on_the_way(ctx, ctx.warp), I64(0))
    time = op.where(state == at.WAITING, ctx.now | HELD, ctx.now + late)
    time_of(ctx, ctx.warp)[I64, 0] = op.where(state == at.DONE, I64(_OVER), time)
    if state == at.DONE:
        row.live = row.live - 1
        if row.live == 0:
            ctx.blocks_done = ctx.blocks_done + 1
            admit(ctx, ctx.slot, ctx.now)
            return
    find_earliest(ctx)


@routine
def run_interleaved(ctx: Context) -> I32:
    """The list of thread blocks, as many at a time as there are slots. After STOPPED and PAUSED call again."""
    while True:
        if ctx.midway == 0:
            if next_warp(ctx) == at.WAITING:
                return op.where(ctx.blocks_done == ctx.thread_block_stop, I32(at.FINISHED), I32(at.FAULT))
            if ctx.turns >= ctx.turns_stop:
                return at.PAUSED
        code = take_turn(ctx)
        ctx.midway = I64(code == at.STOPPED)
        if code != at.FINISHED:
            return code
        end_turn(ctx)
