"""The run loop: chunks of thread blocks, and in a chunk all warps that wait at the same basic block together."""

from collections.abc import Callable, Iterator

import numpy as np

from functional.errors import BudgetSpent, ExecutionError
from functional.execution.executor import Request
from functional.steps.barriers import CLUSTER, chunk_stops
from functional.steps.control import check_register_counts
from functional.steps.machine import Machine
from functional.steps.mbarriers import end_waits
from functional.steps.stack import DONE, WAITING
from functional.steps.tcgen05 import check_given_back
from functional.steps.turns import FAIR_TURN, TimedTurns, Turns
from functional.traces.trace import Trace

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
