"""A program as one LLVM function that runs a warp until it ends, waits, or has to stop: `i32 kernel(context, frame)`.

The function is a switch over basic blocks. A block logs itself, computes, writes the registers that live on into the
frame, and jumps: directly where the target is known, through the switch behind the reconvergence stack.
"""

from __future__ import annotations

from dataclasses import dataclass

from functional.isa.instructions import form_of, has_no_effect, is_vector_move, is_wide_move
from functional.isa.memory import access_of
from functional.isa.operation import REFUSALS, Unsupported, refuse_if
from functional.isa.slots import CONDITION_CODE
from functional.llvm_executor import accesses, matrices
from functional.llvm_executor import context_layout as at
from functional.llvm_executor.analysis import analyse
from functional.llvm_executor.control import generated, terminate
from functional.llvm_executor.emit import ATTRIBUTES
from functional.llvm_executor.unit import Unit, register_kind
from functional.programs.program import ENDS, BasicBlock, Program
from functional.ptx.ir import CLUSTER_SHARED, Instruction, Symbol

_LOGGED = {"ld", "ldu", "st", "atom", "red", "ldmatrix", "cp", "wmma"}


@dataclass(frozen=True)
class Generated:
    """IR text of a kernel, and what a launch has to know to call it."""

    text: str
    frame_bytes: int
    zeroed: tuple[int, ...]  # frame offsets (128 B each) that must be 0 when a warp begins
    symbols: tuple[Symbol, ...]  # whose addresses the symbol table holds, in order


def generate(program: Program) -> Generated:
    """Raises Unsupported if the program holds an instruction that only the NumPy executor does."""
    refuse_if(not generated(program))
    try:
        unit = Unit(program, analyse(program))
        e = unit.e
        cases = " ".join(f"i32 {b.index}, label %B{b.index}" for b in program.blocks)
        e.label("entry")
        e.raw("br label %dispatch")
        e.label("dispatch")
        current = e.load("%frame", at.BLOCK, "i32")
        e.raw(f"switch {current}, label %gone [ {cases} ]")
        for block in program.blocks:
            _block(unit, block)
        returns = {"gone": at.FAULT, "stop": at.STOPPED, "finished": at.FINISHED, "barrier": at.AT_BARRIER}
        if unit.points:
            returns["point"] = at.AT_POINT
        for label, code in returns.items():
            e.label(label)
            e.raw(f"ret i32 {code}")
        initial = [*unit.analysis.live[0], *([CONDITION_CODE] if CONDITION_CODE in unit.places else [])]
        live = sorted((unit.place(r), register_kind(r)) for r in initial)
        zeroed = tuple(o + 128 * i for o, kind in live for i in range(2 if kind == "i64" else 1))
        head = "define i32 @kernel(ptr noalias %ctx, ptr noalias %frame) #0 {"
        text = "\n".join([head, *e.lines, "}", *e.functions.values(), *e.declarations.values(), ATTRIBUTES, ""])
        return Generated(text, -(-unit.frame_bytes // 64) * 64 + 256, zeroed, tuple(unit.symbols))
    except REFUSALS:  # the NumPy executor says which instruction it is
        raise Unsupported from None


def _block(unit: Unit, block: BasicBlock) -> None:
    e, instructions = unit.e, unit.program.instructions[block.start : block.stop]
    unit.values.clear()
    unit.written.clear()
    unit.guard, unit.guarded = None, e.literal(0, "i64")
    e.label(f"B{block.index}")
    logged = [i for i in instructions if i.opcode in _LOGGED and i.is_memory]
    _prologue(unit, block, logged)
    body = instructions[:-1] if instructions[-1].opcode in ENDS else instructions
    for unit.position, inst in enumerate(body):
        unit.begin_guard(inst.guard)
        instruction(unit, inst)
    unit.guard = None
    terminate(unit, block, instructions, bool(logged))


def _bound(inst: Instruction) -> int:
    """Most line records of a memory instruction."""
    if inst.opcode in ("wmma", "cp"):
        return 64  # 32 lines of at most 128 bytes; what it reads, and the passes in which it writes
    if inst.opcode in ("atom", "red") or inst.space in ("global", "const", "param"):
        return 32
    size, count = access_of(inst)
    return 32 * max(1, size * count // 4)


def _prologue(unit: Unit, block: BasicBlock, logged: list[Instruction]) -> None:
    """Stop if a stream might overflow or the warp's turn is over; log the block and its lanes."""
    e = unit.e
    event, last = unit.context("event"), unit.context("event_stop")
    full = e.compare("uge", event, last)
    over = e.compare("uge", unit.context("used"), unit.context("turn_stop"))
    stop = e.op("or", full, over)
    records = sum(_bound(i) for i in logged if i.space != "shared" or i.opcode == "cp")
    conflicts = sum(i.space in ("shared", "generic") or i.opcode == "cp" for i in logged)
    for name, size in (("records", 4 * records), ("conflicts", conflicts)):
        if size:
            end = e.op("add", unit.context(name), size)
            stop = e.op("or", stop, e.compare("ugt", end, unit.context(name + "_stop")))
    e.store("%frame", at.BLOCK, e.literal(block.index, "i32"))
    e.raw(f"br {stop}, label %stop, label %B{block.index}.go")
    e.label(f"B{block.index}.go")
    if block.index in unit.points:  # stop where the effect depends on the order of thread blocks, unless it may pass
        left = unit.context("points_left")
        e.raw(f"br {e.compare('eq', left, 0)}, label %point, label %B{block.index}.pass")
        e.label(f"B{block.index}.pass")
        unit.set_context("points_left", e.op("sub", left, 1))
    e.mask = e.load("%frame", at.MASK, "i32")
    blocks, masks = unit.context("blocks", "ptr").name, unit.context("masks", "ptr").name
    number = e.literal(block.index, "i16")
    e.store(e.scalar(f"getelementptr i16, ptr {blocks}, {event}", "ptr"), 0, number, align=2)
    e.store(e.scalar(f"getelementptr i32, ptr {masks}, {event}", "ptr"), 0, e.mask)
    unit.set_context("event", e.op("add", event, 1))


_TABLE = {
    "mma": matrices.mma, "wmma": matrices.wmma, "ldmatrix": matrices.ldmatrix, "cp": matrices.async_copy,
    "ld": accesses.load, "ldu": accesses.load, "st": accesses.store, "atom": accesses.atomic, "red": accesses.atomic,
}  # fmt: skip


def instruction(unit: Unit, inst: Instruction) -> None:
    """One instruction other than those that end a block."""
    if has_no_effect(inst):
        return
    refuse_if(CLUSTER_SHARED in inst.modifiers or (is_vector_move(inst) and is_wide_move(inst)))
    if inst.opcode in _TABLE:
        return _TABLE[inst.opcode](unit, inst)
    operation, sources, destinations = form_of(inst)
    pairs = zip(sources, operation.sources, strict=True)
    values = [unit.get(s, t, i in inst.negated_sources) for i, (s, t) in enumerate(pairs)]
    result = operation.emit(unit.e, *values)
    results = result if isinstance(result, tuple) else (result,)
    for target, value, type_ in zip(destinations, results, operation.destinations, strict=True):
        unit.set(target, unit.e.widen(value) if operation.across else value, type_)
    return None
