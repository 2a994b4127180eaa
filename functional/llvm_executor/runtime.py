"""The run time: all helpers as one LLVM module, compiled once and kept.

It is text of LLVM IR, which no linter sees. Python compiled by Numba through `functional.jit.compile` could take its
place as far as speed goes: with the insertion of sectors in `runtime_records` written so, linked in and inlined, five
kernels full of accesses (spmv_csr, matmul_naive, transpose, micro_global_stride, relu; one thread, least processor time
of six runs of 80) took 1.4 % longer in the mean, between 3 % less and 5 % more. Two things speak against it. 59 of the
95 functions take vectors of 32 lanes, for which Numba has no type: it would need one of its own, with operators,
gathers, scatters and masks. And Numba takes 0.15 s of processor time a function, some 15 s in all against 0.9 s now,
whenever the cache is empty or a source of the executor has changed.
"""

from __future__ import annotations

import re

from functional.llvm_executor import (
    runtime_access,
    runtime_matrices,
    runtime_memory,
    runtime_races,
    runtime_records,
    runtime_schedule,
    runtime_stack,
    runtime_streams,
    runtime_undo,
)
from functional.llvm_executor.emit import ATTRIBUTES

_INTRINSICS = """
declare i32 @llvm.cttz.i32(i32, i1)
declare i32 @llvm.ctlz.i32(i32, i1)
declare i32 @llvm.ctpop.i32(i32)
declare i32 @llvm.umax.i32(i32, i32)
declare i32 @llvm.smin.i32(i32, i32)
declare i8 @llvm.umax.i8(i8, i8)
declare i64 @llvm.umax.i64(i64, i64)
declare i64 @llvm.smax.i64(i64, i64)
declare void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare i32 @llvm.vector.reduce.umin.v32i32(<32 x i32>)
declare i32 @llvm.vector.reduce.umax.v32i32(<32 x i32>)
declare i32 @llvm.vector.reduce.smin.v32i32(<32 x i32>)
declare i32 @llvm.vector.reduce.smax.v32i32(<32 x i32>)
declare i32 @llvm.vector.reduce.add.v32i32(<32 x i32>)
declare i32 @llvm.vector.reduce.and.v32i32(<32 x i32>)
declare i32 @llvm.vector.reduce.or.v32i32(<32 x i32>)
declare i32 @llvm.vector.reduce.xor.v32i32(<32 x i32>)
declare i64 @llvm.vector.reduce.umin.v32i64(<32 x i64>)
declare i64 @llvm.vector.reduce.umax.v32i64(<32 x i64>)
"""
_MATH = ("sin", "cos", "log2", "exp2", "tanh")


def _declared() -> str:
    lines = []
    for bits in (8, 16, 32, 64):
        v = f"<32 x i{bits}>"
        lines.append(f"declare {v} @llvm.masked.gather.v32i{bits}.v32p0(<32 x ptr>, <32 x i1>, {v})")
        lines.append(f"declare void @llvm.masked.scatter.v32i{bits}.v32p0({v}, <32 x ptr>, <32 x i1>)")
        lines.append(f"declare void @llvm.masked.store.v32i{bits}.p0({v}, ptr, <32 x i1>)")
    return "\n".join(lines)


def _math(name: str) -> str:
    """The C library's float64 function on every lane."""
    return f"""
declare double @{name}(double)
define <32 x double> @math_{name}(<32 x double> %x) #0 {{
entry:
  %in = alloca <32 x double>, align 64
  %out = alloca <32 x double>, align 64
  store <32 x double> %x, ptr %in, align 64
  br label %lane
lane:
  %i = phi i64 [ 0, %entry ], [ %i1, %lane ]
  %p = getelementptr double, ptr %in, i64 %i
  %v = load double, ptr %p, align 8
  %r = call double @{name}(double %v)
  %q = getelementptr double, ptr %out, i64 %i
  store double %r, ptr %q, align 8
  %i1 = add i64 %i, 1
  %more = icmp ult i64 %i1, 32
  br i1 %more, label %lane, label %done
done:
  %y = load <32 x double>, ptr %out, align 64
  ret <32 x double> %y
}}
"""


def text() -> str:
    """IR of the module."""
    parts = [
        _INTRINSICS, _declared(), runtime_records.RECORDS, runtime_records.ATOMICS, runtime_memory.REGIONS,
        runtime_memory.ELSEWHERE, runtime_memory.locating(), runtime_undo.UNDO, runtime_access.gathers(),
        runtime_access.text(), runtime_stack.STACK, runtime_stack.CALLS, runtime_matrices.text(),
        runtime_schedule.text(), runtime_streams.STREAMS, runtime_races.RACES,
        *(_math(name) for name in _MATH), ATTRIBUTES, "",
    ]  # fmt: skip
    return "\n".join(parts)


def exported(source: str) -> list[str]:
    """Names of the functions that kernels and Python call."""
    return re.findall(r"^define (?!internal)[^@]*@([\w.]+)\(", source, re.M)
