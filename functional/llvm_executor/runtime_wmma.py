"""Whole matrices in memory, for `wmma`, as LLVM IR text: bounds, records, and the product of row-major matrices."""

from __future__ import annotations

from functional.isa.windows import WINDOWS
from functional.launches.memory import GLOBAL_BASE
from functional.llvm_executor.runtime_memory import SPACES, get, put
from functional.traces.line_record import LINE_SHIFT, MORE, SECTOR_SHIFT

_MULTIPLY = """
; C = A B of row-major float64 matrices, the sum over k in ascending order; n is a multiple of 8.
define void @multiply_rows(ptr %a, ptr %b, ptr %c, i64 %m, i64 %n, i64 %k) #0 {
entry:
  %bytes = mul i64 %n, 8
  %all = mul i64 %bytes, %m
  call void @llvm.memset.p0.i64(ptr %c, i8 0, i64 %all, i1 false)
  br label %depth
depth:
  %d = phi i64 [ 0, %entry ], [ %d1, %depth.next ]
  %bo = mul i64 %d, %bytes
  %brow = getelementptr i8, ptr %b, i64 %bo
  br label %row
row:
  %r = phi i64 [ 0, %depth ], [ %r1, %row.next ]
  %ai0 = mul i64 %r, %k
  %ai = add i64 %ai0, %d
  %ap = getelementptr double, ptr %a, i64 %ai
  %av = load double, ptr %ap, align 8
  %a0 = insertelement <8 x double> poison, double %av, i32 0
  %left = shufflevector <8 x double> %a0, <8 x double> poison, <8 x i32> zeroinitializer
  %co = mul i64 %r, %bytes
  %crow = getelementptr i8, ptr %c, i64 %co
  br label %column
column:
  %j = phi i64 [ 0, %row ], [ %j1, %column ]
  %bp = getelementptr double, ptr %brow, i64 %j
  %right = load <8 x double>, ptr %bp, align 8
  %cp = getelementptr double, ptr %crow, i64 %j
  %old = load <8 x double>, ptr %cp, align 8
  %product = fmul <8 x double> %left, %right
  %new = fadd <8 x double> %old, %product
  store <8 x double> %new, ptr %cp, align 8
  %j1 = add i64 %j, 8
  %jmore = icmp ult i64 %j1, %n
  br i1 %jmore, label %column, label %row.next
row.next:
  %r1 = add i64 %r, 1
  %rmore = icmp ult i64 %r1, %m
  br i1 %rmore, label %row, label %depth.next
depth.next:
  %d1 = add i64 %d, 1
  %dmore = icmp ult i64 %d1, %k
  br i1 %dmore, label %depth, label %done
done:
  ret void
}
"""

# Ascending sectors become records; the last one is closed by close_matrix.
_SECTORS = f"""
define internal void @log_matrix(ptr %ctx, i64 %base, i64 %stride, i64 %lines, i64 %length) #0 {{
entry:
{get("at", "records", "ptr")}  %first.sector = lshr i64 %base, 5
  %first.line = lshr i64 %first.sector, 2
  br label %line
line:
  %i = phi i64 [ 0, %entry ], [ %i1, %line.next ]
  %to = phi ptr [ %at, %entry ], [ %to1, %line.next ]
  %current = phi i64 [ %first.line, %entry ], [ %current1, %line.next ]
  %bits = phi i64 [ 0, %entry ], [ %bits1, %line.next ]
  %o = mul i64 %i, %stride
  %start = add i64 %base, %o
  %past = add i64 %start, %length
  %final = sub i64 %past, 1
  %low = lshr i64 %start, 5
  %high = lshr i64 %final, 5
  br label %sector
sector:
  %s = phi i64 [ %low, %line ], [ %s1, %merged ]
  %to0 = phi ptr [ %to, %line ], [ %to1, %merged ]
  %current0 = phi i64 [ %current, %line ], [ %own, %merged ]
  %bits0 = phi i64 [ %bits, %line ], [ %bits1, %merged ]
  %own = lshr i64 %s, 2
  %same = icmp eq i64 %own, %current0
  br i1 %same, label %merged, label %emit
emit:
  %key = shl i64 %current0, {LINE_SHIFT}
  %shifted = shl i64 %bits0, {SECTOR_SHIFT}
  %joined = or i64 %key, %shifted
  %record64 = or i64 %joined, {MORE}
  %record = trunc i64 %record64 to i32
  store i32 %record, ptr %to0, align 4
  %next = getelementptr i8, ptr %to0, i64 4
  br label %merged
merged:
  %to1 = phi ptr [ %to0, %sector ], [ %next, %emit ]
  %kept = phi i64 [ %bits0, %sector ], [ 0, %emit ]
  %place = and i64 %s, 3
  %bit = shl i64 1, %place
  %bits1 = or i64 %kept, %bit
  %current1 = add i64 %own, 0
  %s1 = add i64 %s, 1
  %smore = icmp ule i64 %s1, %high
  br i1 %smore, label %sector, label %line.next
line.next:
  %i1 = add i64 %i, 1
  %imore = icmp ult i64 %i1, %lines
  br i1 %imore, label %line, label %close
close:
  %lkey = shl i64 %current1, {LINE_SHIFT}
  %lbits = shl i64 %bits1, {SECTOR_SHIFT}
  %last64 = or i64 %lkey, %lbits
  %last = trunc i64 %last64 to i32
  store i32 %last, ptr %to1, align 4
  %end = getelementptr i8, ptr %to1, i64 4
{put("records", "%end", "ptr")}  ret void
}}

define internal void @count_matrix(ptr %ctx, i64 %base, i64 %stride, i64 %lines, i64 %length) #0 {{
entry:
  %counts = alloca <32 x i16>, align 64
  store <32 x i16> zeroinitializer, ptr %counts, align 64
  %words = lshr i64 %length, 2
  br label %line
line:
  %i = phi i64 [ 0, %entry ], [ %i1, %line.next ]
  %most = phi i16 [ 0, %entry ], [ %most1, %line.next ]
  %o = mul i64 %i, %stride
  %start = add i64 %base, %o
  %first = lshr i64 %start, 2
  br label %word
word:
  %w = phi i64 [ 0, %line ], [ %w1, %word ]
  %most0 = phi i16 [ %most, %line ], [ %most1, %word ]
  %number = add i64 %first, %w
  %bank = and i64 %number, 31
  %p = getelementptr i16, ptr %counts, i64 %bank
  %c = load i16, ptr %p, align 2
  %c1 = add i16 %c, 1
  store i16 %c1, ptr %p, align 2
  %larger = icmp ugt i16 %c1, %most0
  %most1 = select i1 %larger, i16 %c1, i16 %most0
  %w1 = add i64 %w, 1
  %wmore = icmp ult i64 %w1, %words
  br i1 %wmore, label %word, label %line.next
line.next:
  %i1 = add i64 %i, 1
  %imore = icmp ult i64 %i1, %lines
  br i1 %imore, label %line, label %done
done:
  %passes = trunc i16 %most1 to i8
  call void @conflict(ptr %ctx, i8 %passes)
  ret void
}}
"""


