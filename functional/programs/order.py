"""Where the outcome of a program can depend on the order of its thread blocks: what it does with memory that they
share, beside plain loads and stores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from functional.ptx.ir import Instruction, Register

_SHARED_BY_BLOCKS = ("global", "generic")
# Of loads that see what others write meanwhile, and of stores meant for them
_FRESH = frozenset({"volatile", "relaxed", "acquire", "release", "mmio"})


def order_points_of(
    instructions: Sequence[Instruction], block_of: Callable[[int], int], successors: Sequence[Sequence[int]]
) -> tuple[Instruction, ...]:
    """`Program.order_points`: atomics whose result is read, loads in a loop that look for what others write, and
    `nanosleep`, which waits for them. `block_of`: the basic block of a position; `successors`: of each block."""
    read = {register for inst in instructions for register in inst.reads()}
    read |= {inst.guard.register for inst in instructions if inst.guard is not None}
    loops = _in_loops(successors)
    return tuple(i for i in instructions if _is_order_point(i, read, block_of(i.index) in loops))


def _is_order_point(inst: Instruction, read: set[Register], in_loop: bool) -> bool:
    if inst.opcode == "atom" and inst.space in _SHARED_BY_BLOCKS:
        return not read.isdisjoint(inst.writes())
    if inst.opcode == "ld" and inst.space in _SHARED_BY_BLOCKS:
        return in_loop and not _FRESH.isdisjoint(inst.modifiers) and "cta" not in inst.modifiers
    return inst.opcode == "nanosleep"


def told_to_others(instructions: Iterable[Instruction]) -> tuple[Instruction, ...]:
    """Those that change, or look at, what thread blocks tell each other: their turn matters where any does."""
    found = (i for i in instructions if i.opcode in ("atom", "red") or not _FRESH.isdisjoint(i.modifiers))
    return tuple(i for i in found if i.space in _SHARED_BY_BLOCKS)


def publishing(instructions: Sequence[Instruction]) -> list[int]:
    """Positions of the first write behind each fence that others may wait for."""
    found, fenced = [], False
    told = {inst.index for inst in told_to_others(instructions) if inst.opcode != "ld"}
    for position, inst in enumerate(instructions):
        if fenced and position in told:
            found.append(position)
        fenced = inst.opcode in ("membar", "fence") or (fenced and position not in told)
    return found


def _in_loops(successors: Sequence[Sequence[int]]) -> set[int]:
    """Nodes of a graph that can be reached from themselves."""
    found = set()
    for node, after in enumerate(successors):
        seen, left = set(after), list(after)
        while left and node not in seen:
            new = set(successors[left.pop()]) - seen
            seen |= new
            left += new
        if node in seen:
            found.add(node)
    return found
