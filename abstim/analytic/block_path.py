"""The longest path of a thread block: from barrier to barrier that of the warp which ends last. Of warps with equal
paths it is the one that fetches most of what it waits for, since others have asked for the rest before."""

from typing import NamedTuple

import numpy as np

from abstim.analytic.line_sample import add_line, line_used, make_places, place_in
from abstim.analytic.lone_warp import ACTION, LATENCIES, LONG_CYCLES, LOOK_UP, ONE
from abstim.engine.accesses import sectors_of
from functional.arrays import Float64
from functional.traces.line_record import SECTORS_A_LINE


class BlockPath(NamedTuple):
    """Scratch: counts of LATENCIES on the path of a thread block; its end."""

    counts: Float64[np.ndarray, " latency"]
    end: Float64[np.ndarray, " 1"]


def kind_of(read, w):
    """As what a warp was walked."""
    return read.leaders[read.of_warps[w]].kind - 1


def note_first_turns(streams, offsets, reading, warps, block, scratch):
    """In which turn of its warps a thread block first loads each sector (-1: it does not), as `since` of a LINE;
    returns the places of its lines."""
    read, lines, uses = scratch.read, scratch.lines, scratch.reuse.uses
    make_places(uses.sizes[0], offsets.records[(block + 1) * warps] - offsets.records[block * warps])
    table, uses.sizes[0].lines = lines.table[: uses.sizes[0].places], 0
    table[:] = 0
    for w in range(block * warps, (block + 1) * warps):
        to_leader = offsets.records[read.of_warps[w]] - offsets.records[w]
        for r in range(offsets.records[w], offsets.records[w + 1]):
            if read.acts[r + to_leader] & ACTION == LOOK_UP:
                line = line_used(streams, r, w)
                place = place_in(table, lines.keys, line)
                if not table[place]:
                    scratch.reuse.level.lines[uses.sizes[0].lines].since[:] = -1
                    add_line(lines, place, line, uses, 0, 0)
                since = scratch.reuse.level.lines[table[place] - 1].since
                sectors, turn = sectors_of(streams.records[r]) | reading.besides, read.acts[r + to_leader]
                for k in range(SECTORS_A_LINE):
                    if sectors >> k & 1 and (since[k] < 0 or turn < since[k]):
                        since[k] = turn
    return len(table)


def fetches(streams, offsets, reading, w, first, stop, table, scratch):
    """Does a warp ask for a sector before all others of its thread block, or with them, by some of its records?"""
    read = scratch.read
    to_leader = offsets.records[read.of_warps[w]] - offsets.records[w]
    for r in range(offsets.records[w] + first, offsets.records[w] + stop):
        if read.acts[r + to_leader] & ACTION == LOOK_UP:
            place = place_in(table, scratch.lines.keys, line_used(streams, r, w))
            since = scratch.reuse.level.lines[table[place] - 1].since
            for k in range(SECTORS_A_LINE):
                own = (sectors_of(streams.records[r]) | reading.besides) >> k & 1
                if own and since[k] == read.acts[r + to_leader]:
                    return True
    return False


def phases_of(kinds, kind, p, count):
    """Where phase p of `count` of a kind of warps begins and ends; what it has more of belongs to the last."""
    first, stop = kinds.phases[kind, 0], kinds.phases[kind, 1]
    return first + p, first + p + 1 if p < count - 1 else stop


def end_of(streams, offsets, reading, w, first, stop, table, scratch):
    """How long some of a warp's phases take, if only what it fetches is far."""
    end, kinds = 0.0, scratch.walk.kinds
    for phase in range(first, stop):
        end += kinds.ends[phase]
        for n in range(kinds.batches[phase, 0], kinds.batches[phase, 1]):
            begun, behind = kinds.ranges[n, 0], kinds.ranges[n, 1]
            end -= 0.0 if fetches(streams, offsets, reading, w, begun, behind, table, scratch) else LONG_CYCLES
    return end


def add_phases(path, batches, kept, w, begin, first, stop, kinds):
    """Add phases of a warp, whose line records `begin` there, to a block's path; returns how many batches are kept."""
    for phase in range(first, stop):
        path.end[0] += kinds.ends[phase]
        for k in range(len(LATENCIES)):
            path.counts[k] += kinds.paths[phase, k]
        for n in range(kinds.batches[phase, 0], kinds.batches[phase, 1]):
            if kept < len(batches):
                batches[kept, 0], batches[kept, 1] = begin + kinds.ranges[n, 0], begin + kinds.ranges[n, 1]
                batches[kept, 2] = w
                kept += 1
    return kept


def find_path(streams, offsets, reading, looked, block, kept, scratch):
    """The longest path of a thread block, and its batches; returns how many are kept.

    Behind a barrier all warps come at once: what the others ask of the load/store unit, an access each, stands in
    front of the last."""
    path, kinds, read = scratch.path, scratch.walk.kinds, scratch.read
    places = note_first_turns(streams, offsets, reading, looked.warps, block, scratch)
    count, begin, end = len(kinds.ends), block * looked.warps, (block + 1) * looked.warps
    for w in range(begin, end):
        count = min(count, kinds.phases[kind_of(read, w), 1] - kinds.phases[kind_of(read, w), 0])
    path.counts[:] = 0
    path.end[0] = 0
    for p in range(count):
        slowest, latest, held, own = begin, -1.0, 0.0, 0.0
        for w in range(begin, end):
            first, stop = phases_of(kinds, kind_of(read, w), p, count)
            ends = end_of(streams, offsets, reading, w, first, stop, scratch.lines.table[:places], scratch)
            held += kinds.work[first, 2]
            if ends > latest:
                slowest, latest, own = w, ends, kinds.work[first, 2]
        first, stop = phases_of(kinds, kind_of(read, slowest), p, count)
        path.counts[ONE] += (held - own) / max(1.0, kinds.work[first, 1]) if count > 1 else 0.0
        kept = add_phases(path, scratch.marks.batches, kept, slowest, offsets.records[slowest], first, stop, kinds)
    return kept
