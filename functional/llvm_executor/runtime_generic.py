"""Generic accesses outside global memory, as LLVM IR text: all lanes in shared or all in local memory; and copies into
shared memory."""

from __future__ import annotations

from functional.isa.windows import WINDOWS
from functional.llvm_executor.runtime_memory import get, put, splat
from functional.traces.line_record import MORE, SHARED_PASS

_SHARED, _LOCAL = WINDOWS["shared"], WINDOWS["local"]

ELSEWHERE = f"""
; One record a pass of shared memory, of the window for generic accesses to it.
define internal void @log_passes(ptr %ctx, i8 %passes) #0 {{
entry:
{get("at", "records", "ptr")}  br label %pass
pass:
  %n = phi i8 [ %passes, %entry ], [ %n1, %pass ]
  %p = phi ptr [ %at, %entry ], [ %p1, %pass ]
  %n1 = sub i8 %n, 1
  %more = icmp ne i8 %n1, 0
  %bit = zext i1 %more to i32
  %record = or i32 %bit, {SHARED_PASS - (1 << 32) if SHARED_PASS >> 31 else SHARED_PASS}
  store i32 %record, ptr %p, align 4
  %p1 = getelementptr i8, ptr %p, i64 4
  br i1 %more, label %pass, label %out
out:
{put("records", "%p1", "ptr")}  ret void
}}

; The passes of what an instruction, whose last record has been made, writes to shared memory as well.
define void @record_writes(ptr %ctx, <32 x i64> %address, i32 %mask) #0 {{
entry:
  %none = icmp eq i32 %mask, 0
  br i1 %none, label %out, label %some
some:
{get("con", "conflicts", "ptr")}  call void @conflict_lanes(ptr %ctx, <32 x i64> %address, i32 %mask)
  %passes = load i8, ptr %con, align 1
{put("conflicts", "%con", "ptr")}{get("at", "records", "ptr")}  %last = getelementptr i8, ptr %at, i64 -4
  %record = load i32, ptr %last, align 4
  %empty = icmp eq i32 %record, 0
  br i1 %empty, label %instead, label %behind
instead:
{put("records", "%last", "ptr")}  br label %passes.next
behind:
  %continued = or i32 %record, {MORE}
  store i32 %continued, ptr %last, align 4
  br label %passes.next
passes.next:
  call void @log_passes(ptr %ctx, i8 %passes)
  br label %out
out:
  ret void
}}

; Records and locates lanes (some are active) that are not all in global memory.
define <32 x i64> @check_elsewhere(ptr %ctx, <32 x i64> %address, i32 %mask, i64 %size) #0 {{
entry:
  %lanes = bitcast i32 %mask to <32 x i1>
  %lows = select <32 x i1> %lanes, <32 x i64> %address, <32 x i64> splat (i64 -1)
  %highs = select <32 x i1> %lanes, <32 x i64> %address, <32 x i64> zeroinitializer
  %low = call i64 @llvm.vector.reduce.umin.v32i64(<32 x i64> %lows)
  %high = call i64 @llvm.vector.reduce.umax.v32i64(<32 x i64> %highs)
  %l0 = icmp uge i64 %low, {_LOCAL[0]}
  %l1 = icmp ult i64 %high, {_LOCAL[1]}
  %in.local = and i1 %l0, %l1
  br i1 %in.local, label %local, label %other
local:
  %own = sub <32 x i64> %address, splat (i64 {_LOCAL[0]})
  %host = call <32 x i64> @check_local(ptr %ctx, <32 x i64> %own, i32 %mask, i64 %size)
  ret <32 x i64> %host
other:
  %s0 = icmp uge i64 %low, {_SHARED[0]}
  %s1 = icmp ult i64 %high, {_SHARED[1]}
  %in.shared = and i1 %s0, %s1
  br i1 %in.shared, label %shared, label %bad
shared:
  %moved = sub <32 x i64> %address, splat (i64 {_SHARED[0]})
{get("con", "conflicts", "ptr")}  call void @conflict_lanes(ptr %ctx, <32 x i64> %moved, i32 %mask)
  %passes = load i8, ptr %con, align 1
{put("conflicts", "%con", "ptr")}  call void @log_passes(ptr %ctx, i8 %passes)
  %found = call <32 x i64> @locate_shared(ptr %ctx, <32 x i64> %moved, i32 %mask, i64 %size)
  ret <32 x i64> %found
bad:
{put("fault", "1")}{get("scratch", "scratch")}{splat("safe", "i64", "%scratch")}  ret <32 x i64> %safe
}}
"""
