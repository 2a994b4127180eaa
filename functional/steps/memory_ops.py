"""State spaces: bounds and alignment checks, byte offsets into each storage, sector numbers for the trace; loads and
stores of every space, and what all memory instructions share: addresses, lanes, trace records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from functional.isa.memory import GENERIC, RANK_BYTES, SHARED, WINDOWS, access_of, elements_of, space_of
from functional.isa.operation import RAW_BY_BYTES, Unsupported, as_address, raw, refuse_if
from functional.isa.slots import Slots
from functional.launches.memory import GLOBAL_BASE
from functional.ptx.ir import CLUSTER_SHARED, TYPE_BYTES, Instruction, Operand, Register, Symbol
from functional.steps.machine import Bytes, Frame, Getter, Machine, Step, getter, setter
from functional.traces import line_record
from functional.traces.trace import LINE_BYTES, LOCAL_WINDOW_LINE, PARAM_WINDOW_LINE

_LANES = np.arange(32, dtype=np.int64)[None, :]


@dataclass(slots=True)
class Lanes:
    """Part of an access that goes to one space, inactive lanes at the address of an active one."""

    frame: Frame
    inst: Instruction
    space: Space
    addresses: np.ndarray  # (1 | row, 1 | 32)
    active: np.ndarray | None  # bool [row, 32]; None: all
    some: np.ndarray | None  # rows with an active lane, bool [row]; None: all

    @property
    def lanes(self) -> np.ndarray:
        """The active ones, bool [row, 32]."""
        return np.ones((self.frame.count, 32), bool) if self.active is None else self.active

    @property
    def chosen(self) -> Any:
        """What picks them of an array [row, 32, ...]."""
        return ... if self.active is None else self.active

    def offsets(self, size: int, behind: int = 0) -> np.ndarray:
        """Checked byte offsets in the storage, of what lies so far `behind` the addresses."""
        addresses = self.addresses + self.addresses.dtype.type(behind) if behind else self.addresses
        return self.space.offsets(self.frame, self.inst, addresses, size)

    def places(self, how: str, size: int, count: int = 1, values: Sequence[np.ndarray] = ()) -> np.ndarray:
        """Checked offsets of `count` words of `size` bytes, in words; what looks at accesses looks at this one."""
        offsets = self.offsets(size * count)
        self.look(how, offsets, size * count, values)
        return offsets >> (size.bit_length() - 1)

    def look(self, how: str, offsets: np.ndarray, size: int, values: Sequence[np.ndarray] = ()) -> None:
        """What looks at accesses looks at this one."""
        self.frame.machine.watch.look(how, self, offsets, size, values)

    def words(self, size: int) -> np.ndarray:
        """The storage as words of so many bytes."""
        return self.space.storage(self.frame.machine).words[size]


@dataclass(frozen=True)
class Space:
    """Addresses are non-negative integer arrays (row, 1 | 32), inactive lanes already replaced by active ones.
    `storage`: where the bytes are; `limit`: the first invalid address."""

    name: str
    storage: Callable[[Machine], Bytes]
    limit: Callable[[Machine], int]

    def offsets(self, frame: Frame, inst: Instruction, addresses: np.ndarray, size: int) -> np.ndarray:
        """Checked byte offsets (int64) into the storage. Raises ExecutionError out of bounds or misaligned."""
        limit = self.limit(frame.machine)
        if int(addresses.max()) + size > limit:
            bad = addresses + addresses.dtype.type(size) > limit
            bad |= addresses > limit
            raise self.out_of_bounds(frame, inst, addresses, bad, size, f"{self.name} memory has {limit} bytes")
        self.check_alignment(frame, inst, addresses, size)
        return addresses.astype(np.int64)

    def sectors(self, frame: Frame, part: Lanes, size: int) -> np.ndarray | None:
        """Sector numbers of the access for line records, or None if the space is shared memory."""
        return line_record.sector_numbers(part.addresses)

    def check_alignment(self, frame: Frame, inst: Instruction, addresses: np.ndarray, size: int) -> None:
        """Raise ExecutionError unless all addresses are multiples of `size`."""
        low = addresses.dtype.type(size - 1)
        if np.bitwise_or.reduce(addresses, axis=None) & low:
            say = f"{size} bytes need a multiple of {size}"
            frame.check(inst, (addresses & low) != 0, lambda at: f"misaligned address {int(addresses[at]):#x}: {say}")

    def out_of_bounds(
        self, frame: Frame, inst: Instruction, addresses: np.ndarray, bad: np.ndarray, size: int, near: str
    ) -> Exception:
        """The error of the first bad lane. Inactive lanes stand at an active one's address: addresses are counted."""
        row, lane, address = _first(addresses, bad)
        others = len(np.unique(np.broadcast_to(addresses, np.broadcast_shapes(addresses.shape, bad.shape))[bad])) - 1
        message = f"{size} bytes at {address:#x} are out of bounds: {near}"
        if others:
            message += f"; so {'are' if others > 1 else 'is'} {others:,} more address{'es' if others > 1 else ''} of it"
        return frame.fault(inst, message, row, lane)


