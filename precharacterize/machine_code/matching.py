"""Which accesses of the trace each memory instruction of a machine block makes, and which blocks are loops of
compare-and-swap that an atomic of shared memory became (docs/machine-code.md, rule 8).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from functional.programs.program import Program
from functional.ptx.ir import Immediate, Instruction, Operand, Register, Special, Symbol
from precharacterize.classify import Kind
from precharacterize.machine_code.alignment import MachineBlock
from precharacterize.machine_code.assemble import MachineInstruction
from precharacterize.machine_code.timing_classes import access_bytes, kind_of
from precharacterize.synchronisation import BULK, COMMITS, FILLS, MEETS, MEETS_LATER, copies_of, starts
from precharacterize.timed_code import Access, Cover, Mode, Source, access_numbers, consumes

_COPYING = frozenset({"mov", "cvta", "add", "sub", "shl", "shr", "mul", "mad", "and", "or", "cvt"})
LONGEST = 8  # chain of instructions that an address is followed through
_SAME_IN_A_WARP = ("%ctaid", "%nctaid", "%ntid", "%gridid", "%warpid", "%smid")


def compare_and_swap(block: MachineBlock, program: Program) -> int | None:
    """The place of the compare-and-swap in a block that is such a loop on a word all lanes name; None of any other."""
    last, atomics = block.code[-1], set(block.held)
    loop = last.name == "BRA" and last.guard and block.code[0].label and last.target == block.code[0].label
    found = [
        k for k, c in enumerate(block.code) if kind_of(c) == Kind.SHARED_ATOMIC and {"CAS", "CAST"} & {*c.modifiers}
    ]
    if not loop or len(atomics) != 1 or len(found) != 1:  # copies loop, too, and name no word
        return None
    address = program.instructions[min(atomics)].address
    one_word = address is None or address.base is None or _is_uniform(address.base, program, LONGEST)
    return found[0] if one_word else None


def _is_uniform(operand: Operand | None, program: Program, depth: int) -> bool:
    """Has it one value in a warp, by instructions of which at most so many follow each other?"""
    if isinstance(operand, Immediate | Symbol):
        return True
    if isinstance(operand, Special):
        return operand.name.startswith(_SAME_IN_A_WARP)
    if not isinstance(operand, Register) or depth == 0:
        return False
    makers = [k for k in program.instructions if operand in k.writes()]
    if len(makers) != 1 or makers[0].guard:
        return False
    made = makers[0]
    if made.opcode == "ld":
        return made.space == "param"
    return made.opcode in _COPYING and all(_is_uniform(source, program, depth - 1) for source in made.sources)


_ATOMICS = (Kind.GLOBAL_ATOMIC, Kind.SHARED_ATOMIC)
BULK_COPIES = ("UTMALDG", "UBLKCP", "UTMASTG", "UTMAREDG", "UBLKRED")
# Of several machine instructions that one of PTX becomes, those that make its access
_ALONE = {MEETS: ("SYNCS",), MEETS_LATER: ("ARRIVES",), FILLS: BULK_COPIES, starts(BULK): BULK_COPIES,
          COMMITS: ("UTCBAR",)}  # fmt: skip
_AGGREGATING = ("REDUX", "VOTEU", "VOTE")


class Matching:
    """Matches the accesses of a function; `lost` is how many PTX accesses no machine instruction makes."""

    def __init__(self, blocks: Sequence[MachineBlock], program: Program, kinds: Sequence[int]) -> None:
        self.program, self.kinds = program, kinds
        self.numbers = access_numbers(program, kinds)
        made = {i for block in blocks for c, i in zip(block.code, block.ptx, strict=True) if self._makes(c, i)}
        within = {block_of for block in blocks for block_of in map(program.block_of, block.held)}
        missing = [i for i in self.numbers if i not in made and kinds[i] != Kind.PARAM_LOAD]
        self.missing = [i for i in missing if program.block_of(i) in within]
        self.lost = len(missing)
        self._hosted: dict[int, list[int]] = {}

    def accesses(self, block: MachineBlock, covers: list[Cover]) -> dict[int, Access]:
        """Accesses of a block's memory instructions by position; new covers are added to `covers`."""
        occurred: Counter[int] = Counter()
        found = {}
        for position, (instruction, i) in enumerate(zip(block.code, block.ptx, strict=True)):
            if not self._makes(instruction, i):
                continue
            split = max(1, self.program.instructions[i].access_bytes // access_bytes(instruction))
            instance, part = divmod(occurred[i], split if self.kinds[i] not in _ATOMICS else 1)
            occurred[i] += 1
            wanted = [i, *self._vectorised(instruction, i)] if part == 0 else []
            found[position] = self._access(block, wanted, i, instance, covers)
        return found

    def _makes(self, instruction: MachineInstruction, i: int) -> bool:
        """Is it a memory instruction that makes the access of PTX instruction `i`?"""
        if i < 0 or consumes(self.kinds[i]) < 0 or consumes(kind_of(instruction)) < 0:
            return False
        made_by = _ALONE.get(copies_of(self.program.instructions[i]))
        if made_by:
            return instruction.name in made_by
        if self.kinds[i] in _ATOMICS:
            return kind_of(instruction) in _ATOMICS
        return self.kinds[i] != Kind.PARAM_LOAD

    def _access(self, block: MachineBlock, wanted: list[int], i: int, instance: int, covers: list[Cover]) -> Access:
        mode = Mode.PASSES if consumes(self.kinds[i]) == 1 else Mode.RECORDS
        alone = copies_of(self.program.instructions[i]) in _ALONE
        if self.kinds[i] in _ATOMICS and not alone and self._is_aggregated(block, i):
            mode = Mode.ONE_PASS if mode == Mode.PASSES else Mode.ONCE_A_LINE
        sources = []
        for source in wanted:
            cover = Cover(self.program.block_of(source), instance)
            if cover not in covers:
                covers.append(cover)
            sources.append(Source(covers.index(cover), self.numbers[source]))
        return Access(mode, tuple(sources))

    def _is_aggregated(self, block: MachineBlock, i: int) -> bool:
        """Does a warp send one request for all its lanes? The code that adds them up bears the atomic's line."""
        return any(c.name in _AGGREGATING for c, k in zip(block.code, block.ptx, strict=True) if k == i)

    def _vectorised(self, instruction: MachineInstruction, i: int) -> list[int]:
        """PTX accesses without a machine instruction that this wider one makes as well."""
        if i not in self._hosted:
            self._hosted[i] = self._neighbours(i, access_bytes(instruction))
            self.missing = [k for k in self.missing if k not in self._hosted[i]]
            self.lost -= len(self._hosted[i])
        return self._hosted[i]

    def _neighbours(self, i: int, wide: int) -> list[int]:
        """Those behind an access first, then those before it, as many as `wide` bytes have room for."""
        own, found = self.program.instructions[i], []
        room = wide - own.access_bytes
        near = [k for k in self.missing if self.kinds[k] == self.kinds[i]]
        near = [k for k in near if self.program.block_of(k) == self.program.block_of(i)]
        for k in sorted(near, key=lambda k: _distance(own, self.program.instructions[k], wide)):
            other = self.program.instructions[k]
            if _distance(own, other, wide) < 2 * wide and 0 < other.access_bytes <= room:
                found.append(k)
                room -= other.access_bytes
        return found


def _distance(a: Instruction, b: Instruction, wide: int) -> int:
    """How far b's access lies behind a's, from one register; before it is farther; 2 wide: not within `wide` bytes."""
    first, second = a.address, b.address
    if first is None or second is None or first.base != second.base:
        return 2 * wide - 1
    behind = second.offset - first.offset
    if abs(behind) >= wide:
        return 2 * wide
    return behind if behind > 0 else wide - behind
