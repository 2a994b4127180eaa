"""`mbarrier`: barriers that live in shared memory, arrived at by threads one by one and waited for by asking.

The 64-bit object is opaque to a kernel. Here: bits 0-19 threads to arrive in a phase, 20-39 those still missing, 40 the
parity of the running phase, 41-63 bytes of copies that are still to come (signed). A phase ends when nothing is missing
and no bytes are to come. The state that `arrive` yields is the object before it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from functional.isa.operation import Operation, Unsupported, flags_of
from functional.numpy_executor.arrivals import PHASE_BIT
from functional.numpy_executor.frame import Frame
from functional.numpy_executor.memory_ops import address_getter, bank_passes_of, space_of, split
from functional.numpy_executor.operands import Getter, getter, guard_getter, setter
from functional.numpy_executor.slots import Slots
from functional.numpy_executor.spaces import Lanes
from functional.numpy_executor.touched import log_touched
from functional.ptx.ir import CLUSTER_SHARED, Address, Instruction

if TYPE_CHECKING:
    from functional.numpy_executor.chunk_state import Machine

Step = Callable[[Frame], None]
Change = Callable[[int, int], tuple[int, object]]  # (object, operand) -> (object, result); -1: too many arrivals
MOST = (1 << 20) - 1
_TX_BIT, _TX_BITS = 41, 23
_PHASE = 1 << PHASE_BIT
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
        return cls(word & MOST, word >> 20 & MOST, word >> PHASE_BIT & 1, tx)

    def word(self) -> int:
        """The object, in its next phase if this one has ended."""
        ended = not self.missing and not self.tx_bytes
        missing, phase = (self.expected, self.phase ^ 1) if ended else (self.missing, self.phase)
        tx = self.tx_bytes & ((1 << _TX_BITS) - 1)
        return self.expected | missing << 20 | phase << PHASE_BIT | tx << _TX_BIT


class Test(NamedTuple):
    """What an `mbarrier` instruction does to the objects that its lanes name: (guard, operand, space, addresses)."""

    guard: Getter | None
    given: Getter | None
    space: str
    where: Getter
    change: Change


def operation_of(slots: Slots, inst: Instruction) -> Test:
    """The operands of `mbarrier.{init,inval,arrive,arrive_drop,expect_tx,complete_tx,test_wait,try_wait}` and
    `cp.async.mbarrier.arrive[.noinc]`. Raises Unsupported."""
    operation = _operation_of(inst)
    address, operands = inst.sources[0], inst.sources[1:]
    if not isinstance(address, Address) or len(operands) > 2:
        raise Unsupported
    wide = "parity" not in inst.modifiers and not WAITS.isdisjoint(inst.modifiers)
    given = getter(slots, operands[0], "b64" if wide else "u32") if operands else None
    space = space_of(slots, inst, address)
    where = address_getter(slots, address, space)
    return Test(guard_getter(slots, inst.guard), given, space, where, _BUILDERS[operation](inst))


def mbarrier_step(slots: Slots, inst: Instruction) -> Step:
    """The step of any of them but `try_wait`, which ends its block (try_wait.py)."""
    test, waits = operation_of(slots, inst), "test_wait" in inst.modifiers
    destination = inst.destinations[0] if inst.destinations else None
    write = setter(slots, destination, "pred" if waits else "b64", test.guard is not None)

    def step(frame: Frame) -> None:
        lanes = None if test.guard is None else frame.set_guard(test.guard)
        parts = list(split(frame, inst, test.space, test.where(frame), lanes))
        write(
            frame, update_barriers(frame, inst, parts, test.change, operand(frame, test), bool if waits else np.uint64)
        )
        log_barriers(frame, parts)

    return step


def operand(frame: Frame, test: Test) -> np.ndarray:
    """The count, state, parity or bytes that each lane gives; 1 where none are given."""
    return frame.full(np.ones((1, 1), np.uint64) if test.given is None else test.given(frame))


def log_barriers(frame: Frame, parts: list[Lanes]) -> None:
    """Log an access to barriers: arrivals and waits, and its passes of shared memory."""
    passes, some = np.zeros(frame.count, np.int64), np.zeros(frame.count, bool)
    for part in parts:
        here = np.ones(frame.count, bool) if part.some is None else part.some
        passes += np.where(here, bank_passes_of(frame.full(part.addresses)), 0)
        some |= here
    log_touched(frame, {int(row): [] for row in np.flatnonzero(some)}, passes)


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
            here = int(at[row, lane])
            before = int(words[here])
            word, result[row, lane] = change(before, int(values[row, lane]))
            if word < 0:
                raise frame.machine.fault(inst, "more arrivals than expected", int(frame.index[row]), int(lane))
            follow(frame.machine, inst, int(frame.index[row]), here, before, word, bool(result[row, lane]))
            words[here] = word
    return result


def follow(
    machine: Machine, inst: Instruction, row: int, word: int, before: int, after: int, seen: bool
) -> None:  # fmt: skip
    """The trace is told what a thread of warp `row` did to the object at `word`; `seen`: that its phase is over."""
    if "init" in inst.modifiers:
        machine.phases.begin(word)
    elif not WAITS.isdisjoint(inst.modifiers):
        if seen:
            machine.phases.wait(row, word)
    elif _ARRIVALS.isdisjoint(inst.modifiers) or inst.opcode in ("st", "red"):
        machine.phases.change(word, before, after)
    else:
        machine.phases.arrive(row, word, before, after)


def _init(inst: Instruction) -> Change:
    return lambda word, count: ((count & MOST) * (1 | 1 << 20), 0)


def _inval(inst: Instruction) -> Change:
    return lambda word, _: (0, 0)


def _arrive(drop: bool) -> Callable[[Instruction], Change]:
    def build(inst: Instruction) -> Change:
        if "async" in inst.modifiers and "noinc" not in inst.modifiers:  # one more is expected, and arrives
            return lambda word, _: (word, 0)

        def run(word: int, count: int) -> tuple[int, int]:
            barrier = Barrier.of(word)
            missing = barrier.missing - count
            if missing < 0:
                return -1, word
            expected = barrier.expected - (count if drop else 0)
            return barrier._replace(missing=missing, expected=expected).word(), word

        return run

    return build


def _arrival(word: int, count: int) -> tuple[int, int]:
    barrier = Barrier.of(word)
    missing = barrier.missing - count
    return (-1, word) if missing < 0 else (barrier._replace(missing=missing).word(), word)


ARRIVE: Change = _arrival  # what products do when they are complete


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


WAITS = frozenset({"test_wait", "try_wait"})
# Arrivals, and copies that count their bytes at a barrier, by what their names hold
_ARRIVALS = frozenset({"arrive", "arrive_drop", "complete_tx", "mbarrier::complete_tx::bytes", "mbarrier::arrive::one"})
_EXTRA = {"arrive": {"noComplete"}, "arrive_drop": {"noComplete"}, "test_wait": {"parity"}, "try_wait": {"parity"}}
_BUILDERS: dict[str, Callable[[Instruction], Change]] = {
    "init": _init, "inval": _inval, "arrive": _arrive(False), "arrive_drop": _arrive(True), "test_wait": _wait,
    "try_wait": _wait, "expect_tx": _transfer(1, False), "complete_tx": lambda inst: _complete_tx,
    "arrive.expect_tx": _transfer(1, True),
}  # fmt: skip


def _pending_count(inst: Instruction) -> Operation:
    flags_of(inst, {"pending_count"})
    return Operation(lambda e, s: e.cast("trunc", e.op("and", e.op("lshr", s, 20), MOST), "i32"), ("u32",), ("b64",))


TABLE = {"mbarrier": _pending_count}
