"""The ends of basic blocks: branches, calls, returns, barriers, traps; `isspacep.shared` and `setmaxnreg`.

Parameters and local variables of a function are kept per thread at places known at link time. Where a function can
be called again while it runs, every call takes a new frame of all those places (`Slots.frame_bytes`), and the
registers that the caller still needs are put aside until it goes on (`Machine.enter`)."""

from collections.abc import Callable

import numpy as np

from functional.isa.instructions import form_of
from functional.isa.memory import WINDOWS
from functional.isa.operation import Unsupported, as_number, refuse_if
from functional.isa.slots import Pairs, Slots
from functional.launches.memory import function_address
from functional.programs.link import BUILTINS
from functional.programs.program import BasicBlock
from functional.ptx.ir import TYPE_BYTES, Instruction, Register
from functional.steps.device_runtime import builtin_step
from functional.steps.machine import Frame, Getter, Machine, Step, Terminator, getter, setter
from functional.steps.stack import NOWHERE, pack, unpack


def leave(slots: Slots, block: BasicBlock, inst: Instruction) -> Terminator:
    """`ret` and `exit`."""
    refuse_if(set(inst.modifiers) - {"uni"})
    after, program = block.index + 1, slots.program
    returns = program.function_parameters.get(program.function_of[inst.index], ((), ()))[1]
    whole_thread = inst.opcode == "exit"

    def step(frame: Frame) -> None:
        lanes, stack = frame.executing, frame.machine.stack
        if returns and not whole_thread:  # to those named by the call each warp came from (the block before)
            callers, function = stack.callers(frame.index), program.function_of[inst.index]
            for caller in np.unique(callers):
                pairs = slots.results(program.instructions[program.blocks[caller].stop - 1], function)
                _copy(frame, np.where(callers == caller, lanes, np.uint32(0)), pairs, -1)
        stack.leave(frame.index, lanes, whole_thread, after)
        frame.machine.barriers.exited(frame.index)

    return step


def _copy(frame: Frame, lanes: np.ndarray, pairs: Pairs, deeper: int) -> None:
    """Copy `.param` variables of the threads in `lanes` into the frame `deeper` calls down."""
    machine = frame.machine
    slots = machine.code.slots
    rows, lane = np.nonzero((lanes[:, None] >> np.arange(32, dtype=np.uint32)) & 1)
    at = (frame.index[rows] * 32 + lane) * machine.local_stride + slots.local_bytes
    at += machine.stack.level[frame.index[rows]].astype(np.int64) * slots.frame_bytes
    for source, target, size in pairs:
        each = np.arange(size)
        read = at[:, None] + slots.call_parameters[source] + each
        write = at[:, None] + (slots.call_parameters[target] + deeper * slots.frame_bytes) + each
        machine.local.data[write] = machine.local.data[read]


def call(slots: Slots, block: BasicBlock, inst: Instruction) -> Terminator:
    """A call of a function by name, by register, or of the device run time."""
    refuse_if(set(inst.modifiers) - {"uni"})
    program, after = slots.program, block.index + 1
    if inst.callee in BUILTINS and inst.index not in program.callee_entry:
        run = builtin_step(slots, inst)

        def step(frame: Frame) -> None:
            run(frame)
            frame.machine.stack.advance(frame.rows, after)

        return step
    kept = slots.kept_across(block)
    if inst.callee is None:
        return _indirect(slots, block, inst, kept)
    pairs = slots.arguments(inst, inst.callee)
    entry = program.block_of(program.callee_entry[inst.index])

    return lambda frame: _enter(frame, inst, kept, [(entry, pairs, frame.executing)], after)


def _enter(
    frame: Frame, inst: Instruction, kept: tuple[int, ...], paths: list[tuple[int, Pairs, np.ndarray]], after: int
) -> None:
    """Lanes of each path (block, arguments, lane mask [row]) begin the function there."""
    frame.machine.enter(frame.index, inst, frame.executing, kept)
    for _, pairs, lanes in paths:
        _copy(frame, lanes, pairs, 1)
    frame.machine.stack.call(frame.index, [(entry, lanes) for entry, _, lanes in paths], after)


