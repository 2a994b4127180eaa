"""One warp alone: its dynamic instructions, when it issues each, and the longest chain of latencies behind that.

A warp's time is the longest path through the graph of its dynamic instructions, so it is a maximum of functions that
are linear in the latencies. A walk at given latencies finds the path that decides there, as a count of each latency."""

from typing import NamedTuple

import numpy as np

from abstim.engine import accesses
from abstim.gpu.spec import INSTRUCTION_CLASSES
from functional.arrays import Float64, Int8, Int32, Int64
from precharacterize.classify import Kind
from precharacterize.table import brought

# Latencies a warp's time is made of: of the instruction classes, then these; `one` is a cycle no parameter changes.
_BEYOND = ("shared", "const", "load", "store", "atomic", "fetch_miss", "const_miss", "one")
LATENCIES, CLASSES = (*INSTRUCTION_CLASSES, *_BEYOND), len(INSTRUCTION_CLASSES)
SHARED, CONST, LOAD, STORE, ATOMIC, FETCH_MISS, CONST_MISS, ONE = (LATENCIES.index(name) for name in _BEYOND)

LONG_CYCLES = 400.0  # of a load, and a miss, beyond a hit, in walks

# What a line record does: nothing, looks up L1D, passes it as a store, or as an atomic; does a load pass it, too; and
# behind that, in which turn
NOTHING, LOOK_UP, WRITE, UPDATE = 0, 1, 2, 3
ACTION, PASSING, TURN_SHIFT = 3, 4, 3

# One a static instruction; `fixed`: cycles from issue to result beyond its latency; `times`: as how many it is to
# its unit, which a product of many rows holds for longer; where what it waits for, and writes, is in `operands`
_CODE = "pc", "latency", "fixed", "times", "kind", "bytes", "waits_at", "waits_end", "writes_at", "writes_end"
CODE = np.dtype([(name, "i4") for name in _CODE])
# One of those that have line records, or may wait for a load: transactions are of so many bytes (0: it has no line
# records); registers that loads write are bits, of which those beyond 64 share one: those it waits for, and loads
STEP = np.dtype([("awaited", "u8"), ("loaded", "u8"), ("action", "i4"), ("bytes", "i4")])
NODE = np.dtype(
    [
        ("instr", "i4"), ("gap", "i4"), ("missed", "i4"), ("latency", "i4"), ("work", "i4"), ("record", "i8"),
        ("time", "f8"), ("done", "f8"), ("shift", "f8"), ("after", "i8"), ("issue_bound", "i4"),
    ],
    align=True,
)  # fmt: skip


class Reading(NamedTuple):
    """How a GPU takes a trace: instructions that a fetch brings, and of a line; sectors that a load of an absent line
    asks for besides its own, as bits; does L1D drop a line that is written; does global memory bypass it; how many may
    wait in L2 for one of a line's sectors that come in requests of their own?"""

    fetch_width: int
    fetch_line: int
    besides: int
    drops: int
    bypass: int
    merges: int
    machine: np.ndarray  # MACHINE, of the detailed engine: one element


class TimedCode(NamedTuple):
    """A program on a GPU, and the latencies of walks. The steps of basic block b begin at first_step[b]."""

    rows: np.ndarray  # CODE
    operands: Int32[np.ndarray, " operand"]
    latencies: Float64[np.ndarray, " latency"]
    first_step: Int64[np.ndarray, " block_plus_1"]
    steps: np.ndarray  # STEP


class Kinds(NamedTuple):
    """Kinds of warps: those of one execute the same, and ask the same of the units. A warp's phases lie between its
    barriers."""

    phases: Int64[np.ndarray, "kind 2"]  # where its own begin and end in the next four
    work: Float64[np.ndarray, "phase 6"]  # OF_WALKS
    ends: Float64[np.ndarray, " phase"]  # cycles of a phase
    paths: Float64[np.ndarray, "phase latency"]  # counts of LATENCIES on its longest path
    batches: Int64[np.ndarray, "phase 2"]  # where its own begin and end in `ranges`: see `longest_path`
    ranges: Int64[np.ndarray, "batch 2"]  # of line records behind the warp's first


class Walking(NamedTuple):
    """Scratch of walks: the instructions of a warp, and one more; the one that wrote each register last; whether a line
    of code is fetched, and the lines of constants that are; the last instruction of each phase; of a turn, instructions
    up to the first access and behind, accesses, cycles of those, and of the last one of the turn before."""

    nodes: np.ndarray  # NODE
    writer: Int64[np.ndarray, " register"]
    lines: Int8[np.ndarray, " line"]
    constants: Int64[np.ndarray, " line"]
    cuts: Int64[np.ndarray, " phase"]
    turn: Float64[np.ndarray, " 5"]


class Walk(NamedTuple):
    """What walks find, and their scratch."""

    kinds: Kinds
    walking: Walking


