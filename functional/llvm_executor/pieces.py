"""Basic blocks cut behind the instructions that are not generated: a piece of a block is generated, a step of the array
executor does what follows it, for all warps that are there, then comes the next piece.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from functional.isa.instructions import form_of, has_no_effect
from functional.isa.operation import REFUSALS
from functional.programs.program import Program
from functional.ptx.ir import CLUSTER_SHARED, Instruction

_BARRIERS = ("bar", "barrier")


@dataclass(frozen=True)
class Piece:
    """Instructions `start` to `stop` - 1 of a program, of which the last is left to its step if `is_cut`. `entry`: the
    basic block, or a number behind theirs, by which the generated code knows it."""

    start: int
    stop: int
    entry: int
    is_cut: bool


def pieces_of(program: Program, left_out: Set[int]) -> tuple[tuple[Piece, ...], ...]:
    """Of each basic block; one that ends with an instruction that is left out has no piece behind it."""
    found, behind = [], len(program.blocks)
    for block in program.blocks:
        cuts = [position + 1 for position in range(block.start, block.stop) if position in left_out]
        stops = cuts if cuts[-1:] == [block.stop] else [*cuts, block.stop]
        starts, more = [block.start, *stops[:-1]], len(stops) - 1
        entries = [block.index, *range(behind, behind + more)]
        found.append(tuple(map(Piece, starts, stops, entries, [stop in cuts for stop in stops])))
        behind += more
    return tuple(found)


def surely_left_out(program: Program, generated: Set[str], in_clusters: bool) -> set[int]:
    """Positions of instructions of no opcode or operation that is generated. With thread blocks in clusters: of those
    that may name another one's shared memory."""
    return {i.index for i in program.instructions if not _is_known(i, generated) or (in_clusters and _is_far(i))}


def barriers_of(program: Program) -> set[int]:
    """Positions of barriers, at which warps wait that run by the piece."""
    return {i.index for i in program.instructions if i.opcode in _BARRIERS and "warp" not in i.modifiers}


def _is_known(inst: Instruction, generated: Set[str]) -> bool:
    if inst.opcode in generated or has_no_effect(inst):
        return CLUSTER_SHARED not in inst.modifiers
    try:
        form_of(inst)
    except REFUSALS:
        return False
    return True


def _is_far(inst: Instruction) -> bool:
    return (inst.is_memory and inst.space == "generic") or (inst.opcode == "isspacep" and "shared" in inst.modifiers)
