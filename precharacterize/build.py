"""Program + pipeline -> latency table: made once, kept on disk, and reused for every design point."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from functional.keep.kept import Kept, key
from functional.programs.program import Program
from functional.ptx.ir import TYPE_BYTES, Instruction
from precharacterize.asynchronous_copies import copies_of
from precharacterize.classify import Kind, kind_of, latency_class
from precharacterize.named_barriers import barriers_of
from precharacterize.parameters import UNITS, Operation, PipelineParameters
from precharacterize.pipeline import block_gaps_cycles, result_delay_cycles, start_delay_cycles
from precharacterize.product_times import sized
from precharacterize.registers import long_waits_of, read_banks_of, waits_of, write_banks_of
from precharacterize.table import WRITE_BACK_CYCLES, LatencyTable, padded

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
