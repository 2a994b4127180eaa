"""`tcgen05`, the tensor-core instructions of Blackwell's data-centre GPUs, but for products: allocation, loads, stores
and copies of tensor memory, commits.

Everything is done when it is issued, so that waits and fences have no effect, and a commit arrives at its `mbarrier` at
once: nothing may be relied on before. A warp reaches 32 lanes, by its number in its warpgroup. `tcgen05.shift` is not
supported: no public source says which of the two neighbours of a row it becomes. Source: PTX ISA, "Data Movement Shape"
and "tcgen05.cp"; layouts as CUTLASS's public `Copy_Traits<SM100_TMEM_LOAD_...>` and `Copy_Traits<SM100_UTCCP_...>` have
them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from functional.isa.operation import Unsupported, as_address, as_number, raw, refuse_if
from functional.isa.slots import Slots
from functional.isa.tcgen05_form import group_of
from functional.ptx.ir import CLUSTER_SHARED, Instruction, parts_of
from functional.steps.async_copies import MULTICAST, targets_of
from functional.steps.machine import Frame, Getter, Machine, Step, getter, setter
from functional.steps.mbarriers import arrive, log_barriers
from functional.steps.memory_ops import SPACES, Place, address_getter, record
from functional.steps.tensor_memory import TensorMemory
from functional.steps.wgmma import addresses_of, of_blackwell


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
    return View(machine.tensor_memory, user if block is None else block, user, machine.watch.strict)


def blocks_together(frame: Frame, row: int, count: int) -> tuple[int, ...]:
    """The thread blocks, by their place in the chunk, that an instruction of a row of the frame is of: its own, or its
    pair, the one of even rank first. Raises ValueError where there is no pair."""
    own = int(frame.machine.block_of_row[frame.index[row]])
    return (own,) if count == 1 else frame.machine.clusters.pair(own)


def check_given_back(machine: Machine) -> None:
    """Raises ExecutionError if a thread block has ended with columns of its own, which PTX forbids."""
    if "tensor_memory" not in machine.__dict__:
        return
    memory = machine.tensor_memory
    for block, own in memory.calls.items():
        peer = next(b for b in machine.clusters.pair(block) if b != block)
        if len(own) < len(memory.calls[peer]):
            assert memory.last is not None
            what, address, columns = memory.calls[peer][len(own)]
            message = f"the other thread block of its pair does not {what} {columns} columns from {address:#x} on"
            raise machine.fault(memory.last, message, peer * machine.warps_per_block)
    if memory.taken.any():
        held = memory.taken.sum(axis=1)
        block = int(held.argmax())
        assert memory.last is not None
        message = f"the thread block ends with {held[block]} columns of tensor memory that it has not given back"
        raise machine.fault(memory.last, message, block * machine.warps_per_block)


def whole_warps(frame: Frame, inst: Instruction) -> np.ndarray:
    """Rows of warps that execute an instruction `.sync.aligned`. Raises ExecutionError where only some threads do."""
    active = frame.lanes()
    some, every = (np.asarray(found(active, axis=1, keepdims=True)) for found in (np.any, np.all))
    frame.check(inst, some & ~every, lambda _: "all 32 threads of a warp execute it together")
    return np.flatnonzero(some)


def same_in_warp(frame: Frame, inst: Instruction, get: Getter, what: str, rows: np.ndarray) -> np.ndarray:
    """What a register holds in all threads of a warp [row]. Raises ExecutionError if they differ in one of `rows`."""
    values = frame.full(get(frame)).astype(np.int64)
    apart = rows[(values[rows] != values[rows, :1]).any(axis=1)]
    if len(apart):
        raise frame.fault(inst, f"{what} is the same in all threads of a warp", apart[0])
    return values[:, 0]


def columns_step(slots: Slots, inst: Instruction) -> Step:
    """`tcgen05.alloc.cta_group::N.sync.aligned[.shared::cta].b32 [to], columns` and
    `tcgen05.dealloc.cta_group::N.sync.aligned.b32 address, columns`."""
    (count, plain), allocates = group_of(inst), inst.modifiers[0] == "alloc"
    refuse_if(plain != ("sync", "aligned", "b32") and (not allocates or plain != ("sync", "aligned", "shared", "b32")))
    to = Place(slots, inst, inst.sources[0]) if allocates else None
    where, columns = None if allocates else getter(slots, inst.sources[0], "u32"), getter(slots, inst.sources[1], "u32")

    def step(frame: Frame) -> None:
        rows, memory = whole_warps(frame, inst), frame.machine.tensor_memory
        starts = np.zeros(frame.count, np.int64)
        if where is not None:
            starts = same_in_warp(frame, inst, where, "the address", rows)
        counts, blocks = same_in_warp(frame, inst, columns, "the number of columns", rows), frame.machine.block_of_row
        for row in rows.tolist():
            block, number = int(blocks[frame.index[row]]), int(counts[row])
            with faults(frame, inst, row):
                if to is not None:
                    memory.last, starts[row] = inst, memory.allocate(block, number)
                else:
                    memory.free(block, int(starts[row]), number)
                for peer in set(blocks_together(frame, row, count)) - {block}:
                    memory.agree(block, peer, ("allocate" if allocates else "free", int(starts[row]), number))
        if to is not None:
            _store(frame, to, starts[:, None].astype(np.uint32))

    return step


@contextmanager
def faults(frame: Frame, inst: Instruction, row: int) -> Iterator[None]:
    """A ValueError within becomes the fault of a warp."""
    try:
        yield
    except ValueError as error:
        raise frame.fault(inst, str(error), row) from None


def _store(frame: Frame, to: Place, words: np.ndarray) -> None:
    parts = to.parts(frame)
    for part in parts:
        if part.space.name != "shared":
            raise frame.fault(to.inst, "the address is not in shared memory")
        at = frame.full(part.places("stores", 4))
        part.words(4)[at[part.chosen]] = frame.full(words)[part.chosen]
    record(frame, True, 4, parts)


def permit_step(slots: Slots, inst: Instruction) -> Step:
    """`tcgen05.relinquish_alloc_permit.cta_group::N.sync.aligned`."""
    refuse_if(group_of(inst)[1] != ("sync", "aligned") or inst.sources)

    def step(frame: Frame) -> None:
        rows = whole_warps(frame, inst)
        frame.machine.tensor_memory.closed[frame.machine.block_of_row[frame.index[rows]]] = True

    return step


_THREAD = np.arange(32)
_PACKING = {"ld": "pack::16b", "st": "unpack::16b"}
_REGISTERS = {"32x32b": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4, "16x32bx2": 1}  # of .x1
_TIMES = frozenset(f"x{1 << n}" for n in range(8))
_MOST_REGISTERS = 128
_WARP_LANES = 32
_LOWER, _HALF_BITS = np.uint32(0xFFFF), np.uint32(16)


def _places(shape: str, count: int, half: int, per: int) -> tuple[np.ndarray, np.ndarray]:
    """(lanes, columns) [thread, register] from the address on; a register takes `per` columns."""
    thread, register = _THREAD[:, None], np.arange(count)[None]
    if shape == "32x32b":
        return np.broadcast_arrays(thread, per * register)  # type: ignore[return-value]
    if shape == "16x32bx2":
        return np.broadcast_arrays(thread % 16, per * register + thread // 16 * half)  # type: ignore[return-value]
    if shape == "16x64b":
        lanes, columns = thread // 4 + 8 * (thread % 2), thread // 2 % 2 + 2 * register
    elif shape == "16x128b":
        lanes, columns = thread // 4 + 8 * (register % 2), thread % 4 + 4 * (register // 2)
    else:
        lanes = thread // 4 + 8 * (register // 2 % 2)
        columns = 2 * (thread % 4) + register % 2 + 8 * (register // 4)
    return np.broadcast_arrays(lanes, per * columns)  # type: ignore[return-value]


def move_step(slots: Slots, inst: Instruction) -> Step:
    """`tcgen05.ld.sync.aligned.SHAPE.xN[.pack::16b].b32 registers, [address][, half]`, and `.st` likewise."""
    way, *rest = inst.modifiers
    load, packed, head, shape, times = way == "ld", _PACKING[way] in rest, rest[:2], rest[2], rest[3]
    refuse_if(head != ["sync", "aligned"] or rest[4:] != [*[_PACKING[way]] * packed, "b32"])
    refuse_if(times not in _TIMES)
    address, *more = inst.sources
    registers = parts_of(inst.destinations[0] if load else more.pop())
    refuse_if(len(more) != (shape == "16x32bx2"))
    refuse_if(len(registers) != _REGISTERS[shape] * int(times[1:]) or len(registers) > _MOST_REGISTERS)
    places = _places(shape, len(registers), as_number(more[0]) if more else 0, 1 + packed)
    where = address_getter(slots, address, "shared")
    getters = [] if load else [getter(slots, r, "b32") for r in registers]  # type: ignore[arg-type]
    setters = [setter(slots, r, "b32") for r in registers] if load else []

    def step(frame: Frame) -> None:
        rows = whole_warps(frame, inst)
        starts = same_in_warp(frame, inst, where, "the address", rows)
        words = np.zeros((frame.count, *places[0].shape), np.uint32)
        if getters:
            words = np.stack([raw(frame.full(get(frame))) for get in getters], axis=2)
        for row in rows.tolist():
            _move(frame, inst, row, int(starts[row]), places, packed, words)
        for i, write in enumerate(setters):
            write(frame, np.ascontiguousarray(words[..., i]))

    return step


def _move(
    frame: Frame, inst: Instruction, row: int, start: int, places: tuple[np.ndarray, np.ndarray], packed: bool,
    words: np.ndarray,
) -> None:  # fmt: skip
    """Of one warp, to or from its `words` [thread, register]; `packed`: each holds the lower halves of two columns."""
    view = view_of(frame, row)
    own = int(frame.index[row]) % frame.machine.warps_per_block % 4 * _WARP_LANES
    lanes, columns = (start >> 16) + places[0], (start & 0xFFFF) + places[1]
    if int(lanes.min()) < own or int(lanes.max()) >= own + _WARP_LANES or (start >> 16) % 16:
        message = f"lane {start >> 16} of an address: this warp has lanes {own} to {own + _WARP_LANES - 1}"
        raise frame.fault(inst, message, row)
    with faults(frame, inst, row):
        if inst.modifiers[0] == "st":
            halves = [words[row] & _LOWER, words[row] >> _HALF_BITS] if packed else [words[row]]
            for i, given in enumerate(halves):
                view.write(lanes, columns + i, given)
        else:
            found = [view.read(lanes, columns + i) for i in range(1 + packed)]
            words[row] = found[0] & _LOWER | found[1] << _HALF_BITS if packed else found[0]


class Copy(NamedTuple):
    """A `tcgen05.cp`: rows and bytes a row of shared memory, and the lanes that get each row [copy, row]."""

    rows: int
    row_bytes: int
    lanes: np.ndarray


_ALL, _HALF, _QUARTER = np.arange(128), np.arange(64), np.arange(32)
_COPIES = {  # assemblers take these words in any order
    frozenset({"128x256b"}): Copy(128, 32, _ALL[None]),
    frozenset({"128x128b"}): Copy(128, 16, _ALL[None]),
    frozenset({"4x256b"}): Copy(4, 32, np.arange(0, 128, 32)[None]),
    frozenset({"64x128b", "warpx2::02_13"}): Copy(64, 16, np.stack([_HALF, _HALF + 64])),
    frozenset({"64x128b", "warpx2::01_23"}): Copy(
        64, 16, np.stack([_HALF // 32 * 64 + _HALF % 32 + n for n in (0, 32)])
    ),
    frozenset({"32x128b", "warpx4"}): Copy(32, 16, np.stack([_QUARTER + n for n in (0, 32, 64, 96)])),
}


def tensor_copy_in_step(slots: Slots, inst: Instruction) -> Step:
    """`tcgen05.cp.cta_group::N.SHAPE [address], descriptor`, of each thread that executes it: in each thread block of a
    pair from its own shared to its own tensor memory."""
    count, shape = group_of(inst)
    copy = _COPIES.get(frozenset(shape))
    if copy is None:  # what decompresses
        raise Unsupported
    to, descriptor = inst.sources
    where, matrix = address_getter(slots, to, "shared"), getter(slots, descriptor, "b64")

    def step(frame: Frame) -> None:
        for row, lane in np.argwhere(frame.lanes()).tolist():
            start, word = (int(frame.full(get(frame))[row, lane]) for get in (where, matrix))
            with faults(frame, inst, row):
                at = addresses_of(of_blackwell(word), np.arange(copy.rows), np.arange(copy.row_bytes), 1, False)
                columns = (start & 0xFFFF) + np.arange(copy.row_bytes // 4)
                for block in blocks_together(frame, row, count):
                    words = shared_bytes(frame, inst, (row, lane), at, block).view(np.uint32)
                    for lanes in copy.lanes + (start >> 16):
                        view_of(frame, row, block).write(lanes[:, None], columns[None], words)

    return step


def shared_bytes(
    frame: Frame, inst: Instruction, place: tuple[int, int], addresses: np.ndarray, block: int
) -> np.ndarray:
    """Bytes of a block's shared memory, for a thread (row, lane) of its cluster; of their addresses' shape."""
    machine, row = frame.machine, place[0]
    alone = Frame(machine, frame.index[row : row + 1])
    there = addresses.reshape(1, -1).astype(np.uint32) + machine.clusters.first_address[block].astype(np.uint32)
    offsets = SPACES[CLUSTER_SHARED].offsets(alone, inst, there, 1)[0]
    machine.watch.box(frame, inst, place, "shared", offsets, 1, False)
    return machine.shared.data[offsets].reshape(addresses.shape)


_ARRIVES = "mbarrier::arrive::one"


def commit_step(slots: Slots, inst: Instruction) -> Step:
    """`tcgen05.commit.cta_group::N.mbarrier::arrive::one[.shared::cluster][.multicast::cluster].b64 [barrier]
    [, blocks]`: an arrival, with a mask of thread blocks one at the same place in each of them."""
    plain, multicast = group_of(inst)[1], MULTICAST in inst.modifiers
    named = tuple(m for m in plain if m != MULTICAST)
    refuse_if(named not in ((_ARRIVES, CLUSTER_SHARED, "b64"), (_ARRIVES, "b64")) or len(inst.sources) != 1 + multicast)
    refuse_if(multicast and CLUSTER_SHARED not in plain)
    address, blocks = as_address(inst.sources[0]), inst.sources[1] if multicast else None
    place = Place(slots, inst, address)
    targets = targets_of(slots, inst, address, address, blocks, place.space, change=arrive)

    def step(frame: Frame) -> None:
        for target in targets(frame):
            target.complete(np.ones((frame.count, 32), np.int64))
        log_barriers(frame, place.parts(frame))

    return step
