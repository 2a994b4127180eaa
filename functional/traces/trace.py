"""The dynamic trace: what the timing engine needs to know of an execution, and nothing else.

Columnar and append-only, one entry a warp (not a thread); A warp's streams are slices of
three flat arrays, cut by offset arrays of `warps + 1` entries. Warps are in thread-block order, then warp order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import accumulate

import numpy as np

from functional.arrays import Bool, Int64, UInt8, UInt16, UInt32

# Memory is named by line; functional.traces.line_record packs what an access touches.
LINE_BYTES = 128
SECTOR_BYTES = 32
# Window, in line numbers, of generic accesses that resolve to shared memory: one such record a conflict cycle.
SHARED_WINDOW_LINE = (1 << 27) - 1
# Kernel parameters: byte b of the parameter block lies in line PARAM_WINDOW_LINE + b / 128 (CUDA allows 32 KiB).
# Constant memory is numbered from line 0; global memory lies between it and the local window.
PARAM_WINDOW_LINE = SHARED_WINDOW_LINE - 256
# Arrivals and waits at an mbarrier (line_record.py); what is not memory at all has line numbers from here on.
PHASE_WINDOW_LINE = PARAM_WINDOW_LINE - (1 << 24)
# Local memory is interleaved by word as hardware does: word w of a warp's lanes is line LOCAL_WINDOW_LINE + w of a
# trace, whichever warp it is; where a resident warp has its words is up to the GPU (`line_record.local_line`).
LOCAL_WINDOW_LINE = 1 << 26
LOCAL_LINES = PHASE_WINDOW_LINE - LOCAL_WINDOW_LINE

STREAMS = {  # -> the offsets that cut it
    "blocks": "block_offsets", "masks": "block_offsets", "records": "record_offsets", "conflicts": "conflict_offsets",
}  # fmt: skip
OFFSETS = tuple(dict.fromkeys(STREAMS.values()))
COUNTS = ("warp_instructions", "thread_instructions")
DTYPES = {
    "thread_blocks": "<i8", **dict.fromkeys((*OFFSETS, *COUNTS), "<i8"),
    **dict(zip(STREAMS, ("<u2", "<u4", "<u4", "u1"), strict=True)), "partial_at": "<i8", "partial_words": "<u4",
}  # fmt: skip
PARTIAL_BYTES = 12  # of what is said of one store that leaves words out
_WORTH_COPYING = 1 << 22  # bytes below which starting threads takes as long as it saves


@dataclass(frozen=True)
class Trace:
    """Dynamic streams of a set of thread blocks of one launch.

    `blocks`: the basic block ids a warp executes, in order (divergent paths one after the other, taken path first),
    behind each those of the slow paths that lanes took in it;
    `masks`: the active mask on entry of each; `records`: line records of every executed ld/st/atom on global, local,
    const, param and generic space, in order (`functional.traces.line_record`); `conflicts`: for every shared-memory
    instruction the number of bank passes (most distinct words on one bank; 0 if no lane was active). Stores fill the
    sectors they touch but for those of the records at the positions `partial_at`, of whose lines they wrote the words
    `partial_words`, bit w for bytes 4 w .. 4 w + 3: of a vector the first element alone, as GPGPU-Sim 4.2 counts."""

    thread_blocks: Int64[np.ndarray, " tb"]  # linear ids, x fastest
    warps_per_block: int
    blocks: UInt16[np.ndarray, " event"]
    masks: UInt32[np.ndarray, " event"]
    records: UInt32[np.ndarray, " record"]
    conflicts: UInt8[np.ndarray, " access"]
    block_offsets: Int64[np.ndarray, " warp_plus_1"]
    record_offsets: Int64[np.ndarray, " warp_plus_1"]
    conflict_offsets: Int64[np.ndarray, " warp_plus_1"]
    warp_instructions: Int64[np.ndarray, " warp"]  # issued, a warp
    thread_instructions: Int64[np.ndarray, " warp"]  # active: mask AND guard, summed over lanes
    partial_at: Int64[np.ndarray, " partial"] = field(default_factory=lambda: np.zeros(0, np.int64))  # ascending
    partial_words: UInt32[np.ndarray, " partial"] = field(default_factory=lambda: np.zeros(0, np.uint32))

    @property
    def nbytes(self) -> int:
        """Bytes of the streams (not the offsets)."""
        return sum(getattr(self, name).nbytes for name in STREAMS) + PARTIAL_BYTES * len(self.partial_at)

    def nbytes_before(self) -> Int64[np.ndarray, " tb_plus_1"]:
        """Bytes of the streams of the thread blocks before each, and of all."""
        each = self.warps_per_block
        partial = np.searchsorted(self.partial_at, self.record_offsets[::each])
        return PARTIAL_BYTES * partial + sum(
            getattr(self, name).itemsize * self._offsets(name)[::each] for name in STREAMS
        )

    def part(self, first: int, stop: int) -> Trace:
        """The thread blocks at positions `first` to `stop` - 1, as views where possible."""
        warps = slice(first * self.warps_per_block, stop * self.warps_per_block)
        streams, offsets = {}, {}
        for name in STREAMS:
            start, end = self._offsets(name)[[warps.start, warps.stop]]
            streams[name] = getattr(self, name)[start:end]
        for name in OFFSETS:
            own = getattr(self, name)[warps.start : warps.stop + 1]
            offsets[name] = own - own[0]
        counts = {name: getattr(self, name)[warps] for name in COUNTS}
        records = self.record_offsets[[warps.start, warps.stop]]
        partial = slice(*np.searchsorted(self.partial_at, records))
        return Trace(
            self.thread_blocks[first:stop], self.warps_per_block, **streams, **offsets, **counts,
            partial_at=self.partial_at[partial] - records[0], partial_words=self.partial_words[partial],
        )  # fmt: skip

    def keeping(self, kept: Bool[np.ndarray, " record"], records: UInt32[np.ndarray, " kept"]) -> Trace:
        """The trace with some of its records alone, which are now `records`."""
        before, partial = offsets_of(kept), kept[self.partial_at]
        return replace(
            self, records=records, record_offsets=before[self.record_offsets],
            partial_at=before[self.partial_at[partial]], partial_words=self.partial_words[partial],
        )  # fmt: skip

    def without_slow_paths(self, code_blocks: int) -> Trace:
        """The trace without events of basic blocks that hold no instructions, which come behind the `code_blocks`."""
        kept = self.blocks < code_blocks
        if kept.all():
            return self
        before = offsets_of(kept)[self.block_offsets]
        return replace(self, blocks=self.blocks[kept], masks=self.masks[kept], block_offsets=before)

    def _offsets(self, stream: str) -> Int64[np.ndarray, " warp_plus_1"]:
        return getattr(self, STREAMS[stream])


def offsets_of(counts: Int64[np.ndarray, " warp"]) -> Int64[np.ndarray, " warp_plus_1"]:
    """Where the entries of each warp begin, and where those of the last end."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])


