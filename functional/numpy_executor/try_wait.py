"""`mbarrier.try_wait`: a warp is held until the phase that each of its threads waits for is over.

PTX lets an implementation suspend the thread, and give up after a while. Here a warp waits as long as any other can
run: what it would have asked in vain is not in the trace. If none can, the wait ends, with false.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from functional.isa.operation import Unsupported
from functional.numpy_executor.calls import executing
from functional.numpy_executor.frame import Frame, pack, unpack
from functional.numpy_executor.mbarrier import Change, follow, operand, operation_of
from functional.numpy_executor.memory_ops import bank_passes_of, split
from functional.numpy_executor.slots import Slots
from functional.numpy_executor.stack import WAITING
from functional.numpy_executor.touched import wait_records
from functional.programs.program import BasicBlock
from functional.ptx.ir import Instruction, Register

if TYPE_CHECKING:
    from functional.numpy_executor.chunk_state import Machine

Terminator = Callable[[Frame], None]


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


class Waits:
    """Warps of a chunk that wait, by row."""

    def __init__(self) -> None:
        self.held: dict[int, Waiting] = {}

    def end(self, machine: Machine, rows: Iterable[int] | None = None, give_up: bool = False) -> None:
        """Of `rows` (None: of all) those go on whose phases are over; if there is none, and with `give_up`, all do."""
        seen = {row: _seen(machine, self.held[row]) for row in (list(self.held) if rows is None else rows)}
        over = [row for row, found in seen.items() if all(found.values())]
        for row in over or (list(seen) if give_up else []):
            self._go_on(machine, row, seen[row])

    def _go_on(self, machine: Machine, row: int, seen: dict[tuple[int, int], bool]) -> None:
        waiting = self.held.pop(row)
        value = np.zeros((1, 32), bool)
        for (word, given), lanes in waiting.lanes.items():
            value[0] |= lanes & seen[word, given]
            follow(machine, waiting.inst, row, word, 0, 0, seen[word, given])
        rows, lanes = np.array([row]), np.logical_or.reduce(list(waiting.lanes.values()))[None]
        machine.write(waiting.slot, value, rows, lanes)
        records = wait_records(machine.phases.take().get(row, []), waiting.passes)
        machine.log.records(np.full(len(records), row), records)
        machine.stack.resume(rows, np.array([waiting.after]))


def _seen(machine: Machine, waiting: Waiting) -> dict[tuple[int, int], bool]:
    """What those that wait for an object see now."""
    objects = machine.shared.words[8]
    return {(at, given): bool(waiting.change(int(objects[at]), given)[1]) for at, given in waiting.lanes}


def wait_end(slots: Slots, block: BasicBlock, inst: Instruction) -> Terminator:
    """Behind a block that ends with a `try_wait`."""
    test, after, result = operation_of(slots, inst), block.index + 1, inst.destinations[0]
    if not isinstance(result, Register) or result.type != "pred":
        raise Unsupported
    slot = slots.register(result)

    def step(frame: Frame) -> None:
        machine, lanes = frame.machine, unpack(executing(frame, test.guard))
        given = operand(frame, test)
        for part in split(frame, inst, test.space, test.where(frame), lanes):
            offsets = frame.full(part.space.offsets(frame, inst, part.addresses, 8))
            if machine.watch is not None:
                machine.watch.updates(frame, inst, part, offsets, 8)
            if part.space.storage(machine) is not machine.shared:
                raise machine.fault(inst, "the barrier is not in shared memory", int(frame.index[0]))
            active = np.ones(offsets.shape, bool) if part.active is None else part.active
            passes = np.broadcast_to(bank_passes_of(frame.full(part.addresses)), frame.count)
            for row in np.flatnonzero(active.any(axis=1)).tolist():
                wanted: dict[tuple[int, int], np.ndarray] = {}
                for lane in np.flatnonzero(active[row]).tolist():
                    at = (int(offsets[row, lane]) >> 3, int(given[row, lane]))
                    wanted.setdefault(at, np.zeros(32, bool))[lane] = True
                _hold(machine, int(frame.index[row]), Waiting(inst, test.change, wanted, int(passes[row]), slot, after))
        idle = pack(lanes, frame.count) == 0
        machine.log.records(frame.index[idle], np.zeros(int(idle.sum()), np.uint32))
        machine.stack.advance(frame.index[idle], after)
        machine.waits.end(machine, frame.index[~idle].tolist())

    return step


def _hold(machine: Machine, row: int, waiting: Waiting) -> None:
    held = machine.waits.held
    if row in held:  # its threads name objects in several windows
        held[row].lanes.update(waiting.lanes)
        held[row].passes += waiting.passes
        return
    held[row] = waiting
    machine.stack.block[row] = WAITING
