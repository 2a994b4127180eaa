"""The end of a basic block: counts, registers written back, and where the warp goes next."""

from functools import reduce

from functional.isa.emitter import LANES, Value
from functional.isa.operation import Unsupported, refuse_if
from functional.isa.slots import CONDITION_CODE, Pairs, specials_of
from functional.llvm_executor import context_layout as at
from functional.llvm_executor.emit import constants
from functional.llvm_executor.pieces import Piece
from functional.llvm_executor.unit import Unit
from functional.programs.link import BUILTINS
from functional.programs.program import BasicBlock
from functional.ptx.ir import Instruction, Register
from functional.traces.line_record import of_byte
from functional.traces.trace import LINE_BYTES, PARAM_WINDOW_LINE


def cut(
    unit: Unit, block: BasicBlock, piece: Piece, instructions: tuple[Instruction, ...], needed: frozenset[Register]
) -> None:
    """End a piece of `block` in front of a step, perhaps that of its end. `needed`: registers named from there on."""
    e = unit.e
    if piece.is_cut:
        unit.begin_guard(instructions[-1].guard)
        unit.guard, unit.position = None, len(instructions) - 1
        for register in specials_of(instructions[-1]):
            unit.values[register], unit.written[register] = unit.special(register.name), None
    _finish(unit, block, instructions, f"B{piece.entry}.cut", needed)
    e.store("%frame", at.BLOCK, e.literal(block.index, "i32"))
    e.raw("br label %step")


def give_way(
    unit: Unit, block: BasicBlock, piece: Piece, instructions: tuple[Instruction, ...], needed: frozenset[Register]
) -> None:
    """End a piece of `block`, and the warp's turn with it."""
    _finish(unit, block, instructions, f"B{piece.entry}.way", needed)
    unit.e.store("%frame", at.BLOCK, unit.e.literal(piece.following, "i32"))
    unit.set_context("turn_stop", unit.e.literal(0, "i64"))
    unit.e.raw("br label %stop")


def host(unit: Unit, offset: int) -> Value:
    """Host addresses of byte `offset` of every lane's call memory."""
    e = unit.e
    own = e.op("mul", unit.context("local_stride"), constants(range(LANES), "i64"))
    base = e.op("add", unit.context("local"), unit.slots.local_bytes + offset)
    return e.op("add", e.widen(base), own)


def parameter_record(unit: Unit, offset: int) -> Value:
    """The record of an access to one byte of the parameter block, or of call memory."""
    return unit.e.literal(of_byte(PARAM_WINDOW_LINE * LINE_BYTES + offset), "i32")


def record(unit: Unit, offset: int) -> None:
    """Log an access to call memory: one parameter line, or nothing if no lane is active."""
    unit.log(unit.e.select(unit.e.compare("eq", unit.lanes(), 0), 0, parameter_record(unit, offset)))


def _copy(unit: Unit, pairs: Pairs, lanes: Value) -> None:
    place = unit.slots.call_parameters
    for source, target, size in pairs:
        for first in range(0, size, 8):
            step = min(size - first, 8)
            piece = 8 if step == 8 else 4 if step >= 4 else step
            for more in range(first, first + step, piece):
                value = unit.e.call(f"gather_{8 * piece}", host(unit, place[source] + more), lanes)
                unit.e.call(f"scatter_{8 * piece}", host(unit, place[target] + more), value, lanes)


def call(unit: Unit, block: BasicBlock, inst: Instruction, guard: Value | None, lanes: Value, _: list[Value]) -> None:
    """The end of a block that calls a function."""
    e, program, name = unit.e, unit.program, f"B{block.index}"
    refuse_if(program.recursive or (inst.index not in program.callee_entry and inst.callee not in BUILTINS))
    if inst.index not in program.callee_entry:
        e.raw(f"br {e.compare('eq', lanes, 0)}, label %{name}.on, label %gone")
        e.label(f"{name}.on")
        unit.go_on(block.index + 1)
        return
    _copy(unit, unit.slots.arguments(inst, inst.callee or ""), lanes)
    _dispatch(unit, e.call("enter", lanes, program.block_of(program.callee_entry[inst.index]), block.index + 1))


