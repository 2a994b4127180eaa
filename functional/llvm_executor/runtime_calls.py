"""Calls and jump tables on the reconvergence stack of a warp, as LLVM IR text (numpy_executor.stack)."""

from __future__ import annotations

from functional.llvm_executor import context_layout as at
from functional.llvm_executor.runtime_memory import put
from functional.llvm_executor.runtime_stack import field

CALLS = f"""
; Lanes %lanes run the function at block %entry; all active lanes go on at %after. Yields as settle, -1 for a fault.
define i32 @enter(ptr %ctx, ptr %frame, i32 %lanes, i32 %entry, i32 %after) #0 {{
start:
{field("block", at.BLOCK)}  store i32 %after, ptr %block.p, align 4
  %none = icmp eq i32 %lanes, 0
  br i1 %none, label %end, label %push
push:
  %ok = call i1 @save(ptr %frame)
  br i1 %ok, label %set, label %bad
set:
{field("meet", at.RECONVERGENCE)}{field("mask", at.MASK)}{field("depth", at.DEPTH)}{
    field("base", at.BASE)
}  store i32 %entry, ptr %block.p, align 4
  store i32 -1, ptr %meet.p, align 4
  store i32 %lanes, ptr %mask.p, align 4
  store i32 %depth, ptr %base.p, align 4
  br label %end
end:
  %n = call i32 @settle(ptr %frame)
  ret i32 %n
bad:
{put("fault", "1")}  ret i32 -1
}}

; The active lanes split into %count paths {{block, lanes}}, some of them empty; the first one runs first. As settle.
define i32 @fork(ptr %ctx, ptr %frame, ptr %paths, i32 %count, i32 %meeting) #0 {{
entry:
{field("block", at.BLOCK)}{field("meet", at.RECONVERGENCE)}{field("mask", at.MASK)}  br label %look
look:
  %i = phi i32 [ 0, %entry ], [ %i1, %look ]
  %ways = phi i32 [ 0, %entry ], [ %ways1, %look ]
  %only = phi i32 [ -1, %entry ], [ %only1, %look ]
  %o = mul i32 %i, 8
  %p = getelementptr i8, ptr %paths, i32 %o
  %b = load i32, ptr %p, align 4
  %q = getelementptr i8, ptr %p, i32 4
  %l = load i32, ptr %q, align 4
  %some = icmp ne i32 %l, 0
  %one = zext i1 %some to i32
  %ways1 = add i32 %ways, %one
  %only1 = select i1 %some, i32 %b, i32 %only
  %i1 = add i32 %i, 1
  %more = icmp slt i32 %i1, %count
  br i1 %more, label %look, label %judge
judge:
  %divergent = icmp sgt i32 %ways1, 1
  br i1 %divergent, label %split, label %together
together:
  store i32 %only1, ptr %block.p, align 4
  br label %end
split:
  store i32 %meeting, ptr %block.p, align 4
  %here = icmp eq i32 %meet, %meeting
  br label %next
next:
  %k = phi i32 [ %count, %split ], [ %k1, %skip ], [ %k1, %set ]
  %fresh = phi i1 [ %here, %split ], [ %fresh, %skip ], [ false, %set ]
  %k1 = sub i32 %k, 1
  %done = icmp slt i32 %k1, 0
  br i1 %done, label %last, label %path
path:
  %o2 = mul i32 %k1, 8
  %p2 = getelementptr i8, ptr %paths, i32 %o2
  %b2 = load i32, ptr %p2, align 4
  %q2 = getelementptr i8, ptr %p2, i32 4
  %l2 = load i32, ptr %q2, align 4
  %empty = icmp eq i32 %l2, 0
  %waits = icmp eq i32 %b2, %meeting
  %no = or i1 %empty, %waits
  br i1 %no, label %skip, label %push
skip:
  br label %next
push:
  br i1 %fresh, label %set, label %keep
keep:
  %ok = call i1 @save(ptr %frame)
  br i1 %ok, label %set, label %bad
set:
  store i32 %b2, ptr %block.p, align 4
  store i32 %meeting, ptr %meet.p, align 4
  store i32 %l2, ptr %mask.p, align 4
  br label %next
last:
  br label %end
end:
  %n = call i32 @settle(ptr %frame)
  ret i32 %n
bad:
{put("fault", "1")}  ret i32 -1
}}
"""
