"""`cvt`: every pair of integer and floating-point types, with rounding, saturation and flush to zero."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from functional.numpy_executor import exact, fp8, video
from functional.numpy_executor.floating import ROUNDINGS, flush, from_bf16, rectify, saturate, to_bf16
from functional.numpy_executor.integer import clamp
from functional.numpy_executor.operation import (
    DTYPES,
    FLOATS,
    Builder,
    Operation,
    Unsupported,
    bits_of,
    flags_of,
    types_of,
)
from functional.ptx.ir import Instruction

F64 = np.float64
TO_INTEGER: dict[str, Callable] = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


def _cvt(inst: Instruction) -> Operation:
    if "pack" in inst.modifiers:
        return video.pack(inst)
    flags = flags_of(inst, {*ROUNDINGS, *TO_INTEGER, "rna", "sat", "ftz", "relu", "satfinite"})
    types = types_of(inst)
    if len(types) != 2 or "pred" in types:
        raise Unsupported
    to, from_ = types
    if {to, from_} & set(fp8.PAIRS):
        return fp8.conversion(flags, to, from_)
    if to in ("f16x2", "bf16x2"):
        return _pack(flags, to, from_)
    if to == "tf32":
        return Operation(_to_tf32(flags), ("b32",), ("f32",))
    if {to, from_} & {"f16x2", "bf16x2", "tf32", "u16x2", "s16x2"} or "satfinite" in flags:
        raise Unsupported
    if "relu" in flags and (to not in ("f16", "bf16") or from_ != "f32" or flags - {"rn", "rz", "relu"}):
        raise Unsupported
    kinds = (to in FLOATS, from_ in FLOATS)
    convert = {
        (False, False): _integer_to_integer,
        (False, True): _float_to_integer,
        (True, False): _integer_to_float,
        (True, True): _float_to_float,
    }[kinds](flags, to, from_)
    return Operation(convert, (to,), (from_,))


def _integer_to_integer(flags: frozenset[str], to: str, from_: str) -> Callable:
    dtype = DTYPES[to]
    if "sat" not in flags:
        return lambda a: a.astype(dtype)
    if from_ == "u64" or to == "u64":  # one bound at a time: int64 does not hold both ranges
        most, source = np.iinfo(dtype).max, np.iinfo(DTYPES[from_])

        def function(a: np.ndarray) -> np.ndarray:
            a = np.maximum(a, a.dtype.type(0)) if dtype.kind == "u" else a
            return (np.minimum(a, a.dtype.type(most)) if most < source.max else a).astype(dtype)

        return function
    return lambda a: clamp(a.astype(np.int64), to)


def _widen(a: np.ndarray, from_: str) -> np.ndarray:
    return from_bf16(a) if from_ == "bf16" else a


def _float_to_integer(flags: frozenset[str], to: str, from_: str) -> Callable:
    modes = flags & set(TO_INTEGER)
    if len(modes) != 1:
        raise Unsupported
    rounding, dtype = TO_INTEGER[next(iter(modes))], DTYPES[to]
    info = np.iinfo(dtype)
    limit = F64(2.0 ** (bits_of(to) - (dtype.kind == "i")))  # first value above the range, a power of two
    wide_nan = from_ == "f64" or bits_of(to) == 64  # PTX: NaN gives 0, or the top bit where 64 bits are involved
    nan = dtype.type(info.min if dtype.kind == "i" else 1 << (bits_of(to) - 1)) if wide_nan else dtype.type(0)

    def function(a: np.ndarray) -> np.ndarray:
        a = _widen(a, from_)
        x = rounding((flush(a) if "ftz" in flags else a).astype(F64))
        inside = (x < limit) & (x >= F64(info.min))
        value = np.where(inside, x, 0).astype(dtype)
        value = np.where(inside, value, np.where(x > 0, dtype.type(info.max), dtype.type(info.min)))
        return np.where(np.isnan(x), nan, value)

    return function


def _integer_to_float(flags: frozenset[str], to: str, from_: str) -> Callable:
    mode = next(iter(flags & ROUNDINGS), "rn")
    dtype = np.dtype(np.float32) if to == "bf16" else DTYPES[to]
    direct = mode == "rn" and to in ("f32", "f64")

    def function(a: np.ndarray) -> np.ndarray:
        if direct:
            return a.astype(dtype)
        near, error = _integer_error(a)
        if to == "f64":
            return exact.direct(near, error, mode)
        odd = exact.round_to_odd(near, error)
        return to_bf16(odd, mode) if to == "bf16" else exact.narrow(odd, dtype, mode)

    return (lambda a: saturate(function(a))) if "sat" in flags else function


def _integer_error(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(nearest float64, exact value minus it), 64-bit integers included."""
    if a.dtype.itemsize < 8:
        return a.astype(F64), np.zeros(a.shape)
    low = (a & a.dtype.type(0xFFFFFFFF)).astype(F64)
    high = (a >> a.dtype.type(32)).astype(F64) * F64(2.0**32)
    return exact.two_sum(high, low)


