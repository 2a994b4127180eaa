"""A linked kernel as one flat list of instructions, and how it is cut into basic blocks.

A call is no edge between blocks: control continues behind it, so every function has a graph of its own."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from typing import Any

import msgspec

from functional.ptx.ir import Instruction, Parameter, Register, Variable

_SHARED_BY_BLOCKS = ("global", "generic")
# Of loads that see what others write meanwhile, and of stores meant for them
_FRESH = frozenset({"volatile", "relaxed", "acquire", "release", "mmio"})


def order_points_of(
    instructions: Sequence[Instruction], block_of: Callable[[int], int], successors: Sequence[Sequence[int]]
) -> tuple[Instruction, ...]:
    """`Program.order_points`: atomics whose result is read, loads in a loop that look for what others write, and
    `nanosleep`, which waits for them. `block_of`: the basic block of a position; `successors`: of each block."""
    read = {register for inst in instructions for register in inst.reads()}
    read |= {inst.guard.register for inst in instructions if inst.guard is not None}
    loops = in_loops(successors)
    return tuple(i for i in instructions if _is_order_point(i, read, block_of(i.index) in loops))


def _is_order_point(inst: Instruction, read: set[Register], in_loop: bool) -> bool:
    if inst.opcode == "atom" and inst.space in _SHARED_BY_BLOCKS:
        return not read.isdisjoint(inst.writes())
    if inst.opcode == "ld" and inst.space in _SHARED_BY_BLOCKS:
        return in_loop and not _FRESH.isdisjoint(inst.modifiers) and "cta" not in inst.modifiers
    return inst.opcode == "nanosleep"


def told_to_others(instructions: Iterable[Instruction]) -> tuple[Instruction, ...]:
    """Those that change, or look at, what thread blocks tell each other: their turn matters where any does."""
    found = (i for i in instructions if i.opcode in ("atom", "red") or not _FRESH.isdisjoint(i.modifiers))
    return tuple(i for i in found if i.space in _SHARED_BY_BLOCKS)


def publishing(instructions: Sequence[Instruction]) -> list[int]:
    """Positions of the first write behind each fence that others may wait for."""
    found, fenced = [], False
    told = {inst.index for inst in told_to_others(instructions) if inst.opcode != "ld"}
    for position, inst in enumerate(instructions):
        if fenced and position in told:
            found.append(position)
        fenced = inst.opcode in ("membar", "fence") or (fenced and position not in told)
    return found


def reached(starts: Iterable[int], after: Callable[[int], Iterable[int]]) -> set[int]:
    """Nodes of a graph that a way leads to from some of them, those included; `after`: the nodes behind one."""
    found, left = set[int](), list(starts)
    while left:
        if (node := left.pop()) not in found:
            found.add(node)
            left += after(node)
    return found


def in_loops(successors: Sequence[Sequence[int]]) -> set[int]:
    """Nodes of a graph that can be reached from themselves."""
    return {node for node, after in enumerate(successors) if node in reached(after, successors.__getitem__)}


Constants = tuple[tuple[str, int], ...]  # registers, and what each holds


class BasicBlock(msgspec.Struct, frozen=True):
    """Instructions `start` to `stop - 1`. Blocks also end at barriers (`bar`, `barrier`) and calls. One without any
    instructions is the slow path of that at `start`: a trace names it where lanes took it (isa/slow_paths.py).

    `reconvergence` is the block where lanes that diverge at its end meet again (immediate post-dominator),
    or None if that is the exit of the function."""

    index: int
    start: int
    stop: int
    successors: tuple[int, ...]
    reconvergence: int | None


@dataclass(frozen=True)
class Program:
    """What the executor runs and precharacterize times.

    `instructions[i].index == i`; targets are flat positions; `callee_entry[i]` is the flat position a `call` goes to.
    `pcs[i]` is the program counter in instructions within the module (x 8 B = the reference's PC)."""

    name: str
    path: str
    digest: str  # of the module's text
    parameters: tuple[Parameter, ...]
    instructions: tuple[Instruction, ...]
    pcs: tuple[int, ...]
    blocks: tuple[BasicBlock, ...]
    registers: tuple[Register, ...]
    variables: tuple[Variable, ...]  # module-scope ones and those of every linked function
    directives: dict[str, tuple[int, ...]]
    callee_entry: dict[int, int]
    function_parameters: dict[str, tuple[tuple[Parameter, ...], tuple[Parameter, ...]]]  # name -> (params, returns)
    function_of: tuple[str, ...]  # of each instruction
    functions: dict[str, int] = field(default_factory=dict)  # name -> flat position where it begins, the entry left out
    launchable: dict[str, int] = field(default_factory=dict)  # kernels whose address it takes -> bytes of parameters
    recursive: bool = False  # can a function be called while it runs?
    constants: Constants = ()  # registers that hold what a launch's parameters say, and the value

    def block_of(self, instruction: int) -> int:
        """Index of the basic block that holds a flat instruction position."""
        return self._block_of[instruction]

    def takes(self, given: int) -> str:
        """How many arguments it takes, and how many were given, in words."""
        taken = len(self.parameters)
        counts = f"{taken} argument{'s' * (taken != 1)}, {given} {'was' if given == 1 else 'were'} given"
        return f"kernel '{self.name}' takes {counts}"

    def line_of(self, block: int) -> int:
        """The line of the PTX in which a basic block begins."""
        return self.instructions[self.blocks[block].start].line

    @cached_property
    def code_blocks(self) -> tuple[BasicBlock, ...]:
        """The basic blocks that hold instructions, which come first."""
        return tuple(block for block in self.blocks if block.stop > block.start)

    @cached_property
    def slow_paths(self) -> dict[int, int]:
        """Position of an instruction with a slow path -> the basic block that is this path."""
        return {block.start: block.index for block in self.blocks if block.stop == block.start}

    @cached_property
    def order_points(self) -> tuple[Instruction, ...]:
        """Instructions whose effect depends on which thread block came first."""
        return order_points_of(self.instructions, self.block_of, [block.successors for block in self.blocks])

    @cached_property
    def ordered_blocks(self) -> frozenset[int]:
        """Basic blocks in front of which a warp's turn is decided: none if there are no order points."""
        told = told_to_others(self.instructions) if self.order_points else ()
        return frozenset(self.block_of(i.index) for i in told)

    def in_blocks(self, values: Any) -> list[Any]:
        """Sums of what instructions have, by basic block."""
        nothing = 0 * values[0]  # of what kind the values are
        return [sum(values[block.start : block.stop], nothing) for block in self.blocks]

    @cached_property
    def numbers(self) -> dict[Register, int]:
        """Register -> its place among `registers`."""
        return {register: n for n, register in enumerate(self.registers)}

    @cached_property
    def _block_of(self) -> tuple[int, ...]:
        return tuple(b.index for b in self.blocks for _ in range(b.start, b.stop))


ENDS = frozenset({"bra", "brx", "ret", "exit", "trap", "bar", "barrier", "call"})  # of a basic block
_JOINS = {"wgmma": "mma_async", "mbarrier": "try_wait"}  # warps may have to wait behind them
_LEAVES = frozenset({"ret", "exit", "trap"})


def basic_blocks(
    instructions: Sequence[Instruction], entries: Sequence[int] = (0,), also: Sequence[int] = ()
) -> tuple[BasicBlock, ...]:
    """Cut a flat program into basic blocks in program order.

    `entries` are the positions where functions begin, ascending. A block begins at each entry, at every branch target
    and behind every instruction that ends one (branch, ret, exit, trap, barrier, call, warpgroup product, wait), and at
    the positions `also`. Successors are in the order taken, fall-through; a guarded ret or exit falls through."""
    found = {*entries, *(target for i in instructions for target in i.targets)}
    found |= {i.target for i in instructions if i.target is not None}
    joined = (k for k, i in enumerate(instructions) if i.opcode in ENDS or _JOINS.get(i.opcode) in i.modifiers)
    found |= {position + 1 for position in joined}
    starts = sorted({*(start for start in found if start < len(instructions)), *also})
    stops = [*starts[1:], len(instructions)]
    index = {start: number for number, start in enumerate(starts)}
    successors = [_successors(instructions[stop - 1], stop, index) for stop in stops]
    rows = zip(starts, stops, successors, immediate_post_dominators(successors), strict=True)
    return tuple(BasicBlock(number, *row) for number, row in enumerate(rows))


def _successors(last: Instruction, stop: int, index: dict[int, int]) -> tuple[int, ...]:
    taken = [index[last.target]] if last.target is not None else [index[t] for t in last.targets]
    leaves = last.opcode in _LEAVES or last.opcode in ("bra", "brx")
    if not leaves or last.guard is not None:
        taken.append(index[stop])
    return tuple(dict.fromkeys(taken))


def turned(successors: Sequence[Sequence[int]]) -> list[list[int]]:
    """The nodes before each; one more node, the exit of the graph, comes after all that have none behind."""
    before: list[list[int]] = [[] for _ in range(len(successors) + 1)]
    for node, following in enumerate(successors):
        for successor in following or (len(successors),):
            before[successor].append(node)
    return before


def immediate_post_dominators(successors: Sequence[Sequence[int]]) -> list[int | None]:
    """Immediate post-dominator of every node, None where only the exit of the graph remains.

    `successors[n]` are the nodes after n; a node with none leads to a virtual exit. An endless loop has none either."""
    end = len(successors)
    parent = Dominators(turned(successors), end).parent
    return [None if parent.get(node, end) == end else parent[node] for node in range(end)]


class Dominators:
    """Immediate dominators in a graph, by Cooper, Harvey and Kennedy, "A Simple, Fast Dominance Algorithm" (2001).

    `parent[n]` is that of node n; `root` is its own, and a node that cannot be reached from there has none."""

    def __init__(self, successors: Sequence[Sequence[int]], root: int) -> None:
        order = _post_order(successors, root)
        self._rank = {node: rank for rank, node in enumerate(order)}
        before, self.parent, changed = turned(successors), {root: root}, True
        while changed:
            changed = False
            for node in reversed(order[:-1]):
                best = reduce(self._common, (p for p in before[node] if p in self.parent))
                changed |= self.parent.get(node) != best
                self.parent[node] = best

    def nearest_common(self, nodes: Iterable[int]) -> int:
        """The nearest node that dominates all of some nodes, those that can be reached; -1 if none can."""
        reached = [node for node in nodes if node in self.parent]
        return reduce(self._common, reached) if reached else -1

    def _common(self, a: int, b: int) -> int:
        while a != b:
            while self._rank[a] < self._rank[b]:
                a = self.parent[a]
            while self._rank[b] < self._rank[a]:
                b = self.parent[b]
        return a


def _post_order(successors: Sequence[Sequence[int]], root: int) -> list[int]:
    """Nodes that can be reached from the root, each behind those reached from it, in a depth-first walk."""
    order: list[int] = []
    seen, left = {root}, [(root, iter(successors[root]))]
    while left:
        node, remaining = left[-1]
        found = next((s for s in remaining if s not in seen), None)
        if found is None:
            order.append(node)
            left.pop()
        else:
            seen.add(found)
            left.append((found, iter(successors[found])))
    return order
