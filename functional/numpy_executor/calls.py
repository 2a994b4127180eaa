"""`call`, `ret` and `exit`: parameters, frames of recursive functions, functions named by a register.

Parameters and local variables of a function are kept per thread at places known at link time. Where a function can
be called again while it runs, every call takes a new frame of all those places (`Slots.frame_bytes`), and the
registers that the caller still needs are put aside until it goes on (`Machine.enter`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from functional.isa.operation import Unsupported
from functional.launches.memory import function_address
from functional.numpy_executor.builtins import builtin_step
from functional.numpy_executor.frame import Frame, pack
from functional.numpy_executor.operands import Getter, getter, guard_getter
from functional.numpy_executor.slots import Slots
from functional.programs.callgraph import BUILTINS
from functional.programs.program import BasicBlock
from functional.ptx.ir import Instruction, Operand, Symbol

Terminator = Callable[[Frame], None]
Pairs = list[tuple[str, str, int]]  # (from, to, bytes) of `.param` variables


def executing(frame: Frame, guard: Getter | None) -> np.ndarray:
    """Lane mask (uint32 [row]) of active lanes with a true guard; accounts a guarded instruction."""
    if guard is None:
        return frame.bits
    lanes = frame.bits & pack(guard(frame), frame.count)
    frame.machine.guarded[frame.index] += np.bitwise_count(lanes)
    frame.machine.log.lanes(frame.index, lanes)
    return lanes


def leave(slots: Slots, block: BasicBlock, inst: Instruction) -> Terminator:
    """`ret` and `exit`."""
    if set(inst.modifiers) - {"uni"}:
        raise Unsupported
    guard, after, program = guard_getter(slots, inst.guard), block.index + 1, slots.program
    returns = program.function_parameters.get(program.function_of[inst.index], ((), ()))[1]
    whole_thread = inst.opcode == "exit"

    def step(frame: Frame) -> None:
        lanes, stack = executing(frame, guard), frame.machine.stack
        if returns and not whole_thread:
            _return_values(frame, lanes, program.function_of[inst.index])
        stack.leave(frame.index, lanes, whole_thread, after)
        frame.machine.barriers.exited(frame.machine, frame.index)

    return step


def _return_values(frame: Frame, lanes: np.ndarray, function: str) -> None:
    """Copy the callee's return parameters to those named by the call each warp came from (the block before)."""
    stack, slots = frame.machine.stack, frame.machine.code.slots
    program = slots.program
    callers = stack.saved_block[frame.index, stack.base[frame.index] - 1] - 1
    formal = program.function_parameters[function][1]
    for caller in np.unique(callers):
        call_ = program.instructions[program.blocks[caller].stop - 1]
        named = zip(formal, call_.destinations, strict=True)
        pairs = [(p.name, d.name, p.bytes) for p, d in named if isinstance(d, Symbol)]
        _copy(frame, np.where(callers == caller, lanes, np.uint32(0)), pairs, -1)


def _copy(frame: Frame, lanes: np.ndarray, pairs: Pairs, deeper: int) -> None:
    """Copy `.param` variables of the threads in `lanes` into the frame `deeper` calls down."""
    machine = frame.machine
    slots = machine.code.slots
    rows, lane = np.nonzero((lanes[:, None] >> np.arange(32, dtype=np.uint32)) & 1)
    at = (frame.index[rows] * 32 + lane) * machine.local_stride + slots.local_bytes
    at += machine.stack.level[frame.index[rows]].astype(np.int64) * slots.frame_bytes
    for source, target, size in pairs:
        each = np.arange(size)
        read = at[:, None] + slots.call_parameters[source] + each
        write = at[:, None] + (slots.call_parameters[target] + deeper * slots.frame_bytes) + each
        machine.local.data[write] = machine.local.data[read]


def call(slots: Slots, block: BasicBlock, inst: Instruction) -> Terminator:
    """A call of a function by name, by register, or of the device run time."""
    if set(inst.modifiers) - {"uni"}:
        raise Unsupported
    if inst.callee in BUILTINS and inst.index not in slots.program.callee_entry:
        return _builtin(slots, block, inst)
    program, after, guard = slots.program, block.index + 1, guard_getter(slots, inst.guard)
    kept = slots.kept_across(block)
    if inst.callee is None:
        return _indirect(slots, block, inst, kept)
    pairs = _arguments(slots, inst, inst.sources, inst.callee)
    entry = program.block_of(program.callee_entry[inst.index])

    def step(frame: Frame) -> None:
        lanes = executing(frame, guard)
        frame.machine.enter(frame, inst, lanes, kept)
        _copy(frame, lanes, pairs, 1)
        frame.machine.stack.call(frame.index, lanes, entry, after)

    return step


def _arguments(slots: Slots, inst: Instruction, given: tuple[Operand, ...], callee: str) -> Pairs:
    """Which variable goes to which parameter. Raises Unsupported if they do not match, in number or in size."""
    formal, returns = slots.program.function_parameters.get(callee, ((), ()))
    names = [s.name for s in given if isinstance(s, Symbol)]
    if len(names) != len(formal) or len(given) != len(names) or len(inst.destinations) != len(returns):
        raise Unsupported
    if any(name not in slots.call_parameters for name in names):
        raise Unsupported
    into = [d.name for d in inst.destinations if isinstance(d, Symbol)]
    pairs = (*zip(names, formal, strict=True), *zip(into, returns, strict=False))
    if any(slots.call_parameter_bytes[name] != parameter.bytes for name, parameter in pairs):
        raise Unsupported
    return [(name, p.name, p.bytes) for name, p in zip(names, formal, strict=True)]


def _indirect(slots: Slots, block: BasicBlock, inst: Instruction, kept: tuple[int, ...]) -> Terminator:
    """The lanes of a warp may name several functions, which then run one after the other, by address."""
    program, after, guard = slots.program, block.index + 1, guard_getter(slots, inst.guard)
    where = getter(slots, inst.sources[0], "u64")
    known: dict[int, tuple[int, Pairs]] = {}
    for name, start in program.functions.items():
        try:
            known[function_address(name)] = program.block_of(start), _arguments(slots, inst, inst.sources[1:], name)
        except Unsupported:  # another prototype: never meant by this call
            continue

    def step(frame: Frame) -> None:
        lanes = executing(frame, guard)
        named = frame.full(where(frame))
        paths = [(a, lanes & pack(named == np.uint64(a), frame.count)) for a in sorted(known)]
        missed = lanes & ~np.bitwise_or.reduce([m for _, m in paths] or [np.zeros_like(lanes)], axis=0)
        if missed.any():
            row = int(np.flatnonzero(missed)[0])
            lane = int(missed[row] & -missed[row]).bit_length() - 1
            message = f"{int(named[row, lane]):#x} is not the address of a function with these parameters"
            raise frame.machine.fault(inst, message, int(frame.index[row]), lane)
        frame.machine.enter(frame, inst, lanes, kept)
        for address, path in paths:
            _copy(frame, path, known[address][1], 1)
        frame.machine.stack.call_each(frame.index, [(known[a][0], path) for a, path in paths], after)

    return step


def _builtin(slots: Slots, block: BasicBlock, inst: Instruction) -> Terminator:
    run, guard, after = builtin_step(slots, inst), guard_getter(slots, inst.guard), block.index + 1

    def step(frame: Frame) -> None:
        run(frame, executing(frame, guard))
        frame.machine.stack.advance(frame.rows, after)

    return step
