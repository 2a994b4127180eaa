"""Latency table and trace, one instruction and one warp at a time."""

from __future__ import annotations

from dataclasses import dataclass

from functional.trace import Trace
from precharacterize import LatencyTable
from precharacterize.classify import Kind


class Program:
    """A latency table asked about one instruction."""

    def __init__(self, table: LatencyTable) -> None:
        self.table = table

    def unit(self, i: int) -> int:
        return int(self.table.unit[i])

    def kind(self, i: int) -> Kind:
        return Kind(int(self.table.kind[i]))

    def pc(self, i: int) -> int:
        return int(self.table.pcs[i])

    def latency(self, i: int) -> int:
        return int(self.table.latency_cycles[i])

    def initiation(self, i: int) -> int:
        return int(self.table.initiation_cycles[i])

    def access_bytes(self, i: int) -> int:
        return int(self.table.access_bytes[i])

    def waits(self, i: int) -> list[int]:
        return _row(self.table.waits[i])

    def writes(self, i: int) -> list[int]:
        return _row(self.table.writes[i])

    def long_waits(self, i: int) -> list[int]:
        return _row(self.table.long_waits[i])

    def reads(self, i: int) -> list[int]:
        return _row(self.table.read_banks[i])

    def write_banks(self, i: int) -> list[int]:
        return _row(self.table.write_banks[i])


def _row(row) -> list[int]:
    return [int(r) for r in row if r >= 0]


@dataclass
class WarpStream:
    """What one warp did: its basic blocks, line records and conflict cycles, consumed in order."""

    program: Program
    blocks: list[int]
    line_records: list[int]
    conflicts: list[int]
    stop: int = 0

    def advance(self, i: int | None) -> int | None:
        """The instruction after `i` (None: the first one), or None at the end."""
        if i is not None and i + 1 < self.stop:
            return i + 1
        if not self.blocks:
            return None
        block = self.blocks.pop(0)
        self.stop = int(self.program.table.block_stop[block])
        return int(self.program.table.block_start[block])

    def records(self) -> list[int]:
        """Records of the next access: up to the first without its "more" bit."""
        found = [self.line_records.pop(0)]
        while found[-1] & 1:
            found.append(self.line_records.pop(0))
        return found

    def conflict(self) -> int:
        """Conflict cycles of the next shared-memory access."""
        return self.conflicts.pop(0)


def stream_of(program: Program, trace: Trace, warp: int) -> WarpStream:
    """The stream of a trace's warp."""

    def cut(values, offsets) -> list[int]:
        return [int(v) for v in values[offsets[warp] : offsets[warp + 1]]]

    return WarpStream(
        program,
        cut(trace.blocks, trace.block_offsets),
        cut(trace.records, trace.record_offsets),
        cut(trace.conflicts, trace.conflict_offsets),
    )
