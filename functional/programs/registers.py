"""Registers a thread of a kernel needs: as ptxas reports them, or estimated from the values that live at once."""

import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, reduce
from math import prod
from operator import or_

from msgspec import Struct

from functional.launches.launch import WARP_THREADS
from functional.programs.program import Program
from functional.ptx.ir import Instruction, Register
from functional.ptx.source import for_assembler

# 32-bit registers a value takes; predicates have a register file of their own
_WIDTH = {"pred": 0, "b64": 2, "s64": 2, "u64": 2, "f64": 2, "b128": 4}
# What ptxas adds to the most values live at once: the smallest allocation it reports, and temporaries
_RESERVED = 2
_LEAST, _MOST = 8, 255
_REGISTER_FILE, _UNIT = 65536, 8  # of an SM since compute capability 3.0, handed out by so many a thread


def live_in(program: Program) -> tuple[frozenset[Register], ...]:
    """Registers live on entry of every basic block: some path from there reads them before it writes them.

    Per thread: a guarded write keeps the old value, hence does not end a life."""
    numbers = program.numbers.items()
    return tuple(frozenset(register for register, n in numbers if mask >> n & 1) for mask in _live_masks(program))


def live_behind(program: Program) -> Iterator[tuple[int, int]]:
    """(instruction, bit set of the registers live behind it), numbered as in `program.registers`; in no order."""
    masks = _live_masks(program)
    for block in program.blocks:
        live = _union(masks, block.successors)
        for index in range(block.stop - 1, block.start - 1, -1):
            yield index, live
            live = _before(program.instructions[index], live, program.numbers)


