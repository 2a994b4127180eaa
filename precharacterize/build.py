"""Program + pipeline -> latency table: made once, kept on disk, and reused for every design point.

The pipeline is that of one warp alone on a single SP, every access a hit, no branch taken (GATSim, Section II-A): it
walks each basic block once through fetch pairs, scoreboard, operand collector and units, which gives every instruction
its issue-to-issue gap and its issue-to-result distance. Stages: docs/timing-rules.md, rules 3 to 7."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from functional.keep.kept import Kept, key
from functional.programs.program import BasicBlock, Program
from functional.ptx.ir import TYPE_BYTES, Address, Instruction, registers_of
from precharacterize.classify import Kind, kinds_of, latency_class
from precharacterize.synchronisation import NONE, REGISTERS, barrier_of, copies_of, register_count, settled
from precharacterize.table import (
    UNITS,
    WRITE_BACK_CYCLES,
    LatencyTable,
    Operation,
    PipelineParameters,
    brought,
    decoded,
    encoded,
    padded,
)
from precharacterize.tensor_work import sized
from precharacterize.timed_code import Access, TimedBlock


def unique(values: Iterable[int]) -> list[int]:
    """Values without repeats, first occurrence first."""
    return list(dict.fromkeys(values))


def waits_of(instruction: Instruction, ids: dict[str, int]) -> list[int]:
    """Scoreboard registers to be free before issue: RAW on sources and guard, WAW on destinations."""
    guard = (instruction.guard.register,) if instruction.guard else ()
    if instruction.opcode == "wgmma":  # products of one accumulator follow each other in the unit
        return unique(ids[r.name] for operand in instruction.sources[:-1] for r in registers_of(operand))
    return unique(ids[r.name] for r in (*instruction.reads(), *instruction.writes(), *guard))


def read_banks_of(instruction: Instruction) -> list[int]:
    """Register numbers read from the register file: one number once."""
    if instruction.opcode == "wgmma":  # accumulators are read as the product needs them
        instruction = replace(instruction, sources=instruction.sources[:-1])
    return unique(r.number for r in instruction.reads())


ALLOCATE_CYCLES = 1  # issue -> operand collector
READ_CYCLES = 1  # collector -> operands at hand, one more for each access to a bank already used this cycle
DISPATCH_CYCLES = 1  # operands at hand -> unit starts
FETCH_TO_ISSUE_CYCLES = 2


def start_delay_cycles(read_numbers: list[int], banks: int) -> int:
    """Cycles from issue to the start on the unit: one bank serves one operand a cycle."""
    per_bank = [sum(n % banks == bank for n in read_numbers) for bank in {n % banks for n in read_numbers}]
    return ALLOCATE_CYCLES + READ_CYCLES + max(per_bank, default=0) + DISPATCH_CYCLES


def result_delay_cycles(
    kind: Kind, latency_cycles: int, pipeline: PipelineParameters, offset_cycles: int = WRITE_BACK_CYCLES
) -> int:
    """Cycles from the start on the unit to the result, accesses hits. `offset_cycles`: from the unit's end to it."""
    if kind in (Kind.PARAM_LOAD, Kind.CONST_LOAD):
        return pipeline.const_hit_cycles
    if kind in (Kind.SHARED_LOAD, Kind.SHARED_STORE, Kind.SHARED_ATOMIC):
        return pipeline.shared_cycles
    return pipeline.global_hit_cycles if kind >= Kind.GLOBAL_LOAD else offset_cycles + latency_cycles


class Row(Struct):
    """One instruction as the engine sees it; see LatencyTable. `access` says what a memory row takes from the trace,
    `origin` which PTX instruction it was made of, as a position in the program."""

    unit: int
    kind: int
    latency_cycles: int
    initiation_cycles: int
    access_bytes: int = 4
    pcs: int = 0
    waits: list[int] = field(default_factory=list)
    writes: list[int] = field(default_factory=list)
    long_waits: list[int] = field(default_factory=list)
    read_banks: list[int] = field(default_factory=list)
    write_banks: list[int] = field(default_factory=list)
    stall_cycles: int = 1
    release: int = NONE
    counted: bool = False
    barrier: int | None = NONE  # None: one that is not known
    copies: int = NONE
    retries: bool = False  # of a block that goes round until its compare-and-swap has worked for every lane
    word: int = 0
    fp64_atomic: bool = False
    access: Access | None = None
    origin: int = NONE


MEMORY = Operation(latency_cycles=1, initiation_cycles=1, unit="mem")


def row_of(kind: Kind, operation: Operation, **values: Any) -> Row:
    """An instruction by its operation, which is MEMORY for what accesses memory."""
    held = round(operation.initiation_cycles)
    return Row(UNITS.index(operation.unit), kind, operation.latency_cycles, held, **values)


def block_gaps_cycles(
    block: BasicBlock, rows: Sequence[Row], results: Sequence[int], pipeline: PipelineParameters
) -> list[int]:
    """Issue-to-issue gap after each instruction of a block; the last one's is to the fall-through instruction."""
    free: dict[int, int] = {}  # scoreboard register -> cycle
    unit_free = [0] * len(UNITS)
    issues = []
    time = 0
    width, line = pipeline.instructions_per_fetch, pipeline.fetch_line_instructions
    slots = brought(width, line, rows[block.start].pcs)
    for i in range(block.start, block.stop):
        row = rows[i]
        time = max([time, *(free.get(register, 0) for register in row.waits)])
        start = max(time, unit_free[row.unit])
        unit_free[row.unit] = start + row.initiation_cycles
        free |= dict.fromkeys(row.writes, start + results[i])
        issues.append(time)
        slots -= 1
        time += 1 if slots else FETCH_TO_ISSUE_CYCLES
        slots = slots or brought(width, line, row.pcs + 1)
    return [b - a for a, b in zip(issues, [*issues[1:], time], strict=True)]


