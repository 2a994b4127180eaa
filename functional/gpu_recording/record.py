"""Traces of a case from a device that runs instrumented kernels: what the threads wrote down becomes a trace by the
executor's steps, with every value read instead of computed. Stacks, barriers, coalescing and the log are the executor's
own, so the trace is what it would have given.

A thread writes a fixed number of 64-bit words a basic block: the number of the block's first instruction in the module,
then, instruction by instruction, what the program does not say: whether the guard is true (1 or 0), the address
register of a memory access, the index of a `brx`. They follow each other without gaps, so those of a block say which
block comes next, and nothing else is needed to go through the program again.

`TABLE` is a global variable that points to two 64-bit addresses a thread: where its words go, and where they must end.
A thread keeps the first in a register, moves it on at every block, stores only while it is not past the end, and puts
it back before it calls, returns or exits: with an empty table entry the run merely counts words."""

import re
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

import numpy as np

from functional.arrays import Int64, UInt64
from functional.errors import InputError, PtxError, refuse
from functional.gpu_recording.cuda import CudaDevice
from functional.isa.memory import LOCAL_WINDOW, SHARED_WINDOW, WINDOW_BYTES, access_of, space_of
from functional.launches.case import Case
from functional.launches.launch import Dim3, Launch, Pointer
from functional.launches.memory import CONST_LIMIT_BYTES, CONST_WINDOW, Memory
from functional.llvm_executor.by_piece import PieceCode, PieceMachine, run_piece, run_pieces
from functional.llvm_executor.launch_state import Job, Pool, Worker
from functional.llvm_executor.object_code import Compiled, load
from functional.llvm_executor.pieces import Care
from functional.llvm_executor.undo import Undo
from functional.programs.program import ENDS, BasicBlock, Program
from functional.ptx.ir import TYPE_BYTES, Instruction, Module, Register, Symbol
from functional.ptx.source import unchanged
from functional.steps.atomics import record_atomic
from functional.steps.control import fall_through, terminator
from functional.steps.machine import UNWATCHED, Block, Frame, Step, under_guard
from functional.steps.memory_ops import record as record_access
from functional.steps.memory_ops import split
from functional.traces.trace import Trace, concatenate, offsets_of

_TRACED = frozenset({"ld", "ldu", "st", "atom", "red", "ldmatrix"})
# What a word says; of an address the base register: the constant offset is in the program
GUARD, ADDRESS, INDEX = "guard", "address", "index"


def words_of(program: Program, block: BasicBlock) -> dict[int, dict[str, int]]:
    """The words of each instruction of a block, by its index: what they say, and their places, counted from the block's
    number, which is word 0. Raises PtxError for an instruction whose effect they cannot tell."""
    found: dict[int, dict[str, int]] = {}
    count = 0
    for instruction in program.instructions[block.start : block.stop]:
        _check(program, instruction)
        named = [GUARD] if instruction.guard is not None else []
        named += [ADDRESS] if instruction.is_memory and isinstance(_base_of(instruction), Register) else []
        named += [INDEX] if instruction.opcode == "brx" else []
        found[instruction.index] = {what: count + n for n, what in enumerate(named, 1)}
        count += len(named)
    return found


def _base_of(instruction: Instruction) -> object:
    """What the address of a memory instruction starts from: a register, a symbol or nothing."""
    return instruction.address and instruction.address.base


def _check(program: Program, instruction: Instruction) -> None:
    refused = ""
    if instruction.is_memory and instruction.opcode not in _TRACED:
        refused = "its addresses are not recorded"
    elif instruction.is_memory and instruction.space == "param" and isinstance(_base_of(instruction), Register):
        refused = "the address of a parameter is not the same on a GPU"
    elif instruction.opcode in ("bar", "barrier") and (instruction.reads() or "red" in instruction.modifiers):
        refused = "its operands are not recorded"
    if refused:
        raise PtxError(program.path, instruction.line, f"'{instruction.name}' cannot be traced on a GPU: {refused}")


TABLE = "abstim_table"
WINDOWS = "abstim_windows"  # kernel that says where shared, local and constant memory lie
WORD_BYTES, ENTRY_BYTES = 8, 16
_COORDINATES = ("ctaid.z", "ctaid.y", "ctaid.x", "tid.z", "tid.y", "tid.x")
_SLOT, _AT, _END, _VALUE = (f"%abstim_d{n}" for n in range(4))
_LABEL = re.compile(r"\s*[\w$%.]+\s*:(?!:)\s*\S")


