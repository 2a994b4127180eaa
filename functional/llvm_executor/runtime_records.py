"""Trace records as LLVM IR text: line records of addresses and of atomics, bank passes of shared-memory accesses."""

from __future__ import annotations

from functional.llvm_executor.runtime_memory import IOTA, get, put, splat
from functional.traces.line_record import LINE_SHIFT, MORE, SECTOR_SHIFT
from functional.traces.trace import LOCAL_LINES, LOCAL_WINDOW_LINE


def repeated(vector: str) -> str:
    """IR of %fresh = %mask without lanes that repeat what the active lane before them names."""
    return f"""  %before.lanes = shufflevector <32 x i32> {vector}, <32 x i32> poison, <32 x i32> <i32 0, {NEXT}>
  %repeats = icmp eq <32 x i32> {vector}, %before.lanes
  %repeats.bits = bitcast <32 x i1> %repeats to i32
  %behind.active = shl i32 %mask, 1
  %again = and i32 %repeats.bits, %behind.active
  %first.named = xor i32 %again, -1
  %fresh = and i32 %mask, %first.named
"""


NEXT = ", ".join(f"i32 {i}" for i in range(31))
RECORDS = f"""
; One record, the only one of its instruction.
define void @record(ptr %ctx, i32 %record) alwaysinline #0 {{
{get("at", "records", "ptr")}  store i32 %record, ptr %at, align 4
  %next = getelementptr i8, ptr %at, i64 4
{put("records", "%next", "ptr")}  ret void
}}

define void @record_one(ptr %ctx, i64 %address) #0 {{
  %line = lshr i64 %address, 7
  %sector = lshr i64 %address, 5
  %place = and i64 %sector, 3
  %bit = shl i64 {1 << SECTOR_SHIFT}, %place
  %key = shl i64 %line, {LINE_SHIFT}
  %whole = or i64 %key, %bit
  %record = trunc i64 %whole to i32
  call void @record(ptr %ctx, i32 %record)
  ret void
}}

; Records of the bytes %first to %stop - 1, all of them touched.
define void @record_range(ptr %ctx, i64 %first, i64 %stop) #0 {{
entry:
{get("at", "records", "ptr")}  %end = sub i64 %stop, 1
  %s0 = lshr i64 %first, 5
  %s1 = lshr i64 %end, 5
  br label %line
line:
  %s = phi i64 [ %s0, %entry ], [ %following, %more ]
  %to = phi ptr [ %at, %entry ], [ %next, %more ]
  %base = and i64 %s, -4
  %following = add i64 %base, 4
  %last = icmp ult i64 %s1, %following
  %top = select i1 %last, i64 %s1, i64 %base
  %high0 = and i64 %top, 3
  %high = select i1 %last, i64 %high0, i64 3
  %low = and i64 %s, 3
  %ones = shl i64 2, %high
  %under = shl i64 1, %low
  %bits = sub i64 %ones, %under
  %number = shl i64 %base, {LINE_SHIFT - 2}
  %both = shl i64 %bits, {SECTOR_SHIFT}
  %whole = or i64 %number, %both
  %continues = xor i1 %last, true
  %flag = zext i1 %continues to i64
  %full = or i64 %whole, %flag
  %record = trunc i64 %full to i32
  store i32 %record, ptr %to, align 4
  %next = getelementptr i8, ptr %to, i64 4
  br i1 %last, label %done, label %more
more:
  br label %line
done:
{put("records", "%next", "ptr")}  ret void
}}

; Sorted insertion of the lanes' sectors: most accesses ascend, so that an insertion ends where it begins.
define internal ptr @insert_sectors(ptr %at, ptr %end0, <32 x i32> %sectors, i32 %mask) #0 {{
entry:
  %array = alloca <32 x i32>, align 64
  store <32 x i32> %sectors, ptr %array, align 64
{repeated("%sectors")}  br label %lane
lane:
  %rest = phi i32 [ %fresh, %entry ], [ %left, %next ]
  %end = phi ptr [ %end0, %entry ], [ %grown, %next ]
  %i = call i32 @llvm.cttz.i32(i32 %rest, i1 true)
  %below = sub i32 %rest, 1
  %left = and i32 %rest, %below
  %p = getelementptr i32, ptr %array, i32 %i
  %sector = load i32, ptr %p, align 4
  %line = lshr i32 %sector, 2
  %place = and i32 %sector, 3
  %bit = shl i32 {1 << SECTOR_SHIFT}, %place
  %key = shl i32 %line, {LINE_SHIFT}
  br label %search
search:
  %q = phi ptr [ %end, %lane ], [ %before, %shift ]
  %empty = icmp eq ptr %q, %at
  br i1 %empty, label %insert, label %compare
compare:
  %before = getelementptr i8, ptr %q, i64 -4
  %old = load i32, ptr %before, align 4
  %oldline = lshr i32 %old, {LINE_SHIFT}
  %same = icmp eq i32 %oldline, %line
  br i1 %same, label %merge, label %order
merge:
  %merged = or i32 %old, %bit
  store i32 %merged, ptr %before, align 4
  br label %next
order:
  %less = icmp ult i32 %oldline, %line
  br i1 %less, label %insert, label %shift
shift:
  br label %search
insert:
  %bytes0 = ptrtoint ptr %end to i64
  %bytes1 = ptrtoint ptr %q to i64
  %bytes = sub i64 %bytes0, %bytes1
  %behind = getelementptr i8, ptr %q, i64 4
  %moves = icmp ne i64 %bytes, 0
  br i1 %moves, label %move, label %write
move:
  call void @llvm.memmove.p0.p0.i64(ptr %behind, ptr %q, i64 %bytes, i1 false)
  br label %write
write:
  %record = or i32 %key, %bit
  store i32 %record, ptr %q, align 4
  %longer = getelementptr i8, ptr %end, i64 4
  br label %next
next:
  %grown = phi ptr [ %end, %merge ], [ %longer, %write ]
  %finished = icmp eq i32 %left, 0
  br i1 %finished, label %out, label %lane
out:
  ret ptr %grown
}}

; All but the last record get the bit "more".
define internal void @close_records(ptr %ctx, ptr %at, ptr %end) #0 {{
entry:
  %last = getelementptr i8, ptr %end, i64 -4
  br label %loop
loop:
  %p = phi ptr [ %at, %entry ], [ %next, %mark ]
  %done = icmp eq ptr %p, %last
  br i1 %done, label %out, label %mark
mark:
  %v = load i32, ptr %p, align 4
  %m = or i32 %v, {MORE}
  store i32 %m, ptr %p, align 4
  %next = getelementptr i8, ptr %p, i64 4
  br label %loop
out:
{put("records", "%end", "ptr")}  ret void
}}

define void @record_lanes(ptr %ctx, <32 x i64> %address, i32 %mask) #0 {{
{get("at", "records", "ptr")}  %wide = lshr <32 x i64> %address, splat (i64 5)
  %sectors = trunc <32 x i64> %wide to <32 x i32>
  %end = call ptr @insert_sectors(ptr %at, ptr %at, <32 x i32> %sectors, i32 %mask)
  call void @close_records(ptr %ctx, ptr %at, ptr %end)
  ret void
}}

; Local memory: word w of a thread lies in line (warp's first word + w) of the window, a lane has 4 bytes of it.
define void @record_local(ptr %ctx, <32 x i64> %address, i32 %mask, i64 %size) #0 {{
entry:
{get("at", "records", "ptr")}{get("word", "local_word")}  %start = urem i64 %word, WINDOW
  %w0 = insertelement <32 x i64> poison, i64 %start, i32 0
  %w1 = shufflevector <32 x i64> %w0, <32 x i64> poison, <32 x i32> zeroinitializer
  %lanes = lshr <32 x i64> <{IOTA}>, splat (i64 3)
  br label %loop
loop:
  %done = phi i64 [ 0, %entry ], [ %following, %loop ]
  %end = phi ptr [ %at, %entry ], [ %grown, %loop ]
  %d0 = insertelement <32 x i64> poison, i64 %done, i32 0
  %d1 = shufflevector <32 x i64> %d0, <32 x i64> poison, <32 x i32> zeroinitializer
  %byte = add <32 x i64> %address, %d1
  %own = lshr <32 x i64> %byte, splat (i64 2)
  %all = add <32 x i64> %own, %w1
  %over = icmp uge <32 x i64> %all, splat (i64 WINDOW)
  %lower = sub <32 x i64> %all, splat (i64 WINDOW)
  %wrapped = select <32 x i1> %over, <32 x i64> %lower, <32 x i64> %all
  %line = add <32 x i64> %wrapped, splat (i64 {LOCAL_WINDOW_LINE})
  %quad = shl <32 x i64> %line, splat (i64 2)
  %wide = or <32 x i64> %quad, %lanes
  %sectors = trunc <32 x i64> %wide to <32 x i32>
  %grown = call ptr @insert_sectors(ptr %at, ptr %end, <32 x i32> %sectors, i32 %mask)
  %following = add i64 %done, 4
  %more = icmp ult i64 %following, %size
  br i1 %more, label %loop, label %out
out:
  call void @close_records(ptr %ctx, ptr %at, ptr %grown)
  ret void
}}

define void @conflict(ptr %ctx, i8 %passes) alwaysinline #0 {{
{get("at", "conflicts", "ptr")}  store i8 %passes, ptr %at, align 1
  %next = getelementptr i8, ptr %at, i64 1
{put("conflicts", "%next", "ptr")}  ret void
}}

; Bank passes of shared addresses: most distinct words on one bank.
define void @conflict_lanes(ptr %ctx, <32 x i64> %address, i32 %mask) #0 {{
entry:
  %counts = alloca <32 x i8>, align 32
  %array = alloca <32 x i32>, align 64
  %wide = lshr <32 x i64> %address, splat (i64 2)
  %words = trunc <32 x i64> %wide to <32 x i32>
  %lanes = bitcast i32 %mask to <32 x i1>
  %lows = select <32 x i1> %lanes, <32 x i32> %words, <32 x i32> splat (i32 -1)
  %highs = select <32 x i1> %lanes, <32 x i32> %words, <32 x i32> zeroinitializer
  %low = call i32 @llvm.vector.reduce.umin.v32i32(<32 x i32> %lows)
  %high = call i32 @llvm.vector.reduce.umax.v32i32(<32 x i32> %highs)
  %spread = sub i32 %high, %low
  %near = icmp ult i32 %spread, 32
  br i1 %near, label %one, label %count
one:
  call void @conflict(ptr %ctx, i8 1)
  ret void
count:
  store <32 x i32> %words, ptr %array, align 64
  store <32 x i8> zeroinitializer, ptr %counts, align 32
{repeated("%words")}  br label %loop
loop:
  %rest = phi i32 [ %fresh, %count ], [ %left, %loop ]
  %most = phi i8 [ 0, %count ], [ %more, %loop ]
  %i = call i32 @llvm.cttz.i32(i32 %rest, i1 true)
  %p = getelementptr i32, ptr %array, i32 %i
  %word = load i32, ptr %p, align 4
  %w0 = insertelement <32 x i32> poison, i32 %word, i32 0
  %w1 = shufflevector <32 x i32> %w0, <32 x i32> poison, <32 x i32> zeroinitializer
  %same = icmp ne <32 x i32> %words, %w1
  %others = bitcast <32 x i1> %same to i32
  %left = and i32 %rest, %others
  %bank = and i32 %word, 31
  %q = getelementptr i8, ptr %counts, i32 %bank
  %c = load i8, ptr %q, align 1
  %c1 = add i8 %c, 1
  store i8 %c1, ptr %q, align 1
  %more = call i8 @llvm.umax.i8(i8 %most, i8 %c1)
  %finished = icmp eq i32 %left, 0
  br i1 %finished, label %out, label %loop
out:
  call void @conflict(ptr %ctx, i8 %more)
  ret void
}}
""".replace("WINDOW", str(LOCAL_LINES))
_LOCATE_SOME = "".join(f"""
define <32 x i64> @locate_some_{space}(ptr %ctx, <32 x i64> %address, i32 %mask, i64 %size) #0 {{
entry:
  %some = icmp ne i32 %mask, 0
  br i1 %some, label %go, label %none
go:
  %host = call <32 x i64> @locate_{space}(ptr %ctx, <32 x i64> %address, i32 %mask, i64 %size)
  ret <32 x i64> %host
none:
{get("scratch", "scratch")}{splat("safe", "i64", "%scratch")}  ret <32 x i64> %safe
}}
""" for space in ("stored", "shared"))  # fmt: skip
_ATOMIC_RECORDS = f"""
define void @conflict_atomic(ptr %ctx, <32 x i64> %address, i32 %mask, i64 %size) #0 {{
entry:
  %some = icmp ne i32 %mask, 0
  br i1 %some, label %go, label %none
go:
  call void @conflict_lanes(ptr %ctx, <32 x i64> %address, i32 %mask)
  ret void
none:
  call void @conflict(ptr %ctx, i8 0)
  ret void
}}

; A line is repeated as often as its most contended word is named.
define void @record_atomic(ptr %ctx, <32 x i64> %address, i32 %mask, i64 %size) #0 {{
entry:
  %array = alloca <32 x i64>, align 64
  store <32 x i64> %address, ptr %array, align 64
{get("at", "records", "ptr")}  %some = icmp ne i32 %mask, 0
  br i1 %some, label %lines, label %none
none:
  call void @record(ptr %ctx, i32 0)
  ret void
lines:
  %rest = phi i32 [ %mask, %entry ], [ %left, %emitted ]
  %to = phi ptr [ %at, %entry ], [ %next, %emitted ]
  %active = bitcast i32 %rest to <32 x i1>
  %candidates = select <32 x i1> %active, <32 x i64> %address, <32 x i64> splat (i64 -1)
  %lowest = call i64 @llvm.vector.reduce.umin.v32i64(<32 x i64> %candidates)
  %line = lshr i64 %lowest, 7
{splat("linesplat", "i64", "%line")}  %own = lshr <32 x i64> %address, splat (i64 7)
  %inline = icmp eq <32 x i64> %own, %linesplat
  %inbits = bitcast <32 x i1> %inline to i32
  %here = and i32 %inbits, %rest
  %away = xor i32 %here, -1
  %left = and i32 %rest, %away
  br label %words
words:
  %todo = phi i32 [ %here, %lines ], [ %todo1, %words ]
  %most = phi i32 [ 0, %lines ], [ %most1, %words ]
  %bits = phi i32 [ 0, %lines ], [ %bits1, %words ]
  %n = call i32 @llvm.cttz.i32(i32 %todo, i1 true)
  %ap = getelementptr i64, ptr %array, i32 %n
  %a = load i64, ptr %ap, align 8
{splat("asplat", "i64", "%a")}  %same = icmp eq <32 x i64> %address, %asplat
  %samebits = bitcast <32 x i1> %same to i32
  %named = and i32 %samebits, %todo
  %others = xor i32 %named, -1
  %todo1 = and i32 %todo, %others
  %count = call i32 @llvm.ctpop.i32(i32 %named)
  %most1 = call i32 @llvm.umax.i32(i32 %most, i32 %count)
  %sector = lshr i64 %a, 5
  %place = and i64 %sector, 3
  %place32 = trunc i64 %place to i32
  %bit = shl i32 {1 << SECTOR_SHIFT}, %place32
  %bits1 = or i32 %bits, %bit
  %wordsdone = icmp eq i32 %todo1, 0
  br i1 %wordsdone, label %emit, label %words
emit:
  %key64 = shl i64 %line, {LINE_SHIFT}
  %key = trunc i64 %key64 to i32
  %record = or i32 %key, %bits1
  br label %repeat
repeat:
  %k = phi i32 [ 0, %emit ], [ %k1, %repeat ]
  %p = phi ptr [ %to, %emit ], [ %next, %repeat ]
  store i32 %record, ptr %p, align 4
  %next = getelementptr i8, ptr %p, i64 4
  %k1 = add i32 %k, 1
  %again = icmp ult i32 %k1, %most1
  br i1 %again, label %repeat, label %emitted
emitted:
  %finished = icmp eq i32 %left, 0
  br i1 %finished, label %close, label %lines
close:
  call void @close_records(ptr %ctx, ptr %at, ptr %next)
  ret void
}}
"""
ATOMICS = _LOCATE_SOME + _ATOMIC_RECORDS
