"""`ldmatrix`, `stmatrix` and `movmatrix`: 8 by 8 matrices of halves between shared memory and fragments.

Lane i names the 16-byte row i % 8 of matrix i / 8; of matrix r, lane l holds elements 2 (l % 4) and + 1 of row l / 4 in
register r.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from functional.isa.operation import Operation, Unsupported
from functional.isa.windows import SHARED_WINDOW
from functional.numpy_executor.frame import Frame, raw
from functional.numpy_executor.memory_ops import address_getter, record, split
from functional.numpy_executor.operands import Getter, getter, setter
from functional.numpy_executor.slots import Slots
from functional.ptx.ir import Address, Instruction, Vector

Step = Callable[[Frame], None]
_LANE = np.arange(32)


def matrices_of(inst: Instruction) -> tuple[int, bool]:
    """(matrices, transposed). Raises Unsupported for a form that is not implemented."""
    flags = set(inst.modifiers) - {"sync", "aligned", "m8n8", "shared", "b16", "trans"}
    if len(flags) != 1 or not flags <= {"x1", "x2", "x4"} or inst.guard is not None:
        raise Unsupported
    if not {"m8n8", "b16"} <= set(inst.modifiers):
        raise Unsupported
    return int(next(iter(flags))[1:]), "trans" in inst.modifiers


def ldmatrix_step(slots: Slots, inst: Instruction) -> Step:
    """`ldmatrix.sync.aligned.m8n8.x{1,2,4}[.trans][.shared].b16`."""
    matrices, transposed = matrices_of(inst)
    address, destination = inst.sources[0], inst.destinations[0]
    elements = destination.elements if isinstance(destination, Vector) else (destination,)
    if len(elements) != matrices or not isinstance(address, Address):
        raise Unsupported
    where = _shared_address(slots, inst, address)
    setters = [setter(slots, e, "b32", False) for e in elements]

    def step(frame: Frame) -> None:
        at, halves = _rows(frame, inst, where, matrices)
        tiles = halves[at].reshape(frame.count, matrices, 8, 8)
        if transposed:
            tiles = tiles.swapaxes(2, 3)
        pairs = np.ascontiguousarray(tiles).view(np.uint32)  # [row, matrix, 8, 4]
        for i, write in enumerate(setters):
            write(frame, pairs[:, i].reshape(frame.count, 32))

    return step


def stmatrix_step(slots: Slots, inst: Instruction) -> Step:
    """`stmatrix.sync.aligned.m8n8.x{1,2,4}[.trans][.shared].b16`."""
    matrices, transposed = matrices_of(inst)
    address, value = inst.sources
    elements = value.elements if isinstance(value, Vector) else (value,)
    if len(elements) != matrices or not isinstance(address, Address) or None in elements:
        raise Unsupported
    where = _shared_address(slots, inst, address)
    getters = [getter(slots, e, "b32") for e in elements if e is not None]

    def step(frame: Frame) -> None:
        at, halves = _rows(frame, inst, where, matrices)
        words = np.stack([raw(frame.full(get(frame))) for get in getters], axis=1)
        tiles = np.ascontiguousarray(words).view(np.uint16).reshape(frame.count, matrices, 8, 8)
        halves[at] = (tiles.swapaxes(2, 3) if transposed else tiles).reshape(at.shape)

    return step


def _shared_address(slots: Slots, inst: Instruction, address: Address) -> Getter:
    """Addresses in shared memory, of an instruction that may give generic ones; others are beyond its end."""
    if inst.space == "shared":
        return address_getter(slots, address, "shared")
    generic = address_getter(slots, address, "generic")
    return lambda frame: np.minimum(generic(frame) - np.uint64(SHARED_WINDOW), np.uint64(0xFFFFFF00)).astype(np.uint32)


def _rows(frame: Frame, inst: Instruction, where: Callable, matrices: int) -> tuple[np.ndarray, np.ndarray]:
    """(indices [row, 8 matrices, 8] of the halves an instruction names, shared memory as halves); recorded."""
    named = np.broadcast_to(8 * matrices > _LANE, (frame.count, 32))
    parts = list(split(frame, inst, "shared", where(frame), named))
    (part,) = parts
    offsets = part.space.offsets(frame, inst, part.addresses, 16)
    if frame.machine.watch is not None:
        look = frame.machine.watch.loads if inst.opcode == "ldmatrix" else frame.machine.watch.stores
        look(frame, inst, part, offsets, 16)
    rows = frame.full(offsets)[:, : 8 * matrices] >> 1
    record(frame, True, 16, parts)
    return rows[..., None] + np.arange(8), part.space.storage(frame.machine).words[2]


def movmatrix(inst: Instruction) -> Operation:
    """`movmatrix.sync.aligned.m8n8.trans.b16 d, a`: one matrix in registers, transposed."""
    if inst.modifiers != ("sync", "aligned", "m8n8", "trans", "b16"):
        raise Unsupported
    return Operation(None, ("b32",), ("b32",))


def transposed_matrix(frame: Frame, a: np.ndarray) -> np.ndarray:
    """Of words [row, lane] that hold two halves each."""
    halves = np.ascontiguousarray(frame.full(a)).view(np.uint16).reshape(frame.count, 8, 8)
    return np.ascontiguousarray(halves.swapaxes(1, 2)).view(np.uint32).reshape(frame.count, 32)
