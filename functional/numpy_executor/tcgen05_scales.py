"""Scale factors of block-scaled products of `tcgen05`: a byte each in tensor memory, 32 rows of a matrix in a column.

Factor k of row r lies in lane r % 32, column r / 32, in the k-th byte from the one that the instruction descriptor
says. Each of the four quarters of the lanes holds the same. Source: PTX ISA, "Block Scaling for tcgen05.mma", "Scale
Factor A ID" and "Scale Factor B ID"; `tmem_sf_frg` of CUTLASS.
"""

from __future__ import annotations

import numpy as np

from functional.numpy_executor.small_floats import values
from functional.numpy_executor.tcgen05_descriptor import Scaling
from functional.numpy_executor.tensor_memory import LANES, View

_QUARTER = 32  # lanes
_ID_SHIFT = 30  # of an address: two bits that may repeat the byte that the descriptor says
_BIAS, _NAN, _SIGN = 127, 0xFF, 0x80


def scale_factors(view: View, address: int, extent: int, scaling: Scaling, side: int) -> np.ndarray:
    """Factors [extent, factor] of A (`side` 0) or B (1). Raises ValueError for what cannot be had."""
    first = scaling.bytes[side]
    if address >> _ID_SHIFT not in (0, first):
        raise ValueError(f"an address of scale factors says byte {address >> _ID_SHIFT}, its descriptor byte {first}")
    address &= (1 << _ID_SHIFT) - 1
    if address >> 16:
        raise ValueError(f"scale factors do not begin in lane {address >> 16} of tensor memory")
    row = np.arange(extent)
    lanes = row % _QUARTER + np.arange(0, LANES, _QUARTER)[:, None]
    words = view.read(lanes, address + row // _QUARTER + np.zeros_like(lanes))
    codes = np.stack([words >> np.uint32(8 * (first + k)) & np.uint32(0xFF) for k in range(scaling.factors)], axis=2)
    if (codes != codes[0]).any():
        raise ValueError("scale factors are not the same in all four quarters of the lanes of tensor memory")
    return decode(codes[0].astype(np.uint8), scaling.kind)


def decode(codes: np.ndarray, kind: str) -> np.ndarray:
    """Bytes as float64 of the same shape: powers of two (`ue8m0`), or `e4m3` without a sign. Raises ValueError for a
    sign."""
    if kind == "ue8m0":
        return np.where(codes == _NAN, np.nan, np.ldexp(1.0, codes.astype(np.int32) - _BIAS))
    if (codes & _SIGN).any():
        raise ValueError("a scale factor of type ue4m3 has its highest bit set")
    return values("e4m3")[codes]
