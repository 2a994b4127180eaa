"""Program + pipeline + machine code -> timed code: made once, kept on disk, reused by design points that share it.

PTX instructions come in the order an assembler puts them in, loads as early as they can be. What is dropped of them is
what machine code has no instruction for: parameters are operands there, address spaces have one numbering, copies of
registers are the registers."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial, reduce
from itertools import pairwise

from msgspec import structs

from functional.keep.kept import Kept, key
from functional.programs.link import link
from functional.programs.program import BasicBlock, Program
from functional.ptx.ir import Instruction, Module, Register
from functional.ptx.parser import open_bytes
from functional.ptx.source import for_assembler, one_a_line
from precharacterize import build
from precharacterize import timed_code as timed
from precharacterize.build import MEMORY, Row
from precharacterize.classify import Kind, Operations, hardware_class, hardware_kind, kinds_of, ptx_operations_of
from precharacterize.machine_code.assemble import Assembly, assemble
from precharacterize.synchronisation import COPIES, NONE, copies_of, starts
from precharacterize.table import FORWARDED_CYCLES, SCOREBOARDS, LatencyTable, PipelineParameters, decoded, encoded
from precharacterize.tensor_work import sized

_LOADS = (Kind.GLOBAL_LOAD, Kind.L2_LOAD, Kind.SHARED_LOAD, Kind.TEXTURE_LOAD, Kind.CONST_LOAD)
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
    if "generic" not in (first.space, second.space) and first.space != second.space:
        return False
    a, b = first.address, second.address
    if a is None or b is None or a.base != b.base:
        return True
    return a.offset < b.offset + second.access_bytes and b.offset < a.offset + first.access_bytes


def ptx_rows(
    order: Sequence[int], table: LatencyTable, program: Program, pipeline: PipelineParameters, first: int
) -> list[Row]:
    """PTX instructions, in an order, as rows; `first` is the number of the first. A copy is the register it copies."""
    copies = _copies(program)
    rows = []
    for n, i in enumerate(order):
        kind = hardware_kind(program.instructions[i], Kind(int(table.kind[i])))
        instruction = program.instructions[i]
        operation = sized(instruction, program, hardware_class(instruction), pipeline)
        row = build.row_of(kind, operation if kind < Kind.PARAM_LOAD else MEMORY, pcs=first + n, origin=i)
        row.waits = build.unique(copies.get(r, r) for r in table.waits[i].tolist() if r >= 0)
        row.writes = [r for r in table.writes[i].tolist() if r >= 0]
        for name in ("access_bytes", "barrier", "copies", "word", "fp64_atomic"):
            setattr(row, name, int(getattr(table, name)[i]))
        rows.append(row)
    return rows


def _copies(program: Program) -> dict[int, int]:
    """Register -> the one it is a copy of, where both are written once."""
    ids = {r.name: n for n, r in enumerate(program.registers)}
    written = Counter(register.name for i in program.instructions for register in i.writes())
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
    rows: Sequence[Row], blocks: Sequence[timed.TimedBlock], ptx: LatencyTable, pipeline: PipelineParameters
) -> LatencyTable:
    """The latency table of timed blocks. Registers are those of the PTX and a warp's scoreboards."""
    for row in rows:
        row.write_banks = [NONE] * len(row.writes)
    to_unit = build.start_delay_cycles([], pipeline.register_banks)
    delays = (build.result_delay_cycles(Kind(row.kind), row.latency_cycles, pipeline, FORWARDED_CYCLES) for row in rows)
    results = [to_unit + delay for delay in delays]
    gaps = [_gaps(rows, results, b) for b in blocks]
    return build.table_of(rows, blocks, results, gaps, FORWARDED_CYCLES, ptx.register_count + 3 * SCOREBOARDS, ptx.key)


def _gaps(rows: Sequence[Row], results: Sequence[int], block: timed.TimedBlock) -> list[int]:
    """Cycles from issue to issue of a lone warp in a block; of the last instruction what it stalls."""
    ready: dict[int, int] = {}
    issues: list[int] = []
    for place in range(block.start, block.stop):
        row, after = rows[place], issues[-1] + rows[place - 1].stall_cycles if issues else 0
        issues.append(max([after, *(ready.get(register, 0) for register in (*row.waits, *row.writes))]))
        ready |= dict.fromkeys(row.writes, issues[-1] + results[place])
    last = [row.stall_cycles for row in rows[block.start : block.stop][-1:]]
    return [later - issue for issue, later in pairwise(issues)] + last


