"""Reading an Accel-Sim trace directory: one launch and one trace a kernel, line by line, whatever the file's size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO

import numpy as np

from functional.accelsim.blocks import Runs
from functional.accelsim.header import Header, kernel_files, opened, read_header
from functional.accelsim.opcodes import Opcodes
from functional.accelsim.records import PageTable, Records
from functional.accelsim.static_code import Code
from functional.errors import InputError
from functional.launches.launch import Launch, check_shape
from functional.traces.trace import Trace

Progress = Callable[[str, int, int], object]
_CHUNK_LINES = 1 << 12  # of a warp, held together


def read(target: Path, opcodes: Opcodes, progress: Progress = lambda *_: None) -> Iterator[tuple[Launch, Trace, int]]:
    """(launch, trace, registers a thread) of every kernel of a trace directory or of its list, in launch order.

    Only the streams of one kernel are held, not its text. Raises InputError, with file and line, for anything that is
    not as the format says, for thread blocks that are not there, and for an opcode that `opcodes` lacks.
    """
    files = kernel_files(target)
    pages = PageTable()
    for number, path in enumerate(files):
        progress(f"read {path.name}", number, len(files))
        with opened(path) as file:
            header = read_header(path, file)
            launch, trace = _Reader(path, file, header, opcodes, pages).read()
        yield launch, trace, header.registers


class _Reader:
    """One kernel."""

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
            lines = list(islice(self.file, min(left, _CHUNK_LINES)))
            if not lines:
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
                    mask = masks[mask_text] = _mask(mask_text)
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
        offsets = {n: np.concatenate([np.zeros(1, np.int64), np.cumsum(c)]) for n, c in zip(names, counts, strict=True)}
        blocks = np.array(self.thread_blocks, np.int64)
        trace = Trace(blocks, self.warps_per_block, records=records, conflicts=conflicts, **offsets, **streams)
        launch = Launch(program, self.header.grid, self.header.block, b"", self.header.shared_bytes)
        check_shape(program, launch.grid, launch.block, launch.dynamic_shared_bytes)
        return launch, trace if (np.diff(blocks) > 0).all() else _in_order(trace)


def _mask(text: str) -> int:
    """32 lanes in hexadecimal. Raises ValueError."""
    mask = int(text, 16)
    if not 0 <= mask < 1 << 32:
        raise ValueError
    return mask


def _in_order(trace: Trace) -> Trace:
    """The same trace with its thread blocks in ascending order."""
    order = np.argsort(trace.thread_blocks)
    warps = (order[:, None] * trace.warps_per_block + np.arange(trace.warps_per_block)).ravel()

    def moved(values: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        lengths = np.diff(offsets)[warps]
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        at = np.repeat(offsets[:-1][warps] - ends[:-1], lengths) + np.arange(ends[-1])
        return values[at], ends

    blocks, block_offsets = moved(trace.blocks, trace.block_offsets)
    masks, _ = moved(trace.masks, trace.block_offsets)
    records, record_offsets = moved(trace.records, trace.record_offsets)
    conflicts, conflict_offsets = moved(trace.conflicts, trace.conflict_offsets)
    return Trace(
        trace.thread_blocks[order], trace.warps_per_block, blocks, masks, records, conflicts, block_offsets,
        record_offsets, conflict_offsets, trace.warp_instructions[warps], trace.thread_instructions[warps],
    )  # fmt: skip
