"""Control flow: basic blocks and immediate post-dominators, the points where diverged lanes meet again.

A call is not an edge: control continues behind it, so every function has a graph of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from functional.programs.program import BasicBlock
from functional.ptx.ir import Instruction

_ENDS = frozenset({"bra", "brx", "ret", "exit", "trap", "bar", "barrier", "call"})
_JOINS = {"wgmma": "mma_async", "mbarrier": "try_wait"}  # warps may have to wait behind them
_LEAVES = frozenset({"ret", "exit", "trap"})


def basic_blocks(instructions: Sequence[Instruction], entries: Sequence[int] = (0,)) -> tuple[BasicBlock, ...]:
    """Cut a flat program into basic blocks in program order.

    `entries` are the positions where functions begin, ascending. A block begins at each entry, at every branch target
    and behind every instruction that ends one (branch, ret, exit, trap, barrier, call, warpgroup product, wait).
    Successors are in the order taken, fall-through; a guarded ret or exit falls through.
    """
    starts = _starts(instructions, entries)
    stops = [*starts[1:], len(instructions)]
    index = {start: number for number, start in enumerate(starts)}
    successors = [_successors(instructions[stop - 1], stop, index) for stop in stops]
    reconvergence = immediate_post_dominators(successors)
    rows = zip(starts, stops, successors, reconvergence, strict=True)
    return tuple(BasicBlock(number, *row) for number, row in enumerate(rows))


def _starts(instructions: Sequence[Instruction], entries: Sequence[int]) -> list[int]:
    starts = set(entries)
    for position, instruction in enumerate(instructions):
        if instruction.target is not None:
            starts.add(instruction.target)
        starts.update(instruction.targets)
        if instruction.opcode in _ENDS or _JOINS.get(instruction.opcode) in instruction.modifiers:
            starts.add(position + 1)
    return sorted(start for start in starts if start < len(instructions))


def _successors(last: Instruction, stop: int, index: dict[int, int]) -> tuple[int, ...]:
    taken = [index[last.target]] if last.target is not None else [index[t] for t in last.targets]
    leaves = last.opcode in _LEAVES or last.opcode in ("bra", "brx")
    if not leaves or last.guard is not None:
        taken.append(index[stop])
    return tuple(dict.fromkeys(taken))


def immediate_post_dominators(successors: Sequence[Sequence[int]]) -> list[int | None]:
    """Immediate post-dominator of every node, None where only the exit of the graph remains.

    `successors[n]` are the nodes after n; a node with none leads to a virtual exit. A node that cannot reach the exit
    (an endless loop) has none either. Iterates Cooper, Harvey and Kennedy, "A Simple, Fast Dominance Algorithm" (2001)
    on the reversed graph.
    """
    count = len(successors)
    exit_node = count
    forward = [tuple(s) if s else (exit_node,) for s in successors]
    order = _post_order(forward, exit_node)  # of the reversed graph: the exit has the highest number
    parent: dict[int, int] = {exit_node: exit_node}
    changed = True
    while changed:
        changed = False
        for node in sorted(order, key=order.__getitem__, reverse=True)[1:]:
            known = [s for s in forward[node] if s in parent]
            best = known[0]
            for other in known[1:]:
                best = _intersect(parent, order, best, other)
            changed |= parent.get(node) != best
            parent[node] = best
    return [None if parent.get(node, exit_node) == exit_node else parent[node] for node in range(count)]


def _post_order(forward: Sequence[Sequence[int]], exit_node: int) -> dict[int, int]:
    """Post-order number of each node in the depth-first walk of the reversed graph from the exit."""
    backward: list[list[int]] = [[] for _ in range(exit_node + 1)]
    for node, following in enumerate(forward):
        for successor in following:
            backward[successor].append(node)
    order: dict[int, int] = {}
    seen = {exit_node}
    stack: list[tuple[int, Iterator[int]]] = [(exit_node, iter(backward[exit_node]))]
    while stack:
        node, remaining = stack[-1]
        predecessor = next((p for p in remaining if p not in seen), None)
        if predecessor is None:
            order[node] = len(order)
            stack.pop()
        else:
            seen.add(predecessor)
            stack.append((predecessor, iter(backward[predecessor])))
    return order


def _intersect(parent: dict[int, int], order: dict[int, int], a: int, b: int) -> int:
    while a != b:
        while order[a] < order[b]:
            a = parent[a]
        while order[b] < order[a]:
            b = parent[b]
    return a
