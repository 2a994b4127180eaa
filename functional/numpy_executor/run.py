"""The run loop: chunks of thread blocks, and in a chunk all warps that wait at the same basic block together."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from functional.errors import BudgetSpent, ExecutionError
from functional.execution.executor import Executor, Request
from functional.launches.launch import Launch
from functional.launches.memory import Memory
from functional.numpy_executor.barriers import CLUSTER, chunk_stops
from functional.numpy_executor.control import check_register_counts
from functional.numpy_executor.decode import Decoded
from functional.numpy_executor.machine import Code, Log, Machine, Watch
from functional.numpy_executor.mbarriers import end_waits
from functional.numpy_executor.stack import DONE, WAITING
from functional.numpy_executor.tcgen05 import check_given_back
from functional.numpy_executor.turns import FAIR_TURN, TimedTurns, Turns
from functional.programs.program import Program
from functional.traces.trace import Trace, concatenate, rechunk

_CHUNK_WARPS = 1024  # keeps a register of the chunk (128 KiB) in cache; measured
# An endless loop of a lone warp would take hours to spend the budget: each basic block run costs at least 1024 of it.
_TURN_SHIFT, _LEAST_TURNS = 10, 1 << 16
_CACHED_PROGRAMS = 64
_RECURSIVE_WARPS = 32  # of a chunk of a recursive program, whose threads have 64 KiB each


class NumpyExecutor(Executor):
    """Executes a launch with array operations over warps. Decoded programs are kept.

    `chunk_warps` bounds the warps run together; programs without data races give the same result for any value.
    `log` makes what a chunk of so many warps logs to: something that keeps more than a trace needs, for instance.
    """

    def __init__(self, chunk_warps: int = _CHUNK_WARPS, log: Callable[[int], Log] = Log) -> None:
        self.chunk_warps, self.log = chunk_warps, log
        self._codes: dict[tuple[str, str, str], Code] = {}

    def whole(self, request: Request) -> Trace:
        return concatenate(list(self.chunks(request)), request.launch.warps_per_block)

    def chunked(self, request: Request) -> Iterator[Trace]:
        return rechunk(self.chunks(request), request.chunk_bytes)

    def chunks(self, request: Request, used: int = 0) -> Iterator[Trace]:
        """As `stream`, in chunks of `chunk_warps` that run together.

        `used`: thread instructions that other blocks of the launch have taken from the budget.
        """
        launch, memory, blocks = request.launch, request.memory, request.thread_blocks
        code = self.decode(launch.program)
        warps = self.chunk_warps if not launch.program.recursive else min(self.chunk_warps, _RECURSIVE_WARPS)
        per_chunk, watch = max(1, warps // launch.warps_per_block), self.watch(launch, memory)
        if request.interleaving:
            per_chunk = request.interleaving.resident_blocks
        if launch.grid_workspace:  # all run together: they wait for each other
            per_chunk = max(1, len(blocks))
        for chosen in np.split(blocks, chunk_stops(launch, blocks, per_chunk)[:-1]) if len(blocks) else ():
            with np.errstate(all="ignore"):  # IEEE: overflow to infinity, invalid operations to NaN
                turns = self._turns(request, len(chosen))
                machine = self.machine(code, launch, memory, chosen, watch, turns)
                used += run_chunk(machine, request.instruction_budget, used)
                check_register_counts(machine)
                check_given_back(machine)
                trace = machine.finish()
                memory.printed.add(text for _, text in sorted(machine.printed, key=lambda p: p[0]))
            yield trace

    def _turns(self, request: Request, blocks: int) -> Turns:
        program, warps = request.launch.program, request.launch.warps_per_block
        if request.interleaving is None or not program.order_points:
            return Turns(program)
        return TimedTurns(program, request.interleaving, warps, blocks * warps)

    def machine(
        self, code: Code, launch: Launch, memory: Memory, chosen: np.ndarray, watch: Watch, turns: Turns
    ) -> Machine:
        """The state of a chunk."""
        return Machine(code, launch, memory, chosen, self.log, watch, turns)

    def watch(self, launch: Launch, memory: Memory) -> Watch:
        """What looks at every access of a launch."""
        return Watch()

    def prepare(self, program: Program) -> None:
        self.decode(program)

    def decode(self, program: Program) -> Code:
        """The decoded program, from the cache if possible. Raises PtxError if an instruction is not supported."""
        key = (program.path, program.digest, program.name)
        code = self._codes.get(key)
        if code is None or code.program is not program:
            code = Decoded(program)
            while len(self._codes) >= _CACHED_PROGRAMS:
                self._codes.pop(next(iter(self._codes)))
            self._codes[key] = code
        return code


def run_chunk(machine: Machine, budget: int, before: int = 0) -> int:
    """Run a chunk to its end; yields its thread instructions. Raises ExecutionError in a deadlock, and if they and
    those `before` are more than `budget`."""
    code, stack, log = machine.code, machine.stack, machine.log
    slots, warps, used, turn = len(code.slot_dtypes), machine.warps, 0, 0
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
        frame = code.frame_type(machine, None if len(chosen) == warps else chosen, slots)
        log.block(frame.index, current, frame.bits)
        machine.issued[frame.index] += block.instructions
        lanes = 32 * frame.count if frame.mask is None else int(np.bitwise_count(frame.bits).sum())
        used += block.instructions * lanes
        if before + used > budget or turn > turns:
            cost = f", {1 << _TURN_SHIFT} for each basic block that the NumPy executor runs" if turn > turns else ""
            program = code.program
            raise BudgetSpent(program.name, program.path, program.line_of(current), budget, cost)
        frame.load(block.reads)
        for step in block.steps:
            step(frame)
        frame.store(block.writes)
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
