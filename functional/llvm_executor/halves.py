"""Arithmetic of f16, bf16, and of two of them (or of two 16-bit integers) in one register, as LLVM IR.

Done in float32, which is wide enough that rounding again to 16 bits changes nothing (24 >= 2 * 11 + 2); a fused
multiply-add by way of a sum rounded to odd. The bits are those of the oracle (numpy_executor.floating).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from functional.llvm_executor import integers
from functional.llvm_executor.emit import Emitter, Value
from functional.llvm_executor.floats import (
    direct,
    fabs,
    finite,
    library,
    mode_of,
    narrow,
    round_to_odd,
    saturate,
    two_sum,
)
from functional.llvm_executor.integers import Emit
from functional.llvm_executor.unit import NotGenerated
from functional.ptx.ir import Instruction

_TINY = {"half": 2.0**-14, "float": 2.0**-126}


def up(e: Emitter, v: Value) -> Value:
    """A half, or the bits of a bf16, as float32."""
    if v.kind == "half":
        return e.cast("fpext", v, "float")
    return e.as_kind(e.op("shl", e.cast("zext", v, "i32"), 16), "float")


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
    """Round a float32 (or a float64 rounded to odd) to f16 or bf16."""
    if type_ == "bf16":
        return to_bf16(e, x)
    return narrow(e, x, "half", "rn") if x.kind == "double" else e.cast("fptrunc", x, "half")


def _flush(e: Emitter, x: Value, tiny: float) -> Value:
    zero = e.intrinsic("copysign", e.floating(0.0, x.kind), x)
    return e.select(e.compare("olt", fabs(e, x), tiny), zero, x)


def rectify(e: Emitter, x: Value) -> Value:
    """`.relu`: negative numbers become 0, NaN stays."""
    return e.select(e.compare("ugt", x, 0.0), x, 0.0)


def _scalar(function: Callable[..., Value]) -> Emit:
    """Widen the operands, compute, apply `.ftz`, `.relu` and `.sat`, round: an f16 before those, a bf16 after."""

    def emit(e: Emitter, inst: Instruction, *values: Value) -> Value:
        flags, type_ = frozenset(inst.modifiers), inst.type
        tiny = _TINY["half" if type_ == "f16" else "float"]
        if mode_of(inst) != "rn":
            raise NotGenerated
        wide = [up(e, v) for v in values]
        if "ftz" in flags:
            wide = [_flush(e, v, tiny) for v in wide]
        result = function(e, inst, *wide)
        if not flags & {"ftz", "relu", "sat"}:
            return down(e, result, type_)
        if type_ == "f16":
            result = up(e, down(e, result, type_))
        if "ftz" in flags:
            result = _flush(e, result, tiny)
        result = rectify(e, result) if "relu" in flags else result
        return down(e, saturate(e, result) if "sat" in flags else result, type_)

    return emit


def _basic(name: str) -> Emit:
    return _scalar(lambda e, inst, a, b: e.op(name, a, b))


def _fma(e: Emitter, inst: Instruction, a: Value, b: Value, c: Value) -> Value:
    if inst.type == "bf16":
        a, b, c = (e.cast("fpext", v, "double") for v in (a, b, c))
    return round_to_odd(e, *two_sum(e, e.op("fmul", a, b), c))


def _sqrt(e: Emitter, inst: Instruction, a: Value) -> Value:
    return e.intrinsic("sqrt", a)


def _library(name: str) -> Emit:
    """A function of the C library in float64."""

    def function(e: Emitter, inst: Instruction, a: Value) -> Value:
        value = library(e, name, e.cast("fpext", a, "double"))
        return e.cast("fptrunc", value, "float") if inst.type == "bf16" else value

    return _scalar(function)


def _extremum(less: bool) -> Emit:
    def emit(e: Emitter, inst: Instruction, a: Value, b: Value) -> Value:
        if {"xorsign", "ftz"} & set(inst.modifiers):
            raise NotGenerated
        x, y = up(e, a), up(e, b)
        first = e.compare("olt" if less else "ogt", x, y)
        loser = (x, x) if "NaN" in inst.modifiers else (y, y)
        picked = e.select(e.op("or", first, e.compare("uno", *loser)), e.raw_bits(a), e.raw_bits(b))
        joined = e.op("or" if less else "and", e.raw_bits(a), e.raw_bits(b))
        return e.as_kind(e.select(e.compare("oeq", x, y), joined, picked), a.kind)

    return emit


def _sign(name: str) -> Emit:
    def emit(e: Emitter, inst: Instruction, a: Value) -> Value:
        if "ftz" in inst.modifiers:
            raise NotGenerated
        bits = e.raw_bits(a)
        return e.as_kind(e.op("xor", bits, 0x8000) if name == "neg" else e.op("and", bits, 0x7FFF), a.kind)

    return emit


def packed(e: Emitter, inst: Instruction, *values: Value) -> Value:
    """An operation on both halves of 32-bit registers."""
    scalar = inst.type[:-2]
    one = replace(inst, modifiers=tuple(scalar if m == inst.type else m for m in inst.modifiers))
    emit = (TABLE if scalar in ("f16", "bf16") else integers.TABLE).get(inst.opcode)
    if emit is None:
        raise NotGenerated
    kind = "half" if scalar == "f16" else "i16"
    parts: list = [
        emit(e, one, *(e.as_kind(e.cast("trunc", e.op("lshr", v, shift) if shift else v, "i16"), kind) for v in values))
        for shift in (0, 16)
    ]
    return join(e, *parts)


def join(e: Emitter, low: Value, high: Value) -> Value:
    """Two 16-bit values as one i32."""
    wide = [e.cast("zext", e.raw_bits(v), "i32") for v in (low, high)]
    return e.op("or", wide[0], e.op("shl", wide[1], 16))


TABLE: dict[str, Emit] = {
    "add": _basic("fadd"), "sub": _basic("fsub"), "mul": _basic("fmul"), "div": _basic("fdiv"), "sqrt": _scalar(_sqrt),
    "fma": _scalar(_fma), "min": _extremum(True), "max": _extremum(False), "neg": _sign("neg"), "abs": _sign("abs"),
    "ex2": _library("math_exp2"), "tanh": _library("math_tanh"),
}  # fmt: skip
