"""The instructions of a PTX block in the order in which an assembler puts them: loads as early as they can be.

What it drops is what machine code has no instruction for: parameters are operands there, address spaces have one
numbering, copies of registers are the registers.
"""

from __future__ import annotations

from collections.abc import Sequence

from functional.programs.program import BasicBlock, Program
from functional.ptx.ir import Address, Instruction, Register
from precharacterize.asynchronous_copies import COPIES, NONE, copies_of, starts
from precharacterize.classify import Kind

_LOADS = (Kind.GLOBAL_LOAD, Kind.SHARED_LOAD, Kind.TEXTURE_LOAD, Kind.CONST_LOAD)
_BARRIERS = (Kind.BARRIER, Kind.FENCE, Kind.EXIT)
_WRITES = (Kind.GLOBAL_STORE, Kind.GLOBAL_ATOMIC, Kind.SHARED_STORE, Kind.SHARED_ATOMIC)


def hoisted(block: BasicBlock, program: Program, kinds: Sequence[int]) -> list[int]:
    """Positions of a block's instructions in the order they are timed in; those dropped are not among them."""
    code = program.instructions
    needs = _dependences(block, code, kinds)
    placed: dict[int, None] = {}

    def place(i: int) -> None:
        left = [i]
        while left:
            top = left[-1]
            missing = [k for k in needs[top] if k not in placed]
            if missing:
                left += missing[::-1]
            else:
                placed.setdefault(left.pop())

    for i in range(block.start, block.stop):
        if kinds[i] in _LOADS:
            place(i)
    for i in range(block.start, block.stop):
        place(i)
    return [i for i in placed if not is_dropped(code[i], kinds[i])] or [block.stop - 1]


def is_dropped(instruction: Instruction, kind: int) -> bool:
    """Has machine code no instruction for it?"""
    if kind == Kind.PARAM_LOAD or instruction.opcode == "cvta":
        return True
    copied = instruction.sources[0] if len(instruction.sources) == 1 else None
    return instruction.opcode == "mov" and isinstance(copied, Register) and instruction.guard is None


def _dependences(block: BasicBlock, code: Sequence[Instruction], kinds: Sequence[int]) -> dict[int, list[int]]:
    """What must come before each instruction of a block."""
    writer: dict[Register, int] = {}
    readers: dict[Register, list[int]] = {}
    needs: dict[int, list[int]] = {}
    for i in range(block.start, block.stop):
        guard = code[i].guard
        reads = [*code[i].reads(), *([guard.register] if guard else [])]
        before = {writer[r] for r in reads if r in writer}
        for r in code[i].writes():
            before |= {writer[r]} if r in writer else set()
            before |= set(readers.pop(r, []))
        before |= {k for k in range(block.start, i) if _ordered(code[k], kinds[k], code[i], kinds[i])}
        needs[i] = sorted(before - {i})
        for r in reads:
            readers.setdefault(r, []).append(i)
        writer |= dict.fromkeys(code[i].writes(), i)
    if block.stop > block.start and code[block.stop - 1].opcode in ("bra", "brx", "ret", "exit", "call", "trap"):
        needs[block.stop - 1] = list(range(block.start, block.stop - 1))
    return needs


def _ordered(first: Instruction, first_kind: int, second: Instruction, second_kind: int) -> bool:
    """Must two instructions stay in their order because of memory or barriers?"""
    free = (NONE, starts(COPIES))
    if copies_of(first) not in free or copies_of(second) not in free:  # others see when it is done
        return True
    if first_kind in _BARRIERS or second_kind in _BARRIERS or "call" in (first.opcode, second.opcode):
        return True
    if first_kind < Kind.PARAM_LOAD or second_kind < Kind.PARAM_LOAD:
        return False
    if first_kind not in _WRITES and second_kind not in _WRITES:
        return "volatile" in first.modifiers and "volatile" in second.modifiers
    if "nc" in (*first.modifiers, *second.modifiers) or Kind.PARAM_LOAD in (first_kind, second_kind):
        return False
    return _may_overlap(first, second)


def _may_overlap(first: Instruction, second: Instruction) -> bool:
    """Can two accesses meet? Not in different spaces, nor at different offsets from one register."""
    if "generic" not in (first.space, second.space) and first.space != second.space:
        return False
    a, b = _address_of(first), _address_of(second)
    if a is None or b is None or a.base != b.base:
        return True
    return a.offset < b.offset + second.access_bytes and b.offset < a.offset + first.access_bytes


def _address_of(instruction: Instruction) -> Address | None:
    operands = (*instruction.destinations, *instruction.sources)
    return next((o for o in operands if isinstance(o, Address)), None)
