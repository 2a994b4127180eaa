"""PTX that writes down what it does: the same kernels, with stores of words in between.

A thread writes a fixed number of 64-bit words a basic block: the number of the block's first instruction in the module,
then, instruction by instruction, what the program does not say: whether the guard is true (1 or 0), the address
register of a memory access, the index of a `brx`. They follow each other without gaps, so those of a block say which
block comes next, and nothing else is needed to go through the program again.

`TABLE` is a global variable that points to two 64-bit addresses a thread: where its words go, and where they must end.
A thread keeps the first in a register, moves it on at every block, stores only while it is not past the end, and puts
it back before it calls, returns or exits: with an empty table entry the run merely counts words."""

import re
from collections.abc import Iterable

from functional.errors import InputError, PtxError, refuse
from functional.programs.program import BasicBlock, Program
from functional.ptx.ir import TYPE_BYTES, Instruction, Module, Register
from functional.ptx.source import unchanged

_TRACED = frozenset({"ld", "ldu", "st", "atom", "red", "ldmatrix"})
# What a word says; of an address the base register: the constant offset is in the program
GUARD, ADDRESS, INDEX = "guard", "address", "index"


def words_of(program: Program, block: BasicBlock) -> dict[int, dict[str, int]]:
    """The words of each instruction of a block, by its index: what they say, and their places, counted from the block's
    number, which is word 0. Raises PtxError for an instruction whose effect they cannot tell."""
    found: dict[int, dict[str, int]] = {}
    count = 0
    for instruction in program.instructions[block.start : block.stop]:
        _check(program, instruction)
        named = [GUARD] if instruction.guard is not None else []
        named += [ADDRESS] if instruction.is_memory and isinstance(_base_of(instruction), Register) else []
        named += [INDEX] if instruction.opcode == "brx" else []
        found[instruction.index] = {what: count + n for n, what in enumerate(named, 1)}
        count += len(named)
    return found


def _base_of(instruction: Instruction) -> object:
    """What the address of a memory instruction starts from: a register, a symbol or nothing."""
    return instruction.address and instruction.address.base


def _check(program: Program, instruction: Instruction) -> None:
    refused = ""
    if instruction.is_memory and instruction.opcode not in _TRACED:
        refused = "its addresses are not recorded"
    elif instruction.is_memory and instruction.space == "param" and isinstance(_base_of(instruction), Register):
        refused = "the address of a parameter is not the same on a GPU"
    elif instruction.opcode in ("bar", "barrier") and (instruction.reads() or "red" in instruction.modifiers):
        refused = "its operands are not recorded"
    if refused:
        raise PtxError(program.path, instruction.line, f"'{instruction.name}' cannot be traced on a GPU: {refused}")


TABLE = "abstim_table"
WINDOWS = "abstim_windows"  # kernel that says where shared, local and constant memory lie
WORD_BYTES, ENTRY_BYTES = 8, 16
_COORDINATES = ("ctaid.z", "ctaid.y", "ctaid.x", "tid.z", "tid.y", "tid.x")
_SLOT, _AT, _END, _VALUE = (f"%abstim_d{n}" for n in range(4))
_LABEL = re.compile(r"\s*[\w$%.]+\s*:(?!:)\s*\S")


def instrument(module: Module, programs: Iterable[Program]) -> str:
    """The text of a module with `programs` instrumented. Raises InputError if the file is not there any more as it was
    parsed, PtxError for an instruction that cannot be traced and for code that is not laid out one instruction a
    line."""
    if (text := unchanged(module.path, module.digest)) is None:
        raise InputError(f"{module.path}: has changed since it was read, or is gone")
    lines = text.decode().split("\n")
    before: dict[int, list[str]] = {}
    done: set[str] = set()  # several kernels may call one function
    for program in programs:
        functions = set(program.function_of) - done
        for name in functions:
            behind = range(module.kernels[name].line - 1, len(lines))
            brace = next(n for n in behind if lines[n].lstrip().startswith("{"))
            before.setdefault(brace + 1, []).extend(_prologue())
        _instrument(program, functions, lines, before)
        done |= functions
    size = next((n for n, line in enumerate(lines) if line.startswith(".address_size")), None)
    refuse(size is None or module.address_size != 64, f"{module.path}: needs .address_size 64")
    found = []
    for number, line in enumerate(lines):
        found += [*before.get(number, []), line]
        if number == size:
            found.append(f".visible .global .align 8 .u64 {TABLE};")
    return "\n".join([*found, _windows(module)])


def constants_of(module: Module) -> list[str]:
    """Names of the constant variables, in the order in which WINDOWS writes their addresses."""
    return [v.name for v in module.variables if v.space == "const"]


