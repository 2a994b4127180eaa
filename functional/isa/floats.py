"""Floating-point arithmetic of f16, bf16, f32, f64 and of packed pairs: rounding modes, `.ftz`, `.sat`, `.relu`.

The 16-bit types are computed in float32, which is wide enough that rounding again changes nothing (24 >= 2 * 11 + 2), a
fused multiply-add by way of a sum rounded to odd. Directed rounding is by error-free transformations: Dekker / Knuth
two-sum and two-product; Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums: proved algorithms using
rounding to odd" (IEEE TC 2008): a float64 rounded to odd rounds once more, to any format of at most 51 bits, as if it
had been rounded once. Approximate functions are computed in float64 and rounded, so that results do not depend on
vector length or CPU. A NaN result keeps whatever payload IEEE arithmetic of the host gives (hardware: 0x7fffffff)."""

from collections.abc import Callable, Iterable
from functools import partial, reduce

from msgspec.structs import replace

from functional.isa import integers
from functional.isa.emitter import Emitter, Value
from functional.isa.operation import (
    FLOATS,
    ROUNDINGS,
    Builder,
    Operation,
    flags_of,
    only_type,
    refuse_if,
    rounding,
    same_type,
)
from functional.ptx.ir import Instruction

ALL = ("f32", "f64", "f16", "bf16")
_SPLIT = 134217729.0  # 2**27 + 1
TINY = {"f16": 2.0**-14, "bf16": 2.0**-126, "f32": 2.0**-126, "f64": 2.0**-1022}  # least normal number


def fabs(e: Emitter, x: Value) -> Value:
    """The absolute value."""
    return e.intrinsic("fabs", x)


def finite(e: Emitter, x: Value) -> Value:
    """Is it neither infinite nor NaN?"""
    return e.compare("olt", fabs(e, x), float("inf"))


def flush(e: Emitter, x: Value, tiny: float = TINY["f32"]) -> Value:
    """`.ftz`: a subnormal number becomes a zero of its sign."""
    zero = e.intrinsic("copysign", e.floating(0.0, x.kind), x)
    return e.select(e.compare("olt", fabs(e, x), tiny), zero, x)


def saturate(e: Emitter, x: Value) -> Value:
    """`.sat`: clamp to [0, 1], NaN becomes 0."""
    low = e.select(e.compare("olt", x, 1.0), x, 1.0)
    return e.select(e.compare("ogt", x, 0.0), low, 0.0)


def rectify(e: Emitter, x: Value) -> Value:
    """`.relu`: negative numbers become 0, NaN stays."""
    return e.select(e.compare("ugt", x, 0.0), x, 0.0)


def up(e: Emitter, v: Value) -> Value:
    """A half, or the bits of a bf16, as float32; others as they are."""
    if v.kind == "half":
        return e.cast("fpext", v, "float")
    return e.as_kind(e.op("shl", e.cast("zext", v, "i32"), 16), "float") if v.kind == "i16" else v


def to_bf16(e: Emitter, x: Value, mode: str = "rn") -> Value:
    """float32, or float64 (exact or rounded to odd), to the bits of a bf16."""
    if x.kind == "double":
        near = e.cast("fptrunc", x, "float")
        error = e.op("fsub", x, e.cast("fpext", near, "double"))
        error = e.select(finite(e, near), error, 0.0)
        inexact = e.compare("one", error, 0.0)
        bits = e.op("or", e.raw_bits(direct(e, near, error, "rz")), e.cast("zext", inexact, "i32"))
    else:
        near, bits = x, e.raw_bits(x)
    low, kept = e.op("and", bits, 0xFFFF), e.op("lshr", bits, 16)
    some = e.compare("ne", low, 0)
    if mode == "rn":
        tie = e.op("and", e.compare("eq", low, 0x8000), e.compare("ne", e.op("and", kept, 1), 0))
        raised = e.op("or", e.compare("ugt", low, 0x8000), tie)
    elif mode == "rz":
        raised = e.compare("ult", bits, 0)
    else:
        raised = e.op("and", some, e.compare("slt" if mode == "rm" else "sge", bits, 0))
    rounded = e.op("add", kept, e.cast("zext", raised, "i32"))
    odd = e.op("and", some, e.compare("uno", near, near))
    special = e.op("or", kept, e.cast("zext", odd, "i32"))
    return e.resize(e.select(finite(e, near), rounded, special), "i16", False)


