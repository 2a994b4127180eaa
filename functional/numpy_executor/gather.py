"""Chunks of a launch into one Trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from functional.traces.trace import Trace


@dataclass(frozen=True)
class ChunkTrace:
    """Streams of the warps of one chunk, and how many entries each warp has in them."""

    blocks: np.ndarray
    masks: np.ndarray
    events: np.ndarray
    records: np.ndarray
    record_counts: np.ndarray
    conflicts: np.ndarray
    conflict_counts: np.ndarray
    warp_instructions: np.ndarray
    thread_instructions: np.ndarray


def gather(thread_blocks: np.ndarray, warps_per_block: int, chunks: Sequence[ChunkTrace]) -> Trace:
    """Join chunks that are in thread-block order."""

    def join(name: str, dtype: type) -> np.ndarray:
        return np.concatenate([np.zeros(0, dtype), *(getattr(c, name) for c in chunks)]).astype(dtype, copy=False)

    def offsets(name: str) -> np.ndarray:
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(join(name, np.int64))])

    return Trace(
        thread_blocks=thread_blocks.astype(np.int64),
        warps_per_block=warps_per_block,
        blocks=join("blocks", np.uint16),
        masks=join("masks", np.uint32),
        records=join("records", np.uint32),
        conflicts=join("conflicts", np.uint8),
        block_offsets=offsets("events"),
        record_offsets=offsets("record_counts"),
        conflict_offsets=offsets("conflict_counts"),
        warp_instructions=join("warp_instructions", np.int64),
        thread_instructions=join("thread_instructions", np.int64),
    )
