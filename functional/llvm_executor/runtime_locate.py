"""Checked and recorded host addresses of any access, as LLVM IR text: one helper a space."""

from __future__ import annotations

from functional.llvm_executor.runtime_memory import IOTA, SPACES, get, put, record, splat
from functional.traces.trace import PARAM_WINDOW_LINE


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


def text() -> str:
    """All helpers of this file."""
    parts = [locate(space) + check(space) for space in SPACES]
    parts += [locate_one(space) for space in SPACES if space not in ("local", "stored")]
    return "".join(parts)
