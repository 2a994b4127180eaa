"""The sorting of a chunk's streams into those of each warp, as LLVM IR text.

The table of segments says who wrote what: a row {warp, first event, first record, first conflict} for each turn of a
warp, in the order of execution, and one behind the last that says where the streams end.
"""

from __future__ import annotations

from functional.llvm_executor.context_layout import SEGMENT_WORDS

# Addresses and sizes of what streams.Streams passes, in this order, 8 bytes each
JOB = (
    "segments", "count", "warps",
    "places",  # room for a row more than there are warps, of zeros at first: the first segment, event, ... of each warp
    "event_offsets", "record_offsets", "conflict_offsets",
    "order",  # room for as many i64 as there are segments
    "blocks", "masks",  # as they were written
    "to_blocks", "to_masks", "to_records", "to_conflicts",
)  # fmt: skip
COPY_BYTES = 32  # of a copy: so much behind every stream is read, and written where it goes
_NUMBERS = ("count", "warps")
_ROW = 8 * SEGMENT_WORDS


def _load(names: tuple[str, ...]) -> str:
    lines = []
    for name in names:
        kind = "i64" if name in _NUMBERS else "ptr"
        lines.append(f"  %{name}.p = getelementptr i64, ptr %job, i64 {JOB.index(name)}\n")
        lines.append(f"  %{name} = load {kind}, ptr %{name}.p, align 8\n")
    return "".join(lines)


def _row(name: str, table: str, number: str) -> str:
    """IR of %name.p = address of a row of four words."""
    return f"  %{name}.b = mul i64 {number}, {_ROW}\n  %{name}.p = getelementptr i8, ptr %{table}, i64 %{name}.b\n"


def _piece(name: str, start: str) -> str:
    """IR that copies %name.bytes bytes from %name.from to %to.name, yields %next.name, and goes on at `done.name`."""
    return f"""  %{name}.some = icmp ne i64 %{name}.bytes, 0
  br i1 %{name}.some, label %copy.{name}, label %done.{name}
copy.{name}:
  %{name}.at = phi i64 [ 0, %{start} ], [ %{name}.at1, %copy.{name} ]
  %{name}.s = getelementptr i8, ptr %{name}.from, i64 %{name}.at
  %{name}.d = getelementptr i8, ptr %to.{name}, i64 %{name}.at
  %{name}.v = load <{COPY_BYTES} x i8>, ptr %{name}.s, align 1
  store <{COPY_BYTES} x i8> %{name}.v, ptr %{name}.d, align 1
  %{name}.at1 = add i64 %{name}.at, {COPY_BYTES}
  %{name}.more = icmp ult i64 %{name}.at1, %{name}.bytes
  br i1 %{name}.more, label %copy.{name}, label %done.{name}
done.{name}:
  %next.{name} = getelementptr i8, ptr %to.{name}, i64 %{name}.bytes
"""


_MEASURE = f"""
; Offsets of each warp's streams, and where its segments go in their sorted order. Do the segments ascend already?
define i32 @measure(ptr %job) #0 {{
entry:
{_load(JOB[:7])}  br label %segment
segment:
  %i = phi i64 [ 0, %entry ], [ %i1, %add ]
  %before = phi i64 [ 0, %entry ], [ %warp, %add ]
  %ascends = phi i1 [ true, %entry ], [ %ascends1, %add ]
  %i1 = add i64 %i, 1
  %left = icmp ult i64 %i, %count
  br i1 %left, label %add, label %sum
add:
{_row("here", "segments", "%i")}{_row("there", "segments", "%i1")}  %from = load <4 x i64>, ptr %here.p, align 8
  %to = load <4 x i64>, ptr %there.p, align 8
  %distance = sub <4 x i64> %to, %from
  %lengths = lshr <4 x i64> %distance, <i64 0, i64 0, i64 2, i64 0>
  %one = insertelement <4 x i64> %lengths, i64 1, i32 0
  %warp = extractelement <4 x i64> %from, i32 0
  %behind = add i64 %warp, 1
{_row("place", "places", "%behind")}  %old = load <4 x i64>, ptr %place.p, align 8
  %new = add <4 x i64> %old, %one
  store <4 x i64> %new, ptr %place.p, align 8
  %not.less = icmp uge i64 %warp, %before
  %ascends1 = and i1 %ascends, %not.less
  br label %segment
sum:
  %w = phi i64 [ 0, %segment ], [ %w1, %sum ]
  %total = phi <4 x i64> [ zeroinitializer, %segment ], [ %total1, %sum ]
{_row("at", "places", "%w")}  %own = load <4 x i64>, ptr %at.p, align 8
  %total1 = add <4 x i64> %total, %own
  store <4 x i64> %total1, ptr %at.p, align 8
{
    "".join(
        f'''  %{name}.at = getelementptr i64, ptr %{name}_offsets, i64 %w
  %{name}.v = extractelement <4 x i64> %total1, i32 {k}
  store i64 %{name}.v, ptr %{name}.at, align 8
'''
        for k, name in ((1, "event"), (2, "record"), (3, "conflict"))
    )
}  %w1 = add i64 %w, 1
  %again = icmp ule i64 %w1, %warps
  br i1 %again, label %sum, label %out
out:
  %result = zext i1 %ascends to i32
  ret i32 %result
}}
"""

