"""Decoding: every instruction of a program once into a closure, every basic block into a `Block`.

Whatever is not supported is refused here, by name and line, before anything runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from functional.errors import PtxError
from functional.isa.instructions import form_of, has_no_effect
from functional.isa.operation import REFUSALS
from functional.isa.slots import CONDITION_CODE, Slots
from functional.numpy_executor.arrays import function_of
from functional.numpy_executor.async_copies import async_copy_step, async_store_step, bulk_copy_step, is_bulk
from functional.numpy_executor.atomics import atomic_step
from functional.numpy_executor.control import fall_through, own_shared_step, register_count_step, terminator
from functional.numpy_executor.machine import Block, Code
from functional.numpy_executor.mbarriers import is_wait, mbarrier_step, wait_end
from functional.numpy_executor.memory_ops import load_step, store_step
from functional.numpy_executor.mma import mma_step
from functional.numpy_executor.operands import Frame, Getter, Setter, Step, Terminator, getter, setter, under_guard
from functional.numpy_executor.tcgen05_product import STEPS as TENSOR_STEPS
from functional.numpy_executor.tensor_copies import is_tensor_copy, tensor_copy_step, tensor_map_step
from functional.numpy_executor.textures import surface_step, texture_step
from functional.numpy_executor.wgmma import join_warpgroup, product_step
from functional.numpy_executor.wmma import ldmatrix_step, movmatrix_step, stmatrix_step, wmma_step
from functional.programs.program import ENDS, BasicBlock, Program
from functional.programs.registers import live_in
from functional.ptx.ir import Instruction, Register

_BITS_OF = {f"{code}{bits}": f"b{bits}" for code in "us" for bits in (8, 16, 32, 64)}  # integers come as bits
_STEPS: dict[str, Callable[[Slots, Instruction], Step]] = {
    "ld": load_step, "ldu": load_step, "st": store_step, "atom": atomic_step, "red": atomic_step,
    "mma": mma_step, "wmma": wmma_step, "ldmatrix": ldmatrix_step, "stmatrix": stmatrix_step,
    "tensormap": tensor_map_step, "wgmma": product_step, "tex": texture_step,
    "suld": surface_step, "sust": surface_step, "setmaxnreg": register_count_step,
    "movmatrix": movmatrix_step, "tcgen05": lambda slots, inst: TENSOR_STEPS[inst.modifiers[0]](slots, inst),
}  # fmt: skip
_BARRIER_STEPS = frozenset(
    {"init", "inval", "arrive", "arrive_drop", "test_wait", "try_wait", "expect_tx", "complete_tx"}
)


class Decoded(Code):
    """A program decoded. Raises PtxError for an instruction that is not supported."""

    frame_type = Frame

    def __init__(self, program: Program) -> None:
        self.program = program
        self.slots = Slots(program)
        self.blocks = self._blocks()
        self.slot_dtypes = self.slots.dtypes
        self.symbol_slots = {slot: symbol for symbol, slot in self.slots.symbols.items()}

    def _blocks(self) -> tuple[Block, ...]:
        live = live_in(self.program)
        return tuple(self._block(block, live) for block in self.program.blocks)

    def _block(self, block: BasicBlock, live: tuple[frozenset[Register], ...]) -> Block:
        instructions = self.program.instructions[block.start : block.stop]
        last, slots = instructions[-1], self.slots
        needed, defined = set[int](), set[int]()  # read, or written under a guard, before they are surely written

        def decoded(inst: Instruction, build: Callable) -> Any:
            made = self._decode(inst, lambda: build(slots, inst))
            needed.update((slots.read | (slots.written if inst.guard else set())) - defined)
            defined.update(slots.written)
            return made

        body = instructions[:-1] if last.opcode in ENDS or is_wait(last) else instructions
        steps = [step for step in (decoded(inst, step_of) for inst in body) if step]
        end = decoded(last, lambda _, inst: self._end(block, inst))
        outside = {CONDITION_CODE}.union(*(live[s] for s in block.successors))
        kept = defined & {slots.register(r) for r in outside}
        unguarded = sum(inst.guard is None for inst in instructions)
        reads, writes = tuple(sorted(needed)), tuple(sorted(kept))
        return Block(block.index, reads, writes, tuple(steps), end, len(instructions), unguarded)

    def _end(self, block: BasicBlock, last: Instruction) -> Terminator:
        if last.is_warpgroup_product:
            return join_warpgroup(block, last)
        if last.opcode not in ENDS and not is_wait(last):
            return fall_through(block)
        build = wait_end if is_wait(last) else terminator
        return under_guard(self.slots, last, build(self.slots, block, last))

    def _decode(self, inst: Instruction, build: Callable):  # type: ignore[no-untyped-def]
        self.slots.begin(inst.index - self.program.blocks[self.program.block_of(inst.index)].stop)
        try:
            return build()
        except REFUSALS:
            message = f"instruction '{inst.name}' is not supported"
            raise PtxError(self.program.path, inst.line, message) from None


def step_of(slots: Slots, inst: Instruction) -> Step | None:
    """The step of an instruction that ends no basic block; None where nothing is to be done."""
    if has_no_effect(inst):
        return None if inst.guard is None else under_guard(slots, inst, lambda frame: None)
    return under_guard(slots, inst, _plain_step(slots, inst))


def _plain_step(slots: Slots, inst: Instruction) -> Step:
    if inst.opcode in ("st", "red") and "async" in inst.modifiers:
        return async_store_step(slots, inst)
    if inst.opcode == "isspacep" and "shared" in inst.modifiers:
        return own_shared_step(slots, inst)
    if inst.opcode in _STEPS:
        return _STEPS[inst.opcode](slots, inst)
    if inst.opcode == "cp" and is_tensor_copy(inst):
        return tensor_copy_step(slots, inst)
    if inst.opcode == "cp" and is_bulk(inst):
        return bulk_copy_step(slots, inst)
    if inst.opcode == "cp" and "mbarrier" not in inst.modifiers:
        return async_copy_step(slots, inst)
    if inst.opcode in ("cp", "mbarrier") and _BARRIER_STEPS & set(inst.modifiers):
        return mbarrier_step(slots, inst)
    return _operation_step(slots, inst)


def _operation_step(slots: Slots, inst: Instruction) -> Step:
    operation, sources, destinations = form_of(inst)
    pairs = zip(sources, operation.sources, strict=True)
    getters = [getter(slots, s, _BITS_OF.get(t, t), i in inst.negated_sources) for i, (s, t) in enumerate(pairs)]
    setters = [setter(slots, d, t) for d, t in zip(destinations, operation.destinations, strict=True)]
    return (_bind_across if operation.across else _bind)(function_of(operation), getters, setters)


def _bind(function: Callable, getters: list[Getter], setters: list[Setter]) -> Step:
    """The closure of an operation, with the commonest shapes written out: they run a few million times a second."""
    if len(setters) == 1:
        (write,) = setters
        if len(getters) == 1:
            (a,) = getters
            return lambda frame: write(frame, function(a(frame)))
        if len(getters) == 2:
            a, b = getters
            return lambda frame: write(frame, function(a(frame), b(frame)))
        if len(getters) == 3:
            a, b, c = getters
            return lambda frame: write(frame, function(a(frame), b(frame), c(frame)))
    return _bind_across(lambda _, *values: function(*values), getters, setters)


def _bind_across(function: Callable, getters: list[Getter], setters: list[Setter]) -> Step:
    """The closure of an operation that needs the frame, or yields a tuple."""

    def step(frame: Frame) -> None:
        result = function(frame, *[get(frame) for get in getters])
        values = result if isinstance(result, tuple) else (result,)
        for write, value in zip(setters, values, strict=True):
            write(frame, value)

    return step
