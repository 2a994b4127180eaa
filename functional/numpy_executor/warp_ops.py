"""`isspacep.shared` and `setmaxnreg`."""

from __future__ import annotations

import numpy as np

from functional.isa.instructions import form_of
from functional.isa.memory import WINDOWS
from functional.isa.operation import as_number, refuse_if
from functional.isa.slots import Slots
from functional.numpy_executor.machine import Machine
from functional.numpy_executor.operands import Frame, Step, getter, setter
from functional.ptx.ir import Instruction


def own_shared_step(slots: Slots, inst: Instruction) -> Step:
    """`isspacep.shared`: of the shared memory of the own thread block of a cluster."""
    (type_,) = form_of(inst)[0].sources
    get, write = getter(slots, inst.sources[0], type_), setter(slots, inst.destinations[0], "pred")
    start, stop = (np.uint64(a) for a in WINDOWS["shared"])

    def step(frame: Frame) -> None:
        machine, address = frame.machine, get(frame)
        first = machine.clusters.first_address[machine.block_of_row[frame.index]][:, None]
        write(frame, (address >= start + first) & (address < stop + first))

    return step


_LEAST, _MOST, _UNIT = 24, 256, 8  # registers a thread


def check_register_counts(machine: Machine) -> None:
    """Raises ExecutionError if the warps of a thread block have taken more registers than there are.

    An `inc` waits until enough are free; which warp comes first changes no result, so nobody waits here. What could
    never be had is refused: at the end the warps of a block have no more than it was launched with, which is known of
    kernels that say so (`.maxnreg`). Source: PTX ISA, "setmaxnreg".
    """
    if not machine.launched_registers or machine.registers_changed is None:
        return
    taken = np.bincount(machine.block_of_row, machine.registers_held).astype(int)
    there = machine.launched_registers * machine.warps_per_block
    if int(taken.max()) > there:
        row = int(taken.argmax()) * machine.warps_per_block
        message = f"deadlock: warps of a block want {taken.max()} registers a lane, all together; it has {there}"
        raise machine.fault(machine.registers_changed, message, row)


def register_count_step(slots: Slots, inst: Instruction) -> Step:
    """`setmaxnreg.{inc,dec}.sync.aligned.u32 count`."""
    wanted, grows = inst.sources[0], inst.modifiers[:1] == ("inc",)
    refuse_if(inst.modifiers[1:] != ("sync", "aligned", "u32") or inst.modifiers[0] not in ("inc", "dec") or inst.guard)
    count = as_number(wanted)
    refuse_if(count % _UNIT or not _LEAST <= count <= _MOST)

    def step(frame: Frame) -> None:
        machine, rows = frame.machine, frame.index
        before = machine.registers_held[rows]
        wrong = (before > 0) & ((before > count) if grows else (before < count))
        say = f"registers a thread, to which {inst.modifiers[0]} does not fit"
        frame.check(inst, wrong[:, None], lambda at: f"the warp has {before[at[0]]} {say}")
        machine.registers_held[rows], machine.registers_changed = count, inst

    return step
