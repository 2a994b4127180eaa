"""An analysis of a program for the code generator: which registers are equal in all lanes, and which writes have to
keep the old value of waiting lanes.

Lanes that wait do so at the other paths of a divergent branch or where the branch's paths meet. A write in a basic
block that can run in between must be blended if one of those places can still read the old value. A register is
*uniform* if every write of it computes the same value in all lanes and none needs blending: it is kept as one scalar a
warp."""

from collections.abc import Set
from dataclasses import dataclass

from functional.programs.program import Program, reached
from functional.programs.registers import live_in
from functional.ptx.ir import MEMORY_OPCODES, Address, Immediate, Instruction, Register, Special, Symbol, Vector

# Results depend on the lane even where the sources do not, or are not worth a scalar form
_PER_LANE = frozenset({
    "addc", "subc", "madc", "atom", "activemask", "elect", "match", "shfl", "vote", "redux", "bar", "barrier", "mma",
    "wmma", "ldmatrix", "movmatrix", "mbarrier",
})  # fmt: skip
_CLOCKS = ("%clock", "%globaltimer")
_MOST_WALKED = 1 << 19  # blocks, from all branches together: half a second
_UNIFORM_SPECIALS = frozenset({"%warpid", "%nwarpid", "WARP_SZ", "%smid", "%nsmid", "%gridid"})


@dataclass(frozen=True)
class Analysis:
    """`uniform`: registers kept as scalars; `blended[b]`: registers whose writes in block b keep waiting lanes' values;
    `live[b]`: registers live on entry of block b."""

    uniform: frozenset[Register]
    blended: tuple[frozenset[Register], ...]
    live: tuple[frozenset[Register], ...]


def analyse(program: Program, left_out: Set[int]) -> Analysis:
    """Assume all uniform, take away what is not until nothing changes. `left_out`: instructions not generated."""
    live = live_in(program)
    if program.recursive:  # whose registers are those of several calls
        every = frozenset(program.registers)
        return Analysis(frozenset(), (every,) * len(program.blocks), live)
    regions = _regions(program)
    uniform = set(program.registers)
    while True:
        blended = _blended(program, live, regions, uniform)
        found: set[Register] = set()  # with a write that is not uniform
        for block in program.blocks:
            for inst in program.instructions[block.start : block.stop]:
                if not (written := inst.writes()):
                    continue
                if inst.index in left_out or not is_uniform(inst, uniform, program):
                    found.update(written)
                else:
                    found.update(r for r in written if r in blended[block.index])
        kept = uniform - found
        if kept == uniform:
            return Analysis(frozenset(uniform), tuple(map(frozenset, blended)), live)
        uniform = kept


def _regions(program: Program) -> list[tuple[frozenset[int], tuple[int, ...]]]:
    """Of every block: which may run while lanes that left this block's branch wait, and where they wait. Deeply nested
    branches have regions of all that is inside: their sizes may add up to the square of the program. Past a limit a
    region is taken to be the whole program, which blends more, never less."""
    regions: list[tuple[frozenset[int], tuple[int, ...]]] = []
    everything, walked = frozenset(range(len(program.blocks))), 0
    for block in program.blocks:
        region, waits, meeting = frozenset[int](), tuple[int, ...](), block.reconvergence
        if program.instructions[block.stop - 1].opcode in ("bra", "brx") and len(block.successors) > 1:
            waits = block.successors[1:] + (() if meeting is None else (meeting,))
            ways = {*block.successors} - {meeting}, lambda b, end=meeting: {*program.blocks[b].successors} - {end}
            region = everything if walked > _MOST_WALKED else frozenset(reached(*ways))
        walked += len(region)
        regions.append((region, waits))
    return regions


def _blended(program: Program, live: tuple, regions: list, uniform: set[Register]) -> list[set[Register]]:
    needed: dict[frozenset[int], set[Register]] = {}
    for block, (region, waits) in zip(program.blocks, regions, strict=True):
        last = program.instructions[block.stop - 1]
        if not region or (last.opcode == "bra" and last.guard and last.guard.register in uniform):
            continue
        needed.setdefault(region, set()).update(*(live[w] for w in waits))
    blended: list[set[Register]] = [set() for _ in program.blocks]
    for region, registers in needed.items():
        for inside in region:
            blended[inside] |= registers
    return blended


def is_uniform(inst: Instruction, uniform: set[Register] | frozenset[Register], program: Program) -> bool:
    """Does the instruction give one result for all lanes?"""
    if inst.opcode == "ld" and inst.space == "param" and program.functions:  # each lane has its own arguments
        base = inst.sources[0].base if isinstance(inst.sources[0], Address) else None
        if not isinstance(base, Symbol) or base.name not in {p.name for p in program.parameters}:
            return False
    if inst.opcode in _PER_LANE or inst.space == "local":
        return False
    if inst.opcode in ("ld", "ldu") and inst.space == "generic" and any(v.space == "local" for v in program.variables):
        return False  # one address, but each lane's own memory
    if inst.guard is not None and inst.guard.register not in uniform:
        return False
    return all(uniform_operand(s, uniform) for s in inst.sources)


def uniform_operand(operand: object, uniform: set[Register] | frozenset[Register]) -> bool:
    """Is an operand equal in all lanes?"""
    match operand:
        case Register():
            return operand in uniform
        case Immediate() | Symbol():
            return True
        case Special(name=name):
            return name.startswith(("%ctaid", "%nctaid", "%ntid")) or name in _UNIFORM_SPECIALS
        case Address(base=base):
            return base is None or uniform_operand(base, uniform)
        case Vector(elements=elements):
            return all(e is not None and uniform_operand(e, uniform) for e in elements)
    return False


def independent(program: Program) -> bool:
    """Can the order of thread blocks matter only through plain loads and stores, which `races.Shadow` sees? Atomics on
    global memory make the outcome depend on the order of blocks by design, and clocks tell it."""
    return not any(_orders_blocks(i) for i in program.instructions)


def _orders_blocks(inst: Instruction) -> bool:
    if any(isinstance(s, Special) and s.name.startswith(_CLOCKS) for s in inst.sources):
        return True
    if inst.opcode in ("atom", "red"):
        return inst.space != "shared"
    return inst.opcode in MEMORY_OPCODES - {"ld", "ldu", "st"}
