"""Checks at run time of what no GPU promises: shared and local memory that is read though nothing has written it, and
thread blocks that race (`BlockRaces`).

A byte counts as read when it is loaded, whatever becomes of it.

Two accesses to the same bytes of global memory by different thread blocks race if one of them writes another value, not
both are atomic (or volatile, relaxed, ...), and nothing orders them. A block publishes what it has done with a strong
write (atomic, `red`, volatile or release store) and acquires what was published before with a strong read. To whom a
write is addressed is not looked at, nor whether a fence stands before it: so races of blocks that also synchronise may
be missed, and none is reported where there is order. Reads of a cell by several blocks count as one."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from functional.arrays import Bool, Int64, UInt8
from functional.launches.launch import Launch
from functional.launches.memory import GLOBAL_BASE, Memory
from functional.ptx.ir import TYPE_BYTES, Instruction
from functional.steps.machine import Frame, Machine, Watch
from functional.steps.memory_ops import Lanes

_SEVERAL = -1
_WORD_OPCODES = ("ld", "ldu", "st", "atom", "red")


class _Kind(IntEnum):
    READ, STRONG_READ, WRITE, STRONG_WRITE = range(4)


class BlockRaces:
    """The last block, and when, that accessed each cell of global memory, by kind of access. `look` takes byte offsets
    in the arena and the block of each access, and yields the first access that races and the other block (`_SEVERAL` if
    there were more), or None. A cell is a word, or a byte in programs that access less."""

    def __init__(self, launch: Launch, memory: Memory) -> None:
        self._arena = memory.arena
        # Words, unless an instruction may access less of global memory
        accesses = [i for i in launch.program.instructions if i.is_memory and i.space in ("global", "generic")]
        words = all(i.opcode in _WORD_OPCODES and TYPE_BYTES.get(i.type, 1) >= 4 for i in accesses)
        self._shift = 2 if words else 0
        cells = (len(self._arena) >> self._shift) + 8
        self._who = np.zeros((len(_Kind), cells), np.int32)  # block + 1; 0: none
        self._when = np.zeros((len(_Kind), cells), np.int32)  # no launch lives to 2^31 steps
        self._published = np.zeros(launch.thread_blocks, np.int64)
        self._acquired = np.zeros(launch.thread_blocks, np.int64)
        self._now = 0

    def look(
        self, how: str, starts: Int64[np.ndarray, " access"], size: int, blocks: Int64[np.ndarray, " access"],
        strong: bool, values: UInt8[np.ndarray, "access byte"] | None, reads: bool,
    ) -> tuple[int, int] | None:  # fmt: skip
        """A read ("loads"), a write of `values` (None: unknown) that is still to be done ("stores"), or an atomic
        ("updates"), which is not `strong` if it is atomic within its block alone. `reads`: it yields what was there."""
        self._now += 1
        cells = (starts[:, None] >> self._shift) + np.arange(max(1, size >> self._shift))
        if how == "loads":
            found = self._first(cells, blocks, (_Kind.WRITE,) if strong else (_Kind.WRITE, _Kind.STRONG_WRITE))
            self._note(cells, blocks, _Kind.STRONG_READ if strong else _Kind.READ)
        else:
            found = self._write(cells, starts, size, blocks, strong, values)
        if strong and how != "loads":
            self._published[blocks] = self._now + 1
        if strong and reads:
            self._acquired[blocks] = self._now + 1
        return found

    def _write(
        self, cells: np.ndarray, starts: np.ndarray, size: int, blocks: np.ndarray, strong: bool,
        values: np.ndarray | None,
    ) -> tuple[int, int] | None:  # fmt: skip
        kind, changed = _Kind.STRONG_WRITE if strong else _Kind.WRITE, np.ones(cells.shape, bool)
        if values is not None:
            old = self._arena[starts[:, None] + np.arange(size)]
            changed = (old != values).reshape(*cells.shape, -1).any(axis=2)
        found = self._first(cells, blocks, (_Kind.READ, _Kind.WRITE) if strong else tuple(_Kind), changed)
        if found is None and not strong:
            found = _first_within(cells, blocks, values)
        keep = changed | (self._who[kind][cells] == 0)  # who writes what is there already leaves it another's
        self._who[kind][cells[keep]] = np.broadcast_to(blocks[:, None] + 1, cells.shape)[keep]
        self._when[kind][cells[keep]] = self._now
        return found

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


_OWN = ("shared", "local")  # spaces that begin undefined; parameters of calls are none of them
_STRONG = frozenset({"volatile", "relaxed", "acquire", "release", "acq_rel", "mmio"})


class Accesses(NamedTuple):
    """The accesses of one instruction to one space: where each begins in its storage, by which warp of the chunk."""

    starts: Int64[np.ndarray, " access"]
    rows: Int64[np.ndarray, " access"]
    lanes: Int64[np.ndarray, " access"]
    size_bytes: int
    indices: tuple[np.ndarray, np.ndarray]  # in arrays [row, lane]

    @classmethod
    def of(cls, part: Lanes, offsets: np.ndarray, size_bytes: int, each: bool = False) -> Accesses:
        """Of the active lanes. `offsets`: bytes [row, lane], or what spreads to that; `each`: lanes that name the same
        bytes count one by one."""
        shape = (part.frame.count, max(offsets.shape[1], 32 if each or part.active is not None else 1))
        active = np.ones(shape, bool) if part.active is None else part.active
        rows, lanes = np.nonzero(active)
        starts = np.broadcast_to(offsets, shape)[active].astype(np.int64)
        return cls(starts, part.frame.index[rows], lanes, size_bytes, (rows, lanes))

    @property
    def bytes(self) -> Int64[np.ndarray, "access byte"]:
        """Every byte."""
        return self.starts[:, None] + np.arange(self.size_bytes)


class Sanitizer(Watch):
    """Watches one launch. Each method raises ExecutionError at the first access that no GPU promises anything of."""

    strict = follows_copies = True

    def __init__(self, launch: Launch, memory: Memory) -> None:
        self._races = BlockRaces(launch, memory)
        self._written: dict[str, np.ndarray] = {}

    def begin(self, machine: Machine) -> None:
        """Other thread blocks: their shared and local memory holds nothing."""
        self._written = {"shared": np.zeros(len(machine.shared.data), bool), "local": np.zeros(0, bool)}
        if machine.code.slots.local_bytes:
            self._written["local"] = np.zeros(len(machine.local.data), bool)

    def look(
        self, how: str, part: Lanes, offsets: np.ndarray, size_bytes: int, values: Sequence[np.ndarray] = ()
    ) -> None:
        """What `ld` and others load, `st` and others are about to store, `atom` and `red` update."""
        accesses, inst = Accesses.of(part, offsets, size_bytes, each=bool(values)), part.inst
        known = None
        if how == "stores" and values and part.space.name == "global":
            known = np.stack(values, axis=2).view(np.uint8)[accesses.indices]
        strong = (how == "updates" or not _STRONG.isdisjoint(inst.modifiers)) and "cta" not in inst.modifiers
        self._look(how, part.frame, inst, part.space.name, accesses, strong, known)

    def box(
        self, frame: Frame, inst: Instruction, place: tuple[int, int], space: str, starts: np.ndarray, size_bytes: int,
        writes: bool,
    ) -> None:  # fmt: skip
        """What one lane, `place` (row, lane), reads or writes at many offsets [element] of a storage."""
        row, lane = (np.full(len(starts), n) for n in place)
        accesses = Accesses(starts, frame.index[row], lane, size_bytes, (row, lane))
        self._look("stores" if writes else "loads", frame, inst, space, accesses, False)

    def _look(
        self, how: str, frame: Frame, inst: Instruction, space: str, accesses: Accesses, strong: bool,
        values: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        machine, starts, message = frame.machine, accesses.starts, ""
        if space == "global":
            blocks = machine.thread_blocks[machine.block_of_row[accesses.rows]]
            reads = how == "loads" or inst.opcode == "atom"
            found = self._races.look(how, starts, accesses.size_bytes, blocks, strong, values, reads)
            if found is not None:
                first, other = found
                where = machine.memory.describe(int(starts[first]) + GLOBAL_BASE)
                who = "others" if other < 0 else f"block {machine.block_coordinates(other)}"
                message = f"thread blocks race: {where}, is accessed by {who}, too, in no order that a GPU promises"
        elif space in _OWN and how == "stores":
            self._written[space][accesses.bytes] = True
        elif space in _OWN:
            unwritten = ~self._written[space][accesses.bytes].all(axis=1)
            if unwritten.any():
                first = int(unwritten.argmax())
                message = f"{accesses.size_bytes} bytes of {space} memory are read, and nothing has written all of them"
        if message:
            raise machine.fault(inst, message, int(accesses.rows[first]), int(accesses.lanes[first]))
