"""Trace records: line records of addresses and of atomics, bank passes of shared-memory accesses; and the
sorting of a chunk's streams into those of each warp.

The table of segments says who wrote what: a row {warp, first event, first record, first conflict} for each turn of a
warp, in the order of execution, and one behind the last that says where the streams end."""

from __future__ import annotations

from typing import Any

from functional.jit.native import (
    I1,
    I8,
    I32,
    I64,
    LANES,
    Flags,
    Lanes8,
    Lanes32,
    Lanes64,
    Pointer,
    Type,
    inlined,
    op,
    record_type,
    routine,
)
from functional.llvm_executor.context_layout import SEGMENT_WORDS, Context
from functional.traces.line_record import EACH_SECTOR, LINE_SHIFT, MORE, SECTOR_SHIFT, SPREAD, WORDS_A_SECTOR
from functional.traces.trace import LOCAL_WINDOW_LINE

SECTOR = 1 << SECTOR_SHIFT  # the first one of a line, in a record
_BEFORE = (0, *LANES[:-1])
_WORDS = tuple(4 * lane for lane in LANES)
_QUARTERS = tuple(lane // 8 for lane in LANES)


@inlined
def record(ctx: Context, word: I32) -> None:
    """One record, the only one of its instruction."""
    at = ctx.records
    at[I32, 0] = word
    ctx.records = at + 4


@routine
def record_one(ctx: Context, address: I64) -> None:
    """The record of one address."""
    record(ctx, I32((address >> 7) << LINE_SHIFT | I64(SECTOR) << (address >> 5 & 3)))


@routine
def record_range(ctx: Context, first: I64, stop: I64) -> None:
    """Records of the bytes `first` to `stop` - 1, all of them touched."""
    to, sector, last = ctx.records, first >> 5, stop - 1 >> 5
    while True:
        line = sector & -4
        ends = last < line + 4
        highest = op.where(ends, last & 3, 3)
        bits = (I64(2) << highest) - (I64(1) << (sector & 3))
        to[I32, 0] = I32(line << (LINE_SHIFT - 2) | bits << SECTOR_SHIFT | I64(not ends))
        to += 4
        if ends:
            break
        sector = line + 4
    ctx.records = to


@inlined
def fresh(words: Lanes32, mask: I32) -> I32:
    """The lanes of a mask without those that repeat what the active lane before them names."""
    return mask & ~(I32(words == op.shuffle(words, words, _BEFORE)) & mask << 1)


@inlined
def insert_sector(start: Pointer, end: Pointer, line: I32, bit: I32) -> Pointer:
    """Insert a sector into sorted records; yields their new end."""
    at = end
    while at != start:
        before = at - 4
        old = before[I32, 0]
        if old >> LINE_SHIFT == line:
            before[I32, 0] = old | bit
            return end
        if old >> LINE_SHIFT < line:
            break
        at = before
    if at != end:
        op.copy(at + 4, at, end - at)
    at[I32, 0] = line << LINE_SHIFT | bit
    return end + 4


@routine
def insert_sectors(start: Pointer, end: Pointer, sectors: Lanes32, mask: I32) -> Pointer:
    """Insert the lanes' sectors: most accesses ascend, so that an insertion ends where it begins."""
    array = op.room(Lanes32)
    array[Lanes32, 0] = sectors
    rest = fresh(sectors, mask)
    while True:
        sector = array[I32, op.cttz(rest)]
        rest &= rest - 1
        end = insert_sector(start, end, sector >> 2, I32(SECTOR) << (sector & 3))
        if rest == 0:
            break
    return end


@routine
def close_records(ctx: Context, start: Pointer, end: Pointer) -> None:
    """All but the last record get the bit "more"."""
    at, last = start, end - 4
    while at != last:
        at[I32, 0] = at[I32, 0] | MORE
        at += 4
    ctx.records = end


@routine
def record_lanes(ctx: Context, address: Lanes64, mask: I32) -> None:
    """Records of the addresses of lanes."""
    at = ctx.records
    close_records(ctx, at, insert_sectors(at, at, Lanes32(address >> 5), mask))


@routine
def record_constants(ctx: Context, address: Lanes64, mask: I32) -> None:
    """Records of the addresses of lanes, and behind them empty ones until they are as many as distinct addresses."""
    at, words, array = ctx.records, Lanes32(address), op.room(Lanes32)
    end = insert_sectors(at, at, Lanes32(address >> 5), mask)
    array[Lanes32, 0] = words
    rest, filled = fresh(words, mask), at
    while rest != 0:
        rest &= I32(words != array[I32, op.cttz(rest)])
        filled += 4
    while end != filled:
        end[I32, 0] = I32(0)
        end += 4
    close_records(ctx, at, end)


@routine
def record_local(ctx: Context, address: Lanes64, mask: I32, size: I64) -> None:
    """Local memory: word w of a thread lies in line w of the window, a lane has 4 bytes of it."""
    at, done = ctx.records, I64(0)
    end = at
    while True:
        line = (address + done >> 2) + LOCAL_WINDOW_LINE
        end = insert_sectors(at, end, Lanes32(line << 2 | _QUARTERS), mask)
        done += 4
        if done >= size:
            break
    close_records(ctx, at, end)


@inlined
def note_unless_full(ctx: Context, record: Pointer, words: I32) -> None:
    """A store has written these words of the line of a record: note it if some of a touched sector are left out."""
    touched = (record[I32, 0] >> SECTOR_SHIFT & 15) * SPREAD & EACH_SECTOR
    if words != touched * WORDS_A_SECTOR:
        to = ctx.partial
        to[Pointer, 0], to[I64, 1] = record, I64(words)
        ctx.partial = to + 16


@routine
def note_words(ctx: Context, first: Pointer, address: Lanes64, mask: I32, size: I64) -> None:
    """What a store of elements of `size` bytes to global memory has left out of the sectors of its records, the first
    of which is at `first`. Of an element of less than a word, all of whose bytes must be written."""
    lowest = address[I64(op.cttz(mask))]
    whole = (mask == -1) & (size == 4) & (lowest & 31 == 0)
    if (mask == 0) | whole & (I32(address != Lanes64(lowest) + _WORDS) == 0):
        return
    at, lines, active = first, Lanes32(address >> 7), Flags(mask)
    bits = op.where(active, Lanes32(1) << (Lanes32(address >> 2) & 31), 0)
    bits |= op.where(size == 8, bits << 1, Lanes32(0))
    while at != ctx.records:
        here, words = lines == at[I32, 0] >> LINE_SHIFT, I32(-1)
        if size < 4:
            byte = I32(0)
            while byte < 4:
                one = Lanes32(address) & 3 == byte
                words &= op.reduce_or(op.where(here, op.where(one, bits, 0), 0))
                byte += I32(size)
        else:
            words = op.reduce_or(op.where(here, bits, 0))
        note_unless_full(ctx, at, words)
        at += 4


@routine
def note_local_words(ctx: Context, first: Pointer, address: Lanes64, mask: I32, size: I64) -> None:
    """The same of local memory, and all of an access: a lane has a word of each line, and writes it or a part of it."""
    at, word = first, Lanes32(address >> 2) + LOCAL_WINDOW_LINE
    while (mask != 0) & (at != ctx.records):
        behind = Lanes32(at[I32, 0] >> LINE_SHIFT) - word
        note_unless_full(ctx, at, op.where(size < 4, I32(0), I32(behind < I32(size >> 2)) & mask))
        at += 4


@inlined
def conflict(ctx: Context, passes: I8) -> None:
    """Bank passes of one access to shared memory."""
    at = ctx.conflicts
    at[I8, 0] = passes
    ctx.conflicts = at + 1


@routine
def conflict_lanes(ctx: Context, address: Lanes64, mask: I32) -> None:
    """Bank passes of shared addresses: most distinct words on one bank."""
    words, active = Lanes32(address >> 2), Flags(mask)
    low, high = op.reduce_umin(op.where(active, words, -1)), op.reduce_umax(op.where(active, words, 0))
    if high - low < 32:
        conflict(ctx, 1)
        return
    counts, array = op.room(Lanes8), op.room(Lanes32)
    counts[Lanes8, 0] = 0
    array[Lanes32, 0] = words
    rest, most = fresh(words, mask), I8(0)
    while True:
        word = array[I32, op.cttz(rest)]
        rest &= I32(words != word)
        count = counts[I8, word & 31] + 1
        counts[I8, word & 31] = count
        most = op.umax(most, count)
        if rest == 0:
            break
    conflict(ctx, most)


@routine
def conflict_atomic(ctx: Context, address: Lanes64, mask: I32, size: I64) -> None:
    """Bank passes of an atomic, 0 without an active lane."""
    if mask == 0:
        conflict(ctx, 0)
    else:
        conflict_lanes(ctx, address, mask)


@routine
def record_atomic(ctx: Context, address: Lanes64, mask: I32, size: I64) -> None:
    """In rounds: of lanes that name one word each is in a round of its own; a line has a record of each round."""
    if mask == 0:
        record(ctx, 0)
        return
    array = op.room(Lanes64)
    array[Lanes64, 0] = address
    to, rest = ctx.records, mask
    while True:
        line = op.reduce_umin(op.where(Flags(rest), address, -1)) >> 7
        todo = I32(address >> 7 == line) & rest
        rest &= ~todo
        while True:  # a round: the first lane of each word
            left, sectors = todo, I32(0)
            while True:
                first = left & -left
                word = array[I64, op.cttz(left)]
                sectors |= I32(SECTOR) << I32(word >> 5 & 3)
                todo &= ~first
                left &= ~I32(address == word)
                if left == 0:
                    break
            to[I32, 0] = I32(line << LINE_SHIFT) | sectors
            to += 4
            if todo == 0:
                break
        if rest == 0:
            break
    close_records(ctx, ctx.records, to)


# Addresses and sizes of what streams.Streams passes, in this order, 8 bytes each
SORTING = (
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
Job: Any = record_type(SORTING, frozenset(SORTING) - {"count", "warps"})
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
