"""Program + pipeline -> timed code: made once, kept on disk, reused for every design point with that pipeline."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import fields
from functools import reduce
from typing import Any

import numpy as np

from functional.disk.kept import Kept, key
from functional.program import Program
from precharacterize.build import characterize, kinds_of
from precharacterize.hoisting import hoisted
from precharacterize.machine_code.assemble import Assembly, assemble
from precharacterize.machine_code.instruction import MachineInstruction
from precharacterize.machine_code.timed_blocks import machine_timed_blocks
from precharacterize.operations import NONE, Operations, ptx_operations_of
from precharacterize.parameters import PipelineParameters
from precharacterize.rows import Row, ptx_rows, table_of_rows
from precharacterize.table import LatencyTable
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

MODULES = ("precharacterize.build_timed", "functional.parser", "functional.link")


def timed_code_of(program: Program, pipeline: PipelineParameters, architecture: str) -> TimedCode:
    """What is timed of a program on a GPU that runs machine code ("sm_86"): from the cache folder if it is there.

    Without an assembler, and where it refuses the PTX, that is PTX with loads hoisted; `description` says which.
    """
    assembly = assembly_of(program, architecture)
    kept = Kept("timed_code")
    name = key(MODULES, program.digest, program.name, pipeline.key, assembly.made_by)
    found = kept.load(name, decode)
    if found is None:
        found = build_timed_code(program, pipeline, assembly)
        kept.save(name, encode(found))
    return found


def assembly_of(program: Program, architecture: str) -> Assembly:
    """A program's machine code, whose PTX instructions are known by their lines."""
    lines = [i.line for i in program.instructions]
    if len(set(lines)) < len(lines):
        return Assembly({}, "the PTX has several instructions in a line")
    return assemble(program.path, program.digest, architecture)


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
        operations = reduce(Operations.plus, (ptx_operations_of(program.instructions[i]) for i in order), NONE)
        made = TimedBlock(start, len(rows), block.index, covers=covers, accesses=accesses, operations={0: operations})
        blocks.append(made)
    return rows, blocks


def encode(code: TimedCode) -> bytes:
    """As a file holds it."""
    arrays: dict[str, Any] = {f.name: np.asarray(getattr(code, f.name)) for f in fields(code) if f.name != "table"}
    buffer = io.BytesIO()
    np.savez(buffer, table=np.frombuffer(code.table.encode(), np.uint8), **arrays)
    return buffer.getvalue()


def decode(content: bytes) -> TimedCode:
    """What `encode` gave. Raises ValueError or KeyError for anything else."""
    with np.load(io.BytesIO(content), allow_pickle=False) as data:
        values = {f.name: data[f.name] for f in fields(TimedCode)}
    values |= {"table": LatencyTable.decode(values["table"].tobytes()), "description": str(values["description"])}
    return TimedCode(**values)
