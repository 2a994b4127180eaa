"""Which PTX blocks a machine block holds code of, and at which of them it is timed (docs/machine-code.md)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from functional.programs.program import Dominators, Program
from functional.ptx.ir import Instruction
from precharacterize.classify import Kind
from precharacterize.machine_code.assemble import MachineInstruction
from precharacterize.machine_code.timing_classes import ends_block, falls_through, kind_of
from precharacterize.synchronisation import LAST_PRODUCT, copies_of

# PTX instructions that the assembler neither leaves out nor makes one with others, mostly; some become several
_SIMPLE = frozenset(
    {"fma", "setp", "and", "or", "xor", "shl", "shr", "mad", "min", "max", "shfl", "mma", "popc"}
    | {"ex2", "lg2", "sin", "cos", "rcp", "rsqrt", "sqrt", "tanh"}
)
_FLOAT = frozenset({"add", "sub", "mul"})
ENOUGH = 3  # different instructions to tell how often a loop was unrolled
_BRANCHES = frozenset({"bra", "brx", "ret", "exit", "call"})


@dataclass
class MachineBlock:
    """Instructions of a function without a branch among them, and the PTX instruction of each (-1: none)."""

    code: list[MachineInstruction]
    ptx: list[int]
    leader: int = -1
    times: int = 1
    rivals: list[int] = field(default_factory=list)

    @cached_property
    def held(self) -> Counter[int]:
        """How often each PTX instruction occurs in it."""
        return Counter(i for i in self.ptx if i >= 0)

    @cached_property
    def copies(self) -> Counter[int]:
        """How many times the work of each PTX instruction is in it. A function of the XU takes it once, however many
        instructions there are around."""
        made = zip(self.code, self.ptx, strict=True)
        functions = Counter(i for instruction, i in made if i >= 0 and instruction.name == "MUFU")
        return Counter({**self.held, **functions})

    @cached_property
    def accessed(self) -> Counter[int]:
        """How often a memory instruction of it comes from each PTX instruction; of an atomic that became a loop, not
        the load in front of the compare-and-swap."""
        kinds = [(i, kind_of(instruction)) for instruction, i in zip(self.code, self.ptx, strict=True) if i >= 0]
        atomics = Counter(i for i, kind in kinds if kind in (Kind.SHARED_ATOMIC, Kind.GLOBAL_ATOMIC))
        return Counter({**Counter(i for i, kind in kinds if kind > Kind.PARAM_LOAD), **atomics})


def machine_blocks(code: Sequence[MachineInstruction], program: Program) -> list[MachineBlock]:
    """The blocks of a function that can be reached without leaving the fast path of an instruction, in order."""
    at_line = {i.line: i.index for i in program.instructions}
    blocks = _cut(code)
    labels = {block[0].label: n for n, block in enumerate(blocks) if block[0].label}
    ptx = [_ptx_of(block, at_line, program) for block in blocks]
    slow = {n for n, block in enumerate(blocks) if _is_slow(block, at_line)}
    slow |= _waiting_again(blocks, ptx, program, labels)
    seen, left = set(), [0] if blocks else []
    while left:
        n = left.pop()
        if n in seen or n in slow or n >= len(blocks):
            continue
        seen.add(n)
        left += _successors(blocks, n, labels)
    return [MachineBlock(blocks[n], ptx[n]) for n in sorted(seen)]


def _waiting_again(
    blocks: list[list[MachineInstruction]], ptx: list[list[int]], program: Program, labels: dict[str, int]
) -> set[int]:
    """Blocks in which a warp asks again whether a phase of an `mbarrier` is over: a trace has none of that. The
    assembler puts the first question behind the line before it; here it comes to its own."""
    waits = [i.index for i in program.instructions if i.opcode == "mbarrier" and "try_wait" in i.modifiers]
    asked, again = set(), []
    for n, block in enumerate(blocks):
        for k in (k for k, instruction in enumerate(block) if "TRYWAIT" in instruction.modifiers):
            if ptx[n][k] in waits:
                again.append((n, ptx[n][k]))
            else:
                ptx[n][k] = next((w for w in waits if w > ptx[n][k]), -1)
                asked.add(ptx[n][k])
    found = {n for n, wait in again if wait in asked}
    return found | {
        n for n in range(len(blocks)) if found.issuperset(after := _successors(blocks, n, labels)) and after
    }


def _ptx_of(block: list[MachineInstruction], at_line: dict[int, int], program: Program) -> list[int]:
    """The PTX instruction of each instruction, by its line. A texture fetch bears the line of whatever stands before it
    (ptxas 13, 12.6): the fetches of one such line are those of the PTX behind it, in turn."""
    found, seen = [at_line.get(i.line, -1) for i in block], Counter[int]()
    for position, (instruction, i) in enumerate(zip(block, found, strict=True)):
        if kind_of(instruction) == Kind.TEXTURE_LOAD and i >= 0 and program.instructions[i].opcode != "tex":
            behind = _fetches_behind(i, program)
            found[position] = behind[seen[i] % len(behind)] if behind else i
            seen[i] += 1
    return found


def _fetches_behind(i: int, program: Program) -> list[int]:
    """Those of the nearest PTX block that has any behind instruction `i`."""
    fetches = [k for k in range(i + 1, len(program.instructions)) if program.instructions[k].opcode == "tex"]
    return [k for k in fetches if program.block_of(k) == program.block_of(fetches[0])]


def _cut(code: Sequence[MachineInstruction]) -> list[list[MachineInstruction]]:
    blocks: list[list[MachineInstruction]] = []
    for k, instruction in enumerate(code):
        if k == 0 or instruction.label or ends_block(code[k - 1]):
            blocks.append([])
        blocks[-1].append(instruction)
    return blocks


def _successors(blocks: list[list[MachineInstruction]], n: int, labels: dict[str, int]) -> list[int]:
    last = blocks[n][-1]
    if last.name == "BRX":
        return list(range(len(blocks)))  # a table of targets that is not in the code
    target = [labels[last.target]] if last.name in ("BRA", "CALL") and last.target in labels else []
    return target + ([n + 1] if falls_through(last) else [])


def _is_slow(block: list[MachineInstruction], at_line: dict[int, int]) -> bool:
    """The rare path of one instruction (a denormal quotient, say): a call for one PTX instruction only."""
    last = block[-1]
    if last.name != "CALL" or last.guard:
        return False
    return "slowpath" in last.target or len({at_line[i.line] for i in block if i.line in at_line}) <= 1


def align(blocks: list[MachineBlock], program: Program, kinds: Sequence[int]) -> None:
    """Set leader, times and rivals of every block; a block that holds no PTX instruction keeps leader -1."""
    dominators = Dominators([_edges(program, block.index) for block in program.blocks], 0)
    for block in blocks:
        block.leader = _leader(block, program, kinds, dominators)
        block.times = _rounds(block, program, kinds)
    for n, block in enumerate(blocks):
        block.rivals = [m for m, other in enumerate(blocks) if m == n or _same_code(block, other, program, kinds)]
        block.rivals += [
            m for m, other in enumerate(blocks) if other.times > block.times and other.leader == block.leader
        ]  # what stands around the other copies of an unrolled loop is not executed with it


def _edges(program: Program, index: int) -> list[int]:
    """Successors of a PTX block, and the entry of a function it calls."""
    last = program.blocks[index].stop - 1
    called = [program.block_of(program.callee_entry[last])] if last in program.callee_entry else []
    return [*program.blocks[index].successors, *called]


def _leader(block: MachineBlock, program: Program, kinds: Sequence[int], dominators: Dominators) -> int:
    """The PTX block at which a machine block is executed: the nearest that dominates all whose effects it holds."""
    held: Counter[int] = Counter()
    anchored = set()
    for instruction, i in zip(block.code, block.ptx, strict=True):
        if i >= 0:
            held[program.block_of(i)] += 1
            if _is_anchor(instruction, program.instructions[i], kinds[i]):
                anchored.add(program.block_of(i))
    if anchored:
        return dominators.nearest_common(anchored)
    return max(held, key=lambda b: (held[b], -b), default=-1)


def _is_anchor(instruction: MachineInstruction, source: Instruction, kind: int) -> bool:
    """Is it an effect that no assembler moves out of its block?"""
    if source.opcode in _BRANCHES:
        return ends_block(instruction)
    if copies_of(source) < LAST_PRODUCT:
        return kind_of(instruction) >= Kind.PARAM_LOAD
    stores = (Kind.GLOBAL_STORE, Kind.GLOBAL_ATOMIC, Kind.SHARED_STORE, Kind.SHARED_ATOMIC, Kind.BARRIER)
    return kind in stores and kind_of(instruction) in stores


def _is_single(i: int, program: Program, kinds: Sequence[int]) -> bool:
    """Does one machine instruction, as a rule, stand for this PTX instruction?"""
    instruction = program.instructions[i]
    if kinds[i] > Kind.PARAM_LOAD or instruction.opcode in _SIMPLE:
        return "64" not in instruction.type or kinds[i] > Kind.PARAM_LOAD or instruction.type == "f64"
    return instruction.opcode in (*_FLOAT, "cvt") and instruction.type.startswith("f")


def _rounds(block: MachineBlock, program: Program, kinds: Sequence[int]) -> int:
    """How many rounds of its leader a machine block holds: the median of how often it has each memory access; where the
    leader has none, the least of how often it has each simple instruction, if it has enough of them."""
    own = range(program.blocks[block.leader].start, program.blocks[block.leader].stop) if block.leader >= 0 else ()
    if any(kinds[i] > Kind.PARAM_LOAD for i in own):
        memory = sorted(block.accessed[i] for i in own if block.accessed[i])
        return memory[len(memory) // 2] if memory else 1
    counts = [block.copies[i] for i in own if i in block.copies and _is_single(i, program, kinds)]
    return min(counts) if len(counts) >= ENOUGH else 1


def _same_code(a: MachineBlock, b: MachineBlock, program: Program, kinds: Sequence[int]) -> bool:
    """Do two machine blocks hold copies of the same code of a's leader? They do if they share half of their accesses
    there; if neither has any, half of their simple instructions."""

    def own(block: MachineBlock, memory: bool) -> set[int]:
        here = block.accessed if memory else (i for i in block.held if _is_single(i, program, kinds))
        return {i for i in here if program.block_of(i) == a.leader}

    memory = bool(own(a, True) or own(b, True))
    mine, other = own(a, memory), own(b, memory)
    return 2 * len(mine & other) >= min(len(mine), len(other)) > 0
