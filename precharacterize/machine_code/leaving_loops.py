"""Machine blocks that stand before or behind a loop although their instructions bear lines of PTX inside it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from functional.programs.program import Dominators, in_loops


def innermost_loops(edges: Sequence[Sequence[int]], dominators: Dominators) -> dict[int, frozenset[int]]:
    """The smallest natural loop around each node of a graph that is in one."""
    before: dict[int, list[int]] = {}
    for node, following in enumerate(edges):
        for after in following:
            before.setdefault(after, []).append(node)
    loops: dict[int, set[int]] = {}
    for node, following in enumerate(edges):
        for head in (h for h in following if dominators.nearest_common((node, h)) == h):
            body = loops.setdefault(head, {head})
            left = [node]
            while left:
                found = left.pop()
                if found not in body:
                    body.add(found)
                    left += before.get(found, [])
    by_size = sorted((frozenset(body) for body in loops.values()), key=len, reverse=True)
    return {node: body for body in by_size for node in body}


def outside(
    leader: int, loop: frozenset[int], is_behind: bool, dominators: Dominators, behind: Dominators, known: Iterable[int]
) -> int:
    """The nearest PTX block out of a loop that each way out of it (`is_behind`) or into it passes, of those that
    machine code is `known` for; the leader itself if there is none."""
    parent, node = (behind if is_behind else dominators).parent, leader
    while node in loop or node not in known:
        if node not in parent or parent[node] == node:
            return leader
        node = parent[node]
    return node


def placed(
    leaders: Sequence[int], after: Sequence[Sequence[int]], fixed: Sequence[bool], edges: Sequence[Sequence[int]],
    dominators: Dominators, behind: Dominators, known: set[int],
) -> list[int]:  # fmt: skip
    """Leaders of machine blocks, of which `after` are the successors: one that is not executed in each round of its
    leader's loop, while others of that loop are, is led by a PTX block out of it, unless it is `fixed`."""
    loops, found = innermost_loops(edges, dominators), list(leaders)
    for loop in set(loops.values()):
        within = {n for n, leader in enumerate(leaders) if leader in loop}
        inside = {n for n in within if loops[leaders[n]] == loop}
        ways = [[m for m in following if m in within] for following in after]
        rounds = in_loops([way if n in within else [] for n, way in enumerate(ways)])
        for n in inside - rounds if rounds else ():
            if not fixed[n]:
                found[n] = outside(leaders[n], loop, n > min(rounds), dominators, behind, known)
    return found
