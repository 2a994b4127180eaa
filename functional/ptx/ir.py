"""The PTX program as data: what the parser yields and everything else reads.

Instructions are numbered from 0 within their kernel, labels, pragmas and declarations not counted,
which is also how the timing reference counts program counters (8 bytes each, GPGPU-Sim 4.2)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct, field


class Register(Struct, frozen=True):
    """A virtual register, `name` as printed (`%r5`), made unique if a nested scope redeclares it."""

    name: str
    type: str  # the declared type: "b32", "f32", "pred", ...

    @property
    def number(self) -> int:
        """The number in its name (`%rd5` -> 5), which picks its bank (docs/timing-rules.md, rule 3)."""
        digits = re.search(r"(\d+)\D*$", self.name)
        return int(digits[1]) if digits else 0


class Special(Struct, frozen=True):
    """A read-only special register such as `%tid.x`, `%laneid`, `WARP_SZ`."""

    name: str


class Immediate(Struct, frozen=True):
    """A literal; `value` is an int, or a float decoded from `0f...`, `0d...` or decimal notation."""

    value: int | float


class Symbol(Struct, frozen=True):
    """The address of a variable, parameter or function, plus a byte offset.

    In an initialiser it is the address within the variable's own space, unless it is `generic`."""

    name: str
    offset: int = 0
    generic: bool = False


class Address(Struct, frozen=True):
    """`[base + offset]`; base is None for an absolute address."""

    base: Register | Symbol | None
    offset: int = 0


class Vector(Struct, frozen=True):
    """`{a, b, ...}`; an element is None for the sink `_`."""

    elements: tuple[Operand | None, ...]


Operand = Register | Special | Immediate | Symbol | Address | Vector


class Guard(Struct, frozen=True):
    """`@%p1` or `@!%p1`."""

    register: Register
    negated: bool


class Instruction(Struct, frozen=True):
    """One PTX instruction.

    `destinations` and `sources` keep the PTX order: `d|p` gives two destinations, a vector counts as one
    operand, a store has no destination, and a load's source is its `Address`. A source register negated by
    `!` (setp combine, selp of nvcc) is in `negated_sources` by position."""

    index: int
    line: int
    opcode: str  # "ld"
    modifiers: tuple[str, ...]  # ("global", "nc", "f32")
    destinations: tuple[Operand | None, ...]
    sources: tuple[Operand, ...]
    guard: Guard | None = None
    target: int | None = None  # instruction index a direct branch goes to
    targets: tuple[int, ...] = ()  # brx.idx: every possible target
    callee: str | None = None  # call: function name
    negated_sources: frozenset[int] = frozenset()
    meets: bool = False  # a barrier of which the trace says who meets whom (link.py)

    @property
    def name(self) -> str:
        """The full opcode, as printed: `ld.global.nc.f32`."""
        return ".".join((self.opcode, *self.modifiers))

    @property
    def type(self) -> str:
        """The last type modifier (`f32`, `u64`, `pred`), or "" for untyped instructions."""
        return next((m for m in reversed(self.modifiers) if m in TYPE_BYTES or m == "pred"), "")

    @property
    def space(self) -> str:
        """State space of a memory instruction; "generic" if it names none. Another thread block's shared memory is
        shared memory."""
        found = next((m for m in self.modifiers if m in SPACES), "generic")
        return "shared" if found == CLUSTER_SHARED else found

    @property
    def is_memory(self) -> bool:
        """Does it access a memory space? (`wmma.mma` and the bookkeeping of `cp.async` do not.)"""
        if self.opcode == "tcgen05":  # what it reads and writes of shared memory by descriptors is none of a lane
            return self.modifiers[0] in ("alloc", "commit")
        return self.opcode in MEMORY_OPCODES and _NO_ACCESS.isdisjoint(self.modifiers)

    @property
    def is_warpgroup_product(self) -> bool:
        """`wgmma.mma_async`; the rest of `wgmma` waits or orders."""
        return self.opcode == "wgmma" and "mma_async" in self.modifiers

    @property
    def access_bytes(self) -> int:
        """Bytes each lane of a memory instruction accesses, the elements of a vector together."""
        operands = (*self.destinations, *self.sources)
        elements = max((len(o.elements) for o in operands if isinstance(o, Vector)), default=1)
        return elements * TYPE_BYTES.get(self.type, 4)

    @property
    def address(self) -> Address | None:
        """The operand in brackets, if there is one."""
        return next((o for o in (*self.destinations, *self.sources) if isinstance(o, Address)), None)

    @property
    def symbols(self) -> tuple[str, ...]:
        """Names of the variables and functions that operands, or their addresses, are of."""
        bases = (o.base if isinstance(o, Address) else o for o in (*self.sources, *self.destinations))
        return tuple(base.name for base in bases if isinstance(base, Symbol))

    def reads(self) -> tuple[Register, ...]:
        """Registers read, address bases and vector elements included, the guard not."""
        operands = [*self.sources, *(d for d in self.destinations if isinstance(d, Address))]
        return tuple(r for operand in operands for r in registers_of(operand))

    def writes(self) -> tuple[Register, ...]:
        """Registers written, vector elements and predicate destinations included."""
        return tuple(r for d in self.destinations if not isinstance(d, Address) for r in registers_of(d))


