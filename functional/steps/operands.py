"""One basic block on the warps that are about to run it together, its operands as getters `Frame -> array`, its results
as setters, with the widening PTX allows from type to register.

Inside a block, values live in `Frame.values`, one array a register slot that broadcasts to [row, 32]: (1, 1) where all
threads agree, (row, 1) where those of a warp do. Lanes that are not active compute garbage nobody sees: only at the end
of the block are the registers that live on blended into the machine state under the lane mask."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from functional.errors import ExecutionError
from functional.isa.operation import DTYPES, RAW_BY_BYTES, Unsupported, raw, refuse_if
from functional.isa.slots import Slots, immediate, register_dtype, special_register
from functional.ptx.ir import Immediate, Instruction, Operand, Register, Special, Symbol
from functional.steps.machine import Machine
from functional.steps.stack import FULL, pack, unpack

Step = Callable[["Frame"], None]  # an instruction
Terminator = Callable[["Frame"], None]  # what ends a basic block, and says where its warps go


class Frame:
    """Warps `rows` of a machine (None: all of them), `bits` their active lanes, in one basic block."""

    __slots__ = ("bits", "count", "executing", "guard", "index", "machine", "mask", "rows", "values")

    def __init__(self, machine: Machine, rows: np.ndarray | None) -> None:
        self.machine = machine
        self.rows = rows
        self.index = machine.all_rows if rows is None else rows
        self.count = len(self.index)
        self.bits = machine.stack.mask.copy() if rows is None else machine.stack.mask[rows]
        self.mask = None if (self.bits == FULL).all() else unpack(self.bits)  # bool [row, 32]; None: all lanes
        self.values: Any = {}  # by slot
        self.guard: np.ndarray | None = None  # of the running instruction
        self.executing = self.bits  # lanes in which it runs, uint32 [row]

    def store(self, slots: Iterable[int]) -> None:
        """Write registers to the machine state, active lanes only."""
        for slot in slots:
            self.machine.write(slot, self.values[slot], self.rows, self.mask)

    def accumulate(self, a: np.ndarray, b: np.ndarray, of: np.ndarray, registers: Any, added: np.ndarray) -> bool:
        """D = A B + C of matrices [row, 16, k], [matrix, k, n], that one whose number is in `of` [row], and of slots of
        float32 `registers`, (those of C, those of D); C where it is `added` [row]. Was there a fast way?"""
        return False

    def fused_product(self, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        """A B + C of float64 [row, m, k], [row, k, n], [row, m, n]: fused multiply-adds, beginning with C."""
        raise NotImplementedError

    def active(self, lanes: np.ndarray | None = None) -> np.ndarray | None:
        """The active ones among some lanes (None: those with a true guard), bool [row, 32]; None if all are."""
        lanes = self.guard if lanes is None else lanes
        if lanes is None:
            return self.mask
        return np.broadcast_to(lanes, (self.count, 32)) if self.mask is None else lanes & self.mask

    def lanes(self) -> np.ndarray:
        """Lanes that execute the running instruction, bool [row, 32]."""
        active = self.active()
        return np.ones((self.count, 32), bool) if active is None else active

    def full(self, value: np.ndarray) -> np.ndarray:
        """A value spread over all rows and lanes."""
        return value if value.shape == (self.count, 32) else np.broadcast_to(value, (self.count, 32))

    def run_guarded(self, guard: Getter, step: Step) -> None:
        """Run a guarded instruction: it is a thread instruction for each active lane with a true guard."""
        self.guard = guard(self)
        self.executing = self.bits & pack(self.guard, self.count)
        self.machine.guarded[self.index] += np.bitwise_count(self.executing)
        self.machine.watch.lanes(self.index, self.executing)
        step(self)
        self.guard, self.executing = None, self.bits

    def fault(self, inst: Instruction, message: str, row: int = 0, lane: int = 0) -> ExecutionError:
        """The error of a thread of one of these warps; the caller raises it."""
        return self.machine.fault(inst, message, int(self.index[row]), lane)

    def check(self, inst: Instruction, wrong: np.ndarray, say: Callable[[tuple[int, int]], str]) -> None:
        """Raise ExecutionError for the first of the threads [row, lane] that are wrong, with what there is to say."""
        if wrong.any():
            row, lane = np.argwhere(wrong)[0].tolist()
            raise self.fault(inst, say((row, lane)), row, lane)


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
        case Special(name=name):
            register = special_register(name)
            return _slot_getter(slots.register(register), DTYPES[register.type], DTYPES[type_], widen=True)
        case Symbol():
            return _address_getter(slots, operand, DTYPES[type_])
    raise Unsupported


def _address_getter(slots: Slots, symbol: Symbol, dtype: np.dtype) -> Getter:
    """Of a variable of a recursive function: in the frame of the running call."""
    moves = slots.frame_bytes and (symbol.name in slots.local or symbol.name in slots.call_parameters)
    size = np.uint64(slots.frame_bytes)

    def get(frame: Frame) -> np.ndarray:
        machine = frame.machine
        address = machine.address_of(symbol, frame.rows)
        if moves:
            address = address + machine.stack.level[frame.index].astype(np.uint64)[:, None] * size
        return address.astype(dtype, copy=False)

    return get


def _slot_getter(slot: int, kept: np.dtype, wanted: np.dtype, widen: bool = False) -> Getter:
    if kept.itemsize == wanted.itemsize and (kept.kind == "b") == (wanted.kind == "b"):

        def same(frame: Frame) -> np.ndarray:
            value = frame.values[slot]
            return value if value.dtype is wanted else value.view(wanted)

        return same
    refuse_if(kept.kind == "b" or wanted.kind == "b" or (kept.itemsize < wanted.itemsize and not widen))
    narrow = RAW_BY_BYTES[wanted.itemsize]
    return lambda frame: raw(frame.values[slot]).astype(narrow).view(wanted)


def setter(slots: Slots, operand: Operand | None, type_: str) -> Setter:
    """Writes an array of `type_` to a register, extended if the register is wider; only where the guard is true."""
    if operand is None:
        return lambda frame, value: None
    if not isinstance(operand, Register):
        raise Unsupported
    slot = slots.register(operand)
    fit = _fit(register_dtype(operand), DTYPES[type_])

    def put(frame: Frame, value: np.ndarray) -> None:
        guard, values = frame.guard, frame.values
        values[slot] = value if guard is None else np.where(guard, raw(value), raw(values[slot]))

    return put if fit is None else lambda frame, value: put(frame, fit(value))


def _fit(kept: np.dtype, given: np.dtype) -> Callable[[np.ndarray], np.ndarray] | None:
    """Sign or zero extension to the width of a register; None if there is nothing to do."""
    refuse_if((kept.kind == "b") != (given.kind == "b"))
    if kept.itemsize == given.itemsize:
        return None
    refuse_if(kept.itemsize < given.itemsize)
    if given.kind == "i":
        return lambda value: value.view(given).astype(f"i{kept.itemsize}")  # a load yields raw bits
    return lambda value: raw(value).astype(kept)


def under_guard(slots: Slots, inst: Instruction, step: Step) -> Step:
    """The step of an instruction, or its terminator, in lanes with a true guard if it has one."""
    if inst.guard is None:
        return step
    guard = getter(slots, inst.guard.register, "pred", inst.guard.negated)
    return lambda frame: frame.run_guarded(guard, step)