def instrument(module: Module, programs: Iterable[Program]) -> str:
    """The text of a module with `programs` instrumented. Raises InputError if the file is not there any more as it was
    parsed, PtxError for an instruction that cannot be traced and for code that is not laid out one instruction a
    line."""
    if (text := unchanged(module.path, module.digest)) is None:
        raise InputError(f"{module.path}: has changed since it was read, or is gone")
    lines = text.decode().split("\n")
    before: dict[int, list[str]] = {}
    done: set[str] = set()  # several kernels may call one function
    for program in programs:
        functions = set(program.function_of) - done
        for name in functions:
            behind = range(module.kernels[name].line - 1, len(lines))
            brace = next(n for n in behind if lines[n].lstrip().startswith("{"))
            before.setdefault(brace + 1, []).extend(_prologue())
        _instrument(program, functions, lines, before)
        done |= functions
    size = next((n for n, line in enumerate(lines) if line.startswith(".address_size")), None)
    refuse(size is None or module.address_size != 64, f"{module.path}: needs .address_size 64")
    found = []
    for number, line in enumerate(lines):
        found += [*before.get(number, []), line]
        if number == size:
            found.append(f".visible .global .align 8 .u64 {TABLE};")
    return "\n".join([*found, _windows(module)])


def constants_of(module: Module) -> list[str]:
    """Names of the constant variables, in the order in which WINDOWS writes their addresses."""
    return [v.name for v in module.variables if v.space == "const"]


def _instrument(program: Program, functions: set[str], lines: list[str], before: dict[int, list[str]]) -> None:
    """Add what stands in front of each line (from 0) of some functions of a program."""
    used: set[int] = set()
    for block in program.code_blocks:
        words = words_of(program, block)
        total = sum(map(len, words.values())) + 1
        if program.function_of[block.start] not in functions:
            continue
        for instruction in program.instructions[block.start : block.stop]:
            added = _begin(program, block, total) if instruction.index == block.start else []
            for what, place in words[instruction.index].items():
                offset = (place - total) * WORD_BYTES
                added += [_value(instruction, what), f"@%abstim_p st.global.u64 [{_AT}+{offset}], {_VALUE};"]
            if instruction.opcode in ("call", "ret", "exit", "trap"):
                added.append(f"st.global.u64 [{_SLOT}], {_AT};")
            if added and (instruction.line in used or _LABEL.match(lines[instruction.line - 1])):
                raise PtxError(program.path, instruction.line, "needs a line of its own to be instrumented")
            used.add(instruction.line)
            before.setdefault(instruction.line - 1, []).extend(added)


def _prologue() -> list[str]:
    """Registers; the number of the thread in the grid; its entry of the table."""
    lines = [".reg .pred %abstim_p;", ".reg .b32 %abstim_r<3>;", ".reg .b64 %abstim_d<6>;", "mov.u64 %abstim_d4, 0;"]
    for coordinate in _COORDINATES:
        lines += [f"mov.u32 %abstim_r1, %n{coordinate};", "cvt.u64.u32 %abstim_d5, %abstim_r1;"]
        lines += [f"mov.u32 %abstim_r2, %{coordinate};", f"cvt.u64.u32 {_VALUE}, %abstim_r2;"]
        lines += [f"mad.lo.s64 %abstim_d4, %abstim_d4, %abstim_d5, {_VALUE};"]
    lines += [f"ld.global.u64 {_SLOT}, [{TABLE}];", f"mad.lo.s64 {_SLOT}, %abstim_d4, {ENTRY_BYTES}, {_SLOT};"]
    return [*lines, f"ld.global.u64 {_AT}, [{_SLOT}];", f"ld.global.u64 {_END}, [{_SLOT}+8];"]


