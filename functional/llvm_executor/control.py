"""The end of a basic block: counts, registers written back, and where the warp goes next."""

from __future__ import annotations

from functional.isa.emitter import Value
from functional.isa.operation import Unsupported
from functional.isa.slots import CONDITION_CODE
from functional.llvm_executor import context_layout as at
from functional.llvm_executor.calls import call, jump_table, return_values
from functional.llvm_executor.unit import Unit
from functional.programs.program import BasicBlock
from functional.ptx.ir import Instruction, Register


def terminate(unit: Unit, block: BasicBlock, instructions: tuple[Instruction, ...], may_fault: bool) -> None:
    """End `block`."""
    inst = instructions[-1]
    build = _BUILDERS.get(inst.opcode, _fall_through)
    unit.begin_guard(inst.guard) if inst.opcode in _BUILDERS else None
    guard, lanes = unit.guard, unit.lanes()
    operands = _barrier_operands(unit, inst, lanes) if inst.opcode in ("bar", "barrier") else []
    if inst.opcode == "brx":
        operands = [unit.get(inst.sources[0], "u32")]
    unit.guard = None
    _spill(unit, block)
    _count(unit, instructions)
    if may_fault:
        e = unit.e
        wrong = e.compare("ne", unit.context("fault"), 0)
        e.raw(f"br {wrong}, label %gone, label %B{block.index}.end")
        e.label(f"B{block.index}.end")
    build(unit, block, inst, guard, lanes, operands)


def _spill(unit: Unit, block: BasicBlock) -> None:
    live, blended = unit.analysis.live, unit.analysis.blended[block.index]
    outside = frozenset[Register]().union(*(live[s] for s in block.successors))
    for register in unit.written:
        if register in outside or register is CONDITION_CODE:  # liveness does not follow the carry flag
            unit.spill(register, register in blended or register is CONDITION_CODE)


def _count(unit: Unit, instructions: tuple[Instruction, ...]) -> None:
    """Warp and thread instructions, and what the budget is charged."""
    e, total = unit.e, len(instructions)
    lanes = e.resize(e.intrinsic("ctpop", Value(unit.mask, "i32", False)), "i64", False)
    plain = e.op("mul", lanes, sum(i.guard is None for i in instructions))
    thread = e.op("add", plain, Value(unit.guarded, "i64", False))
    for offset, amount in ((at.WARP_INSTRUCTIONS, e.literal(total, "i64")), (at.THREAD_INSTRUCTIONS, thread)):
        e.store("%frame", offset, e.op("add", e.load("%frame", offset, "i64", align=8), amount), align=8)
    used = e.op("add", unit.context("used"), e.op("mul", lanes, total))
    e.store("%ctx", at.SLOT["used"], used, align=8)


def _fall_through(unit: Unit, block: BasicBlock, *_: object) -> None:
    unit.go_on(block.index + 1)


def _bra(unit: Unit, block: BasicBlock, inst: Instruction, guard: Value | None, lanes: str, _: list) -> None:
    if inst.target is None or set(inst.modifiers) - {"uni"}:
        raise Unsupported
    e, target, after = unit.e, unit.program.block_of(inst.target), block.index + 1
    if guard is None or target == after:
        unit.go_on(target)
        return
    name = f"B{block.index}"
    none = e.scalar(f"icmp eq i32 {lanes}, 0", "i1")
    e.raw(f"br i1 {none}, label %{name}.after, label %{name}.some")
    e.label(f"{name}.after")
    unit.go_on(after)
    e.label(f"{name}.some")
    every = e.scalar(f"icmp eq i32 {lanes}, {unit.mask}", "i1")
    if guard.wide:
        e.raw(f"br i1 {every}, label %{name}.taken, label %{name}.split")
        e.label(f"{name}.split")
        meeting = -1 if block.reconvergence is None else block.reconvergence
        e.declarations["@diverge"] = "declare i32 @diverge(ptr, ptr, i32, i32, i32, i32) #0"
        arguments = f"ptr %ctx, ptr %frame, i32 {target}, i32 {lanes}, i32 {after}, i32 {meeting}"
        following = e.scalar(f"call i32 @diverge({arguments})", "i32")
        e.raw(f"br i1 {e.scalar(f'icmp eq i32 {following}, -1', 'i1')}, label %gone, label %dispatch")
    else:
        e.raw(f"br label %{name}.taken")
    e.label(f"{name}.taken")
    unit.go_on(target)


