"""A linked kernel: the entry and every function it can reach, as one flat instruction list cut into basic blocks."""

from __future__ import annotations

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
