"""Writing an Accel-Sim trace directory from our own executor: traces without the GPU they are of.

PTX's virtual registers go on the 255 of a SASS thread by colouring: a register keeps its bank (the number in its name
modulo 16) where it can, because the operand collector of the timing model looks at it. A value that a load writes wider
than 4 bytes takes as many consecutive registers, as in SASS; so do the elements of a vector load. Predicates become
ordinary registers: a trace has no others, and without them a branch would not wait for its condition."""

import lzma
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from operator import or_
from pathlib import Path
from typing import IO

import numpy as np

from functional.accelsim.static_code import RZ
from functional.accelsim.trace_files import LIST_NAME, format_addresses
from functional.arrays import Int64
from functional.errors import InputError, refuse
from functional.execution.default_executor import default_executor
from functional.execution.executor import DEFAULT_INSTRUCTION_BUDGET
from functional.isa.memory import LOCAL_WINDOW, SHARED_WINDOW
from functional.keep.folder import replacing
from functional.launches.case import Case
from functional.launches.launch import Launch
from functional.launches.memory import Memory
from functional.llvm_executor import LlvmExecutor
from functional.llvm_executor.pieces import Care
from functional.programs.program import Program
from functional.programs.registers import bits_of, live_behind, numbers_in
from functional.ptx.ir import TYPE_BYTES, Instruction, Register, Vector, registers_of
from functional.steps.machine import Entries, Machine, Watch, order_of
from functional.traces.trace import Trace

_BANKS = 16


def allocate(program: Program) -> dict[Register, int]:
    """A register number for every virtual register; two that live at the same time differ while 255 are enough."""
    colours = _Colours(program)
    for instruction in program.instructions:
        if instruction.is_memory:
            for destination in instruction.destinations:
                if isinstance(destination, Vector):
                    colours.take_together([e for e in destination.elements if isinstance(e, Register)])
    for register in program.registers:
        colours.take_together([register])
    return dict(zip(program.registers, colours.numbers, strict=True))


class _Colours:
    def __init__(self, program: Program) -> None:
        self.registers = program.registers
        self.ids = program.numbers
        self.neighbours = _interference(program, self.ids)
        self.words = [1] * len(self.ids)
        for instruction in program.instructions:
            if instruction.is_memory and TYPE_BYTES.get(instruction.type, 4) > 4:
                for register in instruction.writes():
                    self.words[self.ids[register]] = 2
        self.numbers = [-1] * len(self.ids)

    def take_together(self, registers: Sequence[Register]) -> None:
        """Give consecutive numbers to registers that have none; one by one if that is not possible."""
        members = [self.ids[r] for r in registers]
        new = [m for m in dict.fromkeys(members) if self.numbers[m] < 0]
        if new == members and self._take(new):
            return
        for member in new:
            if not self._take([member]):
                self.numbers[member] = self.registers[member].number % RZ  # more live values than registers

    def _take(self, members: list[int]) -> bool:
        offsets = [sum(self.words[m] for m in members[:k]) for k in range(len(members))]
        blocked = [self._blocked(m) for m in members]
        shapes = [(1 << self.words[m]) - 1 for m in members]
        last = RZ - offsets[-1] - self.words[members[-1]]
        bank = self.registers[members[0]].number % _BANKS
        for number in [*range(bank, last + 1, _BANKS), *range(last + 1)]:
            places = zip(blocked, shapes, offsets, strict=True)
            if not any(taken & shape << number + offset for taken, shape, offset in places):
                for member, offset in zip(members, offsets, strict=True):
                    self.numbers[member] = number + offset
                return True
        return False

    def _blocked(self, member: int) -> int:
        """Bit set of the numbers that registers living at the same time have."""
        others = ((self.numbers[other], self.words[other]) for other in numbers_in(self.neighbours[member]))
        return reduce(or_, ((1 << words) - 1 << number for number, words in others if number >= 0), 0)


def _interference(program: Program, ids: dict[Register, int]) -> list[int]:
    """Bit set of the registers each one must differ from: those live where it is written, also across calls."""
    neighbours = [0] * len(ids)
    inside = _registers_of_functions(program, ids)
    for index, live in live_behind(program):
        instruction = program.instructions[index]
        written = [ids[r] for r in instruction.writes()]
        together = live | sum(1 << w for w in set(written))
        if instruction.callee is not None:
            written += numbers_in(inside[instruction.callee])
        for w in written:
            neighbours[w] |= together & ~(1 << w)
    for n, others in enumerate(list(neighbours)):
        for other in numbers_in(others):
            neighbours[other] |= 1 << n
    return neighbours