def check_own(frame: Frame, inst: Instruction, addresses: np.ndarray, active: np.ndarray | None) -> None:
    """Raises ExecutionError for a shared address of another block of the cluster in an active lane (None: all are)."""
    own = frame.machine.clusters.rank[frame.machine.block_of_row[frame.index]][:, None]
    wrong = addresses // addresses.dtype.type(RANK_BYTES) != own
    wrong = wrong if active is None else wrong & active
    named = np.broadcast_to(addresses, wrong.shape)
    say = "is in the shared memory of another thread block of the cluster"
    frame.check(inst, wrong, lambda at: f"{int(named[at]):#x} {say}")


def rows_with_a_lane(active: np.ndarray) -> np.ndarray | None:
    """Rows with an active lane, bool [row]; None if all have one."""
    some = np.asarray(active.any(axis=1))
    return None if some.all() else some


def _first(addresses: np.ndarray, bad: np.ndarray) -> tuple[int, int, int]:
    row, lane = (int(i[0]) for i in np.nonzero(np.broadcast_to(bad, addresses.shape)))
    return row, lane, int(addresses[row, lane])


class GlobalSpace(Space):
    """Global memory."""

    def offsets(self, frame: Frame, inst: Instruction, addresses: np.ndarray, size: int) -> np.ndarray:
        memory = frame.machine.memory
        starts, ends = memory.ranges()
        low, high = int(addresses.min()), int(addresses.max())
        at = int(np.searchsorted(starts, low, side="right")) - 1
        if at < 0 or high + size > int(ends[at]):  # not all in one buffer
            bad = ~memory.valid(np.minimum(addresses, 1 << 62), size)
            if bad.any():
                _, _, address = _first(addresses, bad)
                raise self.out_of_bounds(frame, inst, addresses, bad, size, memory.describe(address))
        self.check_alignment(frame, inst, addresses, size)
        return addresses.view(np.int64) - GLOBAL_BASE


class ParamSpace(Space):
    """The parameter block of the kernel; records lie in the parameter window of the trace."""

    def sectors(self, frame: Frame, part: Lanes, size: int) -> np.ndarray:
        return line_record.sector_numbers(part.addresses.astype(np.int64) + PARAM_WINDOW_LINE * LINE_BYTES)


class SharedSpace(Space):
    """Shared memory of the thread block; addresses are uint32 and have wrapped."""

    def offsets(self, frame: Frame, inst: Instruction, addresses: np.ndarray, size: int) -> np.ndarray:
        machine = frame.machine
        block = machine.block_of_row[frame.index]
        if machine.clusters.size > 1:
            addresses = addresses % addresses.dtype.type(RANK_BYTES)
        return super().offsets(frame, inst, addresses, size) + (block * machine.shared_stride)[:, None]

    def sectors(self, frame: Frame, part: Lanes, size: int) -> None:
        return None


class ClusterSpace(SharedSpace):
    """Shared memory of any thread block of the cluster (clusters.py has the addresses)."""

    def offsets(self, frame: Frame, inst: Instruction, addresses: np.ndarray, size: int) -> np.ndarray:
        """In the memory of the thread block that the address names. Raises ExecutionError if there is none."""
        machine = frame.machine
        if machine.clusters.size == 1:
            return super().offsets(frame, inst, addresses, size)
        checked = Space.offsets(self, frame, inst, addresses % addresses.dtype.type(RANK_BYTES), size)
        ranks, size = addresses.astype(np.int64) // RANK_BYTES, machine.clusters.size
        say = f"a cluster has {size} thread blocks, there is no rank"
        frame.check(inst, ranks >= size, lambda _: f"{say} {int(ranks.max())}")
        own = machine.block_of_row[frame.index][:, None]
        return checked + machine.clusters.members[machine.clusters.cluster[own], ranks] * machine.shared_stride