def _indirect(slots: Slots, block: BasicBlock, inst: Instruction, kept: tuple[int, ...]) -> Terminator:
    """The lanes of a warp may name several functions, which then run one after the other, by address."""
    program, after = slots.program, block.index + 1
    where = getter(slots, inst.sources[0], "u64")
    known: dict[int, tuple[int, Pairs]] = {}
    for name, start in program.functions.items():
        try:
            known[function_address(name)] = program.block_of(start), slots.arguments(inst, name)
        except Unsupported:  # another prototype: never meant by this call
            continue

    def step(frame: Frame) -> None:
        lanes = frame.executing
        named = frame.full(where(frame))
        paths = [(a, lanes & pack(named == np.uint64(a), frame.count)) for a in sorted(known)]
        missed = lanes & ~np.bitwise_or.reduce([m for _, m in paths] or [np.zeros_like(lanes)], axis=0)
        say = "is not the address of a function with these parameters"
        frame.check(inst, unpack(missed), lambda at: f"{int(named[at]):#x} {say}")
        _enter(frame, inst, kept, [(*known[a], path) for a, path in paths], after)

    return step


def terminator(slots: Slots, block: BasicBlock, inst: Instruction) -> Terminator:
    """The terminator of a block that ends with one of ENDS."""
    refuse_if(inst.opcode in ("ret", "exit", "trap") and (inst.sources or inst.destinations))
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
    if inst.guard is None:
        return lambda frame: frame.machine.stack.advance(frame.rows, target)

    def step(frame: Frame) -> None:
        taken, stack = frame.executing, frame.machine.stack
        if not taken.any():
            stack.advance(frame.rows, after)
        elif (taken == frame.bits).all():
            stack.advance(frame.rows, target)
        else:
            stack.branch(frame.index, [(target, taken), (after, frame.bits & ~taken)], meeting)

    return step


def _brx(slots: Slots, block: BasicBlock, inst: Instruction) -> Terminator:
    refuse_if("idx" not in inst.modifiers or set(inst.modifiers) - {"idx", "uni"})
    index = getter(slots, inst.sources[0], "u32")
    targets = np.array([slots.program.block_of(t) for t in inst.targets])
    meeting, after = _meeting(block), block.index + 1

    def step(frame: Frame) -> None:
        jumping = frame.executing
        chosen = frame.full(index(frame))
        wrong = (chosen >= len(targets)) & frame.lanes()
        frame.check(inst, wrong, lambda at: f"branch index {chosen[at]} is not below {len(targets)}")
        goes = targets[np.minimum(chosen, len(targets) - 1)]
        paths = [(int(t), pack(goes == t, frame.count) & jumping) for t in dict.fromkeys(targets.tolist())]
        paths.append((after, frame.bits & ~jumping))
        frame.machine.stack.branch(frame.index, paths, meeting)

    return step


def _trap(slots: Slots, block: BasicBlock, inst: Instruction) -> Terminator:
    after = block.index + 1

    def step(frame: Frame) -> None:
        frame.check(inst, frame.lanes(), lambda _: "the kernel trapped")
        frame.machine.stack.advance(frame.rows, after)

    return step