def _registers_of_functions(program: Program, ids: dict[Register, int]) -> dict[str, int]:
    """Bit set of the registers a function and all it calls use. There is no recursion."""
    own: dict[str, list[Instruction]] = {}
    for instruction, function in zip(program.instructions, program.function_of, strict=True):
        own.setdefault(function, []).append(instruction)

    def used(function: str) -> int:
        inside = bits_of((r for i in own[function] for r in (*i.reads(), *i.writes())), ids)
        return reduce(or_, (used(i.callee) for i in own[function] if i.callee is not None), inside)

    return {function: used(function) for function in own}


SassOpcode = Callable[[Instruction, bool], str]  # (PTX instruction, in the entry?) -> SASS opcode without a width
Progress = Callable[[str, int, int], object]

BINARY_VERSION = 80  # which opcode map Accel-Sim takes: Ampere
TRACER_VERSION = 5
INSTRUCTION_BYTES = 16
MOST_SOURCES = 4
_CHUNK_WARPS = 256  # recorded together: 256 B an access and warp
_SUFFIX = {1: ".U8", 2: ".U16", 4: "", 8: ".64", 16: ".128", 32: ".128"}
_FORMAT = "#traces format = PC mask dest_num [reg_dests] opcode src_num [reg_srcs] mem_width [mode addresses] immediate"


def write(
    case: Case, directory: Path, sass_opcode: SassOpcode, *, compress: bool = False,
    chosen: Collection[int] | None = None, alone: bool = False, instruction_budget: int = DEFAULT_INSTRUCTION_BUDGET,
    progress: Progress = lambda *_: None,
) -> list[Path]:  # fmt: skip
    """Execute every launch of a case and write what its warps did; returns the files of the kernels.

    `sass_opcode` names the SASS opcode of a PTX instruction. `compress`: `.traceg.xz`. `chosen`: of these launches
    only; the others are executed all the same, unless each launch can be executed `alone`. The list of kernels is
    written last, so that a directory with one is whole. Raises InputError for a directory that has one already or
    cannot be written, for a kernel that the format cannot hold, and whatever executing raises."""
    memory, files = case.to_execute_on(), list[Path]()
    for program in (launch.program for launch in case.launches):
        if any(i.opcode == "tcgen05" for i in program.instructions):
            raise InputError(f"kernel '{program.name}' uses tcgen05, of which this format of traces knows nothing")
    refuse((directory / LIST_NAME).exists(), f"{directory}: has a {LIST_NAME} already; choose another directory")
    if (directory / "manifest.json").exists():
        raise InputError(f"{directory}: is a folder of `abstim trace`; choose another directory")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for number, launch in enumerate(case.launches):
            progress(f"trace {case.name}", number, len(case.launches))
            if chosen is not None and number not in chosen:
                if not alone:
                    default_executor().run(launch, memory, None, instruction_budget)
                continue
            files.append(directory / f"kernel-{number + 1}.traceg{'.xz' if compress else ''}")
            with _written(files[-1]) as file:
                file.write(_header(launch, number + 1, case.registers(launch).count))
                _Writer(launch, memory, sass_opcode, instruction_budget).write(file)
        copies = [f"MemcpyHtoD,0x{region.address:016x},{region.bytes}" for region in case.memory.buffers.values()]
        with _written(directory / LIST_NAME) as file:
            file.write("\n".join([*copies, *(f.name for f in files)]) + "\n")
    except OSError as error:
        raise InputError(f"{directory}: {error.strerror or error}") from None
    return files


@contextmanager
def _written(path: Path) -> Iterator[IO[str]]:
    """A file of text, compressed if its name says so, that is there whole or not at all."""
    with replacing(path) as part, lzma.open(part, "wt", preset=1) if path.suffix == ".xz" else part.open("w") as file:
        yield file  # type: ignore[misc]


def _header(launch: Launch, number: int, registers: int) -> str:
    grid, block = (f"({','.join(map(str, extents))})" for extents in (launch.grid, launch.block))
    values = {"kernel name": launch.program.name, "kernel id": number, "grid dim": grid, "block dim": block}
    values |= {"shmem": launch.shared_bytes, "nregs": registers, "binary version": BINARY_VERSION, "cuda stream id": 0}
    values |= {"shmem base_addr": f"0x{SHARED_WINDOW:016x}", "local mem base_addr": f"0x{LOCAL_WINDOW:016x}"}
    values |= {"nvbit version": "none (abstim)", "accelsim tracer version": TRACER_VERSION, "enable lineinfo": 0}
    return "".join(f"-{key} = {value}\n" for key, value in values.items()) + f"\n{_FORMAT}\n"


