"""Trace records: line records of addresses and of atomics, bank passes of shared-memory accesses."""

from __future__ import annotations

from functional.jit.native import I8, I32, I64, LANES, Flags, Lanes8, Lanes32, Lanes64, Pointer, inlined, op, routine
from functional.llvm_executor.context_layout import Context
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
