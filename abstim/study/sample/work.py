"""The work that a launch asks of a GPU, counted before anything is timed: the numbers its cycles are predicted from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from abstim.engine.accesses import line_of, sectors_of
from abstim.engine.tags import find, victim
from abstim.gpu.config import Gpu
from abstim.study.sample.profiling import SomeBlocks
from functional.jit.compile import jit
from functional.jit.machine_code import compiled
from functional.traces.line_record import SECTORS_A_LINE, is_data
from functional.traces.trace import Trace

if TYPE_CHECKING:
    from jaxtyping import Float64


LINES = 1 << 27  # that there are numbers of
REQUESTS, SECTORS, OWN_LINES, NEW_LINES, L2_MISSES, COLUMNS = 0, 1, 2, 3, 4, 5
RECENT = 1 << 14  # lines of which it is known that this thread block has touched them
WAYS = 8
in_memory = jit(is_data)


@compiled
def count_work(records, block_offsets, warp_offsets, seen, recent, tags, used, found, longest):
    """`found` [block, COLUMNS] and `longest` [block]: requests of the warp with the most.

    OWN_LINES: distinct lines of the block, all but exactly: what L1D might ask for. NEW_LINES: no block before had
    them. L2_MISSES: those of OWN_LINES that a cache of `tags` [set x WAYS] lacks, thread blocks one after the other.
    """
    sets, clock = len(tags) // WAYS, 0
    for b in range(len(block_offsets) - 1):
        for w in range(block_offsets[b], block_offsets[b + 1]):
            asked = 0
            for k in range(warp_offsets[w], warp_offsets[w + 1]):
                line, bits = np.int64(line_of(records[k])), sectors_of(records[k])
                if not in_memory(line):
                    continue
                asked += 1
                found[b, SECTORS] += (bits & 1) + (bits >> 1 & 1) + (bits >> 2 & 1) + (bits >> 3)
                mark = line << 32 | (b + 1)
                if recent[line & (RECENT - 1)] == mark:
                    continue
                recent[line & (RECENT - 1)] = mark
                found[b, OWN_LINES] += 1
                if seen[line >> 5] >> (line & 31) & 1 == 0:
                    seen[line >> 5] |= np.uint32(1) << np.uint32(line & 31)
                    found[b, NEW_LINES] += 1
                clock += 1
                first = (line ^ line >> 11) % sets * WAYS
                way = find(tags, first, WAYS, line)
                if way < 0:
                    found[b, L2_MISSES] += 1
                    way = victim(used, first, WAYS)
                    tags[way] = line + 1
                used[way] = clock
            found[b, REQUESTS] += asked
            if asked > longest[b]:
                longest[b] = asked


# Of a launch, each 0 or more: cycles are looked for as a sum of shares of them
WORK = ("one", "instructions", "requests", "sectors", "own_lines", "new_lines", "l2_misses", "path_instructions",
        "path_requests")  # fmt: skip


@dataclass(frozen=True, eq=False)
class BlockWork:
    """Of every thread block, in the trace's order. `counts`: columns of `count_work`; `path_`: of its longest warp."""

    instructions: Float64[np.ndarray, " tb"]
    counts: Float64[np.ndarray, "tb column"]
    path_instructions: Float64[np.ndarray, " tb"]
    path_requests: Float64[np.ndarray, " tb"]

    @property
    def columns(self) -> Float64[np.ndarray, "tb column"]:
        """Instructions, then `counts`."""
        return np.column_stack([self.instructions, self.counts])


def block_work(traces: Sequence[Trace], gpu: Gpu) -> list[BlockWork]:
    """Of pieces of one launch: a line that one piece touched is not new in the next, and may be in L2."""
    spec = gpu.spec
    sets = 1 if spec.perfect_memory else max(l2_lines(gpu) // WAYS, 1)
    seen, recent = np.zeros(LINES // 32, np.uint32), np.zeros(RECENT, np.int64)
    tags, used = np.zeros(sets * WAYS, np.int64), np.zeros(sets * WAYS, np.int64)
    found = []
    for trace in traces:
        blocks, each = len(trace.thread_blocks), trace.warps_per_block
        counts, longest = np.zeros((blocks, COLUMNS), np.int64), np.zeros(blocks, np.int64)
        recent[:] = 0
        count_work(
            np.ascontiguousarray(trace.records), np.arange(blocks + 1) * each, trace.record_offsets,
            seen, recent, tags, used, counts, longest,
        )  # fmt: skip
        if spec.perfect_memory:
            counts[:, L2_MISSES] = 0
        issued = trace.warp_instructions.reshape(blocks, each).astype(float)
        found.append(BlockWork(issued.sum(1), counts.astype(float), issued.max(1, initial=0.0), longest.astype(float)))
    return found


def l2_lines(gpu: Gpu) -> int:
    """Lines that L2 has room for."""
    spec = gpu.spec
    return spec.dram_channels * spec.l2_slices_per_channel * spec.l2_sets * spec.l2_ways


def dram_cycles(misses: Float64[np.ndarray, " n"], gpu: Gpu) -> Float64[np.ndarray, " n"]:
    """What DRAM takes, if it does nothing else, for so many lines that L2 lacks."""
    per_line = SECTORS_A_LINE * gpu.params.dram_sector_cycles / gpu.spec.dram_channels
    return np.zeros_like(misses) if gpu.spec.perfect_memory else misses * per_line


def summed(pieces: Sequence[BlockWork], executed: SomeBlocks, wave_blocks: int) -> Float64[np.ndarray, " work"]:
    """WORK of a launch on a GPU that holds `wave_blocks` thread blocks of it at once.

    A path is that of the longest warp of a thread block, times the rounds of thread blocks that follow each other on
    one slot; at least that of the longest warp of all.
    """
    weights = [weight for _, weight in executed.pieces]
    rounds = max(1.0, executed.thread_blocks / wave_blocks)
    totals = sum(weight * work.columns.sum(0) for work, weight in zip(pieces, weights, strict=True))

    def path(name: str) -> float:
        columns = [getattr(work, name) for work in pieces]
        mean = sum(w * float(c.sum()) for w, c in zip(weights, columns, strict=True)) / executed.thread_blocks
        return max(max(float(c.max(initial=0.0)) for c in columns), mean * rounds)

    assert isinstance(totals, np.ndarray)
    return np.array([1.0, *totals.tolist(), path("path_instructions"), path("path_requests")])