def build_timed_code(program: Program, pipeline: PipelineParameters, assembly: Assembly) -> timed.TimedCode:
    """Timed code, without any cache."""
    from precharacterize.machine_code.timed_blocks import machine_timed_blocks

    kinds = kinds_of(program)
    table = build.characterize(program, pipeline)
    rows, blocks = _fallbacks(program, kinds, table, pipeline)
    functions = (program.name, *program.functions)  # those that are called may still be functions
    code = [i for name in functions for i in assembly.functions.get(name, [])]
    description, vanished = f"{timed.HOISTED} ({assembly.made_by})", set[int]()
    if code:
        placed = with_own_lines(program)
        machine_rows, machine = machine_timed_blocks(code, placed, kinds, pipeline, table.register_count, len(rows))
        rows += machine_rows
        for block in machine:  # its rivals counted from the first timed block of all
            block.rivals = [r + len(program.blocks) for r in block.rivals]
        blocks += machine
        description = f"machine code ({assembly.made_by})"
        # of which the assembler left nothing that is a block: no memory access, no code of their own
        accesses = {
            b.index for b in program.blocks if any(timed.consumes(kinds[i]) >= 0 for i in range(b.start, b.stop))
        }
        vanished = {c.block for b in machine for c in b.covers} | ({b.index for b in program.blocks} - accesses)
        vanished -= {b.leader for b in machine}
    needed = [b.index not in vanished and b.stop > b.start for b in program.blocks]
    origins, made = [row.origin for row in rows], table_of_rows(rows, blocks, table, pipeline)
    return timed.timed_code(program, kinds, made, blocks, needed, description, origins)


def _fallbacks(
    program: Program, kinds: Sequence[int], table: LatencyTable, pipeline: PipelineParameters
) -> tuple[list[Row], list[timed.TimedBlock]]:
    """Each PTX block by itself, its loads hoisted."""
    numbers = timed.access_numbers(program, kinds)
    rows: list[Row] = []
    blocks = []
    for block in program.blocks:
        order = hoisted(block, program, kinds) if block.stop > block.start else []  # a slow path, which PTX has not
        modes = {i: timed.mode_of(kinds[i]) for i in order if i in numbers}
        accesses = [timed.Access(mode, (timed.Source(0, numbers[i]),)) for i, mode in modes.items()]
        start = len(rows)
        rows += ptx_rows(order, table, program, pipeline, start)
        covers = [timed.Cover(block.index, 0)]
        operations = reduce(Operations.plus, (ptx_operations_of(program.instructions[i]) for i in order), Operations())
        made = timed.TimedBlock(
            start, len(rows), block.index, covers=covers, accesses=accesses, operations={0: operations}
        )
        blocks.append(made)
    return rows, blocks


MODULES = ("precharacterize.build_timed", "functional.ptx.parser", "functional.programs.link")


def timed_code_of(program: Program, pipeline: PipelineParameters, architecture: str) -> timed.TimedCode:
    """What is timed of a program on a GPU that runs machine code ("sm_86"): from the cache folder if it is there.
    Without an assembler, and where it refuses the PTX, that is PTX with loads hoisted; `description` says which."""
    assembly = assembly_of(program, architecture)
    name = key(MODULES, program.digest, program.name, str(program.constants), pipeline.key, assembly.made_by)
    make = partial(build_timed_code, program, pipeline, assembly)
    return Kept("timed_code").load_or_make(name, make, partial(decoded, timed.TimedCode), encoded)


def assembly_of(program: Program, architecture: str) -> Assembly:
    """A program's machine code, whose PTX instructions are known by their lines: made of the same text with a
    statement a line, where instructions share lines."""
    text = for_assembler(program.path, program.digest)
    if text is None or not shares_lines(program):
        return assemble(text, program.digest, architecture)
    if shares_lines(with_own_lines(program)):
        return Assembly("the PTX has several instructions in a statement")
    return assemble(apart(text, program.path)[0], f"{program.digest}, a statement a line", architecture)


@lru_cache(4)
def apart(text: bytes, path: str) -> tuple[bytes, Module]:
    """PTX with a statement a line, and its module, for all of its kernels."""
    split = one_a_line(text)
    return split, open_bytes(split, path)


def shares_lines(program: Program) -> bool:
    """Do several instructions stand in one line?"""
    return len({i.line for i in program.instructions}) < len(program.instructions)


def with_own_lines(program: Program) -> Program:
    """The program with the lines of `one_a_line`, where instructions share lines of the PTX."""
    text = for_assembler(program.path, program.digest) if shares_lines(program) else None
    if text is None:
        return program
    again = link(apart(text, program.path)[1], program.name)
    pairs = zip(program.instructions, again.instructions, strict=True)
    return replace(program, instructions=tuple(structs.replace(i, line=own.line) for i, own in pairs))
