"""The check that chunks of thread blocks, run at the same time, did not touch what another wrote.

A line of global memory has a cell of eight u32 in the shadow: for each of its four sectors the chunk that wrote it,
then for each the chunk that read it. Numbers up to `base` are those of earlier launches; `base` + 1 stands for several
readers. Most lines lie in buffers that are only read: `written` says of a page whether its buffer is one that the first
chunk of the launch wrote to (when it looks at that chunk, `learn`, it makes the note itself). In others, a read is not
looked at further, and a write is a conflict.

A chunk that reads no buffer that is written need not be gone through: the stores that it noted are enough."""

from __future__ import annotations

from typing import Any

from functional.jit.native import I1, I8, I16, I32, I64, Pointer, Type, inlined, op, record_type, routine
from functional.traces.line_record import LINE_SHIFT, MORE, SECTOR_SHIFT

# The jobs: addresses and sizes of what races.Shadow passes, in this order, 8 bytes each
_NUMBERS = ("first_line", "lines", "id", "base")
JOB = (
    "blocks", "block_offsets", "records", "record_offsets", "warps",  # the trace of a chunk
    "first", "writes",  # basic block -> its first access, access -> does it write
    "shadow", "written", "learn", *_NUMBERS,
)  # fmt: skip
STORES_JOB = ("stores", "count", "shadow", *_NUMBERS)  # where each store left its records
CLEAN, CONFLICT = 0, 1
PAGE_LINES = 1 << 12  # half a red zone of memory.py, so that no page holds bytes of two buffers
Job: Any = record_type(JOB, frozenset(JOB) - {"warps", "learn", *_NUMBERS})
StoresJob: Any = record_type(STORES_JOB, frozenset({"stores", "shadow"}))
Sectors: Any = Type("i32", 4)
Named: Any = Type("i1", 4)
Bits: Any = Type("i4")


@inlined
def others(cells: Sectors, id: Sectors, base: Sectors) -> Named:
    """Sectors whose cell holds another chunk of this launch."""
    return (cells > base) & (cells != id)


@inlined
def note_write(cell: Pointer, word: I32, id: Sectors, base: Sectors) -> I1:
    """The chunk writes the sectors of a record; had others to do with them?"""
    named, writers = Named(Bits(word >> SECTOR_SHIFT)), cell[Sectors, 0]
    touched = others(writers, id, base) | others(cell[Sectors, 1], id, base)
    cell[Sectors, 0] = op.where(named, id, writers)
    return Bits(touched & named) != 0


@inlined
def note_read(cell: Pointer, word: I32, id: Sectors, base: Sectors) -> I1:
    """The chunk reads the sectors of a record; have others written to them?"""
    named, readers = Named(Bits(word >> SECTOR_SHIFT)), cell[Sectors, 1]
    seen = op.where(others(readers, id, base), base + 1, id)
    cell[Sectors, 1] = op.where(named, seen, readers)
    return Bits(others(cell[Sectors, 0], id, base) & named) != 0


@routine
def store_races(job: StoresJob) -> I32:
    """Of the stores of a chunk."""
    stores, shadow, first_line, lines = job.stores, job.shadow, job.first_line, job.lines
    id, base = Sectors(I32(job.id)), Sectors(I32(job.base))
    for number in range(job.count):
        at = stores[Pointer, number]
        while True:
            word = at[I32, 0]
            at += 4
            line = I64(word >> LINE_SHIFT) - first_line
            if line < lines and note_write(shadow + (line << 5), word, id, base):
                return CONFLICT
            if word & MORE == 0:
                break
    return CLEAN


@inlined
def looked_at(job: Job, word: I32, write: I1, id: Sectors, base: Sectors) -> I1:
    """Is a record of a chunk without conflict?"""
    line = I64(word >> LINE_SHIFT) - job.first_line
    if line >= job.lines:  # not of global memory
        return True
    pages, learns = job.written, job.learn != 0
    if pages[I8, line // PAGE_LINES] == 0:
        if write and learns:
            pages[I8, line // PAGE_LINES] = 1
        return learns | ~write
    if learns:
        return True
    cell = job.shadow + (line << 5)
    if write:
        return ~note_write(cell, word, id, base)
    return ~note_read(cell, word, id, base)


@routine
def races(job: Job) -> I32:
    """Of the trace of a chunk. CONFLICT too for records that are not the program's: nothing is known then."""
    blocks, records, starts, firsts, writes = job.blocks, job.records, job.record_offsets, job.first, job.writes
    id, base = Sectors(I32(job.id)), Sectors(I32(job.base))
    for warp in range(job.warps):
        at, stop = starts[I64, warp], starts[I64, warp + 1]
        for event in range(job.block_offsets[I64, warp], job.block_offsets[I64, warp + 1]):
            block = I64(blocks[I16, event])
            for access in range(firsts[I64, block], firsts[I64, block + 1]):
                write = writes[I8, access] != 0
                while True:
                    if at >= stop:
                        return CONFLICT
                    word = records[I32, at]
                    at += 1
                    if not looked_at(job, word, write, id, base):
                        return CONFLICT
                    if word & MORE == 0:
                        break
        if at != stop:
            return CONFLICT
    return CLEAN
