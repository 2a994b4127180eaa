"""`cp.async`: copies from global to shared memory. They are done at once; the groups that wait for them change nothing.

That is a legal execution: only what is read before the wait could tell, and such a read is a data race.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from functional.isa.operation import Unsupported
from functional.numpy_executor.frame import Frame
from functional.numpy_executor.memory_ops import address_getter, record_mixed, split
from functional.numpy_executor.operands import Getter, getter, guard_getter
from functional.numpy_executor.slots import Slots
from functional.numpy_executor.spaces import Lanes
from functional.ptx.ir import Address, Immediate, Instruction, Operand, Register

Step = Callable[[Frame], None]
_HINTS = frozenset({"L2::64B", "L2::128B", "L2::256B", "L2::cache_hint"})


class Copy(NamedTuple):
    """A `cp.async`: addresses, bytes a lane, and how many of them are read (an operand; None: all)."""

    to: Address
    source: Address
    size: int
    read: Operand | None
    ignore: Operand | None  # predicate: read nothing


def copy_of(inst: Instruction) -> Copy:
    """The operands of `cp.async.{ca,cg}.shared.global [to], [from], size[, read or ignore][, policy]`."""
    flags = [m for m in inst.modifiers if m not in _HINTS]
    if flags not in (["async", "ca", "shared", "global"], ["async", "cg", "shared", "global"]):
        raise Unsupported
    operands = list(inst.sources)
    if "L2::cache_hint" in inst.modifiers:
        operands.pop()
    if not 3 <= len(operands) <= 4:
        raise Unsupported
    to, source, size = operands[:3]
    if not isinstance(to, Address) or not isinstance(source, Address) or not isinstance(size, Immediate):
        raise Unsupported
    if size.value not in ((16,) if flags[1] == "cg" else (4, 8, 16)):
        raise Unsupported
    last = operands[3] if len(operands) > 3 else None
    ignores = isinstance(last, Register) and last.type == "pred"
    return Copy(to, source, int(size.value), None if ignores else last, last if ignores else None)


def async_copy_step(slots: Slots, inst: Instruction) -> Step:
    """`cp.async`, 4, 8 or 16 bytes a lane; bytes beyond those to read become 0."""
    copy = copy_of(inst)
    guard, size = guard_getter(slots, inst.guard), copy.size
    to, source = address_getter(slots, copy.to, "shared"), address_getter(slots, copy.source, "global")
    wanted = _wanted(slots, copy)

    def step(frame: Frame) -> None:
        lanes = None if guard is None else frame.set_guard(guard)
        count = np.minimum(frame.full(wanted(frame)), size)
        some = (count > 0) if lanes is None else lanes & (count > 0)
        data = np.zeros((frame.count, 32, size), np.uint8)
        read = list(split(frame, inst, "global", source(frame), some))
        for part in read:
            _read(frame, inst, part, np.where(some, count, 0), data)
        written = list(split(frame, inst, "shared", to(frame), lanes))
        for part in written:
            at = frame.full(part.space.offsets(frame, inst, part.addresses, size))
            if frame.machine.watch is not None:
                frame.machine.watch.stores(frame, inst, part, at, size)
            chosen = ... if part.active is None else part.active
            part.space.storage(frame.machine).data[at[chosen][..., None] + np.arange(size)] = data[chosen]
        record_mixed(frame, size, [*read, *written])

    return step


def _wanted(slots: Slots, copy: Copy) -> Getter:
    """Bytes to read of each lane."""
    whole = np.full((1, 1), copy.size, np.int64)
    if copy.ignore is not None:
        ignore = getter(slots, copy.ignore, "pred")
        return lambda frame: np.where(ignore(frame), np.int64(0), whole)
    if copy.read is None:
        return lambda _: whole
    read = getter(slots, copy.read, "u32")
    return lambda frame: read(frame).astype(np.int64)


def _read(frame: Frame, inst: Instruction, part: Lanes, count: np.ndarray, data: np.ndarray) -> None:
    """Fill the first `count` bytes of each lane; no byte beyond them is touched."""
    space, size = part.space, data.shape[2]
    space.check_alignment(frame, inst, part.addresses, size)
    if (count == size).all():
        at = frame.full(space.offsets(frame, inst, part.addresses, size))
        if frame.machine.watch is not None:
            frame.machine.watch.loads(frame, inst, part, at, size)
        data[:] = space.storage(frame.machine).data[at[..., None] + np.arange(size)]
        return
    addresses = frame.full(part.addresses)
    lanes = np.maximum(count, 1) - 1
    active = np.ones(count.shape, bool) if part.active is None else part.active
    last = np.where(active, addresses + lanes.astype(addresses.dtype), addresses)
    space.offsets(frame, inst, last, 1)
    first = frame.full(space.offsets(frame, inst, addresses, 1))
    if frame.machine.watch is not None:
        frame.machine.watch.loads(frame, inst, replace(part, active=active & (count > 0)), first, 1)
    bytes_ = space.storage(frame.machine).data
    for i in range(size):
        here = active & (count > i)
        data[here, i] = bytes_[first[here] + i]
