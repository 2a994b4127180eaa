"""Logic, shifts, bit fields, byte permutation."""

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
)
from functional.ptx.ir import Immediate, Instruction

_U32, _U64 = np.uint32, np.uint64
BITS = ("b16", "b32", "b64")
LOGIC = (*BITS, "pred")
WIDE = ("b32", "b64", "u32", "u64", "s32", "s64")
_REVERSED = np.array([int(f"{i:08b}"[::-1], 2) for i in range(256)], np.uint8)


def _cnot(a: np.ndarray) -> np.ndarray:
    return (a == 0).astype(a.dtype)


def _shift(function: Callable, allowed: tuple[str, ...]) -> Builder:
    """Shift by a 32-bit amount; NumPy's shifts by the width or more give 0 or the sign, as PTX's clamped ones."""

    def build(inst: Instruction) -> Operation:
        flags_of(inst)
        type_ = only_type(inst, allowed)
        dtype, most = DTYPES[type_], _U32(bits_of(type_))
        return Operation(lambda a, n: function(a, np.minimum(n, most).astype(dtype)), (type_,), (type_, "u32"))

    return build


def _funnel(inst: Instruction) -> Operation:
    flags = flags_of(inst, {"l", "r", "clamp", "wrap"})
    only_type(inst, ("b32",))
    left, wraps = "l" in flags, "wrap" in flags

    def function(a: np.ndarray, b: np.ndarray, n: np.ndarray) -> np.ndarray:
        n = (n & _U32(31) if wraps else np.minimum(n, _U32(32))).astype(_U64)
        both = (b.astype(_U64) << _U64(32)) | a
        return ((both << n) >> _U64(32) if left else both >> n).astype(_U32)

    return Operation(function, ("b32",), ("b32", "b32", "u32"))


def _lop3(inst: Instruction) -> Operation:
    flags_of(inst)
    only_type(inst, ("b32",))
    table = inst.sources[3] if len(inst.sources) == 4 else None
    if not isinstance(table, Immediate):
        raise Unsupported
    number = int(table.value)
    return Operation(lambda a, b, c, _: look_up(number, a, b, c), ("b32",), ("b32",) * 4)