def down(e: Emitter, x: Value, type_: str) -> Value:
    """Round a float32 (or a float64 rounded to odd) to f16 or bf16; other types stay."""
    if type_ == "bf16":
        return to_bf16(e, x)
    if type_ != "f16" or x.kind == "half":
        return x
    return narrow(e, x, "half", "rn") if x.kind == "double" else e.cast("fptrunc", x, "half")


def two_sum(e: Emitter, a: Value, b: Value) -> tuple[Value, Value]:
    """(s, e) with s = RN(a + b) and s + e = a + b exactly; e is NaN where s is not finite."""
    s = e.op("fadd", a, b)
    t = e.op("fsub", s, a)
    return s, e.op("fadd", e.op("fsub", a, e.op("fsub", s, t)), e.op("fsub", b, t))


def _two_product(e: Emitter, a: Value, b: Value) -> tuple[Value, Value]:
    """(p, e) of float64 with p = RN(a * b) and p + e = a * b exactly, for magnitudes in [2**-960, 2**970]."""
    p = e.op("fmul", a, b)
    (a_high, a_low), (b_high, b_low) = _halves_of(e, a), _halves_of(e, b)
    error = e.op("fadd", e.op("fsub", e.op("fmul", a_high, b_high), p), e.op("fmul", a_high, b_low))
    error = e.op("fadd", error, e.op("fmul", a_low, b_high))
    return p, e.op("fadd", error, e.op("fmul", a_low, b_low))


def _halves_of(e: Emitter, a: Value) -> tuple[Value, Value]:
    t = e.op("fmul", a, _SPLIT)
    high = e.op("fsub", t, e.op("fsub", t, a))
    return high, e.op("fsub", a, high)


def round_to_odd(e: Emitter, s: Value, error: Value) -> Value:
    """s + error rounded to odd, where s is that sum rounded to nearest, a zero with its sign; `error` may be wider."""
    bits = e.raw_bits(s)
    even = e.compare("eq", e.op("and", bits, 1), 0)
    move = e.op("and", even, e.compare("one", error, 0.0))
    move = e.op("and", move, e.op("and", finite(e, error), finite(e, s)))
    shrinks = e.op("xor", e.compare("ogt", error, 0.0), e.compare("sge", bits, 0))
    moved = e.op("add", bits, e.select(shrinks, -1, 1, bits.kind))
    return e.as_kind(e.select(move, moved, bits), s.kind)


def sum_to_odd(e: Emitter, a: Value, b: Value) -> Value:
    """a + b rounded to odd."""
    return round_to_odd(e, *two_sum(e, a, b))


def fused(e: Emitter, a: Value, b: Value, c: Value, mode: str) -> Value:
    """a * b + c of float64 rounded once by `mode`, where neither splitting nor sums over- or underflow."""
    high, low = _two_product(e, a, b)
    sum_high, sum_low = two_sum(e, c, low)
    top, rest = two_sum(e, high, sum_high)
    return direct(e, *two_sum(e, top, sum_to_odd(e, sum_low, rest)), mode)


_HUGE, _TINY = 2.0**970, 2.0**-960  # outside, splitting over- or underflows


def fused_or_doubtful(e: Emitter, a: Value, b: Value, c: Value, mode: str) -> tuple[Value, Value]:
    """a * b + c of float64 rounded once by `mode`, and where that may be wrong: at the ends of the range."""
    product, size = e.op("fmul", a, b), e.intrinsic("fabs", e.op("fmul", a, b))
    exact = e.op("or", e.compare("oeq", a, 0.0), e.compare("oeq", b, 0.0))
    inside = e.op("and", e.compare("olt", size, _HUGE), e.compare("ogt", size, _TINY))
    for value in (a, b, c):
        inside = e.op("and", inside, e.compare("olt", e.intrinsic("fabs", value), _HUGE))
        exact = e.op("or", exact, e.invert(e.compare("olt", e.intrinsic("fabs", value), float("inf"))))
    value = e.select(exact, e.op("fadd", product, c), fused(e, a, b, c, mode))
    return value, e.invert(e.op("or", exact, inside))


