"""A compiled look at a launch: its warps, of which those that do the same are read and walked once, and a sample of the
lines that they touch."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from abstim.analytic.line_sample import Lines, look_at_enough, most_updated, spread_of
from abstim.analytic.lone_warp import (
    CLASSES,
    LATENCIES,
    LOOK_UP,
    NOTHING,
    WRITE,
    Kinds,
    Records,
    Walking,
    access_of,
    walk_kind,
)
from abstim.analytic.reuse_distance import DISTANCE_BINS, ROWS, Reuse, fill_table, use_caches
from abstim.engine.accesses import SHARED_LINE, line_of, more_follow, sectors_in, sectors_of, segment
from functional.arrays import Int32, Int64, UInt8
from functional.jit.machine_code import compiled
from functional.jit.marked import jit, zero
from functional.traces.line_record import LINE_SHIFT
from precharacterize.classify import Kind

SM_NODES = (2, 7, 23, 79)  # SM counts (no multiples of a usual grid width) and thread blocks an SM
RESIDENT_NODES = (1, 2, 4, 8, 16, 32)  # for which reuse distances are taken
MOST_SMS = 128  # for which the imbalance between SMs is looked at
# Of the warp instructions looked at, those that are walked, within limits; thread blocks far apart stand for the others
WALKED, MOST_WALKED = 64, 1 << 15
MOST_USES = 1 << 14  # of lines that are looked at, by the SMs whose L1D is
WAITED, LEAST_WAITED = 32, 1 << 10  # of the line records, those of batches of loads that are looked at, or so many
FIRST_LOCAL = 1 << 31
SHAPE = FIRST_LOCAL | (1 << LINE_SHIFT) - 1  # of a line record: is it of no array, its sectors, does another one follow

# What a launch asks of the units, all thread blocks together
WORK = (
    "instructions",  # warp instructions
    "results",  # of them, those on arithmetic units
    "fetches", "accesses",  # instructions on the load/store unit
    "access_cycles",  # it is busy
    "lookups",  # transactions that look up L1D
    "lines",  # the same, an instruction's transactions on one line counted once
    "load_sectors",  # that those ask for if all miss
    "stores",  # transactions
    "store_lines", "store_sectors", "atomics", "hottest_atomics",  # on one line
)  # fmt: skip


class Looked(NamedTuple):
    """A launch as it is looked at: instructions of its warps, and warps of a thread block; for which `sms`, `residents`
    and SM counts `dealt`, and which are `used`, see Nodes. The others are scratch: instructions of each thread block;
    is it walked (1: as one of those spread evenly, 2: as the one with the longest warp); kinds of the warps walked; how
    often each basic block is executed; instructions of SMs; batches of loads as line records, and the warp whose they
    are."""

    warp_instructions: Int64[np.ndarray, " warp"]
    sms: Int64[np.ndarray, " sm"]
    residents: Int64[np.ndarray, " resident"]
    dealt: Int64[np.ndarray, " 2"]
    used: UInt8[np.ndarray, "sm resident"]
    instructions: Int64[np.ndarray, " tb"]
    chosen: UInt8[np.ndarray, " tb"]
    kind_of_warp: Int64[np.ndarray, " warp"]
    executed: Int64[np.ndarray, " block"]
    of_sms: Int64[np.ndarray, " sm"]
    batches: Int32[np.ndarray, "batch 3"]
    warps: int
    most_instructions: int  # limits, named above
    least_walked: int
    least_lines: int


# Of a warp that is the first of those that do the same: how many they are; how many turns of accesses each takes; the
# kind that it is walked as, + 1 (0: it is not); sums of WORK over its line records
LEADER = np.dtype([(name, "i4") for name in ("members", "turns", "kind", *WORK[5:12])])


class Read(NamedTuple):
    """Scratch: the leader of each warp, and of its line records what they do, and in which turn."""

    of_warps: Int32[np.ndarray, " warp"]
    leaders: np.ndarray  # LEADER, by warp
    done: Records
    turns: Int32[np.ndarray, " record"]


@jit
def are_equal(numbers, first, stop, shift):
    """Some numbers, and those `shift` places behind."""
    k = first
    while k < stop and numbers[k] == numbers[k + shift]:
        k += 1
    return k == stop


@jit
def ask_alike(records, first, stop, shift):
    """Line records, and those `shift` places behind: the same but for the lines' numbers?"""
    for k in range(first, stop):
        word, other = records[k], records[k + shift]
        if (word ^ other) & SHAPE:
            return False
        if word >= FIRST_LOCAL and (line_of(word) == SHARED_LINE) != (line_of(other) == SHARED_LINE):
            return False
    return True


