"""Warp-wide matrix instructions: `mma.sync` on f16 / bf16 / tf32 fragments and `ldmatrix`.

Fragment layouts are those of the PTX ISA. With group g = lane / 4 and place t = lane % 4: A registers hold rows g and
g + 8, B columns g, C and D rows g and g + 8 with columns 2 t and 2 t + 1. Products are exact; the sum of a k-long dot
product and C is formed in float64 and rounded once (hardware truncates partial sums: differences of an ulp or so).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from functional.ir import Address, Instruction, Operand, Vector
from functional.numpy_executor.floating import from_bf16
from functional.numpy_executor.frame import Frame, raw
from functional.numpy_executor.memory_ops import Step, address_getter, record, split
from functional.numpy_executor.operands import Getter, getter, guard_getter, setter
from functional.numpy_executor.operation import Unsupported

if TYPE_CHECKING:
    from functional.numpy_executor.slots import Slots

_LANE = np.arange(32)
_GROUP, _PLACE = _LANE // 4, _LANE % 4
# element type -> (elements a register, k of the supported shapes)
_INPUTS = {
    "f16": (2, ("m16n8k8", "m16n8k16")),
    "bf16": (2, ("m16n8k8", "m16n8k16")),
    "tf32": (1, ("m16n8k4", "m16n8k8")),
}


def mma_step(slots: Slots, inst: Instruction) -> Step:
    """`mma.sync.aligned.m16n8kK.row.col.D.A.B.C`."""
    shape, types = _shape(inst)
    element, depth = types[1], int(shape.partition("k")[2])
    per_register = _INPUTS[element][0]
    a_rows, a_columns = _a_layout(depth, per_register)
    b_rows, b_columns = _b_layout(depth, per_register)
    accumulate_bits = "f16x2" if types[3] == "f16" else "f32"
    a, b, c = (_registers(slots, o, t) for o, t in zip(inst.sources, ("b32", "b32", accumulate_bits), strict=True))
    out = "f16x2" if types[0] == "f16" else "f32"
    guard = guard_getter(slots, inst.guard)
    destination = inst.destinations[0]
    if not isinstance(destination, Vector) or inst.guard is not None:
        raise Unsupported
    setters = [setter(slots, e, out, guard is not None) for e in destination.elements]
    counts = (16 * depth // 32 // per_register, depth * 8 // 32 // per_register)
    if (len(a), len(b)) != counts or {len(c), len(setters)} != {2 if out == "f16x2" else 4}:
        raise Unsupported

    def step(frame: Frame) -> None:
        left = np.zeros((frame.count, 16, depth))
        right = np.zeros((frame.count, depth, 8))
        left[:, a_rows, a_columns] = _elements(frame, a, element)
        right[:, b_rows, b_columns] = _elements(frame, b, element)
        total = np.matmul(left, right)
        rows, columns = _c_layout()
        result = total[:, rows, columns] + _elements(frame, c, "f32" if types[3] == "f32" else "f16")
        for write, value in zip(setters, _packed(result, out), strict=True):
            write(frame, value)

    return step


def _shape(inst: Instruction) -> tuple[str, tuple[str, str, str, str]]:
    """(shape, types of D, A, B, C). Raises Unsupported for a form that is not implemented."""
    modifiers = inst.modifiers
    if len(modifiers) != 9 or modifiers[:2] != ("sync", "aligned") or modifiers[3:5] != ("row", "col"):
        raise Unsupported
    shape, (d, a, b, c) = modifiers[2], modifiers[5:]
    if a != b or a not in _INPUTS or shape not in _INPUTS[a][1] or d != c or d not in ("f32", "f16"):
        raise Unsupported
    if (d == "f16" and a != "f16") or len(inst.sources) != 3:
        raise Unsupported
    return shape, (d, a, b, c)


def _registers(slots: Slots, operand: Operand, type_: str) -> list[Getter]:
    if not isinstance(operand, Vector) or None in operand.elements:
        raise Unsupported
    return [getter(slots, e, type_) for e in operand.elements if e is not None]


def _a_layout(depth: int, per_register: int) -> tuple[np.ndarray, np.ndarray]:
    """(rows, columns) of the elements of A, [lane, element]: register r holds row g + 8 (r % 2)."""
    element = np.arange(16 * depth // 32)
    register, half = element // per_register, element % per_register
    rows = _GROUP[:, None] + 8 * (register % 2)
    return rows, _PLACE[:, None] * per_register + half + 4 * per_register * (register // 2)


def _b_layout(depth: int, per_register: int) -> tuple[np.ndarray, np.ndarray]:
    element = np.arange(depth * 8 // 32)
    register, half = element // per_register, element % per_register
    rows = _PLACE[:, None] * per_register + half + 4 * per_register * register
    return rows, np.broadcast_to(_GROUP[:, None], rows.shape)


def _c_layout() -> tuple[np.ndarray, np.ndarray]:
    element = np.arange(4)
    return _GROUP[:, None] + 8 * (element // 2), 2 * _PLACE[:, None] + element % 2


def _elements(frame: Frame, registers: list[Getter], type_: str) -> np.ndarray:
    """Registers of all lanes as float64 [row, lane, element]."""
    words = np.stack([raw(frame.full(get(frame))) for get in registers], axis=2)
    if type_ == "bf16":
        return from_bf16(words.view(np.uint16)).astype(np.float64)
    if type_ == "tf32":
        words = words & np.uint32(0xFFFFE000)
    return words.view(np.float16 if type_ == "f16" else np.float32).astype(np.float64)


def _packed(result: np.ndarray, out: str) -> list[np.ndarray]:
    if out == "f32":
        return [result[..., i].astype(np.float32) for i in range(4)]
    return [np.ascontiguousarray(result[..., i : i + 2]).astype(np.float16).view(np.uint32)[..., 0] for i in (0, 2)]


def ldmatrix_step(slots: Slots, inst: Instruction) -> Step:
    """`ldmatrix.sync.aligned.m8n8.x{1,2,4}[.trans].shared.b16`: lane i names the 16-byte row i % 8 of matrix i / 8."""
    flags = set(inst.modifiers) - {"sync", "aligned", "m8n8", "shared", "b16", "trans"}
    address, destination = inst.sources[0], inst.destinations[0]
    if len(flags) != 1 or not flags <= {"x1", "x2", "x4"} or not isinstance(address, Address):
        raise Unsupported
    if "shared" not in inst.modifiers or inst.guard is not None or inst.type != "b16":
        raise Unsupported
    matrices, transposed = int(next(iter(flags))[1:]), "trans" in inst.modifiers
    elements = destination.elements if isinstance(destination, Vector) else (destination,)
    if len(elements) != matrices:
        raise Unsupported
    where = address_getter(slots, address, "shared")
    setters = [setter(slots, e, "b32", False) for e in elements]

    def step(frame: Frame) -> None:
        named = np.broadcast_to(8 * matrices > _LANE, (frame.count, 32))
        parts = list(split(frame, inst, "shared", where(frame), named))
        for part in parts:
            rows = frame.full(part.space.offsets(frame, inst, part.addresses, 16))[:, : 8 * matrices] >> 1
            halves = part.space.storage(frame.machine).words[2]
            tiles = halves[(rows[..., None] + np.arange(8))].reshape(frame.count, matrices, 8, 8)
            if transposed:
                tiles = tiles.swapaxes(2, 3)
            pairs = np.ascontiguousarray(tiles).view(np.uint32)  # [row, matrix, 8, 4]
            for i, write in enumerate(setters):
                write(frame, pairs[:, i].reshape(frame.count, 32))
        record(frame, True, 16, parts)

    return step
