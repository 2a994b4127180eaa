"""Operands as getters `Frame -> array`, results as setters, with the widening PTX allows from type to register."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from functional.isa.operation import DTYPES, RAW_BY_BYTES, Unsupported, raw
from functional.isa.slots import CLOCKS, Slots, immediate, register_dtype, special_type
from functional.numpy_executor.frame import Frame
from functional.numpy_executor.machine import clock
from functional.ptx.ir import Guard, Immediate, Operand, Register, Special, Symbol

Getter = Callable[[Frame], np.ndarray]
Setter = Callable[[Frame, np.ndarray], None]


def getter(slots: Slots, operand: Operand, type_: str, negated: bool = False) -> Getter:
    """Reads an operand as an array of `type_`."""
    if negated:
        plain = getter(slots, operand, type_)
        return lambda frame: ~plain(frame)
    match operand:
        case Register():
            return _slot_getter(slots.register(operand), register_dtype(operand), DTYPES[type_])
        case Immediate(value=value):
            constant = immediate(value, type_)
            return lambda _: constant
        case Special(name=name) if name in CLOCKS:
            return _clock_getter(name, slots.position, DTYPES[type_])
        case Special(name=name):
            shown = special_type(name)
            if shown is None:
                raise Unsupported
            return _slot_getter(slots.special(name, DTYPES[shown]), DTYPES[shown], DTYPES[type_], widen=True)
        case Symbol():
            if slots.frame_bytes and (operand.name in slots.local or operand.name in slots.call_parameters):
                return _frame_getter(slots, operand, DTYPES[type_])
            return _slot_getter(slots.symbol(operand), np.dtype(np.uint64), DTYPES[type_])
    raise Unsupported


def _frame_getter(slots: Slots, symbol: Symbol, dtype: np.dtype) -> Getter:
    """The address of a variable of a recursive function: in the frame of the running call."""
    slot, size = slots.symbol(symbol), np.uint64(slots.frame_bytes)

    def get(frame: Frame) -> np.ndarray:
        level = frame.machine.stack.level[frame.index].astype(np.uint64)[:, None]
        return (frame.values[slot] + level * size).astype(dtype)

    return get


def _clock_getter(name: str, position: int, dtype: np.dtype) -> Getter:
    return lambda frame: clock(frame.machine.issued[frame.index] + position, name).astype(dtype)


def _slot_getter(slot: int, kept: np.dtype, wanted: np.dtype, widen: bool = False) -> Getter:
    if kept.itemsize == wanted.itemsize and (kept.kind == "b") == (wanted.kind == "b"):

        def same(frame: Frame) -> np.ndarray:
            value = frame.values[slot]
            return value if value.dtype is wanted else value.view(wanted)

        return same
    if kept.kind == "b" or wanted.kind == "b" or (kept.itemsize < wanted.itemsize and not widen):
        raise Unsupported
    narrow = RAW_BY_BYTES[wanted.itemsize]
    return lambda frame: raw(frame.values[slot]).astype(narrow).view(wanted)


def setter(slots: Slots, operand: Operand | None, type_: str, guarded: bool) -> Setter:
    """Writes an array of `type_` to a register, extended if the register is wider; only where the guard is true."""
    if operand is None:
        return lambda frame, value: None
    if not isinstance(operand, Register):
        raise Unsupported
    slot = slots.register(operand)
    fit = _fit(register_dtype(operand), DTYPES[type_])
    if not guarded and fit is None:

        def plain(frame: Frame, value: np.ndarray) -> None:
            frame.values[slot] = value

        return plain

    def careful(frame: Frame, value: np.ndarray) -> None:
        if fit is not None:
            value = fit(value)
        if guarded:
            value = np.where(np.asarray(frame.guard), raw(value), raw(frame.values[slot]))
        frame.values[slot] = value

    return careful


def _fit(kept: np.dtype, given: np.dtype) -> Callable[[np.ndarray], np.ndarray] | None:
    """Sign or zero extension to the width of a register; None if there is nothing to do."""
    if (kept.kind == "b") != (given.kind == "b"):
        raise Unsupported
    if kept.itemsize == given.itemsize:
        return None
    if kept.itemsize < given.itemsize:
        raise Unsupported
    if given.kind == "i":
        return lambda value: value.view(given).astype(f"i{kept.itemsize}")  # a load yields raw bits
    return lambda value: raw(value).astype(kept)


def guard_getter(slots: Slots, guard: object) -> Getter | None:
    """The predicate under which an instruction executes, negation included; None if it has no guard."""
    if not isinstance(guard, Guard):
        return None
    return getter(slots, guard.register, "pred", guard.negated)