def _next(e: Emitter, x: Value, upwards: bool) -> Value:
    """`nextafter` to +/- infinity of a number that is no NaN."""
    bits = e.raw_bits(x)
    negative = e.compare("slt", bits, 0)
    step = e.select(negative, -1 if upwards else 1, 1 if upwards else -1, bits.kind)
    moved = e.op("add", bits, step)
    smallest = e.literal(1 | (0 if upwards else 1 << (x.bits - 1)), bits.kind)
    moved = e.select(e.compare("oeq", x, 0.0), smallest, moved)
    stays = e.compare("oeq", x, float("inf") if upwards else float("-inf"))
    return e.as_kind(e.select(stays, bits, moved), x.kind)


def direct(e: Emitter, r: Value, error: Value, mode: str) -> Value:
    """Turn r = RN(x) into x rounded by `mode`; the sign of `error` is that of x - r."""
    for upwards, modes in ((False, ("rm", "rz")), (True, ("rp", "rz"))):
        if mode in modes:
            moves = e.compare("ogt" if upwards else "olt", error, 0.0)
            if mode == "rz":  # only towards zero
                moves = e.op("and", moves, e.compare("olt" if upwards else "ogt", r, 0.0))
            r = e.select(moves, _next(e, r, upwards), r)
    return r


def narrow(e: Emitter, odd: Value, kind: str, mode: str) -> Value:
    """Round a float64 that was rounded to odd to a narrower kind; to half by way of a float32 rounded to odd."""
    r = e.cast("fptrunc", odd, "float")
    if kind == "half":
        r = round_to_odd(e, r, e.op("fsub", odd, e.cast("fpext", r, "double")))
        r = e.cast("fptrunc", r, kind)
    if mode == "rn":
        return r
    back = e.cast("fpext", e.cast("fpext", r, "float"), "double")
    error = e.op("fsub", odd, back)
    return direct(e, r, e.select(finite(e, odd), error, 0.0), mode)


def _arithmetic(function: Callable[..., Value], types: Iterable[str], arity: int, flags: Iterable[str]) -> Builder:
    """Builder: widen the operands, compute, apply `.ftz`, `.relu`, `.sat`, round: an f16 before those, a bf16 after."""

    def build(inst: Instruction) -> Operation:
        given, type_ = flags_of(inst, flags), only_type(inst, types)
        ftz, tiny = "ftz" in given and type_ != "f64", TINY[type_]
        refuse_if(inst.opcode in ("fma", "mad") and type_ == "bf16" and "sat" in given)

        def emit(e: Emitter, *values: Value) -> Value:
            wide = [up(e, v) for v in values]
            wide = [flush(e, v, tiny) for v in wide] if ftz else wide
            result = function(e, inst, *wide)
            if type_ == "f16" and given & {"ftz", "relu", "sat"}:
                result = up(e, down(e, result, type_))
            result = flush(e, result, tiny) if ftz else result
            result = rectify(e, result) if "relu" in given else result
            return down(e, saturate(e, result) if "sat" in given else result, type_)

        return Operation(emit, (type_,), (type_,) * arity)

    return build


def _quotient_error(e: Emitter, a: Value, b: Value) -> tuple[Value, Value]:
    q = e.op("fdiv", a, b)
    p, error = _two_product(e, q, b)
    rest = e.op("fsub", e.op("fsub", a, p), error)
    return q, e.op("fmul", rest, e.intrinsic("copysign", e.floating(1.0, "double"), b))


def _root_error(e: Emitter, a: Value) -> tuple[Value, Value]:
    s = e.intrinsic("sqrt", a)
    p, error = _two_product(e, s, s)
    return s, e.op("fsub", e.op("fsub", a, p), error)


# opcode -> (rounded to nearest, (rounded, sign of the error) in float64, number of sources)
_BASIC: dict[str, tuple[Callable[..., Value], Callable[..., tuple[Value, Value]], int]] = {
    "add": (lambda e, a, b: e.op("fadd", a, b), two_sum, 2),
    "sub": (lambda e, a, b: e.op("fsub", a, b), lambda e, a, b: two_sum(e, a, e.op("fmul", b, -1.0)), 2),
    "mul": (lambda e, a, b: e.op("fmul", a, b), _two_product, 2),
    "div": (lambda e, a, b: e.op("fdiv", a, b), _quotient_error, 2),
    "sqrt": (lambda e, a: e.intrinsic("sqrt", a), _root_error, 1),
    "rcp": (
        lambda e, a: e.op("fdiv", e.floating(1.0, a.kind), a),
        lambda e, a: _quotient_error(e, e.floating(1.0, a.kind), a),
        1,
    ),
}


