"""The work that a launch asks of a GPU, counted before anything is timed: the numbers its cycles are predicted from."""

from collections.abc import Sequence
from dataclasses import dataclass
from mmap import mmap

import numpy as np

from abstim.engine.accesses import line_of, more_follow, sectors_of
from abstim.engine.address_map import bank_of, row_of, slice_of
from abstim.engine.design_point import numbers_of
from abstim.engine.l1d import set_of
from abstim.engine.tags import find, victim
from abstim.gpu.config import Gpu
from abstim.study.sample.profiling import SomeBlocks
from functional.arrays import Float64, Int64
from functional.jit.machine_code import compiled
from functional.programs.program import Program
from functional.traces.line_record import SECTORS_A_LINE, is_data, with_places
from functional.traces.trace import SHARED_WINDOW_LINE, Trace, offsets_of
from precharacterize.classify import latency_class

LINES = 1 << 27  # that there are numbers of
REQUESTS, SECTORS, OWN_LINES, NEW_LINES, L1D_MISSES, L2_MISSES, BUSIEST_SLICE, ROWS, WANTED, BANK_PASSES, SPECIAL = (
    range(11)
)
COLUMNS = SPECIAL + 1
# Columns of `BlockWork.columns` that a thread block has whatever those before it did
EACH_BLOCK, EACH_LINES = (0, 1 + BANK_PASSES, 1 + SPECIAL), (1 + REQUESTS, 1 + SECTORS, 1 + OWN_LINES)
RECENT = 1 << 14  # lines of which it is known that this thread block has touched them
WAYS = 8
CROWD = 16  # lines a slice, on average, after which it is asked which one was busiest
SLOW = ("sfu", "tensor", "fp64", "div")  # parts of latency classes that have few units


def missed(tags, used, first, ways, mark, clock):
    """Looks a mark up in a set of tags, where it is the youngest from now on; true if it was not there."""
    way = find(tags, first, ways, mark)
    absent = way < 0
    if absent:
        way = victim(used, first, ways)
        tags[way] = mark + 1
    used[way] = clock
    return absent


def crowded(slices, number):
    """Counts a line in its slice, and now and then looks (`most_crowded`), else 0."""
    slices[number] += 1
    slices[len(slices) - 1] += 1
    return most_crowded(slices) if slices[len(slices) - 1] >= CROWD * (len(slices) - 1) else 0


def most_crowded(slices):
    """Lines since the last look, if all slices had as many as the busiest."""
    count = len(slices) - 1
    most = 0
    for k in range(count):
        most = max(most, slices[k])
    slices[:] = 0
    return most * count


def wanted(m, readers, line):
    """Counts a thread block that reads a line, among the latest; true for the first too many for L2 to merge."""
    place = line & (RECENT - 1)
    if readers[0, place] != line:
        readers[0, place], readers[1, place] = line, 0
    readers[1, place] += 1
    return readers[1, place] == m.l2_mshr_merges + 1


