"""Writing an Accel-Sim trace directory from our own executor: traces without the GPU they are of."""

from __future__ import annotations

import lzma
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import numpy as np

from functional.accelsim.addresses import format_addresses
from functional.accelsim.header import LIST_NAME
from functional.accelsim.register_allocation import allocate
from functional.errors import InputError
from functional.execution.default_executor import default_executor
from functional.execution.executor import DEFAULT_INSTRUCTION_BUDGET
from functional.isa.memory import LOCAL_WINDOW, SHARED_WINDOW
from functional.launches.case import Case
from functional.launches.launch import Launch
from functional.launches.memory import Memory
from functional.numpy_executor import NumpyExecutor
from functional.numpy_executor.log import Log
from functional.programs.program import Program
from functional.ptx.ir import Instruction, Register, registers_of
from functional.traces.trace import Trace

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
    case: Case,
    directory: Path,
    sass_opcode: SassOpcode,
    *,
    compress: bool = False,
    chosen: Collection[int] | None = None,
    alone: bool = False,
    instruction_budget: int = DEFAULT_INSTRUCTION_BUDGET,
    progress: Progress = lambda *_: None,
) -> list[Path]:
    """Execute every launch of a case and write what its warps did; returns the files of the kernels.

    `sass_opcode` names the SASS opcode of a PTX instruction. `compress`: `.traceg.xz`. `chosen`: of these launches
    only; the others are executed all the same, unless each launch can be executed `alone`. The list of kernels is
    written last, so that a directory with one is whole. Raises InputError for a directory that has one already or
    cannot be written, for a kernel that the format cannot hold, and whatever executing raises.
    """
    memory, files = case.memory.copy(), list[Path]()
    _refuse_what_has_no_form(case)
    if (directory / LIST_NAME).exists():
        raise InputError(f"{directory}: has a {LIST_NAME} already; choose another directory")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for number, launch in enumerate(case.launches):
            progress(f"trace {case.name}", number, len(case.launches))
            if chosen is not None and number not in chosen:
                if not alone:
                    default_executor().run(launch, memory, None, instruction_budget)
                continue
            files.append(directory / f"kernel-{number + 1}.traceg{'.xz' if compress else ''}")
            with _replacing(files[-1]) as file:
                file.write(_header(launch, number + 1, case.registers(launch).count))
                _Writer(launch, memory, sass_opcode, instruction_budget).write(file)
        regions = case.memory.buffers.values()
        copies = [f"MemcpyHtoD,0x{region.address:016x},{region.bytes}" for region in regions]
        with _replacing(directory / LIST_NAME) as file:
            file.write("\n".join([*copies, *(f.name for f in files)]) + "\n")
    except OSError as error:
        raise InputError(f"{directory}: {error.strerror or error}") from None
    return files


def _refuse_what_has_no_form(case: Case) -> None:
    for launch in case.launches:
        if any(i.opcode == "tcgen05" for i in launch.program.instructions):
            raise InputError(
                f"kernel '{launch.program.name}' uses tcgen05, of which this format of traces knows nothing"
            )


