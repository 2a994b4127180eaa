"""`mbarrier`: barriers that live in shared memory, arrived at by threads one by one and waited for by asking.

The 64-bit object is opaque to a kernel. Here: bits 0-19 threads to arrive in a phase, 20-39 those still missing, 40 the
parity of the running phase, 41-63 bytes of copies that are still to come (signed). A phase ends when nothing is missing
and no bytes are to come. The state that `arrive` yields is the object before it.

`try_wait`: PTX lets an implementation suspend the thread, and give up after a while. Here a warp waits as long as any
other can run: what it would have asked in vain is not in the trace. If none can, the wait ends, with false."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from functional.isa.memory import PENDING_BITS
from functional.isa.operation import Unsupported, refuse_if
from functional.isa.slots import Slots
from functional.programs.program import BasicBlock
from functional.ptx.ir import CLUSTER_SHARED, Instruction, Register
from functional.steps.barriers import PHASE_BIT, access_records
from functional.steps.machine import Frame, Getter, Machine, Step, Terminator, getter, setter
from functional.steps.memory_ops import Lanes, Place, bank_passes_of, log_records
from functional.steps.stack import WAITING
from functional.traces.line_record import joined_records, line_records


def log_touched(frame: Frame, touched: dict[int, list[np.ndarray]], passes: np.ndarray) -> None:
    """Log the numbers of the sectors that an instruction touched, by row of the frame, what it did at barriers, and its
    passes of shared memory [row]."""
    phases, parts = frame.machine.phases.take(), []
    for row, sectors in touched.items():
        lines = np.zeros(0, np.uint32)
        if sectors:
            numbers = sectors[0] if len(sectors) == 1 else np.unique(np.concatenate(sectors))  # each ascends
            _, lines = line_records(numbers.astype(np.uint32)[None])
        made = np.concatenate([lines, access_records(phases.get(int(frame.index[row]), []), int(passes[row]))])
        parts.append((np.full(len(made), row), made))
    log_records(frame, joined_records(parts, frame.count), None)


Change = Callable[[int, int], tuple[int, object]]  # (object, operand) -> (object, result); -1: too many arrivals
MOST = (1 << PENDING_BITS) - 1
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
    """What an `mbarrier` instruction does to the objects that its lanes name."""

    given: Getter | None
    place: Place
    change: Change


def operation_of(slots: Slots, inst: Instruction) -> Test:
    """The operands of `mbarrier.{init,inval,arrive,arrive_drop,expect_tx,complete_tx,test_wait,try_wait}` and
    `cp.async.mbarrier.arrive[.noinc]`. Raises Unsupported."""
    change, operands = _change_of(inst), inst.sources[1:]
    refuse_if(len(operands) > 2)
    wide = "parity" not in inst.modifiers and not WAITS.isdisjoint(inst.modifiers)
    given = getter(slots, operands[0], "b64" if wide else "u32") if operands else None
    return Test(given, Place(slots, inst, inst.sources[0]), change)


def mbarrier_step(slots: Slots, inst: Instruction) -> Step:
    """The step of any of them but `try_wait`, which ends its block."""
    test, waits = operation_of(slots, inst), "test_wait" in inst.modifiers
    write = setter(slots, inst.destinations[0] if inst.destinations else None, "pred" if waits else "b64")

    def step(frame: Frame) -> None:
        parts = test.place.parts(frame)
        write(frame, update_barriers(parts, test.change, operand(frame, test), bool if waits else np.uint64))
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


def update_barriers(parts: list[Lanes], change: Change, values: np.ndarray, dtype: type = np.uint64) -> np.ndarray:
    """Change the barriers that active lanes name, one after the other, by an operand each; yields results."""
    result: np.ndarray = np.zeros(values.shape, dtype)
    for part in parts:
        frame, inst, phases = part.frame, part.inst, part.frame.machine.phases
        arrives = not _ARRIVALS.isdisjoint(inst.modifiers) and inst.opcode not in ("st", "red")
        at = frame.full(part.places("stores" if "init" in inst.modifiers else "updates", 8))
        words = part.words(8)
        for row, lane in np.argwhere(part.lanes).tolist():
            here = int(at[row, lane])
            before = int(words[here])
            word, result[row, lane] = change(before, int(values[row, lane]))
            if word < 0:
                raise frame.fault(inst, "more arrivals than expected", row, lane)
            words[here] = word
            if "init" in inst.modifiers:
                phases.begin(here)
            elif WAITS.isdisjoint(inst.modifiers):
                phases.change(here, before, word, int(frame.index[row]) if arrives else None)
            elif result[row, lane]:
                phases.wait(int(frame.index[row]), here)
    return result


def arrive(word: int, arrivals: int, dropped: int = 0, tx_bytes: int = 0) -> tuple[int, int]:
    """An object once so many have arrived, so many fewer are expected, and more bytes are to come; and before."""
    barrier = Barrier.of(word)
    missing, expected = barrier.missing - arrivals, barrier.expected - dropped
    if missing < 0:
        return -1, word
    return Barrier(expected, missing, barrier.phase, barrier.tx_bytes + tx_bytes).word(), word


def complete_tx(word: int, tx_bytes: int) -> tuple[int, int]:
    """What a copy does when its bytes are there."""
    return arrive(word, 0, tx_bytes=-tx_bytes)


WAITS = frozenset({"test_wait", "try_wait"})
# Arrivals, and copies that count their bytes at a barrier, by what their names hold
_ARRIVALS = frozenset({"arrive", "arrive_drop", "complete_tx", "mbarrier::complete_tx::bytes", "mbarrier::arrive::one"})
_EXTRA = {"arrive": {"noComplete"}, "arrive_drop": {"noComplete"}, "test_wait": {"parity"}, "try_wait": {"parity"}}
_CHANGES: dict[str, Change] = {
    "init": lambda word, count: ((count & MOST) * (1 | 1 << 20), 0), "inval": lambda word, _: (0, 0), "arrive": arrive,
    "arrive_drop": lambda word, count: arrive(word, count, count), "complete_tx": complete_tx,
    "expect_tx": lambda word, tx_bytes: arrive(word, 0, tx_bytes=tx_bytes),
    "arrive.expect_tx": lambda word, tx_bytes: arrive(word, 1, tx_bytes=tx_bytes),
    # Has the phase of the given state ended?
    "test_wait": lambda word, state: (word, (word ^ state) & _PHASE != 0),
    "try_wait": lambda word, state: (word, (word ^ state) & _PHASE != 0),
}  # fmt: skip


def _change_of(inst: Instruction) -> Change:
    named = [m for m in inst.modifiers if m in _CHANGES]
    operation = ".".join(named)
    refuse_if(operation not in _CHANGES)
    refuse_if(set(inst.modifiers) - _SCOPES - {*named, *_EXTRA.get(named[0], ()), "async", "mbarrier", "noinc"})
    if operation.startswith("arrive") and "async" in inst.modifiers and "noinc" not in inst.modifiers:
        return lambda word, _: (word, 0)  # one more is expected, and arrives
    if "parity" in inst.modifiers and operation in WAITS:
        return lambda word, parity: (word, bool(word & _PHASE) != bool(parity & 1))
    return _CHANGES[operation]


def is_wait(inst: Instruction) -> bool:
    """`mbarrier.try_wait`."""
    return inst.opcode == "mbarrier" and "try_wait" in inst.modifiers


@dataclass
class Waiting:
    """A warp at a wait: which threads wait for which object, in what state of it; what follows."""

    inst: Instruction
    change: Change
    lanes: dict[tuple[int, int], np.ndarray]  # place in the storage of shared memory, operand -> bool [lane]
    passes: int
    slot: int  # of the result
    after: int


def end_waits(machine: Machine, rows: Iterable[int] | None = None, give_up: bool = False) -> None:
    """Of `rows` (None: of all that wait) those go on whose phases are over; if none, with `give_up` all do."""
    seen = {row: _seen(machine, machine.held[row]) for row in (list(machine.held) if rows is None else rows)}
    over = [row for row, found in seen.items() if all(found.values())]
    if rows_on := over or (list(seen) if give_up else []):
        _go_on(machine, {row: seen[row] for row in rows_on})


def _go_on(machine: Machine, seen: dict[int, dict[tuple[int, int], bool]]) -> None:
    """Warps leave their waits with what their threads have seen."""
    rows, waits = np.array(list(seen)), [machine.held.pop(row) for row in seen]
    values, lanes = np.zeros((2, len(rows), 32), bool)
    for i, (row, found) in enumerate(seen.items()):
        for which, own in waits[i].lanes.items():
            lanes[i] |= own
            if found[which]:
                values[i] |= own
                machine.phases.wait(row, which[0])
    noted, slots = machine.phases.take(), np.array([waiting.slot for waiting in waits])
    for slot in np.unique(slots):
        here = slots == slot
        machine.write(int(slot), values[here], rows[here], lanes[here])
    for row, waiting in zip(seen, waits, strict=True):
        records = access_records(noted.get(row, []), waiting.passes)
        machine.records.append((np.full(len(records), row), records))
    machine.stack.resume(rows, np.array([waiting.after for waiting in waits]))


def _seen(machine: Machine, waiting: Waiting) -> dict[tuple[int, int], bool]:
    objects = machine.shared.words[8]
    return {(at, given): bool(waiting.change(int(objects[at]), given)[1]) for at, given in waiting.lanes}


def wait_end(slots: Slots, block: BasicBlock, inst: Instruction) -> Terminator:
    """Behind a block that ends with a `try_wait`."""
    test, after, result = operation_of(slots, inst), block.index + 1, inst.destinations[0]
    if not isinstance(result, Register) or result.type != "pred":
        raise Unsupported
    slot = slots.register(result)

    def step(frame: Frame) -> None:
        machine, lanes, given = frame.machine, frame.lanes(), operand(frame, test)
        for part in test.place.parts(frame, lanes):
            places, active = frame.full(part.places("updates", 8)), part.lanes
            if part.space.storage(machine) is not machine.shared:
                raise frame.fault(inst, "the barrier is not in shared memory")
            passes = np.broadcast_to(bank_passes_of(frame.full(part.addresses)), frame.count)
            for row in np.flatnonzero(active.any(axis=1)).tolist():
                own, at, of = active[row], places[row], given[row]
                pairs = sorted(set(zip(at[own].tolist(), of[own].tolist(), strict=True)))
                wanted = {pair: own & (at == pair[0]) & (of == pair[1]) for pair in pairs}
                _hold(machine, int(frame.index[row]), Waiting(inst, test.change, wanted, int(passes[row]), slot, after))
        idle = ~lanes.any(axis=1)
        machine.records.append((frame.index[idle], np.zeros(int(idle.sum()), np.uint32)))
        machine.stack.advance(frame.index[idle], after)
        end_waits(machine, frame.index[~idle].tolist())

    return step


def _hold(machine: Machine, row: int, waiting: Waiting) -> None:
    held = machine.held
    if row in held:  # its threads name objects in several windows
        held[row].lanes.update(waiting.lanes)
        held[row].passes += waiting.passes
        return
    held[row] = waiting
    machine.stack.block[row] = WAITING
