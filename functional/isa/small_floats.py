"""Floating point of 4, 6, 8 and 16 bits as arrays of codes: e2m1, e2m3, e3m2 (all codes are numbers), e4m3, e5m2, bf16.

Sixteen of those of 4 or 6 bits lie in 16 bytes of shared memory, packed from the lowest bit on, the rest of the unit
empty; where a kind of product has 4-bit matrices alone, two in each byte.
Sources: OCP Microscaling Formats (MX) Specification 1.0; PTX ISA, "Packing formats of elements"; Micikevicius et al.,
"FP8 Formats for Deep Learning" (2022).
"""

from __future__ import annotations

from functools import cache

import numpy as np

# exponent bits, mantissa bits, bias
SUB_BYTE = {"e2m1": (2, 1, 1), "e2m3": (2, 3, 1), "e3m2": (3, 2, 3)}
_FORMATS = {**SUB_BYTE, "e4m3": (4, 3, 7), "e5m2": (5, 2, 15)}
_SPECIAL = {"e4m3": [np.nan], "e5m2": [np.inf, np.nan, np.nan, np.nan]}  # of the last positive codes
_UNIT = 16  # elements, and bytes


@cache
def values(name: str) -> np.ndarray:
    """float64 value of every code of a format, the negative ones in the second half."""
    exponent_bits, mantissa_bits, bias = _FORMATS[name]
    code = np.arange(1 << (exponent_bits + mantissa_bits))
    exponent, mantissa = code >> mantissa_bits, code & ((1 << mantissa_bits) - 1)
    fraction = np.where(exponent > 0, 1.0, 0.0) + mantissa / (1 << mantissa_bits)
    positive = np.ldexp(fraction, np.maximum(exponent, 1) - bias)
    special = _SPECIAL.get(name, [])
    positive[len(code) - len(special) :] = special
    return np.concatenate([positive, -positive])


def from_bf16(x: np.ndarray) -> np.ndarray:
    """bf16 bits (uint16) as float32."""
    return (x.astype(np.uint32) << np.uint32(16)).view(np.float32)


def unpack_units(stored: np.ndarray, name: str) -> np.ndarray:
    """Bytes [..., 16 n] of units as the numbers [..., 16 n] that they hold."""
    bits = 1 + sum(SUB_BYTE[name][:2])
    units = stored.reshape(*stored.shape[:-1], -1, _UNIT)[..., : bits * _UNIT // 8]
    each = np.unpackbits(np.ascontiguousarray(units), axis=-1, bitorder="little")
    codes = np.packbits(each.reshape(*units.shape[:-1], _UNIT, bits), axis=-1, bitorder="little")[..., 0]
    return values(name)[codes].reshape(stored.shape)


def unpack_pairs(stored: np.ndarray, name: str) -> np.ndarray:
    """Bytes [..., n] that hold two codes of 4 bits each, the lower first, as numbers [..., 2 n]."""
    codes = np.stack([stored & np.uint8(15), stored >> np.uint8(4)], axis=-1)
    return values(name)[codes].reshape(*stored.shape[:-1], -1)