def _begin(program: Program, block: BasicBlock, words: int) -> list[str]:
    called = block.start > 0 and program.instructions[block.start - 1].callee is not None
    return [
        *([f"ld.global.u64 {_AT}, [{_SLOT}];"] if called else []),  # moved on by the function
        f"add.s64 {_AT}, {_AT}, {words * WORD_BYTES};",
        f"setp.le.u64 %abstim_p, {_AT}, {_END};",
        f"mov.u64 {_VALUE}, {program.pcs[block.start]};",
        f"@%abstim_p st.global.u64 [{_AT}+{-words * WORD_BYTES}], {_VALUE};",
    ]


def _value(instruction: Instruction, what: str) -> str:
    if what == GUARD:
        assert instruction.guard is not None
        true, false = (0, 1) if instruction.guard.negated else (1, 0)
        return f"selp.u64 {_VALUE}, {true}, {false}, {_printed(instruction.guard.register)};"
    register = _base_of(instruction) if what == ADDRESS else instruction.sources[0]
    assert isinstance(register, Register)
    if TYPE_BYTES[register.type] == 4:
        return f"cvt.u64.u32 {_VALUE}, {_printed(register)};"
    return f"mov.b64 {_VALUE}, {_printed(register)};"


def _printed(register: Register) -> str:
    """A register's name as the text has it: without the function in front and the mark of a nested scope behind."""
    return register.name.rpartition(":")[2].partition("'")[0]


def _windows(module: Module) -> str:
    """A kernel that writes where the generic windows of shared, local and constant memory begin, and each constant."""
    lines = [".reg .b64 %abstim_d<3>;", f"ld.global.u64 %abstim_d0, [{TABLE}];"]
    values = [f"cvta.{space}.u64 %abstim_d2, %abstim_d1;" for space in ("shared", "local", "const")]
    values += [f"mov.u64 %abstim_d2, {name};" for name in constants_of(module)]
    lines.append("mov.u64 %abstim_d1, 0;")
    for n, value in enumerate(values):
        lines += [value, f"st.global.u64 [%abstim_d0+{n * WORD_BYTES}], %abstim_d2;"]
    return f".visible .entry {WINDOWS}()\n{{\n" + "\n".join([*lines, "ret;"]) + "\n}\n"


Translate = Callable[[str, np.ndarray], np.ndarray]  # (space, device addresses) -> addresses of our memory


def replay(
    launch: Launch, memory: Memory, words: UInt64[np.ndarray, " word"], starts: Int64[np.ndarray, " thread_plus_1"],
    translate: Translate,
) -> Trace:  # fmt: skip
    """The trace of a launch whose thread t wrote `words[starts[t]:starts[t + 1]]`, t in order of thread blocks.

    Raises InputError if the words are not those of this program."""
    compiled = load(launch.program, care=Care.OUTLINES)
    blocks, budget = np.arange(launch.thread_blocks), 1 << 62
    with ExitStack() as leases:
        job = Job(compiled, launch, memory, blocks, budget, None, Pool(Worker), Undo(), None, leases)
        code = _Code(compiled, translate)
        chunks = run_pieces(job, lambda native, *chunk: _Machine(words, starts, native, code, *chunk), UNWATCHED)
        return concatenate(list(chunks), launch.warps_per_block)


class _Machine(PieceMachine):
    """Warps whose lanes go through their words. `base` is where those of the running block begin."""

    def __init__(self, words: np.ndarray, starts: np.ndarray, *chunk: Any) -> None:
        super().__init__(*chunk)
        launch, blocks = self.launch, self.thread_blocks
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

    def finish(self) -> Trace:
        """Raises InputError if words are left."""
        if (self.cursor != self.end).any():
            raise _unfit(self.code.program)
        self.counts[:, 1] += self.guarded
        return super().finish()


