"""`mbarrier`: barriers that live in shared memory, arrived at by threads one by one and waited for by asking.

The 64-bit object is opaque to a kernel. Here: bits 0-19 threads to arrive in a phase, 20-39 those still missing, 40 the
parity of the running phase. The state that `arrive` yields is the object before it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from functional.ir import Address, Instruction
from functional.numpy_executor.frame import Frame
from functional.numpy_executor.memory_ops import address_getter, record, split
from functional.numpy_executor.operands import getter, guard_getter, setter
from functional.numpy_executor.operation import Operation, Unsupported, flags_of
from functional.numpy_executor.slots import Slots

Step = Callable[[Frame], None]
MOST = (1 << 20) - 1
_PHASE = 1 << 40
_SCOPES = {"b64", "shared", "cta", "release", "acquire", "relaxed"}


def mbarrier_step(slots: Slots, inst: Instruction) -> Step:
    """`mbarrier.{init,inval,arrive,arrive_drop,test_wait,try_wait}` and `cp.async.mbarrier.arrive.noinc`."""
    operation = next((m for m in inst.modifiers if m in _BUILDERS), "")
    allowed = _SCOPES | {operation, *_EXTRA.get(operation, ()), "async", "mbarrier", "noinc"}
    if not operation or set(inst.modifiers) - allowed:
        raise Unsupported
    address, operands = inst.sources[0], inst.sources[1:]
    if not isinstance(address, Address) or len(operands) > 2:
        raise Unsupported
    space, guard = inst.space, guard_getter(slots, inst.guard)
    where, run = address_getter(slots, address, space), _BUILDERS[operation](inst)
    wide = operation in ("test_wait", "try_wait") and "parity" not in inst.modifiers
    second = getter(slots, operands[0], "b64" if wide else "u32") if operands else None
    destination = inst.destinations[0] if inst.destinations else None
    write = setter(slots, destination, "pred" if operation in ("test_wait", "try_wait") else "b64", guard is not None)
    dtype = np.dtype(bool) if operation in ("test_wait", "try_wait") else np.dtype(np.uint64)

    def step(frame: Frame) -> None:
        lanes = None if guard is None else frame.set_guard(guard)
        result = np.zeros((frame.count, 32), dtype)
        given = np.ones((1, 1), np.uint64) if second is None else second(frame)
        parts = list(split(frame, inst, space, where(frame), lanes))
        for part in parts:
            offsets = part.space.offsets(frame, inst, part.addresses, 8)
            if frame.machine.watch is not None:
                look = frame.machine.watch.stores if operation == "init" else frame.machine.watch.updates
                look(frame, inst, part, offsets, 8)
            at = frame.full(offsets) >> 3
            words = part.space.storage(frame.machine).words[8]
            active = np.ones(at.shape, bool) if part.active is None else part.active
            values = frame.full(given)
            for row, lane in zip(*np.nonzero(active), strict=True):
                here = at[row, lane]
                word, result[row, lane] = run(int(words[here]), int(values[row, lane]))
                if word < 0:
                    raise frame.machine.fault(inst, "more arrivals than expected", int(frame.index[row]), int(lane))
                words[here] = word
        write(frame, result)
        record(frame, space == "shared", 8, parts)

    return step


def _init(inst: Instruction) -> Callable:
    return lambda word, count: ((count & MOST) * (1 | 1 << 20), 0)


def _inval(inst: Instruction) -> Callable:
    return lambda word, _: (0, 0)


def _arrive(drop: bool) -> Callable[[Instruction], Callable]:
    def build(inst: Instruction) -> Callable:
        def run(word: int, count: int) -> tuple[int, int]:
            expected, missing, phase = word & MOST, word >> 20 & MOST, word & _PHASE
            missing -= count
            expected -= count if drop else 0
            if missing < 0:
                return -1, word
            if missing == 0:
                missing, phase = expected, phase ^ _PHASE
            return expected | missing << 20 | phase, word

        return run

    return build


def _wait(inst: Instruction) -> Callable:
    """Has the phase of the given state, or of the given parity, ended?"""
    if "parity" in inst.modifiers:
        return lambda word, parity: (word, bool(word & _PHASE) != bool(parity & 1))
    return lambda word, state: (word, (word ^ state) & _PHASE != 0)


_EXTRA = {"arrive": {"noComplete"}, "arrive_drop": {"noComplete"}, "test_wait": {"parity"}, "try_wait": {"parity"}}
_BUILDERS: dict[str, Callable[[Instruction], Callable]] = {
    "init": _init, "inval": _inval, "arrive": _arrive(False), "arrive_drop": _arrive(True), "test_wait": _wait,
    "try_wait": _wait,
}  # fmt: skip


def _pending_count(inst: Instruction) -> Operation:
    flags_of(inst, {"pending_count"})
    return Operation(lambda state: ((state >> np.uint64(20)) & np.uint64(MOST)).astype(np.uint32), ("u32",), ("b64",))


TABLE = {"mbarrier": _pending_count}
