"""The check that thread blocks that ran at the same time did not touch each other's data."""

from threading import Lock

import numpy as np

from functional.launches.memory import GLOBAL_BASE, Memory, sparse_zeros
from functional.llvm_executor.context_layout import LOADED, MOST_KEPT_BYTES, STORED
from functional.llvm_executor.object_code import call
from functional.llvm_executor.runtime_races import CLEAN, JOB, PAGE_LINES, STORES_JOB
from functional.llvm_executor.streams import Streams
from functional.programs.program import Program
from functional.traces.trace import LINE_BYTES, SECTOR_BYTES, Trace

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
