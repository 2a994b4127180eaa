"""One basic block on the warps that are about to run it together.

Inside a block, values live in `values`, one array a register slot that broadcasts to [row, 32]: (1, 1) where all
threads agree, (row, 1) where those of a warp do. Lanes that are not active compute garbage nobody sees: only at the
end of the block are the registers that live on blended into the machine state under the lane mask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from functional.numpy_executor.machine import Machine
from functional.numpy_executor.stack import FULL, unpack

Step = Callable[["Frame"], None]  # an instruction
Terminator = Callable[["Frame"], None]  # what ends a basic block, and says where its warps go


class Frame:
    """Warps `rows` of a machine (None: all of them), `bits` their active lanes, in one basic block."""

    __slots__ = ("bits", "count", "guard", "index", "machine", "mask", "rows", "values")

    def __init__(self, machine: Machine, rows: np.ndarray | None, slots: int) -> None:
        self.machine = machine
        self.rows = rows
        self.index = machine.all_rows if rows is None else rows
        self.count = len(self.index)
        self.bits = machine.stack.mask.copy() if rows is None else machine.stack.mask[rows]
        self.mask = None if (self.bits == FULL).all() else unpack(self.bits)  # bool [row, 32]; None: all lanes
        self.values: list = [None] * slots
        self.guard: np.ndarray | None = None  # of the running instruction

    def load(self, slots: Iterable[int]) -> None:
        """Fetch registers from the machine state."""
        registers, rows, values = self.machine.registers, self.rows, self.values
        for slot in slots:
            value = registers[slot]
            values[slot] = value if rows is None or value.shape[0] == 1 else value.take(rows, axis=0)

    def store(self, slots: Iterable[int]) -> None:
        """Write registers that live on back to the machine state, active lanes only."""
        for slot in slots:
            self.machine.write(slot, self.values[slot], self.rows, self.mask)

    def active(self, guard: np.ndarray | None) -> np.ndarray | None:
        """Lanes that execute an instruction: mask and guard, bool [row, 32]; None if all do."""
        if guard is None:
            return self.mask
        if self.mask is not None:
            return guard & self.mask
        return np.broadcast_to(guard, (self.count, 32))

    def full(self, value: np.ndarray) -> np.ndarray:
        """A value spread over all rows and lanes."""
        return value if value.shape == (self.count, 32) else np.broadcast_to(value, (self.count, 32))

    def set_guard(self, guard: Callable[[Frame], np.ndarray]) -> np.ndarray:
        """Begin a guarded instruction; it is a thread instruction for each active lane with a true guard."""
        self.guard = lanes = guard(self)
        active = np.asarray(self.active(lanes))
        self.machine.guarded[self.index] += active.sum(axis=1)
        self.machine.log.lanes(self.index, active)
        return lanes