def return_values(unit: Unit, block: BasicBlock, inst: Instruction, lanes: Value) -> None:
    """Copy what a function returns to where the call it came from wants it."""
    program, e = unit.program, unit.e
    function = program.function_of[inst.index]
    if not program.function_parameters.get(function, ((), ()))[1]:
        return
    name = f"B{block.index}.ret"
    ends = {block.index: program.instructions[block.stop - 1] for block in program.code_blocks}
    refuse_if(any(last.opcode == "call" and last.callee is None for last in ends.values()))
    sites = [b for b in program.code_blocks if ends[b.index].callee == function]
    base = e.resize(e.load("%frame", at.BASE, "i32"), "i64", False)
    place = e.op("sub", unit.context("frame_bytes"), e.op("mul", base, at.ENTRY_BYTES))
    after = e.load(e.scalar(f"getelementptr i8, ptr %frame, {place}", "ptr"), 0, "i32")
    cases = " ".join(f"i32 {b.index + 1}, label %{name}{b.index}" for b in sites)
    e.raw(f"switch {after}, label %gone [ {cases} ]")
    for site in sites:
        e.label(f"{name}{site.index}")
        _copy(unit, unit.slots.results(program.instructions[site.stop - 1], function), lanes)
        e.raw(f"br label %{name}")
    e.label(name)


def jump_table(
    unit: Unit, block: BasicBlock, inst: Instruction, guard: Value | None, lanes: Value, operands: list[Value]
) -> None:
    """`brx.idx`: the lanes go where their index says, the first target first."""
    e, program, name = unit.e, unit.program, f"B{block.index}"
    targets = [program.block_of(t) for t in inst.targets]
    index = e.widen(operands[0])
    outside = e.bits_of(e.compare("uge", index, len(targets)))
    wrong = e.compare("ne", e.op("and", outside, lanes), 0)
    e.raw(f"br {wrong}, label %gone, label %{name}.fork")
    e.label(f"{name}.fork")
    paths = []
    for target in dict.fromkeys(targets):
        masks = [e.bits_of(e.compare("eq", index, i)) for i, t in enumerate(targets) if t == target]
        paths.append((target, e.op("and", reduce(lambda a, b: e.op("or", a, b), masks), lanes)))
    if guard is not None:
        paths.append((block.index + 1, e.op("and", e.mask, e.invert(lanes))))
    for i, (target, mask) in enumerate(paths):
        e.store("%frame", at.SCRATCH + 8 * i, e.literal(target, "i32"))
        e.store("%frame", at.SCRATCH + 8 * i + 4, mask)
    meeting = -1 if block.reconvergence is None else block.reconvergence
    _dispatch(unit, e.call("fork", e.field("%frame", at.SCRATCH), len(paths), meeting))


def _dispatch(unit: Unit, following: Value) -> None:
    """Go where a routine of the stack says; -1: nowhere."""
    unit.e.raw(f"br {unit.e.compare('eq', following, -1)}, label %gone, label %dispatch")


def terminate(unit: Unit, block: BasicBlock, instructions: tuple[Instruction, ...]) -> None:
    """End `block`."""
    inst = instructions[-1]
    build = _BUILDERS.get(inst.opcode, lambda *_: unit.go_on(block.index + 1))
    unit.begin_guard(inst.guard) if inst.opcode in _BUILDERS else None
    guard, lanes = unit.guard, unit.lanes()
    operands = _barrier_operands(unit, inst, lanes) if inst.opcode in ("bar", "barrier") else []
    if inst.opcode == "brx":
        operands = [unit.get(inst.sources[0], "u32")]
    unit.guard = None
    _finish(unit, block, instructions, f"B{block.index}.end")
    build(unit, block, inst, guard, lanes, operands)


def _finish(
    unit: Unit, block: BasicBlock, instructions: tuple[Instruction, ...], name: str,
    needed: frozenset[Register] = frozenset(),
) -> None:  # fmt: skip
    _spill(unit, block, needed)
    _count(unit, instructions)
    _check(unit, name)


def _check(unit: Unit, name: str) -> None:
    if unit.may_fault:
        wrong = unit.e.compare("ne", unit.context("fault"), 0)
        unit.e.raw(f"br {wrong}, label %gone, label %{name}")
        unit.e.label(name)


def _spill(unit: Unit, block: BasicBlock, needed: frozenset[Register]) -> None:
    """Write registers back that are read behind `block`, or are `needed`."""
    live, blended = unit.analysis.live, unit.analysis.blended[block.index]
    outside = needed.union(*(live[s] for s in block.successors))
    for register in unit.written:
        if register in outside or register is CONDITION_CODE:  # liveness does not follow the carry flag
            unit.spill(register, register in blended or register is CONDITION_CODE)


