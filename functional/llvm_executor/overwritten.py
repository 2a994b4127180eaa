"""Shared memory that one warp overwrites though another may still have to read it, with no barrier between.

Warps of a thread block run one after the other from barrier to barrier. A GPU's go on side by side: where a program
reads shared memory and soon writes it, say a sum that all read and the next sum, its warps read first. So a warp gives
way in front of such a write, until the others have come there, to a barrier, or to their end. Where the program has its
barriers, nothing is found."""

from collections.abc import Set
from typing import NamedTuple

from functional.llvm_executor.pieces import barriers_of
from functional.programs.program import BasicBlock, Program
from functional.ptx.ir import Address, Register

_READS, _WRITES = ("ld", "ldmatrix"), ("st",)


class _Place(NamedTuple):
    """Where an access goes. `symbols`: variables that its address is made of; none: not known."""

    address: Address
    symbols: frozenset[str]

    def may_be(self, other: "_Place") -> bool:
        """May a thread access here what another one accesses there? One address in a register is each thread's own."""
        if self.address == other.address and isinstance(self.address.base, Register):
            return False
        return not (self.symbols and other.symbols) or not self.symbols.isdisjoint(other.symbols)


def overwriting(program: Program) -> frozenset[int]:
    """Positions of the writes in front of which warps give way; none in programs that may have locks in shared memory,
    for which others would wait meanwhile."""
    accesses = [i for i in program.instructions if i.is_memory and i.space == "shared" and i.address is not None]
    opcodes, locks = {i.opcode for i in accesses}, any("cas" in i.modifiers or "exch" in i.modifiers for i in accesses)
    if opcodes.isdisjoint(_READS) or opcodes.isdisjoint(_WRITES) or locks:
        return frozenset()
    made_of, barriers = _symbols(program), barriers_of(program)
    places = {i.index: _Place(a, _named(a, made_of)) for i in accesses if (a := i.address) is not None}
    found: set[int] = set()
    read: list[Set[_Place]] = [frozenset() for _ in program.blocks]  # when a block begins, since the last barrier
    waiting = dict.fromkeys(range(len(program.blocks)))
    while waiting:
        block = program.blocks[next(iter(waiting))]
        del waiting[block.index]
        behind = _behind(block, program, read[block.index], places, barriers, found)
        for successor in block.successors:
            if not behind <= read[successor]:
                read[successor] |= behind
                waiting[successor] = None
    return frozenset(found)


def _behind(
    block: BasicBlock, program: Program, read: Set[_Place], places: dict[int, _Place], barriers: Set[int],
    found: set[int],
) -> Set[_Place]:  # fmt: skip
    """What is read at the end of a block and not yet safe to write; `found` takes its writes that are not safe."""
    read = set(read)
    for inst in program.instructions[block.start : block.stop]:
        place = places.get(inst.index)
        if inst.index in barriers:
            read.clear()
        elif place is not None and inst.opcode in _READS:
            read.add(place)
        elif place is not None and inst.opcode in _WRITES and any(place.may_be(other) for other in read):
            found.add(inst.index)
            read.clear()
    return read


def _named(address: Address, made_of: dict[Register, frozenset[str]]) -> frozenset[str]:
    base = address.base
    if isinstance(base, Register):
        return made_of.get(base, frozenset())
    return frozenset([base.name] if base else ())


def _symbols(program: Program) -> dict[Register, frozenset[str]]:
    """The shared variables whose addresses the value of each register is made of; a loaded value is made of none."""
    shared = {variable.name for variable in program.variables if variable.space == "shared"}
    found: dict[Register, frozenset[str]] = {}
    computing = [i for i in program.instructions if not i.is_memory and i.writes()]
    while True:
        before = dict(found)
        for inst in computing:
            parts = [found.get(register, frozenset()) for register in inst.reads()]
            own = shared.intersection(inst.symbols).union(*parts)
            for register in inst.writes() if own else ():
                found[register] = found.get(register, frozenset()) | own
        if found == before:
            return found
