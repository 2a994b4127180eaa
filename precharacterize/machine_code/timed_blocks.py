"""Machine code of a kernel as timed blocks and their rows of the latency table."""

import re
from collections.abc import Sequence
from functools import reduce

from msgspec.structs import replace

from functional.programs.program import Program
from functional.ptx.ir import Address, Instruction
from precharacterize import synchronisation as sync
from precharacterize.build import MEMORY, Row, row_of
from precharacterize.classify import NO_OPERATIONS, Kind, Operations, hardware_class
from precharacterize.machine_code import alignment
from precharacterize.machine_code import timing_classes as classes
from precharacterize.machine_code.alignment import BULK_COPIES, MEETING, MachineBlock, Matching
from precharacterize.machine_code.assemble import NO_SCOREBOARD, MachineInstruction
from precharacterize.machine_code.subroutines import slow_paths_of
from precharacterize.table import SCOREBOARDS, UNITS, WORDS, PipelineParameters
from precharacterize.tensor_work import sized
from precharacterize.timed_code import MOST_COVERING, Access, Cover, Mode, TimedBlock, consumes

INSTRUCTION_BYTES = 16
CONSTANT_LINE_BYTES = 256  # of the first, which a kernel without parameters reads too, no more is said than of its code
MOST_LINE_INSTRUCTIONS = 4096  # of the instruction cache
_COPIES = dict(LDGSTS=sync.starts(sync.COPIES), LDGDEPBAR=sync.closes(sync.COPIES), UTMACMDFLUSH=sync.closes(sync.BULK))
_COPIES |= dict(ACQBULK=sync.AWAITS, PREEXIT=sync.TRIGGERS, USETMAXREG=sync.REGISTERS)
_TENSOR_WORK = re.compile(r"UTC\w*MMA|UTCCP|LDTM|STTM")
_PRODUCTS = ("HGMMA", "IGMMA", "QGMMA", "BGMMA")


def machine_timed_blocks(
    code: Sequence[MachineInstruction], program: Program, kinds: Sequence[int], pipeline: PipelineParameters,
    registers: int, first_row: int,
) -> tuple[list[Row], list[TimedBlock]]:  # fmt: skip
    """Rows from number `first_row` on, and timed blocks; scoreboards are registers behind the PTX's `registers`."""
    code = classes.with_branches(code, pipeline)
    blocks = alignment.machine_blocks(code, program)
    alignment.align(blocks, program, kinds)
    matching = Matching(blocks, program, kinds)
    rows, timed, words = list[Row](), list[TimedBlock](), dict[Address | None, int]()
    for block in blocks:
        start = first_row + len(rows)
        covers = [Cover(block.leader, 0)] if block.leader >= 0 else []
        found = matching.accesses(block, covers)
        _cover_all(block, program, covers)
        seen = {k: Kind(kinds[block.ptx[k]]) for k in found}
        made = [_row(c, found.get(k), seen.get(k), pipeline, registers) for k, c in enumerate(block.code)]
        for k, row in enumerate(made):
            row.pcs = first_row + block.code[k].address // INSTRUCTION_BYTES
            source = program.instructions[block.ptx[k]] if block.ptx[k] >= 0 else None
            row.copies = _copies(block.code[k], source, k in found)
            if row.copies == sync.REGISTERS and source is not None:
                row.word = sync.register_count(source)
            if k in found and block.code[k].name in MEETING:
                row.barrier = sync.NONE  # the trace says who meets whom
            if source is not None and source.opcode == "tcgen05" and _TENSOR_WORK.fullmatch(block.code[k].name):
                _mark_tensor_work(row, source, program, pipeline)
            # what the assembler added counts at the PTX instruction before it in its block
            before = made[k - 1].origin if k else program.blocks[max(0, block.leader)].start
            row.origin = block.ptx[k] if block.ptx[k] >= 0 else before
        _mark_retries(block, made, program, words)
        if not rows and _reads_parameters(block):
            # parameters are to come before the rest: its first instruction is the last one of a line of its own, behind
            # all code. Constants come through the cache that holds instructions (Jia et al., 2018, section 3)
            lines = (first_row + len(code)) // MOST_LINE_INSTRUCTIONS + 2
            made[0].pcs = lines * MOST_LINE_INSTRUCTIONS - 1
        rows += made
        accesses = [row.access for row in made if row.access is not None]
        place, work = (start, first_row + len(rows), block.leader, block.times), _operations(block, program, covers)
        timed.append(TimedBlock(*place, True, covers, block.rivals, accesses, work))
    for position, way in slow_paths_of(code, program).items():
        made = [_row(instruction, None, None, pipeline, registers) for instruction in way]
        timed.append(_slow_block(position, way, made, first_row, len(rows), len(timed), program))
        rows += made
    return rows, timed


