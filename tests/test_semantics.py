"""What PTX instructions compute: corner cases from the PTX ISA, and properties against exact arithmetic."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ptx_kernels import dtype_of, evaluate

INF, NAN = float("inf"), float("nan")
TINY = 2.0**-149  # smallest float32 subnormal
MIN32, MAX32 = -(2**31), 2**31 - 1

INTEGER = [
    ("add.s32 %d, %a, %b;", "s32", [("s32", MAX32), ("s32", 1)], MIN32),
    ("add.sat.s32 %d, %a, %b;", "s32", [("s32", [MAX32, MIN32]), ("s32", [1, -1])], [MAX32, MIN32]),
    ("sub.u32 %d, %a, %b;", "u32", [("u32", 0), ("u32", 1)], 2**32 - 1),
    ("sub.sat.s32 %d, %a, %b;", "s32", [("s32", MIN32), ("s32", 1)], MIN32),
    ("add.u16 %d, %a, %b;", "u16", [("u16", 65535), ("u16", 2)], 1),
    ("mul.lo.s32 %d, %a, %b;", "s32", [("s32", 0x12345678), ("s32", -7)], -0x7F6E5D48),
    ("mul.hi.s32 %d, %a, %b;", "s32", [("s32", [-1, MIN32]), ("s32", [1, MIN32])], [-1, 2**30]),
    ("mul.hi.u32 %d, %a, %b;", "u32", [("u32", 2**32 - 1), ("u32", 2**32 - 1)], 2**32 - 2),
    ("mul.hi.s64 %d, %a, %b;", "s64", [("s64", [-1, -(2**63)]), ("s64", [5, -(2**63)])], [-1, 2**62]),
    ("mul.hi.u64 %d, %a, %b;", "u64", [("u64", 2**64 - 1), ("u64", 2**64 - 1)], 2**64 - 2),
    ("mul.wide.s32 %d, %a, %b;", "s64", [("s32", -3), ("s32", MAX32)], -3 * MAX32),
    ("mul.wide.u32 %d, %a, %b;", "u64", [("u32", 2**32 - 1), ("u32", 2**32 - 1)], (2**32 - 1) ** 2),
    ("mul.wide.u16 %d, %a, %b;", "u32", [("u16", 65535), ("u16", 65535)], 65535**2),
    ("mad.lo.u32 %d, %a, %b, %c;", "u32", [("u32", 2**31), ("u32", 2), ("u32", 9)], 9),
    ("mad.wide.s32 %d, %a, %b, %c;", "s64", [("s32", -2), ("s32", 2**30), ("s64", 1)], 1 - 2**31),
    ("mad.hi.sat.s32 %d, %a, %b, %c;", "s32", [("s32", MAX32), ("s32", MAX32), ("s32", MAX32)], MAX32),
    ("mul24.lo.s32 %d, %a, %b;", "s32", [("s32", 0xFFFFFF), ("s32", 3)], -3),
    ("mul24.hi.u32 %d, %a, %b;", "u32", [("u32", 0xFFFFFF), ("u32", 0xFFFFFF)], (0xFFFFFF**2) >> 16),
    ("mad24.lo.u32 %d, %a, %b, %c;", "u32", [("u32", 3), ("u32", 4), ("u32", 5)], 17),
    ("div.s32 %d, %a, %b;", "s32", [("s32", [-7, 7, MIN32, 5]), ("s32", [2, -2, -1, 0])], [-3, -3, MIN32, -1]),
    ("rem.s32 %d, %a, %b;", "s32", [("s32", [-7, 7, MIN32, 5]), ("s32", [2, -2, -1, 0])], [-1, 1, 0, 5]),
    ("div.u32 %d, %a, %b;", "u32", [("u32", [2**32 - 1, 9]), ("u32", [2, 0])], [2**31 - 1, 2**32 - 1]),
    ("div.u64 %d, %a, %b;", "u64", [("u64", 2**64 - 1), ("u64", 3)], (2**64 - 1) // 3),
    ("div.s64 %d, %a, %b;", "s64", [("s64", [-(2**63), -9]), ("s64", [-1, 2])], [-(2**63), -4]),
    ("rem.u16 %d, %a, %b;", "u16", [("u16", 65535), ("u16", 10)], 5),
    ("abs.s32 %d, %a;", "s32", [("s32", [-5, MIN32])], [5, MIN32]),
    ("neg.s32 %d, %a;", "s32", [("s32", [MIN32, 3])], [MIN32, -3]),
    ("min.s32 %d, %a, %b;", "s32", [("s32", -1), ("s32", 1)], -1),
    ("min.u32 %d, %a, %b;", "u32", [("u32", 2**32 - 1), ("u32", 1)], 1),
    ("max.s64 %d, %a, %b;", "s64", [("s64", -1), ("s64", -(2**60))], -1),
    ("sad.u32 %d, %a, %b, %c;", "u32", [("u32", 3), ("u32", 10), ("u32", 5)], 12),
    ("sad.s32 %d, %a, %b, %c;", "s32", [("s32", -3), ("s32", 10), ("s32", 5)], 18),
    ("dp4a.s32.s32 %d, %a, %b, %c;", "s32", [("b32", 0xFF02FF01), ("b32", 0x01020304), ("s32", 10)], 10 + 4 - 3 + 4 - 1),
    ("dp4a.u32.u32 %d, %a, %b, %c;", "u32", [("b32", 0xFF000001), ("b32", 0x02000003), ("u32", 1)], 1 + 3 + 510),
    ("dp2a.lo.s32.s32 %d, %a, %b, %c;", "s32", [("b32", 0xFFFF0003), ("b32", 0x0908FE05), ("s32", 1)], 1 + 15 + 2),
    ("dp2a.hi.u32.u32 %d, %a, %b, %c;", "u32", [("b32", 0x00020003), ("b32", 0x09080605), ("u32", 0)], 3 * 8 + 2 * 9),
]

BITS = [
    ("shl.b32 %d, %a, %b;", "b32", [("b32", 1), ("u32", [0, 31, 32, 2**31])], [1, 2**31, 0, 0]),
    ("shr.u32 %d, %a, %b;", "u32", [("u32", 2**31), ("u32", [31, 32, 200])], [1, 0, 0]),
    ("shr.s32 %d, %a, %b;", "s32", [("s32", -8), ("u32", [1, 31, 32, 2**32 - 1])], [-4, -1, -1, -1]),
    ("shr.s64 %d, %a, %b;", "s64", [("s64", -8), ("u32", [63, 64, 65])], [-1, -1, -1]),
    ("shl.b64 %d, %a, %b;", "b64", [("b64", 3), ("u32", [62, 63, 64])], [3 << 62, 1 << 63, 0]),
    ("shl.b16 %d, %a, %b;", "b16", [("b16", 0x8001), ("u32", [1, 16])], [2, 0]),
    ("shf.l.wrap.b32 %d, %a, %b, %c;", "b32", [("b32", 0x89ABCDEF), ("b32", 0x01234567), ("u32", [8, 32])],
     [0x23456789, 0x01234567]),
    ("shf.l.clamp.b32 %d, %a, %b, %c;", "b32", [("b32", 0x89ABCDEF), ("b32", 0x01234567), ("u32", 40)], 0x89ABCDEF),
    ("shf.r.wrap.b32 %d, %a, %b, %c;", "b32", [("b32", 0x89ABCDEF), ("b32", 0x01234567), ("u32", [8, 32])],
     [0x6789ABCD, 0x89ABCDEF]),
    ("shf.r.clamp.b32 %d, %a, %b, %c;", "b32", [("b32", 0x89ABCDEF), ("b32", 0x01234567), ("u32", 99)], 0x01234567),
    ("lop3.b32 %d, %a, %b, %c, 0x96;", "b32", [("b32", 0xF0F0), ("b32", 0xFF00), ("b32", 0xAAAA)],
     0xF0F0 ^ 0xFF00 ^ 0xAAAA),
    ("lop3.b32 %d, %a, %b, %c, 0xe8;", "b32", [("b32", 0xF0F0), ("b32", 0xFF00), ("b32", 0xAAAA)], 0xFAA0),
    ("not.b64 %d, %a;", "b64", [("b64", 0)], 2**64 - 1),
    ("cnot.b32 %d, %a;", "b32", [("b32", [0, 7])], [1, 0]),
    ("popc.b64 %d, %a;", "u32", [("b64", 2**64 - 1)], 64),
    ("clz.b32 %d, %a;", "u32", [("b32", [0, 1, 2**31])], [32, 31, 0]),
    ("clz.b64 %d, %a;", "u32", [("b64", [0, 1, 2**63, 2**53 - 1, 2**64 - 1])], [64, 63, 0, 11, 0]),
    ("brev.b32 %d, %a;", "b32", [("b32", [1, 0x12345678])], [2**31, 0x1E6A2C48]),
    ("brev.b64 %d, %a;", "b64", [("b64", 1)], 2**63),
    ("bfind.u32 %d, %a;", "u32", [("u32", [0, 1, 2**31])], [2**32 - 1, 0, 31]),
    ("bfind.s32 %d, %a;", "u32", [("s32", [-1, 0, -2, 5])], [2**32 - 1, 2**32 - 1, 0, 2]),
    ("bfind.shiftamt.u64 %d, %a;", "u32", [("u64", [1, 0])], [63, 2**32 - 1]),
    ("bfe.u32 %d, %a, %b, %c;", "u32", [("u32", 0xABCD1234), ("u32", [8, 28, 40, 0]), ("u32", [8, 9, 4, 0])],
     [0x12, 0xA, 0, 0]),
    ("bfe.s32 %d, %a, %b, %c;", "s32", [("s32", -0x543254CC), ("u32", [24, 0, 33, 4]), ("u32", [8, 0, 3, 8])],
     [-0x55, 0, -1, 0xB3 - 0x100]),
    ("bfe.u64 %d, %a, %b, %c;", "u64", [("u64", 2**64 - 1), ("u32", 60), ("u32", 64)], 15),
    ("bfi.b32 %d, %a, %b, %c, %e;", "b32", [("b32", 0xF), ("b32", 0), ("u32", [4, 30, 32]), ("u32", [4, 4, 4])],
     [0xF0, 0xC0000000, 0]),
    ("bfi.b64 %d, %a, %b, %c, %e;", "b64", [("b64", 5), ("b64", 2**64 - 1), ("u32", 0), ("u32", [0, 64])], [2**64 - 1, 5]),
    ("bmsk.clamp.b32 %d, %a, %b;", "b32", [("u32", [4, 40]), ("u32", [8, 8])], [0xFF0, 0]),
    ("prmt.b32 %d, %a, %b, %c;", "b32", [("b32", 0x83828180), ("b32", 0x47464544), ("b32", [0x7531, 0x0008, 0xC765])],
     [0x47458381, 0x808080FF, 0x00474645]),
    ("prmt.b32.f4e %d, %a, %b, %c;", "b32", [("b32", 0x03020100), ("b32", 0x07060504), ("b32", [0, 1, 3])],
     [0x03020100, 0x04030201, 0x06050403]),
    ("prmt.b32.b4e %d, %a, %b, %c;", "b32", [("b32", 0x03020100), ("b32", 0x07060504), ("b32", [0, 1])],
     [0x05060700, 0x06070001]),
    ("prmt.b32.rc8 %d, %a, %b, %c;", "b32", [("b32", 0x03020100), ("b32", 0), ("b32", 2)], 0x02020202),
    ("prmt.b32.ecl %d, %a, %b, %c;", "b32", [("b32", 0x03020100), ("b32", 0), ("b32", [1, 2])], [0x03020101, 0x03020202]),
    ("prmt.b32.ecr %d, %a, %b, %c;", "b32", [("b32", 0x03020100), ("b32", 0), ("b32", [1, 2])], [0x01010100, 0x02020100]),
    ("prmt.b32.rc16 %d, %a, %b, %c;", "b32", [("b32", 0x03020100), ("b32", 0), ("b32", 1)], 0x03020302),
]  # fmt: skip

COMPARE = [
    ("setp.lt.s32 %d, %a, %b;", "pred", [("s32", -1), ("s32", 1)], 1),
    ("setp.lt.u32 %d, %a, %b;", "pred", [("u32", 2**32 - 1), ("u32", 1)], 0),
    ("setp.lo.u32 %d, %a, %b;", "pred", [("u32", 0), ("u32", 1)], 1),
    ("setp.ne.f32 %d, %a, %b;", "pred", [("f32", [NAN, 1, 1]), ("f32", [1, 1, 2])], [0, 0, 1]),
    ("setp.neu.f32 %d, %a, %b;", "pred", [("f32", [NAN, 1]), ("f32", [NAN, 1])], [1, 0]),
    ("setp.eq.f32 %d, %a, %b;", "pred", [("f32", [NAN, -0.0]), ("f32", [NAN, 0.0])], [0, 1]),
    ("setp.equ.f64 %d, %a, %b;", "pred", [("f64", [NAN, 1]), ("f64", [2, 2])], [1, 0]),
    ("setp.ltu.f32 %d, %a, %b;", "pred", [("f32", [NAN, 1, 2]), ("f32", [1, 2, 1])], [1, 1, 0]),
    ("setp.geu.f32 %d, %a, %b;", "pred", [("f32", [NAN, 1, 2]), ("f32", [1, 2, 1])], [1, 0, 1]),
    ("setp.num.f32 %d, %a, %b;", "pred", [("f32", [NAN, 1]), ("f32", [1, 2])], [0, 1]),
    ("setp.nan.f32 %d, %a, %b;", "pred", [("f32", [NAN, 1]), ("f32", [1, 2])], [1, 0]),
    ("setp.gt.ftz.f32 %d, %a, %b;", "pred", [("f32", TINY), ("f32", 0)], 0),
    ("setp.eq.and.s32 %d, %a, %b, %c;", "pred", [("s32", 1), ("s32", 1), ("pred", [0, 1])], [0, 1]),
    ("setp.eq.xor.s32 %d, %a, %b, !%c;", "pred", [("s32", 1), ("s32", 1), ("pred", [0, 1])], [0, 1]),
    ("setp.eq.s32 %p1|%d, %a, %b;", "pred", [("s32", [1, 2]), ("s32", 1)], [0, 1]),
    ("setp.lt.or.s32 %p1|%d, %a, %b, %c;", "pred", [("s32", [1, 3]), ("s32", 2), ("pred", 0)], [0, 1]),
    ("setp.eq.s16 %d, %a, %b;", "pred", [("s16", -1), ("s16", -1)], 1),
    ("setp.lt.f16 %d, %a, %b;", "pred", [("f16", [1, NAN]), ("f16", 2)], [1, 0]),
    ("set.gt.u32.f32 %d, %a, %b;", "u32", [("f32", [2, 1]), ("f32", 1)], [2**32 - 1, 0]),
    ("set.le.f32.s32 %d, %a, %b;", "f32", [("s32", [2, 1]), ("s32", 1)], [0, 1]),
    ("selp.b32 %d, %a, %b, %c;", "b32", [("b32", 5), ("b32", 6), ("pred", [1, 0])], [5, 6]),
    ("selp.f64 %d, %a, %b, %c;", "f64", [("f64", 5), ("f64", 6), ("pred", [1, 0])], [5, 6]),
    ("slct.u32.f32 %d, %a, %b, %c;", "u32", [("u32", 5), ("u32", 6), ("f32", [-0.0, -1, NAN])], [5, 6, 6]),
    ("slct.u32.s32 %d, %a, %b, %c;", "u32", [("u32", 5), ("u32", 6), ("s32", [0, -1])], [5, 6]),
    ("testp.subnormal.f32 %d, %a;", "pred", [("f32", [TINY, 1, 0])], [1, 0, 0]),
    ("testp.finite.f64 %d, %a;", "pred", [("f64", [INF, NAN, 1])], [0, 0, 1]),
]

FLOAT = [
    ("add.rn.f32 %d, %a, %b;", "f32", [("f32", 1), ("f32", 2.0**-24)], 1),
    ("add.rp.f32 %d, %a, %b;", "f32", [("f32", 1), ("f32", 2.0**-60)], 1 + 2.0**-23),
    ("add.rz.f32 %d, %a, %b;", "f32", [("f32", -1), ("f32", 2.0**-60)], -1 + 2.0**-24),
    ("add.rm.f64 %d, %a, %b;", "f64", [("f64", 1), ("f64", -(2.0**-80))], 1 - 2.0**-53),
    ("mul.rz.f32 %d, %a, %b;", "f32", [("f32", 3e38), ("f32", 10)], np.finfo(np.float32).max),
    ("mul.rp.f64 %d, %a, %b;", "f64", [("f64", 1 + 2.0**-52), ("f64", 1 + 2.0**-52)], 1 + 2 * 2.0**-52 + 2.0**-52),
    ("div.rz.f32 %d, %a, %b;", "f32", [("f32", 2), ("f32", -3)], -(1 - 2.0**-24 * 5592406) * 1.0),
    ("mul.ftz.f32 %d, %a, %b;", "f32", [("f32", 2.0**-126), ("f32", -0.5)], -0.0),
    ("add.ftz.f32 %d, %a, %b;", "f32", [("f32", TINY), ("f32", 0)], 0),
    ("add.sat.f32 %d, %a, %b;", "f32", [("f32", [0.75, -1, NAN]), ("f32", [0.75, 0.5, 0])], [1, 0, 0]),
    ("fma.rn.sat.f32 %d, %a, %b, %c;", "f32", [("f32", 2), ("f32", 3), ("f32", 1)], 1),
    ("min.f32 %d, %a, %b;", "f32", [("f32", [NAN, 0.0, 1]), ("f32", [1, -0.0, NAN])], [1, -0.0, 1]),
    ("max.f32 %d, %a, %b;", "f32", [("f32", [NAN, -0.0]), ("f32", [1, 0.0])], [1, 0.0]),
    ("min.NaN.f32 %d, %a, %b;", "f32", [("f32", NAN), ("f32", 1)], NAN),
    ("abs.f32 %d, %a;", "f32", [("f32", [-0.0, -INF])], [0.0, INF]),
    ("neg.f64 %d, %a;", "f64", [("f64", [0.0, 3])], [-0.0, -3]),
    ("copysign.f32 %d, %a, %b;", "f32", [("f32", -1), ("f32", 3)], -3),
    ("sqrt.rn.f32 %d, %a;", "f32", [("f32", [2, -1])], [np.sqrt(np.float32(2)), NAN]),
    ("sqrt.rp.f32 %d, %a;", "f32", [("f32", [4])], [2]),
    ("rcp.rn.f32 %d, %a;", "f32", [("f32", [3, 0.0, -0.0])], [np.float32(1) / np.float32(3), INF, -INF]),
    ("rcp.rn.f64 %d, %a;", "f64", [("f64", 3)], 1 / 3),
    ("div.rn.f32 %d, %a, %b;", "f32", [("f32", [1, 0]), ("f32", [0, 0])], [INF, NAN]),
    ("ex2.approx.ftz.f32 %d, %a;", "f32", [("f32", [10, -200])], [1024, 0]),
    ("lg2.approx.f32 %d, %a;", "f32", [("f32", [8, 0])], [3, -INF]),
    ("rsqrt.approx.f32 %d, %a;", "f32", [("f32", [0.25, 0])], [2, INF]),
    ("sin.approx.f32 %d, %a;", "f32", [("f32", [0])], [0]),
    ("tanh.approx.f32 %d, %a;", "f32", [("f32", [0, 100])], [0, 1]),
    ("add.f16 %d, %a, %b;", "f16", [("f16", [2048, 65504]), ("f16", [1, 65504])], [2048, INF]),
    ("fma.rn.f16 %d, %a, %b, %c;", "f16", [("f16", 1 + 2.0**-10), ("f16", 1 + 2.0**-10), ("f16", -1)], 2.0**-9 + 2.0**-20),
    ("add.bf16 %d, %a, %b;", "bf16", [("bf16", 0x3F80), ("bf16", 0x3B80)], 0x3F80),
    ("fma.rn.bf16 %d, %a, %b, %c;", "bf16", [("bf16", 0x3FC0), ("bf16", 0x4000), ("bf16", 0x3F80)], 0x4080),
    ("add.f16x2 %d, %a, %b;", "f16x2", [("f16x2", 0x3C004000), ("f16x2", 0x3C003C00)], 0x40004200),
    ("fma.rn.relu.f16x2 %d, %a, %b, %c;", "f16x2", [("f16x2", 0xBC003C00), ("f16x2", 0x3C003C00), ("f16x2", 0)], 0x00003C00),
    ("max.bf16x2 %d, %a, %b;", "bf16x2", [("bf16x2", 0x3F80BF80), ("bf16x2", 0xBF803F80)], 0x3F803F80),
    ("neg.f16x2 %d, %a;", "f16x2", [("f16x2", 0x3C00BC00)], 0xBC003C00),
]  # fmt: skip

CONVERT = [
    ("cvt.rzi.s32.f32 %d, %a;", "s32", [("f32", [1.9, -1.9, NAN, 3e9, -3e9])], [1, -1, 0, MAX32, MIN32]),
    ("cvt.rni.s32.f32 %d, %a;", "s32", [("f32", [0.5, 1.5, 2.5, -0.5])], [0, 2, 2, 0]),
    ("cvt.rmi.s32.f32 %d, %a;", "s32", [("f32", [-0.5, 0.5])], [-1, 0]),
    ("cvt.rpi.u32.f32 %d, %a;", "u32", [("f32", [0.5, -0.5, -7, 5e9])], [1, 0, 0, 2**32 - 1]),
    ("cvt.rzi.u64.f32 %d, %a;", "u64", [("f32", [2.0**63, -1, NAN, 1e30])], [2**63, 0, 2**63, 2**64 - 1]),
    ("cvt.rzi.s64.f64 %d, %a;", "s64", [("f64", [2.0**62, NAN, 1e30])], [2**62, -(2**63), 2**63 - 1]),
    ("cvt.rzi.s8.f32 %d, %a;", "s16", [("f32", [300, -300])], [127, -128]),
    ("cvt.rn.f32.s32 %d, %a;", "f32", [("s32", [2**24 + 1, -5])], [2**24, -5]),
    ("cvt.rz.f32.u32 %d, %a;", "f32", [("u32", 2**32 - 1)], 2**32 - 256),
    ("cvt.rp.f32.u64 %d, %a;", "f32", [("u64", 2**63 + 1)], 2.0**63 + 2.0**40),
    ("cvt.rn.f64.s64 %d, %a;", "f64", [("s64", 2**53 + 1)], 2.0**53),
    ("cvt.rm.f64.s64 %d, %a;", "f64", [("s64", [2**53 + 3, -(2**53) - 1])], [2.0**53 + 2, -(2.0**53) - 2]),
    ("cvt.rn.f16.s64 %d, %a;", "f16", [("s64", [70000, 2049])], [INF, 2048]),
    ("cvt.rn.f32.f64 %d, %a;", "f32", [("f64", [1 + 2.0**-24, 1e300])], [1, INF]),
    ("cvt.rz.f32.f64 %d, %a;", "f32", [("f64", [1 + 2.0**-24, 1e300])], [1, np.finfo(np.float32).max]),
    ("cvt.rm.f32.f64 %d, %a;", "f32", [("f64", -1 - 2.0**-40)], -1 - 2.0**-23),
    ("cvt.f64.f32 %d, %a;", "f64", [("f32", 0.1)], float(np.float32(0.1))),
    ("cvt.ftz.f64.f32 %d, %a;", "f64", [("f32", TINY)], 0),
    ("cvt.sat.f32.f32 %d, %a;", "f32", [("f32", [1.5, -1, NAN, 0.25])], [1, 0, 0, 0.25]),
    ("cvt.rni.f32.f32 %d, %a;", "f32", [("f32", [2.5, 3.5])], [2, 4]),
    ("cvt.rzi.f64.f64 %d, %a;", "f64", [("f64", -2.5)], -2),
    ("cvt.rn.bf16.f32 %d, %a;", "bf16", [("f32", [1 + 2.0**-8, 1 + 3 * 2.0**-8, -2])], [0x3F80, 0x3F82, 0xC000]),
    ("cvt.f32.bf16 %d, %a;", "f32", [("bf16", 0x3FC0)], 1.5),
    ("cvt.rn.f16x2.f32 %d, %a, %b;", "f16x2", [("f32", 1), ("f32", 2)], 0x3C004000),
    ("cvt.rn.bf16x2.f32 %d, %a, %b;", "bf16x2", [("f32", 1), ("f32", -2)], 0x3F80C000),
    ("cvt.rna.tf32.f32 %d, %a;", "b32", [("f32", 1 + 2.0**-11)], 0x3F802000),
    ("cvt.s64.s32 %d, %a;", "s64", [("s32", -1)], -1),
    ("cvt.u64.u32 %d, %a;", "u64", [("u32", 2**32 - 1)], 2**32 - 1),
    ("cvt.u16.u32 %d, %a;", "u16", [("u32", 0x12345)], 0x2345),
    ("cvt.s32.s8 %d, %a;", "s32", [("s32", 0x180)], -128),
    ("cvt.u32.u8 %d, %a;", "u32", [("u32", 0x1FF)], 0xFF),
    ("cvt.u8.u32 %d, %a;", "u32", [("u32", 0x1FF)], 0xFF),
    ("cvt.s8.s32 %d, %a;", "s32", [("s32", 0xFF)], -1),
    ("cvt.sat.s8.s32 %d, %a;", "s32", [("s32", [300, -300, 5])], [127, -128, 5]),
    ("cvt.sat.u32.s32 %d, %a;", "u32", [("s32", [-5, 5])], [0, 5]),
    ("cvt.sat.s32.u32 %d, %a;", "s32", [("u32", 2**32 - 1)], MAX32),
    ("cvt.sat.u64.s64 %d, %a;", "u64", [("s64", [-5, 2**63 - 1])], [0, 2**63 - 1]),
    ("cvt.sat.s32.u64 %d, %a;", "s32", [("u64", 2**64 - 1)], MAX32),
]


@pytest.mark.parametrize("instruction,out,sources,expected", INTEGER + BITS + COMPARE + FLOAT + CONVERT)
def test_table(instruction: str, out: str, sources: list, expected: object) -> None:
    got = evaluate(instruction, out, *sources)
    wanted = np.broadcast_to(np.atleast_1d(np.asarray(expected, dtype_of(out))), got.shape)
    same = (got == wanted) & (np.signbit(got) == np.signbit(wanted) if got.dtype.kind == "f" else True)
    if got.dtype.kind == "f":
        same |= np.isnan(got) & np.isnan(wanted)
    assert np.all(same), (instruction, got, wanted)


def test_approximations_are_close() -> None:
    x = np.linspace(0.1, 3, 50, dtype=np.float32)
    for opcode, function in {"sin": np.sin, "cos": np.cos, "lg2": np.log2, "ex2": np.exp2, "tanh": np.tanh}.items():
        got = evaluate(f"{opcode}.approx.f32 %d, %a;", "f32", ("f32", x))
        np.testing.assert_allclose(got, function(x.astype(np.float64)), rtol=2e-7, atol=1e-7)


def _signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


_WORDS = st.one_of(st.integers(0, 2**64 - 1), st.sampled_from([0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1, 2**31 - 1]))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(_WORDS, _WORDS, _WORDS), min_size=8, max_size=32), st.sampled_from(["u32", "s32", "u64", "s64"]))
def test_integer_arithmetic_is_exact_modulo_the_width(rows: list, type_: str) -> None:
    bits, signed = int(type_[1:]), type_[0] == "s"
    fit = (lambda v: _signed(v, bits)) if signed else (lambda v: v & ((1 << bits) - 1))
    a, b, c = ([fit(r[i]) for r in rows] for i in range(3))
    arguments = [(type_, a), (type_, b), (type_, c)]
    low = evaluate(f"mad.lo.{type_} %d, %a, %b, %c;", type_, *arguments)
    high = evaluate(f"mad.hi.{type_} %d, %a, %b, %c;", type_, *arguments)
    assert low.tolist() == [fit(x * y + z) for x, y, z in zip(a, b, c, strict=True)]
    assert high.tolist() == [fit((x * y >> bits) + z) for x, y, z in zip(a, b, c, strict=True)]
    b = [y or 1 for y in b]
    quotient = evaluate(f"div.{type_} %d, %a, %b;", type_, (type_, a), (type_, b))
    remainder = evaluate(f"rem.{type_} %d, %a, %b;", type_, (type_, a), (type_, b))
    truncated = [abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1) for x, y in zip(a, b, strict=True)]
    assert quotient.tolist() == [fit(q) for q in truncated]
    assert remainder.tolist() == [fit(x - q * y) for x, y, q in zip(a, b, truncated, strict=True)]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(_WORDS, _WORDS, _WORDS, _WORDS), min_size=4, max_size=32))
def test_carry_chains_are_128_bit_arithmetic(rows: list) -> None:
    a, b, c, e = ([r[i] for r in rows] for i in range(4))
    sources = [("u64", a), ("u64", b), ("u64", c), ("u64", e)]
    for add, carry, sign in (("add", "addc", 1), ("sub", "subc", -1)):
        low = evaluate(f"{add}.cc.u64 %d, %a, %c;", "u64", *sources)
        high = evaluate(f"{add}.cc.u64 %rd20, %a, %c; {carry}.u64 %d, %b, %e;", "u64", *sources)
        expected = [((x | y << 64) + sign * (z | w << 64)) % 2**128 for x, y, z, w in rows_of(a, b, c, e)]
        assert [int(l) | int(h) << 64 for l, h in zip(low, high, strict=True)] == expected  # noqa: E741


def rows_of(*columns: list) -> list:
    return list(zip(*columns, strict=True))


def test_multiply_add_with_carry() -> None:
    got = evaluate("mad.lo.cc.u32 %r20, %a, %b, %c; madc.hi.u32 %d, %a, %b, 0;", "u32",
                   ("u32", 2**32 - 1), ("u32", 2**32 - 1), ("u32", 2**32 - 1))  # fmt: skip
    assert got[0] == ((2**32 - 1) ** 2 + 2**32 - 1) >> 32


_F32 = st.floats(width=32, allow_nan=False, allow_infinity=False)
_NEAR = st.builds(lambda m, e: float(np.float32(m * 2.0**e)), st.integers(-(2**24) + 1, 2**24 - 1), st.integers(-60, 20))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(*[st.one_of(_F32, _NEAR)] * 3), min_size=32, max_size=32), st.sampled_from(["rn", "rz", "rm", "rp"]))
def test_f32_fma_is_rounded_once(rows: list, mode: str) -> None:
    a, b, c = (np.array(v, np.float32) for v in zip(*rows, strict=True))
    got = evaluate(f"fma.{mode}.f32 %d, %a, %b, %c;", "f32", ("f32", a), ("f32", b), ("f32", c))
    for x, y, z, r in zip(a, b, c, got, strict=True):
        _check_rounding(Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)), r, mode, np.float32)


_F64 = st.floats(allow_nan=False, allow_infinity=False)
_NEAR64 = st.builds(lambda m, e: m * 2.0**e, st.integers(-(2**53) + 1, 2**53 - 1), st.integers(-100, 40))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(*[st.one_of(_F64, _NEAR64)] * 3), min_size=32, max_size=32), st.sampled_from(["rn", "rz", "rm", "rp"]))
def test_f64_fma_is_rounded_once(rows: list, mode: str) -> None:
    a, b, c = (np.array(v, np.float64) for v in zip(*rows, strict=True))
    got = evaluate(f"fma.{mode}.f64 %d, %a, %b, %c;", "f64", ("f64", a), ("f64", b), ("f64", c))
    for x, y, z, r in zip(a, b, c, got, strict=True):
        _check_rounding(Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)), r, mode, np.float64)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(_NEAR, _NEAR), min_size=32, max_size=32),
    st.sampled_from(["rn", "rz", "rm", "rp"]),
    st.sampled_from(["f32", "f64"]),
    st.sampled_from(["add", "sub", "mul", "div"]),
)
def test_basic_operations_round_by_their_mode(rows: list, mode: str, type_: str, opcode: str) -> None:
    dtype = np.float32 if type_ == "f32" else np.float64
    a, b = (np.array(v, dtype) for v in zip(*rows, strict=True))
    b = np.where((b == 0) & (opcode == "div"), dtype(3), b)
    got = evaluate(f"{opcode}.{mode}.{type_} %d, %a, %b;", type_, (type_, a), (type_, b))
    for x, y, r in zip(a, b, got, strict=True):
        x, y = Fraction(float(x)), Fraction(float(y))
        exact = {"add": lambda: x + y, "sub": lambda: x - y, "mul": lambda: x * y, "div": lambda: x / y}[opcode]()
        _check_rounding(exact, r, mode, dtype)


def _check_rounding(exact: Fraction, got: np.floating, mode: str, dtype: type) -> None:
    """`got` must be the neighbour of `exact` that the mode picks."""
    most = Fraction(float(np.finfo(dtype).max))
    if np.isinf(got):
        assert mode == "rn" or mode == ("rp" if got > 0 else "rm")
        assert exact * (1 if got > 0 else -1) > most
        return
    value = Fraction(float(got))
    with np.errstate(all="ignore"):
        below, above = (float(np.nextafter(got, dtype(s))) for s in (-np.inf, np.inf))
    if mode == "rn":
        for neighbour in (below, above):
            if np.isfinite(neighbour):
                assert abs(value - exact) <= abs(Fraction(neighbour) - exact)
        return
    if mode == "rm" or (mode == "rz" and exact > 0):
        assert value <= exact and (not np.isfinite(above) or exact < Fraction(above))
    elif mode == "rp" or (mode == "rz" and exact < 0):
        assert value >= exact and (not np.isfinite(below) or exact > Fraction(below))
    else:
        assert value == exact
