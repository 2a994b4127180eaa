"""Atomics of shared memory that the assembler made a loop of: read the word, reckon, compare and swap, again until that
has worked for every lane (docs/machine-code.md, rule 8)."""

from __future__ import annotations

from functional.programs.program import Program
from functional.ptx.ir import Address, Immediate, Instruction, Operand, Register, Special, Symbol
from precharacterize.classify import Kind
from precharacterize.machine_code.alignment import MachineBlock
from precharacterize.machine_code.timing_classes import kind_of

_COPYING = frozenset({"mov", "cvta", "add", "sub", "shl", "shr", "mul", "mad", "and", "or", "cvt"})
LONGEST = 8  # chain of instructions that an address is followed through
_SAME_IN_A_WARP = ("%ctaid", "%nctaid", "%ntid", "%gridid", "%warpid", "%smid")


def compare_and_swap(block: MachineBlock, program: Program) -> int | None:
    """The place of the compare-and-swap in a block that is such a loop on a word all lanes name; None of any other."""
    last, atomics = block.code[-1], set(block.held)
    loop = last.name == "BRA" and last.guard and block.code[0].label and last.target == block.code[0].label
    found = [k for k, c in enumerate(block.code) if kind_of(c) == Kind.SHARED_ATOMIC and _swaps(c.modifiers)]
    if not loop or len(atomics) != 1 or len(found) != 1:  # copies loop, too, and name no word
        return None
    return found[0] if _one_word(min(atomics), program) else None


def address_of(atomic: Instruction) -> Address:
    """What an atomic names."""
    return next(o for o in (*atomic.sources, *atomic.destinations) if isinstance(o, Address))


def _swaps(modifiers: tuple[str, ...]) -> bool:
    return "CAS" in modifiers or "CAST" in modifiers


def _one_word(i: int, program: Program) -> bool:
    """Do all lanes of a warp name the same word, as far as the program says?"""
    base = address_of(program.instructions[i]).base
    return base is None or _is_uniform(base, program, LONGEST)


def _is_uniform(operand: Operand | None, program: Program, depth: int) -> bool:
    """Has it one value in a warp, by instructions of which at most so many follow each other?"""
    if isinstance(operand, Immediate | Symbol):
        return True
    if isinstance(operand, Special):
        return operand.name.startswith(_SAME_IN_A_WARP)
    if not isinstance(operand, Register) or depth == 0:
        return False
    makers = [k for k in program.instructions if operand in k.writes()]
    if len(makers) != 1 or makers[0].guard:
        return False
    made = makers[0]
    if made.opcode == "ld":
        return made.space == "param"
    return made.opcode in _COPYING and all(_is_uniform(source, program, depth - 1) for source in made.sources)