def _instrument(program: Program, functions: set[str], lines: list[str], before: dict[int, list[str]]) -> None:
    """Add what stands in front of each line (from 0) of some functions of a program."""
    used: set[int] = set()
    for block in program.blocks:
        words = words_of(program, block)
        total = sum(map(len, words.values())) + 1
        if program.function_of[block.start] not in functions:
            continue
        for instruction in program.instructions[block.start : block.stop]:
            added = _begin(program, block, total) if instruction.index == block.start else []
            for what, place in words[instruction.index].items():
                offset = (place - total) * WORD_BYTES
                added += [_value(instruction, what), f"@%abstim_p st.global.u64 [{_AT}+{offset}], {_VALUE};"]
            if instruction.opcode in ("call", "ret", "exit", "trap"):
                added.append(f"st.global.u64 [{_SLOT}], {_AT};")
            if added and (instruction.line in used or _LABEL.match(lines[instruction.line - 1])):
                raise PtxError(program.path, instruction.line, "needs a line of its own to be instrumented")
            used.add(instruction.line)
            before.setdefault(instruction.line - 1, []).extend(added)


def _prologue() -> list[str]:
    """Registers; the number of the thread in the grid; its entry of the table."""
    lines = [".reg .pred %abstim_p;", ".reg .b32 %abstim_r<3>;", ".reg .b64 %abstim_d<6>;", "mov.u64 %abstim_d4, 0;"]
    for coordinate in _COORDINATES:
        lines += [f"mov.u32 %abstim_r1, %n{coordinate};", "cvt.u64.u32 %abstim_d5, %abstim_r1;"]
        lines += [f"mov.u32 %abstim_r2, %{coordinate};", f"cvt.u64.u32 {_VALUE}, %abstim_r2;"]
        lines += [f"mad.lo.s64 %abstim_d4, %abstim_d4, %abstim_d5, {_VALUE};"]
    lines += [f"ld.global.u64 {_SLOT}, [{TABLE}];", f"mad.lo.s64 {_SLOT}, %abstim_d4, {ENTRY_BYTES}, {_SLOT};"]
    return [*lines, f"ld.global.u64 {_AT}, [{_SLOT}];", f"ld.global.u64 {_END}, [{_SLOT}+8];"]


def _begin(program: Program, block: BasicBlock, words: int) -> list[str]:
    called = block.start > 0 and program.instructions[block.start - 1].callee is not None
    return [
        *([f"ld.global.u64 {_AT}, [{_SLOT}];"] if called else []),  # moved on by the function
        f"add.s64 {_AT}, {_AT}, {words * WORD_BYTES};",
        f"setp.le.u64 %abstim_p, {_AT}, {_END};",
        f"mov.u64 {_VALUE}, {program.pcs[block.start]};",
        f"@%abstim_p st.global.u64 [{_AT}+{-words * WORD_BYTES}], {_VALUE};",
    ]


def _value(instruction: Instruction, what: str) -> str:
    if what == GUARD:
        assert instruction.guard is not None
        true, false = (0, 1) if instruction.guard.negated else (1, 0)
        return f"selp.u64 {_VALUE}, {true}, {false}, {_printed(instruction.guard.register)};"
    register = _base_of(instruction) if what == ADDRESS else instruction.sources[0]
    assert isinstance(register, Register)
    if TYPE_BYTES[register.type] == 4:
        return f"cvt.u64.u32 {_VALUE}, {_printed(register)};"
    return f"mov.b64 {_VALUE}, {_printed(register)};"


def _printed(register: Register) -> str:
    """A register's name as the text has it: without the function in front and the mark of a nested scope behind."""
    return register.name.rpartition(":")[2].partition("'")[0]


def _windows(module: Module) -> str:
    """A kernel that writes where the generic windows of shared, local and constant memory begin, and each constant."""
    lines = [".reg .b64 %abstim_d<3>;", f"ld.global.u64 %abstim_d0, [{TABLE}];"]
    values = [f"cvta.{space}.u64 %abstim_d2, %abstim_d1;" for space in ("shared", "local", "const")]
    values += [f"mov.u64 %abstim_d2, {name};" for name in constants_of(module)]
    lines.append("mov.u64 %abstim_d1, 0;")
    for n, value in enumerate(values):
        lines += [value, f"st.global.u64 [%abstim_d0+{n * WORD_BYTES}], %abstim_d2;"]
    return f".visible .entry {WINDOWS}()\n{{\n" + "\n".join([*lines, "ret;"]) + "\n}\n"
