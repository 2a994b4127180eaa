"""Program + pipeline -> latency table: made once, kept on disk, and reused for every design point.

The pipeline is that of one warp alone on a single SP, every access a hit, no branch taken (GATSim, Section II-A): it
walks each basic block once through fetch pairs, scoreboard, operand collector and units, which gives every instruction
its issue-to-issue gap and its issue-to-result distance. Stages: docs/timing-rules.md, rules 3 to 7.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from functional.keep.kept import Kept, key
from functional.programs.program import BasicBlock, Program
from functional.ptx.ir import TYPE_BYTES, Address, Instruction, registers_of
from precharacterize.classify import Kind, kind_of, latency_class
from precharacterize.synchronisation import barriers_of, copies_of
from precharacterize.table import UNITS, WRITE_BACK_CYCLES, LatencyTable, Operation, PipelineParameters, padded
from precharacterize.tensor_work import sized


def unique(values: Iterable[int]) -> list[int]:
    """Values without repeats, first occurrence first."""
    return list(dict.fromkeys(values))


def waits_of(instruction: Instruction, ids: dict[str, int]) -> list[int]:
    """Scoreboard registers to be free before issue: RAW on sources and guard, WAW on destinations."""
    guard = (instruction.guard.register,) if instruction.guard else ()
    if instruction.opcode == "wgmma":  # products of one accumulator follow each other in the unit
        return unique(ids[r.name] for operand in instruction.sources[:-1] for r in registers_of(operand))
    return unique(ids[r.name] for r in (*instruction.reads(), *instruction.writes(), *guard))


def long_waits_of(instruction: Instruction, ids: dict[str, int]) -> list[int]:
    """Plain source registers, without address bases and guard (GPGPU-Sim 4.2, two-level demotion)."""
    operands = [s for s in instruction.sources if not isinstance(s, Address)]
    return unique(ids[r.name] for s in operands for r in registers_of(s))


def read_banks_of(instruction: Instruction) -> list[int]:
    """Register numbers read from the register file: a repeated register once, predicates never."""
    if instruction.opcode == "wgmma":  # accumulators are read as the product needs them
        instruction = replace(instruction, sources=instruction.sources[:-1])
    return unique(r.number for r in dict.fromkeys(instruction.reads()) if r.type != "pred")


def write_banks_of(instruction: Instruction) -> list[int]:
    """Register numbers written back, -1 for a predicate; parallel to `Instruction.writes()`."""
    return [-1 if r.type == "pred" else r.number for r in instruction.writes()]


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
    """Cycles from the start on the unit to the result, every access a single hit. `offset_cycles`: what lies between
    the end of the unit's latency and the result."""
    if kind in (Kind.PARAM_LOAD, Kind.CONST_LOAD):
        return pipeline.const_hit_cycles
    if kind in (Kind.SHARED_LOAD, Kind.SHARED_STORE, Kind.SHARED_ATOMIC):
        return pipeline.shared_cycles
    if kind >= Kind.GLOBAL_LOAD:
        return pipeline.global_hit_cycles
    return offset_cycles + latency_cycles


def block_gaps_cycles(
    block: BasicBlock, table: LatencyTable, program: Program, pipeline: PipelineParameters
) -> list[int]:
    """Issue-to-issue gap after each instruction of a block; the last one's is to the fall-through instruction."""
    free: dict[int, int] = {}  # scoreboard register -> cycle
    unit_free = [0] * len(UNITS)
    issues = []
    time = 0
    slots = fetched(program.pcs[block.start], pipeline)
    for i in range(block.start, block.stop):
        time = max([time, *(free.get(r, 0) for r in table.waits[i].tolist() if r >= 0)])
        delay = int(table.result_cycles[i])
        start = max(time, unit_free[table.unit[i]])
        unit_free[table.unit[i]] = start + int(table.initiation_cycles[i])
        free |= {r: start + delay for r in table.writes[i].tolist() if r >= 0}
        issues.append(time)
        slots -= 1
        time += 1 if slots else FETCH_TO_ISSUE_CYCLES
        slots = slots or fetched(program.pcs[i] + 1, pipeline)
    return [b - a for a, b in zip(issues, [*issues[1:], time], strict=True)]


