"""Matrices as LLVM IR text: products, whole matrices in memory (bounds and records), and searches across the lanes of a
warp.
"""

from __future__ import annotations

from functional.isa.memory import WINDOWS
from functional.launches.memory import GLOBAL_BASE
from functional.llvm_executor.runtime_memory import SPACES, get, put, splat
from functional.traces.line_record import LINE_SHIFT, MORE, SECTOR_SHIFT

# C = A B of float64, the sum over k in ascending order. %width: elements of a block's row (k), %groups: blocks along k.
# A: blocks {group, half}, 8 rows each; B: blocks {group} of 8 columns each; C: 16 rows of 8.
MULTIPLY = """
define void @multiply_blocks(ptr %a, ptr %b, ptr %c, i64 %width, i64 %groups) #0 {
entry:
  %column = alloca <8 x double>, align 64
  %size = mul i64 %width, 64
  br label %zero
zero:
  %z = phi i64 [ 0, %entry ], [ %z1, %zero ]
  %zp = getelementptr <8 x double>, ptr %c, i64 %z
  store <8 x double> zeroinitializer, ptr %zp, align 8
  %z1 = add i64 %z, 1
  %zmore = icmp ult i64 %z1, 16
  br i1 %zmore, label %zero, label %group
group:
  %g = phi i64 [ 0, %zero ], [ %g1, %group.next ]
  %bo = mul i64 %g, %size
  %bg = getelementptr i8, ptr %b, i64 %bo
  %ao0 = mul i64 %bo, 2
  %ag = getelementptr i8, ptr %a, i64 %ao0
  br label %depth
depth:
  %k = phi i64 [ 0, %group ], [ %k1, %depth.next ]
  br label %fill
fill:
  %n = phi i64 [ 0, %depth ], [ %n1, %fill ]
  %no = mul i64 %n, %width
  %nk = add i64 %no, %k
  %np = getelementptr double, ptr %bg, i64 %nk
  %nv = load double, ptr %np, align 8
  %cp = getelementptr double, ptr %column, i64 %n
  store double %nv, ptr %cp, align 8
  %n1 = add i64 %n, 1
  %nmore = icmp ult i64 %n1, 8
  br i1 %nmore, label %fill, label %ready
ready:
  %right = load <8 x double>, ptr %column, align 64
  br label %row
row:
  %m = phi i64 [ 0, %ready ], [ %m1, %row ]
  %mo = mul i64 %m, %width
  %mk = add i64 %mo, %k
  %mp = getelementptr double, ptr %ag, i64 %mk
  %mv = load double, ptr %mp, align 8
  %m0 = insertelement <8 x double> poison, double %mv, i32 0
  %left = shufflevector <8 x double> %m0, <8 x double> poison, <8 x i32> zeroinitializer
  %rp = getelementptr <8 x double>, ptr %c, i64 %m
  %old = load <8 x double>, ptr %rp, align 8
  %product = fmul <8 x double> %left, %right
  %new = fadd <8 x double> %old, %product
  store <8 x double> %new, ptr %rp, align 8
  %m1 = add i64 %m, 1
  %mmore = icmp ult i64 %m1, 16
  br i1 %mmore, label %row, label %depth.next
depth.next:
  %k1 = add i64 %k, 1
  %kmore = icmp ult i64 %k1, %width
  br i1 %kmore, label %depth, label %group.next
group.next:
  %g1 = add i64 %g, 1
  %gmore = icmp ult i64 %g1, %groups
  br i1 %gmore, label %group, label %done
done:
  ret void
}
"""


def _match(bits: int) -> str:
    """Of every lane in %members, which members hold the same word."""
    v = f"<32 x i{bits}>"
    return f"""
define <32 x i32> @match_{bits}({v} %value, i32 %members) #0 {{
entry:
  %array = alloca {v}, align 64
  store {v} %value, ptr %array, align 64
  %any = icmp ne i32 %members, 0
  br i1 %any, label %loop, label %out
loop:
  %rest = phi i32 [ %members, %entry ], [ %rest1, %loop ]
  %found = phi <32 x i32> [ zeroinitializer, %entry ], [ %found1, %loop ]
  %i = call i32 @llvm.cttz.i32(i32 %rest, i1 true)
  %p = getelementptr i{bits}, ptr %array, i32 %i
  %own = load i{bits}, ptr %p, align 4
{splat("owns", f"i{bits}", "%own")}  %same = icmp eq {v} %value, %owns
  %samebits = bitcast <32 x i1> %same to i32
  %here = and i32 %samebits, %members
  %lanes = bitcast i32 %here to <32 x i1>
{splat("heres", "i32", "%here")}  %found1 = select <32 x i1> %lanes, <32 x i32> %heres, <32 x i32> %found
  %away = xor i32 %here, -1
  %rest1 = and i32 %rest, %away
  %more = icmp ne i32 %rest1, 0
  br i1 %more, label %loop, label %out
out:
  %result = phi <32 x i32> [ zeroinitializer, %entry ], [ %found1, %loop ]
  ret <32 x i32> %result
}}
"""


_REDUCTIONS = ("add", "and", "or", "xor", "smin", "smax", "umin", "umax")


def _redux(name: str) -> str:
    """In every lane of %active, the reduction over its own %members: once for all lanes that have the same."""
    return f"""
define <32 x i32> @redux_{name}(<32 x i32> %value, <32 x i32> %members, i32 %active, i32 %neutral) #0 {{
entry:
{splat("neutrals", "i32", "%neutral")}  %any = icmp ne i32 %active, 0
  br i1 %any, label %loop, label %out
loop:
  %rest = phi i32 [ %active, %entry ], [ %rest1, %loop ]
  %found = phi <32 x i32> [ zeroinitializer, %entry ], [ %found1, %loop ]
  %i = call i32 @llvm.cttz.i32(i32 %rest, i1 true)
  %own = extractelement <32 x i32> %members, i32 %i
  %lanes = bitcast i32 %own to <32 x i1>
  %chosen = select <32 x i1> %lanes, <32 x i32> %value, <32 x i32> %neutrals
  %total = call i32 @llvm.vector.reduce.{name}.v32i32(<32 x i32> %chosen)
{splat("owns", "i32", "%own")}{splat("totals", "i32", "%total")}  %same = icmp eq <32 x i32> %members, %owns
  %found1 = select <32 x i1> %same, <32 x i32> %totals, <32 x i32> %found
  %samebits = bitcast <32 x i1> %same to i32
  %away = xor i32 %samebits, -1
  %rest1 = and i32 %rest, %away
  %more = icmp ne i32 %rest1, 0
  br i1 %more, label %loop, label %out
out:
  %result = phi <32 x i32> [ zeroinitializer, %entry ], [ %found1, %loop ]
  ret <32 x i32> %result
}}
"""


_MULTIPLY_ROWS = """
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
{inside}  %ordered = icmp ult i64 %start, %stop
  %whole = and i1 %inside, %ordered
  br i1 %whole, label %next, label %bad
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
        _MULTIPLY_ROWS, _SECTORS, *map(_matrix, ("global", "stored", "shared")), *map(_generic, ("global", "stored")),
        MULTIPLY, _match(32), _match(64), *map(_redux, _REDUCTIONS),
    ])  # fmt: skip
