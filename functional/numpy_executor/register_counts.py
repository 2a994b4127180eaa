"""`setmaxnreg`: a warp gives up registers that its thread block was launched with, or takes what others have given up.

An `inc` waits until enough are free; which warp comes first changes no result, so nobody waits here. What could never
be had is refused: at the end the warps of a block have no more than it was launched with, which is known of kernels
that say so (`.maxnreg`). Source: PTX ISA, "setmaxnreg".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from functional.isa.operation import Unsupported
from functional.ptx.ir import Immediate, Instruction

if TYPE_CHECKING:
    from functional.numpy_executor.chunk_state import Machine
    from functional.numpy_executor.frame import Frame
    from functional.numpy_executor.slots import Slots

Step = Callable[["Frame"], None]
_LEAST, _MOST, _UNIT = 24, 256, 8


class RegisterCounts:
    """Registers a thread of each warp of a chunk; `launched`: with how many each begins, 0 if that is not known."""

    def __init__(self, launched: int, warps: int) -> None:
        self.launched = launched
        self.now = np.full(warps, launched)
        self.last: Instruction | None = None

    def check(self, machine: Machine) -> None:
        """Raises ExecutionError if the warps of a thread block have taken more than there are."""
        if not self.launched or self.last is None:
            return
        taken = np.bincount(machine.block_of_row, self.now).astype(int)
        there = self.launched * machine.warps_per_block
        if int(taken.max()) > there:
            row = int(taken.argmax()) * machine.warps_per_block
            message = f"deadlock: warps of a block want {taken.max()} registers a lane, all together; it has {there}"
            raise machine.fault(self.last, message, row)


def register_count_step(slots: Slots, inst: Instruction) -> Step:
    """`setmaxnreg.{inc,dec}.sync.aligned.u32 count`."""
    wanted, grows = inst.sources[0], inst.modifiers[:1] == ("inc",)
    if inst.modifiers[1:] != ("sync", "aligned", "u32") or inst.modifiers[0] not in ("inc", "dec") or inst.guard:
        raise Unsupported
    if not isinstance(wanted, Immediate) or wanted.value % _UNIT or not _LEAST <= wanted.value <= _MOST:
        raise Unsupported
    count = int(wanted.value)

    def step(frame: Frame) -> None:
        counts, rows = frame.machine.register_counts, frame.index
        before = counts.now[rows]
        wrong = (before > 0) & ((before > count) if grows else (before < count))
        if wrong.any():
            row = int(rows[int(np.argmax(wrong))])
            message = f"the warp has {counts.now[row]} registers a thread, to which {inst.modifiers[0]} does not fit"
            raise frame.machine.fault(inst, message, row)
        counts.now[rows], counts.last = count, inst

    return step
