"""What each thread writes down while an instrumented kernel runs: 64-bit words, a fixed number a basic block.

First the number of the block's first instruction in the module; then, instruction by instruction, what the program
does not say: whether the guard is true (1 or 0), the address register of a memory access, the index of a `brx`. The
words of a thread follow each other without gaps, so the words of a block say which block comes next, and nothing else
is needed to go through the program again.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from functional.errors import PtxError
from functional.programs.program import BasicBlock, Program
from functional.ptx.ir import Address, Instruction, Register

_TRACED = frozenset({"ld", "ldu", "st", "atom", "red", "ldmatrix"})


class What(Enum):
    """The value a word holds."""

    GUARD = 1
    ADDRESS = 2  # the base register; the constant offset is in the program
    INDEX = 3


@dataclass(frozen=True)
class Word:
    """A word of a block: `place` counts from the block's number, which is word 0."""

    instruction: Instruction
    what: What
    place: int


def words_of(program: Program, block: BasicBlock) -> tuple[Word, ...]:
    """The words of a block behind its number. Raises PtxError for an instruction whose effect they cannot tell."""
    found: list[Word] = []
    for instruction in program.instructions[block.start : block.stop]:
        _check(program, instruction)
        if instruction.guard is not None:
            found.append(Word(instruction, What.GUARD, len(found) + 1))
        if instruction.is_memory and isinstance(base_of(instruction), Register):
            found.append(Word(instruction, What.ADDRESS, len(found) + 1))
        if instruction.opcode == "brx":
            found.append(Word(instruction, What.INDEX, len(found) + 1))
    return tuple(found)


def address_of(instruction: Instruction) -> Address:
    """The address operand of a memory instruction."""
    return next(s for s in instruction.sources if isinstance(s, Address))


def base_of(instruction: Instruction) -> object:
    """What the address of a memory instruction starts from: a register, a symbol or nothing."""
    return address_of(instruction).base


def _check(program: Program, instruction: Instruction) -> None:
    refused = ""
    if instruction.is_memory and instruction.opcode not in _TRACED:
        refused = "its addresses are not recorded"
    elif instruction.is_memory and instruction.space == "param" and isinstance(base_of(instruction), Register):
        refused = "the address of a parameter is not the same on a GPU"
    elif instruction.opcode in ("bar", "barrier") and (instruction.reads() or "red" in instruction.modifiers):
        refused = "its operands are not recorded"
    if refused:
        raise PtxError(program.path, instruction.line, f"'{instruction.name}' cannot be traced on a GPU: {refused}")
