"""Thread blocks of a launch that are resident at the same time, in turns; the proof that they wait for each other."""

from functools import cached_property
from hashlib import blake2b

import numpy as np

from functional.errors import ExecutionError
from functional.execution.executor import PACE, Interleaving
from functional.llvm_executor import context_layout as at
from functional.llvm_executor.launch_state import Machine
from functional.llvm_executor.object_code import call
from functional.llvm_executor.streams import StreamPart
from functional.traces.trace import Trace

_FIRST_LOOK = 1 << 16  # turns until somebody looks whether anything happens; then at twice as many
_SPREAD = 8  # of so many cycles one, by which warps that do the same come apart
_ROUND = 4  # turns a warp, on average, in which all should have had one
_NEVER, _HELD = -1, 0  # of the time of a warp, as a signed number: below 0 it cannot run


class Stepped:
    """All thread blocks of a launch, each warp of which stands before an order point, at a barrier, or has ended;
    somebody else says whose turn it is. `new`: parts of streams since it was asked last."""

    def __init__(self, machine: Machine, thread_blocks: np.ndarray, basic_blocks: int) -> None:
        self.machine = machine
        costs = np.zeros(basic_blocks, np.int64)
        self._turns = _Turns(machine, machine.begin(thread_blocks), Interleaving(machine.resident, costs))
        self._told = 0
        call("start_interleaved", machine.context.ctypes.data)
        for block in range(machine.resident):
            self._run(block)

    def is_before_point(self, warp: int) -> bool:
        """Has a warp, counted in the order of the thread blocks, to be told when it passes an order point?"""
        return self._state(warp) == at.BEFORE_POINT

    def is_done(self, warp: int) -> bool:
        """Has it ended?"""
        return self._state(warp) == at.DONE

    def step(self, warp: int) -> None:
        """The warp passes its order point. Raises Abandoned for a fault or when the budget is spent."""
        self._run(*divmod(warp, self.machine.launch.warps_per_block))

    def new(self) -> list[StreamPart]:
        """Parts of streams that have come since the last call."""
        parts = self.machine.streams.parts(self._told)
        self._told += len(parts)
        return parts

    def trace(self) -> Trace:
        """Of the whole launch, when all warps have ended."""
        return self.machine.end(at.FINISHED, self._turns.thread_blocks)

    def _state(self, warp: int) -> int:
        return int(self._frames[self.machine.compiled.frame_bytes * warp + at.STATE])

    @cached_property
    def _frames(self) -> np.ndarray:
        return self._turns.frames().reshape(-1)

    def _run(self, block: int, warp: int | None = None) -> None:
        """A warp of a thread block takes its turn, if one is named; then the block runs."""
        call("select_slot", self.machine.context.ctypes.data, block)
        self.machine.set(warp=warp or 0)
        for routine in ("run_block",) if warp is None else ("take_turn", "run_block"):
            if (code := self.machine.go(routine)) != at.FINISHED:
                self.machine.end(code, self._turns.thread_blocks)


def in_turns(machine: Machine, thread_blocks: np.ndarray, interleaving: Interleaving) -> Trace:
    """Run thread blocks to their end, as many at a time as the machine has room for. Raises Abandoned for a fault or
    when the budget is spent, ExecutionError if they wait for each other for ever."""
    turns = _Turns(machine, machine.begin(thread_blocks), interleaving)
    call("start_interleaved", machine.context.ctypes.data)
    look = _FIRST_LOOK
    while (code := turns.run_to(look)) == at.PAUSED and (code := turns.look_for_deadlock()) == at.PAUSED:
        look *= 2
    return machine.end(code, turns.thread_blocks)


class _Turns:
    """The tables that runtime_interleave.py works on."""

    def __init__(self, machine: Machine, thread_blocks: np.ndarray, interleaving: Interleaving) -> None:
        self.machine, self.thread_blocks = machine, thread_blocks
        warps, slots = machine.launch.warps_per_block, machine.resident
        leaves = 1 << max(1, (slots - 1).bit_length())
        self.rows = np.full((leaves, at.SLOT_WORDS), _NEVER, np.int64)
        tree = np.concatenate([np.zeros(leaves, np.int64), np.arange(leaves)])
        for node in range(leaves - 1, 0, -1):
            tree[node] = tree[2 * node]
        self.times, self.turns_of = (np.full(slots * warps, value, np.int64) for value in (_NEVER, 0))
        # Compare-and-swap loops would take the most rounds they can if warps always came in the order of their numbers
        program, costs = machine.launch.program, interleaving.block_cycles
        swaps = [any("cas" in i.modifiers for i in program.instructions[b.start : b.stop]) for b in program.blocks]
        tables = {
            "slots": self.rows, "tree": tree, "times": self.times, "turns_of": self.turns_of,
            "block_cycles": costs, "spreads": np.where(swaps, costs * PACE // _SPREAD, 0),
        }  # fmt: skip
        tables["paces"] = np.append(interleaving.paces, np.full(leaves, PACE))[:leaves]
        self.kept = {name: np.ascontiguousarray(table, np.int64) for name, table in tables.items()}
        machine.set(
            interleaved=1, midway=0, leaves=leaves, resident=slots, next_block=0, blocks_done=0, now=0, turns=0,
            dispatch_ticks=round(interleaving.dispatch_cycles * PACE), next_entry=0,
            **{name: table.ctypes.data for name, table in self.kept.items()},
        )  # fmt: skip

    def run_to(self, turns: int) -> int:
        self.machine.set(turns_stop=turns)
        return self.machine.go("run_interleaved")

    def look_for_deadlock(self) -> int:
        """Run each warp that can run once. If neither memory nor a warp changes, none will: raises ExecutionError."""
        before, taken = self._state(), self.turns_of.copy()
        for _ in range(_ROUND):
            code = self.run_to(int(self.machine.context[at.SLOT["turns"] // 8]) + _ROUND * len(self.times))
            running = self.times >= _HELD
            if code != at.PAUSED or (self.turns_of > taken)[running].all():
                break
        if code == at.PAUSED and (self.turns_of > taken)[running].all() and self._state() == before:
            raise self._deadlock(np.flatnonzero(running))
        return code

    def frames(self) -> np.ndarray:
        machine = self.machine
        size, count = machine.compiled.frame_bytes, len(self.times)
        return machine.frames.view(count * size).reshape(count, size)

    def _state(self) -> bytes:
        """A digest of all that the next turns depend on: warps, shared memory, and global memory that was written."""
        machine, found = self.machine, blake2b(self.rows[:, :2].tobytes())
        frames = self.frames().copy()
        frames[:, at.WARP_INSTRUCTIONS : at.EXPECTED] = 0  # which only count
        found.update(frames.tobytes())
        found.update(machine.shared.view(machine.resident * machine.shared_stride).tobytes())
        found.update(machine.undo.written(machine.memory).tobytes())
        return found.digest()

    def _deadlock(self, waiting: np.ndarray) -> ExecutionError:
        launch = self.machine.launch
        program, count = launch.program, len(np.unique(waiting // launch.warps_per_block))
        block = program.blocks[int(self.frames()[waiting[0], :4].view(np.uint32)[0])]
        points = [i for i in program.instructions[block.start : block.stop] if i.opcode in ("atom", "red", "ld", "st")]
        at_point = points[0] if points else program.instructions[block.start]
        return ExecutionError(
            f"kernel '{program.name}', {program.path}:{at_point.line}: {at_point.name}: deadlock: {len(waiting)} warps "
            f"of {count} thread blocks wait for what none of them does; {self.machine.resident:,} of "
            f"{len(self.thread_blocks):,} thread blocks are resident at a time"
        )
