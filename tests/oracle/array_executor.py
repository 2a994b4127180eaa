"""The oracle of the compiled executor: all warps at one place of a program, an array operation an instruction.

What computes is array operations of its own (arrays.py), as are registers, storages and stacks; loads and stores and
rare instructions are the steps that the compiled executor has for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from functional.execution.executor import Executor, Request
from functional.isa.instructions import CARRIED, form_of, has_no_effect
from functional.isa.operation import REFUSALS
from functional.isa.slots import CLOCKS, CONDITION_CODE, Slots, specials_of
from functional.launches.launch import Launch
from functional.launches.memory import Memory
from functional.programs.program import ENDS, BasicBlock, Program
from functional.programs.registers import live_in
from functional.ptx.ir import Instruction, Register
from functional.steps.machine import Block, Code, Frame, Getter, Setter, Step, Watch, getter, setter, under_guard
from functional.steps.mbarriers import is_wait
from functional.steps.run import CHUNK_WARPS, decoded, end_of, run_chunks, step_of
from functional.steps.stack import pack
from functional.traces.trace import Trace, concatenate, rechunk
from oracle.array_machine import ArrayFrame, ArrayMachine, clock
from oracle.arrays import function_of
from oracle.slow_paths import is_slow

_BITS_OF = {f"{code}{bits}": f"b{bits}" for code in "us" for bits in (8, 16, 32, 64)}  # integers come as bits
_CACHED_PROGRAMS = 64


class ArrayExecutor(Executor):
    """`chunk_warps` bounds the warps run together; programs without data races give the same result for any value."""

    def __init__(self, chunk_warps: int = CHUNK_WARPS) -> None:
        self.chunk_warps = chunk_warps
        self._codes: dict[tuple[str, str, str], ArrayCode] = {}

    def whole(self, request: Request) -> Trace:
        return concatenate(list(self._chunks(request)), request.launch.warps_per_block)

    def chunked(self, request: Request) -> Iterator[Trace]:
        return rechunk(self._chunks(request), request.chunk_bytes)

    def _chunks(self, request: Request) -> Iterator[Trace]:
        launch, memory = request.launch, request.memory
        code, watch = self.decode(launch.program), self.watch(launch, memory)
        machine = lambda chosen, turns: ArrayMachine(code, launch, memory, chosen, watch, turns)  # noqa: E731
        return run_chunks(request, machine, 0, self.chunk_warps)

    def watch(self, launch: Launch, memory: Memory) -> Watch:
        """What looks at every access of a launch."""
        return Watch()

    def prepare(self, program: Program) -> None:
        self.decode(program)

    def decode(self, program: Program) -> ArrayCode:
        """The decoded program. Raises PtxError if an instruction is not supported."""
        key = (program.path, program.digest, program.name)
        code = self._codes.get(key)
        if code is None or code.program is not program:
            code = ArrayCode(program)
            while len(self._codes) >= _CACHED_PROGRAMS:
                self._codes.pop(next(iter(self._codes)))
            self._codes[key] = code
        return code


class ArrayCode(Code):
    """A program of which every instruction is a closure."""

    frame_type = ArrayFrame

    def __init__(self, program: Program) -> None:
        self.program, self.slots = program, Slots(program)
        live = live_in(program)
        self.blocks = tuple(self._block(block, live) for block in program.code_blocks)
        for block in program.code_blocks:  # what a recursive call puts aside
            self.slots.kept_across(block)

    def _block(self, block: BasicBlock, live: tuple[frozenset[Register], ...]) -> Block:
        instructions = self.program.instructions[block.start : block.stop]
        last, slots = instructions[-1], self.slots
        body = instructions[:-1] if last.opcode in ENDS or is_wait(last) else instructions
        steps = [
            decoded(self.program, inst, lambda inst=inst: self._timed(self._step_of(inst), block, inst))
            for inst in body
        ]
        end = decoded(self.program, last, lambda: self._timed(end_of(slots, block, last), block, last))
        needed, kept = self._read_and_kept(
            instructions, body, {CONDITION_CODE}.union(*(live[s] for s in block.successors))
        )
        count = len(instructions)

        def begin(frame: ArrayFrame) -> None:
            frame.machine.enter_block(frame, block.index, count)
            frame.load(needed)

        return Block(block.index, (begin, *steps, lambda frame: frame.store(kept)), end, count)

    def _step_of(self, inst: Instruction) -> Step:
        """A step, in front of which lanes are noted that take the slow path."""
        step, path = array_step_of(self.slots, inst), self.program.slow_paths.get(inst.index)
        if path is None:
            return step
        getters = [getter(self.slots, s, inst.type) for s in inst.sources]

        def note(frame: ArrayFrame) -> None:
            slow = is_slow(inst, *(frame.full(get(frame)) for get in getters)) & frame.lanes()
            rows = np.flatnonzero(slow.any(1))
            frame.machine.entered.append((frame.index[rows], path, pack(slow[rows], len(rows))))

        noted = note
        if inst.guard is not None:
            true = getter(self.slots, inst.guard.register, "pred", inst.guard.negated)

            def noted(frame: ArrayFrame) -> None:
                frame.guard = true(frame)
                note(frame)
                frame.guard = None

        return lambda frame: (noted(frame), step(frame))

    def _read_and_kept(
        self, instructions: tuple[Instruction, ...], body: tuple[Instruction, ...], outside: set[Register]
    ) -> tuple[list[int], list[int]]:  # fmt: skip
        """Slots read, or written under a guard, before they are surely written; and those written that live on."""
        needed, defined = set[int](), set[int]()
        for inst in instructions:
            carry = [CONDITION_CODE] * ("cc" in inst.modifiers)
            read = {*inst.reads(), *specials_of(inst), *[CONDITION_CODE] * (inst.opcode in CARRIED)}
            written = {*inst.writes(), *carry} if inst in body else set()  # ends write to the machine themselves
            read |= ({inst.guard.register} | written) if inst.guard else set()
            needed |= {self.slots.register(r) for r in read if r.name not in CLOCKS} - defined
            defined |= {self.slots.register(r) for r in written}
        return sorted(needed), sorted(defined & {self.slots.register(r) for r in outside})

    def _timed(self, step: Step, block: BasicBlock, inst: Instruction) -> Step:
        """A step, or an end, in front of which the clocks that it reads are set."""
        registers = [r for r in specials_of(inst) if r.name in CLOCKS]
        behind = inst.index - block.stop
        slots = [(self.slots.register(r), r.name) for r in registers]

        def timed(frame: ArrayFrame) -> None:
            for slot, name in slots:
                frame.values[slot] = clock(frame.machine.issued[frame.index] + behind, name)
            step(frame)

        return timed if slots else step


def array_step_of(slots: Slots, inst: Instruction) -> Step:
    """The step of any instruction that ends no basic block. Raises Unsupported."""
    if has_no_effect(inst):
        return under_guard(slots, inst, lambda frame: None)
    if inst.opcode != "isspacep" or "shared" not in inst.modifiers:
        try:
            form = form_of(inst)
        except REFUSALS:
            return step_of(slots, inst)
        return under_guard(slots, inst, _operation_step(slots, inst, form))
    return step_of(slots, inst)


def _operation_step(slots: Slots, inst: Instruction, form: tuple) -> Step:
    operation, sources, destinations = form
    pairs = zip(sources, operation.sources, strict=True)
    getters = [getter(slots, s, _BITS_OF.get(t, t), i in inst.negated_sources) for i, (s, t) in enumerate(pairs)]
    setters = [setter(slots, d, t) for d, t in zip(destinations, operation.destinations, strict=True)]
    return (_bind_across if operation.across else _bind)(function_of(operation), getters, setters)


def _bind(function: Callable, getters: list[Getter], setters: list[Setter]) -> Step:
    """The closure of an operation, with the commonest shapes written out: they run a few million times a second."""
    if len(setters) == 1:
        (write,) = setters
        if len(getters) == 1:
            (a,) = getters
            return lambda frame: write(frame, function(a(frame)))
        if len(getters) == 2:
            a, b = getters
            return lambda frame: write(frame, function(a(frame), b(frame)))
        if len(getters) == 3:
            a, b, c = getters
            return lambda frame: write(frame, function(a(frame), b(frame), c(frame)))
    return _bind_across(lambda _, *values: function(*values), getters, setters)


def _bind_across(function: Callable, getters: list[Getter], setters: list[Setter]) -> Step:
    """The closure of an operation that needs the frame, or yields a tuple."""

    def step(frame: Frame) -> None:
        result = function(frame, *[get(frame) for get in getters])
        values = result if isinstance(result, tuple) else (result,)
        for write, value in zip(setters, values, strict=True):
            write(frame, value)

    return step
