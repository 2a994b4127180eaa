"""Tensor memory: 128 lanes by 512 columns of 32 bits a thread block, in columns that a warp asks for and gives back.

An address holds a lane in its upper and a column in its lower half. Each thread block has all 512 columns here; that
those of one SM share them is a matter of occupancy. Source: PTX ISA, "Tensor Memory".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from functional.ir import Address, Instruction
from functional.numpy_executor.frame import Frame
from functional.numpy_executor.memory_ops import address_getter, record, space_of, split
from functional.numpy_executor.operands import Getter, getter, guard_getter
from functional.numpy_executor.operation import Unsupported

if TYPE_CHECKING:
    from functional.numpy_executor.chunk_state import Machine
    from functional.numpy_executor.slots import Slots

Step = Callable[[Frame], None]
LANES, COLUMNS = 128, 512
_LEAST_COLUMNS = 32  # of an allocation, which is a power of two


class TensorMemory:
    """Of the thread blocks of a chunk, by their place in it."""

    def __init__(self, blocks: int) -> None:
        self.words = np.zeros((blocks, LANES, COLUMNS), np.uint32)
        self.written = np.zeros((blocks, LANES, COLUMNS), bool)
        self.taken = np.zeros((blocks, COLUMNS), bool)
        self.closed = np.zeros(blocks, bool)  # has said that it will not allocate again
        self.last: Instruction | None = None  # the latest allocation

    def allocate(self, block: int, columns: int) -> int:
        """The first of so many free columns. Raises ValueError if they cannot be had."""
        if not _LEAST_COLUMNS <= columns <= COLUMNS or columns & (columns - 1):
            raise ValueError(f"{columns} columns: an allocation is of 32, 64, 128, 256 or 512")
        if self.closed[block]:
            raise ValueError("the thread block has given up its permit to allocate")
        free = ~self.taken[block]
        first = next((c for c in range(0, COLUMNS - columns + 1, 32) if free[c : c + columns].all()), None)
        if first is None:
            raise ValueError(f"{columns} columns are not free: {int(free.sum())} of {COLUMNS} are")
        self.taken[block, first : first + columns] = True
        self.written[block, :, first : first + columns] = False
        return first

    def free(self, block: int, address: int, columns: int) -> None:
        """Give columns back. Raises ValueError if they are not allocated."""
        first = address & 0xFFFF
        own = self.taken[block, first : first + columns]
        if address >> 16 or not columns or len(own) != columns or not own.all():
            raise ValueError(f"{columns} columns from address {address:#x} on are not allocated")
        self.taken[block, first : first + columns] = False

    def check(self, block: int, lanes: np.ndarray, columns: np.ndarray) -> None:
        """Raise ValueError unless an access to these lanes and columns is to allocated memory."""
        if int(lanes.max()) >= LANES or int(columns.max()) >= COLUMNS:
            raise ValueError(f"lane {lanes.max()}, column {columns.max()}: tensor memory has {LANES} by {COLUMNS}")
        if not self.taken[block, columns].all():
            missing = int(columns[~self.taken[block, columns]].min())
            raise ValueError(f"column {missing} of tensor memory is not allocated")

    def read(self, block: int, lanes: np.ndarray, columns: np.ndarray, strict: bool) -> np.ndarray:
        """Words at lanes and columns that broadcast; `strict`: refuse those that nothing has written."""
        self.check(block, lanes, columns)
        if strict and not self.written[block, lanes, columns].all():
            raise ValueError("tensor memory is read, and nothing has written all of it")
        return self.words[block, lanes, columns]

    def write(self, block: int, lanes: np.ndarray, columns: np.ndarray, words: np.ndarray) -> None:
        """Set them."""
        self.check(block, lanes, columns)
        self.words[block, lanes, columns] = words
        self.written[block, lanes, columns] = True


def check_given_back(machine: Machine) -> None:
    """Raises ExecutionError if a thread block has ended with columns of its own, which PTX forbids."""
    if "tensor_memory" not in machine.__dict__ or not machine.tensor_memory.taken.any():
        return
    columns = machine.tensor_memory.taken.sum(axis=1)
    block, last = int(columns.argmax()), machine.tensor_memory.last
    assert last is not None
    message = f"the thread block ends with {columns[block]} columns of tensor memory that it has not given back"
    raise machine.fault(last, message, block * machine.warps_per_block)


def of_one_block(inst: Instruction, modifiers: tuple[str, ...]) -> tuple[str, ...]:
    """The modifiers without `.cta_group::1`. Raises Unsupported for pairs of thread blocks, and without the group."""
    if "cta_group::1" not in modifiers:
        raise Unsupported
    return tuple(m for m in modifiers if m != "cta_group::1")


def whole_warps(frame: Frame, inst: Instruction, guard: Getter | None) -> np.ndarray:
    """The rows of the warps that execute an instruction that is `.sync.aligned`. Raises ExecutionError for a warp of
    which only some threads do."""
    active = frame.active(None if guard is None else frame.set_guard(guard))
    if active is None:
        return np.arange(frame.count)
    apart = active.any(axis=1) & ~active.all(axis=1)
    if apart.any():
        message = "all 32 threads of a warp execute it together"
        raise frame.machine.fault(inst, message, int(frame.index[apart.argmax()]))
    return np.flatnonzero(active.any(axis=1))


def same_in_warp(frame: Frame, inst: Instruction, get: Getter, what: str, rows: np.ndarray) -> np.ndarray:
    """What a register holds in all threads of a warp [row]. Raises ExecutionError if they differ in one of `rows`."""
    values = frame.full(get(frame)).astype(np.int64)
    apart = rows[(values[rows] != values[rows, :1]).any(axis=1)]
    if len(apart):
        raise frame.machine.fault(inst, f"{what} is the same in all threads of a warp", int(frame.index[apart[0]]))
    return values[:, 0]


def blocks_of(frame: Frame, rows: np.ndarray) -> list[tuple[int, int]]:
    """(row of the frame, thread block of the chunk) of these warps."""
    return list(zip(rows.tolist(), frame.machine.block_of_row[frame.index[rows]].tolist(), strict=True))


def allocation_step(slots: Slots, inst: Instruction) -> Step:
    """`tcgen05.alloc.cta_group::1.sync.aligned[.shared::cta].b32 [to], columns`."""
    plain = of_one_block(inst, inst.modifiers[1:])
    if plain not in (("sync", "aligned", "b32"), ("sync", "aligned", "shared", "b32")):
        raise Unsupported
    to, wanted = inst.sources
    if not isinstance(to, Address):
        raise Unsupported
    space, columns = space_of(slots, inst, to), getter(slots, wanted, "u32")
    where, guard = address_getter(slots, to, space), guard_getter(slots, inst.guard)

    def step(frame: Frame) -> None:
        rows, memory = whole_warps(frame, inst, guard), frame.machine.tensor_memory
        counts = same_in_warp(frame, inst, columns, "the number of columns", rows)
        memory.last = inst
        found = np.zeros((frame.count, 1), np.uint32)
        for row, block in blocks_of(frame, rows):
            with faults(frame, inst, row):
                found[row] = memory.allocate(block, int(counts[row]))
        _store(frame, inst, space, where(frame), found, None if guard is None else frame.guard)

    return step


@contextmanager
def faults(frame: Frame, inst: Instruction, row: int) -> Iterator[None]:
    """A ValueError within becomes the fault of a warp."""
    try:
        yield
    except ValueError as error:
        raise frame.machine.fault(inst, str(error), int(frame.index[row])) from None


def _store(
    frame: Frame, inst: Instruction, space: str, addresses: np.ndarray, words: np.ndarray, lanes: np.ndarray | None
) -> None:
    """A word of each warp [row, 1] into shared memory."""
    parts = list(split(frame, inst, space, addresses, lanes))
    for part in parts:
        if part.space.name != "shared":
            raise frame.machine.fault(inst, "the address is not in shared memory", int(frame.index[0]))
        offsets = frame.full(part.space.offsets(frame, inst, part.addresses, 4))
        if frame.machine.watch is not None:
            frame.machine.watch.stores(frame, inst, part, offsets, 4)
        chosen = ... if part.active is None else part.active
        part.space.storage(frame.machine).words[4][(offsets >> 2)[chosen]] = frame.full(words)[chosen]
    record(frame, True, 4, parts)


def freeing_step(slots: Slots, inst: Instruction) -> Step:
    """`tcgen05.dealloc.cta_group::1.sync.aligned.b32 address, columns`."""
    if of_one_block(inst, inst.modifiers[1:]) != ("sync", "aligned", "b32"):
        raise Unsupported
    where, columns = (getter(slots, operand, "u32") for operand in inst.sources)
    guard = guard_getter(slots, inst.guard)

    def step(frame: Frame) -> None:
        rows, memory = whole_warps(frame, inst, guard), frame.machine.tensor_memory
        starts = same_in_warp(frame, inst, where, "the address", rows)
        counts = same_in_warp(frame, inst, columns, "the number of columns", rows)
        for row, block in blocks_of(frame, rows):
            with faults(frame, inst, row):
                memory.free(block, int(starts[row]), int(counts[row]))

    return step


def permit_step(slots: Slots, inst: Instruction) -> Step:
    """`tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned`."""
    if of_one_block(inst, inst.modifiers[1:]) != ("sync", "aligned") or inst.sources:
        raise Unsupported
    guard = guard_getter(slots, inst.guard)

    def step(frame: Frame) -> None:
        rows = whole_warps(frame, inst, guard)
        frame.machine.tensor_memory.closed[frame.machine.block_of_row[frame.index[rows]]] = True

    return step
