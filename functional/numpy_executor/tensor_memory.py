"""Tensor memory: 128 lanes by 512 columns of 32 bits a thread block, in columns that a warp asks for and gives back.

An address holds a lane in its upper and a column in its lower half. Each thread block has all 512 columns here; that
those of one SM share them is a matter of occupancy. The two thread blocks of a pair allocate and free together, the
same columns of both: neither waits for the other, but a launch in which they do not do the same is an error. Source:
PTX ISA, "Tensor Memory", "Issue Granularity".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from functional.isa.operation import Unsupported
from functional.numpy_executor.frame import Frame
from functional.numpy_executor.memory_ops import address_getter, record, space_of, split
from functional.numpy_executor.operands import Getter, getter, guard_getter
from functional.ptx.ir import Address, Instruction

if TYPE_CHECKING:
    from functional.numpy_executor.chunk_state import Machine
    from functional.numpy_executor.slots import Slots

Step = Callable[[Frame], None]
LANES, COLUMNS = 128, 512
_LEAST_COLUMNS = 32  # of an allocation, which is a power of two
_GROUPS = {"cta_group::1": 1, "cta_group::2": 2}


class TensorMemory:
    """Of the thread blocks of a chunk, by their place in it."""

    def __init__(self, blocks: int) -> None:
        self.words = np.zeros((blocks, LANES, COLUMNS), np.uint32)
        self.written = np.zeros((blocks, LANES, COLUMNS), bool)
        self.taken = np.zeros((blocks, COLUMNS), bool)
        self.closed = np.zeros(blocks, bool)  # has said that it will not allocate again
        self.calls: dict[int, list[tuple[str, int, int]]] = {}  # of thread blocks of pairs: agree
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
        return first

    def free(self, block: int, address: int, columns: int) -> None:
        """Give columns back. Raises ValueError if they are not allocated."""
        first = address & 0xFFFF
        own = self.taken[block, first : first + columns]
        if address >> 16 or not columns or len(own) != columns or not own.all():
            raise ValueError(f"{columns} columns from address {address:#x} on are not allocated")
        self.taken[block, first : first + columns] = False
        self.written[block, :, first : first + columns] = False

    def agree(self, block: int, peer: int, call: tuple[str, int, int]) -> None:
        """A thread block of a pair allocates or frees, (which, address, columns); its peer does the same, before or
        after it. Raises ValueError if it does not."""
        own, other = self.calls.setdefault(block, []), self.calls.setdefault(peer, [])
        own.append(call)
        if len(other) >= len(own) and other[len(own) - 1] != call:
            (what, at, columns), (its, where, many) = call, other[len(own) - 1]
            raise ValueError(
                f"the thread blocks of a pair do not do the same: {what} {columns} columns from {at:#x} on here, "
                f"{its} {many} from {where:#x} on there"
            )

    def check(self, block: int, lanes: np.ndarray, columns: np.ndarray) -> None:
        """Raise ValueError unless an access to these lanes and columns is to allocated memory."""
        if int(lanes.max()) >= LANES or int(columns.max()) >= COLUMNS:
            raise ValueError(f"lane {lanes.max()}, column {columns.max()}: tensor memory has {LANES} by {COLUMNS}")
        if not self.taken[block, columns].all():
            missing = int(columns[~self.taken[block, columns]].min())
            raise ValueError(f"column {missing} of tensor memory is not allocated")


class View(NamedTuple):
    """Tensor memory of the thread block `block`, as `user` accesses it: that one, or the other one of its pair, whose
    allocations are the same. `strict`: words that nothing has written are refused."""

    memory: TensorMemory
    block: int
    user: int
    strict: bool

    def read(self, lanes: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Words at lanes and columns that broadcast. Raises ValueError for what is not allocated."""
        self.memory.check(self.user, lanes, columns)
        if self.strict and not self.memory.written[self.block, lanes, columns].all():
            raise ValueError("tensor memory is read, and nothing has written all of it")
        return self.memory.words[self.block, lanes, columns]

    def write(self, lanes: np.ndarray, columns: np.ndarray, words: np.ndarray) -> None:
        """Set them. Raises ValueError for what is not allocated."""
        self.memory.check(self.user, lanes, columns)
        self.memory.words[self.block, lanes, columns] = words
        self.memory.written[self.block, lanes, columns] = True


