"""PTX instructions by definition: on Python integers, and for floating point on fractions that are rounded once.

One thing is as the executors have it, not as IEEE 754 does: x - x is +0 also where it is rounded towards -infinity.

Operands and results are bit patterns. A form is an instruction, its operand types, its result type, and what it gives.
Nothing here knows NumPy, LLVM or the executors.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple


class Form(NamedTuple):
    """`text` is an instruction with its modifiers, `more` what stands behind its operands."""

    text: str
    sources: tuple[str, ...]
    result: str
    give: Callable
    more: str = ""


def width(type_: str) -> int:
    return 16 if type_ == "bf16" else int(type_[1:])


def signed(x: int, bits: int) -> int:
    x &= (1 << bits) - 1
    return x - (1 << bits) if x >> (bits - 1) else x


def number(x: int, type_: str) -> int:
    """The integer that a pattern stands for."""
    return signed(x, width(type_)) if type_[0] == "s" else x


def clamp(x: int, type_: str) -> int:
    bits = width(type_)
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if type_[0] == "s" else (0, (1 << bits) - 1)
    return min(max(x, low), high)


# -- integers --------------------------------------------------------------------------------------------------------


def truncated(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def quotient(a: int, b: int) -> int:
    return -1 if b == 0 else truncated(a, b)


def remainder(a: int, b: int) -> int:
    return a if b == 0 else a - truncated(a, b) * b


def field(a: int, position: int, length: int, type_: str) -> int:
    """`bfe`: bits beyond the word are its sign."""
    bits, position, length = width(type_), position & 255, length & 255
    taken = [a >> min(position + i, bits - 1) & 1 if type_[0] == "s" else a >> position + i & 1 for i in range(length)]
    value = sum(bit << i for i, bit in enumerate(taken[:bits]))
    return value | -1 << length if type_[0] == "s" and taken and taken[-1] else value


def inserted(a: int, b: int, position: int, length: int, bits: int) -> int:
    position, length = position & 255, length & 255
    mask = ((1 << length) - 1) << position & ((1 << bits) - 1)
    return b & ~mask | a << position & mask


def top(x: int) -> int:
    return x.bit_length() - 1


def permuted(mode: str) -> Callable:
    def give(a: int, b: int, c: int) -> int:
        data = [(a | b << 32) >> 8 * i & 255 for i in range(8)]
        result = 0
        for i in range(4):
            s = c & 3
            at = {"f4e": s + i, "b4e": (s - i) % 8, "rc8": s, "ecl": max(s, i), "ecr": min(s, i),
                  "rc16": 2 * (s & 1) + (i & 1), "": c >> 4 * i & 7}[mode]  # fmt: skip
            byte = data[at]
            if not mode and c >> 4 * i & 8:
                byte = 255 if byte & 128 else 0
            result |= byte << 8 * i
        return result

    return give


def nth_set(mask: int, base: int, offset: int) -> int:
    if not (offset := signed(offset, 32)):
        return base if base < 32 and mask >> base & 1 else -1
    order = range(base, 32) if offset > 0 else range(min(base, 31), -1, -1)
    set_ = [i for i in order if mask >> i & 1]
    return set_[abs(offset) - 1] if abs(offset) <= len(set_) else -1


def by_parts(bits: int, one: Callable, join: str = "") -> Callable:
    def give(a: int, b: int, c: int) -> int:
        values = [one(a >> s & ((1 << bits) - 1), b >> s & ((1 << bits) - 1)) for s in range(0, 32, bits)]
        if join == "add":
            return c + sum(values)
        return sum((v & ((1 << bits) - 1)) << bits * i for i, v in enumerate(values))

    return give


def products(a: int, b: int, c: int, left: str, right: str, first: int, count: int) -> int:
    bits = 32 // count
    value = lambda x, n, i, t: signed(x >> n * i, n) if t == "s32" else x >> n * i & ((1 << n) - 1)  # noqa: E731
    return c + sum(value(a, bits, i, left) * value(b, 8, i + first, right) for i in range(count))


def _word_forms(t: str) -> list[Form]:
    """Of a 32 or 64-bit integer type."""
    bits, n = width(t), lambda *x: [number(v, t) for v in x]
    two = {
        "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul.lo": lambda a, b: a * b,
        "mul.hi": lambda a, b: a * b >> bits, "div": quotient, "rem": remainder, "min": min, "max": max,
    }  # fmt: skip
    forms = [Form(f"{name}.{t}", (t, t), t, lambda a, b, f=f: f(*n(a, b))) for name, f in two.items()]
    three = {
        "mad.lo": lambda a, b, c: a * b + c, "mad.hi": lambda a, b, c: (a * b >> bits) + c,
        "sad": lambda a, b, c: c + abs(a - b),
    }  # fmt: skip
    forms += [Form(f"{name}.{t}", (t, t, t), t, lambda a, b, c, f=f: f(*n(a, b, c))) for name, f in three.items()]
    forms.append(Form(f"shr.{t}", (t, "u32"), t, lambda a, k: n(a)[0] >> k))
    forms.append(Form(f"bfind.{t}", (t,), "u32", lambda a: top(a if n(a)[0] >= 0 else ~a & ((1 << bits) - 1))))
    forms.append(Form(f"bfe.{t}", (t, "u32", "u32"), t, lambda a, p, k: field(a, p, k, t)))
    compared = {"eq": a_eq, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b, "ge": lambda a, b: a >= b}
    forms += [Form(f"set.{c}.u32.{t}", (t, t), "u32", lambda a, b, f=f: -f(*n(a, b))) for c, f in compared.items()]
    if t[0] == "s":
        forms += [Form(f"neg.{t}", (t,), t, lambda a: -n(a)[0]), Form(f"abs.{t}", (t,), t, lambda a: abs(n(a)[0]))]
    return forms


def a_eq(a: int, b: int) -> bool:
    return a == b


def _bit_forms(t: str) -> list[Form]:
    bits = width(t)
    return [
        Form(f"and.{t}", (t, t), t, lambda a, b: a & b), Form(f"or.{t}", (t, t), t, lambda a, b: a | b),
        Form(f"xor.{t}", (t, t), t, lambda a, b: a ^ b), Form(f"not.{t}", (t,), t, lambda a: ~a),
        Form(f"cnot.{t}", (t,), t, lambda a: int(a == 0)),
        Form(f"shl.{t}", (t, "u32"), t, lambda a, k: a << min(k, 64)),
        Form(f"popc.{t}", (t,), "u32", int.bit_count), Form(f"clz.{t}", (t,), "u32", lambda a: bits - a.bit_length()),
        Form(f"brev.{t}", (t,), t, lambda a: int(f"{a:0{bits}b}"[::-1], 2)),
        Form(f"bfi.{t}", (t, t, "u32", "u32"), t, lambda a, b, p, k: inserted(a, b, p, k, bits)),
    ]  # fmt: skip


def _narrow_forms() -> list[Form]:
    """Of 32 bits alone."""
    w = ("b32", "b32", "b32")
    u, s = ("u32", "u32", "u32"), ("s32", "s32", "s32")
    n = lambda *x: [signed(v, 32) for v in x]  # noqa: E731
    low24, ones = lambda x: x & 0xFFFFFF, lambda k: (1 << k) - 1
    forms = [
        Form("add.sat.s32", s[:2], "s32", lambda a, b: clamp(sum(n(a, b)), "s32")),
        Form("sub.sat.s32", s[:2], "s32", lambda a, b: clamp(n(a)[0] - n(b)[0], "s32")),
        Form("mad.hi.sat.s32", s, "s32", lambda a, b, c: clamp((n(a)[0] * n(b)[0] >> 32) + n(c)[0], "s32")),
        Form("min.relu.s32", s[:2], "s32", lambda a, b: max(min(n(a, b)), 0)),
        Form("mul24.lo.u32", u[:2], "u32", lambda a, b: low24(a) * low24(b)),
        Form("mul24.hi.s32", s[:2], "s32", lambda a, b: signed(a, 24) * signed(b, 24) >> 16),
        Form("mad24.lo.s32", s, "s32", lambda a, b, c: signed(a, 24) * signed(b, 24) + c),
        Form("mul.wide.u32", u[:2], "u64", lambda a, b: a * b),
        Form("mul.wide.s32", s[:2], "s64", lambda a, b: n(a)[0] * n(b)[0]),
        Form("mad.wide.s32", ("s32", "s32", "s64"), "s64", lambda a, b, c: n(a)[0] * n(b)[0] + c),
        Form("shf.l.clamp.b32", w, "b32", lambda a, b, k: (b << 32 | a) << min(k, 32) >> 32),
        Form("shf.r.wrap.b32", w, "b32", lambda a, b, k: (b << 32 | a) >> (k & 31)),
        Form("lop3.b32", w, "b32", lambda a, b, c: a & b | ~a & c, ", 202"),
        Form("bfind.shiftamt.u32", u[:1], "u32", lambda a: 31 - top(a) if a else -1),
        Form("bmsk.clamp.b32", w[:2], "b32", lambda p, k: ones(min(k, 32)) << min(p, 32)),
        Form("bmsk.wrap.b32", w[:2], "b32", lambda p, k: ones(k & 31) << (p & 31)),
        Form("fns.b32", w, "b32", nth_set),
        Form("szext.clamp.s32", ("s32", "u32"), "s32", lambda a, k: signed(a, min(k, 32)) if k else 0),
        Form("szext.wrap.u32", u[:2], "u32", lambda a, k: a & ones(k & 31)),
        Form("dp4a.s32.u32", w, "s32", lambda a, b, c: products(a, b, c, "s32", "u32", 0, 4)),
        Form("dp2a.hi.u32.s32", w, "s32", lambda a, b, c: products(a, b, c, "u32", "s32", 2, 2)),
        Form("vadd2.s32.s32.s32.sat", s, "s32",
             by_parts(16, lambda x, y: clamp(signed(x, 16) + signed(y, 16), "s16"))),
        Form("vabsdiff4.u32.u32.u32.add", u, "u32", by_parts(8, lambda x, y: abs(x - y), "add")),
        Form("vmin4.s32.s32.u32", s, "s32", by_parts(8, lambda x, y: min(signed(x, 8), y))),
        Form("vavrg2.u32.u32.u32", u, "u32", by_parts(16, lambda x, y: (x + y + 1) >> 1)),
        Form("vsub.s32.u32.u32.sat", u[:2], "s32", lambda a, b: clamp(a - b, "s32")),
        Form("vshr.u32.u32.u32.clamp.add", u, "u32", lambda a, b, c: (a >> min(b, 32)) + c),
        Form("cvt.pack.sat.s8.s32.b32", ("s32", "s32", "b32"), "b32", lambda a, b, c: (
            (clamp(n(a)[0], "s8") & 255) << 8 | clamp(n(b)[0], "s8") & 255 | c << 16)),
    ]  # fmt: skip
    return forms + [
        Form(f"prmt.b32{'.' * bool(m)}{m}", w, "b32", permuted(m))
        for m in ("", "f4e", "b4e", "rc8", "ecl", "ecr", "rc16")
    ]


def _resizing_forms() -> list[Form]:
    types = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")
    forms = []
    for to in types:
        for of in types[2:]:
            forms.append(Form(f"cvt.{to}.{of}", (of,), to, lambda a, of=of: number(a, of)))
            forms.append(Form(f"cvt.sat.{to}.{of}", (of,), to, lambda a, to=to, of=of: clamp(number(a, of), to)))
    return forms


INTEGERS: list[Form] = [
    *(form for t in ("u32", "s32", "u64", "s64") for form in _word_forms(t)),
    *(form for t in ("b32", "b64") for form in _bit_forms(t)), *_narrow_forms(), *_resizing_forms(),
]  # fmt: skip


# -- floating point ----------------------------------------------------------------------------------------------------

# precision, least exponent of a normal number, greatest exponent
FORMATS = {"f16": (11, -14, 15), "bf16": (8, -126, 127), "f32": (24, -126, 127), "f64": (53, -1022, 1023)}
_CODES = {"f16": "<e", "f32": "<f", "f64": "<d"}
_MODES = ("rn", "rz", "rm", "rp")


def value(x: int, type_: str) -> float:
    """The number that a pattern stands for: every format's is a float64."""
    if type_ == "bf16":
        return value(x << 16, "f32")
    return struct.unpack(_CODES[type_], x.to_bytes(width(type_) // 8, "little"))[0]


def pattern(x: float, type_: str) -> int:
    """The bits of a number that the format has."""
    if type_ == "bf16":
        return pattern(x, "f32") >> 16
    return int.from_bytes(struct.pack(_CODES[type_], x), "little")


def rounded(x: Fraction, type_: str, mode: str, zero: float = 0.0) -> float:
    """x in a format, rounded once; `zero`: of which sign a result of 0 is, if x is 0."""
    if x == 0:
        return zero
    precision, least, greatest = FORMATS[type_]
    size = abs(x)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent
    step = Fraction(2) ** (max(exponent, least) - precision + 1)
    whole, rest = divmod(size, step)
    away = {"rn": rest * 2 > step or (rest * 2 == step and whole % 2), "rz": False, "rm": x < 0, "rp": x > 0}[mode]
    result = (whole + (away and rest > 0)) * step
    most = (2 - Fraction(2) ** (1 - precision)) * Fraction(2) ** greatest
    if result > most:
        finite = mode == "rz" or (mode == "rm" and x > 0) or (mode == "rp" and x < 0)
        return (float(most) if finite else math.inf) * (1 if x > 0 else -1)
    return float(result) * (1 if x > 0 else -1)


def _arithmetic(name: str, type_: str, mode: str) -> Callable:
    def give(*patterns: int) -> float:
        a, *rest = (value(p, type_) for p in patterns)
        numbers = [a, *rest]
        if not all(map(math.isfinite, numbers)) or (name in ("div", "rcp") and numbers[-1] == 0) or (
            name == "sqrt" and a < 0
        ):  # fmt: skip
            return _special(name, numbers)
        exact = [Fraction(v) for v in numbers]
        if name in ("add", "sub", "fma"):
            product = a * rest[0] if name == "fma" else a  # its sign; its size may under- or overflow
            left = exact[0] * exact[1] if name == "fma" else exact[0]
            right = -exact[-1] if name == "sub" else exact[-1]
            last = -numbers[-1] if name == "sub" else numbers[-1]
            same = left == 0 and math.copysign(1, product) == math.copysign(1, last)
            return rounded(left + right, type_, mode, last if same else 0.0)
        if name == "mul":
            return rounded(exact[0] * exact[1], type_, mode, math.copysign(0.0, a) * math.copysign(1, rest[0]))
        if name == "div":
            return rounded(exact[0] / exact[1], type_, mode, math.copysign(0.0, a) * math.copysign(1, rest[0]))
        return rounded(1 / exact[0], type_, mode) if name == "rcp" else _root(a, type_, mode)

    return give


def _root(a: float, type_: str, mode: str) -> float:
    """The square root, from an integer one of so many bits that the rest says on which side of a tie it is."""
    if a == 0:
        return a
    scale = 1200
    x = Fraction(a) * Fraction(4) ** scale
    root = math.isqrt(x.numerator // x.denominator)
    inexact = Fraction(root) ** 2 != x
    return rounded((Fraction(root) + Fraction(1, 2) * inexact) / Fraction(2) ** scale, type_, mode)


def _special(name: str, numbers: list[float]) -> float:
    """IEEE 754's results of infinities, NaNs and divisions by 0, which float64 has, too."""
    a, *rest = numbers
    try:
        if name == "fma":
            return a * rest[0] + rest[1]
        if name in ("div", "rcp"):
            top_, bottom = (1.0, a) if name == "rcp" else (a, rest[0])
            if bottom == 0 and not math.isnan(top_) and top_:
                return math.copysign(math.inf, top_) * math.copysign(1, bottom)
            return math.nan if bottom == 0 else top_ / bottom
        if name == "sqrt":
            return math.nan if a < 0 else math.sqrt(a)
        return {"add": lambda: a + rest[0], "sub": lambda: a - rest[0], "mul": lambda: a * rest[0]}[name]()
    except OverflowError:
        return math.inf


def _minimum(a: float, b: float, least: bool, strict: bool) -> float:
    if math.isnan(a) or math.isnan(b):
        return math.nan if strict or (math.isnan(a) and math.isnan(b)) else b if math.isnan(a) else a
    key = lambda v: (v, math.copysign(1, v))  # noqa: E731
    return min(a, b, key=key) if least else max(a, b, key=key)


def _flushed(x: float, type_: str = "f32") -> float:
    return math.copysign(0.0, x) if abs(x) < 2.0 ** FORMATS[type_][1] else x


def _to_integer(x: float, mode: str, to: str, of: str) -> int:
    bits = width(to)
    if math.isnan(x):
        return 1 << bits - 1 if of == "f64" or bits == 64 else 0
    if math.isinf(x):
        return clamp((1 << 100) * (1 if x > 0 else -1), to)
    exact = Fraction(x)
    whole = {"rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil, "rni": round}[mode](exact)
    return clamp(whole, to)


_ARITY = {"add": 2, "sub": 2, "mul": 2, "div": 2, "sqrt": 1, "rcp": 1, "fma": 3}
_COMPARED = {
    "eq": lambda a, b: a == b, "ne": lambda a, b: a < b or a > b, "lt": lambda a, b: a < b, "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b, "num": lambda a, b: a == a and b == b,
    "nan": lambda a, b: a != a or b != b,
}  # fmt: skip


def _comparisons(t: str) -> list[Form]:
    forms = []
    for name, f in _COMPARED.items():
        forms.append(Form(f"set.{name}.u32.{t}", (t, t), "u32", lambda a, b, f=f: -f(value(a, t), value(b, t))))
        if name not in ("num", "nan"):
            or_nan = lambda a, b, f=f: -(f(a, b) or a != a or b != b)  # noqa: E731
            forms.append(
                Form(f"set.{name}u.u32.{t}", (t, t), "u32", lambda a, b, f=or_nan: f(value(a, t), value(b, t)))
            )
    return forms


def _float_forms() -> list[Form]:
    forms = []
    for t in ("f32", "f64"):
        for name, arity in _ARITY.items():
            forms += [Form(f"{name}.{m}.{t}", (t,) * arity, t, _arithmetic(name, t, m)) for m in _MODES]
    for t in ("f16", "bf16"):
        forms += [Form(f"{name}.rn.{t}", (t,) * _ARITY[name], t, _arithmetic(name, t, "rn"))
                  for name in ("add", "sub", "mul", "fma")]  # fmt: skip
    for t in FORMATS:
        forms += _comparisons(t)
        forms += [Form(f"{name}{'.NaN' * strict}.{t}", (t, t), t, lambda a, b, name=name, strict=strict, t=t: _minimum(
            value(a, t), value(b, t), name == "min", strict)) for name in ("min", "max") for strict in (False, True)
            if t != "f64" or not strict]  # fmt: skip
    one = lambda f: lambda a, b: f(_arithmetic("add", "f32", "rn")(a, b))  # noqa: E731
    saturated = lambda x: min(x, 1.0) if x > 0 else 0.0  # noqa: E731
    forms += [
        Form("min.f32", ("f32", "f32", "f32"), "f32", lambda a, b, c: _minimum(
            _minimum(value(a, "f32"), value(b, "f32"), True, False), value(c, "f32"), True, False)),
        Form("add.sat.f32", ("f32", "f32"), "f32", one(saturated)),
        Form("add.ftz.f32", ("f32", "f32"), "f32", lambda a, b: _flushed(_arithmetic("add", "f32", "rn")(
            *(pattern(_flushed(value(x, "f32")), "f32") for x in (a, b))))),
        Form("testp.subnormal.f32", ("f32",), "pred", lambda a: 0 < abs(value(a, "f32")) < 2.0**-126),
        Form("testp.finite.f64", ("f64",), "pred", lambda a: math.isfinite(value(a, "f64"))),
        Form("testp.normal.f32", ("f32",), "pred", lambda a: 2.0**-126 <= abs(value(a, "f32")) < math.inf),
    ]  # fmt: skip
    return forms


def _rounded_value(x: float, to: str, mode: str) -> float:
    return rounded(Fraction(x), to, mode, x) if math.isfinite(x) else x


def _conversions() -> list[Form]:
    forms = []
    for of in ("f16", "f32", "f64"):
        for to in ("u8", "s16", "u32", "s32", "u64", "s64"):
            forms += [Form(f"cvt.{m}.{to}.{of}", (of,), to, lambda a, m=m, to=to, of=of: _to_integer(
                value(a, of), m, to, of)) for m in ("rni", "rzi", "rmi", "rpi")]  # fmt: skip
    for of in ("u16", "u32", "s32", "u64", "s64"):
        for to in ("f16", "f32", "f64"):
            forms += [Form(f"cvt.{m}.{to}.{of}", (of,), to, lambda a, m=m, to=to, of=of: rounded(
                Fraction(number(a, of)), to, m)) for m in _MODES]  # fmt: skip
    for of, to in (("f32", "f16"), ("f64", "f16"), ("f64", "f32"), ("f32", "bf16")):
        forms += [Form(f"cvt.{m}.{to}.{of}", (of,), to, lambda a, m=m, to=to, of=of:
                       _rounded_value(value(a, of), to, m))
                  for m in (_MODES if to != "bf16" else _MODES[:2])]  # fmt: skip
    for of, to in (("f16", "f32"), ("f16", "f64"), ("f32", "f64"), ("bf16", "f32")):
        forms.append(Form(f"cvt.{to}.{of}", (of,), to, lambda a, of=of: value(a, of)))
    return forms


FLOATS: list[Form] = [*_float_forms(), *_conversions()]
