"""What goes in and out of tensor memory: `tcgen05.ld` and `.st` of a warp's registers, `tcgen05.cp` from shared memory.

Done when they are issued, which is a legal execution: nothing may be relied on before `tcgen05.wait` or an `mbarrier`.
A warp reaches 32 lanes, by its number in its warpgroup. Source: PTX ISA, "Data Movement Shape" and "tcgen05.cp";
layouts as CUTLASS's public `Copy_Traits<SM100_TMEM_LOAD_...>` and `Copy_Traits<SM100_UTCCP_...>` have them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from functional.isa.operation import Unsupported
from functional.numpy_executor.frame import Frame, raw
from functional.numpy_executor.matrix_descriptor import addresses_of, of_blackwell
from functional.numpy_executor.memory_ops import address_getter
from functional.numpy_executor.operands import getter, guard_getter, setter
from functional.numpy_executor.spaces import SPACES
from functional.numpy_executor.tensor_memory import (
    blocks_together,
    faults,
    group_of,
    same_in_warp,
    view_of,
    whole_warps,
)
from functional.ptx.ir import CLUSTER_SHARED, Address, Immediate, Instruction, Operand, Vector

if TYPE_CHECKING:
    from functional.numpy_executor.slots import Slots

Step = Callable[[Frame], None]
_THREAD = np.arange(32)
_PACKING = {"ld": "pack::16b", "st": "unpack::16b"}
_REGISTERS = {"32x32b": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4, "16x32bx2": 1}  # of .x1
_MOST_REGISTERS = 128
_WARP_LANES = 32
_LOWER, _HALF_BITS = np.uint32(0xFFFF), np.uint32(16)


class Move(NamedTuple):
    """A `tcgen05.ld` or `.st`: its lanes and columns [thread, register] from the address on, and whether each register
    holds the lower halves of two columns."""

    address: Address
    registers: tuple[Operand, ...]
    lanes: np.ndarray
    columns: np.ndarray
    packed: bool


def move_of(inst: Instruction) -> Move:
    """`tcgen05.ld.sync.aligned.SHAPE.xN[.pack::16b].b32 registers, [address][, half]`, and `.st` likewise. Raises
    Unsupported."""
    way, *rest = inst.modifiers
    packed = _PACKING[way] in rest
    head, shape, times = tuple(rest[:2]), rest[2], re.fullmatch(r"x(\d+)", rest[3])
    if head != ("sync", "aligned") or rest[4:] != [*[_PACKING[way]] * packed, "b32"]:
        raise Unsupported
    if times is None or int(times[1]) not in (1, 2, 4, 8, 16, 32, 64, 128):
        raise Unsupported
    address, half, registers = _operands(inst, way, shape)
    count = _REGISTERS[shape] * int(times[1])
    if len(registers) != count or count > _MOST_REGISTERS:
        raise Unsupported
    lanes, columns = _places(shape, count, half, 1 + packed)
    return Move(address, registers, lanes, columns, packed)


def _operands(inst: Instruction, way: str, shape: str) -> tuple[Address, int, tuple[Operand, ...]]:
    """(address, columns to the second half, registers)."""
    address, *more = inst.sources
    given = inst.destinations[0] if way == "ld" else more.pop()
    if len(more) != (shape == "16x32bx2") or not isinstance(address, Address):
        raise Unsupported
    half = more[0] if more else Immediate(0)
    if not isinstance(half, Immediate):
        raise Unsupported
    elements = given.elements if isinstance(given, Vector) else (given,)
    return address, int(half.value), elements  # type: ignore[return-value]


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
    """`tcgen05.ld`, `tcgen05.st`."""
    move, load = move_of(inst), inst.modifiers[0] == "ld"
    where = address_getter(slots, move.address, "shared")
    getters = [] if load else [getter(slots, r, "b32") for r in move.registers]
    setters = [setter(slots, r, "b32", inst.guard is not None) for r in move.registers] if load else []
    guard = guard_getter(slots, inst.guard)

    def step(frame: Frame) -> None:
        rows = whole_warps(frame, inst, guard)
        starts = same_in_warp(frame, inst, where, "the address", rows)
        words = np.zeros((frame.count, *move.lanes.shape), np.uint32)
        if getters:
            words = np.stack([raw(frame.full(get(frame))) for get in getters], axis=2)
        for row in rows.tolist():
            _move(frame, inst, row, int(starts[row]), move, words)
        for i, write in enumerate(setters):
            write(frame, np.ascontiguousarray(words[..., i]))

    return step


def _move(frame: Frame, inst: Instruction, row: int, start: int, move: Move, words: np.ndarray) -> None:
    """Of one warp, to or from its `words` [thread, register]."""
    machine = frame.machine
    view = view_of(frame, row)
    own = int(frame.index[row]) % machine.warps_per_block % 4 * _WARP_LANES
    lanes, columns = (start >> 16) + move.lanes, (start & 0xFFFF) + move.columns
    if int(lanes.min()) < own or int(lanes.max()) >= own + _WARP_LANES or (start >> 16) % 16:
        message = f"lane {start >> 16} of an address: this warp has lanes {own} to {own + _WARP_LANES - 1}"
        raise machine.fault(inst, message, int(frame.index[row]))
    with faults(frame, inst, row):
        if inst.modifiers[0] == "st":
            halves = [words[row] & _LOWER, words[row] >> _HALF_BITS] if move.packed else [words[row]]
            for i, given in enumerate(halves):
                view.write(lanes, columns + i, given)
        else:
            found = [view.read(lanes, columns + i) for i in range(1 + move.packed)]
            words[row] = found[0] & _LOWER | found[1] << _HALF_BITS if move.packed else found[0]


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
    count, shape = group_of(inst, inst.modifiers[1:])
    copy = _COPIES.get(frozenset(shape))
    if copy is None:  # what decompresses
        raise Unsupported
    to, descriptor = inst.sources
    where, matrix = address_getter(slots, to, "shared"), getter(slots, descriptor, "b64")
    guard = guard_getter(slots, inst.guard)

    def step(frame: Frame) -> None:
        for row, lane in threads_of(frame, None if guard is None else frame.set_guard(guard)):
            start, word = (int(frame.full(get(frame))[row, lane]) for get in (where, matrix))
            with faults(frame, inst, row):
                at = addresses_of(of_blackwell(word), np.arange(copy.rows), np.arange(copy.row_bytes), 1, False)
                columns = (start & 0xFFFF) + np.arange(copy.row_bytes // 4)
                for block in blocks_together(frame, row, count):
                    words = shared_bytes(frame, inst, (row, lane), at, block).view(np.uint32)
                    for lanes in copy.lanes + (start >> 16):
                        view_of(frame, row, block).write(lanes[:, None], columns[None], words)

    return step


def threads_of(frame: Frame, lanes: np.ndarray | None) -> list[tuple[int, int]]:
    """(row, lane) of the threads that execute an instruction each for itself."""
    active = frame.active(lanes)
    if active is None:
        active = np.ones((frame.count, 32), bool)
    return [(int(row), int(lane)) for row, lane in zip(*np.nonzero(active), strict=True)]


def shared_bytes(
    frame: Frame, inst: Instruction, place: tuple[int, int], addresses: np.ndarray, block: int
) -> np.ndarray:
    """Bytes of the shared memory of a thread block, for a thread (row, lane) of it or its cluster; of the shape of
    their addresses."""
    machine, row = frame.machine, place[0]
    alone = Frame(machine, frame.index[row : row + 1], 0)
    there = addresses.reshape(1, -1).astype(np.uint32) + machine.clusters.first_address[block].astype(np.uint32)
    offsets = SPACES[CLUSTER_SHARED].offsets(alone, inst, there, 1)[0]
    if machine.watch is not None:
        machine.watch.box(frame, inst, place, "shared", offsets, 1, False)
    return machine.shared.data[offsets].reshape(addresses.shape)
