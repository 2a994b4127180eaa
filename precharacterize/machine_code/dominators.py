"""Dominators of a program's basic blocks, calls followed."""

from __future__ import annotations

from collections.abc import Iterable

from functional.programs.program import Program


class Dominators:
    """Immediate dominators (Cooper, Harvey, Kennedy, "A simple, fast dominance algorithm", 2001)."""

    def __init__(self, program: Program) -> None:
        successors = [_edges(program, block.index) for block in program.blocks]
        order = _postorder(successors)
        self._rank = {block: rank for rank, block in enumerate(order)}
        predecessors: dict[int, list[int]] = {block: [] for block in order}
        for block in order:
            for following in successors[block]:
                predecessors[following].append(block)
        self._above = {0: 0}
        changed = True
        while changed:
            changed = False
            for block in reversed(order[:-1]):
                found = self._meet(p for p in predecessors[block] if p in self._above)
                changed |= self._above.get(block) != found
                self._above[block] = found

    def nearest_common(self, blocks: Iterable[int]) -> int:
        """The nearest block that dominates all of some blocks; one that cannot be reached counts for nothing."""
        reached = [b for b in blocks if b in self._above]
        return self._meet(reached) if reached else -1

    def _meet(self, blocks: Iterable[int]) -> int:
        found = -1
        for block in blocks:
            found = block if found < 0 else self._common(found, block)
        return found

    def _common(self, a: int, b: int) -> int:
        while a != b:
            while self._rank[a] < self._rank[b]:
                a = self._above[a]
            while self._rank[b] < self._rank[a]:
                b = self._above[b]
        return a


def _edges(program: Program, index: int) -> list[int]:
    """Successors of a block, and the entry of a function it calls."""
    last = program.blocks[index].stop - 1
    called = [program.block_of(program.callee_entry[last])] if last in program.callee_entry else []
    return [*program.blocks[index].successors, *called]


def _postorder(successors: list[list[int]]) -> list[int]:
    """Blocks that can be reached from the first, each after those reached from it."""
    order: list[int] = []
    seen, left = {0}, [(0, iter(successors[0]))]
    while left:
        block, following = left[-1]
        found = next((s for s in following if s not in seen), None)
        if found is None:
            order.append(block)
            left.pop()
        else:
            seen.add(found)
            left.append((found, iter(successors[found])))
    return order
