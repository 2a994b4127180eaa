"""Machine blocks that stand before or behind a loop although their instructions bear lines of PTX inside it."""

from collections.abc import Sequence
from dataclasses import dataclass

from functional.programs.program import Dominators, in_loops, reached, turned


def innermost_loops(edges: Sequence[Sequence[int]], dominators: Dominators) -> dict[int, frozenset[int]]:
    """The smallest natural loop around each node of a graph that is in one."""
    before, loops = turned(edges), dict[int, set[int]]()
    for node, following in enumerate(edges):
        for head in (h for h in following if dominators.nearest_common((node, h)) == h):
            way_back = [*before[:head], [], *before[head + 1 :]]
            loops.setdefault(head, {head}).update(reached([node], way_back.__getitem__))
    by_size = sorted((frozenset(body) for body in loops.values()), key=len, reverse=True)
    return {node: body for body in by_size for node in body}


def outside(
    leader: int, loop: frozenset[int], is_behind: bool, dominators: Dominators, behind: Dominators, known: set[int]
) -> int:
    """The nearest PTX block out of a loop that each way out of it (`is_behind`) or into it passes, of those that
    machine code is `known` for; the leader itself if there is none."""
    parent, node = (behind if is_behind else dominators).parent, leader
    while node in loop or node not in known:
        if node not in parent or parent[node] == node:
            return leader
        node = parent[node]
    return node


@dataclass(frozen=True)
class Placed:
    """A machine block: the PTX block that leads it, its successors, does it access memory or change what others wait
    for, and are there others like it?"""

    leader: int
    after: Sequence[int]
    acts: bool
    has_rivals: bool


def leaders(
    blocks: Sequence[Placed], edges: Sequence[Sequence[int]], dominators: Dominators, behind: Dominators,
    known: set[int],
) -> list[int]:  # fmt: skip
    """Leaders of machine blocks: one that is not executed in each round of its leader's loop, while others of that loop
    are, is led by a PTX block out of it. One that acts stays, and so does what may be a copy of a round. The assembler
    puts what comes before a loop before it, what follows behind it."""
    loops, found = innermost_loops(edges, dominators), [block.leader for block in blocks]
    for loop in set(loops.values()):
        within = {n for n, block in enumerate(blocks) if block.leader in loop}
        rounds = in_loops([[m for m in b.after if m in within] if n in within else [] for n, b in enumerate(blocks)])
        some_act = any(blocks[n].acts for n in rounds)
        for n in within - rounds if rounds else ():
            block = blocks[n]
            if loops[block.leader] == loop and not block.acts and (some_act or not block.has_rivals):
                found[n] = outside(block.leader, loop, n > min(rounds), dominators, behind, known)
    return found
