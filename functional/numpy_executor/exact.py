"""Fused multiply-add of float32 and float64 arrays, rounded once: NumPy has none.

Sources: those of functional/isa/floats.py; sums whose splitting could over- or underflow are done on fractions.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

F32, F64, U32, U64 = np.float32, np.float64, np.uint32, np.uint64
_SPLIT = F64(134217729.0)  # 2**27 + 1
_HUGE, _TINY = F64(2.0**970), F64(2.0**-960)  # outside, splitting over- or underflows


def _two_sum(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(s, e) with s = RN(a + b) and s + e = a + b exactly; e is NaN where s is not finite."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def _two_product(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(p, e) with p = RN(a * b) and p + e = a * b exactly, for magnitudes in [2**-960, 2**970]."""
    p = a * b
    t, u = _SPLIT * a, _SPLIT * b
    a_hi, b_hi = t - (t - a), u - (u - b)
    a_lo, b_lo = a - a_hi, b - b_hi
    return p, ((a_hi * b_hi - p) + a_hi * b_lo + a_lo * b_hi) + a_lo * b_lo


def _round_to_odd(s: np.ndarray, e: np.ndarray) -> np.ndarray:
    """The float64 rounded to odd of the exact value s + e, where s = RN(s + e)."""
    bits = np.ascontiguousarray(s).view(np.int64)
    even = (bits & 1) == 0
    move = even & (e != 0) & np.isfinite(e) & np.isfinite(s)
    step = np.where((e > 0) == (s > 0), 1, -1)
    return np.where(move, bits + step, bits).view(F64)


def _direct(r: np.ndarray, e: np.ndarray, mode: str) -> np.ndarray:
    """Turn r = RN(x) into x rounded by `mode`; the sign of e is that of x - r."""
    if mode == "rn":
        return r
    lower = (e < 0) & ((mode == "rm") | (r > 0)) if mode != "rp" else np.False_
    raise_ = (e > 0) & ((mode == "rp") | (r < 0)) if mode != "rm" else np.False_
    r = np.where(lower, np.nextafter(r, F64(-np.inf)), r)
    return np.where(raise_, np.nextafter(r, F64(np.inf)), r)


def fma32(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Correctly rounded a * b + c in float32.

    The product is exact in float64; rounding the float64 sum again to float32 is wrong only where that sum lies
    half-way between two float32, or where the result is subnormal: those lanes are done again via round-to-odd.
    """
    s = np.multiply(a, b, dtype=F64) + c
    r = s.astype(F32)
    doubtful = (s.view(U64) & U64(0x1FFFFFFF)) == U64(0x10000000)
    doubtful |= (r.view(U32) & U32(0x7F800000)) == 0
    if doubtful.any():
        doubtful &= s != 0
        where = np.nonzero(doubtful)
        if where[0].size:
            x, y, z = (np.broadcast_to(v, s.shape)[where].astype(F64) for v in (a, b, c))
            r[where] = _round_to_odd(*_two_sum(x * y, z)).astype(F32)
    return r


def fma64(a: np.ndarray, b: np.ndarray, c: np.ndarray, mode: str = "rn") -> np.ndarray:
    """a * b + c in float64, rounded once by `mode`."""
    a, b, c = np.broadcast_arrays(a, b, c)
    hi, lo = _two_product(a, b)
    th, tl = _two_sum(c, lo)
    vh, vl = _two_sum(hi, th)
    z = _round_to_odd(*_two_sum(tl, vl))
    r, e = _two_sum(vh, z)
    r = _direct(r, e, mode)
    extreme = np.nonzero(~_safe(a, b, c, hi))
    if extreme[0].size:
        r[extreme] = [_fma_exact(*v, mode) for v in zip(a[extreme], b[extreme], c[extreme], strict=True)]
    return r


def _safe(a: np.ndarray, b: np.ndarray, c: np.ndarray, p: np.ndarray) -> np.ndarray:
    """Where neither splitting nor the sums can over- or underflow."""
    size = np.abs(p)
    product = ((size < _HUGE) & (size > _TINY)) | (((a == 0) | (b == 0)) & np.isfinite(p) & (c != 0))
    return product & (np.abs(a) < _HUGE) & (np.abs(b) < _HUGE) & (np.abs(c) < _HUGE)


def _fma_exact(a: float, b: float, c: float, mode: str) -> float:
    plain = float(a) * float(b) + float(c)
    if not np.isfinite([a, b, c]).all():
        return plain
    exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    if exact == 0:
        return plain
    try:
        r = float(exact)  # int / int in Python rounds correctly, subnormals included
    except OverflowError:
        r = np.inf if exact > 0 else -np.inf
    e = -np.sign(r) if np.isinf(r) else float((exact > Fraction(r)) - (exact < Fraction(r)))
    return float(_direct(np.array(r), np.array(e), mode))