def concatenate(traces: Sequence[Trace], warps_per_block: int, threads: int = 1) -> Trace:
    """The trace of the thread blocks of all `traces`, one after the other; of no thread block if there are none."""
    cut = [name for name in DTYPES if name not in OFFSETS]
    starts = {name: list(accumulate((len(getattr(trace, name)) for trace in traces), initial=0)) for name in cut}
    whole = {name: np.empty(starts[name][-1], DTYPES[name]) for name in cut}
    warps = starts["warp_instructions"]
    whole |= {name: np.zeros(warps[-1] + 1, np.int64) for name in OFFSETS}

    def copy(number: int) -> None:
        trace = traces[number]
        for name in cut:
            whole[name][starts[name][number] : starts[name][number + 1]] = getattr(trace, name)
        for stream, name in STREAMS.items():
            target = whole[name][warps[number] + 1 : warps[number + 1] + 1]
            np.add(getattr(trace, name)[1:], starts[stream][number], out=target)
        first, stop = starts["partial_at"][number : number + 2]
        whole["partial_at"][first:stop] += starts["records"][number]

    if threads == 1 or sum(array.nbytes for array in whole.values()) < _WORTH_COPYING:
        list(map(copy, range(len(traces))))
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(copy, range(len(traces))))
    return Trace(warps_per_block=warps_per_block, **whole)


def rechunk(traces: Iterable[Trace], chunk_bytes: int) -> Iterator[Trace]:
    """The same thread blocks cut anew: a chunk ends with the thread block that makes its streams `chunk_bytes` long."""
    held: list[Trace] = []
    for trace in traces:
        held.append(trace)
        if sum(t.nbytes for t in held) >= chunk_bytes:
            *chunks, rest = _cut(concatenate(held, trace.warps_per_block), max(1, chunk_bytes))
            held = [rest]
            yield from chunks
    if any(len(t.thread_blocks) for t in held):
        yield concatenate(held, held[0].warps_per_block)


def _cut(trace: Trace, chunk_bytes: int) -> list[Trace]:
    """Chunks as `rechunk` gives them, then what is left, which may be no thread block at all."""
    before, start, parts = trace.nbytes_before(), 0, []
    count = len(trace.thread_blocks)
    while before[count] - before[start] >= chunk_bytes:
        stop = int(np.searchsorted(before, before[start] + chunk_bytes))
        parts.append(trace.part(start, stop))
        start = stop
    return [*parts, trace.part(start, count)]