class _Recording(Watch):
    def begin(self, machine: Machine) -> None:
        self._warps, self._lanes, self._addresses = machine.warps, Entries(), Entries()

    def lanes(self, rows: np.ndarray, lanes: np.ndarray) -> None:
        self._lanes.append((rows, lanes))

    def addresses(self, rows: np.ndarray, addresses: np.ndarray) -> None:
        self._addresses.append((rows, np.broadcast_to(addresses, (len(rows), 32)).astype(np.int64)))

    def guards(self) -> list[int]:
        """Lane masks of guarded instructions, warp after warp."""
        return self._in_order(self._lanes, np.zeros(0, np.uint32)).tolist()

    def accesses(self) -> Int64[np.ndarray, "access lane"]:
        """Addresses, warp after warp."""
        return self._in_order(self._addresses, np.zeros((0, 32), np.int64))

    def _in_order(self, entries: Entries, none: np.ndarray) -> np.ndarray:
        order, _ = order_of([rows for rows, _ in entries], self._warps)
        return np.concatenate([none, *(values for _, values in entries)])[order]


class _Writer:
    def __init__(self, launch: Launch, memory: Memory, sass_opcode: SassOpcode, budget: int) -> None:
        self.launch, self.memory, self.budget = launch, memory, budget
        self.texts = _texts(launch.program, sass_opcode)
        self.recording = recording = _Recording()  # of the last chunk
        self.executor = LlvmExecutor(1, Care.GUARDS, lambda _: recording)

    def write(self, file: IO[str]) -> None:
        blocks, together = self.launch.thread_blocks, max(1, _CHUNK_WARPS // self.launch.warps_per_block)
        for first in range(0, blocks, together):
            chunk = range(first, min(first + together, blocks))
            trace = self.executor.run(self.launch, self.memory, chunk, self.budget)
            guard, access = iter(self.recording.guards()), iter(self.recording.accesses())  # each warp takes its own
            x, y, _ = self.launch.grid
            for n, block in enumerate(trace.thread_blocks.tolist()):
                file.write(f"\n#BEGIN_TB\n\nthread block = {block % x},{block // x % y},{block // (x * y)}\n")
                for w in range(trace.warps_per_block):
                    lines = list(self._lines(trace, n * trace.warps_per_block + w, guard, access))
                    file.write(f"\nwarp = {w}\ninsts = {len(lines)}\n" + "".join(lines))
                file.write("\n#END_TB\n")

    def _lines(self, trace: Trace, warp: int, guard: Iterator[int], access: Iterator[np.ndarray]) -> Iterator[str]:
        program = self.launch.program
        events = slice(trace.block_offsets[warp], trace.block_offsets[warp + 1])
        for b, mask in zip(trace.blocks[events].tolist(), trace.masks[events].tolist(), strict=True):
            block = program.blocks[b]
            for i in range(block.start, block.stop):
                instruction = program.instructions[i]
                before, behind = self.texts[i]
                active = mask if instruction.guard is None else next(guard)
                if instruction.is_memory:
                    lanes = [lane for lane in range(32) if active >> lane & 1]
                    behind += format_addresses(next(access)[lanes].tolist(), lanes) + " "
                yield f"{before} {active:08x} {behind}0 \n"


def _texts(program: Program, sass_opcode: SassOpcode) -> list[tuple[str, str]]:
    """What stands in front of and behind the mask of each instruction, up to the addresses."""
    numbers = allocate(program)
    found = []
    for i, pc in zip(program.instructions, program.pcs, strict=True):
        opcode = sass_opcode(i, program.function_of[i.index] == program.name)
        width = i.access_bytes if i.is_memory else 0
        matrices = next((f".{m[1:]}" for m in i.modifiers if m in ("x2", "x4")), "")
        opcode += matrices if i.opcode == "ldmatrix" else _SUFFIX.get(width, "")
        written = [f"R{numbers[r]}" for r in i.writes()[:1]]
        read = [f"R{numbers[r]}" for r in _sources(i)]
        fields = [str(len(written)), *written, opcode, str(len(read)), *read, str(width), ""]
        found.append((f"{pc * INSTRUCTION_BYTES:04x}", " ".join(fields)))
    return found


def _sources(instruction: Instruction) -> list[Register]:
    """At most four: all that are read and the guard, or else one of each vector."""
    guard = [instruction.guard.register] if instruction.guard else []
    every = list(dict.fromkeys([*instruction.reads(), *guard]))
    if len(every) <= MOST_SOURCES:
        return every
    first = [r for operand in instruction.sources for r in registers_of(operand)[:1]]
    return list(dict.fromkeys([*first, *guard]))[:MOST_SOURCES]
