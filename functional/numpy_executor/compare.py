"""Comparisons and selections: `setp set selp slct testp`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from functional.numpy_executor.floating import flush, flush_any, from_bf16
from functional.numpy_executor.operation import DTYPES, Builder, Operation, Unsupported, flags_of, types_of
from functional.ptx.ir import Instruction

Compare = Callable[[np.ndarray, np.ndarray], np.ndarray]


def _ordered(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a == a) & (b == b)


# An ordered comparison with a NaN is false; NumPy's != alone is true then.
COMPARISONS: dict[str, Compare] = {
    "eq": np.equal, "ne": lambda a, b: (a < b) | (a > b), "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal, "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal,
    "equ": lambda a, b: (a == b) | ~_ordered(a, b), "neu": np.not_equal,
    "ltu": lambda a, b: ~(a >= b), "leu": lambda a, b: ~(a > b),
    "gtu": lambda a, b: ~(a <= b), "geu": lambda a, b: ~(a < b),
    "num": _ordered, "nan": lambda a, b: ~_ordered(a, b),
}  # fmt: skip
COMBINATIONS: dict[str, Compare] = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}
_KNOWN = {*COMPARISONS, *COMBINATIONS, "ftz"}


def _comparison(inst: Instruction, type_: str) -> tuple[Compare, Compare | None]:
    """(comparison on arrays of the type, combination with the third operand or None)."""
    flags = flags_of(inst, _KNOWN)
    named = [m for m in inst.modifiers if m in COMPARISONS]
    combined = [m for m in inst.modifiers if m in COMBINATIONS]
    if len(named) != 1 or len(combined) > 1:
        raise Unsupported
    compare = COMPARISONS[named[0]]
    if named[0] == "ne" and DTYPES[type_].kind != "f" and type_ != "bf16":
        compare = np.not_equal
    if "ftz" in flags and type_ in ("f32", "f16"):
        plain = compare
        compare = lambda a, b: plain(flush_any(a), flush_any(b))  # noqa: E731
    if type_ == "bf16":
        exact = compare
        compare = lambda a, b: exact(from_bf16(a), from_bf16(b))  # noqa: E731
    return compare, COMBINATIONS[combined[0]] if combined else None


def _halves(compare: Compare, scalar: str) -> Compare:
    """The comparison of packed operands, bool [..., 2]: the low half, then the high one."""

    def function(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        a, b = np.broadcast_arrays(a, b)
        return compare(*(np.ascontiguousarray(x).view(DTYPES[scalar]).reshape(*x.shape, 2) for x in (a, b)))

    return function


def _predicate_pair(halves: Compare) -> Callable:
    def function(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        pair = halves(a, b)
        return pair[..., 0].copy(), pair[..., 1].copy()

    return function


def _setp(inst: Instruction) -> Operation:
    types = types_of(inst)
    if len(types) != 1 or types[0] == "pred":
        raise Unsupported
    (type_,) = types
    if type_ in ("f16x2", "bf16x2"):
        compare, combine = _comparison(inst, type_[:-2])
        if combine is not None or len(inst.destinations) != 2:
            raise Unsupported
        return Operation(_predicate_pair(_halves(compare, type_[:-2])), ("pred", "pred"), (type_, type_))
    compare, combine = _comparison(inst, type_)
    pair = len(inst.destinations) == 2
    destinations = ("pred", "pred") if pair else ("pred",)
    if combine is None:
        function: Callable = (lambda a, b: ((r := compare(a, b)), ~r)) if pair else compare
        return Operation(function, destinations, (type_, type_))

    def combined(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray] | np.ndarray:
        r = compare(a, b)
        return (combine(r, c), combine(~r, c)) if pair else combine(r, c)

    return Operation(combined, destinations, (type_, type_, "pred"))


def _set(inst: Instruction) -> Operation:
    types = types_of(inst)
    if len(types) != 2 or types[0] not in _SET_RESULTS:
        raise Unsupported
    out, type_ = types
    if type_ in ("f16x2", "bf16x2"):
        return _set_packed(inst, out, type_)
    compare, combine = _comparison(inst, type_)
    true = _SET_RESULTS[out]

    def function(a: np.ndarray, b: np.ndarray, *c: np.ndarray) -> np.ndarray:
        r = compare(a, b)
        return np.where(combine(r, c[0]) if combine else r, true, DTYPES[out].type(0))

    return Operation(function, (out,), (type_, type_) + (("pred",) if combine else ()))


# `set`: what is written for true, as the result's NumPy type
_SET_RESULTS: dict[str, np.generic] = {
    "u32": np.uint32(0xFFFFFFFF), "s32": np.int32(-1), "u16": np.uint16(0xFFFF), "s16": np.int16(-1),
    "f32": np.float32(1), "f16": np.float16(1), "bf16": np.uint16(0x3F80), "f16x2": np.uint16(0x3C00),
    "bf16x2": np.uint16(0x3F80),
}  # fmt: skip


def _set_packed(inst: Instruction, out: str, type_: str) -> Operation:
    """`set.lt.f16x2.f16x2`: a number in each half; `set.lt.u32.f16x2`: a mask in each half."""
    compare, combine = _comparison(inst, type_[:-2])
    if combine is not None or out not in (type_, "u32", "s32"):
        raise Unsupported
    halves, true = _halves(compare, type_[:-2]), _SET_RESULTS[out] if out == type_ else np.uint16(0xFFFF)

    def function(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.where(halves(a, b), true, np.uint16(0)).view(DTYPES[out])[..., 0]

    return Operation(function, (out,), (type_, type_))


def _selp(inst: Instruction) -> Operation:
    flags_of(inst)
    types = types_of(inst)
    if len(types) != 1 or types[0] == "pred":
        raise Unsupported
    return Operation(lambda a, b, p: np.where(p, a, b), types, (*types, *types, "pred"))


def _slct(inst: Instruction) -> Operation:
    flags, types = flags_of(inst, {"ftz"}), types_of(inst)
    if len(types) != 2 or types[1] not in ("s32", "f32"):
        raise Unsupported
    key = flush if "ftz" in flags else (lambda c: c)  # with .ftz a negative subnormal counts as -0, hence >= 0
    return Operation(lambda a, b, c: np.where(key(c) >= 0, a, b), types[:1], (types[0], types[0], types[1]))


_TESTS: dict[str, Callable] = {
    "finite": np.isfinite,
    "infinite": np.isinf,
    "number": lambda a: ~np.isnan(a),
    "notanumber": np.isnan,
    "normal": lambda a: np.isfinite(a) & (np.abs(a) >= np.finfo(a.dtype).tiny),
    "subnormal": lambda a: (a != 0) & (np.abs(a) < np.finfo(a.dtype).tiny),
}


def _testp(inst: Instruction) -> Operation:
    flags, types = flags_of(inst, _TESTS), types_of(inst)
    if len(flags) != 1 or len(types) != 1 or types[0] not in ("f32", "f64"):
        raise Unsupported
    return Operation(_TESTS[next(iter(flags))], ("pred",), types)


TABLE: dict[str, Builder] = {"setp": _setp, "set": _set, "selp": _selp, "slct": _slct, "testp": _testp}
