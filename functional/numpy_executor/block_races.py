"""Do thread blocks of a launch race? Two accesses to the same bytes of global memory by different blocks do, if one of
them writes another value, not both are atomic (or volatile, relaxed, ...), and nothing orders them.

Orders: a block publishes what it has done with a strong write (atomic, `red`, volatile or release store) and acquires
what was published before with a strong read. To whom a write is addressed is not looked at, nor whether a fence stands
before it: so races of blocks that also synchronise may be missed, and none is reported where there is order.
Reads of a cell by several blocks are kept as one, by "several".
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

from functional.launches.launch import Launch
from functional.launches.memory import Memory
from functional.programs.program import Program
from functional.ptx.ir import TYPE_BYTES

if TYPE_CHECKING:
    from jaxtyping import Bool, Int64, UInt8

_SEVERAL = -1
_WORD_OPCODES = ("ld", "ldu", "st", "atom", "red")


class _Kind(IntEnum):
    READ, STRONG_READ, WRITE, STRONG_WRITE = range(4)


class BlockRaces:
    """The last block, and when, that accessed each cell of global memory, by kind of access.

    Methods take byte offsets in the arena and the block of each access, and yield the first access that races and the
    other block (`_SEVERAL` if there were more), or None. A cell is a word, or a byte in programs that access less.
    """

    def __init__(self, launch: Launch, memory: Memory) -> None:
        self._arena = memory.arena
        self._shift = _cell_shift(launch.program)
        cells = (len(self._arena) >> self._shift) + 8
        self._who = np.zeros((len(_Kind), cells), np.int32)  # block + 1; 0: none
        self._when = np.zeros((len(_Kind), cells), np.int32)  # the NumPy executor does not live to 2^31 steps
        self._published = np.zeros(launch.thread_blocks, np.int64)
        self._acquired = np.zeros(launch.thread_blocks, np.int64)
        self._now = 0

    def loads(
        self, starts: Int64[np.ndarray, " access"], size: int, blocks: Int64[np.ndarray, " access"], strong: bool
    ) -> tuple[int, int] | None:
        """A read."""
        self._now += 1
        cells = self._cells(starts, size)
        found = self._first(cells, blocks, (_Kind.WRITE,) if strong else (_Kind.WRITE, _Kind.STRONG_WRITE))
        self._note(cells, blocks, _Kind.STRONG_READ if strong else _Kind.READ)
        if strong:
            self._acquired[blocks] = self._now + 1
        return found

    def stores(
        self, starts: Int64[np.ndarray, " access"], size: int, blocks: Int64[np.ndarray, " access"], strong: bool,
        values: UInt8[np.ndarray, "access byte"] | None,
    ) -> tuple[int, int] | None:  # fmt: skip
        """A write of `values` (None: unknown), which is still to be done."""
        self._now += 1
        cells = self._cells(starts, size)
        changed = np.ones(cells.shape, bool)
        if values is not None:
            old = self._arena[starts[:, None] + np.arange(size)]
            changed = (old != values).reshape(*cells.shape, -1).any(axis=2)
        against = (_Kind.READ, _Kind.WRITE) if strong else tuple(_Kind)
        found = self._first(cells, blocks, against, changed)
        if found is None and not strong:
            found = _first_within(cells, blocks, values)
        kind = _Kind.STRONG_WRITE if strong else _Kind.WRITE
        keep = changed | (self._who[kind][cells] == 0)  # who writes what is there already leaves it another's
        self._who[kind][cells[keep]] = np.broadcast_to(blocks[:, None] + 1, cells.shape)[keep]
        self._when[kind][cells[keep]] = self._now
        if strong:
            self._published[blocks] = self._now + 1
        return found

    def updates(
        self, starts: Int64[np.ndarray, " access"], size: int, blocks: Int64[np.ndarray, " access"], strong: bool,
        reads: bool,
    ) -> tuple[int, int] | None:  # fmt: skip
        """An atomic; `reads`: it yields what was there. One that is atomic within its block alone is not `strong`."""
        if not strong:
            return self.stores(starts, size, blocks, False, None)
        self._now += 1
        cells = self._cells(starts, size)
        found = self._first(cells, blocks, (_Kind.READ, _Kind.WRITE))
        self._who[_Kind.STRONG_WRITE][cells] = blocks[:, None] + 1
        self._when[_Kind.STRONG_WRITE][cells] = self._now
        self._published[blocks] = self._now + 1
        if reads:
            self._acquired[blocks] = self._now + 1
        return found

    def _cells(self, starts: np.ndarray, size: int) -> Int64[np.ndarray, "access cell"]:
        return (starts[:, None] >> self._shift) + np.arange(max(1, size >> self._shift))

    def _first(
        self, cells: np.ndarray, blocks: np.ndarray, kinds: tuple[_Kind, ...],
        changed: Bool[np.ndarray, "access cell"] | None = None,
    ) -> tuple[int, int] | None:  # fmt: skip
        """The first access in no order with one of these kinds by another block."""
        for kind in kinds:
            who, when = self._who[kind][cells], self._when[kind][cells]
            other = (who != 0) & (who != blocks[:, None] + 1)
            if changed is not None:
                other &= changed
            if not other.any():
                continue
            published = (who == _SEVERAL) | (when < self._published[np.maximum(who - 1, 0)])
            other &= ~(published & (when < self._acquired[blocks][:, None]))
            if other.any():
                first, cell = np.argwhere(other)[0]
                return int(first), int(who[first, cell]) - 1 if who[first, cell] > 0 else _SEVERAL
        return None

    def _note(self, cells: np.ndarray, blocks: np.ndarray, kind: _Kind) -> None:
        """Who reads; where others have read before, or read now, several do."""
        mine, who = blocks[:, None] + 1, self._who[kind]
        before = who[cells]
        who[cells] = mine
        several = ((before != 0) & (before != mine)) | (who[cells] != mine)
        who[cells[several]] = _SEVERAL
        self._when[kind][cells] = self._now


def _first_within(cells: np.ndarray, blocks: np.ndarray, values: np.ndarray | None) -> tuple[int, int] | None:
    """Writes of one instruction to a cell by two blocks that leave different values there."""
    flat = cells.reshape(-1)
    order = np.argsort(flat, kind="stable")
    cell, access = flat[order], order // cells.shape[1]
    ends = np.ones(len(order), bool)  # the last write to a cell by a block
    ends[:-1] = (cell[1:] != cell[:-1]) | (blocks[access[1:]] != blocks[access[:-1]])
    cell, access = cell[ends], access[ends]
    races = cell[1:] == cell[:-1]
    if values is not None:
        left = values.reshape(len(flat), -1)[order][ends]
        races &= (left[1:] != left[:-1]).any(axis=1)
    if not races.any():
        return None
    first = int(races.argmax())
    return int(access[first + 1]), int(blocks[access[first]])


def _cell_shift(program: Program) -> int:
    """2, words, unless an instruction may access less of global memory."""
    accesses = [i for i in program.instructions if i.is_memory and i.space in ("global", "generic")]
    words = all(i.opcode in _WORD_OPCODES and TYPE_BYTES.get(i.type, 1) >= 4 for i in accesses)
    return 2 if words else 0