def count_access(m, records, k, b, together, clock, seen, recent, readers, l1d, l2, rows, slices, found):
    """The record `k` of thread block `b`, which is resident with others of the same number `together`."""
    line, bits = line_of(records[k]), sectors_of(records[k])
    if not is_data(line):
        found[b, BANK_PASSES] += line == SHARED_WINDOW_LINE
        return
    found[b, REQUESTS] += 1
    found[b, SECTORS] += (bits & 1) + (bits >> 1 & 1) + (bits >> 2 & 1) + (bits >> 3)
    found[b, L1D_MISSES] += missed(l1d[0], l1d[1], set_of(m, line), m.l1d_set_lines, line << 32 | together, clock)
    mark = line << 32 | b
    if recent[(line ^ b) & (RECENT - 1)] == mark + 1:
        return
    recent[(line ^ b) & (RECENT - 1)] = mark + 1
    found[b, OWN_LINES] += 1
    number, channel, local, _ = slice_of(m, line)
    found[b, BUSIEST_SLICE] += crowded(slices, number)
    found[b, WANTED] += wanted(m, readers, line)
    if seen[line >> 5] >> (line & 31) & 1 == 0:
        seen[line >> 5] |= 1 << (line & 31)
        found[b, NEW_LINES] += 1
    if missed(l2[0], l2[1], (line ^ line >> 11) % (len(l2[0]) // WAYS) * WAYS, WAYS, line, clock):
        found[b, L2_MISSES] += 1
        bank = channel * m.dram_banks + bank_of(m, local)
        found[b, ROWS] += rows[bank] != row_of(m, local) + 1
        rows[bank] = row_of(m, local) + 1


@compiled
def count_work(m, records, at, offsets, each, resident, seen, recent, readers, l1d, l2, rows, slices, found, longest):
    """`found` [block, COLUMNS] and `longest` [block]: requests of the warp with the most. `at`: where each warp's
    records begin, of `each` a thread block. `resident` of the thread blocks, evenly spread, are an SM's at a time, and
    their warps make an access in turn. `l1d`, `l2`: tags and last uses, `rows`: the open one of each bank, `slices`:
    lines of each since the last look, and of all.

    OWN_LINES: distinct lines of the block, all but exactly. NEW_LINES: no block before had them. L1D_MISSES: from an
    empty cache. L2_MISSES: those of OWN_LINES that a cache of L2's size lacks; ROWS: and that do not lie in the row
    that is open. BUSIEST_SLICE: lines, as many as there would be if all slices had as many as the busiest, CROWD at a
    time. WANTED: lines that more thread blocks read than L2 merges. BANK_PASSES: here of generic accesses alone."""
    blocks, clock = len(found), 0
    apart = -(-blocks // resident)
    for together in range(apart):
        busy = True
        while busy:
            busy = False
            for b in range(together, blocks, apart):
                for w in range(b * each, (b + 1) * each):
                    if at[w] == offsets[w + 1]:
                        continue
                    busy, more = True, 1
                    while more:
                        clock += 1
                        count_access(
                            m, records, at[w], b, together, clock, seen, recent, readers, l1d, l2, rows, slices, found
                        )
                        more = more_follow(records[at[w]])
                        at[w] += 1
    found[blocks - 1, BUSIEST_SLICE] += most_crowded(slices)
    for b in range(blocks):
        for w in range(b * each, (b + 1) * each):
            longest[b] = max(longest[b], offsets[w + 1] - offsets[w])


# Of a launch, each 0 or more: cycles are looked for as a sum of shares of them
WORK = ("one", "instructions", "requests", "sectors", "own_lines", "new_lines", "l1d_misses", "l2_misses",
        "busiest_slice", "rows", "wanted", "bank_passes", "special", "path_instructions", "path_requests")  # fmt: skip


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


def slow_code(program: Program, slow_paths: bool) -> Int64[np.ndarray, " bb"]:
    """Number of `SLOW` instructions in each basic block; a slow path counts as one, where `slow_paths` are timed."""
    found = np.array(program.in_blocks([any(p in latency_class(i) for p in SLOW) for i in program.instructions]))
    found[len(program.code_blocks) :] = slow_paths
    return found


def block_work(traces: Sequence[Trace], gpu: Gpu, slow: np.ndarray, blocks_per_sm: int) -> list[BlockWork]:
    """Of pieces of one launch: a line that one piece touched is not new in the next, and may be in L2. `slow`: its
    `slow_code`. An SM holds `blocks_per_sm` of its thread blocks."""
    spec, machine = gpu.spec, np.array([numbers_of(gpu)])[0]
    lines = 0 if spec.perfect_memory else spec.l2_lines
    seen = np.frombuffer(mmap(-1, LINES // 8), np.uint32)  # no page is zeroed but those touched
    recent = np.zeros(RECENT, np.int64)
    readers = np.zeros((2, RECENT), np.int64)
    l2 = np.zeros((2, max(lines // WAYS, 1) * WAYS), np.int64)
    rows = np.zeros(spec.dram_channels * spec.dram_banks, np.int64)
    slices = np.zeros(spec.dram_channels * spec.l2_slices_per_channel + 1, np.int64)
    found = []
    for trace in traces:
        blocks, each = len(trace.thread_blocks), trace.warps_per_block
        counts, longest = np.zeros((blocks, COLUMNS), np.int64), np.zeros(blocks, np.int64)
        recent[:] = 0
        l1d = np.zeros((2, spec.l1d_sets * spec.l1d_ways), np.int64)
        count_work(
            machine, np.ascontiguousarray(with_places(trace, spec.sm_count * blocks_per_sm * each)),
            trace.record_offsets[:-1].copy(), trace.record_offsets, each,
            min(blocks_per_sm, blocks), seen, recent, readers, l1d, l2, rows, slices, counts, longest,
        )  # fmt: skip
        counts[:, BANK_PASSES] += _by_block(trace.conflicts, trace.conflict_offsets, each)
        counts[:, SPECIAL] = _by_block(slow[trace.blocks], trace.block_offsets, each)
        if spec.perfect_memory:
            counts[:, [L2_MISSES, BUSIEST_SLICE, ROWS, WANTED]] = 0
        issued = trace.warp_instructions.reshape(blocks, each).astype(float)
        found.append(BlockWork(issued.sum(1), counts.astype(float), issued.max(1, initial=0.0), longest.astype(float)))
    return found


def _by_block(values: np.ndarray, offsets: Int64[np.ndarray, " warp_plus_1"], each: int) -> Int64[np.ndarray, " tb"]:
    return np.diff(offsets_of(values.astype(np.int64))[offsets[::each]])


def dram_cycles(misses: Float64[np.ndarray, " n"], gpu: Gpu) -> Float64[np.ndarray, " n"]:
    """What DRAM takes, if it does nothing else, for so many lines that L2 lacks."""
    per_line = SECTORS_A_LINE * gpu.params.dram_sector_cycles / gpu.spec.dram_channels
    return np.zeros_like(misses) if gpu.spec.perfect_memory else misses * per_line


def summed(pieces: Sequence[BlockWork], executed: SomeBlocks, wave_blocks: int) -> Float64[np.ndarray, " work"]:
    """WORK of a launch on a GPU that holds `wave_blocks` thread blocks of it at once. A path is that of the longest
    warp of a thread block, times the rounds of thread blocks that follow each other on one slot; at least that of the
    longest warp of all."""
    weights = [weight for _, weight in executed.pieces]
    rounds = max(1.0, executed.thread_blocks / wave_blocks)
    totals = sum(weight * work.columns.sum(0) for work, weight in zip(pieces, weights, strict=True))

    def path(name: str) -> float:
        columns = [getattr(work, name) for work in pieces]
        mean = sum(w * float(c.sum()) for w, c in zip(weights, columns, strict=True)) / executed.thread_blocks
        return max(max(float(c.max(initial=0.0)) for c in columns), mean * rounds)

    assert isinstance(totals, np.ndarray)
    return np.array([1.0, *totals.tolist(), path("path_instructions"), path("path_requests")])
