"""Integer oddities of CUDA's SIMD intrinsics: `vabsdiff4 vadd4 vmax2 ...`, `fns`, `szext`, and `cvt.pack`.

The video instructions take words, halves or bytes of any two operands in order (no operand selectors), which is all
that compilers emit.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from functional.numpy_executor.operation import DTYPES, Builder, Operation, Unsupported, flags_of, only_type, types_of
from functional.ptx.ir import Immediate, Instruction

_LANE_OPERATIONS: dict[str, Callable] = {
    "vadd": lambda a, b: a + b,
    "vsub": lambda a, b: a - b,
    "vabsdiff": lambda a, b: np.abs(a - b),
    "vmin": np.minimum,
    "vmax": np.maximum,
    "vavrg": lambda a, b: (a + b + (a + b >= 0)) >> 1,
}


def _parts(a: np.ndarray, type_: str, count: int) -> np.ndarray:
    """uint32 [...] as int64 [..., count], the lowest part first."""
    dtype = np.dtype(f"{'i' if type_[0] == 's' else 'u'}{4 // count}")
    return np.ascontiguousarray(a).view(dtype).reshape(*a.shape, count).astype(np.int64)


def _simd(name: str, count: int) -> Builder:
    """`vNAME{2,4}.D.A.B{.sat,.add} d, a, b, c`: by parts; `.add` sums the parts onto c, else c is where none are."""
    combine, bits = _LANE_OPERATIONS[name], 32 // count

    def build(inst: Instruction) -> Operation:
        flags, types = flags_of(inst, {"sat", "add"}), types_of(inst)
        if len(types) != 3 or not set(types) <= {"u32", "s32"} or len(inst.sources) != 3 or len(flags) > 1:
            raise Unsupported
        out, left, right = types
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if out == "s32" else (0, (1 << bits) - 1)

        def function(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
            a, b, c = np.broadcast_arrays(a, b, c)
            value = combine(_parts(a, left, count), _parts(b, right, count))
            if "add" in flags:
                return (value.sum(axis=-1) + c).astype(DTYPES[out])
            value = np.clip(value, low, high) if "sat" in flags else value
            return np.ascontiguousarray(value.astype(f"u{bits // 8}")).view(DTYPES[out])[..., 0]

        return Operation(function, (out,), ("b32", "b32", out))

    return build


def _scalar(name: str) -> Builder:
    """`vNAME.D.A.B{.sat}{.add,.min,.max}{.clamp,.wrap} d, a, b{, c}` on whole words, in 34 bits; then c joins it."""
    shifts = name in ("vshl", "vshr")

    def build(inst: Instruction) -> Operation:
        flags, types = flags_of(inst, {"sat", *_SECOND, *(("clamp", "wrap") if shifts else ())}), types_of(inst)
        second, modes = flags & set(_SECOND), flags & {"clamp", "wrap"}
        if len(types) != 3 or not set(types) <= {"u32", "s32"} or len(second) > 1 or len(modes) != shifts:
            raise Unsupported
        out, left, right = types
        info = np.iinfo(DTYPES[out])

        def function(a: np.ndarray, b: np.ndarray, *c: np.ndarray) -> np.ndarray:
            wide, by = a.astype(np.int64), b.astype(np.int64)
            if shifts:
                by = by & 31 if "wrap" in modes else np.minimum(by, 32)
                value = wide << by if name == "vshl" else wide >> by
            else:
                value = _LANE_OPERATIONS[name](wide, by)
            value = np.clip(value, info.min, info.max) if "sat" in flags else value
            value = value.astype(DTYPES[out])
            return _SECOND[next(iter(second))](value, c[0]) if second else value

        return Operation(function, (out,), (left, right, *([out] if second else [])))

    return build


_SECOND: dict[str, Callable] = {"add": np.add, "min": np.minimum, "max": np.maximum}


def _fns(inst: Instruction) -> Operation:
    """`fns.b32 d, mask, base, offset`: position of the offset-th set bit from base on, upwards or downwards."""
    only_type(inst, ("b32",))

    def function(mask: np.ndarray, base: np.ndarray, offset: np.ndarray) -> np.ndarray:
        mask, base, offset = np.broadcast_arrays(mask, base, offset)
        each = np.arange(32)
        down = (offset < 0)[..., None]
        bits = ((mask[..., None] >> each.astype(np.uint32)) & np.uint32(1)) != 0
        start = base[..., None].astype(np.int64)
        bits &= np.where(down, each <= start, each >= start)
        rank = np.where(down, np.cumsum(bits[..., ::-1], axis=-1)[..., ::-1], np.cumsum(bits, axis=-1))
        wanted = np.maximum(np.abs(offset.astype(np.int64)), 1)[..., None]
        hit = bits & (rank == wanted)
        return np.where(hit.any(axis=-1), hit.argmax(axis=-1), 0xFFFFFFFF).astype(np.uint32)

    return Operation(function, ("b32",), ("b32", "b32", "s32"))


def _szext(inst: Instruction) -> Operation:
    """`szext.{wrap,clamp}`: extend the lowest b bits by their sign, or by zeros."""
    flags, type_ = flags_of(inst, {"wrap", "clamp"}), only_type(inst, ("u32", "s32"))

    def function(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        width = (b & np.uint32(31) if "wrap" in flags else np.minimum(b, np.uint32(32))).astype(np.int64)
        wide = a.astype(np.int64) & ((np.int64(1) << width) - 1)
        if type_ == "s32":
            sign = (width > 0) & ((wide >> np.maximum(width - 1, 0)) & 1 != 0)
            wide = np.where(sign, wide - (np.int64(1) << width), wide)
        return wide.astype(DTYPES[type_])

    return Operation(function, (type_,), (type_, "u32"))


def pack(inst: Instruction) -> Operation:
    """`cvt.pack.sat.u8.s32.b32 d, a, b, c`: a and b clamped, a on top of b, above them the low bits of c."""
    flags, types = flags_of(inst, {"pack", "sat"}), types_of(inst)
    if flags != {"pack", "sat"} or len(types) not in (2, 3) or types[1] != "s32" or types[2:] not in ((), ("b32",)):
        raise Unsupported
    out, bits = types[0], int(types[0][1:])
    if out not in (("u16", "s16") if len(types) == 2 else ("u8", "s8")):
        raise Unsupported
    info, field = np.iinfo(DTYPES[out]), np.uint32((1 << bits) - 1)

    def function(a: np.ndarray, b: np.ndarray, *c: np.ndarray) -> np.ndarray:
        high, low = (np.clip(x, info.min, info.max).astype(np.uint32) & field for x in (a, b))
        joined = (high << np.uint32(bits)) | low
        return joined | (c[0] << np.uint32(2 * bits)) if c else joined

    return Operation(function, ("b32",), ("s32", "s32", *types[2:]))


def _lop3(inst: Instruction) -> Operation:
    """`lop3.BOOL.b32 d|p, a, b, c, table, q`: the result, and whether it is not 0 combined with q."""
    from functional.numpy_executor import bits

    flags = flags_of(inst, {"or", "and"})
    if not flags:
        return bits.TABLE["lop3"](inst)
    if (
        len(flags) != 1
        or len(inst.sources) != 5
        or len(inst.destinations) != 2
        or not isinstance(inst.sources[3], Immediate)
    ):
        raise Unsupported
    table, join = int(inst.sources[3].value), np.logical_or if "or" in flags else np.logical_and

    def function(a: np.ndarray, b: np.ndarray, c: np.ndarray, _: np.ndarray, q: np.ndarray) -> tuple:
        value = bits.look_up(table, a, b, c)
        return value, join(value != 0, q)

    return Operation(function, ("b32", "pred"), ("b32",) * 4 + ("pred",))


TABLE: dict[str, Builder] = {
    **{f"{name}{count}": _simd(name, count) for name in _LANE_OPERATIONS for count in (2, 4)},
    **{name: _scalar(name) for name in ("vadd", "vsub", "vabsdiff", "vmin", "vmax", "vshl", "vshr")},
    "fns": _fns,
    "szext": _szext,
    "lop3": _lop3,
}
