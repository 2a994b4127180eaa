"""Floating-point arithmetic as LLVM IR: f32 and f64, `.ftz`, `.sat`, directed rounding by error-free transformations.

The formulas are those of the oracle (numpy_executor.exact and .floating), so that both give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable

from functional.llvm_executor.emit import Emitter, Value
from functional.llvm_executor.integers import Emit
from functional.llvm_executor.unit import NotGenerated
from functional.numpy_executor.floating import ROUNDINGS
from functional.ptx.ir import Instruction

_SPLIT, _TINY = 134217729.0, 2.0**-126


def fabs(e: Emitter, x: Value) -> Value:
    """The absolute value."""
    return e.intrinsic("fabs", x)


def flush(e: Emitter, x: Value) -> Value:
    """`.ftz`: a subnormal float32 becomes a zero of its sign."""
    if x.kind != "float":
        return x
    zero = e.intrinsic("copysign", e.floating(0.0, "float") if not x.wide else e.widen(e.floating(0.0, "float")), x)
    return e.select(e.compare("olt", fabs(e, x), _TINY), zero, x)


def saturate(e: Emitter, x: Value) -> Value:
    """`.sat`: clamp to [0, 1], NaN becomes 0."""
    low = e.select(e.compare("olt", x, 1.0), x, 1.0)
    return e.select(e.compare("ogt", x, 0.0), low, 0.0)


def wrap(function: Callable[..., Value]) -> Emit:
    """Add `.ftz`, `.sat`, `.relu`; refuse the 16-bit types."""

    def emit(e: Emitter, inst: Instruction, *values: Value) -> Value:
        if inst.type not in ("f32", "f64"):
            raise NotGenerated
        ftz = "ftz" in inst.modifiers and inst.type == "f32"
        if ftz:
            values = tuple(flush(e, v) for v in values)
        result = function(e, inst, *values)
        if ftz:
            result = flush(e, result)
        if "relu" in inst.modifiers:
            result = e.select(e.compare("ugt", result, 0.0), result, 0.0)
        return saturate(e, result) if "sat" in inst.modifiers else result

    return emit


def mode_of(inst: Instruction) -> str:
    """Rounding mode of the instruction."""
    return next((m for m in inst.modifiers if m in ROUNDINGS), "rn")


def two_sum(e: Emitter, a: Value, b: Value) -> tuple[Value, Value]:
    """(s, e) with s = RN(a + b) and s + e = a + b."""
    s = e.op("fadd", a, b)
    t = e.op("fsub", s, a)
    return s, e.op("fadd", e.op("fsub", a, e.op("fsub", s, t)), e.op("fsub", b, t))


def round_to_odd(e: Emitter, s: Value, error: Value) -> Value:
    """s + error rounded to odd, where s is that sum rounded to nearest, a zero with its sign; `error` may be wider."""
    bits = e.raw_bits(s)
    even = e.compare("eq", e.op("and", bits, 1), 0)
    move = e.op("and", even, e.compare("one", error, 0.0))
    move = e.op("and", move, e.op("and", finite(e, error), finite(e, s)))
    shrinks = e.op("xor", e.compare("ogt", error, 0.0), e.compare("sge", bits, 0))
    moved = e.op("add", bits, e.select(shrinks, -1, 1, bits.kind))
    return e.as_kind(e.select(move, moved, bits), s.kind)


def finite(e: Emitter, x: Value) -> Value:
    """Is it neither infinite nor NaN?"""
    return e.compare("olt", fabs(e, x), float("inf"))


def _next(e: Emitter, x: Value, up: bool) -> Value:
    """`nextafter` to +/- infinity of a number that is no NaN."""
    bits = e.raw_bits(x)
    negative = e.compare("slt", bits, 0)
    step = e.select(negative, -1 if up else 1, 1 if up else -1, bits.kind)
    moved = e.op("add", bits, step)
    smallest = e.literal(1 | (0 if up else 1 << (x.bits - 1)), bits.kind)
    moved = e.select(e.compare("oeq", x, 0.0), smallest, moved)
    stays = e.compare("oeq", x, float("inf") if up else float("-inf"))
    return e.as_kind(e.select(stays, bits, moved), x.kind)


def direct(e: Emitter, r: Value, error: Value, mode: str) -> Value:
    """Turn r = RN(x) into x rounded by `mode`; the sign of `error` is that of x - r."""
    if mode == "rn":
        return r
    if mode != "rp":
        lower = e.compare("olt", error, 0.0)
        if mode == "rz":
            lower = e.op("and", lower, e.compare("ogt", r, 0.0))
        lowered = e.select(lower, _next(e, r, False), r)
    else:
        lowered = r
    if mode == "rm":
        return lowered
    higher = e.compare("ogt", error, 0.0)
    if mode == "rz":
        higher = e.op("and", higher, e.compare("olt", lowered, 0.0))
    return e.select(higher, _next(e, lowered, True), lowered)


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


def _basic(name: str) -> Callable[..., Value]:
    def emit(e: Emitter, inst: Instruction, a: Value, b: Value) -> Value:
        mode = mode_of(inst)
        if mode == "rn":
            return e.op(name, a, b)
        if inst.type != "f32" or name == "fdiv":
            raise NotGenerated
        x, y = e.cast("fpext", a, "double"), e.cast("fpext", b, "double")
        if name == "fmul":
            value, error = e.op("fmul", x, y), e.floating(0.0, "double")
        else:
            value, error = two_sum(e, x, y if name == "fadd" else e.let(f"fneg {y}", "double", y.wide))
        return narrow(e, round_to_odd(e, value, error), "float", mode)

    return emit


def _rcp(e: Emitter, inst: Instruction, a: Value) -> Value:
    if mode_of(inst) != "rn":
        raise NotGenerated
    return e.op("fdiv", e.floating(1.0, a.kind), a)


def _sqrt(e: Emitter, inst: Instruction, a: Value) -> Value:
    if mode_of(inst) != "rn":
        raise NotGenerated
    return e.intrinsic("sqrt", a)


def _fma(e: Emitter, inst: Instruction, a: Value, b: Value, c: Value) -> Value:
    mode = mode_of(inst)
    if mode == "rn":
        return e.intrinsic("fma", a, b, c)
    if inst.type != "f32":
        raise NotGenerated
    x, y, z = (e.cast("fpext", v, "double") for v in (a, b, c))
    return narrow(e, round_to_odd(e, *two_sum(e, e.op("fmul", x, y), z)), "float", mode)


def _extremum(less: bool) -> Callable[..., Value]:
    def emit(e: Emitter, inst: Instruction, a: Value, b: Value) -> Value:
        if "xorsign" in inst.modifiers:
            raise NotGenerated
        first = e.compare("olt" if less else "ogt", a, b)
        bad_a, bad_b = e.compare("uno", a, a), e.compare("uno", b, b)
        if "NaN" in inst.modifiers:
            picked = e.select(e.op("or", first, bad_a), a, b)
        else:
            picked = e.select(e.op("or", first, bad_b), a, b)
        joined = e.op("or" if less else "and", e.raw_bits(a), e.raw_bits(b))
        return e.select(e.compare("oeq", a, b), e.as_kind(joined, a.kind), picked)

    return emit


def _sign(name: str) -> Callable[..., Value]:
    """`neg abs`: bit operations, NaN included."""

    def emit(e: Emitter, inst: Instruction, a: Value) -> Value:
        bits = e.raw_bits(a)
        top = 1 << (a.bits - 1)
        changed = e.op("xor", bits, top) if name == "neg" else e.op("and", bits, top - 1)
        return e.as_kind(changed, a.kind)

    return emit


def _rsqrt(e: Emitter, inst: Instruction, a: Value) -> Value:
    x = e.cast("fpext", a, "double")
    return e.cast("fptrunc", e.op("fdiv", e.floating(1.0, "double"), e.intrinsic("sqrt", x)), a.kind)


def _in_double(name: str) -> Callable[..., Value]:
    """A function of the C library in float64, rounded."""

    def emit(e: Emitter, inst: Instruction, a: Value) -> Value:
        return e.cast("fptrunc", library(e, name, e.cast("fpext", a, "double")), a.kind)

    return emit


def library(e: Emitter, name: str, x: Value) -> Value:
    """Call a helper of the run time that takes 32 float64."""
    e.declarations[f"@{name}"] = f"declare <32 x double> @{name}(<32 x double>) #0"
    if not x.wide:
        wide = library(e, name, e.widen(x))
        return e.let(f"extractelement {wide}, i32 0", "double", False)
    return e.let(f"call <32 x double> @{name}({x})", "double", True)


def _copysign(e: Emitter, inst: Instruction, a: Value, b: Value) -> Value:
    return e.intrinsic("copysign", b, a)


TABLE: dict[str, Emit] = {
    "add": wrap(_basic("fadd")), "sub": wrap(_basic("fsub")), "mul": wrap(_basic("fmul")), "div": wrap(_basic("fdiv")),
    "rcp": wrap(_rcp), "sqrt": wrap(_sqrt), "fma": wrap(_fma), "mad": wrap(_fma), "min": wrap(_extremum(True)),
    "max": wrap(_extremum(False)), "neg": wrap(_sign("neg")), "abs": wrap(_sign("abs")), "rsqrt": wrap(_rsqrt),
    "sin": wrap(_in_double("math_sin")), "cos": wrap(_in_double("math_cos")), "lg2": wrap(_in_double("math_log2")),
    "ex2": wrap(_in_double("math_exp2")), "tanh": wrap(_in_double("math_tanh")), "copysign": wrap(_copysign),
}  # fmt: skip
