"""Thread blocks of a launch that were executed to learn what the whole launch is like."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from abstim.study.sample.counts import in_memory, ranges, warps_of
from functional.traces.line_record import line_of
from functional.traces.trace import Trace

if TYPE_CHECKING:
    from jaxtyping import Int64

Count = TypeVar("Count", float, np.ndarray)


@dataclass(frozen=True)
class SomeBlocks:
    """Pieces of one launch: traces, and how many thread blocks each of a trace's stands for (of the first: itself)."""

    thread_blocks: int  # of the launch
    pieces: tuple[tuple[Trace, float], ...]

    @property
    def all_of_it(self) -> bool:
        """Every thread block was executed: no weight is above 1."""
        return self.count == self.thread_blocks

    @property
    def count(self) -> int:
        """Thread blocks that were executed."""
        return sum(len(trace.thread_blocks) for trace, _ in self.pieces)

    def total(self, of: Callable[[Trace], Count]) -> Count:
        """A sum over the launch's thread blocks, from that over a trace's."""
        return sum((of(trace) * weight for trace, weight in self.pieces[1:]), start=of(self.pieces[0][0]))

    def each(self, of: Callable[[Trace], np.ndarray]) -> np.ndarray:
        """Values of the thread blocks that were executed."""
        return np.concatenate([of(trace) for trace, _ in self.pieces])

    def lines(self) -> float:
        """Distinct cache lines in global and local memory that the launch touches.

        They grow with the thread blocks not executed as they did over the last half of those that were.
        """
        *before, inner = [_lines(trace) for trace, _ in self.pieces]
        distinct = len(np.unique(np.concatenate([*before, inner])))
        if self.all_of_it:
            return float(distinct)
        last = self.pieces[-1][0]
        half = np.arange(0, len(last.thread_blocks), 2)
        fewer = len(np.unique(np.concatenate([*before, _lines(last, half)])))
        growth = (distinct - fewer) / max(len(last.thread_blocks) - len(half), 1)
        return distinct + growth * (self.thread_blocks - self.count)


def execute_some(run: Callable[[list[int]], Trace], thread_blocks: int, most: int) -> SomeBlocks:
    """At most about `most` thread blocks: the first and the last as they are, of those between as many as that leaves,
    spread evenly, for all of them."""
    if thread_blocks <= most:
        return SomeBlocks(thread_blocks, ((run(list(range(thread_blocks))), 1.0),))
    between = np.unique(np.linspace(1, thread_blocks - 2, most - 2).astype(np.int64))
    share = (thread_blocks - 2) / len(between)
    return SomeBlocks(thread_blocks, ((run([0, thread_blocks - 1]), 1.0), (run(between.tolist()), share)))


def _lines(trace: Trace, positions: Int64[np.ndarray, " tb"] | None = None) -> np.ndarray:
    records = trace.records
    if positions is not None:
        warps = warps_of(trace, positions)
        records = records[ranges(trace.record_offsets[warps], trace.record_offsets[warps + 1])]
    return line_of(records[in_memory(records)])
