"""The reconvergence stack of a warp as LLVM IR text, the same machine as numpy_executor.stack; calls and jump tables on
it.
"""

from __future__ import annotations

from functional.llvm_executor import context_layout as at
from functional.llvm_executor.runtime_memory import put


def field(name: str, offset: int, kind: str = "i32", frame: str = "%frame") -> str:
    """IR that loads a frame field into %name, its address in %name.p."""
    address = f"  %{name}.p = getelementptr i8, ptr {frame}, i64 {offset}\n"
    return address + f"  %{name} = load {kind}, ptr %{name}.p, align 4\n"


def _top(block: str, meet: str, mask: str) -> str:
    """IR that makes these the top entry, whose fields have been loaded."""
    values = (("block", block), ("meet", meet), ("mask", mask))
    return "".join(f"  store i32 {value}, ptr %{name}.p, align 4\n" for name, value in values)


_TOP = field("block", at.BLOCK) + field("meet", at.RECONVERGENCE) + field("mask", at.MASK)
_END = f"""end:
  %n = call i32 @settle(ptr %frame)
  ret i32 %n
bad:
{put("fault", "1")}  ret i32 -1
}}
"""
STACK = f"""
; Drop entries that reached their reconvergence block or have no lane left. Yields the block to run; -1: no lane left.
define i32 @settle(ptr %frame) #0 {{
entry:
  br label %loop
loop:
{_TOP}  %none = icmp eq i32 %mask, 0
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
{_top("%b", "%r", "%m")}  br label %loop
}}

define internal i1 @save(ptr %frame) #0 {{
entry:
{field("depth", at.DEPTH)}  %full = icmp sge i32 %depth, {at.STACK_DEPTH}
  br i1 %full, label %no, label %yes
yes:
{_TOP}{field("base", at.BASE)}  %o = mul i32 %depth, 16
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
{_TOP}  %t = xor i32 %taken, -1
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
{_top("%after", "%meeting", "%others")}  br label %first
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
{_top("%target", "%meeting", "%taken")}  br label %end
{_END}
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
{field("meet", at.RECONVERGENCE)}{field("mask", at.MASK)}{field("depth", at.DEPTH)}{field("base", at.BASE)}{
    _top("%entry", "-1", "%lanes")
}  store i32 %depth, ptr %base.p, align 4
  br label %end
{_END}
; The active lanes split into %count paths {{block, lanes}}, some of them empty; the first one runs first. As settle.
define i32 @fork(ptr %ctx, ptr %frame, ptr %paths, i32 %count, i32 %meeting) #0 {{
entry:
{_TOP}  br label %look
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
{_top("%b2", "%meeting", "%l2")}  br label %next
last:
  br label %end
{_END}"""
