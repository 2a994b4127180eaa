"""`cvt`, comparisons, selections and moves as LLVM IR."""

from __future__ import annotations

from functional.launches.memory import GLOBAL_BASE
from functional.llvm_executor.emit import BITS, FLOATING, Emitter, Value
from functional.llvm_executor.floats import fabs, finite, flush, narrow, round_to_odd, saturate, two_sum
from functional.llvm_executor.halves import join, rectify, to_bf16, up
from functional.llvm_executor.integers import Emit
from functional.llvm_executor.unit import NotGenerated, kind_of
from functional.numpy_executor.floating import ROUNDINGS
from functional.numpy_executor.operation import types_of
from functional.numpy_executor.spaces import SPACES, WINDOWS
from functional.ptx.ir import Instruction

_TO_INTEGER = {"rni": "rint", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}


def _cvt(e: Emitter, inst: Instruction, a: Value, *rest: Value) -> Value:
    flags, types = frozenset(inst.modifiers), types_of(inst)
    if len(types) != 2 or "pack" in flags:
        raise NotGenerated
    to, from_ = types
    if to in ("f16x2", "bf16x2") and from_ == "f32" and len(rest) == 1:
        low, high = (_to_half(e, flags, to[:-2], v) for v in (rest[0], a))
        return join(e, low, high)
    if from_ == "bf16":
        a, from_ = up(e, a), "f32"
    if to == "bf16":
        return _to_bf16(e, flags, from_, a)
    if to == "tf32":
        return _to_tf32(e, flags, a)
    if to == "f16" and "relu" in flags and from_ == "f32":
        return _to_half(e, flags, to, a)
    if rest or to not in _KNOWN or from_ not in _KNOWN or "relu" in flags:
        raise NotGenerated
    if to[0] == "f" and from_[0] == "f":
        return _float_to_float(e, flags, to, from_, a)
    if to[0] == "f":
        return _integer_to_float(e, flags, to, from_, a)
    if from_[0] == "f":
        return _float_to_integer(e, flags, to, from_, a)
    if "sat" in flags:
        a = _clamp(e, to, from_, a)
    return e.resize(a, kind_of(to), from_[0] == "s")


def _to_half(e: Emitter, flags: frozenset[str], to: str, a: Value) -> Value:
    """A float32 to f16 or bf16, `.rn` or `.rz`, with `.relu`."""
    a = rectify(e, a) if "relu" in flags else a
    mode = "rz" if "rz" in flags else "rn"
    return to_bf16(e, a, mode) if to == "bf16" else narrow(e, e.cast("fpext", a, "double"), "half", mode)


def _to_bf16(e: Emitter, flags: frozenset[str], from_: str, a: Value) -> Value:
    mode = next((f for f in flags if f in ROUNDINGS), "rn")
    if flags & {"sat", "ftz", *_TO_INTEGER} or from_ not in _KNOWN:
        raise NotGenerated
    if from_[0] == "f":
        a = e.cast("fpext", a, "float") if a.kind == "half" else a
        return to_bf16(e, rectify(e, a) if "relu" in flags else a, mode)
    if a.bits > 32:
        raise NotGenerated
    return to_bf16(e, e.cast("sitofp" if from_[0] == "s" else "uitofp", a, "double"), mode)


def _to_tf32(e: Emitter, flags: frozenset[str], a: Value) -> Value:
    if "satfinite" in flags:
        raise NotGenerated
    bits = e.raw_bits(rectify(e, a) if "relu" in flags else a)
    if "rna" in flags:
        biased = e.op("add", bits, 0x1000)
    elif "rn" in flags:
        biased = e.op("add", e.op("add", bits, 0xFFF), e.op("and", e.op("lshr", bits, 13), 1))
    else:
        biased = bits
    return e.select(finite(e, a), e.op("and", biased, ~0x1FFF), bits)


_KNOWN = {"f16", "f32", "f64", *(f"{k}{n}" for k in "us" for n in (8, 16, 32, 64))}


def _range(type_: str) -> tuple[int, int]:
    bits = int(type_[1:])
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if type_[0] == "s" else (0, (1 << bits) - 1)


def _clamp(e: Emitter, to: str, from_: str, a: Value) -> Value:
    (low, high), (least, most) = _range(to), _range(from_)
    sign = from_[0] == "s"
    if low > least:
        a = e.intrinsic("smax" if sign else "umax", a, e.literal(low, a.kind))
    if high < most:
        a = e.intrinsic("smin" if sign else "umin", a, e.literal(high, a.kind))
    return a


