"""Products of float64 matrices, compiled: every sum over k is formed in ascending order, whoever asks for it."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from functional.arrays import Bool, Float64, Int64
from functional.jit import native
from functional.jit.machine_code import FEW_PASSES, assembled, binding, engine_of, target
from functional.jit.native import I32, I64, Double, Lanes32, Pointer, Type, op, routine
from functional.keep.kept import Kept, key

INFINITY, NAN = 0x7F800000, 0x7FFFFFFF  # float32: a product's NaN is that one, as of any operation
Eight: Any = Type("double", 8)
Floats: Any = Type("float", 32)
Doubles: Any = Type("double", 32)


@routine
def multiply_rows(a: Pointer, b: Pointer, c: Pointer, m: I64, n: I64, k: I64) -> None:
    """C = A B of row-major float64 matrices, the sum over k in ascending order; n is a multiple of 8."""
    for row in range(m):
        left, to = a + row * k * 8, c + row * n * 8
        for part in range(n // 8):
            total = Eight(0)
            for depth in range(k):
                total += Eight(left[Double, depth]) * (b + depth * n * 8)[Eight, part]
            to[Eight, part] = total


@routine
def multiply_each(a: Pointer, b: Pointer, of: Pointer, c: Pointer, count: I64, m: I64, n: I64, k: I64) -> I32:
    """As many products; that of number i is of the matrix B whose number is i-th in `of`."""
    for number in range(count):
        right = b + of[I64, number] * (k * n * 8)
        multiply_rows(a + number * (m * k * 8), right, c + number * (m * n * 8), m, n, k)
    return 0


@routine
def multiply_in_lanes(
    a: Pointer, b: Pointer, of: Pointer, room: Pointer, lanes: Pointer, count: I64, n: I64, k: I64
) -> I32:
    """The same with 16 rows, as what each lane holds (isa.matrices.c_layout): two columns of rows g and g + 8.
    `room`: for one product."""
    for number in range(count):
        multiply_rows(a + number * (k * 128), b + of[I64, number] * (k * n * 8), room, 16, n, k)
        held = lanes + number * (n * 128)
        for block in range(n // 8):
            for g in range(8):
                for pair in range(4):
                    for half in range(2):
                        source = room + ((half * 8 + g) * n + block * 8 + pair * 2) * 8
                        to = held + ((block * 4 + half * 2) * 32 + g * 4 + pair) * 8
                        to[Double, 0], to[Double, 32] = source[Double, 0], source[Double, 1]
    return 0


@routine
def accumulate(
    a: Pointer, b: Pointer, of: Pointer, room: Pointer, places: Pointer, adds: Pointer, before: Pointer, after: Pointer,
    count: I64, n: I64, k: I64,
) -> I32:  # fmt: skip
    """The same plus C, rounded, as registers of 32 float32 each, `before` and `after` bytes behind an address a row in
    `places`; C only in rows in which `adds` is not 0. `room`: for a product, and what lanes hold of it."""
    lanes = room + n * 128
    for number in range(count):
        multiply_in_lanes(a + number * (k * 128), b, of + number * 8, room, lanes, 1, n, k)
        registers = places[Pointer, number]
        for i in range(n // 2):
            total = lanes[Doubles, i]
            if adds[I64, number] != 0:
                total += Doubles((registers + before[I64, i])[Floats, 0])
            else:
                total += 0
            bits = Lanes32(Floats(total))
            (registers + after[I64, i])[Lanes32, 0] = op.where(bits & 0x7FFFFFFF > INFINITY, NAN, bits)
    return 0


_MODULE = "functional.isa.products"
_PASSES = (*FEW_PASSES, "new_gvn", "instruction_combine", "simplify_cfg")
_ATTRIBUTES = 'attributes #0 = { nounwind "prefer-vector-width"="512" "min-legal-vector-width"="512" }'


@cache
def _engine() -> Any:
    made = Kept("objects").load_or_make(
        key((_MODULE,), "products", target()), lambda: assembled(f"{native.text(_MODULE)}\n{_ATTRIBUTES}\n", _PASSES, 1)
    )
    engine = engine_of(made)
    for name in native.exported(_MODULE):
        binding().add_symbol(name, engine.get_function_address(name))
    return engine


def load() -> None:
    """Machine code that is made from now on may call these routines by name."""
    _engine()


@cache
def _routine(name: str, arity: int) -> Any:
    return ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_int64] * arity)(_engine().get_function_address(name))


def _given(a: np.ndarray, b: np.ndarray, of: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    if b.shape[2] % 8:
        raise ValueError(f"{b.shape[2]} columns are no multiple of 8")
    return np.ascontiguousarray(a, float), np.ascontiguousarray(b, float), np.ascontiguousarray(of, np.int64)


def products(
    a: Float64[np.ndarray, "row m k"], b: Float64[np.ndarray, "matrix k n"], of: Int64[np.ndarray, " row"]
) -> Float64[np.ndarray, "row m n"]:
    """A B of each row, B by its number. Raises ValueError if n is no multiple of 8."""
    a, b, of = _given(a, b, of)
    (rows, m, k), n = a.shape, b.shape[2]
    c = np.empty((rows, m, n))
    _routine("multiply_each", 8)(*(array.ctypes.data for array in (a, b, of, c)), rows, m, n, k)
    return c


class Registers(NamedTuple):
    """Registers of 32 float32 in memory, `offsets` [register] bytes behind an address [row]."""

    addresses: Int64[np.ndarray, " row"]
    offsets: Int64[np.ndarray, " register"]


def accumulate_in(
    a: Float64[np.ndarray, "row 16 k"], b: Float64[np.ndarray, "matrix k n"], of: Int64[np.ndarray, " row"],
    before: Registers, after: Registers, added: Bool[np.ndarray, " row"],
) -> None:  # fmt: skip
    """D = A B + C, rounded once, in place; C only in rows in which it is `added`."""
    a, b, of = _given(a, b, of)
    (rows, _, k), n = a.shape, b.shape[2]
    adds, room = added.astype(np.int64), np.empty((2, 16, n))
    arrays = a, b, of, room, before.addresses, adds, before.offsets, after.offsets
    _routine("accumulate", 11)(*(array.ctypes.data for array in arrays), rows, n, k)
