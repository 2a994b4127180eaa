"""A sample of the lines that a launch touches (SHARDS: Waldspurger, FAST 2015), and who uses them."""

from typing import NamedTuple

import numpy as np

from abstim.analytic.lone_warp import ACTION, LOOK_UP, UPDATE
from abstim.analytic.reuse_distance import spread_of
from abstim.engine.accesses import LOCAL_LINE, line_of, local_line, sectors_in, sectors_of, segment
from functional.arrays import Int32, Int64, UInt8
from functional.jit.marked import zero
from functional.traces.line_record import MOST_PLACES

# Of a launch's lines one of every 2, 4, ... stands for all, so that a part of its line records is looked at, or so many
LOOKED_AT, LEAST_USES = 16, 1 << 9
MANY_USES = 1 << 13  # of lines that stand for all and others
WAITED = 1 << 10  # line records of batches of loads that are looked at, or so
LEAST_PLACES = 64  # of a hash map
WANTED_SHIFT = 18  # of the bits of a line, those that say whether it may be wanted


class Lines(NamedTuple):
    """Scratch: the lines that are looked at, by a hash map; atomics on each; bits of those that are wanted, whatever
    stands for all."""

    table: Int32[np.ndarray, " place"]
    keys: Int64[np.ndarray, " line"]
    updates: Int32[np.ndarray, " line"]
    wanted: UInt8[np.ndarray, " byte"]


def line_used(streams, r, w):
    """The line of a record of warp `w`, which has local memory of its own."""
    line = line_of(streams.records[r])
    return local_line(line, MOST_PLACES, w % MOST_PLACES) if line >= LOCAL_LINE else line


def place_in(table, keys, line):
    """Where a line is in a hash map, or is to be put."""
    place = spread_of(line) >> 7 & (len(table) - 1)
    while table[place] and keys[table[place] - 1] != line:
        place = (place + 1) & (len(table) - 1)
    return place


def add_line(lines, place, line, uses, counted, slice_log2):
    """One more that is looked at, if there is room; so many, as a power of 2, are side by side in a slice of L2."""
    size, own = uses.sizes[0], uses.sizes[0].lines
    if 2 * own < size.places:
        lines.keys[own], uses.beside[own], uses.counted[own] = line, own, counted
        for k in range(1, 1 << slice_log2):
            other = lines.table[place_in(lines.table[: size.places], lines.keys, line ^ k)]
            if other:
                uses.beside[own] = uses.beside[other - 1]
        size.lines += 1
        lines.table[place] = size.lines


def want(streams, offsets, reading, batches, read, lines, uses):
    """The lines of batches of loads are looked at."""
    size, slice_log2 = uses.sizes[0], reading.machine[0].slice_log2
    for b in range(len(batches)):
        w = batches[b, 2]
        to_leader = offsets.records[read.of_warps[w]] - offsets.records[w]
        for r in range(batches[b, 0], batches[b, 1]):
            if read.acts[r + to_leader] & ACTION:
                line = line_used(streams, r, w)
                place = place_in(lines.table[: size.places], lines.keys, line)
                if not lines.table[place]:
                    bit = spread_of(line >> slice_log2) >> WANTED_SHIFT
                    lines.wanted[bit >> 3] |= 1 << (bit & 7)
                    add_line(lines, place, line, uses, 0, slice_log2)


def collect_uses(streams, offsets, reading, looked, read, lines, uses):
    """The uses of every `scale`-th line, and of those that are wanted, by warps."""
    size, blocks, warps = uses.sizes[0], uses.sizes[0].blocks, looked.warps
    size.uses, others, slice_log2 = 0, size.scale - 1, reading.machine[0].slice_log2
    for block in range(blocks):
        uses.lengths[block], uses.loads[block] = 1, 0
        for w in range(block * warps, (block + 1) * warps):
            leader = read.of_warps[w]
            to_leader = offsets.records[leader] - offsets.records[w]
            uses.lengths[block] = max(uses.lengths[block], read.leaders[leader].turns)
            uses.loads[block] += read.leaders[leader].load_sectors
            uses.first[w] = size.uses
            for r in range(offsets.records[w], offsets.records[w + 1]):
                line = line_used(streams, r, w)
                bits = spread_of(line >> slice_log2)
                counted, bit = not (bits >> 16) & others, bits >> WANTED_SHIFT
                if (counted or lines.wanted[bit >> 3] >> (bit & 7) & 1) and read.acts[r + to_leader] & ACTION:
                    add_use(streams, reading, lines, uses, r, read.acts[r + to_leader], line, counted)
    uses.first[blocks * warps] = size.uses


