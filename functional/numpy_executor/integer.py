"""Integer arithmetic with 32-bit (or own width) wrap-around, saturation where asked, and carry chains."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from functional.numpy_executor.operation import (
    DTYPES,
    Builder,
    Operation,
    Unsupported,
    bits_of,
    flags_of,
    only_type,
    same_type,
    types_of,
)
from functional.ptx.ir import Instruction

INTEGERS = ("u16", "u32", "u64", "s16", "s32", "s64")
SIGNED = ("s16", "s32", "s64")
_U32, _U64 = np.uint32, np.uint64
_LOW = _U64(0xFFFFFFFF)
_HALF = _U64(32)


def wider(type_: str) -> str:
    """The integer type of twice the width: u16 -> u32."""
    return type_[0] + str(2 * bits_of(type_))


def clamp(x: np.ndarray, type_: str) -> np.ndarray:
    """`.sat`: clamp to the range of an integer type, in that type."""
    info = np.iinfo(DTYPES[type_])
    return np.clip(x, info.min, info.max).astype(DTYPES[type_])


def _additive(opcode: str) -> Builder:
    function: Callable = {"add": np.add, "sub": np.subtract}[opcode]

    def build(inst: Instruction) -> Operation:
        flags, type_ = flags_of(inst, {"sat", "cc"}), only_type(inst, INTEGERS)
        if "cc" in flags:
            return carry(inst)
        if "sat" not in flags:
            return Operation(function, (type_,), (type_, type_))
        if type_ != "s32":
            raise Unsupported
        return Operation(
            lambda a, b: clamp(function(a.astype(np.int64), b.astype(np.int64)), type_), (type_,), (type_, type_)
        )

    return build


def high_product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Upper half of the double-width product, in the type of the operands."""
    dtype = np.result_type(a, b)
    width = dtype.itemsize * 8
    if width < 64:
        wide = np.dtype(f"{dtype.kind}{dtype.itemsize * 2}")
        return (np.multiply(a, b, dtype=wide) >> wide.type(width)).astype(dtype)
    ua, ub = a.view(_U64), b.view(_U64)
    high = _high_unsigned(ua, ub)
    if dtype.kind == "i":  # two's complement correction of the unsigned product
        high = high - np.where(a < 0, ub, _U64(0)) - np.where(b < 0, ua, _U64(0))
    return high.view(dtype)


