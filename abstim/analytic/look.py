"""A compiled look at a launch: its warps, of which those that do the same are read and walked once, and a sample of the
lines that they touch."""

from typing import Any, NamedTuple

import numpy as np

from abstim.analytic.block_path import BlockPath, find_path, kind_of
from abstim.analytic.line_sample import WAITED, Lines, look_at_enough, most_updated, spread_of
from abstim.analytic.lone_warp import CLASSES, LATENCIES, LOOK_UP, NOTHING, PASSING, TURN_SHIFT, WRITE, Walk, walk_kind
from abstim.analytic.reuse_distance import Reuse, fill_table, use_caches
from abstim.analytic.row_visits import see_visits
from abstim.engine import accesses
from abstim.engine.accesses import SHARED_LINE, line_of, sectors_in, sectors_of, segment
from abstim.engine.state import LOCAL_BACK, Offsets, Streams
from functional.arrays import Float32, Float64, Int32, Int64, UInt8
from functional.jit.marked import zero
from functional.traces.line_record import LINE_SHIFT, SECTORS_A_LINE
from functional.traces.trace import SECTOR_BYTES
from precharacterize.classify import Kind

MOST_SMS = 128  # for which the imbalance between SMs is looked at
# Of the warp instructions looked at, those that are walked, within limits; thread blocks far apart stand for the others
WALKED, MOST_WALKED = 64, 1 << 15
MOST_USES = 1 << 13  # of lines that are looked at, by the SMs whose L1D is
FIRST_LOCAL = 1 << 31
NO_REGISTER = np.uint64(0)
ALIKE = FIRST_LOCAL | (1 << LINE_SHIFT) - 1  # of a line record: is it of no array, its sectors, does another one follow

# What a launch asks of the units, all thread blocks together
WORK = (
    "instructions",  # warp instructions
    "results",  # of them, those on arithmetic units
    "fetches", "accesses",  # instructions on the load/store unit
    "access_cycles",  # it is busy
    "beside", "beside_of_2", "beside_of_4",  # issue slots in which it is, of warps in step, with 1, 2, 4 schedulers
    "lookups",  # transactions that look up L1D
    "lines",  # the same, an instruction's transactions on one line counted once
    "load_sectors",  # that those ask for if all miss
    "stores",  # transactions
    "store_lines", "store_sectors", "atomics", "hottest_atomics",  # on one line
)  # fmt: skip


OF_WALKS, OF_RECORDS = WORK[2:8], WORK[8:]  # those of walks, and of line records

SHAPE = "thread_blocks", "warps_per_block", "registers_per_thread", "shared_bytes", "l1d_bypass"
# Paths are counts of LATENCIES, the longest with long loads: of a thread block's longest warp, mean over blocks; of the
# longest block; what the first block's is longer by if the first use of a line of code or constants is a miss
_PATHS = "path", "longest_path", "cold_path"
_FIELDS = np.dtype([
    *((name, "f8") for name in (*SHAPE, *WORK)),
    ("lines_apart", "f8"),  # of so many lines one is looked at
    ("by_class", "f8", CLASSES),  # instructions on arithmetic units
    *((name, "f8", len(LATENCIES)) for name in _PATHS),
    ("imbalance", "f8", MOST_SMS),  # instructions of the busiest of 1, 2, ... SMs over those of mean blocks
])  # fmt: skip


