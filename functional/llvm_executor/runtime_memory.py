"""Checked and recorded host addresses of any access, as LLVM IR text: what the memory helpers share (IR that reads and
writes the context, state spaces, the search for a region), one helper a space, generic accesses outside global memory,
copies into shared memory.
"""

from __future__ import annotations

from functional.isa.memory import WINDOWS
from functional.llvm_executor.context_layout import LOADED, SLOT, STORED
from functional.traces.line_record import MORE, SHARED_PASS
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


def _lanes_in_regions(space: str) -> str:
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


REGIONS = "".join(_find(space) + _in_region(space) + _lanes_in_regions(space) for space in ("global", "stored"))


def _fault(result: str) -> str:
    return f"bad:\n{put('fault', '1')}{get('scratch', 'scratch')}{result}"


def empty(space: str) -> str:
    """Call that logs an access without an active lane."""
    if space == "shared":
        return "  call void @conflict(ptr %ctx, i8 0)\n"
    return "  call void @record(ptr %ctx, i32 0)\n"


def locate(space: str) -> str:
    """Host addresses of checked lanes; those of a scratch area after a fault. At least one lane is active."""
    base, limit = SPACES[space]
    if limit is None:
        bounds = f"  %inside = call i1 @lanes_in_regions_{space}(ptr %ctx, <32 x i64> %address, i32 %mask, i64 %size)\n"
    else:
        bounds = f"""{
            get("limit", limit)
        }  %highs = select <32 x i1> %lanes, <32 x i64> %address, <32 x i64> zeroinitializer
  %high = call i64 @llvm.vector.reduce.umax.v32i64(<32 x i64> %highs)
  %room = sub i64 %limit, %size
  %fits = icmp sge i64 %room, 0
  %under = icmp ule i64 %high, %room
  %inside = and i1 %fits, %under
"""
    lane = "  call void @keep_lanes(ptr %ctx, <32 x i64> %address, i32 %mask)\n" if space == "stored" else ""
    place = "%address"
    if space == "local":
        lane = get("stride", "local_stride") + splat("st", "i64", "%stride")
        lane += f"  %own = mul <32 x i64> %st, <{IOTA}>\n  %place = add <32 x i64> %own, %address\n"
        place = "%place"
    return f"""
define <32 x i64> @locate_{space}(ptr %ctx, <32 x i64> %address, i32 %mask, i64 %size) #0 {{
entry:
  %lanes = bitcast i32 %mask to <32 x i1>
{bounds}  %low = sub i64 %size, 1
{splat("lows", "i64", "%low")}  %rest = and <32 x i64> %address, %lows
  %off = icmp ne <32 x i64> %rest, zeroinitializer
  %wrong0 = bitcast <32 x i1> %off to i32
  %wrong = and i32 %wrong0, %mask
  %aligned = icmp eq i32 %wrong, 0
  %good = and i1 %aligned, %inside
  br i1 %good, label %go, label %bad
go:
{get("base", base)}{lane}{splat("bases", "i64", "%base")}  %host = add <32 x i64> %bases, {place}
  ret <32 x i64> %host
{_fault("")}{splat("safe", "i64", "%scratch")}  ret <32 x i64> %safe
}}
"""


def check(space: str) -> str:
    """Record and locate; lanes of an empty mask are at the scratch area."""
    return f"""
define <32 x i64> @check_{space}(ptr %ctx, <32 x i64> %address, i32 %mask, i64 %size) #0 {{
entry:
  %some = icmp ne i32 %mask, 0
  br i1 %some, label %go, label %none
go:
{record(space, "%address", "%size")}  %host = call <32 x i64> @locate_{
        space
    }(ptr %ctx, <32 x i64> %address, i32 %mask, i64 %size)
  ret <32 x i64> %host
none:
{empty(space)}{get("scratch", "scratch")}{splat("safe", "i64", "%scratch")}  ret <32 x i64> %safe
}}
"""


def locate_one(space: str) -> str:
    """Record and locate an address that all lanes share (not local memory)."""
    base, limit = SPACES[space]
    if limit is None:
        bounds = f"  %inside = call i1 @in_region_{space}(ptr %ctx, i64 %address, i64 %stop)\n"
    else:
        bounds = f"""{get("limit", limit)}  %a = icmp ule i64 %stop, %limit
  %b = icmp ult i64 %address, %stop
  %inside = and i1 %a, %b
"""
    shift = f"  %moved = add i64 %address, {PARAM_WINDOW_LINE * 128 if space == 'param' else 0}\n"
    record = shift + "  call void @record_one(ptr %ctx, i64 %moved)\n"
    if space == "shared":
        record = "  call void @conflict(ptr %ctx, i8 1)\n"
    return f"""
define i64 @check_one_{space}(ptr %ctx, i64 %address, i32 %mask, i64 %size) #0 {{
entry:
  %some = icmp ne i32 %mask, 0
  br i1 %some, label %go, label %none
go:
{record}  %stop = add i64 %address, %size
{bounds}  %low = sub i64 %size, 1
  %rest = and i64 %address, %low
  %aligned = icmp eq i64 %rest, 0
  %good = and i1 %aligned, %inside
  br i1 %good, label %host, label %bad
host:
{get("base", base)}  %h = add i64 %base, %address
  ret i64 %h
none:
{empty(space)}{get("nowhere", "scratch")}  ret i64 %nowhere
{_fault("")}  ret i64 %scratch
}}
"""


def locating() -> str:
    """All helpers of this file."""
    parts = [locate(space) + check(space) for space in SPACES]
    parts += [locate_one(space) for space in SPACES if space not in ("local", "stored")]
    return "".join(parts)


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
