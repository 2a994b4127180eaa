"""Reading an Accel-Sim trace directory: one launch and one trace a kernel, line by line, whatever the file's size.

Memory accesses become line records and bank passes in batches, in the format of our own executors."""

from array import array
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO

import numpy as np

from functional.accelsim.static_code import WARP_LANES, Code, Opcodes, Runs, StaticInstruction
from functional.accelsim.trace_files import Header, Offsets, kernel_files, opened, parse_addresses, read_header
from functional.errors import InputError
from functional.launches.launch import Launch, check_shape
from functional.traces import line_record
from functional.traces.trace import LINE_BYTES, LOCAL_WINDOW_LINE, PARAM_WINDOW_LINE, Trace, concatenate, offsets_of

_BATCH = 4096  # accesses turned into records together
_PAGE_BYTES = 2 << 20  # what the driver maps at a time: neighbours within it stay neighbours
_PAGES = LOCAL_WINDOW_LINE * LINE_BYTES // _PAGE_BYTES  # global memory lies below the local window
_WINDOW_BYTES = 1 << 24  # shared and local memory in generic addresses
_LOCAL_WORDS = 1 << 22  # of a thread's local memory, which is less than 16 MiB
_FIRST_PARAMETER = line_record.packed(PARAM_WINDOW_LINE, 1)
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
            self.records.append(_FIRST_PARAMETER if what.space in ("const", "param") and mask else 0)
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
            own = active[shared]
            words = (line_record.repeat_active(addresses[shared], own) >> 2).astype(np.uint32)
            passes = np.where(own.any(axis=1), line_record.bank_passes(words), 0)
            self.conflicts.frombytes(passes.astype(np.uint8).tobytes())
            _count(self.conflict_counts, warps[shared])
        if not shared.all():
            rest = np.flatnonzero(~shared)
            self._append_records(addresses[rest], active[rest], warps[rest], [what[i] for i in rest])

    def _append_records(
        self, addresses: np.ndarray, active: np.ndarray, warps: np.ndarray, what: list[StaticInstruction]
    ) -> None:
        found: list[Found] = []
        keys = [(w.space, w.operation.startswith(("atom", "red")), w.access_bytes) for w in what]
        for key in dict.fromkeys(keys):
            chosen = np.array([k == key for k in keys])
            kind = self._of_kind(*key, addresses[chosen], active[chosen])
            found += [(np.flatnonzero(chosen)[at], records) for at, records in kind]
        row, records = line_record.joined_records(found, len(what))
        self.records.frombytes(records.astype(np.uint32).tobytes())
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
            lanes = line_record.repeat_active(addresses[rows], here)
            if part == "shared":  # through a generic address: one record a conflict cycle
                passes = line_record.bank_passes((lanes >> 2 & (_WINDOW_BYTES // 4 - 1)).astype(np.uint32))
                found = np.full(int(passes.sum()), line_record.SHARED_PASS, np.uint32)
                yield np.repeat(rows, passes), found
                continue
            if part == "global" and atomic:
                at, found = line_record.atomic_records(self.pages.translate(lanes), here, size)
            else:
                at, found = line_record.line_records(self._sectors(part, size, lanes, here))
            if part in ("const", "param"):
                at, found = line_record.with_addresses((at, found), lanes)
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
        if space == "local":  # a word owns a line, a lane 4 bytes of it
            base = np.where(self._window("local", lanes), self.header.local_base, 0)
            first = (lanes - base) >> 2
            own = np.where(active, _LANES, active.argmax(axis=1)[:, None])
            words = [(first + i) % _LOCAL_WORDS + LOCAL_WINDOW_LINE for i in range(max(1, size // 4))]
            return np.concatenate([word * 4 + own // 8 for word in words], axis=1).astype(np.uint32)
        if space == "param":
            return line_record.sector_numbers(lanes + PARAM_WINDOW_LINE * LINE_BYTES)
        return line_record.sector_numbers(lanes if space == "const" else self.pages.translate(lanes))

    def streams(self) -> tuple[np.ndarray, np.ndarray]:
        """(records, conflicts) of all warps."""
        self.flush()
        records = np.frombuffer(self.records, np.uint32).copy() if self.records else np.zeros(0, np.uint32)
        lines = line_record.line_of(records)
        local = np.flatnonzero((lines >= LOCAL_WINDOW_LINE) & (lines < LOCAL_WINDOW_LINE + _LOCAL_WORDS))
        if local.size:  # a thread's words count from the first that is accessed
            records[local] -= (lines[local].min() - np.uint32(LOCAL_WINDOW_LINE)) << np.uint32(line_record.LINE_SHIFT)
        return records, np.frombuffer(self.conflicts, np.uint8).copy() if self.conflicts else np.zeros(0, np.uint8)


def _count(counts: array, warps: np.ndarray) -> None:
    found, number = np.unique(warps, return_counts=True)
    for warp, n in zip(found.tolist(), number.tolist(), strict=True):
        counts[warp] += n


Progress = Callable[[str, int, int], object]
_CHUNK_LINES = 1 << 12  # of a warp, held together


def read(target: Path, opcodes: Opcodes, progress: Progress = lambda *_: None) -> Iterator[tuple[Launch, Trace, int]]:
    """(launch, trace, registers a thread) of every kernel of a trace directory or of its list, in launch order. Only
    the streams of one kernel are held, not its text. Raises InputError, with file and line, for anything that is not as
    the format says, for thread blocks that are not there, and for an opcode that `opcodes` lacks."""
    files = kernel_files(target)
    pages = PageTable()
    for number, path in enumerate(files):
        progress(f"read {path.name}", number, len(files))
        with opened(path) as file:
            header = read_header(path, file)
            launch, trace = _Reader(path, file, header, opcodes, pages).read()
        yield launch, trace, header.registers


class _Reader:
    def __init__(self, path: Path, file: IO[str], header: Header, opcodes: Opcodes, pages: PageTable) -> None:
        self.path, self.file, self.header = path, file, header
        self.code = Code(header, opcodes)
        self.runs = Runs(self.code)
        self.records = Records(header, pages)
        self.thread_blocks: list[int] = []
        self.warps_per_block = -(-header.block.total // 32)
        self._warp = self.warps_per_block  # of the block, next to come
        # text of the program counter -> (id, static text behind the mask): the instruction last seen there
        self._seen: dict[str, tuple[int, str]] = {}
        self._masks: dict[str, int] = {}
        self._where = ""

    def read(self) -> tuple[Launch, Trace]:
        try:
            for line in self.file:
                self._line(line)
            self._end_block()
            self._complete()
            return self._finish()
        except InputError as error:
            raise InputError(f"{self.path}{self._where}: {error}") from None

    def _line(self, line: str) -> None:
        key, equals, value = (part.strip() for part in line.partition("="))
        if key == "thread block" and equals:
            self._end_block()
            self._begin_block(value)
        elif key == "warp" and equals:
            if value != str(self._warp) or not self.thread_blocks:
                raise InputError(f"warp = {value} where warp {self._warp} of {self.warps_per_block} should follow")
            self._where = f", thread block {self.thread_blocks[-1]}, warp {value}"
        elif key == "insts" and equals:
            self._warp_lines(value)
        elif not equals and not line.startswith("#") and key:
            raise InputError(f"more instructions than `insts` says: {key[:60]}")

    def _begin_block(self, value: str) -> None:
        parts = value.split(",")
        if len(parts) != 3 or not all(p.strip().isdecimal() for p in parts):
            raise InputError(f"malformed thread block = {value[:40]}")
        (x, y, z), grid = map(int, parts), self.header.grid
        if x >= grid.x or y >= grid.y or z >= grid.z:
            raise InputError(f"thread block {value} is outside the grid of {grid}")
        self.thread_blocks.append(x + grid.x * (y + grid.y * z))
        self._warp = 0

    def _end_block(self) -> None:
        if self._warp != self.warps_per_block:
            raise InputError(f"the thread block ends after {self._warp} of {self.warps_per_block} warps")

    def _warp_lines(self, value: str) -> None:
        if not value.isdecimal() or not int(value):
            raise InputError(f"insts = {value[:20]}: a warp needs instructions")
        if self._warp >= self.warps_per_block:
            raise InputError(f"more than {self.warps_per_block} warps in a thread block")
        self.runs.begin_warp()
        self.records.begin_warp()
        left, self._warp = int(value), self._warp + 1
        self._previous = -1
        while left:
            if not (lines := list(islice(self.file, min(left, _CHUNK_LINES)))):
                raise InputError(f"the file ends {left} instructions too early")
            self._instructions(lines)
            left -= len(lines)

    def _instructions(self, lines: list[str]) -> None:
        skip, seen, instructions = self.header.skipped_fields, self._seen, self.code.instructions
        memory = self.code.is_memory
        add, previous, masks = self.runs.add, self._previous, self._masks
        for line in lines:
            try:
                pc, mask_text, text = line.split(None, 2 + skip)[skip:]
                mask = masks.get(mask_text)
                if mask is None:
                    mask = masks[mask_text] = int(mask_text, 16)
                    if not 0 <= mask < 1 << WARP_LANES:
                        raise ValueError
            except ValueError:
                raise InputError(f"not an instruction: {line.strip()[:60]}") from None
            known = seen.get(pc)
            if known is None or not text.startswith(known[1]):
                i, length = self.code.find(pc, text)
                known = seen[pc] = (i, text[:length] + text[length : length + 1])
            i, static = known
            what = instructions[i]
            if i == previous and what.opcode.startswith("LDGSTS"):
                self.records.drop_last()  # a raw trace has it twice, the first time with the addresses in shared memory
            else:
                add(i, mask)
            previous = i
            if memory[i]:
                self.records.add(what, mask, text[len(static) :] if self.code.has_addresses[i] else "")
        self._previous = previous

    def _complete(self) -> None:
        self._where = ""
        missing = self.header.grid.total - len(set(self.thread_blocks))
        if missing or len(self.thread_blocks) != self.header.grid.total:
            found = f"{len(self.thread_blocks)} thread blocks, {missing} of {self.header.grid.total} are not there"
            raise InputError(f"the trace holds {found}; only whole launches can be timed")

    def _finish(self) -> tuple[Launch, Trace]:
        places = self.code.places()
        leading = self.code.leading(places)
        program = self.code.program(places, leading, str(self.path))
        records, conflicts = self.records.streams()
        streams = self.runs.streams(places, leading)
        counts = [streams.pop("events"), np.array(self.records.record_counts), np.array(self.records.conflict_counts)]
        names = ("block_offsets", "record_offsets", "conflict_offsets")
        offsets = {name: offsets_of(count) for name, count in zip(names, counts, strict=True)}
        blocks = np.array(self.thread_blocks, np.int64)
        trace = Trace(blocks, self.warps_per_block, records=records, conflicts=conflicts, **offsets, **streams)
        launch = Launch(program, self.header.grid, self.header.block, b"", self.header.shared_bytes)
        check_shape(program, launch.grid, launch.block, launch.dynamic_shared_bytes)
        if (np.diff(blocks) > 0).all():
            return launch, trace
        return launch, concatenate([trace.part(k, k + 1) for k in np.argsort(blocks).tolist()], self.warps_per_block)
