"""Faults that the text of a kernel shows: registers, shared and local memory read that nothing has written, constants
that nobody sets. Those that only running it shows, `steps.sanitizer` sees."""

from collections.abc import Collection, Iterator

from functional.programs.program import Program
from functional.programs.registers import bits_of

_READS = ("ld", "ldu", "ldmatrix", "tex", "suld")  # of what accesses memory; the others write, or may


def findings(program: Program, given: Collection[str] = ()) -> list[str]:
    """One line each, in the order of the text. `given`: variables that were set."""
    return [*_unset_constants(program, given), *_unwritten_memory(program), *_unwritten_registers(program)]


def _unset_constants(program: Program, given: Collection[str]) -> Iterator[str]:
    """A kernel cannot write constant memory."""
    unset = {v.name for v in program.variables if v.space == "const" and v.initialiser is None and v.bytes}
    unset.difference_update(given)
    for inst in program.instructions:
        for name in (n for n in inst.symbols if n in unset):
            unset.discard(name)
            yield f"{_where(program, inst.line)}: the constant '{name}' has no values; it is read as zeros"


def _unwritten_memory(program: Program) -> Iterator[str]:
    """Shared or local memory that is read, and no instruction of the program can write it."""
    accesses = [inst for inst in program.instructions if inst.is_memory]
    writes = {inst.space for inst in accesses if inst.opcode not in _READS}
    if "generic" in writes:
        return
    for space in ("shared", "local"):
        first = next((i for i in accesses if i.space == space and i.opcode in _READS), None)
        if first is not None and space not in writes:
            yield f"{_where(program, first.line)}: {space} memory is read, and nothing writes it; it is zeros"


def _unwritten_registers(program: Program) -> Iterator[str]:
    """Registers of which no write reaches a read, on any path."""
    numbers, reaching = program.numbers, _reaching(program)
    for block in program.blocks:
        if (written := reaching[block.index]) is None:
            continue  # nothing leads here
        for inst in program.instructions[block.start : block.stop]:
            guard = (inst.guard.register,) if inst.guard else ()
            for register in dict.fromkeys((*guard, *inst.reads())):
                if not written >> numbers[register] & 1:
                    written |= 1 << numbers[register]  # said once
                    yield f"{_where(program, inst.line)}: '{register.name}' is read, and nothing has written it"
            written |= bits_of(inst.writes(), numbers)


def _reaching(program: Program) -> list[int | None]:
    """Bit set of the registers that some path to each block writes; None for a block that no path leads to."""
    defined = [
        bits_of((r for i in program.instructions[b.start : b.stop] for r in i.writes()), program.numbers)
        for b in program.blocks
    ]
    entries = {program.block_of(start) for start in (0, *program.functions.values())}
    found: list[int | None] = [0 if block.index in entries else None for block in program.blocks]
    waiting = sorted(entries)
    while waiting:
        block = waiting.pop()
        after = (found[block] or 0) | defined[block]
        for successor in program.blocks[block].successors:
            before = found[successor]
            if before is None or after | before != before:
                found[successor] = after | (before or 0)
                waiting.append(successor)
    return found


def _where(program: Program, line: int) -> str:
    return f"kernel '{program.name}', {program.path}:{line}"