def add_use(streams, reading, lines, uses, r, act, line, counted):
    """One more, if its line is looked at."""
    size = uses.sizes[0]
    place = place_in(lines.table[: size.places], lines.keys, line)
    if counted and not lines.table[place]:
        add_line(lines, place, line, uses, 1, reading.machine[0].slice_log2)
    k, n = lines.table[place] - 1, size.uses
    if k >= 0:
        uses.counted[k] |= counted
        uses.lines[n], uses.acts[n], uses.records[n], sectors = k, act, r, sectors_of(streams.records[r])
        loads = act & ACTION == LOOK_UP
        uses.sectors[n] = sectors | reading.besides if loads else segment(reading.machine[0], sectors)
        size.uses += 1


def make_places(size, records):
    """Of a hash map for the lines of some records, no more than there are."""
    size.places = LEAST_PLACES
    while size.places < 2 * records:
        size.places *= 2


def look_at(streams, offsets, reading, looked, batches, read, lines, uses):
    """Collect uses of the lines that stand for all, and of some batches; returns how many the former are."""
    size = uses.sizes[0]
    records = offsets.records[size.blocks * size.warps]
    make_places(size, min(records, 2 * (records // size.scale + 2 * WAITED)))
    lines.table[: size.places], size.lines = 0, 0
    zero(lines.wanted)
    want(streams, offsets, reading, batches, read, lines, uses)
    others = size.lines
    collect_uses(streams, offsets, reading, looked, read, lines, uses)
    return size.lines - others


def finer(size, found, least):
    """How many times as many lines tell enough; half of them do where they have many uses."""
    times = 1
    while times < size.scale and found * times < (least // 2 if size.uses * times >= MANY_USES else least):
        times *= 2
    return times


def look_at_enough(streams, offsets, reading, looked, least, blocks, batches, read, lines, uses):
    """Look at as many lines as tell enough."""
    size, records = uses.sizes[0], offsets.records[blocks * looked.warps]
    size.warps, size.blocks, size.scale = looked.warps, blocks, 1
    while size.scale * max((records + LOOKED_AT - 1) // LOOKED_AT, LEAST_USES) < records:
        size.scale *= 2
    times = finer(size, look_at(streams, offsets, reading, looked, batches, read, lines, uses), least)
    if times > 1:
        size.scale //= times
        look_at(streams, offsets, reading, looked, batches, read, lines, uses)
    for b in range(len(batches)):
        w = batches[b, 2]
        for end in (0, 1):
            batches[b, end] = use_at(uses, uses.first[w], uses.first[w + 1], batches[b, end])


def use_at(uses, first, stop, record):
    """Of some uses the first that is by a line record, or one behind."""
    while first < stop:
        middle = (first + stop) >> 1
        if uses.records[middle] < record:
            first = middle + 1
        else:
            stop = middle
    return first


def most_updated(streams, offsets, reading, looked, blocks, read, lines, uses):
    """Atomics on the lines of a slice of L2, side by side, that most are on."""
    size, most = uses.sizes[0], 0
    make_places(size, offsets.records[blocks * looked.warps])
    lines.table[: size.places], size.lines = 0, 0
    for w in range(blocks * looked.warps):
        leader = read.of_warps[w]
        if read.leaders[leader].atomics:
            for r in range(offsets.records[w], offsets.records[w + 1]):
                as_read = r + offsets.records[leader] - offsets.records[w]
                if read.acts[as_read] & ACTION == UPDATE:
                    line = line_used(streams, r, w) >> reading.machine[0].slice_log2
                    place = place_in(lines.table[: size.places], lines.keys, line)
                    if not lines.table[place]:
                        lines.updates[size.lines] = 0
                        add_line(lines, place, line, uses, 0, 0)
                    lines.updates[lines.table[place] - 1] += sectors_in(sectors_of(streams.records[r]))
                    most = max(most, lines.updates[lines.table[place] - 1])
    return most
