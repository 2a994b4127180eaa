"""What a launch's trace depends on: launches whose traces are provably equal up to where their buffers lie.

A trace is control flow and addresses. `trace_inputs` follows, through the registers of a program, where every value may
come from: a parameter itself, or memory reached through a parameter. What arrives at a guard, a branch or an address is
all that the trace can depend on, but for slow paths of divisions and roots, which what they are given decides; where
these matter they are asked for. No order of execution is looked at, so the answer may name too much, never too little,
as long as an address computed from a pointer stays in the buffer the pointer leads into, as C requires."""

from collections.abc import Hashable
from dataclasses import dataclass

from functional.launches.case import Case
from functional.launches.launch import Launch, Pointer
from functional.launches.memory import ALIGNMENT_BYTES
from functional.programs.program import Program
from functional.ptx.ir import Address, Instruction, Register, Symbol

Origins = frozenset[tuple[str, int]]  # ("value", parameter) or ("memory", parameter)
POINTER_BYTES = 8
_LOADS = ("ld", "ldu")
_UNKNOWN = ("tex", "suld", "sust", "cp", "ldmatrix", "call", "brx")


@dataclass(frozen=True)
class TraceInputs:
    """Parameters, by position: the `contents` of these buffers reach control flow or an address, these `values`
    themselves control flow; the buffers of `written` may change."""

    contents: frozenset[int]
    values: frozenset[int]
    written: frozenset[int]


def trace_inputs(program: Program, slow_paths: bool = False) -> TraceInputs | None:
    """What the trace of a program, with its `slow_paths` or without them, depends on; None if it has an instruction or
    pointer that this does not follow."""
    flow = _Flow(program, slow_paths)
    if any(i.opcode in _UNKNOWN or (i.is_memory and i.space == "generic") for i in program.instructions):
        return None
    before = -1
    while before != (before := flow.size()):
        flow.lost = False  # before a loop has come round, its pointers may not be known
        for instruction in program.instructions:
            flow.step(instruction)
    if flow.lost:
        return None
    return TraceInputs(
        frozenset(k for what, k in flow.control | flow.addresses if what == "memory"),
        frozenset(k for what, k in flow.control if what == "value"),
        frozenset(flow.written),
    )


class _Flow:
    """Origins of all registers, of shared and of local memory; only ever grow."""

    def __init__(self, program: Program, slow_paths: bool) -> None:
        self.deciding = {*program.slow_paths} if slow_paths else set[int]()  # positions of what decides beside branches
        self.parameters = {p.name: k for k, p in enumerate(program.parameters)}
        self.pointers = {k for k, p in enumerate(program.parameters) if p.bytes == POINTER_BYTES}
        self.registers: dict[Register, Origins] = {}
        self.own: dict[str, Origins] = {"shared": frozenset(), "local": frozenset()}
        self.control: Origins = frozenset()
        self.addresses: Origins = frozenset()
        self.written: set[int] = set()
        self.lost = False

    def size(self) -> int:
        """Grows with every step that learns something."""
        sets = (*self.registers.values(), *self.own.values(), self.control, self.addresses, self.written)
        return sum(map(len, sets))

    def step(self, instruction: Instruction) -> None:
        sources = self._of(instruction.reads())
        if instruction.guard is not None:
            guard = self._of((instruction.guard.register,))
            self.control |= guard
            sources |= guard
        if instruction.opcode in ("bar", "barrier") or instruction.index in self.deciding:
            self.control |= sources
        if instruction.is_memory:
            sources = self._memory(instruction, sources)
        for register in instruction.writes():
            self.registers[register] = self.registers.get(register, frozenset()) | sources

    def _memory(self, instruction: Instruction, sources: Origins) -> Origins:
        """Origins of what a load returns; a store leaves its own where it writes."""
        address = next(o for o in (*instruction.destinations, *instruction.sources) if isinstance(o, Address))
        space = instruction.space
        if space == "param":
            named = address.base.name if isinstance(address.base, Symbol) else ""
            every = range(len(self.parameters))
            return sources | {("value", k) for k in ([self.parameters[named]] if named in self.parameters else every)}
        where = self._of((address.base,)) if isinstance(address.base, Register) else frozenset()
        self.addresses |= where
        if space in self.own:
            if instruction.opcode not in _LOADS:
                self.own[space] |= sources
            return sources | self.own[space]
        if space == "const":
            return sources
        reached = {k for what, k in where if what == "value"} & self.pointers
        self.lost |= not reached  # a variable of the module, or a pointer that came out of memory or a structure
        if instruction.opcode not in _LOADS:
            self.written |= reached
        through = {(what, k) for what, k in where if what == "memory"}  # numbers are part of every signature
        return frozenset(through | {("memory", k) for k in reached})

    def _of(self, registers: tuple[Register, ...]) -> Origins:
        return frozenset[tuple[str, int]]().union(*(self.registers.get(r, frozenset()) for r in registers))


def ignores_block_order(launch: Launch) -> bool:
    """Whether a launch's trace is provably the same in whatever order its thread blocks are executed: nothing that
    decides control flow or an address lies in a buffer that the launch writes."""
    if (inputs := trace_inputs(launch.program)) is None:
        return False
    buffers = [a.buffer if isinstance(a, Pointer) else "" for a in launch.arguments]
    return not {buffers[k] for k in inputs.written} & {buffers[k] for k in inputs.contents}


def signatures(case: Case, slow_paths: bool = False) -> list[Hashable] | None:
    """A key a launch, equal where traces, their `slow_paths` too, are provably equal up to where buffers lie; None if
    that is not so for all.

    Then no launch needs an earlier one to have run: what traces depend on is there from the start and never changes."""
    known: dict[tuple[str, str], TraceInputs | None] = {}
    written: set[str] = set()
    needed: set[str] = set()
    keys = []
    for launch in case.launches:
        program = launch.program
        if (which := (program.digest, program.name)) not in known:
            known[which] = trace_inputs(program, slow_paths)
        if (inputs := known[which]) is None:
            return None
        for k, argument in enumerate(launch.arguments):
            if isinstance(argument, Pointer) and k in inputs.written:
                written.add(argument.buffer)
            if isinstance(argument, Pointer) and k in inputs.contents:
                needed.add(argument.buffer)
        keys.append(_signature(launch, inputs))
    return None if written & needed else keys


def _signature(launch: Launch, inputs: TraceInputs) -> Hashable:
    """Kernel, shape, numbers, and of pointers their alignment and which of them are the same buffer."""
    found: list[Hashable] = [
        launch.program.digest,
        launch.program.name,
        launch.grid,
        launch.block,
        launch.dynamic_shared_bytes,
        launch.cluster,
    ]
    first: dict[str, int] = {}
    for k, (parameter, pointer) in enumerate(zip(launch.program.parameters, launch.arguments, strict=True)):
        raw = launch.parameters[parameter.offset : parameter.offset + parameter.bytes]
        if not isinstance(pointer, Pointer):
            found.append(raw)
            continue
        same = first.setdefault(pointer.buffer, k)
        address = int.from_bytes(raw, "little")
        exact = k in inputs.contents or k in inputs.values
        found.append((pointer.offset % ALIGNMENT_BYTES, same, address if exact else None))
    return tuple(found)