def _float_to_integer(e: Emitter, flags: frozenset[str], to: str, from_: str, a: Value) -> Value:
    """Saturating; NaN gives 0, or the top bit where 64 bits are involved."""
    modes = [_TO_INTEGER[f] for f in flags if f in _TO_INTEGER]
    if "ftz" in flags:
        a = flush(e, a)
    if a.kind == "half":
        a = e.cast("fpext", a, "float")
    x = e.intrinsic(modes[0], a)
    kind = kind_of(to)
    result = e.intrinsic("fptosi.sat" if to[0] == "s" else "fptoui.sat", x, returns=kind)
    if from_ == "f64" or BITS[kind] == 64:
        result = e.select(e.compare("uno", x, x), e.literal(1 << (BITS[kind] - 1), kind), result)
    return result


def _integer_to_float(e: Emitter, flags: frozenset[str], to: str, from_: str, a: Value) -> Value:
    mode = next((f for f in flags if f in ROUNDINGS), "rn")
    name = "sitofp" if from_[0] == "s" else "uitofp"
    if mode == "rn" and to != "f16":
        result = e.cast(name, a, kind_of(to))
    elif a.bits <= 32:
        near = e.cast(name, a, "double")
        result = near if to == "f64" else narrow(e, near, kind_of(to), mode)
    else:
        if to == "f64":
            raise NotGenerated
        low = e.cast("uitofp", e.op("and", a, 0xFFFFFFFF), "double")
        high = e.cast(name, e.op("ashr" if from_[0] == "s" else "lshr", a, 32), "double")
        odd = round_to_odd(e, *two_sum(e, e.op("fmul", high, 2.0**32), low))
        result = narrow(e, odd, kind_of(to), mode)
    return saturate(e, result) if "sat" in flags else result


def _float_to_float(e: Emitter, flags: frozenset[str], to: str, from_: str, a: Value) -> Value:
    integral = [_TO_INTEGER[f] for f in flags if f in _TO_INTEGER]
    mode = next((f for f in flags if f in ROUNDINGS), "rn")
    ftz = "ftz" in flags
    if ftz:
        a = flush(e, a)
    wider = int(to[1:]) >= int(from_[1:])
    if integral and wider:
        half = a.kind == "half"
        a = e.intrinsic(integral[0], e.cast("fpext", a, "float") if half else a)
        a = e.cast("fptrunc", a, "half") if half else a
    if a.kind == "half" and to != "f16":
        a = e.cast("fpext", a, "float")
    if wider:
        result = e.cast("fpext", a, kind_of(to))
    else:
        odd = e.cast("fpext", a, "double")
        result = narrow(e, odd, kind_of(to), mode)
    if ftz:
        result = flush(e, result)
    return saturate(e, result) if "sat" in flags else result


_ORDERED = {"eq": "oeq", "ne": "one", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge", "equ": "ueq", "neu": "une",
            "ltu": "ult", "leu": "ule", "gtu": "ugt", "geu": "uge", "num": "ord", "nan": "uno"}  # fmt: skip
_UNSIGNED = {"lt": "ult", "le": "ule", "gt": "ugt", "ge": "uge", "lo": "ult", "ls": "ule", "hi": "ugt", "hs": "uge",
             "eq": "eq", "ne": "ne"}  # fmt: skip
_SIGNED = {"lt": "slt", "le": "sle", "gt": "sgt", "ge": "sge", "eq": "eq", "ne": "ne", "lo": "slt", "ls": "sle",
           "hi": "sgt", "hs": "sge"}  # fmt: skip
_COMBINE = ("and", "or", "xor")


def _compare(e: Emitter, inst: Instruction, type_: str, a: Value, b: Value) -> Value:
    table = _ORDERED if type_[0] == "f" or type_ == "bf16" else _SIGNED if type_[0] == "s" else _UNSIGNED
    name = next((m for m in inst.modifiers if m in table), None)
    if name is None or type_ in ("f16x2", "bf16x2") or ("ftz" in inst.modifiers and type_ == "f16"):
        raise NotGenerated
    if type_ in ("f16", "bf16"):
        a, b = up(e, a), up(e, b)
    if "ftz" in inst.modifiers:
        a, b = flush(e, a), flush(e, b)
    return e.compare(table[name], a, b)