def _high_unsigned(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    a_hi, a_lo, b_hi, b_lo = a >> _HALF, a & _LOW, b >> _HALF, b & _LOW
    low, mid1, mid2 = a_lo * b_lo, a_hi * b_lo, a_lo * b_hi
    middle = (low >> _HALF) + (mid1 & _LOW) + (mid2 & _LOW)
    return a_hi * b_hi + (mid1 >> _HALF) + (mid2 >> _HALF) + (middle >> _HALF)


def _part(inst: Instruction, extra: frozenset[str] = frozenset()) -> tuple[str, str, frozenset[str]]:
    """(type, "lo" | "hi" | "wide", flags) of `mul` and `mad`."""
    flags = flags_of(inst, {"lo", "hi", "wide", *extra})
    part = flags & {"lo", "hi", "wide"}
    type_ = only_type(inst, INTEGERS)
    if len(part) != 1 or ("wide" in part and bits_of(type_) == 64):
        raise Unsupported
    return type_, next(iter(part)), flags


def _mul(inst: Instruction) -> Operation:
    type_, part, _ = _part(inst)
    if part == "wide":
        wide = DTYPES[wider(type_)]
        return Operation(lambda a, b: np.multiply(a, b, dtype=wide), (wider(type_),), (type_, type_))
    return Operation(np.multiply if part == "lo" else high_product, (type_,), (type_, type_))


def _mad(inst: Instruction) -> Operation:
    type_, part, flags = _part(inst, frozenset({"sat", "cc"}))
    if "cc" in flags:
        return carry(inst)
    if part == "wide":
        wide = DTYPES[wider(type_)]
        return Operation(
            lambda a, b, c: np.multiply(a, b, dtype=wide) + c, (wider(type_),), (type_, type_, wider(type_))
        )
    if "sat" in flags:
        if part != "hi" or type_ != "s32":
            raise Unsupported
        function: Callable = lambda a, b, c: clamp(high_product(a, b).astype(np.int64) + c, "s32")  # noqa: E731
    elif part == "lo":
        function = lambda a, b, c: a * b + c  # noqa: E731
    else:
        function = lambda a, b, c: high_product(a, b) + c  # noqa: E731
    return Operation(function, (type_,), (type_,) * 3)


def _magnitude(a: np.ndarray) -> np.ndarray:
    """|a| as unsigned; exact for the most negative number."""
    return np.abs(a).view(f"u{a.dtype.itemsize}") if a.dtype.kind == "i" else a


def _unsigned_quotient(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.itemsize <= 4:  # float64 division is exact enough to truncate, and vectorised
        b = np.where(b == 0, b.dtype.type(1), b)
        return np.true_divide(a, b, dtype=np.float64).astype(np.int64).astype(a.dtype)
    return a // b


def quotient(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Division that truncates; by zero it gives all ones, and s32 min / -1 wraps, as hardware does."""
    q = _unsigned_quotient(_magnitude(a), _magnitude(b)).view(a.dtype)
    if a.dtype.kind == "i":
        q = np.where((a < 0) != (b < 0), -q, q)
    return np.where(b == 0, ~np.zeros(1, a.dtype), q)


def remainder(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Remainder with the sign of the dividend; by zero it gives the dividend."""
    return np.where(b == 0, a, a - quotient(a, b) * b)


def _mul24(function: Callable, arity: int) -> Builder:
    def build(inst: Instruction) -> Operation:
        flags, type_ = flags_of(inst, {"lo", "hi"}), only_type(inst, ("u32", "s32"))
        wide, shift = DTYPES[wider(type_)], 16 if "hi" in flags else 0

        def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
            a, b = (((x << x.dtype.type(8)) >> x.dtype.type(8)).astype(wide) for x in (a, b))
            return ((a * b) >> wide.type(shift)).astype(DTYPES[type_])

        return Operation(lambda a, b, *c: function(product(a, b), *c), (type_,), (type_,) * arity)

    return build


def _sad(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    return c + np.where(a < b, b - a, a - b)


def carry(inst: Instruction) -> Operation:
    """`add.cc addc sub.cc subc mad.cc madc`: the condition code is an extra predicate operand, last.

    The code holds the carry of the adder, which subtracts by adding the complement: of a subtraction the opposite of
    the borrow.
    """
    flags = flags_of(inst, {"cc", "lo", "hi"})
    type_ = only_type(inst, ("u32", "s32", "b32", "u64", "s64", "b64"))
    unsigned = "u" + type_[1:]
    takes = inst.opcode in ("addc", "subc", "madc")
    multiplies = inst.opcode in ("mad", "madc")
    product = high_product if "hi" in flags else np.multiply
    subtracts = inst.opcode.startswith("sub")
    chain = _subtract_chain if subtracts else _add_chain
    narrow = type_ if multiplies else unsigned  # mad.hi.s32 multiplies as signed

    def function(*sources: np.ndarray) -> tuple[np.ndarray, ...] | np.ndarray:
        *values, code = sources if takes else (*sources, np.zeros((1, 1), bool))
        if multiplies:
            values = [product(values[0], values[1]), values[2]]
        left, right = (np.ascontiguousarray(v).view(DTYPES[unsigned]) for v in values)
        value, out = chain(left, right, ~code if inst.opcode == "subc" else code)
        return (value, ~out if subtracts else out) if "cc" in flags else value

    return Operation(
        function,
        (unsigned, "pred") if "cc" in flags else (unsigned,),
        (narrow,) * (3 if multiplies else 2) + (("pred",) if takes else ()),
    )


def _add_chain(a: np.ndarray, b: np.ndarray, code: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    s = a + b
    total = s + code.astype(a.dtype)
    return total, (s < a) | (total < s)


def _subtract_chain(a: np.ndarray, b: np.ndarray, code: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    d = a - b
    return d - code.astype(a.dtype), (a < b) | ((d == 0) & code)


def _extremum(function: Callable) -> Builder:
    """`min max`, with `.relu` not below 0."""

    def build(inst: Instruction) -> Operation:
        flags, type_ = flags_of(inst, {"relu"}), only_type(inst, INTEGERS)
        if "relu" not in flags:
            return Operation(function, (type_,), (type_, type_))
        if type_ not in ("s32", "s16"):
            raise Unsupported
        return Operation(lambda a, b: np.maximum(function(a, b), DTYPES[type_].type(0)), (type_,), (type_, type_))

    return build


def _dot(width: int) -> Builder:
    """`dp4a` (four byte products) and `dp2a` (two halfword by byte products) plus an accumulator."""

    def build(inst: Instruction) -> Operation:
        flags, types = flags_of(inst, {"lo", "hi"}), types_of(inst)
        if len(types) != 2 or not set(types) <= {"u32", "s32"} or (width == 2) != bool(flags):
            raise Unsupported
        out = "s32" if "s32" in types else "u32"
        first = 2 if "hi" in flags else 0

        def part(x: np.ndarray, type_: str, bits: int, i: int) -> np.ndarray:
            return (x >> _U32(bits * i)).astype(f"{'i' if type_ == 's32' else 'u'}{bits // 8}").astype(np.int64)

        def function(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
            total = sum(part(a, types[0], 32 // width, i) * part(b, types[1], 8, i + first) for i in range(width))
            return (total + c).astype(DTYPES[out])

        return Operation(function, (out,), ("b32", "b32", out))

    return build


TABLE: dict[str, Builder] = {
    "add": _additive("add"),
    "sub": _additive("sub"),
    "addc": carry,
    "subc": carry,
    "madc": carry,
    "mul": _mul,
    "mad": _mad,
    "div": same_type(quotient, INTEGERS, 2),
    "rem": same_type(remainder, INTEGERS, 2),
    "neg": same_type(np.negative, SIGNED, 1),
    "abs": same_type(np.abs, SIGNED, 1),
    "min": _extremum(np.minimum),
    "max": _extremum(np.maximum),
    "sad": same_type(_sad, INTEGERS, 3),
    "mul24": _mul24(lambda p: p, 2),
    "mad24": _mul24(lambda p, c: p + c, 3),
    "dp4a": _dot(4),
    "dp2a": _dot(2),
}
