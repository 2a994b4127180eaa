"""The loops over a recording's events, compiled: everything else about it is array operations."""

from __future__ import annotations

from abstim.engine.rules import DECODE_CYCLES
from functional.jit.machine_code import compiled


@compiled
def latest(order, first, parent, slack, term, scale, change, shift, via, counts):
    """How much later every event is than at the base point, and what the last of them waited for.

    Event n waits for the edges `first[n]` .. `first[n + 1]` - 1; `change[j]` is by how much term j differs from the
    base point. Fills `shift` and `via` (the binding edge, -1: none), adds to `counts` each term on the binding chain.
    """
    for n in order:
        for e in range(first[n], first[n + 1]):
            later = shift[parent[e]] - slack[e] + scale[e] * change[term[e]]
            if via[n] < 0 or later > shift[n]:
                shift[n] = later
                via[n] = e
    n = order[-1]
    while via[n] >= 0:
        counts[term[via[n]]] += scale[via[n]]
        n = parent[via[n]]


@compiled
def last_writers(warp, instruction, waits, writes, writer, found):
    """The issue that wrote each register an issue waits for; -1: nobody. `writer` is scratch, a row a warp, all -1."""
    for k in range(len(warp)):
        w, i = warp[k], instruction[k]
        for c in range(waits.shape[1]):
            found[k, c] = writer[w, waits[i, c]] if waits[i, c] >= 0 else -1
        for c in range(writes.shape[1]):
            if writes[i, c] >= 0:
                writer[w, writes[i, c]] = k


@compiled
def buffered_before(warp, previous, instruction, pcs, exits, width, line, buffered, found):
    """Gap of the front end before each issue: 1 from the buffer, 2 after a fetch, 3 or 4 after a flush; 0 for a warp's
    first (docs/timing-rules.md, rule 7). `buffered` is scratch, one a warp."""
    for k in range(len(warp)):
        w, i = warp[k], instruction[k]
        gap = 0
        if previous[k] >= 0:
            before = instruction[previous[k]]
            gap = 1 if buffered[w] > 0 else DECODE_CYCLES
            if i != before + 1:
                gap = DECODE_CYCLES if exits[before] else gap + DECODE_CYCLES
        if gap != 1:
            buffered[w] = min(width, line - (pcs[i] & (line - 1)))
        buffered[w] -= 1
        found[k] = gap


@compiled
def barrier_releases(warp, last, barrier, warps_per_block, waiting, running, released, found):
    """The issue that completed the latest barrier of each issue's thread block; -1: none yet.

    `waiting` (0), `running` (warps a block) and `released` (-1) are scratch, one a thread block.
    """
    for k in range(len(warp)):
        b = warp[k] // warps_per_block
        found[k] = released[b]
        waiting[b] += barrier[k]
        running[b] -= last[k]
        if waiting[b] > 0 and waiting[b] == running[b]:
            waiting[b] = 0
            released[b] = k
