"""Machine blocks and the PTX: the PTX blocks that each holds code of, the one at which it is timed, and the accesses of
the trace that its memory instructions make (docs/machine-code.md, rules 1 to 3, 5 and 8)."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from functional.programs.program import Dominators, Program, in_loops, reached, turned
from functional.ptx.ir import Immediate, Instruction, Operand, Register, Special, Symbol
from precharacterize import synchronisation as sync
from precharacterize.classify import Kind
from precharacterize.machine_code.assemble import MachineInstruction
from precharacterize.machine_code.subroutines import cut, is_slow, successors, way_through
from precharacterize.machine_code.timing_classes import access_bytes, ends_block, falls_through, kind_of
from precharacterize.timed_code import Access, Cover, Mode, Source, access_numbers, consumes, mode_of


def innermost_loops(edges: Sequence[Sequence[int]], dominators: Dominators) -> dict[int, frozenset[int]]:
    """The smallest natural loop around each node of a graph that is in one."""
    before, loops = turned(edges), dict[int, set[int]]()
    for node, following in enumerate(edges):
        for head in (h for h in following if dominators.nearest_common((node, h)) == h):
            way_back = [*before[:head], [], *before[head + 1 :]]
            loops.setdefault(head, {head}).update(reached([node], way_back.__getitem__))
    by_size = sorted((frozenset(body) for body in loops.values()), key=len, reverse=True)
    return {node: body for body in by_size for node in body}


def outside(
    leader: int, loop: frozenset[int], is_behind: bool, dominators: Dominators, behind: Dominators, known: set[int]
) -> int:
    """The nearest PTX block out of a loop that each way out of it (`is_behind`) or into it passes, of those that
    machine code is `known` for; the leader itself if there is none."""
    parent, node = (behind if is_behind else dominators).parent, leader
    while node in loop or node not in known:
        if node not in parent or parent[node] == node:
            return leader
        node = parent[node]
    return node


@dataclass(frozen=True)
class Placed:
    """A machine block: the PTX block that leads it, its successors, does it access memory or change what others wait
    for, and are there others like it?"""

    leader: int
    after: Sequence[int]
    acts: bool
    has_rivals: bool


def leaders(
    blocks: Sequence[Placed], edges: Sequence[Sequence[int]], dominators: Dominators, behind: Dominators,
    known: set[int],
) -> list[int]:  # fmt: skip
    """Leaders of machine blocks: one that is not executed in each round of its leader's loop, while others of that loop
    are, is led by a PTX block out of it. One that acts stays, and so does what may be a copy of a round. The assembler
    puts what comes before a loop before it, what follows behind it."""
    loops, found = innermost_loops(edges, dominators), [block.leader for block in blocks]
    for loop in set(loops.values()):
        within = {n for n, block in enumerate(blocks) if block.leader in loop}
        rounds = in_loops([[m for m in b.after if m in within] if n in within else [] for n, b in enumerate(blocks)])
        some_act = any(blocks[n].acts for n in rounds)
        for n in within - rounds if rounds else ():
            block = blocks[n]
            if loops[block.leader] == loop and not block.acts and (some_act or not block.has_rivals):
                found[n] = outside(block.leader, loop, n > min(rounds), dominators, behind, known)
    return found


# PTX instructions that the assembler neither leaves out nor makes one with others, mostly; some become several
_SIMPLE = frozenset(
    {"fma", "setp", "and", "or", "xor", "shl", "shr", "mad", "min", "max", "shfl", "mma", "popc"}
    | {"ex2", "lg2", "sin", "cos", "rcp", "rsqrt", "sqrt", "tanh"}
)
_FLOAT = frozenset({"add", "sub", "mul"})
ENOUGH = 3  # different instructions to tell how often a loop was unrolled
MOST_ALIKE = 2  # instructions of one name that one of 64 bits becomes
MEETING = ("BAR", "UCGABAR_ARV", "UCGABAR_WAIT")  # the last two: a cluster's
_FETCHING = frozenset({"LDC", "ULDC", "LDCU"})
_BRANCHES = frozenset({"bra", "brx", "ret", "exit", "call"})


@dataclass
class MachineBlock:
    """Instructions of a function without a branch among them, and the PTX instruction of each (-1: none).
    `constants`: those of the PTX that load constants."""

    code: list[MachineInstruction]
    ptx: list[int]
    constants: frozenset[int] = frozenset()
    leader: int = -1
    times: int = 1
    rivals: list[int] = field(default_factory=list)

    @cached_property
    def works(self) -> list[tuple[MachineInstruction, int]]:
        """Its instructions that were made from PTX. What fetches a parameter for an addition bears its line, but is
        neither an addition nor an access: it stands in front of the loop that the addition is in."""
        made = [(c, i) for c, i in zip(self.code, self.ptx, strict=True) if i >= 0]
        return [(c, i) for c, i in made if c.name not in _FETCHING or i in self.constants] or made

    @cached_property
    def held(self) -> Counter[int]:
        """How often each PTX instruction occurs in it."""
        return Counter(i for _, i in self.works)

    @cached_property
    def copies(self) -> Counter[int]:
        """How many times the work of each PTX instruction is in it. A function of the XU takes it once, however many
        instructions there are around."""
        functions = Counter(i for instruction, i in self.works if instruction.name == "MUFU")
        return Counter({**self.held, **functions})

    @cached_property
    def accessed(self) -> Counter[int]:
        """How often a memory instruction of it comes from each PTX instruction; of an atomic that became a loop, not
        the load in front of the compare-and-swap."""
        kinds = [(i, kind_of(instruction)) for instruction, i in self.works]
        atomics = Counter(i for i, kind in kinds if kind in (Kind.SHARED_ATOMIC, Kind.GLOBAL_ATOMIC))
        return Counter({**Counter(i for i, kind in kinds if kind > Kind.PARAM_LOAD), **atomics})


def machine_blocks(code: Sequence[MachineInstruction], program: Program) -> list[MachineBlock]:
    """The blocks of a function that can be reached without leaving the fast path of an instruction, in order. What only
    slow paths come back to goes on with the block before it."""
    at_line = {i.line: i.index for i in program.instructions}
    blocks = cut(code)
    labels = {block[0].label: n for n, block in enumerate(blocks) if block[0].label}
    ptx = [_ptx_of(block, at_line, program) for block in blocks]
    slow = {n for n, block in enumerate(blocks) if is_slow(block, at_line, program)}
    slow |= _waiting_again(blocks, ptx, program, labels) | _without_clusters(blocks, ptx, program)
    quick = {*range(len(blocks))} - slow
    after = {n: sorted(quick.intersection(successors(blocks, n, labels))) for n in quick}
    seen = sorted(reached(quick & {0}, after.__getitem__))
    ways = Counter(following for n in seen for following in after[n])
    constants = frozenset(i.index for i in program.instructions if i.opcode == "ld" and i.space == "const")
    made: list[MachineBlock] = []
    for before, n in zip([-1, *seen], seen, strict=False):
        called = way_through(blocks, labels, blocks[n][-1])  # comes before the call, which ends the block
        own, of_ptx = blocks[n][:-1] + called + blocks[n][-1:], ptx[n][:-1] + [-1] * len(called) + ptx[n][-1:]
        block = MachineBlock(own, of_ptx, constants)
        last = blocks[before][-1]  # of the first block, code that ends the function
        alone = ways[n] == 1 and after.get(before) == [n] and (last.name == "BRA" or not ends_block(last))
        if alone and not block.accessed.keys() & made[-1].accessed.keys():  # else it is an unrolled loop's next round
            made[-1] = MachineBlock(made[-1].code + block.code, made[-1].ptx + block.ptx, constants)
        else:
            made.append(block)
    return made


def _without_clusters(blocks: list[list[MachineInstruction]], ptx: list[list[int]], program: Program) -> set[int]:
    """Blocks that a launch without clusters takes at a cluster's barrier, beside those of one with them. What chooses
    between them comes to no PTX instruction: only the barrier does."""
    of_cluster, found = {i.index for i in program.instructions if i.meets and "cluster" in i.modifiers}, set[int]()
    for n, block in enumerate(blocks):
        for k, instruction in enumerate(block):
            if ptx[n][k] in of_cluster and not instruction.name.startswith("UCGABAR"):
                found |= {n} if instruction.name in ("BAR", "NOP") else set()
                ptx[n][k] = -1
    return found


def _waiting_again(
    blocks: list[list[MachineInstruction]], ptx: list[list[int]], program: Program, labels: dict[str, int]
) -> set[int]:
    """Blocks in which a warp asks again whether a phase of an `mbarrier` is over: a trace has none of that. The
    assembler puts a first question behind the line before it (13.0); here it comes to its own. A block that sleeps asks
    again, if another has asked; its second question is none."""
    waits = [i.index for i in program.instructions if i.opcode == "mbarrier" and "try_wait" in i.modifiers]
    asked, found = set[int](), set[int]()
    for n, block in enumerate(blocks):
        sleeps = any(instruction.name == "NANOSLEEP" for instruction in block)
        for k in (k for k, instruction in enumerate(block) if "PHASECHK" in instruction.modifiers):
            if "TRYWAIT" not in block[k].modifiers:
                ptx[n][k] = -1
                continue
            if ptx[n][k] not in waits:
                ptx[n][k] = next((w for w in waits if w > ptx[n][k]), -1)
            found |= {n} if sleeps and ptx[n][k] in asked else set()
            asked.add(ptx[n][k])
    after = {n: successors(blocks, n, labels) for n in range(len(blocks))}
    return found | {n for n, others in after.items() if others and found.issuperset(others)}


def _ptx_of(block: list[MachineInstruction], at_line: dict[int, int], program: Program) -> list[int]:
    """The PTX instruction of each instruction, by its line, which a spilled register's access has from whatever stands
    before it. So has a texture fetch (ptxas 13, 12.6): the fetches of one such line are those of the PTX behind it, in
    turn."""
    found, seen = [at_line.get(i.line, -1) for i in block], Counter[int]()
    for position, (instruction, i) in enumerate(zip(block, found, strict=True)):
        if instruction.name in ("LDL", "STL") and program.instructions[i].space not in ("local", "generic"):
            found[position] = -1
        if kind_of(instruction) == Kind.TEXTURE_LOAD and i >= 0 and program.instructions[i].opcode != "tex":
            # those of the nearest PTX block that has any
            behind = [k for k in range(i + 1, len(program.instructions)) if program.instructions[k].opcode == "tex"]
            behind = [k for k in behind if program.block_of(k) == program.block_of(behind[0])]
            found[position] = behind[seen[i] % len(behind)] if behind else i
            seen[i] += 1
    return found


def align(blocks: list[MachineBlock], program: Program, kinds: Sequence[int]) -> None:
    """Set leader, times and rivals of every block; a block that holds no PTX instruction keeps leader -1."""
    called = {i: [program.block_of(entry)] for i, entry in program.callee_entry.items()}
    edges = [[*block.successors, *called.get(block.stop - 1, [])] for block in program.blocks]
    before = turned(edges)
    dominators, behind = Dominators(edges, 0), Dominators(before, len(edges))
    for block in blocks:
        found = _effects(block, program, kinds, before)
        held = Counter(program.block_of(i) for _, i in block.works)
        most_held, _ = max(held.items(), key=lambda own: (own[1], -own[0]), default=(-1, 0))
        block.leader = _leader(found, dominators, behind) if found else most_held
        block.times = _rounds(block, program, kinds)
    for n, block in enumerate(blocks):
        block.rivals = [m for m, other in enumerate(blocks) if m == n or _same_code(block, other, program, kinds)]
        # what stands around the other copies of an unrolled loop is not executed with it
        block.rivals += [m for m, b in enumerate(blocks) if b.times > block.times and b.leader == block.leader]
    _leave_loops(blocks, program, edges, dominators, behind)


def _leave_loops(
    blocks: list[MachineBlock], program: Program, edges: Sequence[Sequence[int]], dominators: Dominators,
    behind: Dominators,
) -> None:  # fmt: skip
    """Blocks that stand around a loop are led by PTX blocks out of it, and are nobody's rivals."""
    known = {b.leader for b in blocks} | {program.block_of(i) for b in blocks for i in b.held}
    copied = Counter(m for n, b in enumerate(blocks) for m in {n, *b.rivals})
    alike = [len(b.rivals) > 1 or copied[n] > 1 for n, b in enumerate(blocks)]
    # does it access memory, or begin, close or await copies, arrivals or products?
    of_ptx = program.instructions
    acts = [bool(b.accessed) or any(sync.copies_of(of_ptx[i]) != sync.NONE for i in b.held) for b in blocks]
    placed = [Placed(b.leader, way, *more) for b, way, *more in zip(blocks, _ways(blocks), acts, alike, strict=True)]
    found = leaders(placed, edges, dominators, behind, known)
    moved = {n for n, block in enumerate(blocks) if found[n] != block.leader}
    for n, block in enumerate(blocks):
        block.rivals = [n] if n in moved else [m for m in block.rivals if m not in moved]
        block.leader, block.times = found[n], 1 if n in moved else block.times


