"""8-bit floating point: e4m3 (no infinities, one NaN a sign) and e5m2, as pairs in 16 bits.

Source: PTX ISA, "Alternate Floating-Point Data Formats"; Micikevicius et al., "FP8 Formats for Deep Learning" (2022).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from functional.numpy_executor.floating import rectify
from functional.numpy_executor.operation import Operation, Unsupported

PAIRS = {"e4m3x2": "e4m3", "e5m2x2": "e5m2"}
_FORMATS = {
    "e4m3": (4, 3, 7, 0x7E),
    "e5m2": (5, 2, 15, 0x7B),
}  # exponent bits, mantissa bits, bias, largest finite code
_NAN = 0x7F


@cache
def values(name: str) -> np.ndarray:
    """float32 value of every code 0 to 255 of a format."""
    _, mantissa_bits, bias, largest = _FORMATS[name]
    code = np.arange(128)
    exponent, mantissa = code >> mantissa_bits, code & ((1 << mantissa_bits) - 1)
    fraction = np.where(exponent > 0, 1.0, 0.0) + mantissa / (1 << mantissa_bits)
    positive = np.ldexp(fraction, np.maximum(exponent, 1) - bias)
    positive[largest + 1 :] = np.nan
    if name == "e5m2":
        positive[largest + 1] = np.inf
    return np.concatenate([positive, -positive]).astype(np.float32)


def decode(codes: np.ndarray, name: str) -> np.ndarray:
    """uint8 codes as float32."""
    return values(name)[codes]


def encode(x: np.ndarray, name: str) -> np.ndarray:
    """float32 or float16 to uint8 codes: to nearest even, beyond the range the largest finite number (`.satfinite`)."""
    _, mantissa_bits, bias, largest = _FORMATS[name]
    wide = np.abs(x.astype(np.float64))
    nan = np.isnan(wide)
    wide = np.where(nan, 0, np.minimum(wide, values(name)[largest]))
    exponent = np.maximum(np.frexp(wide)[1] - 1, 1 - bias)
    step = np.ldexp(1.0, exponent - mantissa_bits)
    rounded = np.minimum(np.rint(wide / step) * step, values(name)[largest])
    code = np.searchsorted(values(name)[: largest + 1], rounded.astype(np.float32))
    return np.where(nan, _NAN, code | np.where(np.signbit(x), 0x80, 0)).astype(np.uint8)


def conversion(flags: frozenset[str], to: str, from_: str) -> Operation:
    """`cvt` from or to a pair of 8-bit numbers. Raises Unsupported."""
    if from_ in PAIRS:
        return _widening(flags, to, from_)
    if not {"rn", "satfinite"} <= flags or flags - {"rn", "satfinite", "relu"}:
        raise Unsupported
    name = PAIRS[to]
    limit: Callable = rectify if "relu" in flags else lambda x: x

    def pair(high: np.ndarray, low: np.ndarray) -> np.ndarray:
        codes = (encode(limit(part), name).astype(np.uint16) for part in (high, low))
        return (next(codes) << np.uint16(8)) | next(codes)

    if from_ == "f32":
        return Operation(pair, (to,), ("f32", "f32"))
    if from_ != "f16x2":
        raise Unsupported

    def packed(a: np.ndarray) -> np.ndarray:
        halves = np.ascontiguousarray(a).view(np.float16).reshape(*a.shape, 2)
        return pair(halves[..., 1], halves[..., 0])

    return Operation(packed, (to,), (from_,))


def _widening(flags: frozenset[str], to: str, from_: str) -> Operation:
    if to != "f16x2" or "rn" not in flags or flags - {"rn", "relu"}:
        raise Unsupported
    limit: Callable = rectify if "relu" in flags else lambda x: x

    def function(a: np.ndarray) -> np.ndarray:
        codes = np.ascontiguousarray(a).view(np.uint8).reshape(*a.shape, 2)
        return np.ascontiguousarray(limit(decode(codes, PAIRS[from_])).astype(np.float16)).view(np.uint32)[..., 0]

    return Operation(function, (to,), (from_,))
