"""What atomics need of the run time, as LLVM IR text: addresses without a record, and the records of an atomic."""

from __future__ import annotations

from functional.llvm_executor.runtime_memory import get, splat
from functional.traces.line_record import LINE_SHIFT, SECTOR_SHIFT

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

_RECORDS = f"""
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

ATOMICS = _LOCATE_SOME + _RECORDS
