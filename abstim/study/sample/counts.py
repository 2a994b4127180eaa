"""What warps did, counted from their traces."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from functional.traces.line_record import is_data, line_of
from functional.traces.trace import Trace

if TYPE_CHECKING:
    from jaxtyping import Bool, Int64

_HASH_BASE = np.uint64(0x9E3779B97F4A7C15)


def ranges(starts: Int64[np.ndarray, " n"], stops: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " element"]:
    """start, start + 1, ..., stop - 1 of every pair, end to end."""
    lengths = stops - starts
    before = np.cumsum(lengths) - lengths
    return np.arange(int(lengths.sum())) + np.repeat(starts - before, lengths)


def warps_of(trace: Trace, positions: Int64[np.ndarray, " tb"]) -> Int64[np.ndarray, " warp"]:
    """Positions in the trace of the warps of some thread blocks, in their order."""
    return (positions[:, None] * trace.warps_per_block + np.arange(trace.warps_per_block)).ravel()


def block_counts(
    trace: Trace, warps: Int64[np.ndarray, " warp"], basic_blocks: int
) -> Int64[np.ndarray, "warp basic_block"]:
    """How often each warp executed each basic block."""
    starts, stops = trace.block_offsets[warps], trace.block_offsets[warps + 1]
    rows = np.repeat(np.arange(len(warps)), stops - starts)
    cells = rows * basic_blocks + trace.blocks[ranges(starts, stops)]
    return np.bincount(cells, minlength=len(warps) * basic_blocks).reshape(len(warps), basic_blocks)


def warp_types(trace: Trace, warps: Int64[np.ndarray, " warp"]) -> Int64[np.ndarray, " warp"]:
    """Equal numbers for warps that executed the same basic blocks in the same order: a polynomial hash modulo 2^64."""
    starts, stops = trace.block_offsets[warps], trace.block_offsets[warps + 1]
    lengths = stops - starts
    powers = np.full(int(lengths.max(initial=0)), _HASH_BASE)
    powers = np.multiply.accumulate(powers) if len(powers) else powers
    place = ranges(np.zeros(len(warps), np.int64), lengths)
    terms = (trace.blocks[ranges(starts, stops)].astype(np.uint64) + np.uint64(1)) * powers[place]
    return sums(terms, lengths).view(np.int64)


def memory_requests(trace: Trace, warps: Int64[np.ndarray, " warp"]) -> Int64[np.ndarray, " warp"]:
    """Line records each warp made in global and local memory."""
    starts, stops = trace.record_offsets[warps], trace.record_offsets[warps + 1]
    return sums(in_memory(trace.records[ranges(starts, stops)]).astype(np.int64), stops - starts)


def distinct_lines(trace: Trace, positions: Int64[np.ndarray, " tb"]) -> tuple[Int64[np.ndarray, " tb"], int]:
    """Cache lines of global and local memory that each of some thread blocks touches, and all of them together."""
    starts, stops = (trace.record_offsets[(positions + k) * trace.warps_per_block] for k in (0, 1))
    owner = np.repeat(np.arange(len(positions), dtype=np.uint64), stops - starts)
    records = trace.records[ranges(starts, stops)]
    data = in_memory(records)
    pairs = np.unique(owner[data] << np.uint64(32) | line_of(records[data]).astype(np.uint64))
    each = np.bincount((pairs >> np.uint64(32)).astype(np.int64), minlength=len(positions))
    return each, len(np.unique(pairs & np.uint64(0xFFFFFFFF)))


def in_memory(records: np.ndarray) -> Bool[np.ndarray, " record"]:
    """Which line records lie in global or local memory."""
    return is_data(line_of(records))


def sums(values: np.ndarray, lengths: Int64[np.ndarray, " n"]) -> np.ndarray:
    """Sum of every run of consecutive values; 0 for an empty one."""
    total = np.concatenate([np.zeros(1, values.dtype), np.cumsum(values, dtype=values.dtype)])
    ends = np.cumsum(lengths)
    return total[ends] - total[ends - lengths]
