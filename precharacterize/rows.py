"""Rows of a latency table one by one: machine instructions, and PTX instructions in the order of an assembler, loads
as early as they can be.

What is dropped of the PTX is what machine code has no instruction for: parameters are operands there, address spaces
have one numbering, copies of registers are the registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from functional.programs.program import BasicBlock, Program
from functional.ptx.ir import Instruction, Register
from precharacterize.build import result_delay_cycles, start_delay_cycles
from precharacterize.classify import Kind, hardware_class, hardware_kind
from precharacterize.synchronisation import COPIES, NONE, copies_of, settled, starts
from precharacterize.table import (
    FORWARDED_CYCLES,
    SCOREBOARDS,
    UNITS,
    LatencyTable,
    Operation,
    PipelineParameters,
    padded,
)
from precharacterize.tensor_work import sized
from precharacterize.timed_code import Access, TimedBlock

_LOADS = (Kind.GLOBAL_LOAD, Kind.SHARED_LOAD, Kind.TEXTURE_LOAD, Kind.CONST_LOAD)
_BARRIERS = (Kind.BARRIER, Kind.FENCE, Kind.EXIT)
_WRITES = (Kind.GLOBAL_STORE, Kind.GLOBAL_ATOMIC, Kind.SHARED_STORE, Kind.SHARED_ATOMIC)


def hoisted(block: BasicBlock, program: Program, kinds: Sequence[int]) -> list[int]:
    """Positions of a block's instructions in the order they are timed in; those dropped are not among them."""
    code = program.instructions
    needs = _dependences(block, code, kinds)
    placed: dict[int, None] = {}

    def place(i: int) -> None:
        left = [i]
        while left:
            top = left[-1]
            missing = [k for k in needs[top] if k not in placed]
            if missing:
                left += missing[::-1]
            else:
                placed.setdefault(left.pop())

    for i in range(block.start, block.stop):
        if kinds[i] in _LOADS:
            place(i)
    for i in range(block.start, block.stop):
        place(i)
    return [i for i in placed if not is_dropped(code[i], kinds[i])] or [block.stop - 1]


def is_dropped(instruction: Instruction, kind: int) -> bool:
    """Has machine code no instruction for it?"""
    if kind == Kind.PARAM_LOAD or instruction.opcode == "cvta":
        return True
    copied = instruction.sources[0] if len(instruction.sources) == 1 else None
    return instruction.opcode == "mov" and isinstance(copied, Register) and instruction.guard is None


def _dependences(block: BasicBlock, code: Sequence[Instruction], kinds: Sequence[int]) -> dict[int, list[int]]:
    """What must come before each instruction of a block."""
    writer: dict[Register, int] = {}
    readers: dict[Register, list[int]] = {}
    needs: dict[int, list[int]] = {}
    for i in range(block.start, block.stop):
        guard = code[i].guard
        reads = [*code[i].reads(), *([guard.register] if guard else [])]
        before = {writer[r] for r in reads if r in writer}
        for r in code[i].writes():
            before |= {writer[r]} if r in writer else set()
            before |= set(readers.pop(r, []))
        before |= {k for k in range(block.start, i) if _ordered(code[k], kinds[k], code[i], kinds[i])}
        needs[i] = sorted(before - {i})
        for r in reads:
            readers.setdefault(r, []).append(i)
        writer |= dict.fromkeys(code[i].writes(), i)
    if block.stop > block.start and code[block.stop - 1].opcode in ("bra", "brx", "ret", "exit", "call", "trap"):
        needs[block.stop - 1] = list(range(block.start, block.stop - 1))
    return needs


def _ordered(first: Instruction, first_kind: int, second: Instruction, second_kind: int) -> bool:
    """Must two instructions stay in their order because of memory or barriers?"""
    free = (NONE, starts(COPIES))
    if copies_of(first) not in free or copies_of(second) not in free:  # others see when it is done
        return True
    if first_kind in _BARRIERS or second_kind in _BARRIERS or "call" in (first.opcode, second.opcode):
        return True
    if first_kind < Kind.PARAM_LOAD or second_kind < Kind.PARAM_LOAD:
        return False
    if first_kind not in _WRITES and second_kind not in _WRITES:
        return "volatile" in first.modifiers and "volatile" in second.modifiers
    if "nc" in (*first.modifiers, *second.modifiers) or Kind.PARAM_LOAD in (first_kind, second_kind):
        return False
    return _may_overlap(first, second)


def _may_overlap(first: Instruction, second: Instruction) -> bool:
    """Can two accesses meet? Not in different spaces, nor at different offsets from one register."""
    if "generic" not in (first.space, second.space) and first.space != second.space:
        return False
    a, b = first.address, second.address
    if a is None or b is None or a.base != b.base:
        return True
    return a.offset < b.offset + second.access_bytes and b.offset < a.offset + first.access_bytes


@dataclass
class Row:
    """One instruction as the engine sees it; see LatencyTable. `access` says what a memory row takes from the trace,
    `origin` which PTX instruction it was made of, as a position in the program."""

    unit: int
    kind: int
    latency: int
    initiation: int
    access_bytes: int = 4
    pc: int = 0
    waits: list[int] = field(default_factory=list)
    writes: list[int] = field(default_factory=list)
    long_waits: list[int] = field(default_factory=list)
    stall: int = 1
    release: int = NONE
    counted: bool = False
    barrier: int | None = NONE  # None: one that is not known
    copies: int = NONE
    retries: bool = False  # of a block that goes round until its compare-and-swap has worked for every lane
    word: int = 0
    access: Access | None = None
    origin: int = NONE


