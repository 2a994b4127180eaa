"""Gathers and scatters at checked host addresses, as LLVM IR text."""

from __future__ import annotations

from functional.llvm_executor.runtime_memory import SIZES


def gather(bits: int) -> str:
    """Plain gather and scatter at host addresses. Narrow words are gathered as 32 bits: every storage is padded."""
    kind = f"<32 x i{bits}>"
    wide = max(bits, 32)
    word = f"<32 x i{wide}>"
    narrow = f"  %n = trunc <32 x i32> %v to {kind}\n  ret {kind} %n" if bits < 32 else f"  ret {kind} %v"
    return f"""
define {kind} @gather_{bits}(<32 x i64> %host, i32 %mask) #0 {{
  %lanes = bitcast i32 %mask to <32 x i1>
  %p = inttoptr <32 x i64> %host to <32 x ptr>
  %v = call {word} @llvm.masked.gather.v32i{wide}.v32p0(<32 x ptr> align 1 %p, <32 x i1> %lanes, {word} zeroinitializer)
{narrow}
}}
define void @scatter_{bits}(<32 x i64> %host, {kind} %v, i32 %mask) #0 {{
  %lanes = bitcast i32 %mask to <32 x i1>
  %p = inttoptr <32 x i64> %host to <32 x ptr>
  call void @llvm.masked.scatter.v32i{bits}.v32p0({kind} %v, <32 x ptr> align 1 %p, <32 x i1> %lanes)
  ret void
}}
"""


def text() -> str:
    """A gather and a scatter of each word size."""
    return "".join(gather(bits) for bits in SIZES)
