"""`mapa getctarank isspacep` of clusters, and `setmaxnreg`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from functional.isa.emitter import Emitter, Value
from functional.isa.memory import RANK_BYTES, SHARED_WINDOW, WINDOWS
from functional.isa.operation import Builder, Operation, Unsupported, flags_of, only_type
from functional.isa.slots import Slots
from functional.numpy_executor.machine import Machine
from functional.numpy_executor.operands import Frame, Step
from functional.ptx.ir import CLUSTER_SHARED, Immediate, Instruction

LaneFunction = Callable[..., object]  # of a frame and the sources, arrays that broadcast to [warp, 32]


def _isspacep(inst: Instruction) -> LaneFunction | None:
    """Of the shared memory of the own thread block of a cluster; other spaces need no frame."""
    if "shared" not in inst.modifiers:
        return None
    start, stop = (np.uint64(a) for a in WINDOWS["shared"])

    def function(frame: Frame, a: np.ndarray) -> np.ndarray:
        machine = frame.machine
        first = machine.clusters.first_address[machine.block_of_row[frame.index]][:, None]
        return (a >= start + first) & (a < stop + first)

    return function


def _mapa(inst: Instruction) -> Operation:
    """`mapa[.shared::cluster]`: the address that a variable of the own thread block has in another one of the cluster.

    A generic address may also be of memory that is not shared: it stays as it is."""
    flags, type_ = flags_of(inst, {CLUSTER_SHARED}), only_type(inst, ("u32", "u64"))
    start, stop = (a - SHARED_WINDOW * bool(flags) for a in WINDOWS[CLUSTER_SHARED])

    def emit(e: Emitter, address: Value, rank: Value) -> Value:
        offset = e.op("sub", address, start)
        moved = e.op(
            "or", e.op("and", offset, RANK_BYTES - 1), e.op("mul", e.resize(rank, address.kind, False), RANK_BYTES)
        )
        return e.select(e.compare("ult", offset, stop - start), e.op("add", moved, start), address)

    return Operation(emit, (type_,), (type_, "u32"))


def _getctarank(inst: Instruction) -> Operation:
    """The rank of the thread block whose shared memory an address is in."""
    flags, type_ = flags_of(inst, {CLUSTER_SHARED}), only_type(inst, ("u32", "u64"))
    shift, first = RANK_BYTES.bit_length() - 1, 0 if flags else SHARED_WINDOW

    def emit(e: Emitter, a: Value) -> Value:
        return e.cast("trunc", e.op("ashr", e.op("sub", e.resize(a, "i64", False), first), shift), "i32")

    return Operation(emit, ("u32",), (type_,))


LANE_FUNCTIONS: dict[str, Callable[[Instruction], LaneFunction | None]] = {"isspacep": _isspacep}
TABLE: dict[str, Builder] = {"mapa": _mapa, "getctarank": _getctarank}


_LEAST, _MOST, _UNIT = 24, 256, 8  # registers a thread


def check_register_counts(machine: Machine) -> None:
    """Raises ExecutionError if the warps of a thread block have taken more registers than there are.

    An `inc` waits until enough are free; which warp comes first changes no result, so nobody waits here. What could
    never be had is refused: at the end the warps of a block have no more than it was launched with, which is known of
    kernels that say so (`.maxnreg`). Source: PTX ISA, "setmaxnreg".
    """
    counts = machine.register_counts
    if not counts.launched or counts.last is None:
        return
    taken = np.bincount(machine.block_of_row, counts.now).astype(int)
    there = counts.launched * machine.warps_per_block
    if int(taken.max()) > there:
        row = int(taken.argmax()) * machine.warps_per_block
        message = f"deadlock: warps of a block want {taken.max()} registers a lane, all together; it has {there}"
        raise machine.fault(counts.last, message, row)


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
        say = f"registers a thread, to which {inst.modifiers[0]} does not fit"
        frame.check(inst, wrong[:, None], lambda at: f"the warp has {before[at[0]]} {say}")
        counts.now[rows], counts.last = count, inst

    return step
