"""Moves between registers and address spaces: `mov` with packing and unpacking, `cvta`, `isspacep`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from functional.launches.memory import GLOBAL_BASE
from functional.numpy_executor.frame import Frame, raw
from functional.numpy_executor.operands import getter, guard_getter, setter
from functional.numpy_executor.operation import (
    DTYPES,
    RAW_BY_BYTES,
    Builder,
    Operation,
    Unsupported,
    flags_of,
    types_of,
)
from functional.numpy_executor.spaces import SPACES, WINDOWS
from functional.ptx.ir import CLUSTER_SHARED, TYPE_BYTES, Immediate, Instruction, Register, Vector

if TYPE_CHECKING:
    from functional.numpy_executor.slots import Slots

Step = Callable[[Frame], None]


def _mov(inst: Instruction) -> Operation:
    flags_of(inst)
    types = types_of(inst)
    if len(types) != 1 or types[0] == "b128":
        raise Unsupported
    return Operation(np.copy, types, types)


def is_vector_move(inst: Instruction) -> bool:
    """`mov.b64 {a, b}, c` or `mov.b64 c, {a, b}`."""
    return inst.opcode == "mov" and any(isinstance(o, Vector) for o in (*inst.destinations, *inst.sources))


def is_wide_move(inst: Instruction) -> bool:
    """`mov.v4.u32 {a, b, c, d}, {e, f, g, h}`: each element by itself."""
    return not {"v2", "v4", "v8"}.isdisjoint(inst.modifiers)


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


def _cvta(inst: Instruction) -> Operation:
    flags, types = flags_of(inst, {"to", "shared", CLUSTER_SHARED, "global", "local", "const", "param"}), types_of(inst)
    space = next(iter(flags - {"to"}), "")
    if types not in (("u64",), ("u32",)) or not space:
        raise Unsupported
    window = DTYPES[types[0]].type(SPACES[space].window)
    function = np.subtract if "to" in flags else np.add
    return Operation(lambda a: function(a, window), types, types)


def _isspacep(inst: Instruction) -> Operation:
    flags = flags_of(inst, {"shared", CLUSTER_SHARED, "global", "local", "const", "param"})
    if len(flags) != 1:
        raise Unsupported
    space, source = next(iter(flags)), inst.sources[0]
    wide = "u32" if isinstance(source, Register) and source.type[1:] == "32" else "u64"
    if space == "global":
        return Operation(lambda a: a >= np.uint64(GLOBAL_BASE), ("pred",), (wide,))
    start, stop = (np.uint64(a) for a in WINDOWS[space])

    def own(frame: Frame, a: np.ndarray) -> np.ndarray:
        machine = frame.machine
        first = machine.clusters.first_address[machine.block_of_row[frame.index]][:, None]
        return (a >= start + first) & (a < stop + first)

    if space == "shared":
        return Operation(own, ("pred",), (wide,), True)
    return Operation(lambda a: (a >= start) & (a < stop), ("pred",), (wide,))


def _createpolicy(inst: Instruction) -> Operation:
    """A cache policy is a hint: any number will do."""
    if inst.type != "b64":
        raise Unsupported
    kinds: tuple[str, ...] = ("b64",) if "range" not in inst.modifiers and len(inst.sources) == 1 else ()
    if len(inst.sources) > 1 or (kinds and "cvt" not in inst.modifiers):
        kinds = tuple("f32" if isinstance(s, Immediate) else "b64" for s in inst.sources)
    return Operation(lambda *_: np.zeros((1, 1), np.uint64), ("b64",), kinds)


TABLE: dict[str, Builder] = {"mov": _mov, "cvta": _cvta, "isspacep": _isspacep, "createpolicy": _createpolicy}
