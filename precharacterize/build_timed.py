"""Program + pipeline + machine code -> timed code; kept_timed_code.py keeps it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from functional.programs.program import Program
from precharacterize.build import characterize, kinds_of
from precharacterize.classify import NO_OPERATIONS, Operations, ptx_operations_of
from precharacterize.machine_code.assemble import Assembly, MachineInstruction
from precharacterize.machine_code.timed_blocks import machine_timed_blocks
from precharacterize.rows import Row, hoisted, ptx_rows, table_of_rows
from precharacterize.table import LatencyTable, PipelineParameters
from precharacterize.timed_code import (
    Access,
    Cover,
    Mode,
    Source,
    TimedBlock,
    TimedCode,
    access_numbers,
    consumes,
    timed_code,
)


def build_timed_code(program: Program, pipeline: PipelineParameters, assembly: Assembly) -> TimedCode:
    """Timed code, without any cache."""
    kinds = kinds_of(program)
    table = characterize(program, pipeline)
    rows, blocks = _fallbacks(program, kinds, table, pipeline)
    code = _machine_code(program, assembly)
    description, vanished = f"PTX with loads hoisted ({assembly.made_by})", set()
    if code:
        machine_rows, machine = machine_timed_blocks(code, program, kinds, pipeline, table.register_count, len(rows))
        rows += machine_rows
        blocks += [_moved(b, len(program.blocks)) for b in machine]
        description = f"machine code ({assembly.made_by})"
        vanished = _vanished(program, blocks, kinds)
    needed = [b.index not in vanished for b in program.blocks]
    origins, made = [row.origin for row in rows], table_of_rows(rows, blocks, table, pipeline)
    return timed_code(program, kinds, made, blocks, needed, description, origins)


def _machine_code(program: Program, assembly: Assembly) -> list[MachineInstruction]:
    """Machine code of a program's entry and of the functions it calls that are still functions."""
    return [i for name in (program.name, *program.functions) for i in assembly.functions.get(name, [])]


def _vanished(program: Program, blocks: Sequence[TimedBlock], kinds: Sequence[int]) -> set[int]:
    """PTX blocks of which the assembler left nothing that is a block: no memory access, no code of their own."""
    leaders = {b.leader for b in blocks if b.machine}
    accesses = {b.index for b in program.blocks if any(consumes(kinds[i]) >= 0 for i in range(b.start, b.stop))}
    covered = {c.block for b in blocks if b.machine for c in b.covers}
    return {
        b.index for b in program.blocks if b.index not in leaders and (b.index in covered or b.index not in accesses)
    }


def _moved(block: TimedBlock, by: int) -> TimedBlock:
    """Its rivals counted from the first timed block of all."""
    block.rivals = [r + by for r in block.rivals]
    return block


def _fallbacks(
    program: Program, kinds: Sequence[int], table: LatencyTable, pipeline: PipelineParameters
) -> tuple[list[Row], list[TimedBlock]]:
    """Each PTX block by itself, its loads hoisted."""
    numbers = access_numbers(program, kinds)
    rows: list[Row] = []
    blocks = []
    for block in program.blocks:
        order = hoisted(block, program, kinds)
        accesses = [
            Access(Mode.PASSES if consumes(kinds[i]) else Mode.RECORDS, (Source(0, numbers[i]),))
            for i in order
            if i in numbers
        ]
        start = len(rows)
        rows += ptx_rows(order, table, program, pipeline, start)
        covers = [Cover(block.index, 0)]
        operations = reduce(Operations.plus, (ptx_operations_of(program.instructions[i]) for i in order), NO_OPERATIONS)
        made = TimedBlock(start, len(rows), block.index, covers=covers, accesses=accesses, operations={0: operations})
        blocks.append(made)
    return rows, blocks
