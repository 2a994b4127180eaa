"""What ends a basic block: branches, calls, returns, barriers, traps."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from functional.isa.instructions import ENDS
from functional.isa.operation import Unsupported
from functional.numpy_executor.calls import call, executing, leave
from functional.numpy_executor.frame import Frame, pack
from functional.numpy_executor.operands import Getter, getter, guard_getter
from functional.numpy_executor.slots import Slots
from functional.numpy_executor.stack import NOWHERE
from functional.programs.program import BasicBlock
from functional.ptx.ir import TYPE_BYTES, Instruction, Register

Terminator = Callable[[Frame], None]


def terminator(slots: Slots, block: BasicBlock) -> Terminator | None:
    """The terminator of a block; None if its last instruction is an ordinary one."""
    inst = slots.program.instructions[block.stop - 1]
    if inst.opcode not in ENDS:
        return None
    if inst.opcode in ("ret", "exit", "trap") and (inst.sources or inst.destinations):
        raise Unsupported
    return _BUILDERS[inst.opcode](slots, block, inst)


def fall_through(block: BasicBlock) -> Terminator:
    """Go on with the next block."""
    after = block.index + 1
    return lambda frame: frame.machine.stack.advance(frame.rows, after)


def _meeting(block: BasicBlock) -> int:
    return NOWHERE if block.reconvergence is None else block.reconvergence


def _bra(slots: Slots, block: BasicBlock, inst: Instruction) -> Terminator:
    if inst.target is None or set(inst.modifiers) - {"uni"}:
        raise Unsupported
    target, after, meeting = slots.program.block_of(inst.target), block.index + 1, _meeting(block)
    guard = guard_getter(slots, inst.guard)
    if guard is None:
        return lambda frame: frame.machine.stack.advance(frame.rows, target)

    def step(frame: Frame) -> None:
        taken, stack = executing(frame, guard), frame.machine.stack
        if not taken.any():
            stack.advance(frame.rows, after)
        elif (taken == frame.bits).all():
            stack.advance(frame.rows, target)
        else:
            stack.branch(frame.index, [(target, taken), (after, frame.bits & ~taken)], meeting)

    return step


def _brx(slots: Slots, block: BasicBlock, inst: Instruction) -> Terminator:
    if "idx" not in inst.modifiers or set(inst.modifiers) - {"idx", "uni"}:
        raise Unsupported
    index, guard = getter(slots, inst.sources[0], "u32"), guard_getter(slots, inst.guard)
    targets = np.array([slots.program.block_of(t) for t in inst.targets])
    meeting, after = _meeting(block), block.index + 1

    def step(frame: Frame) -> None:
        jumping = executing(frame, guard)
        chosen = frame.full(index(frame))
        wrong = pack(chosen >= len(targets), frame.count) & jumping
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            lane = int(wrong[row] & -wrong[row]).bit_length() - 1
            message = f"branch index {chosen[row, lane]} is not below {len(targets)}"
            raise frame.machine.fault(inst, message, int(frame.index[row]), lane)
        goes = targets[np.minimum(chosen, len(targets) - 1)]
        paths = [(int(t), pack(goes == t, frame.count) & jumping) for t in dict.fromkeys(targets.tolist())]
        paths.append((after, frame.bits & ~jumping))
        frame.machine.stack.branch(frame.index, paths, meeting)

    return step


def _trap(slots: Slots, block: BasicBlock, inst: Instruction) -> Terminator:
    guard, after = guard_getter(slots, inst.guard), block.index + 1

    def step(frame: Frame) -> None:
        lanes = executing(frame, guard)
        if lanes.any():
            row = int(np.flatnonzero(lanes)[0])
            lane = int(lanes[row] & -lanes[row]).bit_length() - 1
            raise frame.machine.fault(inst, "the kernel trapped", int(frame.index[row]), lane)
        frame.machine.stack.advance(frame.rows, after)

    return step


def _bar(slots: Slots, block: BasicBlock, inst: Instruction) -> Terminator:
    after = block.index + 1
    if "cluster" in inst.modifiers:
        return _cluster_barrier(slots, block, inst)
    kinds = set(inst.modifiers) & {"sync", "arrive", "red", "warp"}
    kind = "warp" if "warp" in kinds else next(iter(kinds), "")
    known = {"sync", "arrive", "red", "warp", "aligned", "cta", "popc", "and", "or", "u32", "pred"}
    if not kind or set(inst.modifiers) - known:
        raise Unsupported
    guard = guard_getter(slots, inst.guard)
    if kind == "warp":  # lanes of a warp run in step anyway

        def in_step(frame: Frame) -> None:
            executing(frame, guard)
            frame.machine.stack.advance(frame.rows, after)

        return in_step
    sources = list(inst.sources)
    vote = (
        getter(slots, sources.pop(), "pred", len(inst.sources) - 1 in inst.negated_sources) if kind == "red" else None
    )
    operands = [getter(slots, s, "u32") for s in sources]
    if vote is not None:
        slots.barrier_results[inst.index] = _barrier_result(slots, inst)
    if not 1 <= len(operands) <= 2 or (kind == "arrive" and len(operands) != 2):
        raise Unsupported

    def step(frame: Frame) -> None:
        lanes = executing(frame, guard)
        here = lanes != 0
        rows = frame.index[here]
        if not here.all():
            frame.machine.stack.advance(frame.index[~here], after)
        if not rows.size:
            return
        barrier, threads = _barrier_operands(frame, inst, operands, lanes)
        if vote is not None:
            true = np.bitwise_count(lanes & pack(vote(frame), frame.count))
            frame.machine.barriers.vote(rows, barrier[here], np.bitwise_count(lanes)[here], true[here])
        frame.machine.barriers.arrive(
            frame.machine, rows, barrier[here], threads[here], inst.index, after, kind != "arrive"
        )

    return step


def _cluster_barrier(slots: Slots, block: BasicBlock, inst: Instruction) -> Terminator:
    """`barrier.cluster.arrive` and `wait`."""
    kinds, others = set(inst.modifiers) & {"arrive", "wait"}, {"cluster", "aligned", "release", "acquire", "relaxed"}
    if len(kinds) != 1 or set(inst.modifiers) - kinds - others:
        raise Unsupported
    guard, after, waits = guard_getter(slots, inst.guard), block.index + 1, "wait" in kinds

    def step(frame: Frame) -> None:
        here, barriers = executing(frame, guard) != 0, frame.machine.barriers
        frame.machine.stack.advance(frame.index[~here] if waits else frame.rows, after)
        if waits:
            barriers.wait_in_cluster(frame.index[here], inst.index, after)
        else:
            barriers.arrive_in_cluster(frame.index[here])

    return step


def _barrier_result(slots: Slots, inst: Instruction) -> tuple[int, str]:
    """(slot, operation) of `bar.red`; released warps get the result, hence it is written there."""
    operation = set(inst.modifiers) & {"popc", "and", "or"}
    wanted = "u32" if operation == {"popc"} else "pred"
    destination = inst.destinations[0]
    if len(operation) != 1 or inst.type != wanted or not isinstance(destination, Register):
        raise Unsupported
    if TYPE_BYTES.get(destination.type) != (4 if wanted == "u32" else None):
        raise Unsupported
    return slots.register(destination), operation.pop()


def _barrier_operands(
    frame: Frame, inst: Instruction, operands: list[Getter], lanes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(barrier number, thread count or 0) of each row: those of its first active lane."""
    first = np.log2((lanes & (~lanes + np.uint32(1))).astype(np.float64).clip(1)).astype(np.intp)
    values = [frame.full(get(frame))[np.arange(frame.count), first].astype(np.int64) for get in operands]
    barrier, threads = values[0], values[1] if len(values) > 1 else np.zeros(frame.count, np.int64)
    wrong = np.flatnonzero((lanes != 0) & ((barrier >= 16) | (threads % 32 != 0)))
    if wrong.size:
        row = int(wrong[0])
        message = f"barrier {barrier[row]} for {threads[row]} threads: numbers go to 15, counts are multiples of 32"
        raise frame.machine.fault(inst, message, int(frame.index[row]), int(first[row]))
    return barrier, threads


_BUILDERS: dict[str, Callable[[Slots, BasicBlock, Instruction], Terminator]] = {
    "bra": _bra, "brx": _brx, "ret": leave, "exit": leave, "trap": _trap, "bar": _bar, "barrier": _bar, "call": call,
}  # fmt: skip