def _slow_block(
    position: int, way: Sequence[MachineInstruction], rows: Sequence[Row], first_row: int, before: int, number: int,
    program: Program,
) -> TimedBlock:  # fmt: skip
    """The timed block of a slow path, number `number`, whose rows come behind the `before` others."""
    for row, instruction in zip(rows, way, strict=True):
        row.pcs, row.origin = first_row + instruction.address // INSTRUCTION_BYTES, position
    leader, start = program.slow_paths[position], first_row + before
    work = {0: reduce(Operations.plus, map(classes.operations_of, way))}
    accesses = [row.access for row in rows if row.access is not None]
    return TimedBlock(start, start + len(rows), leader, 1, True, [Cover(leader, 0)], [number], accesses, work)


def _mark_tensor_work(row: Row, source: Instruction, program: Program, pipeline: PipelineParameters) -> None:
    """Machine code does not say how large a product is, nor in which class: PTX does."""
    operation = sized(source, program, hardware_class(source), pipeline)
    row.unit, row.copies = UNITS.index(operation.unit), sync.copies_of(source)
    row.latency_cycles, row.initiation_cycles = operation.latency_cycles, round(operation.initiation_cycles)


def _mark_retries(block: MachineBlock, made: Sequence[Row], program: Program, words: dict[Address | None, int]) -> None:
    """If a block is a loop of compare-and-swap, its row says so; `words` numbers the addresses of such loops."""
    swap = alignment.compare_and_swap(block, program)
    row = made[swap] if swap is not None else None
    if row is None or row.access is None:
        return
    row.access, row.retries = replace(row.access, mode=Mode.ROUNDS), True
    row.word = words.setdefault(program.instructions[row.origin].address, len(words) % WORDS)


def _cover_all(block: MachineBlock, program: Program, covers: list[Cover]) -> None:
    """Every PTX block of which it has code, and every round of its leader; those that accesses are taken from stay."""
    most = max(MOST_COVERING, len(covers))
    for number in dict.fromkeys(program.block_of(i) for i in block.held):
        covers += [] if any(c.block == number for c in covers) else [Cover(number, 0)]
    covers += [c for c in (Cover(block.leader, n) for n in range(block.times)) if block.leader >= 0 and c not in covers]
    del covers[most:]


def _reads_parameters(block: MachineBlock) -> bool:
    """Does it read bank 0 of constants, in which parameters lie, behind its first line?"""
    found = (re.search(r"c\[0x0\]\[(?:\w+\+)?0x([0-9a-f]+)\]", i.operands) for i in block.code)
    return any(int(offset[1], 16) >= CONSTANT_LINE_BYTES for offset in found if offset)


def _operations(block: MachineBlock, program: Program, covers: Sequence[Cover]) -> dict[int, Operations]:
    """By cover: a guarded instruction is executed by the threads that went through the PTX block it is from."""
    found: dict[int, Operations] = {}
    for instruction, ptx in zip(block.code, block.ptx, strict=True):
        owner = Cover(program.block_of(ptx), 0) if instruction.guard and ptx >= 0 else None
        cover = covers.index(owner) if owner in covers else 0
        found[cover] = found.get(cover, NO_OPERATIONS).plus(classes.operations_of(instruction))
    return found