def fetched(pc: int, pipeline: PipelineParameters) -> int:
    """Instructions one fetch at `pc` brings: it never crosses an instruction-cache line."""
    return min(
        pipeline.instructions_per_fetch, pipeline.fetch_line_instructions - pc % pipeline.fetch_line_instructions
    )


MODULES = ("precharacterize.build", "functional.ptx.parser", "functional.programs.link")  # what makes a table of a text


def table_key(program: Program, pipeline: PipelineParameters) -> str:
    """What a table depends on: the text of the program, the kernel's name, what is known of the launch, the pipeline,
    and the code used here."""
    return key(MODULES, program.digest, program.name, str(program.constants), pipeline.key)


def characterize(program: Program, pipeline: PipelineParameters) -> LatencyTable:
    """The program's latency table, from the cache folder if it is there; else built, and kept."""
    tables, name = Kept("tables"), table_key(program, pipeline)
    table = tables.load(name, LatencyTable.decode)
    if table is None:
        table = build_table(program, pipeline)
        tables.save(name, table.encode())
    return table


def build_table(program: Program, pipeline: PipelineParameters) -> LatencyTable:
    """Characterise a program (GATSim, Section II-A), without any cache."""
    ids = {r.name: n for n, r in enumerate(program.registers)}
    code = program.instructions
    kinds = kinds_of(program)
    operations = [_operation(i, kind, program, pipeline) for i, kind in zip(code, kinds, strict=True)]
    reads = [read_banks_of(i) for i in code]
    results = [
        start_delay_cycles(r, pipeline.register_banks) + result_delay_cycles(k, o.latency_cycles, pipeline)
        for r, k, o in zip(reads, kinds, operations, strict=True)
    ]
    table = LatencyTable(
        unit=np.array([UNITS.index(o.unit) for o in operations], np.int8),
        kind=np.array(kinds, np.int8),
        latency_cycles=np.array([o.latency_cycles for o in operations], np.int32),
        initiation_cycles=np.array([o.initiation_cycles for o in operations], np.int32),
        access_bytes=np.array([TYPE_BYTES.get(i.type, 4) for i in code], np.int8),
        pcs=np.array(program.pcs, np.int32),
        waits=padded([waits_of(i, ids) for i in code]),
        writes=padded([[ids[r.name] for r in i.writes()] for i in code]),
        long_waits=padded([long_waits_of(i, ids) for i in code]),
        read_banks=padded(reads),
        write_banks=padded([write_banks_of(i) for i in code]),
        gap_cycles=np.zeros(len(code), np.int32),
        result_cycles=np.array(results, np.int32),
        block_start=np.array([b.start for b in program.blocks], np.int32),
        block_stop=np.array([b.stop for b in program.blocks], np.int32),
        register_count=len(ids),
        key=table_key(program, pipeline),
        stall_cycles=np.ones(len(code), np.int32),
        release=np.full(len(code), -1, np.int32),
        result_offset_cycles=np.full(len(code), WRITE_BACK_CYCLES, np.int32),
        counted=np.zeros(len(code), np.int8),
        barrier=np.array(barriers_of(code, kinds), np.int32),
        copies=np.array([copies_of(i) for i in code], np.int32),
        round_cycles=np.zeros(len(code), np.int32),
        word=np.zeros(len(code), np.int32),
    )
    gaps = [gap for block in program.blocks for gap in block_gaps_cycles(block, table, program, pipeline)]
    return replace(table, gap_cycles=np.array(gaps, np.int32))


def kinds_of(program: Program) -> list[Kind]:
    """The timing event of every instruction."""
    return [kind_of(i, program.function_of[i.index] == program.name) for i in program.instructions]


def _operation(instruction: Instruction, kind: Kind, program: Program, pipeline: PipelineParameters) -> Operation:
    if kind >= Kind.PARAM_LOAD or kind == Kind.FENCE:
        return Operation(latency_cycles=1, initiation_cycles=1, unit="mem")
    return sized(instruction, program, pipeline.operation(latency_class(instruction)))