def _bar(slots: Slots, block: BasicBlock, inst: Instruction) -> Terminator:
    after = block.index + 1
    if "cluster" in inst.modifiers:
        return _cluster_barrier(slots, block, inst)
    kinds = set(inst.modifiers) & {"sync", "arrive", "red", "warp"}
    kind = "warp" if "warp" in kinds else next(iter(kinds), "")
    known = {"sync", "arrive", "red", "warp", "aligned", "cta", "popc", "and", "or", "u32", "pred"}
    refuse_if(not kind or set(inst.modifiers) - known)
    if kind == "warp":  # lanes of a warp run in step anyway
        return fall_through(block)
    sources = list(inst.sources)
    inverted = len(sources) - 1 in inst.negated_sources
    vote = getter(slots, sources.pop(), "pred", inverted) if kind == "red" else None
    operands = [getter(slots, s, "u32") for s in sources]
    if vote is not None:
        slots.barrier_results[inst.index] = _barrier_result(slots, inst)
    refuse_if(not 1 <= len(operands) <= 2 or (kind == "arrive" and len(operands) != 2))

    def step(frame: Frame) -> None:
        lanes = frame.executing
        here = lanes != 0
        rows = frame.index[here]
        if not here.all():
            _pass_by(frame, inst, frame.index[~here], after)
        if not rows.size:
            return
        barrier, threads = _barrier_operands(frame, inst, operands, lanes)
        if inst.meets and kind == "arrive":
            for row, name in zip(rows.tolist(), barrier[here].tolist(), strict=True):
                frame.machine.meet(row, name, 0)
        if vote is not None:
            true = np.bitwise_count(lanes & pack(vote(frame), frame.count))
            frame.machine.barriers.vote(rows, barrier[here], np.bitwise_count(lanes)[here], true[here])
        frame.machine.barriers.arrive(rows, barrier[here], threads[here], inst.index, after, kind != "arrive")

    return step


def _pass_by(frame: Frame, inst: Instruction, rows: np.ndarray, after: int) -> None:
    frame.machine.stack.advance(rows, after)
    if inst.meets:
        frame.machine.records.append((rows, np.zeros(len(rows), np.uint32)))


def _cluster_barrier(slots: Slots, block: BasicBlock, inst: Instruction) -> Terminator:
    kinds, others = set(inst.modifiers) & {"arrive", "wait"}, {"cluster", "aligned", "release", "acquire", "relaxed"}
    refuse_if(len(kinds) != 1 or set(inst.modifiers) - kinds - others)
    after, waits = block.index + 1, "wait" in kinds

    def step(frame: Frame) -> None:
        here, barriers = frame.executing != 0, frame.machine.barriers
        _pass_by(frame, inst, frame.index[~here], after)
        if waits:
            barriers.wait_in_cluster(frame.index[here], inst.index, after)
        else:
            frame.machine.stack.advance(frame.index[here], after)
            barriers.arrive_in_cluster(frame.index[here])

    return step


def _barrier_result(slots: Slots, inst: Instruction) -> tuple[int, str]:
    """(slot, operation) of `bar.red`; released warps get the result, hence it is written there."""
    operation = set(inst.modifiers) & {"popc", "and", "or"}
    wanted = "u32" if operation == {"popc"} else "pred"
    destination = inst.destinations[0]
    if len(operation) != 1 or inst.type != wanted or not isinstance(destination, Register):
        raise Unsupported
    refuse_if(TYPE_BYTES.get(destination.type) != (4 if wanted == "u32" else None))
    return slots.register(destination), operation.pop()


def _barrier_operands(
    frame: Frame, inst: Instruction, operands: list[Getter], lanes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(barrier number, thread count or 0) of each row: those of its first active lane."""
    first = np.log2((lanes & (~lanes + np.uint32(1))).astype(np.float64).clip(1)).astype(np.intp)
    values = [frame.full(get(frame))[np.arange(frame.count), first].astype(np.int64) for get in operands]
    barrier, threads = values[0], values[1] if len(values) > 1 else np.zeros(frame.count, np.int64)
    wrong = np.flatnonzero((lanes != 0) & ((barrier >= 16) | (threads % 32 != 0)))
    for row in wrong.tolist():
        message = f"barrier {barrier[row]} for {threads[row]} threads: numbers go to 15, counts are multiples of 32"
        raise frame.fault(inst, message, row, int(first[row]))
    return barrier, threads


_BUILDERS: dict[str, Callable[[Slots, BasicBlock, Instruction], Terminator]] = {
    "bra": _bra, "brx": _brx, "ret": leave, "exit": leave, "trap": _trap, "bar": _bar, "barrier": _bar, "call": call,
}  # fmt: skip


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
    kernels that say so (`.maxnreg`). Source: PTX ISA, "setmaxnreg"."""
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
