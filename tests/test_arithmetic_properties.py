"""Integer and floating-point arithmetic against exact arithmetic, on random operands (hypothesis)."""

from __future__ import annotations

import operator
from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from nightly import examples
from ptx_kernels import evaluate


def _signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


_WORDS = st.one_of(st.integers(0, 2**64 - 1), st.sampled_from([0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1, 2**31 - 1]))


@examples(10, 25)
@given(
    st.lists(st.tuples(_WORDS, _WORDS, _WORDS), min_size=8, max_size=32), st.sampled_from(["u32", "s32", "u64", "s64"])
)
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


@examples(10, 25)
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


_MODES = st.sampled_from(["rn", "rz", "rm", "rp"])
_F32 = st.floats(width=32, allow_nan=False, allow_infinity=False)
_NEAR = st.builds(
    lambda m, e: float(np.float32(m * 2.0**e)), st.integers(-(2**24) + 1, 2**24 - 1), st.integers(-60, 20)
)


@examples(24, 60)
@given(st.lists(st.tuples(*[st.one_of(_F32, _NEAR)] * 3), min_size=32, max_size=32), _MODES)
def test_f32_fma_is_rounded_once(rows: list, mode: str) -> None:
    a, b, c = (np.array(v, np.float32) for v in zip(*rows, strict=True))
    got = evaluate(f"fma.{mode}.f32 %d, %a, %b, %c;", "f32", ("f32", a), ("f32", b), ("f32", c))
    for x, y, z, r in zip(a, b, c, got, strict=True):
        _check_rounding(Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)), r, mode, np.float32)


_EXACT = {"add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv}
_F64 = st.floats(allow_nan=False, allow_infinity=False)
_NEAR64 = st.builds(lambda m, e: m * 2.0**e, st.integers(-(2**53) + 1, 2**53 - 1), st.integers(-100, 40))


@examples(24, 60)
@given(st.lists(st.tuples(*[st.one_of(_F64, _NEAR64)] * 3), min_size=32, max_size=32), _MODES)
def test_f64_fma_is_rounded_once(rows: list, mode: str) -> None:
    a, b, c = (np.array(v, np.float64) for v in zip(*rows, strict=True))
    got = evaluate(f"fma.{mode}.f64 %d, %a, %b, %c;", "f64", ("f64", a), ("f64", b), ("f64", c))
    for x, y, z, r in zip(a, b, c, got, strict=True):
        _check_rounding(Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)), r, mode, np.float64)


@examples(16, 40)
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
        _check_rounding(_EXACT[opcode](Fraction(float(x)), Fraction(float(y))), r, mode, dtype)


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
