"""`mov` of vectors: elements packed into one register, or taken from it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from functional.isa.instructions import is_wide_move
from functional.isa.operation import RAW_BY_BYTES, Unsupported
from functional.numpy_executor.frame import Frame, raw
from functional.numpy_executor.operands import getter, guard_getter, setter
from functional.numpy_executor.slots import Slots
from functional.ptx.ir import TYPE_BYTES, Instruction, Vector

Step = Callable[[Frame], None]


def _wide_move_step(slots: Slots, inst: Instruction) -> Step:
    source, destination = inst.sources[0], inst.destinations[0]
    if not isinstance(source, Vector) or not isinstance(destination, Vector) or None in source.elements:
        raise Unsupported
    guard = guard_getter(slots, inst.guard)
    getters = [getter(slots, e, inst.type) for e in source.elements if e is not None]
    setters = [setter(slots, e, inst.type, guard is not None) for e in destination.elements]
    if len(getters) != len(setters):
        raise Unsupported

    def step(frame: Frame) -> None:
        if guard is not None:
            frame.set_guard(guard)
        values = [np.copy(get(frame)) for get in getters]
        for write, value in zip(setters, values, strict=True):
            write(frame, value)

    return step


def vector_move_step(slots: Slots, inst: Instruction) -> Step:
    """Pack the elements of a vector into one register, the first in the lowest bits, or unpack."""
    source, destination = inst.sources[0], inst.destinations[0]
    if inst.type == "b128":
        raise Unsupported
    if is_wide_move(inst):
        return _wide_move_step(slots, inst)
    size, guard = TYPE_BYTES[inst.type], guard_getter(slots, inst.guard)
    inputs: tuple = source.elements if isinstance(source, Vector) else (source,)
    outputs: tuple = destination.elements if isinstance(destination, Vector) else (destination,)
    if size % len(inputs) or size % len(outputs) or None in inputs:
        raise Unsupported
    in_bits, out_bits = 8 * size // len(inputs), 8 * size // len(outputs)
    getters = [getter(slots, e, f"b{in_bits}") for e in inputs]
    setters = [setter(slots, e, f"b{out_bits}", guard is not None) for e in outputs]
    whole, part = RAW_BY_BYTES[size].type, RAW_BY_BYTES[out_bits // 8]

    def step(frame: Frame) -> None:
        if guard is not None:
            frame.set_guard(guard)
        packed: np.ndarray = sum(  # type: ignore[assignment]
            raw(get(frame)).astype(whole) << whole(in_bits * i) for i, get in enumerate(getters)
        )
        for i, write in enumerate(setters):
            write(frame, (packed >> whole(out_bits * i)).astype(part))

    return step
