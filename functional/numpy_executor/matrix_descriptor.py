"""Matrices in shared memory that a 64-bit descriptor names, of `wgmma` and `tcgen05`: in 8 by 16-byte core matrices, or
in rows of a swizzle's width whose units are exchanged by address: of 16 bytes, or, where M or N lies innermost, of 32.

Source: PTX ISA, "Matrix Descriptor Format" and "Shared memory descriptor"; canonical layouts of CUTLASS.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np

_UNIT_BYTES = 16
_HOPPER_WIDTHS = {0: 0, 1: 128, 2: 64, 3: 32}  # swizzle, bytes, by the number in a descriptor
_WIDE = 1  # 128 bytes, of units of 32
_BLACKWELL_WIDTHS = {0: 0, _WIDE: 128, 2: 128, 4: 64, 6: 32}
_LINE_BYTES = 128
_BLACKWELL_VERSION = 1


class Descriptor(NamedTuple):
    """Where a matrix begins, its two strides, how wide its swizzle is (0: none), and what that exchanges, all in
    bytes."""

    start: int
    leading: int
    stride: int
    width: int
    unit: int = _UNIT_BYTES

    @property
    def wide(self) -> bool:
        """Whether units of 32 bytes are exchanged."""
        return self.unit > _UNIT_BYTES


def of_hopper(word: int) -> Descriptor:
    """Of `wgmma`. Raises ValueError, with what is wrong, for one that cannot be had."""
    return _descriptor(word, _HOPPER_WIDTHS[word >> 62])


def of_blackwell(word: int) -> Descriptor:
    """Of `tcgen05`. Raises ValueError, with what is wrong, for one that cannot be had."""
    if word >> 46 & 7 != _BLACKWELL_VERSION:
        raise ValueError(f"bits 46 to 48 of a descriptor are 0b001, not {word >> 46 & 7:#05b}")
    if word >> 52 & 1:
        raise ValueError("a descriptor with an absolute leading address is not supported")
    if word >> 61 not in _BLACKWELL_WIDTHS:
        raise ValueError(f"swizzle {word >> 61} of a descriptor is not supported")
    found = _descriptor(word, _BLACKWELL_WIDTHS[word >> 61])
    return found._replace(unit=2 * _UNIT_BYTES) if word >> 61 == _WIDE else found


def _descriptor(word: int, width: int) -> Descriptor:
    if width and word >> 49 & 7:  # without a swizzle it says nothing
        raise ValueError("a descriptor with a base offset is not supported")
    start, leading, stride = ((word >> shift & 0x3FFF) << 4 for shift in (0, 16, 32))
    return Descriptor(start, leading, stride, width)


def addresses_of(
    descriptor: Descriptor, along: np.ndarray, depth: np.ndarray, size: int, transposed: bool
) -> np.ndarray:
    """Shared addresses [extent, k] of elements of `size` bytes; `transposed`: M or N lies innermost, not K. Raises
    ValueError for a swizzle that is none of such a matrix."""
    start, leading, stride, width, unit = descriptor
    if descriptor.wide and not transposed:
        raise ValueError("swizzles of 32-byte units are of matrices that have M or N innermost")
    mn, k = along[:, None], depth[None, :]
    if transposed:
        per = (width or _UNIT_BYTES) // size
        group, period = (leading, stride) if width else (stride, leading)
        rows = _LINE_BYTES // unit  # until the exchange repeats
        offset = mn % per * size + mn // per * group + k % rows * (width or _UNIT_BYTES) + k // rows * period
    elif width:
        offset = mn % 8 * width + mn // 8 * stride + k * size
    else:
        per = _UNIT_BYTES // size
        offset = mn % 8 * _UNIT_BYTES + mn // 8 * stride + k % per * size + k // per * leading
    at = start + offset
    return at ^ (at // (_LINE_BYTES // unit) & max(width - unit, 0))