def _matrix(space: str) -> str:
    """Log %lines lines of %length bytes, %stride apart; yields the host address of the first. Odd ones fault."""
    base, limit = SPACES[space]
    log = "count_matrix" if space == "shared" else "log_matrix"
    if limit is None:
        inside = f"  %inside = call i1 @in_region_{space}(ptr %ctx, i64 %start, i64 %stop)\n"
    else:
        inside = get("limit", limit) + "  %inside = icmp ule i64 %stop, %limit\n"
    return f"""
define i64 @matrix_{space}(ptr %ctx, i64 %base, i64 %stride, i64 %lines, i64 %length) #0 {{
entry:
  %both = or i64 %base, %stride
  %low = and i64 %both, 3
  %aligned = icmp eq i64 %low, 0
  %apart = icmp uge i64 %stride, %length
  %simple = and i1 %aligned, %apart
  br i1 %simple, label %line, label %bad
line:
  %i = phi i64 [ 0, %entry ], [ %i1, %next ]
  %o = mul i64 %i, %stride
  %start = add i64 %base, %o
  %stop = add i64 %start, %length
{inside}  br i1 %inside, label %next, label %bad
next:
{"  call void @keep_range(ptr %ctx, i64 %start, i64 %stop)" if space == "stored" else ""}
  %i1 = add i64 %i, 1
  %more = icmp ult i64 %i1, %lines
  br i1 %more, label %line, label %good
good:
  call void @{log}(ptr %ctx, i64 %base, i64 %stride, i64 %lines, i64 %length)
{get("origin", base)}  %host = add i64 %origin, %base
  ret i64 %host
bad:
{put("fault", "1")}{get("scratch", "scratch")}  ret i64 %scratch
}}
"""


def _generic(space: str) -> str:
    """A generic address: of global memory (`space`), or of shared memory, where every pass is a record."""
    return f"""
define i64 @matrix_generic_{space}(ptr %ctx, i64 %base, i64 %stride, i64 %lines, i64 %length) #0 {{
entry:
  %global = icmp uge i64 %base, {GLOBAL_BASE}
  br i1 %global, label %outside, label %inside
outside:
  %far = call i64 @matrix_{space}(ptr %ctx, i64 %base, i64 %stride, i64 %lines, i64 %length)
  ret i64 %far
inside:
  %moved = sub i64 %base, {WINDOWS["shared"][0]}
{
        get("con", "conflicts", "ptr")
    }  %near = call i64 @matrix_shared(ptr %ctx, i64 %moved, i64 %stride, i64 %lines, i64 %length)
  %passes = load i8, ptr %con, align 1
{get("fault", "fault")}  %wrong = icmp ne i64 %fault, 0
  br i1 %wrong, label %out, label %log
log:
{put("conflicts", "%con", "ptr")}  call void @log_passes(ptr %ctx, i8 %passes)
  br label %out
out:
  ret i64 %near
}}
"""


def text() -> str:
    """All helpers of this file."""
    return "".join([
        _MULTIPLY, _SECTORS, *map(_matrix, ("global", "stored", "shared")), *map(_generic, ("global", "stored")),
    ])  # fmt: skip