def view_of(frame: Frame, row: int, block: int | None = None) -> View:
    """Of the thread block of a row of the frame, or of one of its pair, as that row accesses it."""
    machine = frame.machine
    user = int(machine.block_of_row[frame.index[row]])
    return View(machine.tensor_memory, user if block is None else block, user, machine.watch is not None)


def blocks_together(frame: Frame, row: int, count: int) -> tuple[int, ...]:
    """The thread blocks, by their place in the chunk, that an instruction of a row of the frame is of: its own, or its
    pair, the one of even rank first. Raises ValueError where there is no pair."""
    own = int(frame.machine.block_of_row[frame.index[row]])
    return (own,) if count == 1 else frame.machine.clusters.pair(own)


def check_given_back(machine: Machine) -> None:
    """Raises ExecutionError if a thread block has ended with columns of its own, which PTX forbids."""
    if "tensor_memory" not in machine.__dict__:
        return
    _check_pairs(machine)
    if not machine.tensor_memory.taken.any():
        return
    columns = machine.tensor_memory.taken.sum(axis=1)
    block, last = int(columns.argmax()), machine.tensor_memory.last
    assert last is not None
    message = f"the thread block ends with {columns[block]} columns of tensor memory that it has not given back"
    raise machine.fault(last, message, block * machine.warps_per_block)


def _check_pairs(machine: Machine) -> None:
    calls = machine.tensor_memory.calls
    for block, own in calls.items():
        peer = next(b for b in machine.clusters.pair(block) if b != block)
        if len(own) < len(calls[peer]):
            assert machine.tensor_memory.last is not None
            what, address, columns = calls[peer][len(own)]
            message = f"the other thread block of its pair does not {what} {columns} columns from {address:#x} on"
            raise machine.fault(machine.tensor_memory.last, message, peer * machine.warps_per_block)


def group_of(inst: Instruction, modifiers: tuple[str, ...]) -> tuple[int, tuple[str, ...]]:
    """(how many thread blocks an instruction is of, one or a pair; its other modifiers). Raises Unsupported where that
    is not said."""
    groups = [m for m in modifiers if m in _GROUPS]
    if len(groups) != 1:
        raise Unsupported
    return _GROUPS[groups[0]], tuple(m for m in modifiers if m not in _GROUPS)


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
    """`tcgen05.alloc.cta_group::N.sync.aligned[.shared::cta].b32 [to], columns`."""
    count, plain = group_of(inst, inst.modifiers[1:])
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
                for peer in set(blocks_together(frame, row, count)) - {block}:
                    memory.agree(block, peer, ("allocate", int(found[row, 0]), int(counts[row])))
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
    """`tcgen05.dealloc.cta_group::N.sync.aligned.b32 address, columns`."""
    count, plain = group_of(inst, inst.modifiers[1:])
    if plain != ("sync", "aligned", "b32"):
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
                for peer in set(blocks_together(frame, row, count)) - {block}:
                    memory.agree(block, peer, ("free", int(starts[row]), int(counts[row])))

    return step


def permit_step(slots: Slots, inst: Instruction) -> Step:
    """`tcgen05.relinquish_alloc_permit.cta_group::N.sync.aligned`."""
    if group_of(inst, inst.modifiers[1:])[1] != ("sync", "aligned") or inst.sources:
        raise Unsupported
    guard = guard_getter(slots, inst.guard)

    def step(frame: Frame) -> None:
        rows = whole_warps(frame, inst, guard)
        frame.machine.tensor_memory.closed[frame.machine.block_of_row[frame.index[rows]]] = True

    return step
