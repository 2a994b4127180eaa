"""From what the threads wrote down to a trace: the NumPy executor with every value read instead of computed.

Stacks, barriers, coalescing and the log are the executor's own, so the trace is what it would have given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from functional.errors import InputError
from functional.gpu_recording.words import What, Word, address_of, words_of
from functional.isa.instructions import ENDS
from functional.isa.memory import space_of
from functional.isa.slots import Slots
from functional.launches.launch import Launch
from functional.launches.memory import Memory
from functional.numpy_executor.atomics import record_atomic
from functional.numpy_executor.control import fall_through, terminator
from functional.numpy_executor.log import gather
from functional.numpy_executor.machine import Block, Code, Machine
from functional.numpy_executor.memory_ops import record, split
from functional.numpy_executor.operands import Frame
from functional.numpy_executor.run import run_chunk
from functional.programs.program import BasicBlock, Program
from functional.ptx.ir import Instruction, Register, Symbol
from functional.traces.trace import Trace

if TYPE_CHECKING:
    from jaxtyping import Int64, UInt64

_CHUNK_WARPS = 1024
Translate = Callable[[str, np.ndarray], np.ndarray]  # (space, device addresses) -> addresses of our memory


def replay(
    launch: Launch,
    memory: Memory,
    words: UInt64[np.ndarray, " word"],
    starts: Int64[np.ndarray, " thread_plus_1"],
    translate: Translate,
) -> Trace:
    """The trace of a launch whose thread t wrote `words[starts[t]:starts[t + 1]]`, t in order of thread blocks.

    Raises InputError if the words are not those of this program.
    """
    code = _Code(launch.program, translate)
    per_chunk = max(1, _CHUNK_WARPS // launch.warps_per_block)
    chunks = []
    for first in range(0, launch.thread_blocks, per_chunk):
        blocks = np.arange(first, min(first + per_chunk, launch.thread_blocks))
        machine = _Machine(code, launch, memory, blocks, words, starts)
        run_chunk(machine, 1 << 62)
        machine.check_end()
        chunks.append(machine.finish())
    return gather(np.arange(launch.thread_blocks), launch.warps_per_block, chunks)


class _Machine(Machine):
    """Warps whose lanes go through their words. `base` is where those of the running block begin."""

    def __init__(
        self, code: _Code, launch: Launch, memory: Memory, blocks: np.ndarray, words: np.ndarray, starts: np.ndarray
    ) -> None:
        super().__init__(code, launch, memory, blocks)
        self.words = words if len(words) else np.zeros(1, np.uint64)
        lanes = np.arange(32 * self.warps_per_block)
        valid = lanes < launch.threads_per_block
        threads = blocks[:, None] * launch.threads_per_block + np.minimum(lanes, launch.threads_per_block - 1)
        self.cursor = starts[threads].reshape(self.warps, 32)
        self.end = np.where(valid, starts[threads + 1], starts[threads]).reshape(self.warps, 32)
        self.base = self.cursor

    def at(self, place: int) -> np.ndarray:
        """Word `place` of the running block, uint64 [row, lane]; nothing sensible for lanes that are not active."""
        return self.words[np.clip(self.base + place, 0, len(self.words) - 1)]

    def check_end(self) -> None:
        """Raise InputError if words are left."""
        if (self.cursor != self.end).any():
            raise _unfit(self.code.program)


class _Code(Code):
    """A decoded program whose instructions take their effect on the trace from the words."""

    def __init__(self, program: Program, translate: Translate) -> None:
        self.program, self.translate = program, translate
        self.slots = Slots(program)
        self.blocks = tuple(self._block(block) for block in program.blocks)
        self.slot_dtypes = self.slots.dtypes
        self.special_slots = {}
        self.symbol_slots = {}

    def _block(self, block: BasicBlock) -> Block:
        words = words_of(self.program, block)
        instructions = self.program.instructions[block.start : block.stop]
        by_instruction = {i.index: {w.what: w for w in words if w.instruction is i} for i in instructions}
        last = instructions[-1]
        ends = last.opcode in ENDS
        steps = [self._begin(self.program.pcs[block.start], len(words) + 1)]
        for instruction in instructions[:-1] if ends else instructions:
            own = by_instruction[instruction.index]
            if instruction.is_memory:
                steps.append(self._access(instruction, own))
            elif own:
                steps.append(_guarded(own[What.GUARD]))
        if ends:
            steps.append(self._operands(last, by_instruction[last.index]))
        end = terminator(self.slots, block) or fall_through(block)
        unguarded = sum(i.guard is None for i in instructions)
        return Block(block.index, (), (), tuple(steps), end, len(instructions), unguarded)

    def _begin(self, number: int, size: int) -> Callable[[Frame], None]:
        def step(frame: Frame) -> None:
            machine = frame.machine
            assert isinstance(machine, _Machine)
            machine.base = machine.cursor[frame.index]
            active = np.ones((frame.count, 32), bool) if frame.mask is None else frame.mask
            after = np.where(active, machine.base + size, machine.base)
            if (after > machine.end[frame.index]).any() or (machine.at(0)[active] != number).any():
                raise _unfit(self.program)
            machine.cursor[frame.index] = after

        return step

    def _access(self, instruction: Instruction, words: dict[What, Word]) -> Callable[[Frame], None]:
        space = space_of(self.slots, instruction, address_of(instruction))
        guard, size = words.get(What.GUARD), instruction.access_bytes
        matrices = len(instruction.writes()) if instruction.opcode == "ldmatrix" else 0
        if matrices:
            size = 16
        addresses = self._addresses(instruction, words, space)

        def step(frame: Frame) -> None:
            lanes = None if guard is None else frame.set_guard(_true(guard))
            if matrices:  # lane i names the row i % 8 of matrix i / 8
                lanes = np.broadcast_to(np.arange(32) < 8 * matrices, (frame.count, 32))
            parts = list(split(frame, instruction, space, addresses(frame), lanes))
            if instruction.opcode in ("atom", "red"):
                record_atomic(frame, space, size, parts)
            else:
                record(frame, space == "shared", size, parts)

        return step

    def _addresses(
        self, instruction: Instruction, words: dict[What, Word], space: str
    ) -> Callable[[Frame], np.ndarray]:
        address, dtype = address_of(instruction), np.dtype(np.uint32 if space == "shared" else np.uint64)
        base, word = address.base, words.get(What.ADDRESS)
        if word is None:
            symbol = Symbol(base.name, base.offset + address.offset) if isinstance(base, Symbol) else None
            slots, offset = self.slots, address.offset

            def fixed(frame: Frame) -> np.ndarray:
                value = offset if symbol is None else slots.address_of(symbol, frame.machine.memory)
                return np.full((1, 1), value % (1 << 64), np.uint64).astype(dtype)

            return fixed
        added = np.uint64(address.offset % (1 << 64))
        return lambda frame: self.translate(space, frame.machine.at(word.place) + added).astype(dtype)  # type: ignore[attr-defined]

    def _operands(self, last: Instruction, words: dict[What, Word]) -> Callable[[Frame], None]:
        """Give the registers a terminator reads the values they had."""
        guard, index = words.get(What.GUARD), words.get(What.INDEX)
        slot = None if last.guard is None else self.slots.register(last.guard.register)
        register = last.sources[0] if index is not None else None
        index_slot = self.slots.register(register) if isinstance(register, Register) else None

        def step(frame: Frame) -> None:
            if guard is not None and slot is not None:
                true = _true(guard)(frame)
                frame.values[slot] = ~true if last.guard and last.guard.negated else true
            if index is not None and index_slot is not None:
                frame.values[index_slot] = frame.machine.at(index.place).astype(np.uint32)  # type: ignore[attr-defined]

        return step


def _true(word: Word) -> Callable[[Frame], np.ndarray]:
    """Lanes whose guard is true, negation included."""
    return lambda frame: frame.machine.at(word.place) == 1  # type: ignore[attr-defined]


def _guarded(word: Word) -> Callable[[Frame], None]:
    true = _true(word)

    def step(frame: Frame) -> None:
        frame.set_guard(true)

    return step


def _unfit(program: Program) -> InputError:
    return InputError(f"kernel '{program.name}': what the threads wrote down is not what this program does")