def _float_to_float(flags: frozenset[str], to: str, from_: str) -> Callable:
    integral = [TO_INTEGER[f] for f in flags if f in TO_INTEGER]
    mode = next(iter(flags & ROUNDINGS), "rn")

    def convert(a: np.ndarray) -> np.ndarray:
        if integral and (to == from_ or bits_of(to) >= bits_of(from_)):
            a = integral[0](a)
        if to == "bf16":
            return to_bf16(a, mode)
        if bits_of(to) >= bits_of(from_):
            return a.astype(DTYPES[to])
        return exact.narrow(a.astype(F64), DTYPES[to], mode)

    def function(a: np.ndarray) -> np.ndarray:
        a = _widen(a, from_)
        if "ftz" in flags:
            a = flush(a)
        if "relu" in flags:
            a = rectify(a)
        result = convert(a)
        if "ftz" in flags:
            result = flush(result)
        return saturate(result) if "sat" in flags else result

    if to == "bf16" and "sat" in flags:
        raise Unsupported
    return function


def _pack(flags: frozenset[str], to: str, from_: str) -> Operation:
    """`cvt.rn.f16x2.f32 d, a, b`: a becomes the upper half."""
    if from_ != "f32" or flags - {"rn", "rz", "relu"}:
        raise Unsupported
    mode = "rz" if "rz" in flags else "rn"

    def half(a: np.ndarray) -> np.ndarray:
        a = rectify(a) if "relu" in flags else a
        bits = to_bf16(a, mode) if to == "bf16x2" else exact.narrow(a.astype(F64), np.float16, mode).view(np.uint16)
        return bits.astype(np.uint32)

    return Operation(lambda a, b: (half(a) << np.uint32(16)) | half(b), (to,), (from_, from_))


def _to_tf32(flags: frozenset[str]) -> Callable:
    """float32 with 10 mantissa bits: `.rna` rounds half away from zero, `.rn` to even, `.rz` truncates."""
    relu, saturates, mode = "relu" in flags, "satfinite" in flags, flags - {"relu", "satfinite"}
    if mode not in ({"rna"}, {"rn"}, {"rz"}):
        raise Unsupported

    def function(a: np.ndarray) -> np.ndarray:
        bits = (rectify(a) if relu else a).view(np.uint32)
        odd = (bits >> np.uint32(13)) & np.uint32(1)
        bias: np.ndarray = {"rna": np.uint32(0x1000), "rn": np.uint32(0xFFF) + odd, "rz": np.uint32(0)}[
            next(iter(mode))
        ]  # type: ignore[assignment]
        rounded = np.where(np.isfinite(a), (bits + bias) & ~np.uint32(0x1FFF), bits)
        return (
            np.where(np.isinf(rounded.view(np.float32)), rounded - np.uint32(0x2000), rounded) if saturates else rounded
        )

    return function


TABLE: dict[str, Builder] = {"cvt": _cvt}
