"""Matrix products and searches across the lanes of a warp, as LLVM IR text."""

from __future__ import annotations

from functional.llvm_executor.runtime_memory import splat

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


def text() -> str:
    """All helpers of this file."""
    return MULTIPLY + _match(32) + _match(64) + "".join(map(_redux, _REDUCTIONS))
