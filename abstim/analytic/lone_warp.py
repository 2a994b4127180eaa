"""One warp alone: when it issues each instruction, and the longest chain of latencies behind that.

A warp's time is the longest path through the graph of its dynamic instructions, so it is a maximum of functions that
are linear in the latencies. A walk at given latencies finds the path that decides there, as a count of each latency.
"""

from __future__ import annotations

from abstim.analytic.nodes import FETCH_MISS, LOAD, ONE, PARAM_LOAD, SHARED_ATOMIC, expand
from functional.jit.compile import jit
from functional.jit.machine_code import compiled
from precharacterize.classify import Kind

FENCE, GLOBAL_ATOMIC = int(Kind.FENCE), int(Kind.GLOBAL_ATOMIC)
TO_ACCESS_CYCLES = 3  # issue -> start of an access, operands read without conflict
DRAIN_CYCLES = 6  # last issue -> end of the warp


@jit
def result_of(node, row, latency, unit_free):
    """When an issued instruction is complete; returns when the load/store unit is free again."""
    node.shift = row.fixed
    if row.kind < PARAM_LOAD:
        node.done = node.time + node.shift + latency[node.latency]
        return unit_free
    begin = max(node.time + TO_ACCESS_CYCLES, unit_free)
    node.shift += begin - node.time - TO_ACCESS_CYCLES + max(0, node.work - 1)
    if node.work == 0:  # no active lane
        node.latency, node.shift = ONE, begin - node.time
    node.done = node.time + node.shift + latency[node.latency]
    return begin + max(1, node.work)


@jit
def wait_for(node, nodes, j):
    """Issue not before the result of node `j` (-1: none)."""
    if j >= 0 and nodes[j].done > node.time:
        node.time, node.after, node.issue_bound = nodes[j].done, j, 0


@jit
def schedule(code, waits, writes, writer, count, nodes, latency):
    """Issue and completion times of a warp's instructions; returns the one that is complete last.

    `writer` is scratch: the instruction that wrote each register last.
    """
    writer[:] = -1
    unit_free, blocker, latest = 0.0, -1, 0
    for n in range(count):
        node, i = nodes[n], nodes[n].instr
        node.after, node.issue_bound = n - 1, 1
        node.time = (nodes[n - 1].time if n else 0.0) + node.gap + node.missed * latency[FETCH_MISS]
        for k in range(waits.shape[1]):
            if waits[i, k] >= 0:
                wait_for(node, nodes, writer[waits[i, k]])
        wait_for(node, nodes, blocker)
        unit_free = result_of(node, code[i], latency, unit_free)
        blocker = -1
        if code[i].kind == SHARED_ATOMIC or code[i].kind == GLOBAL_ATOMIC:
            blocker = n
        elif code[i].kind == FENCE:
            blocker = latest
        if node.done > nodes[latest].done:
            latest = n
        for k in range(writes.shape[1]):
            if writes[i, k] >= 0:
                writer[writes[i, k]] = n
    return latest


@jit
def longest_path(nodes, count, latest, path, batches):
    """Add the counts of each latency on the longest path to `path`; returns how many rows of `batches` it filled.

    A batch is what a critical load waits for: the loads issued since the use of the critical load before it, as a
    range of line records.
    """
    n, found = count - 1, 0
    waited = nodes[latest].done > nodes[n].time + DRAIN_CYCLES
    if not waited:
        path[ONE] += DRAIN_CYCLES
    consumer, n = (count, latest) if waited else (n, n)
    while n >= 0:
        node = nodes[n]
        if waited:  # for this node's result
            path[ONE] += node.shift
            path[node.latency] += 1
            if node.latency == LOAD and found < len(batches):
                if found:
                    batches[found - 1, 0] = nodes[consumer].record
                batches[found, 0], batches[found, 1] = nodes[0].record, nodes[consumer].record
                found += 1
        if node.issue_bound:
            path[ONE] += node.gap
            path[FETCH_MISS] += node.missed
        waited = not node.issue_bound
        consumer, n = n, node.after
    return found


@jit
def count_work(code, nodes, count, by_class, totals):
    """Add what a warp asks of the units: instructions a class; fetches, accesses, their cycles."""
    for n in range(count):
        node, row = nodes[n], code[nodes[n].instr]
        totals[0] += (node.gap > 1) + (node.gap == 4)  # behind a branch from the end of a pair one more, in vain
        if row.kind >= PARAM_LOAD:
            totals[1] += 1
            totals[2] += max(1, node.work)
        elif row.kind != FENCE:
            by_class[row.latency] += row.times


@compiled
def walk_blocks(
    code, waits, writes, streams, first, stop, warps, latency, cold, records, paths, batches, work, scratch, result
):
    """Walk the warps of thread blocks `first` .. `stop` - 1, each alone, and keep the longest of each block.

    Filled in: `records`: (action, transactions) of each line record; `paths`: counts of LATENCIES a block; `batches`:
    see `longest_path`; `work`: (by class, totals); `result`: the block that takes longest, and how many batches there
    are. `scratch`: twice the instructions of the longest warp and one more, and what `schedule` and `expand` need.
    """
    actions, transactions = records
    nodes, kept, writer, lines, constants = scratch
    found, longest, longest_end = 0, first, -1.0
    for block in range(first, stop):
        best, best_end, best_latest = 0, -1.0, 0
        for warp in range(block * warps, (block + 1) * warps):
            count = expand(code, streams, warp, cold, nodes, actions, transactions, lines, constants)
            latest = schedule(code, waits, writes, writer, count, nodes, latency)
            count_work(code, nodes, count, work[0], work[1])
            end = max(nodes[latest].done, nodes[count - 1].time + DRAIN_CYCLES)
            if end > best_end:
                best, best_end, best_latest = count, end, latest
                nodes, kept = kept, nodes
        found += longest_path(kept, best, best_latest, paths[block - first], batches[found:])
        if best_end > longest_end:
            longest, longest_end = block, best_end
    result[0], result[1] = longest, found
