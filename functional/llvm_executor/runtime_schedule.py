"""The scheduler of a launch as LLVM IR text: thread blocks one after the other, the warps of one in turn, barriers."""

from __future__ import annotations

from functional.llvm_executor import context_layout as at
from functional.llvm_executor.runtime_memory import get, put
from functional.llvm_executor.runtime_stack import field

# Lets the warps at a barrier go if enough have arrived. `release_all`: a warp has ended, which may complete any one.
RELEASE = f"""
define internal void @release_all(ptr %ctx) #0 {{
entry:
{get("warps", "warps")}{get("frames", "frames", "ptr")}{get("bytes", "frame_bytes")}  br label %scan
scan:
  %w = phi i64 [ 0, %entry ], [ %w1, %next ]
  %offset = mul i64 %w, %bytes
  %frame = getelementptr i8, ptr %frames, i64 %offset
{field("state", at.STATE)}{field("at", at.BARRIER)}  %waits = icmp eq i32 %state, {at.WAITING}
  br i1 %waits, label %try, label %next
try:
  call void @release(ptr %ctx, i32 %at)
  br label %next
next:
  %w1 = add i64 %w, 1
  %more = icmp ult i64 %w1, %warps
  br i1 %more, label %scan, label %out
out:
  ret void
}}

define internal void @release(ptr %ctx, i32 %id) #0 {{
entry:
{get("warps", "warps")}{get("frames", "frames", "ptr")}{get("bytes", "frame_bytes")}  br label %scan
scan:
  %w = phi i64 [ 0, %entry ], [ %w1, %scan ]
  %alive = phi i32 [ 0, %entry ], [ %alive1, %scan ]
  %arrived = phi i32 [ 0, %entry ], [ %arrived1, %scan ]
  %expected = phi i32 [ 0, %entry ], [ %expected1, %scan ]
  %offset = mul i64 %w, %bytes
  %frame = getelementptr i8, ptr %frames, i64 %offset
{field("state", at.STATE)}{field("at", at.BARRIER)}{field("wants", at.EXPECTED)}  %lives = icmp ne i32 %state, {at.DONE}
  %l = zext i1 %lives to i32
  %alive1 = add i32 %alive, %l
  %waits = icmp eq i32 %state, {at.WAITING}
  %same = icmp eq i32 %at, %id
  %here = and i1 %waits, %same
  %h = zext i1 %here to i32
  %arrived1 = add i32 %arrived, %h
  %expected1 = select i1 %here, i32 %wants, i32 %expected
  %w1 = add i64 %w, 1
  %more = icmp ult i64 %w1, %warps
  br i1 %more, label %scan, label %judge
judge:
  %some = icmp ne i32 %arrived1, 0
  %threads = mul i32 %arrived1, 32
  %all = mul i32 %alive1, 32
  %default = icmp eq i32 %expected1, 0
  %needed = select i1 %default, i32 %all, i32 %expected1
  %enough = icmp sge i32 %threads, %needed
  %complete = and i1 %some, %enough
  br i1 %complete, label %free, label %out
free:
  %v = phi i64 [ 0, %judge ], [ %v1, %free.next ]
  %offset2 = mul i64 %v, %bytes
  %frame2 = getelementptr i8, ptr %frames, i64 %offset2
{field("state2", at.STATE, frame="%frame2")}{
    field("at2", at.BARRIER, frame="%frame2")
}  %waits2 = icmp eq i32 %state2, {at.WAITING}
  %same2 = icmp eq i32 %at2, %id
  %here2 = and i1 %waits2, %same2
  br i1 %here2, label %wake, label %free.next
wake:
  store i32 {at.RUNNABLE}, ptr %state2.p, align 4
  br label %free.next
free.next:
  %v1 = add i64 %v, 1
  %more2 = icmp ult i64 %v1, %warps
  br i1 %more2, label %free, label %out
out:
  ret void
}}
"""