_GATHER = f"""
; Copies the segments in the order of their warps.
define i32 @gather_streams(ptr %job) #0 {{
entry:
{_load(("segments", "count", "places", *JOB[7:]))}  br label %segment
segment:
  %i = phi i64 [ 0, %entry ], [ %i1, %put ]
  %left = icmp ult i64 %i, %count
  br i1 %left, label %put, label %sorted
put:
{_row("here", "segments", "%i")}  %warp = load i64, ptr %here.p, align 8
{_row("place", "places", "%warp")}  %at = load i64, ptr %place.p, align 8
  %at1 = add i64 %at, 1
  store i64 %at1, ptr %place.p, align 8
  %slot = getelementptr i64, ptr %order, i64 %at
  store i64 %i, ptr %slot, align 8
  %i1 = add i64 %i, 1
  br label %segment
sorted:
  %k = phi i64 [ 0, %segment ], [ %k1, %done.conflicts ]
  %to.blocks = phi ptr [ %to_blocks, %segment ], [ %next.blocks, %done.conflicts ]
  %to.masks = phi ptr [ %to_masks, %segment ], [ %next.masks, %done.conflicts ]
  %to.records = phi ptr [ %to_records, %segment ], [ %next.records, %done.conflicts ]
  %to.conflicts = phi ptr [ %to_conflicts, %segment ], [ %next.conflicts, %done.conflicts ]
  %more = icmp ult i64 %k, %count
  br i1 %more, label %piece, label %out
piece:
  %chosen.p = getelementptr i64, ptr %order, i64 %k
  %chosen = load i64, ptr %chosen.p, align 8
  %following = add i64 %chosen, 1
{_row("one", "segments", "%chosen")}{_row("two", "segments", "%following")}  %from = load <4 x i64>, ptr %one.p, align 8
  %end = load <4 x i64>, ptr %two.p, align 8
  %lengths = sub <4 x i64> %end, %from
  %event = extractelement <4 x i64> %from, i32 1
  %events = extractelement <4 x i64> %lengths, i32 1
  %records.address = extractelement <4 x i64> %from, i32 2
  %conflicts.address = extractelement <4 x i64> %from, i32 3
  %blocks.from = getelementptr i16, ptr %blocks, i64 %event
  %masks.from = getelementptr i32, ptr %masks, i64 %event
  %records.from = inttoptr i64 %records.address to ptr
  %conflicts.from = inttoptr i64 %conflicts.address to ptr
  %blocks.bytes = shl i64 %events, 1
  %masks.bytes = shl i64 %events, 2
  %records.bytes = extractelement <4 x i64> %lengths, i32 2
  %conflicts.bytes = extractelement <4 x i64> %lengths, i32 3
{_piece("blocks", "piece")}{_piece("masks", "done.blocks")}{_piece("records", "done.masks")}{
    _piece("conflicts", "done.records")
}  %k1 = add i64 %k, 1
  br label %sorted
out:
  ret i32 0
}}
"""

STREAMS = _MEASURE + _GATHER
