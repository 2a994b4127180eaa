"""Where the outcome of a program can depend on the order of its thread blocks: what it does with memory that they
share, beside plain loads and stores.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from functional.ptx.ir import Instruction, Register

if TYPE_CHECKING:
    from functional.programs.program import Program

_SHARED_BY_BLOCKS = ("global", "generic")
# Of loads that see what others write meanwhile, and of stores meant for them
_FRESH = frozenset({"volatile", "relaxed", "acquire", "release", "mmio"})


def order_points_of(program: Program) -> tuple[Instruction, ...]:
    """`Program.order_points`: atomics whose result is read, loads in a loop that look for what others write, and
    `nanosleep`, which waits for them."""
    read = {register for inst in program.instructions for register in _reads(inst)}
    loops = _in_loops(program)
    return tuple(i for i in program.instructions if _is_order_point(i, read, program.block_of(i.index) in loops))


def ordered_blocks(program: Program) -> frozenset[int]:
    """Basic blocks whose turn is to be decided, where that matters at all: all that change or look at what thread
    blocks tell each other."""
    if not program.order_points:
        return frozenset()
    told = (i for i in program.instructions if i.opcode in ("atom", "red") or not _FRESH.isdisjoint(i.modifiers))
    return frozenset(program.block_of(i.index) for i in told if i.space in _SHARED_BY_BLOCKS)


def _is_order_point(inst: Instruction, read: set[Register], in_loop: bool) -> bool:
    if inst.opcode == "atom" and inst.space in _SHARED_BY_BLOCKS:
        return not read.isdisjoint(inst.writes())
    if inst.opcode == "ld" and inst.space in _SHARED_BY_BLOCKS:
        return in_loop and not _FRESH.isdisjoint(inst.modifiers) and "cta" not in inst.modifiers
    return inst.opcode == "nanosleep"


def _reads(inst: Instruction) -> Iterator[Register]:
    yield from inst.reads()
    if inst.guard is not None:
        yield inst.guard.register


def _in_loops(program: Program) -> frozenset[int]:
    """Basic blocks that control can come back to: those of strongly connected parts of the graph (Tarjan 1972)."""
    successors = [block.successors for block in program.blocks]
    number: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    found: set[int] = set()
    for root in range(len(successors)):
        work = [(root, iter(successors[root]))] if root not in number else []
        while work:
            node, left = work[-1]
            if node not in number:
                number[node] = low[node] = len(number)
                stack.append(node)
            for after in left:
                if after not in number:
                    work.append((after, iter(successors[after])))
                    break
                if after in stack:
                    low[node] = min(low[node], low.get(after, number[after]))
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == number[node]:
                    part = stack[stack.index(node) :]
                    del stack[stack.index(node) :]
                    if len(part) > 1 or node in successors[node]:
                        found.update(part)
    return frozenset(found)