class _Code(PieceCode):
    """A program whose instructions take their effect on the trace from the words."""

    def __init__(self, compiled: Compiled, translate: Translate) -> None:
        self.translate = translate
        super().__init__(compiled)

    def of_pieces(self, block: BasicBlock) -> Block:
        words = words_of(self.program, block)
        instructions = self.program.instructions[block.start : block.stop]
        last = instructions[-1]
        ends = last.opcode in ENDS
        steps = [run_piece(block.index), self._begin(self.program.pcs[block.start], sum(map(len, words.values())) + 1)]
        for instruction in instructions[:-1] if ends else instructions:
            own = words[instruction.index]
            if instruction.is_memory:
                steps.append(self._access(instruction, own))
            elif own:
                steps.append(_guarded(own[GUARD], lambda frame: None))
        if ends:
            steps.append(self._operands(last, words[last.index]))
        build = terminator(self.slots, block, last) if ends else fall_through(block)
        end = under_guard(self.slots, last, build) if ends else build
        return Block(block.index, tuple(steps), end, len(instructions))

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

    def _access(self, instruction: Instruction, words: dict[str, int]) -> Callable[[Frame], None]:
        assert instruction.address is not None  # `words_of` refuses all else
        space = space_of(self.slots, instruction, instruction.address)
        guard, size = words.get(GUARD), instruction.access_bytes
        stored = access_of(instruction)[0] if instruction.opcode == "st" else 0
        matrices = len(instruction.writes()) if instruction.opcode == "ldmatrix" else 0
        if matrices:
            size = 16
        addresses = self._addresses(instruction, words, space)

        def step(frame: Frame) -> None:
            # lane i names the row i % 8 of matrix i / 8
            lanes = np.broadcast_to(np.arange(32) < 8 * matrices, (frame.count, 32)) if matrices else None
            parts = list(split(frame, instruction, space, addresses(frame), lanes))
            if instruction.opcode in ("atom", "red"):
                record_atomic(frame, space, size, parts)
            else:
                record_access(frame, space == "shared", size, parts, stored)

        return step if guard is None else _guarded(guard, step)

    def _addresses(self, instruction: Instruction, words: dict[str, int], space: str) -> Callable[[Frame], np.ndarray]:
        address, dtype = instruction.address, np.dtype(np.uint32 if space == "shared" else np.uint64)
        assert address is not None
        base, place = address.base, words.get(ADDRESS)
        if place is None:
            symbol = Symbol(base.name, base.offset + address.offset) if isinstance(base, Symbol) else None
            slots, offset = self.slots, address.offset

            def fixed(frame: Frame) -> np.ndarray:
                value = offset if symbol is None else slots.address_of(symbol, frame.machine.memory)
                return np.full((1, 1), value % (1 << 64), np.uint64).astype(dtype)

            return fixed
        added = np.uint64(address.offset % (1 << 64))
        return lambda frame: self.translate(space, frame.machine.at(place) + added).astype(dtype)  # type: ignore[attr-defined]

    def _operands(self, last: Instruction, words: dict[str, int]) -> Callable[[Frame], None]:
        """Give the registers a terminator reads the values they had."""
        guard, index = words.get(GUARD), words.get(INDEX)
        slot = None if last.guard is None else self.slots.register(last.guard.register)
        register = last.sources[0] if index is not None else None
        index_slot = self.slots.register(register) if isinstance(register, Register) else None

        def step(frame: Frame) -> None:
            if guard is not None and slot is not None:
                true = _true(guard)(frame)
                frame.values[slot] = ~true if last.guard and last.guard.negated else true
            if index is not None and index_slot is not None:
                frame.values[index_slot] = frame.machine.at(index).astype(np.uint32)  # type: ignore[attr-defined]

        return step


def _true(place: int) -> Callable[[Frame], np.ndarray]:
    """Lanes whose guard is true, negation included."""
    return lambda frame: frame.machine.at(place) == 1  # type: ignore[attr-defined]


def _guarded(place: int, step: Step) -> Step:
    true = _true(place)
    return lambda frame: frame.run_guarded(true, step)


def _unfit(program: Program) -> InputError:
    return InputError(f"kernel '{program.name}': what the threads wrote down is not what this program does")


def record(
    case: Case, device: CudaDevice, progress: Callable[[str, int, int], object] = lambda *_: None
) -> list[Trace]:
    """Run every launch of a case twice on a device, first to count and then to record, and give their traces.

    Raises InputError or PtxError for what cannot be instrumented, for a device that fails, and for a kernel whose
    control flow differs from one run to the next (a race)."""
    programs = {launch.program.name: launch.program for launch in case.launches}
    device.load(instrument(case.module, programs.values()))
    session = _Session(case, device)
    traces = []
    for number, launch in enumerate(case.launches):
        progress(f"record {case.name}", number, len(case.launches))
        traces.append(session.launch(launch))
    return traces