def register_row(kind: Kind, operation: Operation) -> Row:
    """An instruction that does not access memory."""
    return Row(UNITS.index(operation.unit), kind, operation.latency_cycles, operation.initiation_cycles)


def memory_row(kind: Kind, access_bytes: int, access: Access) -> Row:
    """A memory instruction."""
    return Row(UNITS.index("mem"), kind, 1, 1, access_bytes, access=access)


def ptx_rows(
    order: Sequence[int], table: LatencyTable, program: Program, pipeline: PipelineParameters, first: int
) -> list[Row]:
    """PTX instructions, in an order, as rows; `first` is the number of the first. A copy is the register it copies."""
    copies = _copies(program)
    rows = []
    for n, i in enumerate(order):
        kind = hardware_kind(program.instructions[i], Kind(int(table.kind[i])))
        instruction = program.instructions[i]
        operation = sized(instruction, program, pipeline.operation(hardware_class(instruction)))
        row = register_row(kind, operation) if kind < Kind.PARAM_LOAD else Row(UNITS.index("mem"), kind, 1, 1)
        row.access_bytes, row.pc, row.origin = int(table.access_bytes[i]), first + n, i
        row.waits = list(dict.fromkeys(copies.get(r, r) for r in table.waits[i].tolist() if r >= 0))
        row.writes, row.barrier = [r for r in table.writes[i].tolist() if r >= 0], int(table.barrier[i])
        row.copies = int(table.copies[i])
        rows.append(row)
    return rows


def _copies(program: Program) -> dict[int, int]:
    """Register -> the one it is a copy of, where both are written once."""
    ids = {r.name: n for n, r in enumerate(program.registers)}
    written: dict[str, int] = {}
    for instruction in program.instructions:
        for register in instruction.writes():
            written[register.name] = written.get(register.name, 0) + 1
    found: dict[int, int] = {}
    for i in program.instructions:
        source = i.sources[0] if len(i.sources) == 1 else None
        if not is_dropped(i, Kind.ALU) or not isinstance(source, Register):
            continue
        for target in i.writes():  # several, of a register taken apart
            if written.get(source.name) == written[target.name] == 1:
                found[ids[target.name]] = found.get(ids[source.name], ids[source.name])
    return found


def table_of_rows(
    rows: Sequence[Row], blocks: Sequence[TimedBlock], ptx: LatencyTable, pipeline: PipelineParameters
) -> LatencyTable:
    """The latency table of timed blocks. Registers are those of the PTX and a warp's scoreboards."""

    def column(name: str, kind: type) -> np.ndarray:
        return np.array([getattr(row, name) for row in rows], kind)

    results = [_result_cycles(row, pipeline) for row in rows]
    gaps = [_gaps(rows, results, b) for b in blocks]
    lengths = [sum(of_block) for of_block in gaps for _ in of_block]
    return LatencyTable(
        unit=column("unit", np.int8), kind=column("kind", np.int8), latency_cycles=column("latency", np.int32),
        initiation_cycles=column("initiation", np.int32), access_bytes=column("access_bytes", np.int8),
        pcs=column("pc", np.int32), waits=padded([r.waits for r in rows]), writes=padded([r.writes for r in rows]),
        long_waits=padded([[] for _ in rows]), read_banks=padded([[] for _ in rows]),
        write_banks=padded([[NONE] * len(r.writes) for r in rows]),
        gap_cycles=np.array([gap for of_block in gaps for gap in of_block], np.int32),
        result_cycles=np.array(results, np.int32),
        counted=column("counted", np.int8),
        barrier=np.array(settled([row.barrier for row in rows], [row.kind for row in rows]), np.int32),
        copies=column("copies", np.int32), word=column("word", np.int32),
        round_cycles=np.where(column("retries", bool), lengths, 0).astype(np.int32),
        stall_cycles=column("stall", np.int32), release=column("release", np.int32),
        result_offset_cycles=np.full(len(rows), FORWARDED_CYCLES, np.int32),
        block_start=np.array([b.start for b in blocks], np.int32),
        block_stop=np.array([b.stop for b in blocks], np.int32),
        register_count=ptx.register_count + 3 * SCOREBOARDS, key=ptx.key,
    )  # fmt: skip


def _result_cycles(row: Row, pipeline: PipelineParameters) -> int:
    """From issue to the issue of what waits for the result, every access a hit."""
    to_unit = start_delay_cycles([], pipeline.register_banks)
    return to_unit + result_delay_cycles(Kind(row.kind), row.latency, pipeline, FORWARDED_CYCLES)


def _gaps(rows: Sequence[Row], results: Sequence[int], block: TimedBlock) -> list[int]:
    """Cycles from issue to issue of a lone warp in a block; of the last instruction what it stalls."""
    ready: dict[int, int] = {}
    issues: list[int] = []
    for place in range(block.start, block.stop):
        row, after = rows[place], issues[-1] + rows[place - 1].stall if issues else 0
        issues.append(max([after, *(ready.get(register, 0) for register in (*row.waits, *row.writes))]))
        ready |= dict.fromkeys(row.writes, issues[-1] + results[place])
    return [later - issue for issue, later in pairwise(issues)] + [
        row.stall for row in rows[block.start : block.stop][-1:]
    ]