def _ways(blocks: Sequence[MachineBlock]) -> list[list[int]]:
    labels = {block.code[0].label: n for n, block in enumerate(blocks) if block.code[0].label}
    ways = [[labels[c.target] for c in block.code if ends_block(c) and c.target in labels] for block in blocks]
    follows = [n + 1 < len(blocks) and falls_through(block.code[-1]) for n, block in enumerate(blocks)]
    return [way + [n + 1] * follow for n, (way, follow) in enumerate(zip(ways, follows, strict=True))]


def _effects(block: MachineBlock, program: Program, kinds: Sequence[int], before: Sequence[Sequence[int]]) -> set[int]:
    """PTX blocks of its effects; of one that the assembler guards in place of a branch, the block that branches, for
    those who do not take it pass here, too. A guard on an aggregated atomic chooses a lane."""
    found = set()
    for instruction, i in zip(block.code, block.ptx, strict=True):
        if i < 0 or not _is_anchor(instruction, program.instructions[i], kinds[i]):
            continue
        here, source = program.block_of(i), program.instructions[i]
        branched = instruction.guard and source.guard is None and len(before[here]) == 1
        chosen = source.opcode in ("atom", "red") and is_aggregated(block, i)
        found.add(before[here][0] if branched and not chosen else here)
    return found