def _basic(e: Emitter, inst: Instruction, *values: Value) -> Value:
    """`add sub mul div sqrt rcp` with a rounding mode, `.approx` and `.full` being round to nearest."""
    nearest, with_error, _ = _BASIC[inst.opcode]
    mode = rounding(inst.modifiers)
    if mode == "rn":
        return nearest(e, *values)
    wide = [e.cast("fpext", v, "double") for v in values]
    if inst.type == "f64":
        value, error = with_error(e, *wide)
        return direct(e, value, _or_overflow(e, inst, value, error, wide), mode)
    if inst.opcode == "mul":  # exact
        value, error = e.op("fmul", *wide), e.floating(0.0, "double")
    else:
        value, error = with_error(e, *wide)
    return narrow(e, round_to_odd(e, value, error), "half" if inst.type == "f16" else "float", mode)


def _or_overflow(e: Emitter, inst: Instruction, value: Value, error: Value, sources: list[Value]) -> Value:
    """The sign of an error; where it is NaN: 0, or that towards finite numbers if those overflowed to infinity."""
    over = e.compare("oeq", fabs(e, value), float("inf"))
    for source in sources:
        over = e.op("and", over, finite(e, source))
    if inst.opcode in ("div", "rcp"):
        over = e.op("and", over, e.compare("one", sources[-1], 0.0))
    known = e.select(e.compare("ord", error, error), error, 0.0)
    return e.select(over, e.op("fmul", e.intrinsic("copysign", e.floating(1.0, "double"), value), -1.0), known)


def _fma(e: Emitter, inst: Instruction, a: Value, b: Value, c: Value) -> Value:
    mode, type_ = rounding(inst.modifiers), inst.type
    if type_ == "f64":
        return e.intrinsic("fma", a, b, c) if mode == "rn" else e.directed_fma(a, b, c, mode)
    if type_ == "f32" and mode == "rn":
        return e.intrinsic("fma", a, b, c)
    if type_ != "f16" or mode != "rn":  # the product of two f16 is exact in float32
        a, b, c = (e.cast("fpext", v, "double") for v in (a, b, c))
    odd = sum_to_odd(e, e.op("fmul", a, b), c)
    return odd if type_ == "bf16" or mode == "rn" else narrow(e, odd, "half" if type_ == "f16" else "float", mode)


def _extremum(inst: Instruction) -> Operation:
    """`min max` with -0 < +0; a NaN operand loses, unless `.NaN`. `.xorsign.abs`: of the magnitudes, with the sign of
    the product. f32 may have three operands."""
    flags, type_ = flags_of(inst, {"ftz", "NaN", "xorsign", "abs"}), only_type(inst, ALL)
    arity, signs = len(inst.sources), {"xorsign", "abs"} & flags
    refuse_if(len(signs) == 1 or (arity != 2 and (arity != 3 or type_ != "f32" or signs)))
    less, ftz = inst.opcode == "min", "ftz" in flags and type_ != "f64"

    def pair(e: Emitter, a: Value, b: Value) -> Value:
        a, b = (down(e, flush(e, up(e, v), TINY[type_]), type_) if ftz else v for v in (a, b))
        kind, bits_a, bits_b = a.kind, e.raw_bits(a), e.raw_bits(b)
        sign = e.op("and", e.op("xor", bits_a, bits_b), 1 << (a.bits - 1)) if "abs" in flags else None
        if sign is not None:
            bits_a, bits_b = (e.op("and", bits, (1 << (a.bits - 1)) - 1) for bits in (bits_a, bits_b))
            a, b = e.as_kind(bits_a, kind), e.as_kind(bits_b, kind)
        x, y = up(e, a), up(e, b)
        first = e.compare("olt" if less else "ogt", x, y)
        loser = (x, x) if "NaN" in flags else (y, y)
        picked = e.select(e.op("or", first, e.compare("uno", *loser)), bits_a, bits_b)
        joined = e.op("or" if less else "and", bits_a, bits_b)
        chosen = e.select(e.compare("oeq", x, y), joined, picked)
        return e.as_kind(chosen if sign is None else e.op("or", chosen, sign), kind)

    return Operation(lambda e, *values: reduce(partial(pair, e), values), (type_,), (type_,) * arity)


