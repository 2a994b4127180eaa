"""Loads whose half warps are regular, as LLVM IR text: what thread blocks of 16 threads width do."""

from __future__ import annotations

from functional.llvm_executor.runtime_memory import SPACES, get, record


def _half_passes(prefix: str, width: int) -> str:
    """Bank passes of two words (width 0) or runs of 16 words (width 64): 2 if both use a bank for different words."""
    p = f"%{prefix}."
    return f"""  {p}gap = sub i64 %second, %first
  {p}back = sub i64 %first, %second
  {p}span = call i64 @llvm.smax.i64(i64 {p}gap, i64 {p}back)
  {p}close = icmp ule i64 {p}span, {width}
  {p}bank = and i64 {p}gap, 127
  {p}apart = icmp {"eq" if width else "ne"} i64 {p}bank, {width}
  {p}easy = or i1 {p}close, {p}apart
  {p}passes = select i1 {p}easy, i8 1, i8 2
  call void @conflict(ptr %ctx, i8 {p}passes)
"""


def _recognise(bits: int, bounds: str) -> str:
    """IR that goes on at halves.load with %second, %is.flat if the pattern is there, else at general."""
    size = bits // 8
    both = ", ".join(f"i32 {i // 16 * 16}" for i in range(32))
    steps = ", ".join(f"i64 {i % 16 * size}" for i in range(32))
    return f"""halves:
  %whole = icmp eq i32 %mask, -1
  br i1 %whole, label %halves.go, label %general
halves.go:
  %second = extractelement <32 x i64> %address, i32 16
  %pair0 = insertelement <32 x i64> poison, i64 %first, i32 0
  %pair1 = insertelement <32 x i64> %pair0, i64 %second, i32 16
  %pair = shufflevector <32 x i64> %pair1, <32 x i64> poison, <32 x i32> <{both}>
  %apart.h = sub <32 x i64> %address, %pair
  %flat = icmp ne <32 x i64> %apart.h, zeroinitializer
  %flat.bits = bitcast <32 x i1> %flat to i32
  %steps.h = icmp ne <32 x i64> %apart.h, <{steps}>
  %steps.bits = bitcast <32 x i1> %steps.h to i32
  %is.flat = icmp eq i32 %flat.bits, 0
  %is.steps = icmp eq i32 %steps.bits, 0
  %is.either = or i1 %is.flat, %is.steps
  br i1 %is.either, label %halves.check, label %general
halves.check:
{bounds}  %hlow0 = or i64 %first, %second
  %hlow = and i64 %hlow0, {size - 1}
  %hal = icmp eq i64 %hlow, 0
  %hok = and i1 %hin, %hal
  br i1 %hok, label %halves.load, label %general
"""


def halves(space: str, bits: int) -> str:
    """All lanes active and each half warp at one address, or at successive ones: blocks that are 16 threads wide."""
    base, limit = SPACES[space]
    size = bits // 8
    if limit is None:
        bounds = f"""  %hs0 = add i64 %first, {16 * size}
  %hs1 = add i64 %second, {16 * size}
  %hin0 = call i1 @in_region_{space}(ptr %ctx, i64 %first, i64 %hs0)
  %hin1 = call i1 @in_region_{space}(ptr %ctx, i64 %second, i64 %hs1)
  %hin = and i1 %hin0, %hin1
"""
    else:
        bounds = get("hlimit", limit) + f"""  %hmost = call i64 @llvm.umax.i64(i64 %first, i64 %second)
  %hs = add i64 %hmost, {16 * size}
  %hin = icmp ule i64 %hs, %hlimit
"""  # fmt: skip
    log = record(space, "%address", str(size))
    flat_log, line_log = (_half_passes("f", 0), _half_passes("s", 64)) if (space, size) == ("shared", 4) else (log, log)
    half = f"<16 x i{bits}>"
    both = ", ".join(f"i32 {i // 16 * 16}" for i in range(32))
    join = ", ".join(f"i32 {i}" for i in range(32))
    return (
        _recognise(bits, bounds)
        + f"""halves.load:
{get("hbase", base)}  %ha0 = add i64 %hbase, %first
  %ha1 = add i64 %hbase, %second
  %hp0 = inttoptr i64 %ha0 to ptr
  %hp1 = inttoptr i64 %ha1 to ptr
  br i1 %is.flat, label %halves.flat, label %halves.steps
halves.flat:
{flat_log.replace("%window", "%window.f")}  %f0 = load i{bits}, ptr %hp0, align 1
  %f1 = load i{bits}, ptr %hp1, align 1
  %fv0 = insertelement <32 x i{bits}> poison, i{bits} %f0, i32 0
  %fv1 = insertelement <32 x i{bits}> %fv0, i{bits} %f1, i32 16
  %fv = shufflevector <32 x i{bits}> %fv1, <32 x i{bits}> poison, <32 x i32> <{both}>
  ret <32 x i{bits}> %fv
halves.steps:
{line_log}  %g0 = load {half}, ptr %hp0, align 1
  %g1 = load {half}, ptr %hp1, align 1
  %gvv = shufflevector {half} %g0, {half} %g1, <32 x i32> <{join}>
  ret <32 x i{bits}> %gvv
"""
    )
