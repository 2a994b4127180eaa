"""Stores that keep the pages they write to as they were, as LLVM IR text (see undo.py).

The table of pages holds 0 for a page that is as it was, -1 while one thread copies it, else one more than the number of
its copy.
"""

from __future__ import annotations

from functional.llvm_executor.runtime_memory import get

PAGE_SHIFT = 12
PAGE_BYTES = 1 << PAGE_SHIFT

_CELLS = "<32 x ptr> align 4 %cells"
UNDO = f"""
; Pages number %from to %to.
define internal void @keep_pages(ptr %ctx, i64 %from, i64 %to) noinline #0 {{
entry:
{get("pages", "pages", "ptr")}{get("saved", "saved", "ptr")}{get("count", "saved_count", "ptr")}{
    get("arena", "arena")
}  br label %page
page:
  %p = phi i64 [ %from, %entry ], [ %p1, %next ]
  %cell = getelementptr i32, ptr %pages, i64 %p
  br label %look
look:
  %v = load atomic i32, ptr %cell acquire, align 4
  switch i32 %v, label %next [ i32 0, label %claim
    i32 -1, label %look ]
claim:
  %swapped = cmpxchg ptr %cell, i32 0, i32 -1 acquire monotonic
  %mine = extractvalue {{ i32, i1 }} %swapped, 1
  br i1 %mine, label %copy, label %look
copy:
  %number = atomicrmw add ptr %count, i32 1 monotonic
  %wide = zext i32 %number to i64
  %at = shl i64 %wide, {PAGE_SHIFT}
  %copied = getelementptr i8, ptr %saved, i64 %at
  %address = shl i64 %p, {PAGE_SHIFT}
  %host = add i64 %arena, %address
  %original = inttoptr i64 %host to ptr
  call void @llvm.memmove.p0.p0.i64(ptr %copied, ptr %original, i64 {PAGE_BYTES}, i1 false)
  %id = add i32 %number, 1
  store atomic i32 %id, ptr %cell release, align 4
  br label %next
next:
  %p1 = add i64 %p, 1
  %more = icmp ule i64 %p1, %to
  br i1 %more, label %page, label %out
out:
  ret void
}}

; The bytes %first to %stop - 1, no more than a page.
define internal void @keep_range(ptr %ctx, i64 %first, i64 %stop) alwaysinline #0 {{
entry:
  %end = sub i64 %stop, 1
  %a = lshr i64 %first, {PAGE_SHIFT}
  %b = lshr i64 %end, {PAGE_SHIFT}
{get("pages", "pages", "ptr")}  %ca = getelementptr i32, ptr %pages, i64 %a
  %cb = getelementptr i32, ptr %pages, i64 %b
  %va = load atomic i32, ptr %ca acquire, align 4
  %vb = load atomic i32, ptr %cb acquire, align 4
  %least = call i32 @llvm.smin.i32(i32 %va, i32 %vb)
  %kept = icmp sgt i32 %least, 0
  br i1 %kept, label %out, label %keep
keep:
  call void @keep_pages(ptr %ctx, i64 %a, i64 %b)
  br label %out
out:
  ret void
}}

; The same bytes, or if they are further apart the words of the lanes.
define internal void @keep_span(ptr %ctx, i64 %first, i64 %stop, <32 x i64> %address, i32 %mask) alwaysinline #0 {{
entry:
  %bytes = sub i64 %stop, %first
  %near = icmp ule i64 %bytes, {PAGE_BYTES}
  br i1 %near, label %range, label %lanes
range:
  call void @keep_range(ptr %ctx, i64 %first, i64 %stop)
  ret void
lanes:
  call void @keep_lanes(ptr %ctx, <32 x i64> %address, i32 %mask)
  ret void
}}

; Aligned words, each inside a region and on one page.
define internal void @keep_lanes(ptr %ctx, <32 x i64> %address, i32 %mask) #0 {{
entry:
  %array = alloca <32 x i64>, align 64
  %lanes = bitcast i32 %mask to <32 x i1>
  %page = lshr <32 x i64> %address, splat (i64 {PAGE_SHIFT})
{get("pages", "pages", "ptr")}  %cells = getelementptr i32, ptr %pages, <32 x i64> %page
  %v = call <32 x i32> @llvm.masked.gather.v32i32.v32p0({_CELLS}, <32 x i1> %lanes, <32 x i32> splat (i32 1))
  %new = icmp slt <32 x i32> %v, splat (i32 1)
  %todo = bitcast <32 x i1> %new to i32
  %none = icmp eq i32 %todo, 0
  br i1 %none, label %out, label %some
some:
  store <32 x i64> %page, ptr %array, align 64
  br label %lane
lane:
  %rest = phi i32 [ %todo, %some ], [ %left, %lane ]
  %i = call i32 @llvm.cttz.i32(i32 %rest, i1 true)
  %below = sub i32 %rest, 1
  %left = and i32 %rest, %below
  %at = getelementptr i64, ptr %array, i32 %i
  %own = load i64, ptr %at, align 8
  call void @keep_pages(ptr %ctx, i64 %own, i64 %own)
  %done = icmp eq i32 %left, 0
  br i1 %done, label %out, label %lane
out:
  ret void
}}
"""
