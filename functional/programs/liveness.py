"""Register liveness, and from it an estimate of the registers a thread needs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from math import prod

from functional.launches.launch import WARP_THREADS
from functional.programs.program import Program
from functional.ptx.ir import Instruction, Register

# 32-bit registers a value takes; predicates have a register file of their own
_WIDTH = {"pred": 0, "b64": 2, "s64": 2, "u64": 2, "f64": 2, "b128": 4}
# What ptxas adds to the most values live at once: the smallest allocation it reports, and temporaries
_RESERVED = 2
_LEAST, _MOST = 8, 255
_REGISTER_FILE, _UNIT = 65536, 8  # of an SM since compute capability 3.0, handed out by so many a thread


def live_in(program: Program) -> tuple[frozenset[Register], ...]:
    """Registers live on entry of every basic block: some path from there reads them before it writes them.

    Per thread: a guarded write keeps the old value, hence does not end a life.
    """
    numbers = {register: n for n, register in enumerate(program.registers)}
    masks = _live_masks(program, numbers)
    return tuple(frozenset(register for register, n in numbers.items() if mask >> n & 1) for mask in masks)


def live_behind(program: Program) -> Iterator[tuple[int, int]]:
    """(instruction, bit set of the registers live behind it), numbered as in `program.registers`; in no order."""
    numbers = {register: n for n, register in enumerate(program.registers)}
    masks = _live_masks(program, numbers)
    for block in program.blocks:
        live = _union(masks, block.successors)
        for index in range(block.stop - 1, block.start - 1, -1):
            yield index, live
            live = _before(program.instructions[index], live, numbers)


def estimate_registers(program: Program) -> int:
    """Registers a thread, from the most values live at once; a call adds what the callee needs.

    An estimate: ptxas also reorders, rematerialises and folds addresses.
    """
    numbers = {register: n for n, register in enumerate(program.registers)}
    masks = _live_masks(program, numbers)
    calls: dict[str, list[tuple[str, int]]] = defaultdict(list)
    most: dict[str, int] = defaultdict(int)
    for block in program.blocks:
        live = _union(masks, block.successors)
        for index in range(block.stop - 1, block.start - 1, -1):
            instruction = program.instructions[index]
            width = _width(live, program.registers)
            live = _before(instruction, live, numbers)
            function = program.function_of[index]
            most[function] = max(most[function], width, _width(live, program.registers))
            if instruction.callee is not None:
                calls[function].append((instruction.callee, width))
    needed = _with_callees(program.function_of[0], most, calls)
    most_registers = _most_registers(program)
    if any(i.opcode == "setmaxnreg" for i in program.instructions):
        return most_registers  # what its warps hand each other is counted from there
    return min(max(needed + _RESERVED, _LEAST), most_registers)


def _most_registers(program: Program) -> int:
    """What the kernel's directives leave a thread: a compiler spills the rest to local memory."""
    directives = program.directives
    threads = prod(directives.get("reqntid") or directives.get("maxntid") or (1,))
    threads = -(-threads // WARP_THREADS) * WARP_THREADS * max(1, *directives.get("minnctapersm", (1,)))
    bound = _REGISTER_FILE // threads // _UNIT * _UNIT
    return max(_LEAST, min(_MOST, bound, *directives.get("maxnreg", (_MOST,))))


def _live_masks(program: Program, numbers: dict[Register, int]) -> list[int]:
    """Bit set of the registers live on entry of every block: the usual backward iteration to the fixed point."""
    masks = [0] * len(program.blocks)
    uses, defined = zip(*(_summary(program, b.start, b.stop, numbers) for b in program.blocks), strict=True)
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
            defined |= _mask(instruction.writes(), numbers)
    return uses, defined


def _before(instruction: Instruction, live: int, numbers: dict[Register, int]) -> int:
    """The live set before an instruction, given the one behind it."""
    if instruction.guard is None:
        live &= ~_mask(instruction.writes(), numbers)
    else:
        live |= 1 << numbers[instruction.guard.register]
    return live | _mask(instruction.reads(), numbers)


def _mask(registers: tuple[Register, ...], numbers: dict[Register, int]) -> int:
    mask = 0
    for register in registers:
        mask |= 1 << numbers[register]
    return mask


def _union(masks: list[int], blocks: tuple[int, ...]) -> int:
    mask = 0
    for block in blocks:
        mask |= masks[block]
    return mask


def _width(live: int, registers: tuple[Register, ...]) -> int:
    """32-bit registers a set of values takes."""
    width = 0
    while live:
        lowest = live & -live
        width += _WIDTH.get(registers[lowest.bit_length() - 1].type, 1)
        live ^= lowest
    return width


def _with_callees(
    function: str, most: dict[str, int], calls: dict[str, list[tuple[str, int]]], open_: frozenset[str] = frozenset()
) -> int:
    """Most values live in a function or, at one of its calls, in it and its callee; a recursive call counts once."""
    inside = open_ | {function}
    nested = [(callee, width) for callee, width in calls[function] if callee not in inside]
    return max([most[function], *(width + _with_callees(callee, most, calls, inside) for callee, width in nested)])
