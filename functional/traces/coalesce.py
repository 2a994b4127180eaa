"""From lane addresses to what the memory system sees: line records and shared-memory bank passes.

All functions take one access a row and treat every column as an active lane: a caller replaces the address of an
inactive lane by that of an active lane of the same warp, which changes no result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from functional.traces.line_record import SECTORS_A_LINE, packed
from functional.traces.trace import LINE_BYTES, SECTOR_BYTES

if TYPE_CHECKING:
    from jaxtyping import Bool, Int64, Integer, UInt8, UInt32

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


def atomic_records(
    addresses: Integer[np.ndarray, "row lane"], active: Bool[np.ndarray, "row lane"], size_bytes: int
) -> Records:
    """Like `line_records`, each line repeated as often as its most contended word of `size_bytes` is named."""
    rows, lanes = np.nonzero(active)
    words = addresses[rows, lanes].astype(np.int64) // size_bytes
    keys, counts = np.unique((rows.astype(np.int64) << 40) | words, return_counts=True)
    key_rows, byte = keys >> 40, (keys & ((1 << 40) - 1)) * size_bytes
    lines = byte // LINE_BYTES
    starts = np.flatnonzero(np.diff((key_rows << 40) | lines, prepend=-1))
    if not starts.size:
        return key_rows, np.zeros(0, np.uint32)
    bits = np.bitwise_or.reduceat(1 << (byte // SECTOR_BYTES % SECTORS_A_LINE), starts)
    repeats = np.maximum.reduceat(counts, starts)
    repeated = (np.repeat(v, repeats) for v in (key_rows[starts], lines[starts], bits))
    out_rows, out_lines, out_bits = repeated
    return out_rows, pack_records(out_rows, out_lines, out_bits)


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
