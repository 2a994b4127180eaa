"""`tensormap.replace`: a thread changes a field of a tensor map (functional.launches.tensor_map), and
`tensormap.cp_fenceproxy`: a warp copies a whole one from shared to global memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from functional.isa.operation import Unsupported
from functional.launches.tensor_map import AXIS_FIELDS, BYTES, FIELDS, MAGIC
from functional.numpy_executor.memory_ops import address_getter, record, space_of, split
from functional.numpy_executor.operands import getter, guard_getter
from functional.ptx.ir import Address, Immediate, Instruction

if TYPE_CHECKING:
    from functional.numpy_executor.frame import Frame
    from functional.numpy_executor.slots import Slots

Step = Callable[["Frame"], None]
_WORD_BYTES = 8
_COPY = ("cp_fenceproxy", "global", "shared", "tensormap::generic", "release")


def tensor_map_step(slots: Slots, inst: Instruction) -> Step:
    """The step of a `tensormap.*`."""
    return _copy_step(slots, inst) if inst.modifiers[0] == "cp_fenceproxy" else _replace_step(slots, inst)


def _replace_step(slots: Slots, inst: Instruction) -> Step:
    """`tensormap.replace.tile.FIELD[.space].b1024.{b32,b64} [map], [axis,] value`; the rank is given less 1."""
    field, rest = inst.modifiers[2], [m for m in inst.modifiers[3:] if m not in ("global", "shared")]
    if inst.modifiers[:2] != ("replace", "tile") or field not in FIELDS or rest[:1] != ["b1024"] or len(rest) != 2:
        raise Unsupported
    start, size = FIELDS[field]
    address, *axis, value = inst.sources
    if not isinstance(address, Address) or len(axis) != (field in AXIS_FIELDS):
        raise Unsupported
    for which in axis:
        if not isinstance(which, Immediate) or not 0 <= which.value < (4 if field == "global_stride" else 5):
            raise Unsupported
        start += size * int(which.value)
    space, guard = space_of(slots, inst, address), guard_getter(slots, inst.guard)
    where, given = address_getter(slots, address, space), getter(slots, value, rest[1])
    more = np.uint64(field == "rank")

    def step(frame: Frame) -> None:
        lanes = None if guard is None else frame.set_guard(guard)
        parts = list(split(frame, inst, space, where(frame), lanes))
        for part in parts:
            base = frame.full(part.space.offsets(frame, inst, part.addresses, BYTES // 2))
            part.space.offsets(frame, inst, part.addresses + part.addresses.dtype.type(BYTES // 2), BYTES // 2)
            chosen = ... if part.active is None else part.active
            data = (frame.full(given(frame)).astype(np.uint64) + more)[chosen].reshape(-1, 1).view(np.uint8)
            at = base[chosen].reshape(-1, 1) + start + np.arange(size)
            if frame.machine.watch is not None:
                frame.machine.watch.stores(frame, inst, part, base + start, size)
            part.space.storage(frame.machine).data[at] = data[:, :size]
            marked = base[chosen].reshape(-1, 1) + np.arange(len(MAGIC))  # kernels make maps out of zeros, too
            part.space.storage(frame.machine).data[marked] = np.frombuffer(MAGIC, np.uint8)
        record(frame, space == "shared", _WORD_BYTES, parts)

    return step


def _copy_step(slots: Slots, inst: Instruction) -> Step:
    """`tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.SCOPE.sync.aligned [to], [from], 128`."""
    to, source, size = inst.sources
    if inst.modifiers[:5] != _COPY or not isinstance(size, Immediate) or size.value != BYTES:
        raise Unsupported
    if not isinstance(to, Address) or not isinstance(source, Address):
        raise Unsupported
    into, from_ = address_getter(slots, to, "global"), address_getter(slots, source, "shared")
    guard = guard_getter(slots, inst.guard)

    def step(frame: Frame) -> None:
        lanes = None if guard is None else frame.set_guard(guard)
        parts = [list(split(frame, inst, s, w(frame), lanes)) for s, w in (("shared", from_), ("global", into))]
        for read, written in zip(*parts, strict=True):
            for half in (0, BYTES // 2):
                at = [
                    frame.full(p.space.offsets(frame, inst, p.addresses + p.addresses.dtype.type(half), BYTES // 2))
                    for p in (read, written)
                ]
                chosen = ... if read.active is None else read.active
                data = read.space.storage(frame.machine).data[at[0][chosen][..., None] + np.arange(BYTES // 2)]
                written.space.storage(frame.machine).data[at[1][chosen][..., None] + np.arange(BYTES // 2)] = data
        record(frame, False, BYTES, parts[1])

    return step