def _invert(e: Emitter, p: Value) -> Value:
    return e.op("xor", p, e.literal(1, "i1"))


def _setp(e: Emitter, inst: Instruction, a: Value, b: Value, *c: Value) -> Value | tuple[Value, ...]:
    combine = next((m for m in inst.modifiers if m in _COMBINE), None)
    type_ = types_of(inst)[0]
    if type_ in ("f16x2", "bf16x2"):
        low, high = _halves(e, inst, type_, a, b)
        return low, high
    r = _compare(e, inst, type_, a, b)
    first = e.op(combine, r, c[0]) if combine else r
    if len(inst.destinations) < 2:
        return first
    other = _invert(e, r)
    return first, e.op(combine, other, c[0]) if combine else other


def _set(e: Emitter, inst: Instruction, a: Value, b: Value, *c: Value) -> Value:
    out, type_ = types_of(inst)
    combine = next((m for m in inst.modifiers if m in _COMBINE), None)
    if type_ in ("f16x2", "bf16x2"):
        one = {"f16x2": 0x3C00, "bf16x2": 0x3F80}.get(out, 0xFFFF)
        return join(e, *(e.select(r, one, 0, "i16") for r in _halves(e, inst, type_, a, b)))
    r = _compare(e, inst, type_, a, b)
    r = e.op(combine, r, c[0]) if combine else r
    if out == "bf16":
        return e.select(r, 0x3F80, 0, "i16")
    kind = kind_of(out)
    return e.select(r, 1.0, 0.0, kind) if kind in FLOATING else e.cast("sext", r, kind)


def _halves(e: Emitter, inst: Instruction, type_: str, a: Value, b: Value) -> tuple[Value, Value]:
    """Comparisons of the low and of the high halves of packed operands."""
    kind = "half" if type_ == "f16x2" else "i16"
    low, high = (
        [e.as_kind(e.cast("trunc", e.op("lshr", v, shift) if shift else v, "i16"), kind) for v in (a, b)]
        for shift in (0, 16)
    )
    return _compare(e, inst, type_[:-2], *low), _compare(e, inst, type_[:-2], *high)


def _testp(e: Emitter, inst: Instruction, a: Value) -> Value:
    """`testp`: what kind of number is it?"""
    name = inst.modifiers[0]
    size, tiny = fabs(e, a), 2.0**-126 if a.kind == "float" else 2.0**-1022
    if name in ("number", "notanumber"):
        return e.compare("ord" if name == "number" else "uno", a, a)
    if name == "infinite":
        return e.compare("oeq", size, float("inf"))
    if name == "subnormal":
        return e.op("and", e.compare("olt", size, tiny), e.compare("one", a, 0.0))
    whole = finite(e, a)
    return e.op("and", whole, e.compare("oge", size, tiny)) if name == "normal" else whole


def _selp(e: Emitter, inst: Instruction, a: Value, b: Value, p: Value) -> Value:
    return e.select(p, e.raw_bits(a), e.raw_bits(b))  # as bits: LLVM gives floating-point NaNs no payload


def _slct(e: Emitter, inst: Instruction, a: Value, b: Value, c: Value) -> Value:
    if c.kind == "float":
        c = flush(e, c) if "ftz" in inst.modifiers else c
        return e.select(e.compare("oge", c, 0.0), a, b)
    return e.select(e.compare("sge", c, 0), a, b)


def _mov(e: Emitter, inst: Instruction, a: Value) -> Value:
    return a


def _cvta(e: Emitter, inst: Instruction, a: Value) -> Value:
    space = next(m for m in inst.modifiers if m in SPACES or m == "global")
    window = SPACES[space].window
    return a if not window else e.op("sub" if "to" in inst.modifiers else "add", a, window)


def _isspacep(e: Emitter, inst: Instruction, a: Value) -> Value:
    space = next(m for m in inst.modifiers if m in WINDOWS or m == "global")
    if space == "global":
        return e.compare("uge", a, GLOBAL_BASE)
    start, stop = WINDOWS[space]
    return e.compare("ult", e.op("sub", a, start), stop - start)


TABLE: dict[str, Emit] = {
    "cvt": _cvt, "setp": _setp, "set": _set, "selp": _selp, "slct": _slct, "mov": _mov, "cvta": _cvta,
    "isspacep": _isspacep, "testp": _testp,
}  # fmt: skip
