"""A linked kernel as one flat list of instructions, and how it is cut into basic blocks.

A call is no edge between blocks: control continues behind it, so every function has a graph of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from functional.ptx.ir import Instruction, Parameter, Register, Variable

Constants = tuple[tuple[str, int], ...]  # registers, and what each holds


@dataclass(frozen=True, slots=True)
class BasicBlock:
    """Instructions `start` to `stop - 1`. Blocks also end at barriers (`bar`, `barrier`) and calls.

    `reconvergence` is the block where lanes that diverge at its end meet again (immediate post-dominator),
    or None if that is the exit of the function.
    """

    index: int
    start: int
    stop: int
    successors: tuple[int, ...]
    reconvergence: int | None


@dataclass(frozen=True)
class Program:
    """What the executor runs and precharacterize times.

    `instructions[i].index == i`; targets are flat positions; `callee_entry[i]` is the flat position a `call` goes to.
    `pcs[i]` is the program counter in instructions within the module (x 8 B = the reference's PC).
    """

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

    def line_of(self, block: int) -> int:
        """The line of the PTX in which a basic block begins."""
        return self.instructions[self.blocks[block].start].line

    @cached_property
    def _block_of(self) -> tuple[int, ...]:
        return tuple(b.index for b in self.blocks for _ in range(b.start, b.stop))


_ENDS = frozenset({"bra", "brx", "ret", "exit", "trap", "bar", "barrier", "call"})
_JOINS = {"wgmma": "mma_async", "mbarrier": "try_wait"}  # warps may have to wait behind them
_LEAVES = frozenset({"ret", "exit", "trap"})


def basic_blocks(instructions: Sequence[Instruction], entries: Sequence[int] = (0,)) -> tuple[BasicBlock, ...]:
    """Cut a flat program into basic blocks in program order.

    `entries` are the positions where functions begin, ascending. A block begins at each entry, at every branch target
    and behind every instruction that ends one (branch, ret, exit, trap, barrier, call, warpgroup product, wait).
    Successors are in the order taken, fall-through; a guarded ret or exit falls through.
    """
    starts = _starts(instructions, entries)
    stops = [*starts[1:], len(instructions)]
    index = {start: number for number, start in enumerate(starts)}
    successors = [_successors(instructions[stop - 1], stop, index) for stop in stops]
    reconvergence = immediate_post_dominators(successors)
    rows = zip(starts, stops, successors, reconvergence, strict=True)
    return tuple(BasicBlock(number, *row) for number, row in enumerate(rows))


def _starts(instructions: Sequence[Instruction], entries: Sequence[int]) -> list[int]:
    starts = set(entries)
    for position, instruction in enumerate(instructions):
        if instruction.target is not None:
            starts.add(instruction.target)
        starts.update(instruction.targets)
        if instruction.opcode in _ENDS or _JOINS.get(instruction.opcode) in instruction.modifiers:
            starts.add(position + 1)
    return sorted(start for start in starts if start < len(instructions))


def _successors(last: Instruction, stop: int, index: dict[int, int]) -> tuple[int, ...]:
    taken = [index[last.target]] if last.target is not None else [index[t] for t in last.targets]
    leaves = last.opcode in _LEAVES or last.opcode in ("bra", "brx")
    if not leaves or last.guard is not None:
        taken.append(index[stop])
    return tuple(dict.fromkeys(taken))


def immediate_post_dominators(successors: Sequence[Sequence[int]]) -> list[int | None]:
    """Immediate post-dominator of every node, None where only the exit of the graph remains.

    `successors[n]` are the nodes after n; a node with none leads to a virtual exit. A node that cannot reach the exit
    (an endless loop) has none either. Iterates Cooper, Harvey and Kennedy, "A Simple, Fast Dominance Algorithm" (2001)
    on the reversed graph.
    """
    count = len(successors)
    exit_node = count
    forward = [tuple(s) if s else (exit_node,) for s in successors]
    order = _post_order(forward, exit_node)  # of the reversed graph: the exit has the highest number
    parent: dict[int, int] = {exit_node: exit_node}
    changed = True
    while changed:
        changed = False
        for node in sorted(order, key=order.__getitem__, reverse=True)[1:]:
            known = [s for s in forward[node] if s in parent]
            best = known[0]
            for other in known[1:]:
                best = _intersect(parent, order, best, other)
            changed |= parent.get(node) != best
            parent[node] = best
    return [None if parent.get(node, exit_node) == exit_node else parent[node] for node in range(count)]


def _post_order(forward: Sequence[Sequence[int]], exit_node: int) -> dict[int, int]:
    """Post-order number of each node in the depth-first walk of the reversed graph from the exit."""
    backward: list[list[int]] = [[] for _ in range(exit_node + 1)]
    for node, following in enumerate(forward):
        for successor in following:
            backward[successor].append(node)
    order: dict[int, int] = {}
    seen = {exit_node}
    stack: list[tuple[int, Iterator[int]]] = [(exit_node, iter(backward[exit_node]))]
    while stack:
        node, remaining = stack[-1]
        predecessor = next((p for p in remaining if p not in seen), None)
        if predecessor is None:
            order[node] = len(order)
            stack.pop()
        else:
            seen.add(predecessor)
            stack.append((predecessor, iter(backward[predecessor])))
    return order


def _intersect(parent: dict[int, int], order: dict[int, int], a: int, b: int) -> int:
    while a != b:
        while order[a] < order[b]:
            a = parent[a]
        while order[b] < order[a]:
            b = parent[b]
    return a
