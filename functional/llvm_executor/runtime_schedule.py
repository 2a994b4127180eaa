"""The scheduler of a launch: thread blocks one after the other, the warps of one in turn, barriers; or thread blocks
that are all there, a piece of a basic block at a time (by_piece.py says whose turn it is).

Or they are interleaved: of all warps that can run, the one whose time has come first passes the order point that it
stands before, and runs to its next one. A slot holds a thread block, and the next one of the list when that has ended.
A tournament tree says whose earliest time is the earliest; of several the first slot."""

from __future__ import annotations

from functional.jit.native import I16, I32, I64, Lanes32, Pointer, inlined, op, routine
from functional.llvm_executor import context_layout as at
from functional.llvm_executor.context_layout import Context, Frame, Slot
from functional.steps.stack import DONE

HELD = 1 << 63  # in the time of a warp that cannot run: later than any other
QUANTUM = 1 << 20  # thread instructions a warp runs before another of its thread block may


@inlined
def frame_of(ctx: Context, warp: I64) -> Frame:
    """The frame of a warp of the thread block."""
    return Frame(ctx.frames + warp * ctx.frame_bytes)


@inlined
def time_of(ctx: Context, warp: I64) -> Pointer:
    """Where the time of a warp of the running thread block is kept."""
    return ctx.times + (ctx.slot * ctx.warps + warp) * 8


@routine
def wake(ctx: Context, warp: I64) -> None:
    """A warp that waited goes on when the running one has come to where it is."""
    place = time_of(ctx, warp)
    place[I64, 0] = op.umax(place[I64, 0] & ~HELD, ctx.now)


@routine
def pass_time(ctx: Context, first: I64) -> None:
    """The running warp has run the basic blocks from event `first` on."""
    cycles = I64(0)
    for event in range(first, ctx.event):
        cycles += ctx.block_cycles[I64, I64(Pointer(ctx.blocks)[I16, event])]
    ctx.now = ctx.now + cycles * ctx.paces[I64, ctx.slot]


@routine
def release(ctx: Context, barrier: I32) -> None:
    """Let the warps at a barrier go if enough have arrived."""
    alive, arrived, expected = I32(0), I32(0), I32(0)
    for warp in range(ctx.warps):
        frame = frame_of(ctx, warp)
        alive += I32(frame.state != at.DONE)
        if (frame.state == at.WAITING) & (frame.barrier == barrier):
            arrived, expected = arrived + 1, frame.expected
    needed = op.where(expected == 0, alive * 32, expected)
    if (arrived == 0) | op.slt(arrived * 32, needed):
        return
    for warp in range(ctx.warps):
        frame = frame_of(ctx, warp)
        if (frame.state == at.WAITING) & (frame.barrier == barrier):
            frame.state = at.RUNNABLE
            if ctx.interleaved != 0:
                wake(ctx, warp)


@routine
def release_all(ctx: Context) -> None:
    """A warp has ended, which may complete any barrier."""
    for warp in range(ctx.warps):
        frame = frame_of(ctx, warp)
        if frame.state == at.WAITING:
            release(ctx, frame.barrier)


@routine
def place(ctx: Context) -> None:
    """Where in the grid the running thread block is."""
    number, columns, rows = ctx.thread_blocks[I64, ctx.thread_block], ctx.nctaid_x, ctx.nctaid_y
    ctx.ctaid_x, ctx.ctaid_y, ctx.ctaid_z = number % columns, number // columns % rows, number // columns // rows


@routine
def begin(ctx: Context) -> None:
    """Begin the next thread block of the list."""
    place(ctx)
    op.zero(Pointer(ctx.shared), ctx.shared_bytes)
    op.zero(Pointer(ctx.local_base), ctx.local_bytes * ctx.warps)
    for warp in range(ctx.warps):
        frame = frame_of(ctx, warp)
        frame.block, frame.meet, frame.mask, frame.depth, frame.base = 0, -1, frame.initial, 0, 0
        frame.level = 0
        frame.state = at.RUNNABLE
        frame.warp_instructions, frame.thread_instructions, frame.events = 0, 0, 0
        for slot in range(ctx.zeros):
            (frame + ctx.zero[I64, slot])[Lanes32, 0] = 0