def _row(
    instruction: MachineInstruction, access: Access | None, source: Kind | None, pipeline: PipelineParameters,
    registers: int,
) -> Row:  # fmt: skip
    kind = classes.kind_of(instruction)
    if access is not None and source is not None:
        found, size = instruction.modifiers, classes.access_bytes(instruction)
        # a load that is to see other SMs' stores passes L1D by, and so does a copy to shared memory that says so
        past = "BYPASS" in found or ("STRONG" in found and ("GPU" in found or "SYS" in found))
        past = source == Kind.GLOBAL_LOAD and (past or instruction.name in BULK_COPIES)
        row = row_of(Kind.L2_LOAD if past else source, MEMORY, access_bytes=size, access=access)
        row.fp64_atomic = kind == Kind.GLOBAL_ATOMIC and "F64" in instruction.modifiers
    elif kind > Kind.CONST_LOAD:  # of the assembler's own: spilled registers, a CAS loop's load
        own = Access(Mode.PASSES if consumes(kind) == 1 else Mode.RECORDS)
        row = row_of(kind, MEMORY, access_bytes=classes.access_bytes(instruction), access=own)
    else:
        name = "convert" if kind == Kind.CONST_LOAD else classes.latency_class(instruction)
        row = row_of(Kind.ALU if kind == Kind.CONST_LOAD else kind, pipeline.operation(name))
        if name in classes.PRODUCTS:
            one = pipeline.operation(name).initiation_cycles
            row.initiation_cycles = max(1, round(one * classes.tensor_share(instruction)))
            row.latency_cycles += max(0, row.initiation_cycles - round(one)) if instruction.name in _PRODUCTS else 0
    row.counted, row.stall_cycles, row.barrier = True, max(1, instruction.stall), classes.barrier_of(instruction)
    row.waits = [registers + s for s in _waits(instruction)]
    row.writes = [] if instruction.write_scoreboard >= SCOREBOARDS else [registers + instruction.write_scoreboard]
    if instruction.read_scoreboard != NO_SCOREBOARD and instruction.read_scoreboard < SCOREBOARDS:
        row.release = registers + instruction.read_scoreboard
    return row


def _copies(instruction: MachineInstruction, source: Instruction | None, accesses: bool) -> int:
    """`LatencyTable.copies`. Which groups a DEPBAR waits for, and what is done at an `mbarrier`, is said by what it was
    made of; `accesses`: it makes that access."""
    if instruction.name in _COPIES:
        return _COPIES[instruction.name]
    if instruction.name in _PRODUCTS:
        return sync.LAST_PRODUCT if "gsb0" in instruction.operands else sync.starts(sync.PRODUCTS)
    if instruction.name == "WARPGROUP" and "DEPBAR" in instruction.modifiers:
        pending = re.search(r"0x([0-9a-f]+)", instruction.operands)
        return sync.waits_for(sync.PRODUCTS, int(pending[1], 16) if pending else 0)
    found = sync.copies_of(source) if source is not None else sync.NONE
    waits = found >= 0 and instruction.name == "DEPBAR"
    return found if waits or (accesses and found != sync.NONE) else sync.NONE


def _waits(instruction: MachineInstruction) -> list[int]:
    """Scoreboards to be free before it issues. A DEPBAR that lets some requests be under way waits for none."""
    waits = {s for s in range(SCOREBOARDS) if instruction.wait_mask >> s & 1}
    counted = re.match(r"SB(\d), 0x([0-9a-f]+)(.*)", instruction.operands) if instruction.name == "DEPBAR" else None
    if counted:
        waits |= {int(counted[1])} if int(counted[2], 16) == 0 else set()
        waits |= {int(s) for s in re.findall(r"\d", counted[3])}
    return sorted(waits)
