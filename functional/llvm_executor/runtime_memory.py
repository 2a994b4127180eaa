"""What the memory helpers share: IR that reads and writes the context, state spaces, and the search for a region."""

from __future__ import annotations

from functional.llvm_executor.context_layout import LOADED, SLOT, STORED
from functional.traces.trace import PARAM_WINDOW_LINE

IOTA = ", ".join(f"i64 {i}" for i in range(32))
SIZES = (8, 16, 32, 64)
# space -> (host base, address limit or None for the region table)
SPACES = {
    "global": ("arena", None), "stored": ("arena", None),  # global memory that is written to
    "shared": ("shared", "shared_limit"), "const": ("const", "const_limit"),
    "param": ("param", "param_limit"), "local": ("local", "local_limit"),
}  # fmt: skip


def get(name: str, slot: str, kind: str = "i64") -> str:
    """IR that loads a slot of the context into %name."""
    return (
        f"  %{name}.p = getelementptr i8, ptr %ctx, i64 {SLOT[slot]}\n  %{name} = load {kind}, ptr %{name}.p, align 8\n"
    )


def put(slot: str, value: str, kind: str = "i64") -> str:
    """IR that stores into a slot of the context."""
    name = f"%put.{slot}.{value.lstrip('%')}"
    return f"  {name} = getelementptr i8, ptr %ctx, i64 {SLOT[slot]}\n  store {kind} {value}, ptr {name}, align 8\n"


def splat(name: str, kind: str, value: str) -> str:
    """IR of %name = the scalar %value in all lanes."""
    return (
        f"  %{name}.0 = insertelement <32 x {kind}> poison, {kind} {value}, i32 0\n"
        f"  %{name} = shufflevector <32 x {kind}> %{name}.0, <32 x {kind}> poison, <32 x i32> zeroinitializer\n"
    )


def record(space: str, address: str, size: str) -> str:
    """Call that logs a vector access."""
    if space == "shared":
        return f"  call void @conflict_lanes(ptr %ctx, <32 x i64> {address}, i32 %mask)\n"
    if space == "local":
        return f"  call void @record_local(ptr %ctx, <32 x i64> {address}, i32 %mask, i64 {size})\n"
    if space == "param":
        moved = f"  %window = add <32 x i64> {address}, splat (i64 {PARAM_WINDOW_LINE * 128})\n"
        return moved + "  call void @record_lanes(ptr %ctx, <32 x i64> %window, i32 %mask)\n"
    return f"  call void @record_lanes(ptr %ctx, <32 x i64> {address}, i32 %mask)\n"


def _touch(what: int) -> str:
    """IR that notes who has found region %at."""
    return (
        get("flags", "touched", "ptr")
        + f"""  %flag = getelementptr i8, ptr %flags, i64 %at
  %known = load i8, ptr %flag, align 1
  %now = or i8 %known, {what}
  store i8 %now, ptr %flag, align 1
"""
    )


def _find(space: str) -> str:
    """The search for a region, by loads (`global`) or by stores (`stored`)."""
    last, touch = ("last", LOADED) if space == "global" else ("stored", STORED)
    return f"""
; Is [%first, %stop) inside one region? Remembers the region.
define i1 @find_region_{space}(ptr %ctx, i64 %first, i64 %stop) #0 {{
entry:
{get("starts", "starts", "ptr")}{get("ends", "ends", "ptr")}{get("count", "regions")}  br label %loop
loop:
  %low = phi i64 [ 0, %entry ], [ %low1, %step ]
  %high = phi i64 [ %count, %entry ], [ %high1, %step ]
  %open = icmp ult i64 %low, %high
  br i1 %open, label %step, label %found
step:
  %sum = add i64 %low, %high
  %middle = lshr i64 %sum, 1
  %p = getelementptr i64, ptr %starts, i64 %middle
  %start = load i64, ptr %p, align 8
  %right = icmp ule i64 %start, %first
  %after = add i64 %middle, 1
  %low1 = select i1 %right, i64 %after, i64 %low
  %high1 = select i1 %right, i64 %high, i64 %middle
  br label %loop
found:
  %none = icmp eq i64 %low, 0
  br i1 %none, label %no, label %check
check:
  %at = sub i64 %low, 1
  %ps = getelementptr i64, ptr %starts, i64 %at
  %s = load i64, ptr %ps, align 8
  %pe = getelementptr i64, ptr %ends, i64 %at
  %e = load i64, ptr %pe, align 8
  %in = icmp ule i64 %stop, %e
  %order = icmp ult i64 %first, %stop
  %good = and i1 %in, %order
  br i1 %good, label %yes, label %no
yes:
{put(last + "_start", "%s")}{put(last + "_end", "%e")}{_touch(touch)}  ret i1 true
no:
  ret i1 false
}}
"""


def _in_region(space: str) -> str:
    """Is a range in the region that was found last, or in another one?"""
    last = "last" if space == "global" else "stored"
    return f"""
define i1 @in_region_{space}(ptr %ctx, i64 %first, i64 %stop) alwaysinline #0 {{
entry:
{get("s", last + "_start")}{get("e", last + "_end")}  %a = icmp uge i64 %first, %s
  %b = icmp ule i64 %stop, %e
  %c = icmp ult i64 %first, %stop
  %ab = and i1 %a, %b
  %abc = and i1 %ab, %c
  br i1 %abc, label %yes, label %search
yes:
  ret i1 true
search:
  %found = call i1 @find_region_{space}(ptr %ctx, i64 %first, i64 %stop)
  ret i1 %found
}}
"""


def _lanes(space: str) -> str:
    """The same of the words of lanes."""
    return f"""
; Are all lanes inside regions? One region for all first, then lane after lane.
define i1 @lanes_in_regions_{space}(ptr %ctx, <32 x i64> %address, i32 %mask, i64 %size) #0 {{
entry:
  %array = alloca <32 x i64>, align 64
  %lanes = bitcast i32 %mask to <32 x i1>
  %lows = select <32 x i1> %lanes, <32 x i64> %address, <32 x i64> splat (i64 -1)
  %highs = select <32 x i1> %lanes, <32 x i64> %address, <32 x i64> zeroinitializer
  %low = call i64 @llvm.vector.reduce.umin.v32i64(<32 x i64> %lows)
  %high = call i64 @llvm.vector.reduce.umax.v32i64(<32 x i64> %highs)
  %stop = add i64 %high, %size
  %one = call i1 @in_region_{space}(ptr %ctx, i64 %low, i64 %stop)
  br i1 %one, label %good, label %each
each:
  store <32 x i64> %address, ptr %array, align 64
  br label %loop
loop:
  %rest = phi i32 [ %mask, %each ], [ %left, %next ]
  %i = call i32 @llvm.cttz.i32(i32 %rest, i1 true)
  %below = sub i32 %rest, 1
  %left = and i32 %rest, %below
  %p = getelementptr i64, ptr %array, i32 %i
  %a = load i64, ptr %p, align 8
  %e = add i64 %a, %size
  %in = call i1 @in_region_{space}(ptr %ctx, i64 %a, i64 %e)
  br i1 %in, label %next, label %bad
next:
  %finished = icmp eq i32 %left, 0
  br i1 %finished, label %good, label %loop
good:
  ret i1 true
bad:
  ret i1 false
}}
"""


REGIONS = "".join(_find(space) + _in_region(space) + _lanes(space) for space in ("global", "stored"))
