"""The growing buffers that a launch writes its trace to, and their sorting into the streams of each warp."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from functional.llvm_executor.compile import call
from functional.llvm_executor.layout import CONTEXT, SEGMENT_WORDS
from functional.trace import STREAMS, Trace

_AT = {name: position for position, name in enumerate(CONTEXT)}
_FIRST = 1 << 16  # entries of a new buffer
MOST_KEPT_BYTES = 1 << 28  # of anything that outlives a launch
_LEAST_ROOM = 1 << 14  # more than any basic block writes


class Buffers:
    """What streams are written to. Kept from launch to launch, because fresh pages cost as much as the writing."""

    def __init__(self) -> None:
        self.blocks, self.masks = np.empty(_FIRST, np.uint16), np.empty(_FIRST, np.uint32)
        self.records, self.conflicts = np.empty(_FIRST, np.uint32), np.empty(_FIRST, np.uint8)
        self.segments = np.empty((1 << 12, SEGMENT_WORDS), np.int64)

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes for a in (self.blocks, self.masks, self.records, self.conflicts, self.segments))


class Streams(Buffers):
    """Buffers of one launch; `context` is its int64 context, in which their addresses and cursors stand.

    `append`: traces are views of the buffers, valid as long as nobody else writes to those, and each chunk comes behind
    the one before. Else they are copies, and a chunk starts over.
    """

    def __init__(self, context: np.ndarray, largest_block: int, buffers: Buffers, append: bool) -> None:
        self.__dict__.update(vars(buffers))
        self.context, self.room, self.append = context, max(_LEAST_ROOM, largest_block), append
        self._first = (0, 0, 0)  # event, record and conflict of the chunk
        self._set(event=0, records=self.records.ctypes.data, conflicts=self.conflicts.ctypes.data)

    def begin(self, rows: int) -> None:
        """A chunk of `rows` warps is to come."""
        self.counts = np.zeros((rows, 2), np.int64)
        if self.append:
            self._first = self._used()[:3]
        else:
            self._set(event=0, records=self.records.ctypes.data, conflicts=self.conflicts.ctypes.data)
        self._set(segment=0)
        self._point()
        self.grow()

    def keep(self, buffers: Buffers) -> None:
        """Hand grown buffers back for the next launch."""
        vars(buffers).update({name: getattr(self, name) for name in vars(buffers)})

    def _set(self, **slots: int) -> None:
        for name, value in slots.items():
            self.context[_AT[name]] = value

    def _get(self, name: str) -> int:
        return int(self.context[_AT[name]])

    def _point(self) -> None:
        self._set(
            blocks=self.blocks.ctypes.data, masks=self.masks.ctypes.data, event_stop=len(self.blocks),
            records_stop=self.records.ctypes.data + self.records.nbytes,
            conflicts_stop=self.conflicts.ctypes.data + self.conflicts.nbytes,
            segments=self.segments.ctypes.data, segment_stop=len(self.segments), counts=self.counts.ctypes.data,
        )  # fmt: skip

    def _used(self) -> tuple[int, int, int, int]:
        """Entries so far: events, records, conflicts, segments."""
        records = (self._get("records") - self.records.ctypes.data) // 4
        return self._get("event"), records, self._get("conflicts") - self.conflicts.ctypes.data, self._get("segment")

    def grow(self) -> None:
        """Double whatever is nearly full."""
        events, records, conflicts, segments = self._used()
        if events >= len(self.blocks):
            self.blocks, self.masks = _longer(self.blocks, events), _longer(self.masks, events)
        if records + self.room > len(self.records):
            old = self.records.ctypes.data
            self.records = _longer(self.records, records, self.room)
            self.segments[:segments, 2] += self.records.ctypes.data - old
            self._set(records=self.records.ctypes.data + 4 * records)
        if conflicts + self.room > len(self.conflicts):
            old = self.conflicts.ctypes.data
            self.conflicts = _longer(self.conflicts, conflicts, self.room)
            self.segments[:segments, 3] += self.conflicts.ctypes.data - old
            self._set(conflicts=self.conflicts.ctypes.data + conflicts)
        if segments >= len(self.segments):
            self.segments = _longer(self.segments, segments)
        self._point()

    def trace(self, thread_blocks: np.ndarray, warps_per_block: int) -> Trace:
        """The streams of the chunk in warp order."""
        events, records, conflicts, segments = self._used()
        table = self.segments[:segments]
        rows = table[:, 0]
        order = None if (rows[1:] >= rows[:-1]).all() else np.argsort(rows, kind="stable")
        starts = (table[:, 1], (table[:, 2] - self.records.ctypes.data) // 4, table[:, 3] - self.conflicts.ctypes.data)
        ends = zip(starts, self._first, (events, records, conflicts), strict=True)
        cut = [_Cut(start, first, end, rows, order, len(self.counts)) for start, first, end in ends]
        streams = zip(STREAMS, (0, 0, 1, 2), strict=True)
        own = {name: cut[k].sorted(getattr(self, name), self.append) for name, k in streams}
        return Trace(
            thread_blocks=thread_blocks.astype(np.int64), warps_per_block=warps_per_block,
            **own, block_offsets=cut[0].offsets, record_offsets=cut[1].offsets,
            conflict_offsets=cut[2].offsets, warp_instructions=self.counts[:, 0].copy(),
            thread_instructions=self.counts[:, 1].copy(),
        )  # fmt: skip


class _Cut:
    """Where the segments cut one kind of stream."""

    def __init__(
        self, starts: np.ndarray, first: int, end: int, rows: np.ndarray, order: np.ndarray | None, warps: int
    ) -> None:
        self.first, self.end, self.order, self.starts = first, end, order, starts
        self.lengths = np.empty(len(starts), np.int64)
        self.lengths[:-1] = starts[1:] - starts[:-1]
        self.lengths[-1:] = end - starts[-1:]
        counts = np.bincount(rows, self.lengths, warps).astype(np.int64)  # exact below 2**53
        self.offsets = np.zeros(warps + 1, np.int64)
        np.cumsum(counts, out=self.offsets[1:])

    def sorted(self, stream: np.ndarray, as_view: bool) -> np.ndarray:
        if self.order is None or self.end == self.first:
            own = stream[self.first : self.end]
            return own if as_view else own.copy()
        size = stream.itemsize
        pieces = np.stack([self.starts[self.order] * size, self.lengths[self.order] * size], axis=1)
        out = np.empty(self.end - self.first, stream.dtype)
        call("collect", out.ctypes.data, stream.ctypes.data, pieces.ctypes.data, len(pieces))
        return out


def _longer(array: np.ndarray, used: int, room: int = 0) -> Any:
    longer = np.empty((2 * len(array) + room, *array.shape[1:]), array.dtype)
    ctypes.memmove(longer.ctypes.data, array.ctypes.data, used * array.strides[0])
    return longer
