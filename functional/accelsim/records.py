"""Line records and bank passes of a trace's memory accesses, in batches, in the format of our own executors."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import numpy as np

from functional.accelsim.addresses import Offsets, parse_addresses
from functional.accelsim.header import Header
from functional.accelsim.opcodes import WARP_LANES, StaticInstruction
from functional.errors import InputError
from functional.traces.coalesce import atomic_records, bank_passes, line_records, pack_records, sector_numbers
from functional.traces.line_record import SHARED_PASS, line_of, more_follow, packed, sectors_of
from functional.traces.trace import LINE_BYTES, LOCAL_LINES, LOCAL_WINDOW_LINE, PARAM_WINDOW_LINE

_BATCH = 4096  # accesses turned into records together
_PAGE_BYTES = 2 << 20  # what the driver maps at a time: neighbours within it stay neighbours
_PAGES = LOCAL_WINDOW_LINE * LINE_BYTES // _PAGE_BYTES  # global memory lies below the local window
_WINDOW_BYTES = 1 << 24  # shared and local memory in generic addresses
_LOCAL_WORDS = 1 << 22  # of a thread's local memory, which is less than 16 MiB
_FIRST_PARAMETER = packed(PARAM_WINDOW_LINE, 1)
_LANES = np.arange(WARP_LANES)

Found = tuple[np.ndarray, np.ndarray]  # (row, packed record)


class PageTable:
    """64-bit addresses to the 8 GiB line records can name: pages keep their number if it fits, else take a free one."""

    def __init__(self) -> None:
        self._pages: dict[int, int] = {}
        self._used: set[int] = set()
        self._next = 0

    def translate(self, addresses: np.ndarray) -> np.ndarray:
        """Addresses int64 of any shape. Raises InputError if more than 8 GiB are touched."""
        pages, inverse = np.unique(addresses // _PAGE_BYTES, return_inverse=True)
        moved = np.array([self._page(int(p)) for p in pages], np.int64)
        return moved[inverse].reshape(addresses.shape) * _PAGE_BYTES + addresses % _PAGE_BYTES

    def _page(self, page: int) -> int:
        if page not in self._pages:
            fits = 0 <= page < _PAGES and page not in self._used
            self._pages[page] = page if fits else self._free()
            self._used.add(self._pages[page])
        return self._pages[page]

    def _free(self) -> int:
        while self._next in self._used:
            self._next += 1
        if self._next >= _PAGES:
            raise InputError("the trace touches more than 8 GiB of global memory, which line records cannot name")
        return self._next


class Records:
    """Collects accesses in order and yields two streams, records and conflicts, each with its counts a warp."""

    def __init__(self, header: Header, pages: PageTable) -> None:
        self.header, self.pages = header, pages
        self.records, self.conflicts = array("I"), array("B")
        self.record_counts, self.conflict_counts = array("q"), array("q")
        self._warp = -1
        # (instruction, mask, warp, address of the first active lane, distances of the following ones)
        self._pending: list[tuple[StaticInstruction, int, int, int, Offsets]] = []

    def begin_warp(self) -> None:
        """Accesses are from now on those of the next warp."""
        self._warp += 1
        self.record_counts.append(0)
        self.conflict_counts.append(0)

    def add(self, what: StaticInstruction, mask: int, text: str) -> None:
        """One access: `text` begins with the address mode; it is empty if the trace has no addresses."""
        if not text:
            self._without_address(what, mask)
            return
        if len(self._pending) >= _BATCH:
            self.flush()
        self._pending.append((what, mask, self._warp, *parse_addresses(text, mask.bit_count())))

    def drop_last(self) -> None:
        """Forget the access just added."""
        self._pending.pop()

    def _without_address(self, what: StaticInstruction, mask: int) -> None:
        self.flush()
        if what.space == "shared":
            self.conflicts.append(1 if mask else 0)
            self.conflict_counts[self._warp] += 1
        else:
            parameter = what.space in ("const", "param") and mask
            self.records.append(_FIRST_PARAMETER if parameter else 0)
            self.record_counts[self._warp] += 1

    def flush(self) -> None:
        """Turn what has been collected into records."""
        if not self._pending:
            return
        what, masks, warp, bases, offsets = zip(*self._pending, strict=True)
        self._pending = []
        active = (np.array(masks, np.int64)[:, None] >> _LANES & 1).astype(bool)
        rank = np.maximum(np.cumsum(active, axis=1) - 1, 0)
        addresses = np.array(bases, np.int64)[:, None] + np.take_along_axis(np.stack(offsets), rank, axis=1)
        active &= np.array([w.lanes for w in what])[:, None] > _LANES
        warps, shared = np.array(warp), np.array([w.space == "shared" for w in what])
        if shared.any():
            self._append_conflicts(addresses[shared], active[shared], warps[shared])
        if not shared.all():
            rest = np.flatnonzero(~shared)
            self._append_records(addresses[rest], active[rest], warps[rest], [what[i] for i in rest])

    def _append_conflicts(self, addresses: np.ndarray, active: np.ndarray, warps: np.ndarray) -> None:
        lanes = _repeat_active(addresses, active)
        passes = np.where(active.any(axis=1), bank_passes((lanes >> 2).astype(np.uint32)), 0)
        self.conflicts.frombytes(passes.astype(np.uint8).tobytes())
        _count(self.conflict_counts, warps)

    def _append_records(
        self, addresses: np.ndarray, active: np.ndarray, warps: np.ndarray, what: list[StaticInstruction]
    ) -> None:
        rows, packed = [np.zeros(0, np.int64)], [np.zeros(0, np.uint32)]
        keys = [(w.space, w.is_atomic, w.access_bytes) for w in what]
        for key in dict.fromkeys(keys):
            chosen = np.array([k == key for k in keys])
            for at, found in self._of_kind(*key, addresses[chosen], active[chosen]):
                rows.append(np.flatnonzero(chosen)[at])
                packed.append(found)
        row, record = np.concatenate(rows), np.concatenate(packed)
        empty = np.setdiff1d(np.arange(len(what)), row)
        row, record = np.concatenate([row, empty]), np.concatenate([record, np.zeros(len(empty), np.uint32)])
        order = np.lexsort((line_of(record), row))
        row, record = row[order], record[order]
        merged = pack_records(row, line_of(record), sectors_of(record))
        self.records.frombytes(merged.tobytes())
        _count(self.record_counts, warps[row])

    def _of_kind(
        self, space: str, atomic: bool, size: int, addresses: np.ndarray, active: np.ndarray
    ) -> Iterator[Found]:
        """(row, packed record) of accesses to one space, rows without an active lane left out."""
        for part, inside in self._split(space, addresses, active):
            rows = np.flatnonzero(inside.any(axis=1))
            if not rows.size:
                continue
            here = inside[rows]
            lanes = _repeat_active(addresses[rows], here)
            if part == "shared":  # through a generic address: one record a conflict cycle
                passes = bank_passes((lanes >> 2 & (_WINDOW_BYTES // 4 - 1)).astype(np.uint32))
                found = np.full(int(passes.sum()), SHARED_PASS, np.uint32)
                yield np.repeat(rows, passes), found
                continue
            if part == "global" and atomic:
                at, found = atomic_records(self.pages.translate(lanes), here, size)
            else:
                at, found = line_records(self._sectors(part, size, lanes, here))
            yield rows[at], found

    def _split(self, space: str, addresses: np.ndarray, active: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
        if space != "generic":
            yield space, active
            return
        shared, local = self._window("shared", addresses), self._window("local", addresses)
        if not self.header.shared_base and not self.header.local_base:
            shared = np.ones(active.shape, bool)  # as Accel-Sim takes it if the tracer did not say
        yield "shared", active & shared
        yield "local", active & local & ~shared
        yield "global", active & ~shared & ~local

    def _window(self, name: str, addresses: np.ndarray) -> np.ndarray:
        base = self.header.shared_base if name == "shared" else self.header.local_base
        other = self.header.local_base if name == "shared" else self.header.shared_base
        stop = min(base + _WINDOW_BYTES, other) if other > base else base + _WINDOW_BYTES
        return (addresses >= base) & (addresses < stop) & (base != 0)

    def _sectors(self, space: str, size: int, lanes: np.ndarray, active: np.ndarray) -> np.ndarray:
        if space == "local":
            return self._local_sectors(size, lanes, active)
        if space == "param":
            return sector_numbers(lanes + PARAM_WINDOW_LINE * LINE_BYTES)
        return sector_numbers(lanes if space == "const" else self.pages.translate(lanes))

    def _local_sectors(self, size: int, lanes: np.ndarray, active: np.ndarray) -> np.ndarray:
        """A (word, warp) pair owns a line, a lane 4 bytes of it; here lines are words, `streams` adds the warp."""
        base = np.where(self._window("local", lanes), self.header.local_base, 0)
        first = (lanes - base) >> 2
        own = np.where(active, _LANES, active.argmax(axis=1)[:, None])
        words = [(first + i) % _LOCAL_WORDS + LOCAL_WINDOW_LINE for i in range(max(1, size // 4))]
        return np.concatenate([word * 4 + own // 8 for word in words], axis=1).astype(np.uint32)

    def streams(self) -> tuple[np.ndarray, np.ndarray]:
        """(records, conflicts) of all warps."""
        self.flush()
        records = np.frombuffer(self.records, np.uint32).copy() if self.records else np.zeros(0, np.uint32)
        lines = line_of(records)
        local = np.flatnonzero((lines >= LOCAL_WINDOW_LINE) & (lines < LOCAL_WINDOW_LINE + _LOCAL_WORDS))
        if local.size:
            warp = np.repeat(np.arange(len(self.record_counts)), np.array(self.record_counts))[local]
            words = lines[local].astype(np.int64) - LOCAL_WINDOW_LINE
            words -= int(words.min())
            each = -(-(int(words.max()) + 1) // 4) * 4
            line = (warp * each + words) % LOCAL_LINES + LOCAL_WINDOW_LINE
            old = records[local]
            records[local] = packed(line.astype(np.uint32), sectors_of(old), more_follow(old))
        return records, np.frombuffer(self.conflicts, np.uint8).copy() if self.conflicts else np.zeros(0, np.uint8)


def _repeat_active(addresses: np.ndarray, active: np.ndarray) -> np.ndarray:
    """Addresses [access, lane], those of inactive lanes replaced by that of the first active one."""
    return np.where(active, addresses, addresses[np.arange(len(active)), active.argmax(axis=1)][:, None])


def _count(counts: array, warps: np.ndarray) -> None:
    """Add one for each entry of `warps` (ascending)."""
    found, number = np.unique(warps, return_counts=True)
    for warp, n in zip(found.tolist(), number.tolist(), strict=True):
        counts[warp] += n