def _sign(inst: Instruction) -> Operation:
    """`neg abs`: bit operations, NaN included."""
    flags, type_ = flags_of(inst, {"ftz"}), only_type(inst, ALL)

    def emit(e: Emitter, a: Value) -> Value:
        if "ftz" in flags and type_ in ("f16", "f32"):
            a = down(e, flush(e, up(e, a), TINY[type_]), type_)
        bits, top = e.raw_bits(a), 1 << (a.bits - 1)
        changed = e.op("xor", bits, top) if inst.opcode == "neg" else e.op("and", bits, top - 1)
        return e.as_kind(changed, a.kind)

    return Operation(emit, (type_,), (type_,))


def _rsqrt(e: Emitter, inst: Instruction, a: Value) -> Value:
    x = e.cast("fpext", a, "double")
    return e.cast("fptrunc", e.op("fdiv", e.floating(1.0, "double"), e.intrinsic("sqrt", x)), a.kind)


def _library(name: str, types: Iterable[str] = ("f32",)) -> Builder:
    """A function of the C library in float64, rounded."""

    def function(e: Emitter, inst: Instruction, a: Value) -> Value:
        value = e.library(name, e.cast("fpext", a, "double"))
        return value if inst.type == "f16" else e.cast("fptrunc", value, "float")

    return _arithmetic(function, types, 1, _APPROX)


def join(e: Emitter, low: Value, high: Value) -> Value:
    """Two 16-bit values as one i32."""
    wide = [e.cast("zext", e.raw_bits(v), "i32") for v in (low, high)]
    return e.op("or", wide[0], e.op("shl", wide[1], 16))


def halves(e: Emitter, kind: str, *values: Value) -> list[list[Value]]:
    """The low halves of i32 values, and their high halves, as a kind of 16 bits."""
    both = (values, [e.op("lshr", v, 16) for v in values])
    return [[e.as_kind(e.cast("trunc", v, "i16"), kind) for v in own] for own in both]


def _packed(inst: Instruction) -> Operation:
    """An operation on both halves of 32-bit registers (f16x2, bf16x2, u16x2, s16x2): that of the scalar type, twice."""
    packed, scalar = inst.type, inst.type[:-2]
    table = TABLE if scalar in FLOATS else integers.TABLE
    one = replace(inst, modifiers=tuple(scalar if m == packed else m for m in inst.modifiers))
    operation = table[inst.opcode](one)
    refuse_if(set(operation.sources) != {scalar})
    emit, kind = operation.emit, "half" if scalar == "f16" else "i16"
    twice = lambda e, *values: join(e, *[emit(e, *part) for part in halves(e, kind, *values)])  # noqa: E731
    return Operation(twice, (packed,), (packed,) * len(operation.sources))


_APPROX = frozenset({"approx", "ftz"})
_RUN = ROUNDINGS | {"ftz", "sat"}
TABLE: dict[str, Builder] = {
    **{name: _arithmetic(_basic, ALL, arity, _RUN | {"approx", "full"}) for name, (_, _, arity) in _BASIC.items()},
    **dict.fromkeys(("fma", "mad"), _arithmetic(_fma, ALL, 3, _RUN | {"relu"})),
    **dict.fromkeys(("min", "max"), _extremum),
    **dict.fromkeys(("neg", "abs"), _sign),
    "rsqrt": _arithmetic(_rsqrt, ("f32", "f64"), 1, _APPROX),
    **{name: _library(f"math_{does}") for name, does in (("sin", "sin"), ("cos", "cos"), ("lg2", "log2"))},
    **{name: _library(f"math_{does}", ("f32", "f16", "bf16")) for name, does in (("ex2", "exp2"), ("tanh", "tanh"))},
    "copysign": same_type(lambda e, inst, sign, a: e.intrinsic("copysign", a, sign), ("f32", "f64"), 2),
}
PACKED_TABLE: dict[str, Builder] = dict.fromkeys(
    ("add", "sub", "mul", "fma", "min", "max", "neg", "abs", "ex2", "tanh"), _packed
)
