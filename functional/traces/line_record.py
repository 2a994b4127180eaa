"""Line records of a trace: which line an instruction touched, which of its sectors, and whether another one follows.

A record is a 32-bit word (line number << 5) | (sectors << 1) | more. The line number is address / 128 B, or one of the
windows of `trace.py`; bit s of the sectors says that bytes 32 s .. 32 s + 31 of the line are touched; `more` is
1 if the next record is of the same instruction. No sectors: no lane was active, and the line number is 0. Records of
one instruction ascend by line number; an atomic has one of each line and round: of lanes that name the same word each
is in a round of its own (GPGPU-Sim 4.2). A load of constants or parameters has as many records as its lanes name
addresses: those behind one of each line are empty, of line 0 and no sectors.

Arrivals and waits at `mbarrier`s are records among those of memory. Their line is PHASE_WINDOW_LINE + (barrier << 17 |
phase << 9 | count). Barriers are numbered within their thread block in the order of their first use, phases from 0
modulo 256. A count of 0 is an arrival of the warp, or of a copy of its own, in that phase; else the warp waits until so
many arrivals have been made in it. All sectors are set; of an arrival in another thread block of the cluster, whose
rank is k more (modulo their number), their bits are 15 - k, and the barrier is numbered in that one.

The functions on single records take numbers and arrays, and can be compiled as they are. Those that make
records take one access a row and treat every column as an active lane: a caller replaces the address of an inactive
lane by that of an active lane of the same warp, which changes no result."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from functional.arrays import Bool, Int64, Integer, UInt8, UInt32
from functional.launches.memory import GLOBAL_BASE
from functional.traces.trace import (
    LINE_BYTES,
    LOCAL_LINES,
    LOCAL_WINDOW_LINE,
    PARAM_WINDOW_LINE,
    PHASE_WINDOW_LINE,
    SECTOR_BYTES,
    SHARED_WINDOW_LINE,
    Trace,
)

SECTORS_A_LINE = LINE_BYTES // SECTOR_BYTES
ALL_SECTORS = (1 << SECTORS_A_LINE) - 1
MORE = 1
SECTOR_SHIFT = 1
LINE_SHIFT = SECTOR_SHIFT + SECTORS_A_LINE
SPREAD, EACH_SECTOR, WORDS_A_SECTOR = 0x204081, 0x1010101, 255  # four bits, each to the first one of a byte
FIRST_GLOBAL_LINE = GLOBAL_BASE // LINE_BYTES
SHARED_PASS = SHARED_WINDOW_LINE << LINE_SHIFT | ALL_SECTORS << SECTOR_SHIFT  # a cycle of a generic access to shared


def line_of(record: Any) -> Any:
    """Line number of a record."""
    return record >> LINE_SHIFT


def sectors_of(record: Any) -> Any:
    """Sector bits of a record; none if no lane was active."""
    return (record >> SECTOR_SHIFT) & ALL_SECTORS


def words_of(sectors: Any) -> Any:
    """The words of a line that its sectors hold: bit w for bytes 4 w .. 4 w + 3."""
    return (sectors * SPREAD & EACH_SECTOR) * WORDS_A_SECTOR


def more_follow(record: Any) -> Any:
    """1 if the next record is of the same instruction, else 0."""
    return record & MORE


def packed(line: Any, sectors: Any, more: Any = 0) -> Any:
    """A record."""
    return (line << LINE_SHIFT) | (sectors << SECTOR_SHIFT) | more


def of_byte(address: int) -> int:
    """The record of an access to one sector, the one that a byte lies in."""
    return int(packed(address // LINE_BYTES, 1 << (address // SECTOR_BYTES % SECTORS_A_LINE)))


def is_data(line: Any) -> Any:
    """Does a line belong to global or local memory? Constants lie below, parameters and shared memory above."""
    return (line >= FIRST_GLOBAL_LINE) & (line < PHASE_WINDOW_LINE)


def local_line(line: Any, places: Any, place: Any) -> Any:
    """Where the word of local memory that a trace calls `line` lies for the warp at one of so many places: next to each
    other are a word of all warps that are there at once (GPGPU-Sim 4.2)."""
    return ((line - LOCAL_WINDOW_LINE) * places + place) % LOCAL_LINES + LOCAL_WINDOW_LINE


MOST_PLACES = 1 << 14  # more than there are warps on a GPU at once


def in_local(records: UInt32[np.ndarray, " record"]) -> Bool[np.ndarray, " record"]:
    """Which of them are of local memory."""
    return (line_of(records) >= LOCAL_WINDOW_LINE) & is_data(line_of(records))


def with_places(trace: Trace, places: int = MOST_PLACES) -> UInt32[np.ndarray, " record"]:
    """A trace's records with the lines that local memory has if warps of the grid take so many places in turn."""
    local = np.flatnonzero(in_local(trace.records))
    if not len(local):
        return trace.records
    warp = np.searchsorted(trace.record_offsets, local, side="right") - 1
    each = trace.warps_per_block
    place = (trace.thread_blocks[warp // each] * each + warp % each) % places
    records = trace.records.copy()
    line = local_line(line_of(records[local]).astype(np.int64), places, place).astype(np.uint32)
    records[local] = records[local] & np.uint32((1 << LINE_SHIFT) - 1) | line << np.uint32(LINE_SHIFT)
    return records


_COUNT_BITS, _PHASE_BITS, _BARRIER_BITS = 9, 8, 7
MOST_COUNT, PHASES, BARRIERS = (1 << _COUNT_BITS) - 1, 1 << _PHASE_BITS, 1 << _BARRIER_BITS
_BARRIER_SHIFT = _COUNT_BITS + _PHASE_BITS


def phase_record(barrier: int, phase: int, count: int, away: int = 0) -> int:
    """The record of an arrival (count 0) in the thread block so many ranks `away`, or of a wait for so many."""
    line = PHASE_WINDOW_LINE + (barrier << _BARRIER_SHIFT | phase % PHASES << _COUNT_BITS | count)
    return line << LINE_SHIFT | (ALL_SECTORS ^ away) << SECTOR_SHIFT


def away_of(record: Any) -> Any:
    """How many ranks on in its cluster the thread block is that an arrival is made in; 0: it is the own."""
    return ((record >> SECTOR_SHIFT) & ALL_SECTORS) ^ ALL_SECTORS


def is_phase(line: Any) -> Any:
    """Is it the line of such a record?"""
    return (line >= PHASE_WINDOW_LINE) & (line < PARAM_WINDOW_LINE)


def barrier_of(line: Any) -> Any:
    """Number of the barrier."""
    return (line - PHASE_WINDOW_LINE) >> _BARRIER_SHIFT


def phase_of(line: Any) -> Any:
    """Number of the phase, modulo PHASES."""
    return ((line - PHASE_WINDOW_LINE) >> _COUNT_BITS) & (PHASES - 1)


def count_of(line: Any) -> Any:
    """Arrivals that are waited for; 0: this is one."""
    return (line - PHASE_WINDOW_LINE) & MOST_COUNT


def in_phases(records: UInt32[np.ndarray, " record"]) -> Bool[np.ndarray, " record"]:
    """Which of them are of this kind."""
    return is_phase(line_of(records))


def without_phases(trace: Trace) -> Trace:
    """The trace without arrivals and waits: what is left says only which memory was touched."""
    phases = in_phases(trace.records)
    if not phases.any():
        return trace
    records, kept = trace.records.copy(), ~phases
    last = more_follow(records) == 0
    access = np.cumsum(last) - last  # number of the access of each record
    kept_of = np.bincount(access[kept], minlength=int(access[-1]) + 1)
    alone = phases & last & (kept_of[access] == 0)  # nothing else is left of an access: it keeps an empty record
    records[alone] = 0
    kept |= alone
    ends = np.ones(len(records), bool)
    chosen = np.flatnonzero(kept)
    ends[chosen[:-1]] = access[chosen[1:]] != access[chosen[:-1]]
    records = np.where(ends, records & ~np.uint32(MORE), records | np.uint32(MORE))[kept]
    return trace.keeping(kept, records)


BANKS = 32
BANK_BYTES = 4
_SECTOR_SHIFT = SECTOR_BYTES.bit_length() - 1
_SECTORS_SHIFT = SECTORS_A_LINE.bit_length() - 1
_ONE = np.uint32(1)

Records: TypeAlias = 'tuple[Int64[np.ndarray, " record"], UInt32[np.ndarray, " record"]]'  # (row, record)


def sector_numbers(addresses: Integer[np.ndarray, "row lane"]) -> UInt32[np.ndarray, "row lane"]:
    """Sector numbers. An aligned access of at most 32 bytes lies in one sector."""
    return (addresses >> addresses.dtype.type(_SECTOR_SHIFT)).astype(np.uint32)


def line_records(sectors: UInt32[np.ndarray, "row lane"]) -> Records:
    """The records of each row, by row, then ascending line number. `sectors` are sector numbers (address / 32 B)."""
    if not sectors.size:
        return np.zeros(0, np.int64), np.zeros(0, np.uint32)
    lines = sectors >> np.uint32(_SECTORS_SHIFT)
    bits = _ONE << (sectors & np.uint32(SECTORS_A_LINE - 1))
    together = (lines == lines[:, :1]).all(axis=1)
    if together.all():
        return np.arange(len(sectors)), packed(lines[:, 0], np.bitwise_or.reduce(bits, axis=1))
    return _sorted_records(sectors)


def _sorted_records(sectors: np.ndarray) -> Records:
    width = sectors.shape[1]
    ascending = (sectors[:, 1:] >= sectors[:, :-1]).all()
    ordered = sectors if ascending else np.sort(sectors, axis=1)
    lines = ordered >> np.uint32(_SECTORS_SHIFT)
    new = np.ones(lines.shape, bool)
    np.not_equal(lines[:, 1:], lines[:, :-1], out=new[:, 1:])
    starts = np.flatnonzero(new)
    bits = _ONE << (ordered & np.uint32(SECTORS_A_LINE - 1))
    joined = np.bitwise_or.reduceat(bits.ravel(), starts)
    rows = starts // width
    return rows, pack_records(rows, lines.ravel()[starts], joined)


def pack_records(rows: np.ndarray, lines: np.ndarray, bits: np.ndarray) -> UInt32[np.ndarray, " record"]:
    """Packed records; `more` where the next record has the same row."""
    records = packed(lines.astype(np.uint32), bits.astype(np.uint32))
    records[:-1] |= rows[1:] == rows[:-1]
    return records


def with_addresses(records: Records, addresses: Integer[np.ndarray, "row lane"]) -> Records:
    """The records of loads of constants, with empty ones behind those of a row until they are as many as the row's
    distinct addresses."""
    rows, _ = records
    ordered = np.sort(addresses, axis=1)
    distinct = 1 + (ordered[:, 1:] != ordered[:, :-1]).sum(axis=1)
    more = np.repeat(np.arange(len(distinct)), distinct - np.bincount(rows, minlength=len(distinct)))
    if not len(more):
        return records
    return joined_records([records, (more, np.zeros(len(more), np.uint32))], 0)


def with_words(
    records: Records, addresses: Integer[np.ndarray, "row lane"], active: Bool[np.ndarray, "row lane"], size: int,
    local_bytes: int = 0,
) -> Records:  # fmt: skip
    """A store's records, with what it left out of their sectors in bits 32 to 63, a bit a word: of elements of `size`
    bytes to global memory, or of `local_bytes` a lane to local memory. Of a word all bytes must be written."""
    rows, packed_ = records
    where, lanes = addresses[rows].astype(np.int64), active[rows]
    line, words = line_of(packed_.astype(np.int64))[:, None], np.full(len(rows), 0xFFFFFFFF, np.uint32)
    if local_bytes:
        behind = line - LOCAL_WINDOW_LINE - (where >> 2)
        lanes = lanes & (behind >= 0) & (behind < local_bytes // 4)
        words = np.bitwise_or.reduce(np.where(lanes, _ONE << np.arange(32, dtype=np.uint32), 0), axis=1)
    else:
        bits = np.uint32(3 if size == 8 else 1) << (where >> 2 & 31).astype(np.uint32)
        for byte in range(0, 4, size):
            written = lanes & (where // LINE_BYTES == line) & (where & 3 == byte)
            words &= np.bitwise_or.reduce(np.where(written, bits, np.uint32(0)), axis=1)
    left_out = np.where(words == words_of(sectors_of(packed_)), np.uint32(0), ~words)
    return rows, packed_ | left_out.astype(np.uint64) << np.uint64(32)


def joined_records(parts: Sequence[Records], rows: int) -> Records:
    """The records of several parts of each row's access as those of one, by row, then ascending line number; an empty
    one for each of the `rows` that has none."""
    given = [np.concatenate([np.zeros(0, np.int64), *(row for row, _ in parts)])]
    given.append(np.setdiff1d(np.arange(rows), given[0]))
    row = np.concatenate(given)
    found = np.concatenate([*(found for _, found in parts), np.zeros(len(given[1]), np.uint64)]).astype(np.uint64)
    record, left_out = found.astype(np.uint32), found >> np.uint64(32) << np.uint64(32)
    order = np.lexsort((line_of(record), record <= MORE, row))  # empty ones come last
    row, record = row[order], record[order]
    return row, pack_records(row, line_of(record), sectors_of(record)) | left_out[order]


def repeat_active(
    values: np.ndarray, active: Bool[np.ndarray, "row lane"], some: Bool[np.ndarray, " row"] | None = None
) -> np.ndarray:
    """Values [row, lane], those of inactive lanes replaced by that of the row's first active lane; in rows without one,
    which are not among `some`, by that of any row."""
    first = values[np.arange(len(values)), active.argmax(axis=1)]
    if some is not None:
        first[~some] = first[some.argmax()]
    return np.where(active, values, first[:, None])


def atomic_records(
    addresses: Integer[np.ndarray, "row lane"], active: Bool[np.ndarray, "row lane"], size_bytes: int
) -> Records:
    """Like `line_records`, but in rounds: a lane is in that of its number among those that name its word of
    `size_bytes`, and a line has a record of each round that comes to it."""
    rows, lanes = np.nonzero(active)
    words = addresses[rows, lanes].astype(np.int64) // size_bytes
    keys, counts = np.unique((rows.astype(np.int64) << 40) | words, return_counts=True)
    named = np.repeat(keys, counts)
    turns = np.arange(len(named)) - np.repeat(np.cumsum(counts) - counts, counts)
    named_rows, byte = named >> 40, (named & ((1 << 40) - 1)) * size_bytes
    order = np.lexsort((turns, byte // LINE_BYTES, named_rows))
    found = np.array([named_rows, byte // LINE_BYTES, turns])[:, order]
    starts = np.flatnonzero(np.diff(found, prepend=-1).any(0))
    if not starts.size:
        return named_rows, np.zeros(0, np.uint32)
    bits = np.bitwise_or.reduceat((1 << (byte // SECTOR_BYTES % SECTORS_A_LINE))[order], starts)
    return found[0, starts], pack_records(found[0, starts], found[1, starts], bits)


def bank_passes(words: UInt32[np.ndarray, "row lane"]) -> UInt8[np.ndarray, " row"]:
    """Most distinct words on one of the 32 banks; `words` are shared addresses / 4."""
    if words.shape[1] == 1:
        return np.ones(len(words), np.uint8)
    passes = np.ones(len(words), np.uint8)
    spread = words.max(axis=1) - words.min(axis=1) >= BANKS  # within 32 words, distinct words have distinct banks
    if not spread.any():
        return passes
    scattered = np.sort(words[spread], axis=1)
    first = np.ones(scattered.shape, bool)
    np.not_equal(scattered[:, 1:], scattered[:, :-1], out=first[:, 1:])
    bank = (scattered & np.uint32(BANKS - 1)) + (np.arange(len(scattered), dtype=np.uint32) * BANKS)[:, None]
    counts = np.bincount(bank[first], minlength=BANKS * len(scattered))
    passes[spread] = counts.reshape(-1, BANKS).max(axis=1)
    return passes