@inlined
def begin_turn(ctx: Context, warp: I64, row: I64) -> None:
    """Note whose streams come now, and where the warp has its local memory."""
    segment = ctx.segments + ctx.segment * (8 * at.SEGMENT_WORDS)
    segment[I64, 0], segment[I64, 1] = row, ctx.event
    segment[Pointer, 2], segment[Pointer, 3] = ctx.records, ctx.conflicts
    ctx.segment = ctx.segment + 1
    ctx.turn_stop = ctx.used + QUANTUM
    ctx.local = ctx.local_base + warp * ctx.local_bytes


@inlined
def turn(ctx: Context, frame: Frame, warp: I64) -> I32:
    """Run a warp until it waits, ends or has had its quantum; yields FINISHED if the launch goes on."""
    row, event = ctx.thread_block * ctx.warps + warp, ctx.event
    begin_turn(ctx, warp, row)
    code = op.call(ctx.kernel, I32, ctx, frame)
    frame.events = frame.events + ctx.event - event
    if ctx.interleaved != 0:
        pass_time(ctx, event)
    spent = ctx.used > ctx.budget
    if code == at.FINISHED:
        if spent:
            return at.OVER_BUDGET
        frame.state = at.DONE
        release_all(ctx)
        counts = ctx.counts
        counts[I64, row * 2], counts[I64, row * 2 + 1] = frame.warp_instructions, frame.thread_instructions
        return at.FINISHED
    if code == at.AT_BARRIER:
        frame.state = at.WAITING
        release(ctx, frame.barrier)
        return at.FINISHED
    if (code != at.STOPPED) & (code != at.AT_POINT):
        return at.FAULT
    if spent | (frame.events > ctx.most_events):
        return at.OVER_BUDGET
    if code == at.AT_POINT:
        frame.state = at.BEFORE_POINT
        return at.FINISHED
    return op.where(ctx.used >= ctx.turn_stop, I32(at.FINISHED), I32(at.STOPPED))


@routine
def run(ctx: Context) -> I32:
    """The list of thread blocks: in a block, each runnable warp in turn. Another call goes on after STOPPED."""
    while ctx.thread_block < ctx.thread_block_stop:
        if ctx.fresh != 0:
            begin(ctx)
            ctx.fresh = 0
        while True:
            ran, alive = I32(0), I32(0)
            for warp in range(ctx.warps):
                frame = frame_of(ctx, warp)
                if frame.state == at.RUNNABLE:
                    if ctx.segment >= ctx.segment_stop:
                        return at.STOPPED
                    code = turn(ctx, frame, warp)
                    if code != at.FINISHED:
                        return code
                    ran += 1
                alive += I32(frame.state != at.DONE)
            if alive == 0:
                break
            if ran == 0:
                return at.FAULT
        ctx.thread_block = ctx.thread_block + 1
        ctx.fresh = 1
    return at.FINISHED


@inlined
def use_slot(ctx: Context, slot: I64) -> None:
    """The running thread block has the frames and memories of a slot."""
    ctx.frames = ctx.slot_frames + slot * (ctx.warps * ctx.frame_bytes)
    ctx.shared = ctx.slot_shared + slot * ctx.shared_stride
    ctx.local_base = ctx.slot_local + slot * (ctx.warps * ctx.local_bytes)
    place(ctx)


@inlined
def select_block(ctx: Context, block: I64) -> None:
    """A thread block of the list is the running one."""
    ctx.thread_block, ctx.rank_base = block, ctx.rank_bases[I64, block]
    use_slot(ctx, block)


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
