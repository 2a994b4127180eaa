"""The reconvergence stack of a warp as LLVM IR text, the same machine as numpy_executor.stack."""

from __future__ import annotations

from functional.llvm_executor import context_layout as at
from functional.llvm_executor.runtime_memory import put


def field(name: str, offset: int, kind: str = "i32", frame: str = "%frame") -> str:
    """IR that loads a frame field into %name, its address in %name.p."""
    address = f"  %{name}.p = getelementptr i8, ptr {frame}, i64 {offset}\n"
    return address + f"  %{name} = load {kind}, ptr %{name}.p, align 4\n"


STACK = f"""
; Drop entries that reached their reconvergence block or have no lane left. Yields the block to run; -1: no lane left.
define i32 @settle(ptr %frame) #0 {{
entry:
  br label %loop
loop:
{field("block", at.BLOCK)}{field("meet", at.RECONVERGENCE)}{field("mask", at.MASK)}  %none = icmp eq i32 %mask, 0
  %met = icmp eq i32 %block, %meet
  %drop = or i1 %none, %met
  br i1 %drop, label %pop, label %run
run:
  ret i32 %block
pop:
{field("depth", at.DEPTH)}  %bottom = icmp eq i32 %depth, 0
  br i1 %bottom, label %done, label %restore
done:
  ret i32 -1
restore:
  %d = sub i32 %depth, 1
  store i32 %d, ptr %depth.p, align 4
  %o = mul i32 %d, 16
  %o1 = add i32 %o, {at.STACK}
  %e = getelementptr i8, ptr %frame, i32 %o1
  %saved = load <4 x i32>, ptr %e, align 4
  %b = extractelement <4 x i32> %saved, i32 0
  %r = extractelement <4 x i32> %saved, i32 1
  %m = extractelement <4 x i32> %saved, i32 2
  %base = extractelement <4 x i32> %saved, i32 3
  %base.p = getelementptr i8, ptr %frame, i64 {at.BASE}
  store i32 %base, ptr %base.p, align 4
  store i32 %b, ptr %block.p, align 4
  store i32 %r, ptr %meet.p, align 4
  store i32 %m, ptr %mask.p, align 4
  br label %loop
}}

define internal i1 @save(ptr %frame) #0 {{
entry:
{field("depth", at.DEPTH)}  %full = icmp sge i32 %depth, {at.STACK_DEPTH}
  br i1 %full, label %no, label %yes
yes:
{field("block", at.BLOCK)}{field("meet", at.RECONVERGENCE)}{field("mask", at.MASK)}{
    field("base", at.BASE)
}  %o = mul i32 %depth, 16
  %o1 = add i32 %o, {at.STACK}
  %e = getelementptr i8, ptr %frame, i32 %o1
  store i32 %block, ptr %e, align 4
  %e1 = getelementptr i8, ptr %e, i64 4
  store i32 %meet, ptr %e1, align 4
  %e2 = getelementptr i8, ptr %e, i64 8
  store i32 %mask, ptr %e2, align 4
  %e3 = getelementptr i8, ptr %e, i64 12
  store i32 %base, ptr %e3, align 4
  %d = add i32 %depth, 1
  store i32 %d, ptr %depth.p, align 4
  ret i1 true
no:
  ret i1 false
}}

; Lanes %taken go to block %target, the others to %after; both are not empty. Yields as settle.
define i32 @diverge(ptr %ctx, ptr %frame, i32 %target, i32 %taken, i32 %after, i32 %meeting) #0 {{
entry:
{field("block", at.BLOCK)}{field("meet", at.RECONVERGENCE)}{field("mask", at.MASK)}  %t = xor i32 %taken, -1
  %others = and i32 %mask, %t
  store i32 %meeting, ptr %block.p, align 4
  %here = icmp eq i32 %meet, %meeting
  %waits = icmp eq i32 %after, %meeting
  br i1 %waits, label %first, label %second
second:
  br i1 %here, label %set2, label %save2
save2:
  %ok2 = call i1 @save(ptr %frame)
  br i1 %ok2, label %set2, label %bad
set2:
  store i32 %after, ptr %block.p, align 4
  store i32 %meeting, ptr %meet.p, align 4
  store i32 %others, ptr %mask.p, align 4
  br label %first
first:
  %fresh = phi i1 [ %here, %entry ], [ false, %set2 ]
  %waits1 = icmp eq i32 %target, %meeting
  br i1 %waits1, label %end, label %push
push:
  br i1 %fresh, label %set1, label %save1
save1:
  %ok1 = call i1 @save(ptr %frame)
  br i1 %ok1, label %set1, label %bad
set1:
  store i32 %target, ptr %block.p, align 4
  store i32 %meeting, ptr %meet.p, align 4
  store i32 %taken, ptr %mask.p, align 4
  br label %end
end:
  %n = call i32 @settle(ptr %frame)
  ret i32 %n
bad:
{put("fault", "1")}  ret i32 -1
}}

; Lanes leave the top and the saved entries from %lowest on; the others go to block %after. Yields as settle.
define i32 @leave(ptr %frame, i32 %lanes, i32 %after, i32 %lowest) #0 {{
entry:
{field("block", at.BLOCK)}{field("mask", at.MASK)}{field("depth", at.DEPTH)}  store i32 %after, ptr %block.p, align 4
  %stay = xor i32 %lanes, -1
  %m = and i32 %mask, %stay
  store i32 %m, ptr %mask.p, align 4
  br label %loop
loop:
  %i = phi i32 [ %lowest, %entry ], [ %i1, %body ]
  %more = icmp slt i32 %i, %depth
  br i1 %more, label %body, label %out
body:
  %o = mul i32 %i, 16
  %o1 = add i32 %o, {at.STACK + 8}
  %e = getelementptr i8, ptr %frame, i32 %o1
  %v = load i32, ptr %e, align 4
  %w = and i32 %v, %stay
  store i32 %w, ptr %e, align 4
  %i1 = add i32 %i, 1
  br label %loop
out:
  %n = call i32 @settle(ptr %frame)
  ret i32 %n
}}
"""
