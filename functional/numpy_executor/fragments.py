"""What matrix instructions share: element types, how elements lie in registers, and the product itself.

Products are exact; the sum over k is formed in float64 in ascending order of k, C is added last, and the result is
rounded once (hardware truncates partial sums: differences of an ulp or so). float64 matrices are a chain of fused
multiply-adds that begins with C. Integers are exact.
"""

from __future__ import annotations

import numpy as np

from functional.isa.matrices import FLOAT_ELEMENTS, Element
from functional.isa.operation import Unsupported, raw
from functional.isa.slots import Slots
from functional.isa.small_floats import from_bf16, values
from functional.numpy_executor.arrays import fma64
from functional.numpy_executor.frame import Frame
from functional.numpy_executor.operands import Getter, Setter, getter, setter
from functional.ptx.ir import Operand, Vector


def registers_of(slots: Slots, operand: Operand, kind: Element) -> list[Getter]:
    """Getters of a source fragment."""
    elements = operand.elements if isinstance(operand, Vector) else (operand,)
    if None in elements:
        raise Unsupported
    return [getter(slots, e, kind.register) for e in elements if e is not None]


def setters_of(slots: Slots, operand: Operand | None, kind: Element) -> list[Setter]:
    """Setters of a destination fragment."""
    elements = operand.elements if isinstance(operand, Vector) else (operand,)
    return [setter(slots, e, kind.register, False) for e in elements]


def read(frame: Frame, registers: list[Getter], kind: Element) -> np.ndarray:
    """Registers of all lanes as float64 or int64 [row, lane, element]."""
    words = np.stack([raw(frame.full(get(frame))) for get in registers], axis=2)
    return decode(words, kind)


def decode(words: np.ndarray, kind: Element) -> np.ndarray:
    """Registers [..., register] as numbers [..., element]."""
    name = kind.name
    if name in ("f64", "f32", "f16"):
        return words.view(f"f{kind.bits // 8}").astype(np.float64)
    if name == "bf16":
        return from_bf16(words.view(np.uint16)).astype(np.float64)
    if name == "tf32":
        return (words & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)
    if name in ("e4m3", "e5m2"):
        return values(name)[words.view(np.uint8)]
    if name == "s32":
        return words.view(np.int32).astype(np.int64)
    if kind.bits == 8:
        return words.view(np.int8 if name == "s8" else np.uint8).astype(np.int64)
    shifts = np.arange(0, 32, kind.bits, dtype=np.uint32)
    parts = ((words[..., None] >> shifts) & np.uint32((1 << kind.bits) - 1)).astype(np.int64)
    parts = parts.reshape(*words.shape[:-1], -1)
    return np.where(parts > 7, parts - 16, parts) if name == "s4" else parts


def decode_stored(values: np.ndarray, kind: Element) -> np.ndarray:
    """Elements as memory has them, unsigned and of their own size, as float64 or int64 of the same shape."""
    return decode(np.ascontiguousarray(values), kind)


def encode(values: np.ndarray, kind: Element) -> np.ndarray:
    """Numbers [..., element] as registers [..., register]; f16 pairs are packed. Only accumulator types."""
    if kind.name == "f16":
        return np.ascontiguousarray(values.astype(np.float16)).view(np.uint32)
    return values.astype({"f32": np.float32, "f64": np.float64, "s32": np.int64}[kind.name])


def write(frame: Frame, setters: list[Setter], values: np.ndarray, kind: Element) -> None:
    """Write an accumulator [row, lane, element] to a destination fragment."""
    registers = encode(values, kind)
    if kind.name == "s32":
        registers = registers.astype(np.uint32)
    for i, put in enumerate(setters):
        put(frame, np.ascontiguousarray(registers[..., i]))


def multiply(a: np.ndarray, b: np.ndarray, c: np.ndarray, kind: Element, options: frozenset[str]) -> np.ndarray:
    """D = A B + C of matrices [row, m, k], [row, k, n] and [row, m, n]; `options` may hold satfinite, xor, and."""
    if kind.name == "f64":
        total = c
        for k in range(a.shape[2]):
            total = fma64(a[:, :, k, None], b[:, None, k, :], total)
        return total
    if kind.name in FLOAT_ELEMENTS:
        total = np.zeros(c.shape)
        for k in range(a.shape[2]):
            total = total + a[:, :, k, None] * b[:, None, k, :]
        return total + c
    product = np.matmul(a.astype(np.float64), b.astype(np.float64))  # integers below 2**53: exact in any order
    if kind.name == "b1" and "xor" in options:
        product = a.sum(axis=2)[:, :, None] + b.sum(axis=1)[:, None, :] - 2 * product
    total = product.astype(np.int64) + c
    return np.clip(total, -(1 << 31), (1 << 31) - 1) if "satfinite" in options else total
