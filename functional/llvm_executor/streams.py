"""The growing buffers that a launch writes its trace to, and their sorting into the streams of each warp; and
the check, by these, that thread blocks that ran at the same time did not touch each other's data."""

import ctypes
from itertools import pairwise
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from functional.execution.computer import memory_bytes
from functional.launches.memory import GLOBAL_BASE, Memory, sparse_zeros
from functional.llvm_executor.context_layout import CONTEXT, LOADED, MOST_KEPT_BYTES, SEGMENT_WORDS, STORED
from functional.llvm_executor.object_code import call
from functional.llvm_executor.runtime_races import CLEAN, JOB, PAGE_LINES, STORES_JOB
from functional.llvm_executor.runtime_records import COPY_BYTES, SORTING
from functional.programs.program import Program
from functional.traces.trace import DTYPES, LINE_BYTES, OFFSETS, SECTOR_BYTES, STREAMS, Trace

_AT = {name: position for position, name in enumerate(CONTEXT)}
_FIRST = 1 << 16  # entries of a new buffer
_LEAST_ROOM = 1 << 14  # more than any basic block writes


class Room:
    """Bytes handed out one behind the other. What is handed out is valid until `clear`."""

    def __init__(self) -> None:
        self._bytes, self._used = np.empty(_FIRST, np.uint8), 0

    def take(self, count: int, dtype: np.dtype) -> np.ndarray:
        """An array of `count` elements, COPY_BYTES of free room behind it."""
        size = count * dtype.itemsize
        if self._used + size + COPY_BYTES > len(self._bytes):
            self._bytes, self._used = np.empty(max(2 * len(self._bytes), size + COPY_BYTES), np.uint8), 0
        start = self._used
        self._used = -(-(start + size + COPY_BYTES) // 64) * 64
        return self._bytes[start : start + size].view(dtype)

    def clear(self) -> None:
        """Begin again at the first byte."""
        self._used = 0

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self._bytes.nbytes


class StreamPart(NamedTuple):
    """What a warp of the chunk wrote in one turn; valid until the next."""

    warp: int
    blocks: np.ndarray
    records: np.ndarray
    conflicts: np.ndarray


class Buffers:
    """What streams are written to. Kept from launch to launch, because fresh pages cost as much as the writing."""

    def __init__(self) -> None:
        self.blocks, self.masks = np.empty(_FIRST, np.uint16), np.empty(_FIRST, np.uint32)
        self.records, self.conflicts = np.empty(_FIRST, np.uint32), np.empty(_FIRST, np.uint8)
        self.stores = np.empty(_FIRST, np.int64)  # as many as records: each store has one or more
        self.partial = np.empty((_FIRST, 2), np.int64)  # as many: {host address of a record, words that were written}
        self.segments = np.empty((1 << 12, SEGMENT_WORDS), np.int64)
        self.sorted = Room()

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(buffer.nbytes for buffer in vars(self).values())


class Streams(Buffers):
    """Buffers of one launch; `context` is its int64 context, in which their addresses and cursors stand. `append`:
    traces lie in the buffers, valid as long as nobody else writes to those, and each chunk comes behind the one before.
    Else they are arrays of their own, and a chunk starts over."""

    def __init__(
        self, context: np.ndarray, largest_block: int, slow_paths: int, buffers: Buffers, append: bool
    ) -> None:
        self.__dict__.update(vars(buffers))
        self.event_room = COPY_BYTES + slow_paths  # a block is an event, and so are its instructions' slow paths
        self.context, self.room, self.append = context, max(_LEAST_ROOM, largest_block), append
        self.sorted.clear()
        self._start_at(0, 0, 0)

    @property
    def last_block(self) -> int:
        """The basic block that a warp has entered last."""
        return int(self.blocks[self._get("event") - 1])

    def begin(self, rows: int) -> None:
        """A chunk of `rows` warps is to come."""
        self.counts = np.zeros((rows, 2), np.int64)
        self._set(segment=0, stores=self.stores.ctypes.data, partial=self.partial.ctypes.data)
        self.grow()

    def note_stores(self) -> None:
        """From now on, every store to global memory notes where its line records are."""
        self._set(stores_step=self.stores.itemsize)

    def noted_stores(self) -> np.ndarray:
        """Host addresses of the first record of each store of the chunk."""
        return self.stores[: (self._get("stores") - self.stores.ctypes.data) // self.stores.itemsize]

    def noted_words(self) -> np.ndarray:
        """Of the chunk's stores that left out some of a sector: {host address of a record, words}."""
        return self.partial[: (self._get("partial") - self.partial.ctypes.data) // self.partial.strides[0]]

    def keep(self, buffers: Buffers) -> None:
        """Hand grown buffers back for the next launch."""
        vars(buffers).update({name: getattr(self, name) for name in vars(buffers)})

    def _start_at(self, event: int, record: int, conflict: int) -> None:
        self._first = (event, record, conflict)
        records = self.records.ctypes.data + 4 * record
        self._set(event=event, records=records, conflicts=self.conflicts.ctypes.data + conflict)

    def _set(self, **slots: int) -> None:
        for name, value in slots.items():
            self.context[_AT[name]] = value

    def _get(self, name: str) -> int:
        return int(self.context[_AT[name]])

    def _point(self) -> None:
        """Behind the last element of every buffer, COPY_BYTES or a row remain."""
        self._set(
            blocks=self.blocks.ctypes.data, masks=self.masks.ctypes.data, event_stop=len(self.blocks) - self.event_room,
            records_stop=self.records.ctypes.data + self.records.nbytes - COPY_BYTES,
            conflicts_stop=self.conflicts.ctypes.data + self.conflicts.nbytes - COPY_BYTES,
            segments=self.segments.ctypes.data, segment_stop=len(self.segments) - 1, counts=self.counts.ctypes.data,
        )  # fmt: skip

    def _used(self) -> tuple[int, int, int, int]:
        """Entries so far: events, records, conflicts, segments."""
        records = (self._get("records") - self.records.ctypes.data) // 4
        return self._get("event"), records, self._get("conflicts") - self.conflicts.ctypes.data, self._get("segment")

    def grow(self, more_records: int = 0, more_conflicts: int = 0, more_segments: int = 0) -> None:
        """Double whatever is nearly full, or would be with so many more, and say where everything is."""
        events, records, conflicts, segments = self._used()
        while events >= len(self.blocks) - self.event_room:
            self.blocks, self.masks = _longer(self.blocks, events), _longer(self.masks, events)
        while records + more_records + self.room > len(self.records):
            self._grow_records(records, segments)
        while conflicts + more_conflicts + self.room > len(self.conflicts):
            old = self.conflicts.ctypes.data
            self.conflicts = _longer(self.conflicts, conflicts, self.room)
            self.segments[:segments, 3] += self.conflicts.ctypes.data - old
            self._set(conflicts=self.conflicts.ctypes.data + conflicts)
        while segments + more_segments >= len(self.segments) - 1:
            self.segments = _longer(self.segments, segments)
        self._point()

    def _grow_records(self, records: int, segments: int) -> None:
        old, noted, words = self.records.ctypes.data, len(self.noted_stores()), self.noted_words()
        self.records = _longer(self.records, records, self.room)
        moved = self.records.ctypes.data - old
        self.segments[:segments, 2] += moved
        self.stores[:noted] += moved
        words[:, 0] += moved
        self.stores, self.partial = _longer(self.stores, noted, self.room), _longer(self.partial, len(words), self.room)
        self._set(partial=self.partial.ctypes.data + len(words) * self.partial.strides[0])
        self._set(records=old + moved + 4 * records, stores=self.stores.ctypes.data + noted * self.stores.itemsize)

    def add(self, stream: str, rows: np.ndarray, values: np.ndarray) -> None:
        """Append to "records" or "conflicts" what is given of some warps, each a row, those of one warp adjacent."""
        starts = np.flatnonzero(np.diff(rows, prepend=-1))
        event, *ends, segment = self._used()
        which = ("records", "conflicts").index(stream)
        self.grow(len(values) * (which == 0), len(values) * (which == 1), len(starts))
        buffer, places = getattr(self, stream), [self._get("records"), self._get("conflicts")]
        buffer[ends[which] : ends[which] + len(values)] = values.astype(buffer.dtype)
        if values.dtype == np.uint64:
            self._note_words(values >> np.uint64(32))
        table = self.segments[segment : segment + len(starts)]
        table[:, 0], table[:, 1], table[:, 2:] = rows[starts], event, places
        table[:, 2 + which] += starts * buffer.itemsize
        places[which] += len(values) * buffer.itemsize
        self._set(segment=segment + len(starts), records=places[0], conflicts=places[1])

    def _note_words(self, left_out: np.ndarray) -> None:
        """Words that stores left out of the sectors of each of the next records (line_record.with_words)."""
        some, noted = np.flatnonzero(left_out), len(self.noted_words())
        rows = self.partial[noted : noted + len(some)]
        rows[:, 0], rows[:, 1] = self._get("records") + some * self.records.itemsize, ~left_out[some].astype(np.uint32)
        self._set(partial=self.partial.ctypes.data + (noted + len(some)) * self.partial.strides[0])

    def parts(self, first: int) -> list[StreamPart]:
        """What the turns from number `first` on have written, in order."""
        *ends, stop = self._used()
        self.segments[stop, 1:] = ends[0], self._get("records"), self._get("conflicts")
        rows = self.segments[first : stop + 1] - (0, 0, self.records.ctypes.data, self.conflicts.ctypes.data)
        rows[:, 2] //= self.records.itemsize
        return [
            StreamPart(warp, self.blocks[e:e_end], self.records[r:r_end], self.conflicts[c:c_end])
            for (warp, e, r, c), (_, e_end, r_end, c_end) in pairwise(rows.tolist())
        ]

    def trace(self, thread_blocks: np.ndarray, warps_per_block: int) -> Trace:
        """The streams of the chunk in warp order."""
        *ends, segments = self._used()
        warps = len(self.counts)
        self.segments[segments, 1:] = ends[0], self._get("records"), self._get("conflicts")
        offsets = {name: np.empty(warps + 1, np.int64) for name in OFFSETS}
        places = np.zeros((warps + 1, SEGMENT_WORDS), np.int64)
        job = np.zeros(len(SORTING), np.int64)
        job[:4] = self.segments.ctypes.data, segments, warps, places.ctypes.data
        job[4:7] = [array.ctypes.data for array in offsets.values()]
        streams = self._slices(ends) if call("measure", job.ctypes.data) else self._sorted(job, ends)
        return Trace(
            thread_blocks=thread_blocks.astype(np.int64), warps_per_block=warps_per_block, **streams, **offsets,
            warp_instructions=self.counts[:, 0].copy(), thread_instructions=self.counts[:, 1].copy(),
        )  # fmt: skip

    def _slices(self, ends: list[int]) -> dict[str, np.ndarray]:
        """Streams that are in order as they were written."""
        own = {name: getattr(self, name)[self._first[k] : ends[k]] for name, k in _KINDS.items()}
        places, words = self.noted_words().T
        before = self.records.ctypes.data + self._first[1] * self.records.itemsize
        partial = {"partial_at": (places - before) >> 2, "partial_words": words.astype(np.uint32)}
        if self.append:
            self._start_at(*ends)
            return own | partial
        self._start_at(0, 0, 0)
        return {name: stream.copy() for name, stream in own.items()} | partial

    def _sorted(self, job: np.ndarray, ends: list[int]) -> dict[str, np.ndarray]:
        """Sorted copies; what was written is no longer needed."""
        room = self.sorted if self.append else Room()
        own = {name: room.take(ends[k] - self._first[k], getattr(self, name).dtype) for name, k in _KINDS.items()}
        order, firsts = np.empty((2, job[1] + 1), np.int64)
        notes = len(self.noted_words())
        partial: dict[str, Any] = {name: np.empty(notes, DTYPES[name]) for name in ("partial_at", "partial_words")}
        job[7:10] = order.ctypes.data, self.blocks.ctypes.data, self.masks.ctypes.data
        job[10:14] = [stream.ctypes.data for stream in own.values()]
        job[14:17] = self.partial.ctypes.data, self._get("partial"), firsts.ctypes.data
        job[17:] = [array.ctypes.data for array in partial.values()]
        call("gather_streams", job.ctypes.data)
        self._start_at(*self._first)
        return own | partial


_KINDS = dict(zip(STREAMS, (0, 0, 1, 2), strict=True))  # stream -> which of events, records, conflicts it counts


def _longer(array: np.ndarray, used: int, room: int = 0) -> Any:
    size = 2 * array.nbytes
    if size > memory_bytes() // 2:  # beyond, the system would end the process without a word
        raise MemoryError(f"the trace of the launch takes more than {size >> 30} GiB")
    longer = np.empty((2 * len(array) + room, *array.shape[1:]), array.dtype)
    ctypes.memmove(longer.ctypes.data, array.ctypes.data, used * array.strides[0])
    return longer


_CELL_WORDS = 2 * LINE_BYTES // SECTOR_BYTES
_LAST_ID = 1 << 31
_RECORDED = ("ld", "ldu", "st", "atom", "red")


class Shadow:
    """Which chunk wrote and which read every 32-byte sector of the buffers a launch writes, from their line records.
    Two chunks of which one wrote a sector that the other touched are in conflict: their order may matter. Without
    conflict each has read only what it wrote itself or what was there before, so any order gives the same."""

    def __init__(self) -> None:
        self._cells = np.zeros((0, _CELL_WORDS), np.uint32)
        self._next = 1
        self._lock = Lock()

    def trim(self) -> None:
        """Let go of cells that are too many to hold on to."""
        if self._cells.nbytes > MOST_KEPT_BYTES:
            self._cells = np.zeros((0, _CELL_WORDS), np.uint32)

    def begin(self, first: Trace, program: Program, memory: Memory) -> bool:
        """Forget everything; `first` is the first chunk of a launch of `program` on `memory`, run alone. Is it possible
        to tell what its records are? The buffers it wrote to are those that others may write to."""
        lines = -(-len(memory.arena) // LINE_BYTES)
        if len(self._cells) < lines or self._next >= _LAST_ID:
            self._cells = sparse_zeros(4 * lines * _CELL_WORDS).view(np.uint32).reshape(lines, _CELL_WORDS)
            self._next = 1
        # Of every basic block b, `_first[b]` to `_first[b + 1]` - 1: the instructions that leave line records, in order
        recorded = [i.opcode in _RECORDED and i.space != "shared" for i in program.instructions]
        rows = [[i for i in program.instructions[b.start : b.stop] if recorded[i.index]] for b in program.blocks]
        self._first = np.cumsum([0, *map(len, rows)], dtype=np.int64)
        self._writes = np.array([i.opcode not in ("ld", "ldu") for row in rows for i in row] + [False], np.uint8)
        self._base = self._next - 1
        self._next += 1
        self._written = np.zeros(lines // PAGE_LINES + 1, np.uint8)
        known = self._look(first, learn=True)
        pages = [(region - GLOBAL_BASE) // (PAGE_LINES * LINE_BYTES) for region in memory.ranges()]
        self._shared = np.zeros(len(memory.regions), bool)  # regions, written by the first chunk, as others may
        for number, (start, end) in enumerate(zip(*pages, strict=True)):
            self._shared[number] = self._written[start : end + 1] = self._written[start : end + 1].any()
        return known

    def clean(self, trace: Trace, touched: np.ndarray, streams: Streams) -> bool:
        """Is the chunk that a machine has just run without conflict with those before it? Threads may call it."""
        touched = touched[: len(self._shared)]
        if (touched[~self._shared] & STORED).any():
            return False
        with self._lock:
            if (touched[self._shared] & LOADED).any():
                return self._look(trace, learn=False)
            stores = streams.noted_stores()
            return self._is_clean("store_races", STORES_JOB, stores=stores, count=len(stores))

    def _look(self, trace: Trace, learn: bool) -> bool:
        return self._is_clean(
            "races", JOB, blocks=trace.blocks, block_offsets=trace.block_offsets, records=trace.records,
            record_offsets=trace.record_offsets, warps=len(trace.warp_instructions), first=self._first,
            writes=self._writes, written=self._written, learn=learn,
        )  # fmt: skip

    def _is_clean(self, routine: str, names: tuple[str, ...], **values: np.ndarray | int) -> bool:
        first_line, number = GLOBAL_BASE // LINE_BYTES, self._next
        values |= dict(shadow=self._cells, first_line=first_line, lines=len(self._cells), id=number, base=self._base)
        self._next += 1
        found = (values[name] for name in names)
        job = np.array([v.ctypes.data if isinstance(v, np.ndarray) else v for v in found], np.int64)
        return call(routine, job.ctypes.data) == CLEAN
