"""Instructions of newer GPUs against exact arithmetic: fractions and Python integers."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from both_executors import each_lane, run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ptx_kernels import entry, module

from functional.errors import ExecutionError, PtxError
from functional.launches.launch import Pointer, make_launch
from functional.launches.memory import Memory
from functional.programs.link import link
from functional.traces.line_record import line_of

BITS = {"f16": (11, -14, 65504), "bf16": (8, -126, None)}  # precision, least exponent, largest number
SEEDS = np.random.default_rng(7)


def value_of(bits: int, name: str) -> float:
    """The number a 16-bit pattern stands for."""
    if name == "f16":
        return float(np.array(bits, np.uint16).view(np.float16))
    return float(np.array(bits << 16, np.uint32).view(np.float32))


def rounded(x: Fraction, name: str) -> float:
    """x to nearest even in a 16-bit format, by definition; infinity beyond its range."""
    precision, least, _ = BITS[name]
    if x == 0:
        return 0.0
    exponent = math.floor(math.log2(abs(x)))
    while abs(x) >= Fraction(2) ** (exponent + 1):
        exponent += 1
    while abs(x) < Fraction(2) ** exponent:
        exponent -= 1
    step = Fraction(2) ** (max(exponent, least) - precision + 1)
    whole, rest = divmod(x, step)
    whole += rest * 2 > step or (rest * 2 == step and whole % 2)
    result = whole * step
    limit = 65504 if name == "f16" else (2 - Fraction(1, 128)) * Fraction(2) ** 127
    return math.copysign(math.inf, result) if abs(result) > limit else float(result)


def patterns(name: str) -> np.ndarray:
    """[32, 3] finite 16-bit patterns: ordinary, subnormal, huge, equal, near ties."""
    rng = np.random.default_rng(11)
    exponents = rng.integers(0, 31 if name == "f16" else 255, (32, 3))
    bits = rng.integers(0, 1 << 16, (32, 3)) & (0x83FF if name == "f16" else 0x807F)
    found = bits | exponents << (10 if name == "f16" else 7)
    found[:4] &= 0x83FF if name == "f16" else 0x807F  # subnormal
    found[4:8, 1] = found[4:8, 0] ^ 0x8000
    found[8:16, 1] = found[8:16, 0] + rng.integers(-40, 40, 8)
    found[8:16, 2] = found[8:16, 0] ^ 0x8001
    found[16:20] = [[0x3C00, 0x3C01, 0x0001], [0x8000, 0, 0x8000], [0x7BFF, 0x3C01, 0x7BFF], [0x1000, 0x1000, 1]]
    return found & 0xFFFF


@pytest.mark.parametrize("name", ["f16", "bf16"])
@pytest.mark.parametrize("packed", ["", "x2"])
def test_half_arithmetic_is_rounded_once(name: str, packed: str) -> None:
    bits = patterns(name).astype(np.uint32)
    bits = np.where((bits & 0x7FFF) >= (0x7C00 if name == "f16" else 0x7F80), 0x3C00, bits).astype(np.uint32)
    body = "".join(f"mov.b32 {{%h{i}, %h9}}, %i{i};" for i in range(3))
    operations = ("add.rn", "sub.rn", "mul.rn", "fma.rn", "min", "max", "neg")
    for i, operation in enumerate(operations):
        arity = 3 if operation == "fma.rn" else 1 if operation == "neg" else 2
        if packed:
            body += f"{operation}.{name}x2 %o{i}, {', '.join(f'%i{n}' for n in range(arity))};"
        else:
            body += f"{operation}.{name} %h8, {', '.join(f'%h{n}' for n in range(arity))}; mov.b32 %o{i}, {{%h8, %h8}};"
    out = each_lane(body, bits | bits << 16, len(operations))
    for lane in range(32):
        a, b, c = (Fraction(value_of(int(x), name)) for x in bits[lane])
        exact = [a + b, a - b, a * b, a * b + c, min(a, b), max(a, b), -a]
        for i, want in enumerate(exact):
            low, high = int(out[lane, i]) & 0xFFFF, int(out[lane, i]) >> 16
            assert low == high and value_of(low, name) == rounded(want, name), (operations[i], lane)


def test_half_flags() -> None:
    """.sat, .relu, .ftz, .NaN and .xorsign.abs on chosen values: 1.5, -2, least subnormal, NaN."""
    words = np.tile(np.array([[0x3E00, 0xC000, 0x0001, 0x7E01]], np.uint32), (32, 1))
    body = "".join(f"mov.b32 {{%h{i}, %h9}}, %i{i};" for i in range(4)) + "mov.b16 %h5, 0;"
    forms = [
        ("add.sat.f16 %h8, %h0, %h0", 0x3C00), ("add.sat.f16 %h8, %h0, %h1", 0), ("add.sat.f16 %h8, %h3, %h1", 0),
        ("fma.rn.relu.f16 %h8, %h0, %h1, %h0", 0), ("fma.rn.relu.f16 %h8, %h0, %h0, %h1", 0x3400),
        ("add.ftz.f16 %h8, %h2, %h5", 0), ("add.f16 %h8, %h2, %h5", 1), ("min.f16 %h8, %h3, %h0", 0x3E00),
        ("mul.ftz.f16 %h8, %h2, %h1", 0x8000),
    ]  # fmt: skip
    for i, (form, _) in enumerate(forms):
        body += f"{form}; mov.b32 %o{i}, {{%h8, %h5}};"
    assert each_lane(body, words, len(forms))[0].tolist() == [want for _, want in forms]
    body = (
        "mov.b32 {%h0, %h9}, %i0; mov.b32 {%h1, %h9}, %i1; mov.b16 %h5, 0; "
        "min.xorsign.abs.f16 %h8, %h0, %h1; mov.b32 %o0, {%h8, %h5};"
    )
    assert each_lane(body, words, 1)[0, 0] == 0xBE00


def test_packed_comparisons() -> None:
    words = np.tile(np.array([[0x3C004000, 0x3C003C00]], np.uint32), (32, 1))  # (2, 1) against (1, 1)
    body = (
        "set.eq.f16x2.f16x2 %o0, %i0, %i1; set.gt.u32.f16x2 %o1, %i0, %i1; setp.gt.f16x2 %p1|%p2, %i0, %i1;"
        "selp.u32 %o2, 1, 0, %p1; @%p2 add.u32 %o2, %o2, 2; mov.b32 {%h0, %h1}, %i0; set.ge.f16.f16 %h2, %h1, %h0;"
        "set.ne.u32.f16 %r1, %h0, %h1; mov.b32 %o3, {%h2, %h2}; add.u32 %o3, %o3, %r1;"
    )
    assert each_lane(body, words, 4)[0].tolist() == [0x3C000000, 0x0000FFFF, 1, 0xFFFFFFFF]


# -- conversions -----------------------------------------------------------------------------------------------------


def eight_bit(code: int, name: str) -> Fraction | None:
    """The value of an fp8 code by definition, None for NaN and infinity."""
    exponent_bits, mantissa_bits, bias = (4, 3, 7) if name == "e4m3" else (5, 2, 15)
    exponent, mantissa = code >> mantissa_bits & ((1 << exponent_bits) - 1), code & ((1 << mantissa_bits) - 1)
    if exponent == (1 << exponent_bits) - 1 and (name == "e5m2" or mantissa == (1 << mantissa_bits) - 1):
        return None
    scale = Fraction(2) ** (max(exponent, 1) - bias - mantissa_bits)
    return (-1) ** (code >> 7) * ((exponent > 0) * (1 << mantissa_bits) + mantissa) * scale


@pytest.mark.parametrize("name", ["e4m3", "e5m2"])
def test_fp8(name: str) -> None:
    """All 256 codes to f16 and back; then halfway points, which go to the even code."""
    codes = np.arange(256, dtype=np.uint32).reshape(32, 8)
    pairs = codes[:, 0::2] | codes[:, 1::2] << 8
    body = ""
    for i in range(4):
        body += f"cvt.u16.u32 %h1, %i{i}; cvt.rn.f16x2.{name}x2 %o{i}, %h1;"
        body += f"cvt.rn.satfinite.{name}x2.f16x2 %h2, %o{i}; cvt.u32.u16 %o{4 + i}, %h2;"
    out = each_lane(body, pairs, 8)
    halves = np.ascontiguousarray(out[:, :4]).view(np.float16).reshape(-1)
    back = np.ascontiguousarray(out[:, 4:]).view(np.uint16).reshape(32, 8)[:, ::2]
    back = np.stack([back & 255, back >> 8], axis=-1).reshape(-1)
    finite = [c for c in range(256) if eight_bit(c, name) is not None]
    for code in range(256):
        want = eight_bit(code, name)
        assert math.isfinite(halves[code]) == (want is not None)
        if want is not None:
            assert Fraction(float(halves[code])) == want and back[code] == code
    positive = [c for c in finite if c < 128]
    below = np.array([c for c in positive[:-1]][-64:])
    middles = [(eight_bit(int(c), name) + eight_bit(int(c) + 1, name)) / 2 for c in below]  # type: ignore[operator]
    words = np.array([float(m) for m in middles], np.float32).view(np.uint32).reshape(32, 2)
    body = f"mov.b32 %f1, %i0; mov.b32 %f2, %i1; cvt.rn.satfinite.{name}x2.f32 %h1, %f2, %f1; cvt.u32.u16 %o0, %h1;"
    out = each_lane(body, words, 1)[:, 0]
    got = np.stack([out & 255, out >> 8], axis=-1).reshape(-1)
    assert (got == below + (below & 1)).all()


def test_fp8_saturates() -> None:
    words = np.tile(np.array([1e9, -1e9, math.nan, -0.0], np.float32).view(np.uint32), (32, 1))
    body = "".join(f"mov.b32 %f{i}, %i{i};" for i in range(4))
    for i, name in enumerate(("e4m3", "e5m2")):
        body += f"cvt.rn.satfinite.{name}x2.f32 %h1, %f1, %f0; cvt.rn.satfinite.relu.{name}x2.f32 %h2, %f1, %f0;"
        body += (
            f"cvt.rn.satfinite.{name}x2.f32 %h3, %f3, %f2; mov.b32 %o{2 * i}, {{%h1, %h2}}; "
            f"cvt.u32.u16 %o{2 * i + 1}, %h3;"
        )
    out = each_lane(body, words, 4)[0].tolist()
    assert out == [0x007EFE7E, 0x807F, 0x007BFB7B, 0x807F]


def test_conversions_that_pack() -> None:
    words = np.tile(np.array([[70000, 0xFFFFFF00, 0x12345678, 5]], np.uint32), (32, 1))
    body = (
        "cvt.pack.sat.u16.s32 %o0, %i0, %i1; cvt.pack.sat.s8.s32.b32 %o1, %i1, %i3, %i2;"
        "cvt.pack.sat.u8.s32.b32 %o2, %i0, %i3, 0;"
    )
    assert each_lane(body, words, 3)[0].tolist() == [0xFFFF0000, 0x56788005, 0x0000FF05]
    floats = np.tile(np.array([1.0 + 2.0**-11 + 2.0**-20, -3.5], np.float32).view(np.uint32), (32, 1))
    body = "mov.b32 %f0, %i0; mov.b32 %f1, %i1; cvt.rn.f16x2.f32 %o0, %f1, %f0; cvt.rz.f16x2.f32 %o1, %f1, %f0;"
    body += "cvt.rn.relu.f16x2.f32 %o2, %f1, %f0; cvt.rn.bf16x2.f32 %o3, %f1, %f0; cvt.rna.tf32.f32 %o4, %f0;"
    want = [0xC3003C01, 0xC3003C00, 0x00003C01, 0xC0603F80, 0x3F802000]
    assert each_lane(body, floats, 5)[0].tolist() == want


def test_what_is_too_small_for_f16() -> None:
    """Powers of two next to the least subnormals of f16, f32 and f64: each mode gives 0 or the number next to it."""
    powers = [2.0**n for n in (-24, -25, -26, -100, -126, -149, -150, -151, -160, -210, -506, -1000, -1022, -1074)]
    numbers = np.array(
        [*powers, *(-x for x in powers), 0.0, -0.0, np.nextafter(2.0**-25, 1), -np.nextafter(2.0**-25, 1)]
    )
    body = "".join(
        f"mov.b64 %fd0, {{%i0, %i1}}; cvt.{mode}.f16.f64 %h0, %fd0; cvt.u32.u16 %o{i}, %h0;"
        for i, mode in enumerate(("rn", "rz", "rm", "rp"))
    )
    out = each_lane(body, numbers.view(np.uint32).reshape(32, 2), 4)
    for x, got in zip(numbers.tolist(), out.tolist(), strict=True):
        zero, least = (0x8000, 0x8001) if math.copysign(1, x) < 0 else (0, 1)
        away, whole = zero if x == 0 else least, abs(x) == 2.0**-24
        want = [least if abs(x) > 2.0**-25 else zero, least if whole else zero]
        want += [least if whole else zero, away] if zero == 0 else [away, least if whole else zero]
        assert got == want, x


def test_ex2_of_f16_from_the_least_result_down_to_none() -> None:
    exponents = np.array(
        [-24, -25, -26, -100, -149, -150, -151, -160, -210, -266, -462, -506, -930, -1022, -1074, -1076]
    )
    halves = np.concatenate([exponents, np.arange(-16, 0)]).astype(np.float16)
    body = "ex2.approx.f16x2 %o0, %i0; mov.b32 {%h0, %h1}, %i0; ex2.approx.f16 %h0, %h0; cvt.u32.u16 %o1, %h0;"
    out = each_lane(body, (halves.view(np.uint16).astype(np.uint32) * 0x10001)[:, None], 2)
    want = [1, *[0] * 15, *(int(np.float16(2.0**n).view(np.uint16)) for n in range(-16, 0))]
    assert out.tolist() == [[0x10001 * bits, bits] for bits in want]


# -- integers --------------------------------------------------------------------------------------------------------


@settings(max_examples=15, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 1 << 30))
def test_carry_chains(seed: int) -> None:
    """128-bit sums, differences and products of 64 by 64 bits."""
    rng = np.random.default_rng(seed)
    words = rng.choice([0, 1, 0xFFFFFFFF, 0x80000000, int(rng.integers(1 << 32))], (32, 8)).astype(np.uint32)
    body = "add.cc.u32 %o0, %i0, %i4; addc.cc.u32 %o1, %i1, %i5; addc.cc.u32 %o2, %i2, %i6; addc.u32 %o3, %i3, %i7;"
    body += "sub.cc.u32 %o4, %i0, %i4; subc.cc.u32 %o5, %i1, %i5; subc.cc.u32 %o6, %i2, %i6; subc.u32 %o7, %i3, %i7;"
    body += "mul.lo.u32 %o8, %i0, %i4; mul.hi.u32 %o9, %i0, %i4; mad.lo.cc.u32 %o9, %i0, %i5, %o9; "
    body += "madc.hi.u32 %o10, %i0, %i5, 0; mad.lo.cc.u32 %o9, %i1, %i4, %o9; madc.hi.cc.u32 %o10, %i1, %i4, %o10;"
    body += "addc.u32 %o11, 0, 0; mad.lo.cc.u32 %o10, %i1, %i5, %o10; madc.hi.u32 %o11, %i1, %i5, %o11;"
    out = each_lane(body, words, 12)
    for lane in range(32):
        a, b = (sum(int(w) << 32 * i for i, w in enumerate(part)) for part in (words[lane, :4], words[lane, 4:]))
        got = [sum(int(w) << 32 * i for i, w in enumerate(out[lane, at : at + 4])) for at in (0, 4, 8)]
        mask = (1 << 128) - 1
        low_a, low_b = a & (1 << 64) - 1, b & (1 << 64) - 1
        assert got == [(a + b) & mask, (a - b) & mask, low_a * low_b]


def bytes_of(x: int) -> list[int]:
    return [x >> 8 * i & 255 for i in range(4)]


def test_dot_products_and_simd() -> None:
    words = SEEDS.integers(0, 1 << 32, (32, 3), np.uint32)
    body = "dp4a.u32.s32 %o0, %i0, %i1, %i2; dp2a.lo.s32.u32 %o1, %i0, %i1, %i2; dp2a.hi.u32.u32 %o2, %i0, %i1, %i2;"
    out = each_lane(body, words, 3)
    simd = each_lane(
        "vabsdiff4.u32.u32.u32 %o0, %i0, %i1, 0; vabsdiff4.u32.u32.u32.add %o1, %i0, %i1, %i2;"
        "vadd2.s32.s32.s32.sat %o2, %i0, %i1, 0; vmax4.u32.u32.u32 %o3, %i0, %i1, 0;",
        words, 4,
    )  # fmt: skip
    signed = lambda x, bits: x - (1 << bits) if x >> (bits - 1) else x  # noqa: E731
    for lane in range(32):
        a, b, c = (int(x) for x in words[lane])
        first, second = bytes_of(a), bytes_of(b)
        half = [a & 0xFFFF, a >> 16]
        want = [
            sum(x * signed(y, 8) for x, y in zip(first, second, strict=True)) + c,
            sum(signed(h, 16) * y for h, y in zip(half, second[:2], strict=True)) + c,
            sum(h * y for h, y in zip(half, second[2:], strict=True)) + c,
        ]
        assert out[lane].tolist() == [w & 0xFFFFFFFF for w in want]
        differences = [abs(x - y) for x, y in zip(first, second, strict=True)]
        sums = [max(-32768, min(32767, signed(a >> s & 0xFFFF, 16) + signed(b >> s & 0xFFFF, 16))) for s in (0, 16)]
        assert simd[lane].tolist() == [
            sum(d << 8 * i for i, d in enumerate(differences)), (sum(differences) + c) & 0xFFFFFFFF,
            (sums[0] & 0xFFFF) | (sums[1] & 0xFFFF) << 16,
            sum(max(x, y) << 8 * i for i, (x, y) in enumerate(zip(first, second, strict=True))),
        ]  # fmt: skip


def test_bit_oddities() -> None:
    words = np.tile(np.array([[0b1011_0100, 0xFFFFFFF0]], np.uint32), (32, 1))
    body = (
        "fns.b32 %o0, %i0, 0, 2; fns.b32 %o1, %i0, 7, -2; fns.b32 %o2, %i0, 3, 0; fns.b32 %o3, %i0, 4, 1;"
        "szext.wrap.s32 %o4, %i0, 8; szext.clamp.u32 %o5, %i0, 5; bmsk.clamp.b32 %o6, 4, 40; "
        "lop3.or.b32 %o7|%p1, %i0, %i1, 0, 0xC0, 0;"
        "selp.u32 %r1, 1, 0, %p1; add.u32 %o7, %o7, %r1;"
    )
    want = [4, 5, 0xFFFFFFFF, 4, 0xFFFFFFB4, 0b10100, 0xFFFFFFF0, 0xB1]
    assert each_lane(body, words, 8)[0].tolist() == want


# -- copies, clocks, warps -------------------------------------------------------------------------------------------

SHARED = ".shared .align 16 .b8 s[1024];\n"


@pytest.mark.parametrize("size", [4, 8, 16])
def test_cp_async(size: int) -> None:
    """Thread i copies; with a source size of 0 (odd threads) it gets zeros and reads nothing."""
    text = entry(
        f"mov.u32 %r1, s; mad.lo.u32 %r1, %r0, {size}, %r1; mad.wide.u32 %rd2, %r0, {size}, %rd0; and.b32 %r2, %r0, 1;"
        f"xor.b32 %r2, %r2, 1; mul.lo.u32 %r2, %r2, {size}; setp.eq.u32 %p1, %r2, 0; @%p1 mov.u64 %rd2, 0;"
        f"cp.async.ca.shared.global [%r1], [%rd2], {size}, %r2; cp.async.commit_group; cp.async.wait_group 0;"
        f"ld.shared.u32 %r3, [%r1]; mad.wide.u32 %rd3, %r0, 4, %rd1; st.global.u32 [%rd3], %r3;", 2, SHARED,
    )  # fmt: skip
    data = np.arange(1, 129, dtype=np.uint32)
    out, trace = run(text, {"i": data, "o": np.full(32, 9, np.uint32)})
    assert out["o"].tolist() == [0 if i % 2 else int(data[i * size // 4]) for i in range(32)]
    assert (
        sum(int(line_of(r)) < 1 << 26 for r in trace.records) == size * 32 // 128 + 1
    )  # its lines, and that of the store


def test_cp_async_reads_no_byte_too_many() -> None:
    """The last 3 bytes of a buffer, the rest of 16 zero."""
    text = entry(
        "mov.u32 %r1, s; setp.ne.u32 %p1, %r0, 0; @%p1 bra E; cp.async.cg.shared.global [%r1], [%rd0+16], 16, 3;\n"
        "cp.async.wait_all; ld.shared.v2.u32 {%r2, %r3}, [%r1]; st.global.v2.u32 [%rd1], {%r2, %r3}; E:", 2, SHARED,
    )  # fmt: skip
    out, _ = run(text, {"i": np.arange(19, dtype=np.uint8), "o": np.full(2, 9, np.uint32)})
    assert out["o"].tolist() == [0x121110, 0]


def test_clocks_grow_and_barrier_objects_wait() -> None:
    body = (
        "mov.u32 %r1, %clock; mov.u64 %rd3, %clock64; add.u32 %r3, %r1, 1; mov.u32 %r2, %clock; sub.u32 %o0, %r2, %r1;"
    )
    assert each_lane(body, np.zeros((32, 1), np.uint32), 1)[:, 0].tolist() == [3] * 32
    text = entry(
        "mov.u32 %r1, m; setp.eq.u32 %p1, %r0, 0; @%p1 mbarrier.init.shared.b64 [%r1], 64; bar.sync 0;\n"
        "shl.b32 %r2, %r0, 2; mov.u32 %r3, s; add.u32 %r3, %r3, %r2; mul.lo.u32 %r4, %r0, 3; "
        "st.shared.u32 [%r3], %r4;\n"
        "mbarrier.arrive.shared.b64 %rd2, [%r1];\nW: mbarrier.test_wait.shared.b64 %p2, [%r1], %rd2; @!%p2 bra W;\n"
        "xor.b32 %r5, %r2, 252; mov.u32 %r3, s; add.u32 %r3, %r3, %r5; ld.shared.u32 %r6, [%r3];\n"
        "mad.wide.u32 %rd3, %r0, 4, %rd0; st.global.u32 [%rd3], %r6;", 1, SHARED + ".shared .align 8 .b64 m;\n",
    )  # fmt: skip
    out, _ = run(text, {"o": np.zeros(64, np.uint32)}, block=64, native=False)
    assert out["o"].tolist() == [3 * (63 - i) for i in range(64)]


def test_match_and_elect() -> None:
    words = (np.arange(32, dtype=np.uint32) % 5)[:, None]
    body = (
        "setp.ge.u32 %p1, %r0, 4; mov.u32 %o0, 0; mov.u32 %o1, 7; mov.u32 %o2, 0; @!%p1 bra E; "
        "match.any.sync.b32 %o0, %i0, -1;"
        "match.all.sync.b32 %o1|%p2, %i0, -1; elect.sync %r2|%p3, -1; selp.u32 %o2, 1, 0, %p3; "
        "@%p2 add.u32 %o1, %o1, 9; E:"
    )
    out = each_lane(body.replace("E:", "\nE:"), words, 3)
    for lane in range(4, 32):
        assert out[lane, 0] == sum(1 << j for j in range(4, 32) if j % 5 == lane % 5)
    assert out[4:, 1].tolist() == [0] * 28 and out[:, 2].tolist() == [lane == 4 for lane in range(32)]


@pytest.mark.parametrize(
    "form,of",
    [
        ("redux.sync.max.s32 %r1, %r0, %r4;", max),
        ("redux.sync.min.u32 %r1, %r0, %r4;", min),
        ("redux.sync.add.u32 %r1, %r0, %r4;", sum),
        ("vote.sync.ballot.b32 %r1, %p0, %r4;", lambda own: sum(1 << lane for lane in own if lane < 12)),
        ("vote.sync.all.pred %p1, %p0, %r4; selp.u32 %r1, 1, 0, %p1;", lambda own: all(lane < 12 for lane in own)),
        ("vote.sync.any.pred %p1, !%p0, %r4; selp.u32 %r1, 1, 0, %p1;", lambda own: any(lane >= 12 for lane in own)),
        (
            "vote.sync.uni.pred %p1, %p0, %r4; selp.u32 %r1, 1, 0, %p1;",
            lambda own: len({lane < 12 for lane in own}) == 1,
        ),
        ("match.any.sync.b32 %r1, %r3, %r4;", lambda own: sum(1 << lane for lane in own)),
        ("match.all.sync.b32 %r1|%p1, %r3, %r4; @!%p1 mov.u32 %r1, 7;", lambda own: sum(1 << lane for lane in own)),
        ("elect.sync %r1|%p1, %r4;", min),
    ],
)
@pytest.mark.parametrize("lanes", [32, 21])
def test_groups_of_a_warp_name_different_members(form: str, of, lanes: int) -> None:
    """What `labeled_partition` of cooperative groups makes: every third lane with every third, all at once."""
    body = (
        f"setp.ge.u32 %p2, %r0, {lanes}; mov.u32 %o0, 99; @%p2 bra E; activemask.b32 %r2; rem.u32 %r3, %r0, 3;\n"
        f"match.any.sync.b32 %r4, %r3, %r2; setp.lt.u32 %p0, %r0, 12;\n{form.replace('%r1', '%o0')}\nE:"
    )
    out = each_lane(body, np.zeros((32, 1), np.uint32), 1)[:, 0]
    groups = [[other for other in range(lanes) if other % 3 == lane % 3] for lane in range(lanes)]
    assert out.tolist() == [int(of(group)) for group in groups] + [99] * (32 - lanes)


def test_packed_and_vector_atomics() -> None:
    text = entry(
        "mov.b32 %r1, 0x3C003800; red.global.add.noftz.f16x2 [%rd0], %r1;"
        "atom.global.add.noftz.bf16x2 %r2, [%rd0+4], 0x3F803F80;"
    )
    out, _ = run(text, {"o": np.zeros(2, np.uint32)}, native=False)
    assert out["o"].tolist() == [0x50004C00, 0x42004200]  # 32 and 16; 32 and 32
    text = entry("mov.f32 %f1, 0f3F800000; mov.f32 %f2, 0f40000000; red.global.add.v2.f32 [%rd0], {%f1, %f2};")
    out, trace = run(text, {"o": np.zeros(2, np.uint32)}, native=False)
    assert out["o"].view(np.float32).tolist() == [32.0, 64.0]
    assert trace.warp_instructions.tolist() == [6]


# -- refusals --------------------------------------------------------------------------------------------------------

REFUSED = [
    "tcgen05.shift.cta_group::1.down [%r1];", "multimem.red.relaxed.sys.global.add.u32 [%rd0], %r1;",
    "add.f32x9 %r1, %r1, %r1;", "barrier.cluster.sync;",
]  # fmt: skip


@pytest.mark.parametrize("instruction", REFUSED, ids=lambda i: i.split()[0])
def test_what_is_not_there_is_refused_by_name_before_anything_runs(instruction: str) -> None:
    from test_llvm_executor import LLVM

    parsed = module(entry(f"st.global.u32 [%rd0], 5;\n\n{instruction}"))
    memory = Memory(parsed.variables)
    memory.allocate("o", 4)
    launch = make_launch(link(parsed, "k"), 1, 32, [Pointer("o")], memory)
    name = instruction.split()[0].rstrip(";")
    with pytest.raises(PtxError, match=rf"kernel.ptx:\d+: .*{name.replace('.', '[.]')}"):
        LLVM.run(launch, memory)
    assert memory.read("o", np.uint32)[0] == 0


def test_trap_and_jump_out_of_a_table_are_errors() -> None:
    text = entry("T: .branchtargets A, B;\nadd.u32 %r1, %r0, 0;\nbrx.idx %r1, T;\nA: ret;\nB: ret;")
    with pytest.raises(ExecutionError, match=r"brx.idx, thread \(2, 0, 0\) of block \(0, 0, 0\): branch index 2"):
        run(text, {"o": np.zeros(1, np.uint32)})
    with pytest.raises(ExecutionError, match="the kernel trapped"):
        run(entry("trap;"), {"o": np.zeros(1, np.uint32)})


# -- generic addresses -----------------------------------------------------------------------------------------------


def test_generic_addresses_of_every_memory() -> None:
    """Warp 0 goes through shared, warp 1 through local, warp 2 through global memory; one word is read by all."""
    text = entry(
        ".local .align 8 .b8 own[32]; mov.u32 %r9, s; mov.u32 %r1, %tid.x; shr.u32 %r2, %r1, 5; and.b32 %r3, %r1, 31;"
        "mov.u64 %rd2, s; cvta.shared.u64 %rd3, %rd2; mul.wide.u32 %rd4, %r3, 8; add.u64 %rd3, %rd3, %rd4;"
        "mov.u64 %rd5, own; cvta.local.u64 %rd6, %rd5; mul.wide.u32 %rd7, %r1, 8; add.u64 %rd8, %rd0, %rd7;"
        "setp.eq.u32 %p1, %r2, 0; setp.eq.u32 %p2, %r2, 1; selp.b64 %rd9, %rd6, %rd8, %p2;"
        "selp.b64 %rd9, %rd3, %rd9, %p1;"
        "mul.lo.u32 %r4, %r1, 3; st.v2.u32 [%rd9], {%r1, %r4}; ld.u32 %r5, [%rd9+4]; ld.v2.u32 {%r6, %r7}, [%rd9];"
        "st.u32 [%rd6+8], %r5; ld.u32 %r8, [%rd6+8]; add.u32 %r8, %r8, %r6;"
        "bar.sync 0; mov.u64 %rd10, s;"
        "cvta.shared.u64 %rd11, %rd10; ld.u32 %r10, [%rd11+24]; add.u32 %r8, %r8, %r10; st.u32 [%rd8], %r8;"
        "@%p1 ld.u16 %r11, [%rd9]; selp.u32 %r11, %r11, 5, %p1; st.global.u32 [%rd8+4], %r11;", 1,
        ".shared .align 8 .b8 s[512];",
    )  # fmt: skip
    out, trace = run(text, {"o": np.zeros(192, np.uint32)}, block=96)
    got = out["o"].reshape(96, 2)
    assert got[:, 0].tolist() == [4 * t + 3 for t in range(96)]
    assert got[:, 1].tolist() == [t if t < 32 else 5 for t in range(96)]
    window = (1 << 27) - 1
    first = trace.records[: trace.record_offsets[1]]
    assert sum(line_of(int(r)) == window for r in first) == 2 + 2 + 2 + 1 + 2  # passes: words 8 bytes apart take two


def test_a_launch_handed_over_halfway_starts_again_from_the_memory_it_found() -> None:
    """Block 1 reads shared and local memory in one instruction: left to the oracle, after block 0 has counted."""
    text = entry(
        ".local .align 8 .b8 own[8]; mov.u32 %r9, s; red.global.add.u32 [%rd0], 1; mov.u32 %r1, %ctaid.x;"
        "setp.eq.u32 %p1, %r1, 0; @%p1 bra E; mov.u64 %rd2, s; cvta.shared.u64 %rd3, %rd2; mov.u64 %rd4, own;"
        "cvta.local.u64 %rd5, %rd4; and.b32 %r2, %r0, 1; setp.eq.u32 %p2, %r2, 0; selp.b64 %rd6, %rd3, %rd5, %p2;"
        "st.local.u32 [own], 7; ld.u32 %r3, [%rd6]; red.global.add.u32 [%rd0+4], %r3;\nE:", 1, SHARED,
    )  # fmt: skip
    out, _ = run(text, {"o": np.zeros(2, np.uint32)}, grid=2)
    assert out["o"].tolist() == [64, 16 * 7]