def _leave(unit: Unit, block: BasicBlock, inst: Instruction, guard: Value | None, lanes: str, _: list) -> None:
    e = unit.e
    e.declarations["@leave"] = "declare i32 @leave(ptr, i32, i32, i32) #0"
    lowest = "0"
    if inst.opcode == "ret":
        return_values(unit, block, inst, lanes)
        lowest = e.load("%frame", at.BASE, "i32").name
    unit.resume(e.scalar(f"call i32 @leave(ptr %frame, i32 {lanes}, i32 {block.index + 1}, i32 {lowest})", "i32"))


def _trap(unit: Unit, block: BasicBlock, inst: Instruction, guard: Value | None, lanes: str, _: list) -> None:
    none = unit.e.scalar(f"icmp eq i32 {lanes}, 0", "i1")
    name = f"B{block.index}.on"
    unit.e.raw(f"br i1 {none}, label %{name}, label %gone")
    unit.e.label(name)
    unit.go_on(block.index + 1) if block.index + 1 < len(unit.program.blocks) else unit.e.raw("br label %gone")


def _barrier_operands(unit: Unit, inst: Instruction, lanes: str) -> list[Value]:
    """Barrier number and thread count of the first lane; empty for `bar.warp`."""
    kinds = set(inst.modifiers) & {"sync", "arrive", "red", "warp"}
    known = {"sync", "warp", "aligned", "cta"}
    if not kinds or set(inst.modifiers) - known:
        raise Unsupported
    if "warp" in kinds:
        return []
    if not 1 <= len(inst.sources) <= 2:
        raise Unsupported
    e = unit.e
    values = [unit.get(s, "u32") for s in inst.sources]
    first = e.scalar(f"call i32 @llvm.cttz.i32(i32 {lanes}, i1 false)", "i32")
    e.declarations["@llvm.cttz.i32"] = "declare i32 @llvm.cttz.i32(i32, i1)"
    at_lane = e.scalar(f"and i32 {first}, 31", "i32")
    values = [e.let(f"extractelement {v}, i32 {at_lane}", "i32", False) if v.wide else v for v in values]
    return values if len(values) == 2 else [*values, e.literal(0, "i32")]


def _bar(
    unit: Unit, block: BasicBlock, inst: Instruction, guard: Value | None, lanes: str, operands: list[Value]
) -> None:
    """A warp with an active lane waits as a whole; the scheduler of the thread block lets it go on behind."""
    e, after, name = unit.e, block.index + 1, f"B{block.index}"
    if not operands:
        unit.go_on(after)
        return
    number, threads = operands
    if guard is not None:
        none = e.scalar(f"icmp eq i32 {lanes}, 0", "i1")
        e.raw(f"br i1 {none}, label %{name}.pass, label %{name}.wait")
        e.label(f"{name}.pass")
        unit.go_on(after)
        e.label(f"{name}.wait")
    wrong = e.compare("uge", number, 16)
    wrong = e.op("or", wrong, e.compare("ne", e.op("and", threads, 31), 0))
    e.raw(f"br {wrong}, label %gone, label %{name}.arrive")
    e.label(f"{name}.arrive")
    e.store("%frame", at.BARRIER, number)
    e.store("%frame", at.EXPECTED, threads)
    e.store("%frame", at.BLOCK, e.literal(after, "i32"))
    e.declarations["@settle"] = "declare i32 @settle(ptr) #0"
    e.scalar("call i32 @settle(ptr %frame)", "i32")
    e.raw("br label %barrier")


_BUILDERS = {
    "bra": _bra, "ret": _leave, "exit": _leave, "trap": _trap, "bar": _bar, "barrier": _bar, "call": call,
    "brx": jump_table,
}  # fmt: skip