def _count(unit: Unit, instructions: tuple[Instruction, ...]) -> None:
    """Warp and thread instructions, and what the budget is charged."""
    e, total = unit.e, len(instructions)
    lanes = e.resize(e.intrinsic("ctpop", e.mask), "i64", False)
    thread = e.op("add", e.op("mul", lanes, sum(i.guard is None for i in instructions)), unit.guarded)
    for offset, amount in ((at.WARP_INSTRUCTIONS, e.literal(total, "i64")), (at.THREAD_INSTRUCTIONS, thread)):
        e.store("%frame", offset, e.op("add", e.load("%frame", offset, "i64", align=8), amount), align=8)
    unit.set_context("used", e.op("add", unit.context("used"), e.op("mul", lanes, total)))


def _bra(unit: Unit, block: BasicBlock, inst: Instruction, guard: Value | None, lanes: Value, _: list) -> None:
    if inst.target is None or set(inst.modifiers) - {"uni"}:
        raise Unsupported
    e, target, after = unit.e, unit.program.block_of(inst.target), block.index + 1
    if guard is None or target == after:
        unit.go_on(target)
        return
    name = f"B{block.index}"
    e.raw(f"br {e.compare('eq', lanes, 0)}, label %{name}.after, label %{name}.some")
    e.label(f"{name}.after")
    unit.go_on(after)
    e.label(f"{name}.some")
    every = e.compare("eq", lanes, e.mask)
    if guard.wide:
        e.raw(f"br {every}, label %{name}.taken, label %{name}.split")
        e.label(f"{name}.split")
        meeting = -1 if block.reconvergence is None else block.reconvergence
        _dispatch(unit, e.call("diverge", target, lanes, after, meeting))
    else:
        e.raw(f"br label %{name}.taken")
    e.label(f"{name}.taken")
    unit.go_on(target)


def _leave(unit: Unit, block: BasicBlock, inst: Instruction, guard: Value | None, lanes: Value, _: list) -> None:
    e = unit.e
    refuse_if(unit.program.recursive)
    lowest = e.literal(0, "i32")
    if inst.opcode == "ret":
        return_values(unit, block, inst, lanes)
        lowest = e.load("%frame", at.BASE, "i32")
    unit.resume(e.call("leave", lanes, block.index + 1, lowest))


def _trap(unit: Unit, block: BasicBlock, inst: Instruction, guard: Value | None, lanes: Value, _: list) -> None:
    name = f"B{block.index}.on"
    unit.e.raw(f"br {unit.e.compare('eq', lanes, 0)}, label %{name}, label %gone")
    unit.e.label(name)
    unit.go_on(block.index + 1) if block.index + 1 < len(unit.program.code_blocks) else unit.e.raw("br label %gone")


def _barrier_operands(unit: Unit, inst: Instruction, lanes: Value) -> list[Value]:
    """Barrier number and thread count of the first lane; empty for `bar.warp`."""
    kinds = set(inst.modifiers) & {"sync", "arrive", "red", "warp"}
    refuse_if(not kinds or set(inst.modifiers) - {"sync", "warp", "aligned", "cta"} or inst.meets)
    if "warp" in kinds:
        return []
    refuse_if(not 1 <= len(inst.sources) <= 2)
    e = unit.e
    values = [unit.get(s, "u32") for s in inst.sources]
    first = e.op("and", e.intrinsic("cttz", lanes, extra="i1 false"), 31)
    values = [e.let(f"extractelement {v}, {first}", "i32", False) if v.wide else v for v in values]
    return values if len(values) == 2 else [*values, e.literal(0, "i32")]


def _bar(
    unit: Unit, block: BasicBlock, inst: Instruction, guard: Value | None, lanes: Value, operands: list[Value]
) -> None:
    """A warp with an active lane waits as a whole; the scheduler of the thread block lets it go on behind."""
    e, after, name = unit.e, block.index + 1, f"B{block.index}"
    if not operands:
        unit.go_on(after)
        return
    number, threads = operands
    if guard is not None:
        e.raw(f"br {e.compare('eq', lanes, 0)}, label %{name}.pass, label %{name}.wait")
        e.label(f"{name}.pass")
        unit.go_on(after)
        e.label(f"{name}.wait")
    wrong = e.op("or", e.compare("uge", number, 16), e.compare("ne", e.op("and", threads, 31), 0))
    e.raw(f"br {wrong}, label %gone, label %{name}.arrive")
    e.label(f"{name}.arrive")
    e.store("%frame", at.BARRIER, number)
    e.store("%frame", at.EXPECTED, threads)
    e.store("%frame", at.BLOCK, e.literal(after, "i32"))
    e.call("settle")
    e.raw("br label %barrier")


_BUILDERS = {
    "bra": _bra, "ret": _leave, "exit": _leave, "trap": _trap, "bar": _bar, "barrier": _bar, "call": call,
    "brx": jump_table,
}  # fmt: skip