@jit
def is_like(streams, offsets, w, other):
    """Does a warp execute what another one does, and ask the same of the load/store unit, of other lines?"""
    events, records, passes = offsets.blocks, offsets.records, offsets.conflicts
    if events[w + 1] - events[w] != events[other + 1] - events[other]:
        return False
    if records[w + 1] - records[w] != records[other + 1] - records[other]:
        return False
    if passes[w + 1] - passes[w] != passes[other + 1] - passes[other]:
        return False
    return (
        are_equal(streams.blocks, events[w], events[w + 1], events[other] - events[w])
        and ask_alike(streams.records, records[w], records[w + 1], records[other] - records[w])
        and are_equal(streams.conflicts, passes[w], passes[w + 1], passes[other] - passes[w])
    )


@jit
def read_leader(code, streams, offsets, reading, w, read, constants, node):
    """What the line records of a warp do."""
    record = offsets.records[w]
    for event in range(offsets.blocks[w], offsets.blocks[w + 1]):
        block = streams.blocks[event]
        for n in range(code.first_access[block], code.first_access[block + 1]):
            row = code.rows[code.accesses[n]]
            if not Kind.SHARED_LOAD <= row.kind <= Kind.SHARED_ATOMIC:
                record = access_of(node, row, streams.records, reading, record, read.done, constants, False)
    own, turn, asks = read.leaders[w], 0, 0
    for r in range(offsets.records[w], record):
        action, transactions, sectors = read.done.actions[r], read.done.transactions[r], sectors_of(streams.records[r])
        asks |= action != NOTHING
        read.turns[r] = turn
        if action == LOOK_UP:
            own.lookups += transactions
            own.lines += 1
            own.load_sectors += sectors_in(sectors | reading.besides)
        elif action == WRITE:
            own.stores += transactions
            own.store_lines += 1
            own.store_sectors += sectors_in(segment(reading.machine[0], sectors))
        elif action != NOTHING:
            own.atomics += transactions
        if not more_follow(streams.records[r]):
            turn, asks = turn + asks, 0
    own.turns = turn


@jit
def read_warps(code, streams, offsets, reading, looked, blocks, read, walking, out):
    """Find the leaders of the first thread blocks' warps, and what all ask for."""
    for w in range(blocks * looked.warps):
        leader = w
        for before in (1, looked.warps):
            if leader == w and w >= before and is_like(streams, offsets, w, read.of_warps[w - before]):
                leader = read.of_warps[w - before]
        if leader == w:
            read_leader(code, streams, offsets, reading, w, read, walking.constants, walking.nodes[0])
        read.of_warps[w] = leader
        read.leaders[leader].members += 1
    for w in range(blocks * looked.warps):
        own = read.leaders[w]
        if own.members:
            out.lookups += own.members * own.lookups
            out.lines += own.members * own.lines
            out.load_sectors += own.members * own.load_sectors
            out.stores += own.members * own.stores
            out.store_lines += own.members * own.store_lines
            out.store_sectors += own.members * own.store_sectors
            out.atomics += own.members * own.atomics
            for event in range(offsets.blocks[w], offsets.blocks[w + 1]):
                looked.executed[streams.blocks[event]] += own.members


class Walk(NamedTuple):
    """What walks find, and their scratch."""

    kinds: Kinds
    walking: Walking


