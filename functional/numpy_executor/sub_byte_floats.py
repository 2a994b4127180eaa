"""Floating point of 4 and 6 bits: e2m1, e2m3, e3m2. All codes are numbers: there are neither infinities nor NaNs.

Sixteen of them lie in 16 bytes of shared memory, packed from the lowest bit on, the rest of the unit empty; where a
kind of product has 4-bit matrices alone, two in each byte.
Source: OCP Microscaling Formats (MX) Specification 1.0; PTX ISA, "Packing formats of elements".
"""

from __future__ import annotations

from functools import cache

import numpy as np

FORMATS = {"e2m1": (2, 1, 1), "e2m3": (2, 3, 1), "e3m2": (3, 2, 3)}  # exponent bits, mantissa bits, bias
_UNIT = 16  # elements, and bytes


@cache
def values(name: str) -> np.ndarray:
    """float64 value of every code of a format."""
    exponent_bits, mantissa_bits, bias = FORMATS[name]
    code = np.arange(1 << (exponent_bits + mantissa_bits))
    exponent, mantissa = code >> mantissa_bits, code & ((1 << mantissa_bits) - 1)
    fraction = np.where(exponent > 0, 1.0, 0.0) + mantissa / (1 << mantissa_bits)
    positive = np.ldexp(fraction, np.maximum(exponent, 1) - bias)
    return np.concatenate([positive, -positive])


def unpack_units(stored: np.ndarray, name: str) -> np.ndarray:
    """Bytes [..., 16 n] of units as the numbers [..., 16 n] that they hold."""
    bits = 1 + sum(FORMATS[name][:2])
    units = stored.reshape(*stored.shape[:-1], -1, _UNIT)[..., : bits * _UNIT // 8]
    each = np.unpackbits(np.ascontiguousarray(units), axis=-1, bitorder="little")
    codes = np.packbits(each.reshape(*units.shape[:-1], _UNIT, bits), axis=-1, bitorder="little")[..., 0]
    return values(name)[codes].reshape(stored.shape)


def unpack_pairs(stored: np.ndarray, name: str) -> np.ndarray:
    """Bytes [..., n] that hold two codes of 4 bits each, the lower first, as numbers [..., 2 n]."""
    codes = np.stack([stored & np.uint8(15), stored >> np.uint8(4)], axis=-1)
    return values(name)[codes].reshape(*stored.shape[:-1], -1)
