"""`mbarrier`: barriers that live in shared memory, arrived at by threads one by one and waited for by asking.

The 64-bit object is opaque to a kernel. Here: bits 0-19 threads to arrive in a phase, 20-39 those still missing, 40 the
parity of the running phase, 41-63 bytes of copies that are still to come (signed). A phase ends when nothing is missing
and no bytes are to come. The state that `arrive` yields is the object before it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from functional.ir import CLUSTER_SHARED, Address, Instruction
from functional.numpy_executor.frame import Frame
from functional.numpy_executor.memory_ops import address_getter, record, space_of, split
from functional.numpy_executor.operands import getter, guard_getter, setter
from functional.numpy_executor.operation import Operation, Unsupported, flags_of
from functional.numpy_executor.slots import Slots
from functional.numpy_executor.spaces import SHARED, Lanes

Step = Callable[[Frame], None]
Change = Callable[[int, int], tuple[int, object]]  # (object, operand) -> (object, result); -1: too many arrivals
MOST = (1 << 20) - 1
_PHASE_BIT, _TX_BIT, _TX_BITS = 40, 41, 23
_PHASE = 1 << _PHASE_BIT
_SCOPES = {"b64", "shared", CLUSTER_SHARED, "cta", "cluster", "release", "acquire", "relaxed"}


class Barrier(NamedTuple):
    """An object taken apart."""

    expected: int
    missing: int
    phase: int
    tx_bytes: int

    @classmethod
    def of(cls, word: int) -> Barrier:
        """The barrier of a 64-bit object."""
        tx = word >> _TX_BIT
        tx -= (tx >> (_TX_BITS - 1)) << _TX_BITS
        return cls(word & MOST, word >> 20 & MOST, word >> _PHASE_BIT & 1, tx)

    def word(self) -> int:
        """The object, in its next phase if this one has ended."""
        ended = not self.missing and not self.tx_bytes
        missing, phase = (self.expected, self.phase ^ 1) if ended else (self.missing, self.phase)
        tx = self.tx_bytes & ((1 << _TX_BITS) - 1)
        return self.expected | missing << 20 | phase << _PHASE_BIT | tx << _TX_BIT


def mbarrier_step(slots: Slots, inst: Instruction) -> Step:
    """`mbarrier.{init,inval,arrive,arrive_drop,expect_tx,complete_tx,test_wait,try_wait}` and
    `cp.async.mbarrier.arrive.noinc`."""
    operation = _operation_of(inst)
    address, operands = inst.sources[0], inst.sources[1:]
    if not isinstance(address, Address) or len(operands) > 2:
        raise Unsupported
    guard, waits = guard_getter(slots, inst.guard), operation in ("test_wait", "try_wait")
    wide = waits and "parity" not in inst.modifiers
    second = getter(slots, operands[0], "b64" if wide else "u32") if operands else None
    destination = inst.destinations[0] if inst.destinations else None
    write = setter(slots, destination, "pred" if waits else "b64", guard is not None)
    space, change = space_of(slots, inst, address), _BUILDERS[operation](inst)
    where, dtype = address_getter(slots, address, space), bool if waits else np.uint64

    def step(frame: Frame) -> None:
        lanes = None if guard is None else frame.set_guard(guard)
        given = np.ones((1, 1), np.uint64) if second is None else second(frame)
        parts = list(split(frame, inst, space, where(frame), lanes))
        write(frame, update_barriers(frame, inst, parts, change, frame.full(given), dtype))
        record(frame, space in SHARED, 8, parts)

    return step


def _operation_of(inst: Instruction) -> str:
    """The key of `_BUILDERS`. Raises Unsupported."""
    named = [m for m in inst.modifiers if m in _BUILDERS]
    operation = ".".join(named)
    if operation not in _BUILDERS:
        raise Unsupported
    allowed = _SCOPES | {*named, *_EXTRA.get(named[0], ()), "async", "mbarrier", "noinc"}
    if set(inst.modifiers) - allowed:
        raise Unsupported
    return operation


def update_barriers(
    frame: Frame, inst: Instruction, parts: list[Lanes], change: Change, values: np.ndarray, dtype: type = np.uint64
) -> np.ndarray:
    """Change the barriers that active lanes name, one after the other, by an operand each; yields results."""
    result: np.ndarray = np.zeros((frame.count, 32), dtype)
    for part in parts:
        offsets = part.space.offsets(frame, inst, part.addresses, 8)
        if frame.machine.watch is not None:
            look = frame.machine.watch.stores if "init" in inst.modifiers else frame.machine.watch.updates
            look(frame, inst, part, offsets, 8)
        at = frame.full(offsets) >> 3
        words = part.space.storage(frame.machine).words[8]
        active = np.ones(at.shape, bool) if part.active is None else part.active
        for row, lane in zip(*np.nonzero(active), strict=True):
            here = at[row, lane]
            word, result[row, lane] = change(int(words[here]), int(values[row, lane]))
            if word < 0:
                raise frame.machine.fault(inst, "more arrivals than expected", int(frame.index[row]), int(lane))
            words[here] = word
    return result


def _init(inst: Instruction) -> Change:
    return lambda word, count: ((count & MOST) * (1 | 1 << 20), 0)


def _inval(inst: Instruction) -> Change:
    return lambda word, _: (0, 0)


def _arrive(drop: bool) -> Callable[[Instruction], Change]:
    def build(inst: Instruction) -> Change:
        def run(word: int, count: int) -> tuple[int, int]:
            barrier = Barrier.of(word)
            missing = barrier.missing - count
            if missing < 0:
                return -1, word
            expected = barrier.expected - (count if drop else 0)
            return barrier._replace(missing=missing, expected=expected).word(), word

        return run

    return build


def _transfer(sign: int, arrives: bool) -> Callable[[Instruction], Change]:
    """`expect_tx`, `complete_tx`, and an arrival that expects bytes."""

    def build(inst: Instruction) -> Change:
        def run(word: int, tx_bytes: int) -> tuple[int, int]:
            barrier = Barrier.of(word)
            missing = barrier.missing - arrives
            if missing < 0:
                return -1, word
            return barrier._replace(missing=missing, tx_bytes=barrier.tx_bytes + sign * tx_bytes).word(), word

        return run

    return build


def _complete_tx(word: int, tx_bytes: int) -> tuple[int, int]:
    barrier = Barrier.of(word)
    return barrier._replace(tx_bytes=barrier.tx_bytes - tx_bytes).word(), 0


COMPLETE_TX: Change = _complete_tx  # what a copy does when its bytes are there


def _wait(inst: Instruction) -> Change:
    """Has the phase of the given state, or of the given parity, ended?"""
    if "parity" in inst.modifiers:
        return lambda word, parity: (word, bool(word & _PHASE) != bool(parity & 1))
    return lambda word, state: (word, (word ^ state) & _PHASE != 0)


_EXTRA = {"arrive": {"noComplete"}, "arrive_drop": {"noComplete"}, "test_wait": {"parity"}, "try_wait": {"parity"}}
_BUILDERS: dict[str, Callable[[Instruction], Change]] = {
    "init": _init, "inval": _inval, "arrive": _arrive(False), "arrive_drop": _arrive(True), "test_wait": _wait,
    "try_wait": _wait, "expect_tx": _transfer(1, False), "complete_tx": lambda inst: _complete_tx,
    "arrive.expect_tx": _transfer(1, True),
}  # fmt: skip


def _pending_count(inst: Instruction) -> Operation:
    flags_of(inst, {"pending_count"})
    return Operation(lambda state: ((state >> np.uint64(20)) & np.uint64(MOST)).astype(np.uint32), ("u32",), ("b64",))


TABLE = {"mbarrier": _pending_count}
