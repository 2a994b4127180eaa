"""Latency table and trace, one instruction and one warp at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from functional.traces.trace import Trace
from precharacterize import LatencyTable
from precharacterize.classify import Kind


class Program:
    """A latency table asked about one instruction, as lists: they are asked in every cycle."""

    def __init__(self, table: LatencyTable) -> None:
        self.table = table
        self.unit = table.unit.tolist().__getitem__
        self.kind = [Kind(kind) for kind in table.kind.tolist()].__getitem__
        self.pc = table.pcs.tolist().__getitem__
        self.latency = table.latency_cycles.tolist().__getitem__
        self.initiation = table.initiation_cycles.tolist().__getitem__
        self.copies = table.copies.tolist().__getitem__
        self.adds_doubles = table.fp64_atomic.tolist().__getitem__
        self.round, self.word = table.round_cycles.tolist().__getitem__, table.word.tolist().__getitem__
        self.stall, self.release = table.stall_cycles.tolist().__getitem__, table.release.tolist().__getitem__
        self.counted = table.counted.tolist().__getitem__
        self.result_offset = table.result_offset_cycles.tolist().__getitem__
        self.access_bytes = table.access_bytes.tolist().__getitem__
        self.waits, self.writes = _rows(table.waits), _rows(table.writes)
        self.long_waits, self.reads = _rows(table.long_waits), _rows(table.read_banks)
        self.write_banks = _rows(table.write_banks)


def _rows(rows) -> Callable[[int], list[int]]:
    return [[r for r in row if r >= 0] for row in rows.tolist()].__getitem__


@dataclass
class WarpStream:
    """What one warp did: its basic blocks, line records and conflict cycles, consumed in order."""

    program: Program
    blocks: list[int]
    line_records: list[tuple[int, int]]  # and the words that a store writes of its line, as bits
    conflicts: list[int]
    masks: list[int]
    stop: int = 0
    mask: int = 0

    def advance(self, i: int | None) -> int | None:
        """The instruction after `i` (None: the first one), or None at the end."""
        if i is not None and i + 1 < self.stop:
            return i + 1
        if not self.blocks:
            return None
        block, self.mask = self.blocks.pop(0), self.masks.pop(0)
        self.stop = int(self.program.table.block_stop[block])
        return int(self.program.table.block_start[block])

    def records(self) -> list[tuple[int, int]]:
        """Records of the next access: up to the first without its "more" bit."""
        found = [self.line_records.pop(0)]
        while found[-1][0] & 1:
            found.append(self.line_records.pop(0))
        return found

    def conflict(self) -> int:
        """Conflict cycles of the next shared-memory access."""
        return self.conflicts.pop(0)


def stream_of(program: Program, trace: Trace, warp: int) -> WarpStream:
    """The stream of a trace's warp."""

    def cut(values, offsets) -> list[int]:
        return [int(v) for v in values[offsets[warp] : offsets[warp + 1]]]

    words = np.full(len(trace.records), 0xFFFFFFFF, np.int64)
    words[trace.partial_at] = trace.partial_words
    return WarpStream(
        program,
        cut(trace.blocks, trace.block_offsets),
        list(zip(cut(trace.records, trace.record_offsets), cut(words, trace.record_offsets), strict=True)),
        cut(trace.conflicts, trace.conflict_offsets),
        cut(trace.masks, trace.block_offsets),
    )
