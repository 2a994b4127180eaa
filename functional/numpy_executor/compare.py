"""Comparisons and selections: `setp set selp slct testp`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from functional.ir import Instruction
from functional.numpy_executor.floating import flush, from_bf16
from functional.numpy_executor.operation import DTYPES, Builder, Operation, Unsupported, flags_of, types_of

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
    if "ftz" in flags and type_ == "f32":
        plain = compare
        compare = lambda a, b: plain(flush(a), flush(b))  # noqa: E731
    if type_ == "bf16":
        exact = compare
        compare = lambda a, b: exact(from_bf16(a), from_bf16(b))  # noqa: E731
    return compare, COMBINATIONS[combined[0]] if combined else None


def _halves(compare: Compare) -> Callable:
    """Both halves of f16x2 operands, low then high."""

    def function(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        a, b = np.broadcast_arrays(a, b)
        pair = compare(*(np.ascontiguousarray(x).view(np.float16).reshape(*x.shape, 2) for x in (a, b)))
        return pair[..., 0].copy(), pair[..., 1].copy()

    return function


def _setp(inst: Instruction) -> Operation:
    types = types_of(inst)
    if len(types) != 1 or types[0] in ("pred", "bf16x2"):
        raise Unsupported
    (type_,) = types
    if type_ == "f16x2":
        compare, combine = _comparison(inst, "f16")
        if combine is not None or len(inst.destinations) != 2:
            raise Unsupported
        return Operation(_halves(compare), ("pred", "pred"), (type_, type_))
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
    if len(types) != 2 or types[0] not in ("u32", "s32", "f32"):
        raise Unsupported
    out, type_ = types
    compare, combine = _comparison(inst, type_)
    true = DTYPES[out].type(1) if out == "f32" else ~DTYPES[out].type(0)

    def function(a: np.ndarray, b: np.ndarray, *c: np.ndarray) -> np.ndarray:
        r = compare(a, b)
        return np.where(combine(r, c[0]) if combine else r, true, DTYPES[out].type(0))

    return Operation(function, (out,), (type_, type_) + (("pred",) if combine else ()))


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