def estimate_registers(program: Program) -> int:
    """Registers a thread, from the most values live at once; a call adds what the callee needs.

    An estimate: ptxas also reorders, rematerialises and folds addresses."""
    calls: dict[str, list[tuple[str, int]]] = defaultdict(list)
    most: dict[str, int] = defaultdict(int)
    sizes = _by_width(program.registers)
    for index, live in live_behind(program):
        instruction, function = program.instructions[index], program.function_of[index]
        width, before = (_width(now, sizes) for now in (live, _before(instruction, live, program.numbers)))
        most[function] = max(most[function], width, before)
        if instruction.callee is not None:
            calls[function].append((instruction.callee, width))
    needed = _with_callees(program.function_of[0], most, calls)
    directives = program.directives  # what they leave a thread: a compiler spills the rest to local memory
    threads = prod(directives.get("reqntid") or directives.get("maxntid") or (1,))
    threads = -(-threads // WARP_THREADS) * WARP_THREADS * max(1, *directives.get("minnctapersm", (1,)))
    bound = _REGISTER_FILE // threads // _UNIT * _UNIT
    most_registers = max(_LEAST, min(_MOST, bound, *directives.get("maxnreg", (_MOST,))))
    if any(i.opcode == "setmaxnreg" for i in program.instructions):
        return most_registers  # what its warps hand each other is counted from there
    return min(max(needed + _RESERVED, _LEAST), most_registers)


def _live_masks(program: Program) -> list[int]:
    """Bit set of the registers live on entry of every block: the usual backward iteration to the fixed point."""
    masks = [0] * len(program.blocks)
    uses, defined = zip(*(_summary(program, b.start, b.stop, program.numbers) for b in program.blocks), strict=True)
    changed = True
    while changed:
        changed = False
        for block in reversed(program.blocks):
            mask = uses[block.index] | _union(masks, block.successors) & ~defined[block.index]
            changed |= mask != masks[block.index]
            masks[block.index] = mask
    return masks


def _summary(program: Program, start: int, stop: int, numbers: dict[Register, int]) -> tuple[int, int]:
    """Bit sets of a block: registers read before they are written, and registers surely written."""
    uses = defined = 0
    for index in range(stop - 1, start - 1, -1):
        instruction = program.instructions[index]
        uses = _before(instruction, uses, numbers)
        if instruction.guard is None:
            defined |= bits_of(instruction.writes(), numbers)
    return uses, defined


def _before(instruction: Instruction, live: int, numbers: dict[Register, int]) -> int:
    """The live set before an instruction, given the one behind it."""
    if instruction.guard is None:
        live &= ~bits_of(instruction.writes(), numbers)
    else:
        live |= 1 << numbers[instruction.guard.register]
    return live | bits_of(instruction.reads(), numbers)


def bits_of(registers: Iterable[Register], numbers: dict[Register, int]) -> int:
    """A set of registers, as bits."""
    return reduce(or_, (1 << numbers[register] for register in registers), 0)


def numbers_in(bits: int) -> Iterator[int]:
    """The members of a set, ascending."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


def _union(masks: list[int], blocks: tuple[int, ...]) -> int:
    return reduce(or_, (masks[block] for block in blocks), 0)


def _by_width(registers: Iterable[Register]) -> dict[int, int]:
    """32-bit registers that a value takes -> bit set of those that take so many."""
    found: dict[int, int] = defaultdict(int)
    for number, register in enumerate(registers):
        found[_WIDTH.get(register.type, 1)] |= 1 << number
    return found


def _width(live: int, sizes: Mapping[int, int]) -> int:
    """32-bit registers a set of values takes."""
    return sum(width * (live & members).bit_count() for width, members in sizes.items())


def _with_callees(
    function: str, most: dict[str, int], calls: dict[str, list[tuple[str, int]]], open_: frozenset[str] = frozenset()
) -> int:
    """Most values live in a function or, at one of its calls, in it and its callee; a recursive call counts once."""
    inside = open_ | {function}
    nested = [(callee, width) for callee, width in calls[function] if callee not in inside]
    return max([most[function], *(width + _with_callees(callee, most, calls, inside) for callee, width in nested)])


MOST_REGISTERS = 255  # a thread
_AT_MOST = 'ulimit -t 20; exec "$@"'  # seconds of processor time, so that a busy computer finds the same


class Registers(Struct, frozen=True):
    """`count` 32-bit registers a thread; `source`: "resources.json", "ptxas", "trace header" or "liveness estimate"."""

    count: int
    source: str


def registers_per_thread(program: Program, target: str, known: Mapping[str, int]) -> Registers:
    """Registers a thread of a kernel.

    From `known` (kernel name -> registers) if it is there, else from `ptxas -v` for `target` ("sm_75") if ptxas
    is on the PATH and takes the file, else from liveness."""
    if program.name in known:
        return Registers(known[program.name], "resources.json")
    if (compiled := _ptxas(program.path, target, program.digest).get(program.name)) is not None:
        return Registers(compiled, "ptxas")
    return Registers(estimate_registers(program), "liveness estimate")


@cache
def _ptxas(path: str, target: str, digest: str) -> dict[str, int]:
    """Registers of every kernel of a file as ptxas reports them; empty without ptxas, or if the file has changed."""
    ptxas, text = shutil.which("ptxas"), for_assembler(path, digest)
    if ptxas is None or text is None:
        return {}
    command = ["sh", "-c", _AT_MOST, "sh", ptxas, "-v", f"-arch={target}", "-o", "/dev/null", "/dev/stdin"]
    try:
        done = subprocess.run(command, capture_output=True, input=text, check=False)
    except OSError:
        return {}
    return parse_ptxas((done.stderr + done.stdout).decode("utf-8", "replace")) if done.returncode == 0 else {}


def parse_ptxas(report: str) -> dict[str, int]:
    """Kernel -> registers a thread, from the messages of `ptxas -v`."""
    found: dict[str, int] = {}
    entry = ""
    for line in report.splitlines():
        if name := re.search(r"Compiling entry function '([^']+)'", line):
            entry = name[1]
        elif (used := re.search(r"Used (\d+) registers", line)) and entry:
            found[entry] = int(used[1])
    return found