def fetch_of(node, pc, previous_pc, left, reading, lines, cold):
    """Issue cycles behind the previous instruction (rule 7); returns the instructions left of the pair."""
    node.missed = 0
    if pc == previous_pc + 1 and left > 0:
        node.gap = 1
        return left - 1
    node.gap = 2 if pc == previous_pc + 1 or previous_pc < -1 else 4 if left == 0 else 3
    line = pc // reading.fetch_line
    if cold:
        node.missed = 1 - lines[line]
        for there in range(line, min(line + 1 + reading.machine[0].l1i_prefetch_lines, len(lines))):
            lines[there] = 1
    return brought(reading.fetch_width, reading.fetch_line, pc) - 1


def is_in(lines, line):
    """Is a line in a list that ends with -1? If not, it is from now on: a kernel has few lines of constants."""
    k = 0
    while lines[k] >= 0:
        if lines[k] == line:
            return True
        k += 1
    lines[k], lines[k + 1] = line, -1
    return False


def action_of(kind):
    """What line records of an instruction of a kind do, but for windows."""
    if kind < Kind.GLOBAL_LOAD:
        return NOTHING
    return LOOK_UP if kind == Kind.GLOBAL_LOAD else WRITE if kind == Kind.GLOBAL_STORE else UPDATE


def access_of(node, row, records, reading, first, constants, cold):
    """Latency and work of a memory instruction with line records; returns where the next one's begin."""
    end, line = accesses.end_of_access(records, first), accesses.line_of(records[first])
    node.work = 0
    if accesses.sectors_of(records[first]):
        node.work = max(1, accesses.pipe_cycles(reading.machine[0], records, first, end, row.kind, row.bytes))
    if row.kind >= Kind.GLOBAL_LOAD:
        if line == accesses.SHARED_LINE:
            node.latency = SHARED
    elif cold and node.work and not is_in(constants, line):
        node.latency = CONST_MISS
    return end


def expand(code, streams, offsets, reading, warp, cold, walking):
    """Fill in the nodes of the warp's instructions; returns how many they are."""
    nodes = walking.nodes
    if cold:
        walking.lines[:] = 0
        walking.constants[0] = -1
    record, conflict = offsets.records[warp], offsets.conflicts[warp]
    n, previous_pc, left = 0, -2, 0
    for event in range(offsets.blocks[warp], offsets.blocks[warp + 1]):
        block = streams.blocks[event]
        for i in range(streams.block_start[block], streams.block_stop[block]):
            node, row = nodes[n], code.rows[i]
            left = fetch_of(node, row.pc, previous_pc, left, reading, walking.lines, cold)
            node.instr, node.latency, node.work, node.record = i, row.latency, 1, record
            if Kind.SHARED_LOAD <= row.kind <= Kind.SHARED_ATOMIC:
                node.work = accesses.shared_hold(reading.machine[0], streams.conflicts[conflict])
                conflict += 1
            elif row.kind >= Kind.PARAM_LOAD:
                record = access_of(node, row, streams.records, reading, record, walking.constants, cold)
            previous_pc = row.pc
            n += 1
    nodes[n].record = record
    return n


TO_ACCESS_CYCLES = 3  # issue -> start of an access, operands read without conflict
DRAIN_CYCLES = 6  # last issue -> end of the warp


def result_of(node, row, latency, unit_free):
    """When an issued instruction is complete; returns when the load/store unit is free again."""
    node.shift = row.fixed
    if row.kind < Kind.PARAM_LOAD:
        node.done = node.time + node.shift + latency[node.latency]
        return unit_free
    begin = max(node.time + TO_ACCESS_CYCLES, unit_free)
    node.shift += begin - node.time - TO_ACCESS_CYCLES + max(0, node.work - 1)
    if node.work == 0:  # no active lane
        node.latency, node.shift = ONE, begin - node.time
    node.done = node.time + node.shift + latency[node.latency]
    return begin + max(1, node.work)


def wait_for(node, nodes, j):
    """Issue not before the result of node `j` (-1: none)."""
    if j >= 0 and nodes[j].done > node.time:
        node.time, node.after, node.issue_bound = nodes[j].done, j, 0


def end_turn(turn, work):
    """Add the issue slots, with 1, 2 and 4 schedulers, in which the load/store unit works though warps are in step: for
    accesses that they do not wait for, and for the last one of all warps, when the first has its own."""
    for k in range(3):
        work[3 + k] += min(turn[0], turn[4] * (1 << k)) + min(turn[1], turn[3] * (1 << k))
    turn[4] = turn[3] / max(1.0, turn[2])
    turn[:4] = 0