def is_aggregated(block: MachineBlock, i: int) -> bool:
    """Does a warp send one request for all lanes of atomic `i`? The code that adds them up bears its line."""
    return any(c.name in _AGGREGATING for c, k in zip(block.code, block.ptx, strict=True) if k == i)


def _leader(effects: set[int], dominators: Dominators, behind: Dominators) -> int:
    """The PTX block at which a machine block is executed: the nearest that dominates all whose effects it holds, or
    those of them that do not follow on that one in any case. `behind`: post-dominators."""
    first = dominators.nearest_common(effects)
    rarer = {b for b in effects if behind.nearest_common((b, first)) != b}
    return dominators.nearest_common(rarer or effects)


def _is_anchor(instruction: MachineInstruction, source: Instruction, kind: int) -> bool:
    if source.opcode in _BRANCHES:
        return ends_block(instruction)
    if source.meets:
        return instruction.name in MEETING
    if sync.copies_of(source) < sync.LAST_PRODUCT:
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
    leader has none, the least of how often it has each simple instruction, if it has enough of them; or, of 64 bits
    alone, how often their rarest machine instruction is there: the least count that enough of them share."""
    own = range(program.blocks[block.leader].start, program.blocks[block.leader].stop) if block.leader >= 0 else ()
    if any(kinds[i] > Kind.PARAM_LOAD for i in own):
        memory = sorted(block.accessed[i] for i in own if block.accessed[i])
        return memory[len(memory) // 2] if memory else 1
    counts = [block.copies[i] for i in own if i in block.copies and _is_single(i, program, kinds)]
    if len(counts) >= ENOUGH:
        return min(counts)
    named: dict[int, Counter[str]] = {i: Counter() for i in own if i in block.held}
    for instruction, i in block.works:
        if i in named:
            named[i][instruction.opcode] += 1
    often = Counter(min(names.values()) for names in named.values())
    least = min((count for count, instructions in often.items() if instructions >= ENOUGH), default=1)
    return least if least > MOST_ALIKE else 1


def _same_code(a: MachineBlock, b: MachineBlock, program: Program, kinds: Sequence[int]) -> bool:
    """Do two machine blocks hold copies of the same code of a's leader? They do if they share half of their accesses
    there; if neither has any, half of their simple instructions."""

    def own(block: MachineBlock, memory: bool) -> set[int]:
        here = block.accessed if memory else (i for i in block.held if _is_single(i, program, kinds))
        return {i for i in here if program.block_of(i) == a.leader}

    memory = bool(own(a, True) or own(b, True))
    mine, other = own(a, memory), own(b, memory)
    return 2 * len(mine & other) >= min(len(mine), len(other)) > 0


_COPYING = frozenset({"mov", "cvta", "add", "sub", "shl", "shr", "mul", "mad", "and", "or", "cvt"})
LONGEST = 8  # chain of instructions that an address is followed through
_SAME_IN_A_WARP = ("%ctaid", "%nctaid", "%ntid", "%gridid", "%warpid", "%smid")


def compare_and_swap(block: MachineBlock, program: Program) -> int | None:
    """The place of the compare-and-swap in a block that is such a loop on a word all lanes name; None of any other."""
    last, atomics, swaps = block.code[-1], set(block.held), {"CAS", "CAST"}
    loop = last.name == "BRA" and last.guard and block.code[0].label and last.target == block.code[0].label
    found = [k for k, c in enumerate(block.code) if kind_of(c) == Kind.SHARED_ATOMIC and swaps & {*c.modifiers}]
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
_ALONE: dict[int, tuple[str, ...]] = {sync.MEETS: ("SYNCS",), sync.MEETS_LATER: ("ARRIVES",), sync.COMMITS: ("UTCBAR",)}
_ALONE |= {sync.FILLS: BULK_COPIES, sync.starts(sync.BULK): BULK_COPIES}
_AGGREGATING = ("REDUX", "VOTEU", "VOTE")


class Matching:
    """Matches the accesses of a function; `missing` are those of the PTX that no machine instruction makes."""

    def __init__(self, blocks: Sequence[MachineBlock], program: Program, kinds: Sequence[int]) -> None:
        self.program, self.kinds = program, kinds
        self.numbers = access_numbers(program, kinds)
        made = {i for block in blocks for c, i in zip(block.code, block.ptx, strict=True) if self._makes(c, i)}
        within = {block_of for block in blocks for block_of in map(program.block_of, block.held)}
        missing = [i for i in self.numbers if i not in made and kinds[i] != Kind.PARAM_LOAD]
        self.missing = [i for i in missing if program.block_of(i) in within]
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
            if part == 0 and i not in self._hosted:  # what no instruction makes, and this wider one does as well
                self._hosted[i] = self._neighbours(i, access_bytes(instruction))
                self.missing = [k for k in self.missing if k not in self._hosted[i]]
            wanted = [i, *self._hosted[i]] if part == 0 else []
            found[position] = self._access(block, wanted, i, instance, covers)
        return found

    def _makes(self, instruction: MachineInstruction, i: int) -> bool:
        if i >= 0 and self.program.instructions[i].meets:
            return instruction.name in MEETING
        if i < 0 or consumes(self.kinds[i]) < 0 or consumes(kind_of(instruction)) < 0:
            return False
        if made_by := _ALONE.get(sync.copies_of(self.program.instructions[i])):
            return instruction.name in made_by
        if self.kinds[i] in _ATOMICS:
            return kind_of(instruction) in _ATOMICS
        return self.kinds[i] != Kind.PARAM_LOAD

    def _access(self, block: MachineBlock, wanted: list[int], i: int, instance: int, covers: list[Cover]) -> Access:
        mode = mode_of(self.kinds[i])
        alone = sync.copies_of(self.program.instructions[i]) in _ALONE
        if self.kinds[i] in _ATOMICS and not alone and is_aggregated(block, i):
            mode = Mode.ONE_PASS if mode == Mode.PASSES else Mode.ONCE_A_LINE
        sources = []
        for source in wanted:
            cover = Cover(self.program.block_of(source), instance)
            if cover not in covers:
                covers.append(cover)
            sources.append(Source(covers.index(cover), self.numbers[source]))
        return Access(mode, tuple(sources))

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