# Begins the next thread block of the list.
BEGIN = f"""
define internal void @begin(ptr %ctx) #0 {{
entry:
{get("list", "thread_blocks", "ptr")}{get("position", "thread_block")}{get("warps", "warps")}{
    get("frames", "frames", "ptr")
}{get("bytes", "frame_bytes")}{get("shared", "shared", "ptr")}{get("size", "shared_bytes")}{get("nx", "nctaid_x")}{
    get("ny", "nctaid_y")
}{get("zeros", "zeros")}{get("zero", "zero", "ptr")}{get("locals", "local_base", "ptr")}{
    get("localsize", "local_bytes")
}  %p = getelementptr i64, ptr %list, i64 %position
  %id = load i64, ptr %p, align 8
  %x = urem i64 %id, %nx
  %rest = udiv i64 %id, %nx
  %y = urem i64 %rest, %ny
  %z = udiv i64 %rest, %ny
{put("ctaid_x", "%x")}{put("ctaid_y", "%y")}{
    put("ctaid_z", "%z")
}  call void @llvm.memset.p0.i64(ptr %shared, i8 0, i64 %size, i1 false)
  %localall = mul i64 %localsize, %warps
  call void @llvm.memset.p0.i64(ptr %locals, i8 0, i64 %localall, i1 false)
  br label %warp
warp:
  %w = phi i64 [ 0, %entry ], [ %w1, %cleared ]
  %offset = mul i64 %w, %bytes
  %frame = getelementptr i8, ptr %frames, i64 %offset
{field("block", at.BLOCK)}{field("meet", at.RECONVERGENCE)}{field("mask", at.MASK)}{field("depth", at.DEPTH)}{
    field("state", at.STATE)
}{field("initial", at.INITIAL_MASK)}  store i32 0, ptr %block.p, align 4
  store i32 -1, ptr %meet.p, align 4
  store i32 %initial, ptr %mask.p, align 4
  store i32 0, ptr %depth.p, align 4
  store i32 {at.RUNNABLE}, ptr %state.p, align 4
  %base.p = getelementptr i8, ptr %frame, i64 {at.BASE}
  store i32 0, ptr %base.p, align 4
  %counters = getelementptr i8, ptr %frame, i64 {at.WARP_INSTRUCTIONS}
  store <4 x i64> zeroinitializer, ptr %counters, align 8
  br label %clear
clear:
  %i = phi i64 [ 0, %warp ], [ %i1, %clear.one ]
  %more = icmp ult i64 %i, %zeros
  br i1 %more, label %clear.one, label %cleared
clear.one:
  %zp = getelementptr i64, ptr %zero, i64 %i
  %zo = load i64, ptr %zp, align 8
  %zq = getelementptr i8, ptr %frame, i64 %zo
  store <32 x i32> zeroinitializer, ptr %zq, align 4
  %i1 = add i64 %i, 1
  br label %clear
cleared:
  %w1 = add i64 %w, 1
  %again = icmp ult i64 %w1, %warps
  br i1 %again, label %warp, label %out
out:
  ret void
}}
"""

QUANTUM = 1 << 20  # thread instructions a warp runs before another of its thread block may