def registers_of(operand: Operand | None) -> tuple[Register, ...]:
    """Every register inside an operand."""
    match operand:
        case Register():
            return (operand,)
        case Address(base=Register() as base):
            return (base,)
        case Vector(elements=elements):
            return tuple(r for e in elements for r in registers_of(e))
    return ()


def parts_of(operand: Operand | None) -> tuple[Operand | None, ...]:
    """The elements of a vector; of another operand itself."""
    return operand.elements if isinstance(operand, Vector) else (operand,)


_Bytes = bytes  # the field `bytes` hides the type


class Variable(Struct, frozen=True):
    """A declared variable of a space. `initialiser` is its little-endian bytes, or None for zero / undefined."""

    name: str
    space: str  # "global" "const" "shared" "local" "param"
    bytes: int
    align: int
    initialiser: _Bytes | None = None
    external: bool = False  # `.extern .shared x[]`: dynamic shared memory
    # (byte offset, symbol): pointers inside an initialiser, filled in when addresses are known
    relocations: tuple[tuple[int, Symbol], ...] = ()


class Parameter(Struct, frozen=True):
    """A kernel or function parameter at byte `offset` of the parameter block."""

    name: str
    type: str
    bytes: int
    align: int
    offset: int


class Kernel(Struct, frozen=True):
    """An `.entry` (or a `.func`, with `is_entry` False)."""

    name: str
    line: int
    is_entry: bool
    parameters: tuple[Parameter, ...]
    returns: tuple[Parameter, ...]
    instructions: tuple[Instruction, ...]
    registers: tuple[Register, ...]  # those that appear in instructions, in order of appearance
    variables: tuple[Variable, ...]  # declared inside: shared, local, param
    pc_base: int = 0  # instructions of the functions before it in the module
    directives: dict[str, tuple[int, ...]] = field(default_factory=dict)  # maxntid, reqntid, minnctapersm, maxnreg


class Module(Struct, frozen=True):
    """A parsed PTX file. `digest` is the SHA-256 of its text."""

    path: str
    digest: str
    version: str
    target: str
    address_size: int
    variables: tuple[Variable, ...]
    kernels: Mapping[str, Kernel]  # entries and functions, in file order

    @property
    def entries(self) -> tuple[str, ...]:
        """Names of the kernels, in file order."""
        known = getattr(self.kernels, "entries", None)  # without parsing those that are parsed when asked for
        return tuple(k.name for k in self.kernels.values() if k.is_entry) if known is None else known


TYPE_BYTES = {
    **{f"{k}{n}": n // 8 for k in "bus" for n in (8, 16, 32, 64)},
    **{"b128": 16, "f16": 2, "f16x2": 4, "bf16": 2, "bf16x2": 4, "tf32": 4, "f32": 4, "f64": 8},
    **{"texref": 8, "surfref": 8, "samplerref": 8},  # names of what a host binds; no register holds them
    **{"u16x2": 4, "s16x2": 4, "e4m3x2": 2, "e5m2x2": 2},
}
CLUSTER_SHARED = "shared::cluster"  # shared memory of any thread block of the cluster
SPACES = frozenset({"global", "shared", "local", "const", "param", CLUSTER_SHARED})
MEMORY_OPCODES = frozenset({
    "ld", "ldu", "st", "atom", "red", "tex", "suld", "sust", "cp", "ldmatrix", "stmatrix", "wmma", "mbarrier",
    "tensormap",
})  # fmt: skip
NEVER_FALLS_THROUGH = frozenset({"ret", "exit", "trap", "bra", "brx"})
_NO_ACCESS = frozenset({"mma", "commit_group", "wait_group", "wait_all", "pending_count", "prefetch"})
