"""Floating-point arithmetic: f16, bf16, f32, f64 with rounding modes, `.sat` and `.ftz`.

Approximate functions are computed in float64 and rounded, so that results do not depend on vector length or CPU.
A NaN result keeps whatever payload IEEE arithmetic of the host gives (hardware returns 0x7fffffff).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from functional.numpy_executor import exact
from functional.numpy_executor.operation import DTYPES, Builder, Operation, Unsupported, flags_of, only_type
from functional.ptx.ir import Instruction

F32, F64 = np.float32, np.float64
ROUNDINGS = frozenset({"rn", "rz", "rm", "rp"})
ALL = ("f32", "f64", "f16", "bf16")


def flush(x: np.ndarray) -> np.ndarray:
    """`.ftz`: subnormal float32 become zeros of the same sign; other types stay."""
    return flush_any(x) if x.dtype == F32 else x


def flush_any(x: np.ndarray) -> np.ndarray:
    """Subnormal numbers become zeros of the same sign, whatever the type."""
    return np.where(np.abs(x) < np.finfo(x.dtype).tiny, np.copysign(x.dtype.type(0), x), x)


def rectify(x: np.ndarray) -> np.ndarray:
    """`.relu`: negative numbers become 0, NaN stays."""
    return np.where((x > 0) | np.isnan(x), x, x.dtype.type(0))


def saturate(x: np.ndarray) -> np.ndarray:
    """`.sat`: clamp to [0, 1], NaN becomes 0."""
    one = x.dtype.type(1)
    return np.where(x > 0, np.minimum(x, one), x.dtype.type(0))


def from_bf16(x: np.ndarray) -> np.ndarray:
    """bf16 bits (uint16) as float32."""
    return (x.astype(np.uint32) << np.uint32(16)).view(F32)


def to_bf16(x: np.ndarray, mode: str = "rn") -> np.ndarray:
    """float64 (exact or rounded to odd) or float32 to bf16 bits by `mode`."""
    x = x.astype(F64)
    near = x.astype(F32)
    error = np.where(np.isfinite(near), x - near.astype(F64), 0)
    toward_zero = exact.direct(near, error, "rz").view(np.uint32)
    sticky = toward_zero | (error != 0)  # float32 rounded to odd
    low = sticky & np.uint32(0xFFFF)
    kept = sticky >> np.uint32(16)
    negative = (sticky >> np.uint32(31)) != 0
    up = {
        "rn": (low > 0x8000) | ((low == 0x8000) & ((kept & 1) != 0)),
        "rz": np.zeros(low.shape, bool),
        "rm": (low != 0) & negative,
        "rp": (low != 0) & ~negative,
    }[mode]
    rounded = np.where(np.isfinite(near), kept + up, kept | ((low != 0) & np.isnan(near)))
    return rounded.astype(np.uint16)


def wrap(function: Callable, type_: str, flags: frozenset[str]) -> Callable:
    """Add `.ftz` on operands and result and `.sat` / `.relu` on the result; bf16 is computed on float32 operands."""
    ftz = "ftz" in flags and type_ != "f64"
    if not flags & {"ftz", "sat", "relu"} and type_ != "bf16":
        return function

    def wrapped(*sources: np.ndarray) -> np.ndarray:
        if type_ == "bf16":
            sources = tuple(from_bf16(s) for s in sources)
        if ftz:
            sources = tuple(flush_any(s) for s in sources)
        result = function(*sources)
        if ftz:
            result = flush_any(result)
        if "relu" in flags:
            result = rectify(result)
        if "sat" in flags:
            result = saturate(result)
        return to_bf16(result) if type_ == "bf16" and result.dtype != np.uint16 else result

    return wrapped


def rounding(flags: frozenset[str]) -> str:
    """The IEEE rounding mode among the modifiers; round to nearest even by default."""
    return next(iter(flags & ROUNDINGS), "rn")


def _sum_error(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return exact.two_sum(a, b)


def _difference_error(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return exact.two_sum(a, -b)


def _quotient_error(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    q = a / b
    p, e = exact.two_product(q, b)
    return q, ((a - p) - e) * np.sign(b)


def _root_error(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    s = np.sqrt(a)
    p, e = exact.two_product(s, s)
    return s, (a - p) - e


def _reciprocal_error(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return _quotient_error(np.ones_like(a), a)


# opcode -> (rounded to nearest, (rounded, sign of the error) in float64, number of sources)
_BASIC: dict[str, tuple[Callable, Callable, int]] = {
    "add": (np.add, _sum_error, 2),
    "sub": (np.subtract, _difference_error, 2),
    "mul": (np.multiply, exact.two_product, 2),
    "div": (np.divide, _quotient_error, 2),
    "sqrt": (np.sqrt, _root_error, 1),
    "rcp": (lambda a: a.dtype.type(1) / a, _reciprocal_error, 1),
}


def _directed(with_error: Callable, dtype: np.dtype, mode: str) -> Callable:
    def function(*sources: np.ndarray) -> np.ndarray:
        value, error = with_error(*(s.astype(F64) for s in sources))
        finite = np.logical_and.reduce(np.broadcast_arrays(*(np.isfinite(s) for s in sources)))
        error = np.where(np.isinf(value) & finite, -np.sign(value), np.nan_to_num(error))
        if dtype == F64:
            return exact.direct(value, error, mode)
        return exact.narrow(exact.round_to_odd(value, error), dtype, mode)

    return function


def basic(opcode: str) -> Builder:
    """`add sub mul div sqrt rcp` with a rounding mode, `.approx` and `.full` being round to nearest."""
    nearest, with_error, arity = _BASIC[opcode]

    def build(inst: Instruction) -> Operation:
        flags = flags_of(inst, ROUNDINGS | {"ftz", "sat", "approx", "full"})
        type_ = only_type(inst, ALL)
        mode = rounding(flags)
        kept = DTYPES["f32" if type_ == "bf16" else type_]
        function = nearest if mode == "rn" else _directed(with_error, kept, mode)
        return Operation(wrap(function, type_, flags), (type_,), (type_,) * arity)

    return build


def _fma(inst: Instruction) -> Operation:
    flags = flags_of(inst, ROUNDINGS | {"ftz", "sat", "relu"})
    type_, mode = only_type(inst, ALL), rounding(flags)
    function: Callable
    if type_ == "f64":
        function = lambda a, b, c: exact.fma64(a, b, c, mode)  # noqa: E731
    elif type_ == "f32" and mode == "rn":
        function = exact.fma32
    elif type_ == "bf16":
        function = lambda a, b, c: exact.round_to_odd(*exact.two_sum(  # noqa: E731
            np.multiply(a, b, dtype=F64), c.astype(F64)))  # fmt: skip
        if "sat" in flags:
            raise Unsupported
    else:
        function = lambda a, b, c: exact.fma32_directed(a, b, c, DTYPES[type_].type, mode)  # noqa: E731
    return Operation(wrap(function, type_, flags), (type_,), (type_,) * 3)


def _signed_zero_aware(pick: Callable, join: Callable) -> Callable:
    """min / max with -0 < +0, which the comparison alone does not order."""

    def function(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        raw = np.dtype(f"u{a.dtype.itemsize}")
        return np.where(a == b, join(a.view(raw), b.view(raw)).view(a.dtype), pick(a, b))

    return function


def _xorsign(function: Callable) -> Callable:
    """`.xorsign.abs`: of the magnitudes, with the sign of the product."""

    def signed(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        sign = np.where(np.signbit(a) != np.signbit(b), a.dtype.type(-1), a.dtype.type(1))
        return np.copysign(function(np.abs(a), np.abs(b)), sign)

    return signed


def extremum(opcode: str) -> Builder:
    """`min max`: a NaN operand loses, unless `.NaN`."""
    quiet, strict, join = {
        "min": (np.fmin, np.minimum, np.bitwise_or),
        "max": (np.fmax, np.maximum, np.bitwise_and),
    }[opcode]

    def build(inst: Instruction) -> Operation:
        flags = flags_of(inst, {"ftz", "NaN", "xorsign", "abs"})
        type_ = only_type(inst, ALL)
        function: Callable = _signed_zero_aware(strict if "NaN" in flags else quiet, join)
        if {"xorsign", "abs"} & flags:
            if not {"xorsign", "abs"} <= flags:
                raise Unsupported
            function = _xorsign(function)
        return Operation(wrap(function, type_, flags), (type_,), (type_, type_))

    return build


def _in_double(function: Callable) -> Callable:
    return lambda a: function(a.astype(F64)).astype(a.dtype)


def unary(function: Callable, flags: frozenset[str], types: tuple[str, ...]) -> Builder:
    """A one-source operation with optional `.ftz`."""

    def build(inst: Instruction) -> Operation:
        given, type_ = flags_of(inst, flags), only_type(inst, types)
        return Operation(wrap(function, type_, given), (type_,), (type_,))

    return build


def _sign_bit(mask_to_bits: Callable) -> Callable:
    def function(a: np.ndarray) -> np.ndarray:
        raw = np.dtype(f"u{a.dtype.itemsize}")
        return mask_to_bits(a.view(raw), raw.type(1 << (raw.itemsize * 8 - 1))).view(a.dtype)

    return function


def _sign_operation(mask_to_bits: Callable) -> Builder:
    """`neg abs`: bit operations, NaN included."""
    function = _sign_bit(mask_to_bits)

    def build(inst: Instruction) -> Operation:
        flags, type_ = flags_of(inst, {"ftz"}), only_type(inst, ALL)
        wrapped = function if type_ == "bf16" else wrap(function, type_, flags)
        return Operation(wrapped, (type_,), (type_,))

    return build


_APPROX = frozenset({"approx", "ftz"})
TABLE: dict[str, Builder] = {
    **{opcode: basic(opcode) for opcode in _BASIC},
    "fma": _fma,
    "mad": _fma,
    "min": extremum("min"),
    "max": extremum("max"),
    "neg": _sign_operation(lambda bits, sign: bits ^ sign),
    "abs": _sign_operation(lambda bits, sign: bits & ~sign),
    "rsqrt": unary(_in_double(lambda x: 1 / np.sqrt(x)), _APPROX, ("f32", "f64")),
    "sin": unary(_in_double(np.sin), _APPROX, ("f32",)),
    "cos": unary(_in_double(np.cos), _APPROX, ("f32",)),
    "lg2": unary(_in_double(np.log2), _APPROX, ("f32",)),
    "ex2": unary(_in_double(np.exp2), _APPROX, ("f32", "f16", "bf16")),
    "tanh": unary(_in_double(np.tanh), _APPROX, ("f32", "f16", "bf16")),
    "copysign": lambda inst: Operation(lambda a, b: np.copysign(b, a), (only_type(inst, ("f32", "f64")),),
                                       (only_type(inst, ("f32", "f64")),) * 2),  # copies the sign of a to b
}  # fmt: skip
