"""Basic blocks cut behind the instructions that are not generated: a piece of a block is generated, a step of the array
executor does what follows it, for all warps that are there, then comes the next piece."""

from collections.abc import Set
from dataclasses import dataclass
from enum import IntEnum

from functional.programs.link import BUILTINS
from functional.programs.program import Program
from functional.ptx.ir import Instruction, Special

_BARRIERS = ("bar", "barrier")


class Care(IntEnum):
    """What is left to steps beyond what only they can do."""

    NONE = 0
    FAULTS = 1  # what may fault: its step says why
    GUARDS = 2  # the same, and somebody is told the lanes of every guarded instruction
    OUTLINES = 3  # all: generated code only says which basic blocks run, in which lanes


@dataclass(frozen=True)
class Piece:
    """Instructions `start` to `stop` - 1 of a program, of which the last is left to its step if `is_cut`. `entry`: the
    basic block, or a number behind theirs, by which the generated code knows it; `following`: of the block's next."""

    start: int
    stop: int
    entry: int
    is_cut: bool
    following: int = -1


def pieces_of(
    program: Program, left_out: Set[int], watched: Set[int] = frozenset()
) -> tuple[tuple[Piece, ...], ...]:  # fmt: skip
    """Of each block; none behind an end that is left out. Those `watched` begin a piece, but not their block's."""
    found, behind = [], len(program.blocks)
    for block in program.code_blocks:
        inside = range(block.start, block.stop)
        cuts = {position + 1 for position in inside if position in left_out}
        stops = sorted(cuts | {block.stop} | {position for position in inside if position in watched})
        starts, more = [block.start, *stops[:-1]], len(stops) - 1
        entries = [block.index, *range(behind, behind + more)]
        following = [*entries[1:], -1]
        found.append(tuple(map(Piece, starts, stops, entries, [stop in cuts for stop in stops], following)))
        behind += more
    return tuple(found)


def may_be_far(inst: Instruction) -> bool:
    """Of thread blocks in clusters: may it name another one's shared memory without saying so?"""
    return (inst.is_memory and inst.space == "generic") or (inst.opcode == "isspacep" and "shared" in inst.modifiers)


def may_fault(inst: Instruction) -> bool:
    """May it end a launch with an error, or do what only its step can?"""
    directed = inst.opcode == "fma" and inst.type == "f64" and "rn" not in inst.modifiers
    return inst.is_memory or inst.opcode in ("wmma", "brx", "trap") or inst.callee in BUILTINS or directed


def waits_for_grid(program: Program) -> bool:
    """May its thread blocks wait for all others? Those of a cooperative launch do, by a word that a register names."""
    return any(isinstance(s, Special) and s.name.startswith("%envreg") for i in program.instructions for s in i.sources)


def needs_care(program: Program) -> bool:
    """Does it call what only steps do: a function that runs already, one named by a register, the device run time?"""
    calls = [i for i in program.instructions if i.opcode == "call" and i.index not in program.callee_entry]
    return program.recursive or any(i.callee != "__assertfail" for i in calls)


def guarded(program: Program, left_out: Set[int]) -> frozenset[int]:
    """Positions of the guarded instructions that are generated."""
    return frozenset(i.index for i in program.instructions if i.guard and i.index not in left_out)


def barriers_of(program: Program) -> set[int]:
    """Positions of barriers, at which warps wait that run by the piece."""
    return {i.index for i in program.instructions if i.opcode in _BARRIERS and "warp" not in i.modifiers}