MODULES = ("precharacterize.build", "functional.ptx.parser", "functional.programs.link")  # what makes a table of a text


def table_key(program: Program, pipeline: PipelineParameters) -> str:
    """What a table depends on: the program's text, the kernel's name, the launch as known, the pipeline, our code."""
    return key(MODULES, program.digest, program.name, str(program.constants), pipeline.key)


def characterize(program: Program, pipeline: PipelineParameters) -> LatencyTable:
    """The program's latency table, from the cache folder if it is there; else built, and kept."""
    make, decode = partial(build_table, program, pipeline), partial(decoded, LatencyTable)
    return Kept("tables").load_or_make(table_key(program, pipeline), make, decode, encoded)


def build_table(program: Program, pipeline: PipelineParameters) -> LatencyTable:
    """Characterise a program (GATSim, Section II-A), without any cache."""
    ids = {r.name: n for n, r in enumerate(program.registers)}
    code = zip(program.instructions, program.pcs, kinds_of(program), strict=True)
    rows = [_ptx_row(i, pc, _operation(i, kind, program, pipeline), kind, ids) for i, pc, kind in code]
    banks = pipeline.register_banks
    delays = (result_delay_cycles(Kind(r.kind), r.latency_cycles, pipeline) for r in rows)
    results = [start_delay_cycles(r.read_banks, banks) + delay for r, delay in zip(rows, delays, strict=True)]
    gaps = [block_gaps_cycles(block, rows, results, pipeline) for block in program.code_blocks]
    return table_of(rows, program.code_blocks, results, gaps, WRITE_BACK_CYCLES, len(ids), table_key(program, pipeline))


def _ptx_row(instruction: Instruction, pc: int, operation: Operation, kind: Kind, ids: dict[str, int]) -> Row:
    # of a two-level scheduler: plain source registers, without address bases and guard (GPGPU-Sim 4.2)
    plain = [s for s in instruction.sources if not isinstance(s, Address)]
    row = row_of(kind, operation, access_bytes=TYPE_BYTES.get(instruction.type, 4), pcs=pc)
    row.fp64_atomic = kind == Kind.GLOBAL_ATOMIC and instruction.type == "f64"
    if instruction.opcode == "atom":  # GPGPU-Sim 4.2 does not see its address register (has_memory_read)
        instruction = replace(instruction, sources=tuple(plain))
    row.waits, row.writes = waits_of(instruction, ids), [ids[r.name] for r in instruction.writes()]
    row.long_waits = unique(ids[r.name] for s in plain for r in registers_of(s))
    row.read_banks = read_banks_of(instruction)
    row.write_banks = [r.number for r in instruction.writes()]
    row.barrier, row.copies = barrier_of(instruction), copies_of(instruction)
    row.word = register_count(instruction) if row.copies == REGISTERS else 0
    return row


def table_of(
    rows: Sequence[Row], blocks: Sequence[BasicBlock] | Sequence[TimedBlock], results: Sequence[int],
    gaps: Sequence[Sequence[int]], result_offset_cycles: int, register_count: int, key: str,
) -> LatencyTable:  # fmt: skip
    """The latency table of rows; `gaps` are those of each block's."""

    def column(name: str, kind: type = np.int32) -> np.ndarray:
        return np.array([getattr(row, name) for row in rows], kind)

    lengths = [cycles for of_block in gaps for cycles in [sum(of_block)] * len(of_block)]
    ragged = ("waits", "writes", "long_waits", "read_banks", "write_banks")
    plain = ("latency_cycles", "initiation_cycles", "pcs", "copies", "word", "stall_cycles", "release")
    return LatencyTable(
        **{name: column(name, np.int8) for name in ("unit", "kind", "access_bytes", "counted", "fp64_atomic")},
        **{name: column(name) for name in plain},
        **{name: padded([getattr(row, name) for row in rows]) for name in ragged},
        gap_cycles=np.array([gap for of_block in gaps for gap in of_block], np.int32),
        result_cycles=np.array(results, np.int32),
        barrier=np.array(settled([row.barrier for row in rows], [row.kind for row in rows]), np.int32),
        round_cycles=np.where(column("retries", bool), lengths, 0).astype(np.int32),
        result_offset_cycles=np.full(len(rows), result_offset_cycles, np.int32),
        block_start=np.array([b.start for b in blocks], np.int32),
        block_stop=np.array([b.stop for b in blocks], np.int32), register_count=register_count, key=key,
    )  # fmt: skip


def _operation(instruction: Instruction, kind: Kind, program: Program, pipeline: PipelineParameters) -> Operation:
    if kind >= Kind.PARAM_LOAD or kind == Kind.FENCE:
        return MEMORY
    found = sized(instruction, program, latency_class(instruction), pipeline)
    if instruction.opcode not in ("mul24", "mad24"):
        return found
    # GPGPU-Sim 4.2 cuts the 24 bits out (set_opcode_and_latency)
    return Operation(found.latency_cycles + 1, found.initiation_cycles + 1, found.unit)