class LocalSpace(Space):
    """Memory of one thread; in the trace interleaved by word: each owns a line, a lane 4 bytes of it."""

    def offsets(self, frame: Frame, inst: Instruction, addresses: np.ndarray, size: int) -> np.ndarray:
        checked = super().offsets(frame, inst, addresses, size)
        return checked + (frame.index[:, None] * 32 + _LANES) * frame.machine.local_stride

    def sectors(self, frame: Frame, part: Lanes, size: int) -> np.ndarray:
        words = [(part.addresses.astype(np.int64) + 4 * i) >> 2 for i in range(-(-size // 4))]
        sectors = [(word + LOCAL_WINDOW_LINE) * 4 + _LANES // 8 for word in words]
        if part.active is not None:
            sectors = [line_record.repeat_active(sector, part.active, part.some) for sector in sectors]
        return np.concatenate(sectors, axis=1).astype(np.uint32)


class CallSpace(LocalSpace):
    """`.param` variables of functions and calls: kept behind a thread's local memory, traced as parameters."""

    def offsets(self, frame: Frame, inst: Instruction, addresses: np.ndarray, size: int) -> np.ndarray:
        """Behind the thread's local memory."""
        return super().offsets(frame, inst, addresses, size) + frame.machine.code.slots.local_bytes

    def sectors(self, frame: Frame, part: Lanes, size: int) -> np.ndarray:
        """As of parameters."""
        return ParamSpace.sectors(SPACES["param"], frame, part, size)  # type: ignore[arg-type]


def _with_frames(machine: Machine, size_bytes: int) -> int:
    """Of a thread's memory: one frame, or of a recursive program all of them."""
    slots = machine.code.slots
    return size_bytes + slots.frame_bytes * (slots.frames - 1)


_IN_SHARED = (lambda m: m.shared, lambda m: m.shared_bytes)
_SPACES: tuple[Space, ...] = (
    GlobalSpace("global", lambda m: m.globals, lambda m: GLOBAL_BASE + len(m.globals.data)),
    Space("const", lambda m: m.constants, lambda m: len(m.memory.const_arena)),
    ParamSpace("param", lambda m: m.parameters, lambda m: len(m.launch.parameters)),
    SharedSpace("shared", *_IN_SHARED),
    LocalSpace("local", lambda m: m.local, lambda m: _with_frames(m, m.code.slots.local_bytes)),
)  # fmt: skip
SPACES: dict[str, Space] = {
    **{space.name: space for space in _SPACES}, CLUSTER_SHARED: ClusterSpace("shared", *_IN_SHARED),
    "call": CallSpace("param", lambda m: m.local, lambda m: _with_frames(m, m.code.slots.call_bytes)),
}  # fmt: skip


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
        addresses = line_record.repeat_active(frame.full(addresses), active, some)
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
            moved = line_record.repeat_active(addresses, inside, some) - np.uint64(GENERIC[name])
            yield Lanes(frame, inst, SPACES[name], moved.astype(np.uint32) if name in SHARED else moved, inside, some)
            active = active & ~inside
    if active.any():
        some = rows_with_a_lane(active)
        yield Lanes(frame, inst, SPACES["global"], line_record.repeat_active(addresses, active, some), active, some)


def record(frame: Frame, shared: bool, size: int, parts: list[Lanes], stored: int = 0) -> None:
    """Log the line records of an access, or its bank passes if the instruction names shared memory. `stored`: bytes of
    the elements that it writes; 0: it writes none."""
    if shared:
        frame.machine.conflicts.append((frame.index, _passes(frame, parts)))
    elif len(parts) == 1 and parts[0].space.name != "shared":
        log_records(frame, _records_of(parts[0], size, stored), parts[0].some)
    else:  # lines of all spaces, then one record a pass of shared memory
        found = [_records_of(part, size, stored) for part in parts]
        chosen = [
            each if part.some is None else tuple(column[part.some[each[0]]] for column in each)
            for part, each in zip(parts, found, strict=True)
        ]
        log_records(frame, line_record.joined_records(chosen, frame.count), None)  # type: ignore[arg-type]


def _records_of(part: Lanes, size: int, stored: int) -> line_record.Records:
    """Of a part of an access, in rows without an active lane too; of shared memory a record a pass."""
    frame = part.frame
    if (sectors := part.space.sectors(frame, part, size)) is None:
        return pass_records(_passes(frame, [part]))
    records = line_record.line_records(np.broadcast_to(sectors, (frame.count, sectors.shape[1])))
    if part.space.name in ("const", "param"):
        width = part.addresses.shape[1]
        return line_record.with_addresses(records, np.broadcast_to(part.addresses, (frame.count, width)))
    if not stored or part.space.name not in ("global", "local"):
        return records
    return line_record.with_words(
        records, frame.full(part.addresses), part.lanes, stored, size * (part.space.name == "local")
    )


def _passes(frame: Frame, parts: list[Lanes]) -> np.ndarray:
    if not parts:
        return np.zeros(frame.count, np.uint8)
    passes, some = np.broadcast_to(bank_passes_of(parts[0].addresses), frame.count), parts[0].some
    return passes if some is None else np.where(some, passes, np.uint8(0))


def bank_passes_of(addresses: np.ndarray) -> np.ndarray:
    """Bank passes [row] of shared addresses [row, any number of words]."""
    return line_record.bank_passes((addresses >> addresses.dtype.type(2)).astype(np.uint32, copy=False))


def pass_records(passes: np.ndarray) -> line_record.Records:
    """Of a generic access to shared memory: one a bank pass [row], of the window for it."""
    at = np.repeat(np.arange(len(passes)), passes)
    return at, np.full(len(at), line_record.SHARED_PASS, np.uint32)


def log_records(frame: Frame, records: line_record.Records, some: np.ndarray | None) -> None:
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
        record(frame, place.space in SHARED, size * count, parts, size)

    return step
