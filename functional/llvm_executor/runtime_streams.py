"""The sorting of a chunk's streams into those of each warp.

The table of segments says who wrote what: a row {warp, first event, first record, first conflict} for each turn of a
warp, in the order of execution, and one behind the last that says where the streams end."""

from __future__ import annotations

from typing import Any

from functional.jit.native import I1, I32, I64, Lanes8, Pointer, Type, inlined, record_type, routine
from functional.llvm_executor.context_layout import SEGMENT_WORDS

# Addresses and sizes of what streams.Streams passes, in this order, 8 bytes each
JOB = (
    "segments", "count", "warps",
    "places",  # room for a row more than there are warps, of zeros at first: the first segment, event, ... of each warp
    "event_offsets", "record_offsets", "conflict_offsets",
    "order",  # room for as many i64 as there are segments
    "blocks", "masks",  # as they were written
    "to_blocks", "to_masks", "to_records", "to_conflicts",
    "partial", "partial_stop",  # notes of stores, by the place of their record
    "firsts",  # room for an i64 more than there are segments: the first note of each
    "to_partial_at", "to_partial_words",
)  # fmt: skip
COPY_BYTES = 32  # of a copy: so much behind every stream is read, and written where it goes
Job: Any = record_type(JOB, frozenset(JOB) - {"count", "warps"})
Row: Any = Type("i64", SEGMENT_WORDS)


@routine
def measure(job: Job) -> I32:
    """Offsets of each warp's streams, and where its segments go in their sorted order. Do the segments ascend?"""
    segments, places, before, ascends = job.segments, job.places, I64(0), I1(1)
    for number in range(job.count):
        here = segments[Row, number]
        lengths = segments[Row, number + 1] - here >> (0, 0, 2, 0)
        warp = here[0]
        places[Row, warp + 1] = places[Row, warp + 1] + (lengths & (0, -1, -1, -1)) + (1, 0, 0, 0)
        ascends &= warp >= before
        before = warp
    events, records, conflicts, total = job.event_offsets, job.record_offsets, job.conflict_offsets, Row(0)
    for warp in range(job.warps + 1):
        total += places[Row, warp]
        places[Row, warp] = total
        events[I64, warp], records[I64, warp], conflicts[I64, warp] = total[1], total[2], total[3]
    return I32(ascends)


@inlined
def append(to: Pointer, source: Pointer, count: I64) -> Pointer:
    """Copy bytes; yields where the next go."""
    done = I64(0)
    while done < count:
        (to + done)[Lanes8, 0] = (source + done)[Lanes8, 0]
        done += COPY_BYTES
    return to + count


@routine
def find_notes(job: Job) -> None:
    """Where the notes of each segment's stores begin."""
    note, firsts = job.partial, job.firsts
    for number in range(job.count):
        firsts[Pointer, number] = note
        stop = job.segments[Row, number + 1][2]
        while (note != job.partial_stop) & (note[I64, 0] < stop):
            note += 16
    firsts[Pointer, job.count] = note


@routine
def gather_streams(job: Job) -> I32:
    """Copies the segments in the order of their warps."""
    find_notes(job)
    partial_at, partial_words = job.to_partial_at, job.to_partial_words
    segments, places, order = job.segments, job.places, job.order
    for number in range(job.count):
        place = places + segments[Row, number][0] * (8 * SEGMENT_WORDS)
        at = place[I64, 0]
        place[I64, 0] = at + 1
        order[I64, at] = number
    blocks, masks, records, conflicts = job.to_blocks, job.to_masks, job.to_records, job.to_conflicts
    for number in range(job.count):
        chosen = order[I64, number]
        start = segments[Row, chosen]
        lengths = segments[Row, chosen + 1] - start
        blocks = append(blocks, job.blocks + start[1] * 2, lengths[1] * 2)
        masks = append(masks, job.masks + start[1] * 4, lengths[1] * 4)
        note, moved = job.firsts[Pointer, chosen], I64(records) - I64(job.to_records) - start[2]
        while note != job.firsts[Pointer, chosen + 1]:
            partial_at[I64, 0], partial_words[I32, 0] = note[I64, 0] + moved >> 2, I32(note[I64, 1])
            note, partial_at, partial_words = note + 16, partial_at + 8, partial_words + 4
        records = append(records, Pointer(start[2]), lengths[2])
        conflicts = append(conflicts, Pointer(start[3]), lengths[3])
    return 0