@jit
def choose(looked):
    """Choose thread blocks to be walked; returns (how many are looked at, instructions of the longest warp of a mean
    one of those over that of the ones spread evenly)."""
    warps, total, blocks, most = looked.warps, 0, 0, 0
    for b in range(len(looked.instructions)):
        for w in range(b * warps, (b + 1) * warps):
            looked.instructions[b] += looked.warp_instructions[w]
        if total + looked.instructions[b] <= looked.most_instructions or b == 0:
            total, blocks = total + looked.instructions[b], b + 1
    walked = min(max(looked.least_walked, total // WALKED), MOST_WALKED)
    few = max(1, min(blocks, blocks * walked // max(1, total)))
    for k in range(few):
        looked.chosen[k * blocks // few] = 1
    every = spread = longest = 0
    for b in range(blocks):
        own = 0
        for w in range(b * warps, (b + 1) * warps):
            own = max(own, looked.warp_instructions[w])
        every += own
        spread += own if looked.chosen[b] else 0
        if own > most:
            most, longest = own, b
    looked.chosen[longest] |= 2
    return blocks, every / blocks / (spread / few)


@jit
def walk_first(code, streams, offsets, reading, warps, read, walk, out):
    """The path of the first thread block's longest warp where nothing is in caches."""
    kinds, before = walk.kinds, 0
    for w in range(warps):
        walk_kind(code, streams, offsets, reading, w, True, kinds, w, before, walk.walking, read.done)
        before = kinds.batches[w, 1]
    best = 0
    for w in range(1, warps):
        best = w if kinds.ends[w] > kinds.ends[best] else best
    add_path(out.cold_path, kinds.paths[best], 1.0)


@jit
def walk_chosen(code, streams, offsets, reading, looked, blocks, read, walk):
    """Walk the leaders of the warps of the thread blocks chosen, each alone."""
    count = number = begin = 0
    for block in range(blocks):
        if looked.chosen[block]:
            for w in range(block * looked.warps, (block + 1) * looked.warps):
                leader = read.of_warps[w]
                own = read.leaders[leader]
                if not own.kind:
                    kinds, walking = walk.kinds, walk.walking
                    walk_kind(
                        code, streams, offsets, reading, leader, False, kinds, count, begin, walking, read.done
                    )  # fmt: skip
                    begin, count = walk.kinds.batches[count, 1], count + 1
                    own.kind = count
                looked.kind_of_warp[number] = own.kind - 1
                number += 1


@jit
def longest_of(looked, kinds, first):
    """Of a thread block's warps the first that takes longest."""
    best = first
    for n in range(first + 1, first + looked.warps):
        if kinds.ends[looked.kind_of_warp[n]] > kinds.ends[looked.kind_of_warp[best]]:
            best = n
    return best


@jit
def add_paths(looked, blocks, share, kinds, out):
    """Paths of the thread blocks that were walked; `share`: by how much those of others are longer."""
    first = spread = 0
    longest = -1.0
    for block in range(blocks):
        if looked.chosen[block]:
            kind = looked.kind_of_warp[longest_of(looked, kinds, first)]
            if block == 0:
                add_path(out.cold_path, kinds.paths[kind], -1.0)
            if looked.chosen[block] & 1:
                add_path(out.path, kinds.paths[kind], share)
                spread += 1
            if kinds.ends[kind] > longest:
                longest = kinds.ends[kind]
                out.longest_path[:] = 0
                add_path(out.longest_path, kinds.paths[kind], 1.0)
            first += looked.warps
    for k in range(len(LATENCIES)):
        out.path[k] /= spread


@jit
def add_path(to, path, times):
    """Add a path, so many times, to another."""
    for k in range(len(LATENCIES)):
        to[k] += path[k] * times


@jit
def add_work(looked, blocks, kinds, out):
    """What the warps walked ask of the units that all instructions share, as much for all others."""
    number = instructions = 0
    for block in range(blocks):
        if looked.chosen[block]:
            for w in range(block * looked.warps, (block + 1) * looked.warps):
                work = kinds.work[looked.kind_of_warp[number]]
                out.fetches += work[0]
                out.accesses += work[1]
                out.access_cycles += work[2]
                instructions += looked.warp_instructions[w]
                number += 1
    out.instructions = 0
    for block in range(len(looked.instructions)):
        out.instructions += looked.instructions[block]
    times = out.instructions / max(1, instructions)
    out.fetches *= times
    out.accesses *= times
    out.access_cycles *= times


@jit
def collect_batches(looked, blocks, offsets, read, kinds, step):
    """One of `step` batches of loads of the longest warps, as if by chance, for a loop has a period; as ranges of line
    records. Returns (how many were collected, how many line records all have)."""
    first = count = kept = records = turns = 0
    for block in range(blocks):
        if looked.chosen[block]:
            n = longest_of(looked, kinds, first)
            kind, w = looked.kind_of_warp[n], block * looked.warps + n - first
            start = offsets.records[w]
            turns += read.leaders[read.of_warps[w]].turns
            for k in range(kinds.batches[kind, 0], kinds.batches[kind, 1]):
                if spread_of(count) * step >> 32 == 0 and kept < len(looked.batches):
                    looked.batches[kept, 0] = start + kinds.ranges[k, 0]
                    looked.batches[kept, 1] = start + kinds.ranges[k, 1]
                    looked.batches[kept, 2] = w
                    kept += 1
                records += kinds.ranges[k, 1] - kinds.ranges[k, 0]
                count += 1
            first += looked.warps
    return kept, records, max(0, (turns + count // 2) // max(1, count) - 1)


@jit
def fill_tables(looked, batches, reading, reuse, out):
    """Tables of misses at all nodes. An SM without a thread block changes nothing, nor does room on an SM for more than
    it gets."""
    size, blocks = reuse.uses.sizes[0], reuse.uses.sizes[0].blocks
    most = max(1, min(64 // looked.warps, (blocks + SM_NODES[0] - 1) // SM_NODES[0]))
    for s in range(len(looked.sms)):
        busy, held = min(looked.sms[s], blocks), 0
        for k in range(len(looked.residents)):
            before, held = held, min(looked.residents[k], min(most, (blocks + busy - 1) // busy))
            if held == before and looked.used[s, k - 1]:
                copy_node(out, s, k - 1, s, k)
            elif s and busy == min(looked.sms[s - 1], blocks) and looked.used[s - 1, k]:
                copy_node(out, s - 1, k, s, k)
            elif looked.used[s, k]:
                measured = min(busy, max(1, busy * MOST_USES // max(1, size.uses)))
                found, level = reuse.found, reuse.level
                loads = use_caches(reuse.uses, busy, held, measured, reading.drops, reuse.order, level, found)
                fill_table(reuse.uses, looked.batches[:batches], found, reuse.counts, loads, out.misses[s, k])
                out.crowds[s, k] = level.state[0].all_asked if reading.bypass else level.state[0].all_fetched


@jit
def copy_node(out, s, k, to_s, to_k):
    """What was found at a node, to another one."""
    out.crowds[to_s, to_k] = out.crowds[s, k]
    for row in range(ROWS):
        for column in range(DISTANCE_BINS):
            out.misses[to_s, to_k, row, column] = out.misses[s, k, row, column]


@jit
def deal(looked, out):
    """Instructions of the busiest SM over those of mean thread blocks, dealt out in turn, as they are as long as every
    SM has room."""
    total, count = 0, len(looked.instructions)
    for block in range(count):
        total += looked.instructions[block]
    for n in range(looked.dealt[0], looked.dealt[1] + 1):
        looked.of_sms[:n] = 0
        sm = most = 0
        for block in range(count):
            looked.of_sms[sm] += looked.instructions[block]
            most = max(most, looked.of_sms[sm])
            sm = sm + 1 if sm < n - 1 else 0
        out.imbalance[n - 1] = most / ((count + n - 1) // n * (total / count))


@jit
def count_classes(code, streams, looked, out):
    """Instructions on arithmetic units by class."""
    for block in range(len(looked.executed)):
        for i in range(streams.block_start[block], streams.block_stop[block]):
            row = code.rows[i]
            if row.kind < Kind.PARAM_LOAD and row.kind != Kind.FENCE and row.latency < CLASSES:
                out.by_class[row.latency] += looked.executed[block] * row.times


@compiled
def look(code, streams, offsets, reading, looked, scratch, out):
    """Fill in a SUMMARY of a launch, but for its shape and nodes, of arrays that are 0."""
    blocks, share = choose(looked)
    lines, reuse, read, walk = scratch.lines, scratch.reuse, scratch.read, scratch.walk
    zero(read.leaders[: blocks * looked.warps])
    zero(read.done.actions[: offsets.records[blocks * looked.warps]])
    deal(looked, out)
    walk_first(code, streams, offsets, reading, looked.warps, read, walk, out)
    read_warps(code, streams, offsets, reading, looked, blocks, read, walk.walking, out)
    count_classes(code, streams, looked, out)
    walk_chosen(code, streams, offsets, reading, looked, blocks, read, walk)
    add_paths(looked, blocks, share, walk.kinds, out)
    add_work(looked, blocks, walk.kinds, out)
    if out.atomics > 0:
        out.hottest_atomics = most_updated(streams, offsets, looked, blocks, read, lines, reuse.uses.sizes[0])
    kept, records, reuse.uses.sizes[0].window = collect_batches(looked, blocks, offsets, read, walk.kinds, 1)
    most = max(LEAST_WAITED, offsets.records[blocks * looked.warps] // WAITED)
    if records > most:
        kept, records, _ = collect_batches(looked, blocks, offsets, read, walk.kinds, records // most + 1)
    look_at_enough(streams, offsets, reading, looked, blocks, kept, read, lines, reuse.uses)
    fill_tables(looked, kept, reading, reuse, out)
    stand_for_all(looked, blocks, out)


@jit
def stand_for_all(looked, blocks, out):
    """What the thread blocks that were looked at ask for, so many times as there are more of them, or instructions."""
    times, own = len(looked.instructions) / blocks, 0
    for block in range(blocks):
        own += looked.instructions[block]
    for k in range(CLASSES):
        out.by_class[k] *= out.instructions / own
        out.results += out.by_class[k]
    out.lookups *= times
    out.lines *= times
    out.load_sectors *= times
    out.stores *= times
    out.store_lines *= times
    out.store_sectors *= times
    out.atomics *= times
    out.hottest_atomics *= times


class Scratch(NamedTuple):
    """What a look needs, whatever the launch."""

    lines: Lines
    reuse: Reuse
    read: Read
    walk: Walk