def look_up(table: int, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """The bitwise function of three uint32 arrays whose truth table is `table`."""
    result = np.zeros(np.broadcast_shapes(a.shape, b.shape, c.shape), _U32)
    for term in range(8):
        if table >> term & 1:
            result |= (a if term & 4 else ~a) & (b if term & 2 else ~b) & (c if term & 1 else ~c)
    return result


def top_bit(a: np.ndarray) -> np.ndarray:
    """Position of the highest set bit of u32 or u64; -1 (int64) if none."""
    high = (a >> a.dtype.type(a.dtype.itemsize * 4)).astype(np.float64)  # halves convert exactly
    low = (a & a.dtype.type((1 << a.dtype.itemsize * 4) - 1)).astype(np.float64)
    exponents = np.where(high > 0, np.frexp(high)[1] + a.dtype.itemsize * 4, np.frexp(low)[1])
    return exponents.astype(np.int64) - 1


def _clz(a: np.ndarray) -> np.ndarray:
    return (a.dtype.itemsize * 8 - 1 - top_bit(a)).astype(_U32)


def _bfind(inst: Instruction) -> Operation:
    flags, type_ = flags_of(inst, {"shiftamt"}), only_type(inst, ("u32", "s32", "u64", "s64"))

    def function(a: np.ndarray) -> np.ndarray:
        if a.dtype.kind == "i":
            a = (a ^ (a >> a.dtype.type(a.dtype.itemsize * 8 - 1))).view(f"u{a.dtype.itemsize}")
        top = top_bit(a)
        shown = a.dtype.itemsize * 8 - 1 - top if "shiftamt" in flags else top
        return np.where(top < 0, -1, shown).astype(_U32)

    return Operation(function, ("u32",), (type_,))


def _brev(a: np.ndarray) -> np.ndarray:
    size = a.dtype.itemsize
    data = np.ascontiguousarray(a).view(np.uint8).reshape(*a.shape, size)
    return np.ascontiguousarray(_REVERSED[data][..., ::-1]).view(a.dtype)[..., 0]


def _to_u32(function: Callable, types: tuple[str, ...] = ("b32", "b64")) -> Builder:
    def build(inst: Instruction) -> Operation:
        flags_of(inst)
        return Operation(lambda a: function(a).astype(_U32), ("u32",), (only_type(inst, types),))

    return build


def _bfe(inst: Instruction) -> Operation:
    flags_of(inst)
    type_ = only_type(inst, ("u32", "s32", "u64", "s64"))
    dtype, width = DTYPES[type_], bits_of(type_)
    unsigned = np.dtype(f"u{dtype.itemsize}")

    def function(a: np.ndarray, position: np.ndarray, length: np.ndarray) -> np.ndarray:
        position, length = position & _U32(255), length & _U32(255)
        raw = a.view(unsigned) >> np.minimum(position, width).astype(unsigned)
        kept = np.minimum(length, width - np.minimum(position, width)).astype(unsigned)  # beyond: the sign
        field = raw & ~(~unsigned.type(0) << kept)
        if dtype.kind == "u":
            return field
        sign_at = np.minimum(position + length - _U32(1), width - 1).astype(unsigned)
        negative = (length > 0) & (((a.view(unsigned) >> sign_at) & unsigned.type(1)) != 0)
        return np.where(negative, field | (~unsigned.type(0) << kept), field).view(dtype)

    return Operation(function, (type_,), (type_, "u32", "u32"))


def _bfi(inst: Instruction) -> Operation:
    flags_of(inst)
    type_ = only_type(inst, ("b32", "b64"))
    dtype, width = DTYPES[type_], bits_of(type_)

    def function(a: np.ndarray, b: np.ndarray, position: np.ndarray, length: np.ndarray) -> np.ndarray:
        at = np.minimum(position & _U32(255), width).astype(dtype)
        ones = ~(~dtype.type(0) << np.minimum(length & _U32(255), width).astype(dtype))
        field = ones << at
        return (b & ~field) | ((a << at) & field)

    return Operation(function, (type_,), (type_, type_, "u32", "u32"))


def _bmsk(inst: Instruction) -> Operation:
    flags = flags_of(inst, {"clamp", "wrap"})
    only_type(inst, ("b32",))
    wraps = "wrap" in flags

    def function(at: np.ndarray, length: np.ndarray) -> np.ndarray:
        at, length = (v & _U32(31) if wraps else np.minimum(v, _U32(32)) for v in (at, length))
        return ~(~_U32(0) << length) << at

    return Operation(function, ("b32",), ("u32", "u32"))


# prmt modes: for the selector value 0..3, the source byte of result bytes 0..3
_PERMUTATIONS = {
    "f4e": [[0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5], [3, 4, 5, 6]],
    "b4e": [[0, 7, 6, 5], [1, 0, 7, 6], [2, 1, 0, 7], [3, 2, 1, 0]],
    "rc8": [[0, 0, 0, 0], [1, 1, 1, 1], [2, 2, 2, 2], [3, 3, 3, 3]],
    "ecl": [[0, 1, 2, 3], [1, 1, 2, 3], [2, 2, 2, 3], [3, 3, 3, 3]],
    "ecr": [[0, 0, 0, 0], [0, 1, 1, 1], [0, 1, 2, 2], [0, 1, 2, 3]],
    "rc16": [[0, 1, 0, 1], [2, 3, 2, 3], [0, 1, 0, 1], [2, 3, 2, 3]],
}


def _prmt(inst: Instruction) -> Operation:
    flags = flags_of(inst, _PERMUTATIONS)
    only_type(inst, ("b32",))
    modes = None if not flags else np.array(_PERMUTATIONS[next(iter(flags))], _U64)

    def function(a: np.ndarray, b: np.ndarray, selector: np.ndarray) -> np.ndarray:
        both = (b.astype(_U64) << _U64(32)) | a
        result = np.zeros(np.broadcast_shapes(both.shape, selector.shape), _U32)
        for i in range(4):
            nibble = (selector >> _U32(4 * i)).astype(_U64) & _U64(15)
            at = nibble & _U64(7) if modes is None else modes[selector & _U32(3), i]
            byte = ((both >> (at << _U64(3))) & _U64(255)).astype(_U32)
            if modes is None:  # bit 3 of the nibble: replicate the sign of the byte
                byte = np.where(nibble > 7, (byte >> _U32(7)) * _U32(255), byte)
            result |= byte << _U32(8 * i)
        return result

    return Operation(function, ("b32",), ("b32",) * 3)


TABLE: dict[str, Builder] = {
    "and": same_type(np.bitwise_and, LOGIC, 2),
    "or": same_type(np.bitwise_or, LOGIC, 2),
    "xor": same_type(np.bitwise_xor, LOGIC, 2),
    "not": same_type(np.invert, LOGIC, 1),
    "cnot": same_type(_cnot, BITS, 1),
    "shl": _shift(np.left_shift, BITS),
    "shr": _shift(np.right_shift, (*BITS, "u16", "u32", "u64", "s16", "s32", "s64")),
    "shf": _funnel,
    "lop3": _lop3,
    "popc": _to_u32(np.bitwise_count),
    "clz": _to_u32(_clz),
    "brev": same_type(_brev, ("b32", "b64"), 1),
    "bfind": _bfind,
    "bfe": _bfe,
    "bfi": _bfi,
    "bmsk": _bmsk,
    "prmt": _prmt,
}