@contextmanager
def _replacing(path: Path) -> Iterator[IO[str]]:
    """A file that is there whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with lzma.open(temporary, "wt", preset=1) if path.suffix == ".xz" else temporary.open("w") as file:
            yield file  # type: ignore[misc]
        temporary.replace(path)
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()


def _header(launch: Launch, number: int, registers: int) -> str:
    values = {
        "kernel name": launch.program.name, "kernel id": number, "grid dim": f"({','.join(map(str, launch.grid))})",
        "block dim": f"({','.join(map(str, launch.block))})", "shmem": launch.shared_bytes, "nregs": registers,
        "binary version": BINARY_VERSION, "cuda stream id": 0, "shmem base_addr": f"0x{SHARED_WINDOW:016x}",
        "local mem base_addr": f"0x{LOCAL_WINDOW:016x}", "nvbit version": "none (abstim)",
        "accelsim tracer version": TRACER_VERSION, "enable lineinfo": 0,
    }  # fmt: skip
    return "".join(f"-{key} = {value}\n" for key, value in values.items()) + f"\n{_FORMAT}\n"


class _Recording(Log):
    """A log that also keeps the lanes of guards and the addresses of accesses."""

    def __init__(self, warps: int) -> None:
        super().__init__(warps)
        self._lanes: list[tuple[np.ndarray, np.ndarray]] = []
        self._addresses: list[tuple[np.ndarray, np.ndarray]] = []

    def lanes(self, rows: np.ndarray, lanes: np.ndarray) -> None:
        bits = lanes if lanes.ndim == 1 else np.packbits(lanes, axis=1, bitorder="little").view(np.uint32)[:, 0]
        self._lanes.append((rows, bits))

    def addresses(self, rows: np.ndarray, addresses: np.ndarray) -> None:
        whole = np.broadcast_to(addresses, (len(rows), 32)).astype(np.int64)
        self._addresses.append((rows, whole))

    def guards(self) -> tuple[np.ndarray, np.ndarray]:
        """(lane masks of guarded instructions, how many a warp), warp after warp."""
        return self._stream(self._lanes, np.uint32)

    def accesses(self) -> tuple[np.ndarray, np.ndarray]:
        """(addresses [access, lane], accesses a warp), warp after warp."""
        return self._stream(self._addresses or [(np.zeros(0, np.int64), np.zeros((0, 32), np.int64))], np.int64)


class _Writer:
    """The thread blocks of one launch."""

    def __init__(self, launch: Launch, memory: Memory, sass_opcode: SassOpcode, budget: int) -> None:
        self.launch, self.memory, self.budget = launch, memory, budget
        self.texts = _texts(launch.program, sass_opcode)
        self._logs: list[_Recording] = []
        self.executor = NumpyExecutor(_CHUNK_WARPS, self._log)

    def _log(self, warps: int) -> _Recording:
        self._logs = [_Recording(warps)]
        return self._logs[0]

    def write(self, file: IO[str]) -> None:
        blocks, together = self.launch.thread_blocks, max(1, _CHUNK_WARPS // self.launch.warps_per_block)
        for first in range(0, blocks, together):
            chunk = range(first, min(first + together, blocks))
            trace = self.executor.run(self.launch, self.memory, chunk, self.budget)
            self._chunk(file, trace, self._logs[0])

    def _chunk(self, file: IO[str], trace: Trace, log: _Recording) -> None:
        guards, guard_counts = log.guards()
        accesses, access_counts = log.accesses()
        guard, access = iter(guards.tolist()), iter(accesses)
        del guard_counts, access_counts  # each warp takes its own in turn
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
        opcode += _matrices(i) if i.opcode == "ldmatrix" else _SUFFIX.get(width, "")
        written = [f"R{numbers[r]}" for r in i.writes()[:1]]
        read = [f"R{numbers[r]}" for r in _sources(i)]
        fields = [str(len(written)), *written, opcode, str(len(read)), *read, str(width), ""]
        found.append((f"{pc * INSTRUCTION_BYTES:04x}", " ".join(fields)))
    return found


def _matrices(instruction: Instruction) -> str:
    return next((f".{m[1:]}" for m in instruction.modifiers if m in ("x2", "x4")), "")


def _sources(instruction: Instruction) -> list[Register]:
    """At most four: all that are read and the guard, or else one of each vector."""
    guard = [instruction.guard.register] if instruction.guard else []
    every = list(dict.fromkeys([*instruction.reads(), *guard]))
    if len(every) <= MOST_SOURCES:
        return every
    first = [r for operand in instruction.sources for r in registers_of(operand)[:1]]
    return list(dict.fromkeys([*first, *guard]))[:MOST_SOURCES]
