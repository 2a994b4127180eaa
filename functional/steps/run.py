"""The run loop: chunks of thread blocks, and in a chunk all warps that wait at the same basic block together; and which
step an instruction has. What has none is refused, by name and line, before anything runs."""

import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import TypeVar

import numpy as np

from functional.errors import BudgetSpent, ExecutionError, PtxError
from functional.execution.executor import Request
from functional.isa.instructions import form_of
from functional.isa.operation import REFUSALS, Unsupported
from functional.isa.slots import Slots
from functional.programs.program import ENDS, BasicBlock, Program
from functional.ptx.ir import Instruction
from functional.steps.async_copies import async_copy_step, async_store_step, bulk_copy_step, is_bulk
from functional.steps.atomics import atomic_step
from functional.steps.barriers import CLUSTER, chunk_stops
from functional.steps.control import (
    check_register_counts,
    fall_through,
    own_shared_step,
    register_count_step,
    terminator,
)
from functional.steps.machine import Frame, Machine, Step, Terminator, getter, setter, under_guard
from functional.steps.mbarriers import end_waits, is_wait, mbarrier_step, wait_end
from functional.steps.memory_ops import load_step, store_step
from functional.steps.mma import ldmatrix_step, mma_step, movmatrix_step, stmatrix_step, wmma_step
from functional.steps.stack import DONE, WAITING
from functional.steps.tcgen05 import check_given_back
from functional.steps.tcgen05_product import STEPS as TENSOR_STEPS
from functional.steps.tensor_copies import is_tensor_copy, tensor_copy_step, tensor_map_step
from functional.steps.textures import surface_step, texture_step
from functional.steps.turns import FAIR_TURN, TimedTurns, Turns
from functional.steps.wgmma import join_warpgroup, product_step
from functional.traces.trace import Trace


def directed_fma_step(slots: Slots, inst: Instruction) -> Step:
    """`fma.rz.f64`, `rm` and `rp`, exactly, one lane after the other: where compiled code does not know the last bit.
    Raises Unsupported for other forms."""
    _, sources, (destination,) = form_of(inst)
    (mode,) = set(inst.modifiers) - {"f64"}
    getters, write = [getter(slots, source, "f64") for source in sources], setter(slots, destination, "f64")
    of_lane = np.vectorize(lambda a, b, c: _fused(a, b, c, mode), otypes=[np.float64])

    def step(frame: Frame) -> None:
        write(frame, of_lane(*(get(frame) for get in getters)))

    return step


def _fused(a: float, b: float, c: float, mode: str) -> float:
    plain = a * b + c
    if not (math.isfinite(a) and math.isfinite(b) and math.isfinite(c)):
        return plain
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:
        return plain
    try:
        nearest = float(exact)  # int / int in Python rounds correctly, subnormals included
    except OverflowError:
        nearest = math.inf if exact > 0 else -math.inf
    error = -nearest if math.isinf(nearest) else exact - Fraction(nearest)
    if error < 0 and (mode == "rm" or (mode == "rz" and nearest > 0)):
        return math.nextafter(nearest, -math.inf)
    if error > 0 and (mode == "rp" or (mode == "rz" and nearest < 0)):
        return math.nextafter(nearest, math.inf)
    return nearest


T = TypeVar("T")
_STEPS: dict[str, Callable[[Slots, Instruction], Step]] = {
    "ld": load_step, "ldu": load_step, "st": store_step, "atom": atomic_step, "red": atomic_step,
    "mma": mma_step, "wmma": wmma_step, "ldmatrix": ldmatrix_step, "stmatrix": stmatrix_step,
    "tensormap": tensor_map_step, "wgmma": product_step, "tex": texture_step,
    "suld": surface_step, "sust": surface_step, "setmaxnreg": register_count_step,
    "movmatrix": movmatrix_step, "fma": directed_fma_step,
    "tcgen05": lambda slots, inst: TENSOR_STEPS[inst.modifiers[0]](slots, inst),
}  # fmt: skip
_BARRIER_STEPS = {"init", "inval", "arrive", "arrive_drop", "test_wait", "try_wait", "expect_tx", "complete_tx"}


def decoded(program: Program, inst: Instruction, build: Callable[[], T]) -> T:
    """What `build` makes of an instruction. Raises PtxError if it is not supported."""
    try:
        return build()
    except REFUSALS:
        raise PtxError(program.path, inst.line, f"instruction '{inst.name}' is not supported") from None


def end_of(slots: Slots, block: BasicBlock, last: Instruction) -> Terminator:
    """The end of a basic block, which may be that of its last instruction. Raises Unsupported."""
    if last.is_warpgroup_product:
        return join_warpgroup(block, last)
    if last.opcode not in ENDS and not is_wait(last):
        return fall_through(block)
    build = wait_end if is_wait(last) else terminator
    return under_guard(slots, last, build(slots, block, last))


def step_of(slots: Slots, inst: Instruction) -> Step:
    """The step of an instruction that ends no basic block. Raises Unsupported."""
    return under_guard(slots, inst, _plain_step(slots, inst))


