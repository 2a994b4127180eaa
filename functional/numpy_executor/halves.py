"""Arithmetic on two halves in a 32-bit register (f16x2, bf16x2, u16x2, s16x2), through the scalar type's tables."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from functional.numpy_executor import floating, integer
from functional.numpy_executor.operation import DTYPES, FLOATS, Builder, Operation, Unsupported
from functional.ptx.ir import Instruction

_OPCODES = ("add", "sub", "mul", "fma", "min", "max", "neg", "abs", "ex2", "tanh")


def _halves(a: np.ndarray, type_: str) -> np.ndarray:
    """uint32 [..., n] as [..., 2 n] of the scalar type, low half first."""
    return np.ascontiguousarray(a).view(DTYPES[type_])


def _build(inst: Instruction) -> Operation:
    packed = inst.type
    scalar = packed[:-2]
    modifiers = tuple(scalar if m == packed else m for m in inst.modifiers)
    table = floating.TABLE if scalar in FLOATS else integer.TABLE
    if inst.opcode not in table:
        raise Unsupported
    operation = table[inst.opcode](replace(inst, modifiers=modifiers))
    if set(operation.sources) != {scalar}:
        raise Unsupported

    def function(*sources: np.ndarray) -> np.ndarray:
        halves = (_halves(s, scalar) for s in np.broadcast_arrays(*sources))
        return np.ascontiguousarray(operation.function(*halves)).view(np.uint32)

    return Operation(function, (packed,), (packed,) * len(operation.sources))


TABLE: dict[str, Builder] = {opcode: _build for opcode in _OPCODES}
