"""Loads and stores of every space, and what all memory instructions share: addresses, lanes, trace records."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from functional.isa.memory import GENERIC, SHARED, WINDOWS, access_of, elements_of, space_of
from functional.isa.operation import RAW_BY_BYTES, Unsupported, as_address, raw, refuse_if
from functional.isa.slots import Slots
from functional.launches.memory import GLOBAL_BASE
from functional.ptx.ir import TYPE_BYTES, Instruction, Operand, Register, Symbol
from functional.steps.operands import Frame, Getter, Step, getter, setter
from functional.steps.spaces import SPACES, Lanes, check_own, rows_with_a_lane
from functional.traces.line_record import SHARED_PASS, Records, bank_passes, joined_records, line_records, repeat_active


def address_getter(slots: Slots, address: Operand, space: str) -> Getter:
    """Addresses of an `Address` operand: uint32 that wrap for shared memory, else uint64."""
    address = as_address(address)
    base, offset = address.base, address.offset
    dtype = np.dtype(np.uint32) if space in SHARED else np.dtype(np.uint64)
    if base is None:
        constant = np.full((1, 1), offset % (1 << 64), np.uint64).astype(dtype)
        return lambda _: constant
    if isinstance(base, Symbol):
        get = getter(slots, Symbol(base.name, base.offset + offset), "u64")
        return lambda frame: get(frame).astype(dtype, copy=False)
    if not isinstance(base, Register):
        raise Unsupported
    get = getter(slots, base, "u" + base.type[1:])
    added: Any = dtype.type(offset % (1 << (8 * dtype.itemsize)))
    if TYPE_BYTES[base.type] == dtype.itemsize:
        return get if not offset else lambda frame: get(frame) + added
    return lambda frame: get(frame).astype(dtype) + added


def split(
    frame: Frame, inst: Instruction, space: str, addresses: np.ndarray, lanes: np.ndarray | None = None
) -> Iterator[Lanes]:
    """The parts of an access in some lanes (None: in those with a true guard), none for lanes that are not active."""
    frame.machine.watch.addresses(frame.index, addresses)
    active = frame.active(lanes)
    restricted = active is not None and not (lanes is None and frame.guard is None)  # else every row has a lane
    some = rows_with_a_lane(active) if restricted else None  # type: ignore[arg-type]
    if some is not None and not some.any():
        return
    if active is not None and (addresses.shape[1] > 1 or some is not None):
        addresses = repeat_active(frame.full(addresses), active, some)
    if space == "shared" and frame.machine.clusters.size > 1:
        check_own(frame, inst, addresses, active)
    if space != "generic" or int(addresses.min()) >= GLOBAL_BASE:
        yield Lanes(frame, inst, SPACES["global" if space == "generic" else space], addresses, active, some)
        return
    yield from _split_generic(frame, inst, frame.lanes() if active is None else active, frame.full(addresses))


class Place:
    """Where an operand in brackets leads: in a space, else in the one that the instruction names."""

    def __init__(self, slots: Slots, inst: Instruction, operand: Operand, space: str = "") -> None:
        address = as_address(operand)
        self.inst, self.space = inst, space or space_of(slots, inst, address)
        self.where = address_getter(slots, address, self.space)

    def parts(self, frame: Frame, lanes: np.ndarray | None = None) -> list[Lanes]:
        """The parts of an access to it."""
        return list(split(frame, self.inst, self.space, self.where(frame), lanes))


def _split_generic(frame: Frame, inst: Instruction, active: np.ndarray, addresses: np.ndarray) -> Iterator[Lanes]:
    for name, (start, stop) in WINDOWS.items():
        if name == "shared":  # is in the cluster's
            continue
        inside = active & (addresses >= np.uint64(start)) & (addresses < np.uint64(stop))
        if inside.any():
            some = rows_with_a_lane(inside)
            moved = repeat_active(addresses, inside, some) - np.uint64(GENERIC[name])
            yield Lanes(frame, inst, SPACES[name], moved.astype(np.uint32) if name in SHARED else moved, inside, some)
            active = active & ~inside
    if active.any():
        some = rows_with_a_lane(active)
        yield Lanes(frame, inst, SPACES["global"], repeat_active(addresses, active, some), active, some)


def record(frame: Frame, shared: bool, size: int, parts: list[Lanes]) -> None:
    """Log the line records of an access, or its bank passes if the instruction names shared memory."""
    if shared:
        frame.machine.conflicts.append((frame.index, _passes(frame, parts)))
    elif len(parts) == 1 and parts[0].space.name != "shared":
        log_records(frame, _records_of(parts[0], size), parts[0].some)
    else:  # lines of all spaces, then one record a pass of shared memory
        found = [_records_of(part, size) for part in parts]
        chosen = [
            each if part.some is None else tuple(column[part.some[each[0]]] for column in each)
            for part, each in zip(parts, found, strict=True)
        ]
        log_records(frame, joined_records(chosen, frame.count), None)  # type: ignore[arg-type]


def _records_of(part: Lanes, size: int) -> Records:
    """Of a part of an access, in rows without an active lane too; of shared memory a record a pass."""
    frame = part.frame
    if (sectors := part.space.sectors(frame, part, size)) is None:
        return pass_records(_passes(frame, [part]))
    return line_records(np.broadcast_to(sectors, (frame.count, sectors.shape[1])))


def _passes(frame: Frame, parts: list[Lanes]) -> np.ndarray:
    if not parts:
        return np.zeros(frame.count, np.uint8)
    passes, some = np.broadcast_to(bank_passes_of(parts[0].addresses), frame.count), parts[0].some
    return passes if some is None else np.where(some, passes, np.uint8(0))


def bank_passes_of(addresses: np.ndarray) -> np.ndarray:
    """Bank passes [row] of shared addresses [row, any number of words]."""
    return bank_passes((addresses >> addresses.dtype.type(2)).astype(np.uint32, copy=False))


def pass_records(passes: np.ndarray) -> Records:
    """Of a generic access to shared memory: one a bank pass [row], of the window for it."""
    at = np.repeat(np.arange(len(passes)), passes)
    return at, np.full(len(at), SHARED_PASS, np.uint32)


def log_records(frame: Frame, records: Records, some: np.ndarray | None) -> None:
    """Log records, with an empty one for each warp without an active lane (`some` False; None: all have one)."""
    rows, packed = records
    if some is not None:
        kept = some[rows]
        empty = np.flatnonzero(~some)
        rows = np.concatenate([rows[kept], empty])
        packed = np.concatenate([packed[kept], np.zeros(len(empty), np.uint32)])
    whole = some is None and len(rows) == frame.count
    frame.machine.records.append((frame.index if whole else frame.index[rows], packed))


def load_step(slots: Slots, inst: Instruction) -> Step:
    """`ld`, `ldu`."""
    size, count = access_of(inst)
    refuse_if(len(inst.sources) != 1 + ("L2::cache_hint" in inst.modifiers))
    place, word = Place(slots, inst, inst.sources[0]), RAW_BY_BYTES[size]
    setters = [setter(slots, d, inst.type) for d in elements_of(inst.destinations[0], count)]

    def step(frame: Frame) -> None:
        values: list[np.ndarray] = [np.zeros((1, 1), word)] * count
        parts = place.parts(frame)
        for part in parts:
            at, words = part.places("loads", size, count), part.words(size)
            loaded = [words.take(at + i if i else at) for i in range(count)]
            values = loaded if part.active is None or len(parts) == 1 else [
                np.where(part.active, new, old) for new, old in zip(loaded, values, strict=True)
            ]  # fmt: skip
        for write, value in zip(setters, values, strict=True):
            write(frame, value)
        record(frame, place.space in SHARED, size * count, parts)

    return step


def store_step(slots: Slots, inst: Instruction) -> Step:
    """`st`. Where lanes write the same address, the last lane of the last warp wins."""
    size, count = access_of(inst)
    refuse_if(len(inst.sources) != 2 + ("L2::cache_hint" in inst.modifiers))
    place = Place(slots, inst, inst.sources[0])
    refuse_if(place.space in ("const", "param"))
    getters = [getter(slots, e, inst.type) for e in elements_of(inst.sources[1], count) if e is not None]

    def step(frame: Frame) -> None:
        parts = place.parts(frame)
        for part in parts:
            values = [frame.full(raw(get(frame))) for get in getters]
            at, words = frame.full(part.places("stores", size, count, values)), part.words(size)
            for i, value in enumerate(values):
                words[at[part.chosen] + i if i else at[part.chosen]] = value[part.chosen]
        record(frame, place.space in SHARED, size * count, parts)

    return step
