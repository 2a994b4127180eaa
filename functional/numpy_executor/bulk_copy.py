"""`cp.async.bulk`: one thread copies many bytes between global and shared memory. Done at once, as `cp.async` is;
a copy into shared memory then counts its bytes at an mbarrier.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from functional.coalesce import line_records
from functional.ir import Address, Instruction, Operand
from functional.numpy_executor.mbarrier import COMPLETE_TX, update_barriers
from functional.numpy_executor.memory_ops import address_getter, log_records, split
from functional.numpy_executor.operands import getter, guard_getter
from functional.numpy_executor.operation import Unsupported

if TYPE_CHECKING:
    from functional.numpy_executor.frame import Frame
    from functional.numpy_executor.slots import Slots
    from functional.numpy_executor.spaces import Lanes

Step = Callable[["Frame"], None]
UNIT_BYTES = 16  # addresses and sizes are multiples of it
_FORMS: dict[tuple[str, ...], tuple[str, str]] = {
    ("shared", "global", "mbarrier::complete_tx::bytes"): ("global", "shared"),
    ("global", "shared", "bulk_group"): ("shared", "global"),
}


class BulkCopy(NamedTuple):
    """Spaces and addresses, the operand with the bytes, and the barrier that counts them."""

    spaces: tuple[str, str]  # from, to
    source: Address
    to: Address
    size: Operand
    barrier: Address | None


def is_bulk(inst: Instruction) -> bool:
    """A `cp.async.bulk` that copies."""
    return inst.modifiers[:2] == ("async", "bulk") and inst.modifiers[2:3] not in (("commit_group",), ("wait_group",))


def bulk_copy_of(inst: Instruction) -> BulkCopy:
    """The operands. Raises Unsupported for tensors, copies between thread blocks, reductions and multicast."""
    operands = list(inst.sources)
    if "L2::cache_hint" in inst.modifiers:
        operands.pop()
    spaces = _FORMS.get(tuple(m for m in inst.modifiers[2:] if m != "L2::cache_hint"))
    if spaces is None or len(operands) != (4 if spaces[1] == "shared" else 3):
        raise Unsupported
    to, source, size, *barrier = operands
    if not all(isinstance(operand, Address) for operand in (to, source, *barrier)):
        raise Unsupported
    return BulkCopy(spaces, source, to, size, barrier[0] if barrier else None)  # type: ignore[arg-type]


def bulk_copy_step(slots: Slots, inst: Instruction) -> Step:
    """`cp.async.bulk.shared.global.mbarrier::complete_tx::bytes` and `cp.async.bulk.global.shared.bulk_group`."""
    copy = bulk_copy_of(inst)
    guard, bytes_of = guard_getter(slots, inst.guard), getter(slots, copy.size, "u32")
    source, to = (
        address_getter(slots, address, space)
        for address, space in zip((copy.source, copy.to), copy.spaces, strict=True)
    )
    complete = None if copy.barrier is None else update_barriers(slots, inst, copy.barrier, "shared", COMPLETE_TX)

    def step(frame: Frame) -> None:
        lanes = None if guard is None else frame.set_guard(guard)
        sizes = np.broadcast_to(frame.full(bytes_of(frame)), (frame.count, 32)).astype(np.int64)
        _check_sizes(frame, inst, sizes, lanes)
        parts = [
            list(split(frame, inst, space, where(frame), lanes))
            for space, where in zip(copy.spaces, (source, to), strict=True)
        ]
        for read, written in zip(*parts, strict=True):
            _move(frame, inst, read, written, sizes)
        _record(frame, parts[copy.spaces.index("global")], sizes)
        if complete is not None:
            complete(frame, lanes, sizes)

    return step


def _check_sizes(frame: Frame, inst: Instruction, sizes: np.ndarray, lanes: np.ndarray | None) -> None:
    wrong = sizes % UNIT_BYTES != 0
    active = frame.active(lanes)
    if active is not None:
        wrong = wrong & active
    if wrong.any():
        row, lane = (int(i[0]) for i in np.nonzero(wrong))
        message = f"a copy of {sizes[row, lane]} bytes: the size is a multiple of {UNIT_BYTES}"
        raise frame.machine.fault(inst, message, int(frame.index[row]), lane)


def _move(frame: Frame, inst: Instruction, read: Lanes, written: Lanes, sizes: np.ndarray) -> None:
    """Unit by unit, since an area may begin in one buffer and end outside of it."""
    active = np.ones(sizes.shape, bool) if read.active is None else read.active
    for start in range(0, int(sizes[active].max(initial=0)), UNIT_BYTES):
        here = active & (sizes > start)
        at = [_offsets(frame, inst, part, start, here)[here][:, None] for part in (read, written)]
        if frame.machine.watch is not None:
            _watch(frame, inst, read, written, start, here)
        data = read.space.storage(frame.machine).data[at[0] + np.arange(UNIT_BYTES)]
        written.space.storage(frame.machine).data[at[1] + np.arange(UNIT_BYTES)] = data


def _watch(frame: Frame, inst: Instruction, read: Lanes, written: Lanes, start: int, here: np.ndarray) -> None:
    from dataclasses import replace

    watch = frame.machine.watch
    assert watch is not None
    for part, look in ((read, watch.loads), (written, watch.stores)):
        look(frame, inst, replace(part, active=here), _offsets(frame, inst, part, start, here), UNIT_BYTES)


def _offsets(frame: Frame, inst: Instruction, part: Lanes, start: int, here: np.ndarray) -> np.ndarray:
    """Checked offsets [row, 32] of the unit at `start`; of lanes that are not `here`, of one that is."""
    addresses = frame.full(part.addresses) + part.addresses.dtype.type(start)
    row, lane = (int(i[0]) for i in np.nonzero(here))
    return frame.full(part.space.offsets(frame, inst, np.where(here, addresses, addresses[row, lane]), UNIT_BYTES))


def _record(frame: Frame, parts: list[Lanes], sizes: np.ndarray) -> None:
    """The lines of global memory that a copy touches."""
    for part in parts:
        active = np.ones(sizes.shape, bool) if part.active is None else part.active
        longest = int(sizes[active].max(initial=0))
        if not longest:
            log_records(frame, (np.zeros(0, np.int64), np.zeros(0, np.uint32)), np.zeros(frame.count, bool))
            continue
        starts = np.minimum(np.arange(0, longest, UNIT_BYTES), np.maximum(sizes, UNIT_BYTES)[..., None] - UNIT_BYTES)
        touched = (frame.full(part.addresses)[..., None] + starts.astype(np.uint64)) >> np.uint64(5)
        first = touched[np.arange(frame.count), active.argmax(axis=1)][:, :1]
        chosen = np.where(active[..., None], touched, first[:, None]).reshape(frame.count, -1)
        log_records(frame, line_records(chosen.astype(np.uint32)), part.some)
