"""Asynchronous copies, done at once: `cp.async`, `cp.async.bulk`, `cp.reduce.async.bulk`, `st.async`, `red.async`.

That is a legal execution: only what is read before the wait could tell, and such a read is a data race. Bulk copies
into shared memory, and asynchronous stores, count their bytes at an mbarrier."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from msgspec import structs

from functional.isa.memory import RANK_BYTES, Copy, copy_of
from functional.isa.operation import as_address, refuse_if
from functional.isa.slots import Slots
from functional.ptx.ir import CLUSTER_SHARED, TYPE_BYTES, Address, Instruction, Operand, Vector
from functional.steps.atomics import Update, atomic_step, reduce_into, reduction_of
from functional.steps.machine import Frame, Getter, Step, getter
from functional.steps.mbarriers import Change, complete_tx, log_touched, update_barriers
from functional.steps.memory_ops import Lanes, Place, address_getter, record, split, store_step
from functional.traces.line_record import BANK_BYTES, BANKS
from functional.traces.trace import SECTOR_BYTES


def async_copy_step(slots: Slots, inst: Instruction) -> Step:
    """`cp.async`, 4, 8 or 16 bytes a lane; bytes beyond those to read become 0."""
    copy = copy_of(inst)
    size, to, source = copy.size, Place(slots, inst, copy.to, "shared"), Place(slots, inst, copy.source, "global")
    wanted = _wanted(slots, copy)

    def step(frame: Frame) -> None:
        count = np.minimum(frame.full(wanted(frame)), size)
        some = (count > 0) if frame.guard is None else frame.guard & (count > 0)
        data = np.zeros((frame.count, 32, size), np.uint8)
        read = source.parts(frame, some)
        for part in read:
            _read(part, np.where(some, count, 0), data)
        written = to.parts(frame)
        for part in written:
            at = frame.full(part.offsets(size))
            part.look("stores", at, size)
            part.words(1)[at[part.chosen][..., None] + np.arange(size)] = data[part.chosen]
        record(frame, False, size, [*read, *written])

    return step


def _wanted(slots: Slots, copy: Copy) -> Getter:
    whole = np.full((1, 1), copy.size, np.int64)
    if copy.ignore is not None:
        ignore = getter(slots, copy.ignore, "pred")
        return lambda frame: np.where(ignore(frame), np.int64(0), whole)
    if copy.read is None:
        return lambda _: whole
    read = getter(slots, copy.read, "u32")
    return lambda frame: read(frame).astype(np.int64)


def _read(part: Lanes, count: np.ndarray, data: np.ndarray) -> None:
    """Fill the first `count` bytes of each lane; no byte beyond them is touched."""
    frame, size, bytes_, active = part.frame, data.shape[2], part.words(1), part.lanes
    part.space.check_alignment(frame, part.inst, part.addresses, size)
    if (count == size).all():
        at = frame.full(part.offsets(size))
        part.look("loads", at, size)
        data[:] = bytes_[at[..., None] + np.arange(size)]
        return
    addresses = frame.full(part.addresses)
    lanes = np.maximum(count, 1) - 1
    part.space.offsets(frame, part.inst, np.where(active, addresses + lanes.astype(addresses.dtype), addresses), 1)
    first = frame.full(part.offsets(1))
    replace(part, active=active & (count > 0)).look("loads", first, 1)
    for i in range(size):
        here = active & (count > i)
        data[here, i] = bytes_[first[here] + i]


UNIT_BYTES = 16  # addresses and sizes are multiples of it
MULTICAST = "multicast::cluster"
COMPLETES = "mbarrier::complete_tx::bytes"
_FORMS: dict[tuple[str, ...], tuple[str, str]] = {  # -> spaces from, to
    ("shared", "global", COMPLETES): ("global", "shared"),
    (CLUSTER_SHARED, "global", COMPLETES): ("global", CLUSTER_SHARED),
    (CLUSTER_SHARED, "global", COMPLETES, MULTICAST): ("global", CLUSTER_SHARED),
    (CLUSTER_SHARED, "shared", COMPLETES): ("shared", CLUSTER_SHARED),
    ("global", "shared", "bulk_group"): ("shared", "global"),
}


def is_bulk(inst: Instruction) -> bool:
    """A `cp.async.bulk` that copies, or `cp.reduce.async.bulk`."""
    if inst.modifiers[:1] == ("reduce",):
        return True
    copies = {"commit_group", "wait_group", "prefetch"}.isdisjoint(inst.modifiers[2:3])
    return inst.modifiers[:2] == ("async", "bulk") and copies


def bulk_copy_step(slots: Slots, inst: Instruction) -> Step:
    """`cp.async.bulk.{shared,shared::cluster}.{global,shared}.mbarrier::complete_tx::bytes[.multicast::cluster]`,
    `cp.async.bulk.global.shared.bulk_group`, and the same with `cp.reduce`. Raises Unsupported."""
    operands, modifiers = list(inst.sources), [m for m in inst.modifiers if m != "L2::cache_hint"]
    if "L2::cache_hint" in inst.modifiers:
        operands.pop()
    reduces = modifiers[0] == "reduce"
    form = tuple(modifiers[3:6] if reduces else modifiers[2:])
    refuse_if(form not in _FORMS or len(operands) != 3 + (COMPLETES in form) + (MULTICAST in form))
    (read_from, into), reduction = _FORMS[form], reduction_of(modifiers[6:]) if reduces else None
    refuse_if(reduces and read_from != "shared")
    to, origin, size, *rest = operands
    bytes_of, source = getter(slots, size, "u32"), Place(slots, inst, origin, read_from)
    barrier, blocks = as_address(rest[0]) if rest else None, rest[1] if len(rest) > 1 else None
    targets = targets_of(slots, inst, as_address(to), barrier, blocks, into)

    def step(frame: Frame) -> None:
        sizes = frame.full(bytes_of(frame)).astype(np.int64)
        say = f"the size is a multiple of {UNIT_BYTES}"
        frame.check(inst, (sizes % UNIT_BYTES != 0) & frame.lanes(), lambda at: f"a copy of {sizes[at]} bytes: {say}")
        read = source.parts(frame)
        written: list[Lanes] = []
        for target in targets(frame):
            written = list(split(frame, inst, into, target.addresses, target.lanes))
            here = read if target.lanes is None else [replace(p, active=p.lanes & target.lanes) for p in read]
            for one, other in zip(here, written, strict=False):
                _move(one, other, sizes, reduction)
            target.complete(sizes)
        _record(frame, read if read_from == "global" else written, sizes)

    return step


class Target(NamedTuple):
    """Where a copy goes: addresses [row, lane], in which lanes (None: all active), and what counts its bytes."""

    addresses: np.ndarray
    lanes: np.ndarray | None
    complete: Callable[[np.ndarray], object]


def targets_of(
    slots: Slots, inst: Instruction, to: Address, barrier: Address | None, blocks: Operand | None, space: str,
    paired: bool = False, change: Change = complete_tx,
) -> Callable[[Frame], Iterator[Target]]:  # fmt: skip
    """`targets(frame)`: one, or with a mask of thread blocks one a block, at the same place of its memory. Its
    barrier counts the bytes, or does what `change` says; `paired`: the barrier of that one of its pair whose rank is as
    even or odd as that of the barrier that is named."""
    where = address_getter(slots, to, space)
    counter = None if barrier is None else address_getter(slots, barrier, space)
    chosen: Getter | None = None if blocks is None else getter(slots, blocks, "b16")

    def complete_at(frame: Frame, lanes: np.ndarray | None, addresses: np.ndarray | None) -> Callable:
        if addresses is None:
            return lambda sizes: None
        parts = list(split(frame, inst, space, addresses, lanes))
        return lambda sizes: update_barriers(parts, change, sizes)

    def targets(frame: Frame) -> Iterator[Target]:
        addresses, counts = where(frame), None if counter is None else counter(frame)
        if chosen is None or counts is None:
            yield Target(addresses, None, complete_at(frame, None, counts))
            return
        mask = frame.full(chosen(frame))
        for rank in range(16):
            here = (mask >> np.uint16(rank) & np.uint16(1)).astype(bool) & frame.lanes()
            if here.any():
                its = rank // 2 * 2 + counts // np.uint32(RANK_BYTES) % np.uint32(2) if paired else rank
                yield Target(in_block(addresses, rank), here, complete_at(frame, here, in_block(counts, its)))

    return targets


def in_block(addresses: np.ndarray, rank: int | np.ndarray) -> np.ndarray:
    """The same place in the shared memory of the thread block of a rank."""
    return addresses % np.uint32(RANK_BYTES) + np.uint32(rank) * np.uint32(RANK_BYTES)


def _move(read: Lanes, written: Lanes, sizes: np.ndarray, reduction: tuple[str, Update] | None) -> None:
    """Unit by unit, since an area may begin in one buffer and end outside of it."""
    for start in range(0, int(sizes[read.lanes].max(initial=0)), UNIT_BYTES):
        here = read.lanes & (sizes > start)
        at = [_unit(part, start, here) for part in (read, written)]
        read_at, written_at = (offsets[here][:, None] for offsets in at)
        if read.frame.machine.watch.follows_copies:
            hows = "loads", "updates" if read.inst.modifiers[0] == "reduce" else "stores"
            for part, offsets, how in zip((read, written), at, hows, strict=True):
                replace(part, active=here).look(how, offsets, UNIT_BYTES)
        data = read.words(1)[read_at + np.arange(UNIT_BYTES)]
        if reduction is None:
            written.words(1)[written_at + np.arange(UNIT_BYTES)] = data
        else:
            into = written.space.storage(written.frame.machine)
            reduce_into(into, *reduction, written_at[:, 0], np.ascontiguousarray(data))


def _unit(part: Lanes, start: int, here: np.ndarray) -> np.ndarray:
    """Checked offsets [row, 32] of the unit at `start`; of lanes that are not `here`, of one that is."""
    addresses = part.frame.full(part.addresses) + part.addresses.dtype.type(start)
    addresses = np.where(here, addresses, addresses[tuple(np.argwhere(here)[0])])
    return part.frame.full(part.space.offsets(part.frame, part.inst, addresses, UNIT_BYTES))


def _record(frame: Frame, parts: list[Lanes], sizes: np.ndarray) -> None:
    """The lines of global memory that a copy touches, and the passes of shared memory."""
    found: dict[int, list[np.ndarray]] = {}
    passes = np.zeros(frame.count, np.int64)
    for part in parts:
        addresses = frame.full(part.addresses).astype(np.int64)
        active = part.lanes & (sizes > 0)
        passes += np.where(active, passes_of(sizes), 0).sum(axis=1)
        for row, lane in zip(*np.nonzero(active), strict=True):
            first, last = addresses[row, lane], addresses[row, lane] + sizes[row, lane] - 1
            touched = np.arange(first // SECTOR_BYTES, last // SECTOR_BYTES + 1)
            found.setdefault(int(row), []).append(touched if part.space.name == "global" else touched[:0])
    log_touched(frame, found, passes)


def passes_of(sizes_bytes: np.ndarray) -> np.ndarray:
    """Cycles in which shared memory takes or gives so many bytes, all banks at once."""
    return -(-sizes_bytes // (BANKS * BANK_BYTES))


def async_store_step(slots: Slots, inst: Instruction) -> Step:
    """`st.async...shared::cluster.mbarrier::complete_tx::bytes... [to], value, [barrier]`, and `red.async` likewise."""
    refuse_if(not {CLUSTER_SHARED, COMPLETES} <= set(inst.modifiers) or len(inst.sources) != 3)
    *given, barrier = inst.sources
    modifiers = tuple(m for m in inst.modifiers if m not in ("async", COMPLETES))
    plain = structs.replace(inst, modifiers=modifiers, sources=tuple(given))
    run = store_step(slots, plain) if inst.opcode == "st" else atomic_step(slots, plain)
    place = Place(slots, inst, barrier, CLUSTER_SHARED)
    elements = len(given[1].elements) if isinstance(given[1], Vector) else 1
    size = np.int64(elements * TYPE_BYTES[inst.type])

    def step(frame: Frame) -> None:
        run(frame)
        update_barriers(place.parts(frame), complete_tx, np.full((frame.count, 32), size))

    return step