# In the order in which the kernel of that name tells where a device has them
_WINDOWS = ((SHARED_WINDOW, WINDOW_BYTES), (LOCAL_WINDOW, WINDOW_BYTES), (CONST_WINDOW, CONST_LIMIT_BYTES))


class _Session:
    def __init__(self, case: Case, device: CudaDevice) -> None:
        self.device, self.memory = device, case.memory
        self.buffers = {name: device.allocate(max(1, region.bytes)) for name, region in self.memory.buffers.items()}
        self.places = {name: (self.buffers[name], region) for name, region in self.memory.buffers.items()}
        for address, region in self.places.values():
            device.write(address, self.memory.bytes_of(region))
        variables = self.memory.global_variables
        self.places |= {f"variable {name}": (device.variable(name), region) for name, region in variables.items()}
        constants = [self.memory.const_variables[name] for name in constants_of(case.module)]
        count = len(_WINDOWS) + len(constants)
        at = self.device.allocate(count * WORD_BYTES)
        self._point_table_to(at)
        self.device.launch(WINDOWS, Dim3(1), Dim3(1), b"", 0)
        told = self.device.read(at, count * WORD_BYTES).view(np.int64).tolist()
        self.device.free(at)
        windows = [(address, size, ours) for address, (ours, size) in zip(told, _WINDOWS, strict=False)]
        fixed = [(address, r.bytes, r.address) for address, r in zip(told[len(_WINDOWS) :], constants, strict=True)]
        moved = [(address, region.bytes, region.address) for address, region in self.places.values()]
        tables = {"const": fixed, "global": moved, "generic": moved + windows}
        # By space: where regions start on the device, ascending, how long they are, and where they are in our memory
        self.tables = {space: np.array(sorted(rows), np.int64).reshape(-1, 3).T for space, rows in tables.items()}

    def _point_table_to(self, address: int) -> None:
        self.device.write(self.device.variable(TABLE), np.array([address], np.int64).view(np.uint8))

    def launch(self, launch: Launch) -> Trace:
        threads = launch.thread_blocks * launch.threads_per_block
        table = self.device.allocate(threads * ENTRY_BYTES)
        self._point_table_to(table)
        before = {name: self.device.read(address, region.bytes) for name, (address, region) in self.places.items()}
        lengths = self._run(launch, table, np.zeros((threads, 2), np.int64))
        for name, (address, _) in self.places.items():
            self.device.write(address, before[name])
        starts = offsets_of(lengths)
        stream = self.device.allocate(max(WORD_BYTES, int(starts[-1])))
        ends = self._run(launch, table, stream + np.stack([starts[:-1], starts[1:]], axis=1))
        if (ends != stream + starts[1:]).any():
            raise InputError(f"kernel '{launch.program.name}' does not do the same every time; it cannot be recorded")
        words = self.device.read(stream, int(starts[-1])).view(np.uint64)
        self.device.free(stream)
        self.device.free(table)
        return replay(launch, self.memory, words, starts // WORD_BYTES, self._translate)

    def _run(self, launch: Launch, table: int, entries: np.ndarray) -> np.ndarray:
        self.device.write(table, np.ascontiguousarray(entries).view(np.uint8).reshape(-1))
        block = bytearray(launch.parameters)
        for parameter, argument in zip(launch.program.parameters, launch.arguments, strict=True):
            if isinstance(argument, Pointer):
                address = self.buffers[argument.buffer] + argument.offset
                block[parameter.offset : parameter.offset + 8] = address.to_bytes(8, "little")
        self.device.launch(launch.program.name, launch.grid, launch.block, bytes(block), launch.dynamic_shared_bytes)
        return self.device.read(table, entries.size * WORD_BYTES).view(np.int64).reshape(-1, 2)[:, 0]

    def _translate(self, space: str, addresses: np.ndarray) -> np.ndarray:
        """Device addresses as those of our own memory; what belongs to no region stays (lanes that are not active)."""
        found = addresses.astype(np.int64)
        starts, sizes, ours = self.tables.get(space, np.zeros((3, 0), np.int64))
        if not len(starts):
            return found
        at = np.maximum(np.searchsorted(starts, found, side="right") - 1, 0)
        inside = (found >= starts[at]) & (found < starts[at] + sizes[at])
        return np.where(inside, found - starts[at] + ours[at], found)