def schedule(code, walking, count, latency, most, work):
    """Issue and completion times of a warp's instructions, and what its phases, between barriers, ask of units that all
    share; returns (the one that is complete last, how many phases there are, at most so many)."""
    nodes, writer, operands, turn = walking.nodes, walking.writer, code.operands, walking.turn
    writer[:] = -1
    turn[:] = 0
    unit_free, blocker, latest, phases, begun = 0.0, -1, 0, 0, 0
    work[0][:] = 0
    for n in range(count):
        node, row = nodes[n], code.rows[nodes[n].instr]
        node.after, node.issue_bound = n - 1, 1
        node.time = (nodes[n - 1].time if n else 0.0) + node.gap + node.missed * latency[FETCH_MISS]
        for k in range(row.waits_at, row.waits_end):
            wait_for(node, nodes, writer[operands[k]])
        wait_for(node, nodes, blocker)
        if not node.issue_bound and node.after >= begun and code.rows[nodes[node.after].instr].kind >= Kind.PARAM_LOAD:
            end_turn(turn, work[phases])
            begun = n
        turn[turn[2] > 0] += 1
        unit_free = result_of(node, row, latency, unit_free)
        work[phases, 0] += (node.gap > 1) + (node.gap == 4)  # behind a branch from the end of a pair one more, in vain
        if row.kind >= Kind.PARAM_LOAD:
            work[phases, 1] += 1
            work[phases, 2] += max(1, node.work)
            turn[2] += 1
            turn[3] += max(1, node.work)
        blocker = -1
        if row.kind == Kind.SHARED_ATOMIC or row.kind == Kind.GLOBAL_ATOMIC:
            blocker = n
        elif row.kind == Kind.FENCE:
            blocker = latest
        if n == count - 1 or (row.kind == Kind.BARRIER and phases < most - 1):
            walking.cuts[phases] = n
            end_turn(turn, work[phases])
            turn[4], begun = 0, n + 1
            phases += 1
            work[phases][:] = 0
        if node.done > nodes[latest].done:
            latest = n
        for k in range(row.writes_at, row.writes_end):
            writer[operands[k]] = n
    return latest, phases


def longest_path(walking, count, latest, phases, kinds, first, begin):
    """Counts of each latency on the longest path of every phase, the `first` one's and those behind it; returns where
    the ranges end.

    A batch is what a critical load waits for: the loads issued since the use of the critical load before it, as a
    range of line records, from `begin` on. What was issued before a phase costs it what is left then."""
    nodes, ranges, n, found = walking.nodes, kinds.ranges, count - 1, begin
    waited = nodes[latest].done > nodes[n].time + DRAIN_CYCLES
    end = nodes[latest].done if waited else nodes[n].time + DRAIN_CYCLES
    consumer, n = (count, latest) if waited else (n, n)
    for k in range(phases):
        phase, start = first + phases - 1 - k, walking.cuts[phases - 2 - k] if k < phases - 1 else -1
        path, begun = kinds.paths[phase], nodes[start].time if start >= 0 else 0.0
        path[:] = 0
        path[ONE] = 0 if waited or k else DRAIN_CYCLES
        kinds.ends[phase], kinds.batches[phase, 0] = end - begun, found
        while n > start or waited:
            node = nodes[n]
            if waited:  # for this node's result
                path[ONE] += node.shift - max(0.0, begun - node.time)
                path[node.latency] += 1
                if node.latency == LOAD and found < len(ranges):
                    if found > begin:
                        ranges[found - 1, 0] = nodes[consumer].record
                    ranges[found, 0], ranges[found, 1] = nodes[0].record, nodes[consumer].record
                    found += 1
            waited = n > start and not node.issue_bound
            if n > start:
                if node.issue_bound:
                    path[ONE] += node.gap
                    path[FETCH_MISS] += node.missed
                consumer, n = n, node.after
        kinds.batches[phase, 1] = found
        consumer, n, end = start, start, begun
    return found


def walk_kind(code, streams, offsets, reading, warp, cold, kinds, kind, walking):
    """Walk a warp that is the first of its kind; the phases and batches of those before it are kept."""
    record, first, begin = offsets.records[warp], 0, 0
    if kind:
        first = kinds.phases[kind - 1, 1]
        begin = kinds.batches[kinds.phases[kind - 1, 0], 1]  # the last ones come first
    count = expand(code, streams, offsets, reading, warp, cold, walking)
    most = len(kinds.ends) - first - (len(kinds.phases) - 1 - kind)  # one is left for every other kind
    latest, phases = schedule(code, walking, count, code.latencies, most, kinds.work[first:])
    kinds.phases[kind, 0], kinds.phases[kind, 1] = first, first + phases
    found = longest_path(walking, count, latest, phases, kinds, first, begin)
    for n in range(begin, found):
        kinds.ranges[n, 0], kinds.ranges[n, 1] = kinds.ranges[n, 0] - record, kinds.ranges[n, 1] - record