def _plain_step(slots: Slots, inst: Instruction) -> Step:
    if inst.opcode in ("st", "red") and "async" in inst.modifiers:
        return async_store_step(slots, inst)
    if inst.opcode == "isspacep" and "shared" in inst.modifiers:
        return own_shared_step(slots, inst)
    if inst.opcode in _STEPS:
        return _STEPS[inst.opcode](slots, inst)
    if inst.opcode == "cp" and is_tensor_copy(inst):
        return tensor_copy_step(slots, inst)
    if inst.opcode == "cp" and is_bulk(inst):
        return bulk_copy_step(slots, inst)
    if inst.opcode == "cp" and "mbarrier" not in inst.modifiers:
        return async_copy_step(slots, inst)
    if inst.opcode in ("cp", "mbarrier") and _BARRIER_STEPS & set(inst.modifiers):
        return mbarrier_step(slots, inst)
    raise Unsupported


CHUNK_WARPS = 1024  # keeps a register of the chunk (128 KiB) in cache; measured
# An endless loop of a lone warp would take hours to spend the budget: each basic block run costs at least 1024 of it.
_TURN_SHIFT, _LEAST_TURNS = 10, 1 << 16
_RECURSIVE_WARPS = 32  # of a chunk of a recursive program, whose threads have 64 KiB each
MakeMachine = Callable[[np.ndarray, Turns], Machine]  # of thread blocks


def run_chunks(request: Request, machine_of: MakeMachine, used: int, warps: int = CHUNK_WARPS) -> Iterator[Trace]:
    """The traces of a launch, in chunks of so many warps. `used`: thread instructions of the budget others took."""
    launch, blocks, printed = request.launch, request.thread_blocks, request.memory.printed
    warps = min(warps, _RECURSIVE_WARPS) if launch.program.recursive else warps
    per_chunk = max(1, warps // launch.warps_per_block)
    if request.interleaving:
        per_chunk = request.interleaving.resident_blocks
    if launch.grid_workspace:  # all run together: they wait for each other
        per_chunk = max(1, len(blocks))
    for chosen in np.split(blocks, chunk_stops(launch, blocks, per_chunk)[:-1]) if len(blocks) else ():
        with np.errstate(all="ignore"):  # IEEE: overflow to infinity, invalid operations to NaN
            machine = machine_of(chosen, _turns(request, len(chosen)))
            used += run_chunk(machine, request.instruction_budget, used)
            check_register_counts(machine)
            check_given_back(machine)
            trace = machine.finish()
            printed.add(text for _, text in sorted(machine.printed, key=lambda p: p[0]))
        yield trace


def _turns(request: Request, blocks: int) -> Turns:
    program, warps = request.launch.program, request.launch.warps_per_block
    if request.interleaving is None or not program.order_points:
        return Turns(program)
    return TimedTurns(program, request.interleaving, warps, blocks * warps)


def run_chunk(machine: Machine, budget: int, before: int = 0) -> int:
    """Run a chunk to its end; yields its thread instructions. Raises ExecutionError in a deadlock, and if they and
    those `before` are more than `budget`."""
    code, stack = machine.code, machine.stack
    warps, used, turn = machine.warps, 0, 0
    turns = max(_LEAST_TURNS, (budget - before) >> _TURN_SHIFT)
    while True:
        turn += 1
        if not turn % FAIR_TURN or machine.turns.is_order_point(stack.block):
            end_waits(machine)
        current, chosen = machine.turns.choose(stack.block, turn)
        if current >= WAITING and not machine.held:
            break
        if current >= WAITING:
            end_waits(machine, give_up=True)
            continue
        machine.turns.run(chosen, current)
        block = code.blocks[current]
        frame = code.frame_type(machine, None if len(chosen) == warps else chosen)
        lanes = 32 * frame.count if frame.mask is None else int(np.bitwise_count(frame.bits).sum())
        used += block.instructions * lanes
        if before + used > budget or turn > turns:
            cost = f", {1 << _TURN_SHIFT} for each basic block that runs in steps" if turn > turns else ""
            program = code.program
            raise BudgetSpent(program.name, program.path, program.line_of(current), budget, cost)
        for step in block.steps:
            step(frame)
        block.end(frame)
    if (stack.block == WAITING).any():
        raise _deadlock(machine)
    return used


def _deadlock(machine: Machine) -> ExecutionError:
    stack, barriers = machine.stack, machine.barriers
    rows = np.flatnonzero(stack.block == WAITING)
    block = machine.block_of_row[rows[0]]
    rows = rows[machine.block_of_row[rows] == block]
    inst = machine.code.program.instructions[barriers.instruction[rows[0]]]
    number = int(barriers.waiting[rows[0]])
    if number == CLUSTER:
        return machine.fault(inst, "deadlock: the cluster's other threads do not arrive, and no warp can run")
    expected = int(barriers.expected[block, number])
    alive = int((stack.block[machine.block_of_row == block] != DONE).sum())
    where = machine.block_coordinates(int(machine.thread_blocks[block]))
    needed = f"{expected} threads" if expected else f"all {alive} warps"
    waiting = f"{len(rows)} warps of block {where} wait"
    return machine.fault(inst, f"deadlock: {waiting}, barrier {number} needs {needed} and no warp can run")