# Runs the list of thread blocks: in a block, each runnable warp in turn until it waits, ends or has had its quantum.
RUN = f"""
define i32 @run(ptr %ctx) #0 {{
entry:
{get("warps", "warps")}{get("frames", "frames", "ptr")}{get("bytes", "frame_bytes")}{get("kernel", "kernel", "ptr")}{
    get("segs", "segments", "ptr")
}{get("locals", "local_base", "ptr")}{get("lstride", "local_bytes")}{get("budget", "budget")}{
    get("most", "most_events")
}{get("counts", "counts", "ptr")}{get("words", "local_stride")}  %lwords = lshr i64 %words, 2
  br label %block
block:
{get("position", "thread_block")}{get("end", "thread_block_stop")}  %over = icmp uge i64 %position, %end
  br i1 %over, label %finished, label %work
finished:
  ret i32 {at.FINISHED}
work:
{get("fresh", "fresh")}  %new = icmp ne i64 %fresh, 0
  br i1 %new, label %start, label %round
start:
  call void @begin(ptr %ctx)
{put("fresh", "0")}  br label %round
round:
  br label %warp
warp:
  %w = phi i64 [ 0, %round ], [ %w1, %after ]
  %ran = phi i32 [ 0, %round ], [ %ran1, %after ]
  %alive = phi i32 [ 0, %round ], [ %alive1, %after ]
  %offset = mul i64 %w, %bytes
  %frame = getelementptr i8, ptr %frames, i64 %offset
{field("state", at.STATE)}  %can = icmp eq i32 %state, {at.RUNNABLE}
  br i1 %can, label %room, label %skip
skip:
  %waiting = icmp eq i32 %state, {at.WAITING}
  %still = zext i1 %waiting to i32
  br label %after
room:
{get("seg", "segment")}{get("segstop", "segment_stop")}  %fits = icmp ult i64 %seg, %segstop
  br i1 %fits, label %go, label %grow
go:
{get("event", "event")}{get("rec", "records")}{get("con", "conflicts")}{get("used", "used")}{
    get("list", "thread_blocks", "ptr")
}  %row0 = mul i64 %position, %warps
  %row = add i64 %row0, %w
  %so = mul i64 %seg, {8 * at.SEGMENT_WORDS}
  %sp = getelementptr i8, ptr %segs, i64 %so
  store i64 %row, ptr %sp, align 8
  %sp1 = getelementptr i8, ptr %sp, i64 8
  store i64 %event, ptr %sp1, align 8
  %sp2 = getelementptr i8, ptr %sp, i64 16
  store i64 %rec, ptr %sp2, align 8
  %sp3 = getelementptr i8, ptr %sp, i64 24
  store i64 %con, ptr %sp3, align 8
  %seg1 = add i64 %seg, 1
{put("segment", "%seg1")}  %stop = add i64 %used, {QUANTUM}
{put("turn_stop", "%stop")}  %lo = mul i64 %w, %lstride
  %lp = getelementptr i8, ptr %locals, i64 %lo
{put("local", "%lp", "ptr")}  %idp = getelementptr i64, ptr %list, i64 %position
  %id = load i64, ptr %idp, align 8
  %gw0 = mul i64 %id, %warps
  %gw = add i64 %gw0, %w
  %lw = mul i64 %gw, %lwords
{put("local_word", "%lw")}  %code = call i32 %kernel(ptr %ctx, ptr %frame)
{get("event2", "event")}  %steps = sub i64 %event2, %event
{field("events", at.EVENTS, "i64")}  %events1 = add i64 %events, %steps
  store i64 %events1, ptr %events.p, align 8
  %turns = icmp ugt i64 %events1, %most
{get("used2", "used")}  %spent = icmp ugt i64 %used2, %budget
  %broke = or i1 %turns, %spent
  switch i32 %code, label %fault [ i32 {at.FINISHED}, label %done
    i32 {at.AT_BARRIER}, label %arrive
    i32 {at.STOPPED}, label %stopped ]
done:
  br i1 %spent, label %broken, label %retire
retire:
  store i32 {at.DONE}, ptr %state.p, align 4
  call void @release_all(ptr %ctx)
{field("wi", at.WARP_INSTRUCTIONS, "i64")}{field("ti", at.THREAD_INSTRUCTIONS, "i64")}  %co = mul i64 %row, 16
  %cp = getelementptr i8, ptr %counts, i64 %co
  store i64 %wi, ptr %cp, align 8
  %cp1 = getelementptr i8, ptr %cp, i64 8
  store i64 %ti, ptr %cp1, align 8
  br label %after
arrive:
  store i32 {at.WAITING}, ptr %state.p, align 4
  br label %wakeup
wakeup:
{field("barrier", at.BARRIER)}  call void @release(ptr %ctx, i32 %barrier)
  br label %after
stopped:
  br i1 %broke, label %broken, label %yielded
yielded:
  %turnover = icmp uge i64 %used2, %stop
  br i1 %turnover, label %after, label %grow
fault:
  ret i32 {at.FAULT}
broken:
  ret i32 {at.OVER_BUDGET}
grow:
  ret i32 {at.STOPPED}
after:
  %alive.here = phi i32 [ %still, %skip ], [ 0, %retire ], [ 1, %wakeup ], [ 1, %yielded ]
  %ran.here = phi i32 [ 0, %skip ], [ 1, %retire ], [ 1, %wakeup ], [ 1, %yielded ]
  %alive1 = add i32 %alive, %alive.here
  %ran1 = add i32 %ran, %ran.here
  %w1 = add i64 %w, 1
  %more = icmp ult i64 %w1, %warps
  br i1 %more, label %warp, label %end.round
end.round:
  %left = icmp ne i32 %alive1, 0
  br i1 %left, label %check, label %next.block
check:
  %progress = icmp ne i32 %ran1, 0
  br i1 %progress, label %round, label %fault
next.block:
  %position1 = add i64 %position, 1
{put("thread_block", "%position1")}{put("fresh", "1")}  br label %block
}}
"""


def text() -> str:
    """All helpers of the scheduler."""
    return RELEASE + BEGIN + RUN