def overlaid(fields: np.dtype, name: str, first: str) -> np.dtype:
    """A record type with an array more, of all numbers from a field on, where they are."""
    own: Any = fields.fields
    number, at = fields[0].base, own[first][1]
    formats, offsets = ([each[k] for each in own.values()] for k in (0, 1))
    formats.append((number, (fields.itemsize - at) // number.itemsize))
    return np.dtype({"names": [*own, name], "formats": formats, "offsets": [*offsets, at]})


SUMMARY = overlaid(overlaid(_FIELDS, "of_records", OF_RECORDS[0]), "of_walks", OF_WALKS[0])
SUMMARY = overlaid(SUMMARY, "filled", WORK[0])


class Tables(NamedTuple):
    """What depends on how thread blocks are shared out: for SM counts, and thread blocks that an SM holds (nodes: two
    or more, ascending), which pairs are asked for; from which SM count on, and up to which, the imbalance is; the
    number of the table of each pair.

    Tables have the SMs that have work, and thread blocks on each; sectors asked for of each turn's most wanted line;
    times that DRAM is waited for until all have one line; visits: see `row_visits.see_visits`; misses: see
    `reuse_distance.fill_table`."""

    sms: Float64[np.ndarray, " sm"]
    residents: Float64[np.ndarray, " resident"]
    asked: UInt8[np.ndarray, "sm resident"]
    dealt: Int64[np.ndarray, " 2"]
    numbers: Int32[np.ndarray, "sm resident"]
    spread: Int32[np.ndarray, "table 2"]
    crowds: Float64[np.ndarray, " table"]
    jams: Float64[np.ndarray, " table"]
    visits: Float64[np.ndarray, "table bin"]
    misses: Float32[np.ndarray, "table row bin"]


class Looked(NamedTuple):
    """A launch as it is looked at: besides its trace, warps of a thread block, and thread blocks."""

    streams: Streams
    offsets: Offsets
    warp_instructions: Int64[np.ndarray, " warp"]
    warps: int
    blocks: int


class Marks(NamedTuple):
    """Scratch: instructions of each thread block; is it walked (1: as one of those spread evenly, 2: as the one with
    the longest warp); how often each basic block is executed; instructions of SMs; batches of loads as line records,
    and the warp whose they are."""

    instructions: Int64[np.ndarray, " tb"]
    chosen: UInt8[np.ndarray, " tb"]
    executed: Int64[np.ndarray, " block"]
    of_sms: Int64[np.ndarray, " sm"]
    batches: Int32[np.ndarray, "batch 3"]


# Of a warp that is the first of those that do the same: how many they are; how many turns each takes; the kind that it
# is walked as, + 1 (0: it is not); sums of WORK over its line records
LEADER = overlaid(np.dtype([(n, "i4") for n in ("members", "turns", "kind", *OF_RECORDS[:-1])]), "work", OF_RECORDS[0])


class Read(NamedTuple):
    """Scratch: the leader of each warp, and of its line records what they do, and in which turn."""

    of_warps: Int32[np.ndarray, " warp"]
    leaders: np.ndarray  # LEADER, by warp
    acts: Int32[np.ndarray, " record"]


def are_equal(numbers, first, stop, shift):
    """Some numbers, and those `shift` places behind."""
    k = first
    while k < stop and numbers[k] == numbers[k + shift]:
        k += 1
    return k == stop


def ask_alike(records, first, stop, shift):
    """Line records, and those `shift` places behind: the same but for the lines' numbers?"""
    for k in range(first, stop):
        word, other = records[k], records[k + shift]
        if (word ^ other) & ALIKE:
            return False
        if word >= FIRST_LOCAL and (line_of(word) == SHARED_LINE) != (line_of(other) == SHARED_LINE):
            return False
    return True


def is_like(streams, offsets, w, other):
    """Does a warp execute what another one does, and ask the same of the load/store unit, of other lines?"""
    events, records, passes = offsets.blocks, offsets.records, offsets.conflicts
    return (
        events[w + 1] - events[w] == events[other + 1] - events[other]
        and records[w + 1] - records[w] == records[other + 1] - records[other]
        and passes[w + 1] - passes[w] == passes[other + 1] - passes[other]
        and are_equal(streams.blocks, events[w], events[w + 1], events[other] - events[w])
        and ask_alike(streams.records, records[w], records[w + 1], records[other] - records[w])
        and are_equal(streams.conflicts, passes[w], passes[w + 1], passes[other] - passes[w])
    )


def read_leader(code, streams, offsets, reading, w, read):
    """What the line records of a warp do, in which of its turns: one ends where the warp waits for a load of it."""
    record, turn, issued = offsets.records[w], 0, NO_REGISTER
    for event in range(offsets.blocks[w], offsets.blocks[w + 1]):
        block = streams.blocks[event]
        for n in range(code.first_step[block], code.first_step[block + 1]):
            step = code.steps[n]
            if step.awaited & issued:
                turn, issued = turn + 1, NO_REGISTER
            if step.bytes:
                record = read_access(step, streams.records, reading, record, turn, read.acts, read.leaders[w])
            issued |= step.loaded
    read.leaders[w].turns = turn + 1


def stored_sectors(reading, sectors, transaction_bytes):
    """Sectors that a store writes of a line: each transaction a segment."""
    width, stored = transaction_bytes // SECTOR_BYTES, 0
    for k in range(0, SECTORS_A_LINE, width):
        stored += sectors_in(segment(reading.machine[0], sectors & ((1 << width) - 1) << k))
    return stored


def read_access(step, records, reading, record, turn, acts, own):
    """What the line records of a memory instruction do, and ask for; returns where the next one's begin."""
    while True:
        word = records[record]
        line, sectors, action = line_of(word), sectors_of(word), step.action
        transactions = accesses.transactions_in(sectors, step.bytes)
        if not transactions or line == SHARED_LINE:
            action = NOTHING
        elif line >= accesses.LOCAL_LINE and action == WRITE and reading.machine[0].l1d_write == LOCAL_BACK:
            action = LOOK_UP
        acts[record] = turn << TURN_SHIFT | (PASSING if reading.bypass and line < accesses.LOCAL_LINE else 0) | action
        if action == LOOK_UP:
            own.lookups += transactions
            own.lines += 1
            own.load_sectors += sectors_in(sectors | reading.besides)
        elif action == WRITE:
            own.stores += transactions
            own.store_lines += 1
            own.store_sectors += stored_sectors(reading, sectors, step.bytes)
        elif action:
            own.atomics += transactions
        record += 1
        if not accesses.more_follow(word):
            return record


def read_warps(code, streams, offsets, reading, looked, executed, blocks, read, out):
    """Find the leaders of the first thread blocks' warps, and what all ask for."""
    for w in range(blocks * looked.warps):
        leader = w
        for before in (1, looked.warps):
            if leader == w and w >= before and is_like(streams, offsets, w, read.of_warps[w - before]):
                leader = read.of_warps[w - before]
        if leader == w:
            read_leader(code, streams, offsets, reading, w, read)
        read.of_warps[w] = leader
        read.leaders[leader].members += 1
    for w in range(blocks * looked.warps):
        own = read.leaders[w]
        if own.members:
            for k in range(len(own.work)):
                out.of_records[k] += own.members * own.work[k]
            for event in range(offsets.blocks[w], offsets.blocks[w + 1]):
                executed[streams.blocks[event]] += own.members


def count_blocks(looked, instructions, most):
    """Add up the instructions of thread blocks; returns how many of the first are looked at."""
    total, blocks = 0, 0
    for b in range(looked.blocks):
        instructions[b] = 0
        for w in range(b * looked.warps, (b + 1) * looked.warps):
            instructions[b] += looked.warp_instructions[w]
        if total + instructions[b] <= most or b == 0:
            total, blocks = total + instructions[b], b + 1
    return blocks


def choose(looked, least, chosen, blocks, leaders):
    """Choose thread blocks to be walked; returns the instructions of the longest warp of a mean block over those of
    all that are spread evenly together. What warps have in common is walked once."""
    warps, total, distinct = looked.warps, 0, 0
    for w in range(blocks * warps):
        total += looked.warp_instructions[w]
        distinct += looked.warp_instructions[w] if leaders[w].members else 0
    chosen[:blocks] = 0
    walked = min(max(least, total // WALKED), MOST_WALKED)
    few = max(1, min(blocks, min(blocks * walked // max(1, distinct), blocks * MOST_WALKED // max(1, total))))
    for k in range(few):
        chosen[(2 * k + 1) * blocks // (2 * few)] = 1
    most = every = spread = longest = 0
    for b in range(blocks):
        own = 0
        for w in range(b * warps, (b + 1) * warps):
            own = max(own, looked.warp_instructions[w])
        every += own
        spread += own if chosen[b] else 0
        if own > most:
            most, longest = own, b
    chosen[0], chosen[longest] = chosen[0] | 2, chosen[longest] | 2
    return every / (blocks * spread)


def walk_first(code, streams, offsets, reading, warps, read, walk, out):
    """The path of the first thread block's longest warp where nothing is in caches; returns that warp."""
    kinds, count, best, latest = walk.kinds, 0, 0, -1.0
    for w in range(warps):
        if read.leaders[w].members:
            walk_kind(code, streams, offsets, reading, w, True, kinds, count, walk.walking)
            end = 0.0
            for phase in range(kinds.phases[count, 0], kinds.phases[count, 1]):
                end += kinds.ends[phase]
            if end > latest:
                best, latest = w, end
                out.cold_path[:] = 0
                add_paths(out.cold_path, kinds, count, 1.0)
            count += 1
    return best


def walk_chosen(code, streams, offsets, reading, looked, blocks, share, scratch, out):
    """Walk the leaders of the warps of the thread blocks chosen, each alone; `share`: what one of those spread
    evenly counts for. Returns how many batches of loads their longest paths have."""
    count = kept = 0
    longest, read, kinds, chosen = -1.0, scratch.read, scratch.walk.kinds, scratch.marks.chosen
    for block in range(blocks):
        if chosen[block]:
            for w in range(block * looked.warps, (block + 1) * looked.warps):
                leader = read.of_warps[w]
                own = read.leaders[leader]
                if not own.kind:
                    walking = scratch.walk.walking
                    walk_kind(code, streams, offsets, reading, leader, False, kinds, count, walking)
                    count += 1
                    own.kind = count
            kept = find_path(streams, offsets, reading, looked, block, kept, scratch)
            if chosen[block] & 1:
                add_path(out.path, scratch.path.counts, share)
            if scratch.path.end[0] > longest:
                longest = scratch.path.end[0]
                out.longest_path[:] = 0
                add_path(out.longest_path, scratch.path.counts, 1.0)
    return kept


def add_paths(to, kinds, kind, times):
    """Add those of all phases of a kind of warps."""
    for phase in range(kinds.phases[kind, 0], kinds.phases[kind, 1]):
        add_path(to, kinds.paths[phase], times)


def add_path(to, path, times):
    """Add a path, so many times, to another."""
    for k in range(len(LATENCIES)):
        to[k] += path[k] * times


def add_work(looked, marks, blocks, read, kinds, out):
    """What the warps walked ask of the units that all instructions share, as much for all others."""
    instructions = 0
    for block in range(blocks):
        if marks.chosen[block]:
            for w in range(block * looked.warps, (block + 1) * looked.warps):
                kind = kind_of(read, w)
                for phase in range(kinds.phases[kind, 0], kinds.phases[kind, 1]):
                    for k in range(len(OF_WALKS)):
                        out.of_walks[k] += kinds.work[phase, k]
                instructions += looked.warp_instructions[w]
    out.instructions = 0
    for block in range(looked.blocks):
        out.instructions += marks.instructions[block]
    times = out.instructions / max(1, instructions)
    for k in range(len(OF_WALKS)):
        out.of_walks[k] *= times


def thin_out(batches, kept, most):
    """Keep batches of `most` line records or so, as if by chance, for a loop has a period; returns how many."""
    records = left = 0
    for k in range(kept):
        records += batches[k, 1] - batches[k, 0]
    for k in range(kept):
        if spread_of(k) * (records // most + 1 if records > most else 1) >> 32 == 0:
            batches[left, 0], batches[left, 1], batches[left, 2] = batches[k, 0], batches[k, 1], batches[k, 2]
            left += 1
    return left


def fill_tables(batches, warps, reading, keys, reuse, tables):
    """All that are asked for. An SM without a thread block changes nothing, nor does room for more than it gets."""
    blocks, made = reuse.uses.sizes[0].blocks, 0
    for s in range(len(tables.sms)):
        busy = min(np.int64(tables.sms[s]), blocks)
        most = min(max(1, 64 // warps), (blocks + busy - 1) // busy)
        for k in range(len(tables.residents)):
            if tables.asked[s, k]:
                held, number = min(np.int64(tables.residents[k]), most), 0
                while number < made and (tables.spread[number, 0] != busy or tables.spread[number, 1] != held):
                    number += 1
                if number == made:
                    tables.spread[number, 0], tables.spread[number, 1] = busy, held
                    make_table(batches, warps, busy, held, reading, keys, reuse, tables, number)
                    made += 1
                tables.numbers[s, k] = number


def make_table(batches, warps, busy, held, reading, keys, reuse, tables, number):
    """That of so many SMs with work, and thread blocks on each."""
    uses, found, level = reuse.uses, reuse.found, reuse.level
    order, measured = reuse.order, min(busy, max(1, busy * MOST_USES // max(1, uses.sizes[0].uses)))
    order.measured[:busy] = 0
    for m in range(measured):  # SMs of which batches are looked at first
        sm = batches[m * len(batches) // measured, 2] // warps % busy if len(batches) else m
        while order.measured[sm]:
            sm = (sm + 1) % busy
        order.measured[sm] = 1
    loads = use_caches(uses, busy, held, reading, order, level, found)
    see_visits(keys, uses, order, level, found, tables.visits[number])
    fill_table(uses, batches, found, reuse.counts, loads, tables.misses[number])
    tables.jams[number] = level.state[0].jam
    tables.crowds[number] = level.state[0].all_asked if reading.bypass else level.state[0].all_fetched


def deal(looked, marks, dealt, out):
    """Instructions of the busiest SM over those of mean thread blocks, dealt out in turn, as they are as long as every
    SM has room."""
    total, count, instructions, of_sms = 0, looked.blocks, marks.instructions, marks.of_sms
    for block in range(count):
        total += instructions[block]
    for n in range(dealt[0], dealt[1] + 1):
        of_sms[:n] = 0
        sm = most = 0
        for block in range(count):
            of_sms[sm] += instructions[block]
            most = max(most, of_sms[sm])
            sm = sm + 1 if sm < n - 1 else 0
        out.imbalance[n - 1] = most / ((count + n - 1) // n * (total / count))


def count_classes(code, streams, executed, out):
    """Instructions on arithmetic units by class."""
    for block in range(len(streams.block_start)):
        for i in range(streams.block_start[block], streams.block_stop[block]):
            row = code.rows[i]
            if row.kind < Kind.PARAM_LOAD and row.kind != Kind.FENCE and row.latency < CLASSES:
                out.by_class[row.latency] += executed[block] * row.times


def look(code, looked, reading, scratch, asked):
    """Fill in a SUMMARY of a launch, but for its shape, and its tables."""
    streams, offsets = looked.streams, looked.offsets
    lines, reuse, read, walk, marks = scratch.lines, scratch.reuse, scratch.read, scratch.walk, scratch.marks
    out, blocks = asked.work, count_blocks(looked, marks.instructions, asked.most_instructions)
    out.filled[:] = 0
    marks.executed[: len(streams.block_start)] = 0
    zero(read.leaders[: blocks * looked.warps])
    deal(looked, marks, asked.tables.dealt, out)
    read_warps(code, streams, offsets, reading, looked, marks.executed, blocks, read, out)
    count_classes(code, streams, marks.executed, out)
    longest = walk_first(code, streams, offsets, reading, looked.warps, read, walk, out)
    share = choose(looked, asked.least_walked, marks.chosen, blocks, read.leaders)
    kept = walk_chosen(code, streams, offsets, reading, looked, blocks, share, scratch, out)
    add_paths(out.cold_path, walk.kinds, kind_of(read, longest), -1.0)
    add_work(looked, marks, blocks, read, walk.kinds, out)
    if out.atomics > 0:
        out.hottest_atomics = most_updated(streams, offsets, reading, looked, blocks, read, lines, reuse.uses)
    kept = thin_out(marks.batches, kept, WAITED)
    batches = marks.batches[:kept]
    look_at_enough(streams, offsets, reading, looked, asked.least_lines, blocks, batches, read, lines, reuse.uses)
    out.lines_apart = reuse.uses.sizes[0].scale
    fill_tables(batches, looked.warps, reading, lines.keys, reuse, asked.tables)
    stand_for_all(looked, marks, blocks, out)


def stand_for_all(looked, marks, blocks, out):
    """What the thread blocks that were looked at ask for, so many times as there are more of them, or instructions."""
    times, own = looked.blocks / blocks, 0
    for block in range(blocks):
        own += marks.instructions[block]
    for k in range(CLASSES):
        out.by_class[k] *= out.instructions / own
        out.results += out.by_class[k]
    for k in range(len(OF_RECORDS)):
        out.of_records[k] *= times


class Scratch(NamedTuple):
    """What a look needs, whatever the launch."""

    lines: Lines
    reuse: Reuse
    read: Read
    walk: Walk
    path: BlockPath
    marks: Marks
