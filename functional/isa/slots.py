"""What an instruction can name: registers and special registers, numbered, and where variables lie."""

from dataclasses import dataclass, field

import numpy as np

from functional.isa.operation import DTYPES, RAW_BY_BYTES, Unsupported, refuse_if
from functional.launches.launch import Launch, layout
from functional.launches.memory import Memory, function_address
from functional.programs.program import BasicBlock, Program
from functional.programs.registers import live_in
from functional.ptx.ir import Instruction, Register, Special, Symbol, parts_of

Pairs = list[tuple[str, str, int]]  # (from, to, bytes) of `.param` variables

CONDITION_CODE = Register("%cc", "pred")
STACK_BYTES, MOST_CALLS = 64 << 10, 1024  # of a thread, in a recursive program
CONSTANTS = {"WARP_SZ": 32, "%smid": 0, "%nsmid": 1, "%gridid": 0}
IN_CLUSTER = frozenset({"%is_explicit_cluster", "%cluster_ctarank", "%cluster_nctarank"})
# Where the shared memory lies that is CUDA's own, and bytes of it; cooperative groups of several warps meet there
RESERVED_SHARED, RESERVED_SHARED_BYTES = "%reserved_smem_offset_1", 1024
WIDE = frozenset({"%clock64", "%globaltimer", "%gridid", "%current_graph_exec"})
CLOCKS = frozenset({"%clock", "%clock_hi", "%clock64", "%globaltimer", "%globaltimer_lo", "%globaltimer_hi"})
# Without a clock or a GPU they have something else than on one
_NOT_A_GPUS = dict.fromkeys(CLOCKS, "counts the instructions of its warp") | {"%smid": "is 0", "%nsmid": "is 1"}
_SCALARS = CLOCKS | IN_CLUSTER | CONSTANTS.keys() | {RESERVED_SHARED, "%laneid", "%warpid", "%nwarpid"}
_SCALARS |= {"%dynamic_smem_size", "%total_smem_size"}
_LANE_BIT = np.uint32(1) << np.arange(32, dtype=np.uint32)
_BELOW, _UP_TO = _LANE_BIT - 1, 2 * _LANE_BIT - 1
LANE_MASKS = {"eq": _LANE_BIT, "lt": _BELOW, "le": _UP_TO, "gt": ~_UP_TO, "ge": ~_BELOW}
_AXES = {"%tid", "%ntid", "%ctaid", "%nctaid", "%clusterid", "%nclusterid", "%cluster_ctaid", "%cluster_nctaid"}


def special_type(name: str) -> str | None:
    """PTX type of a special register; None if it is not supported."""
    base, _, axis = name.partition(".")
    known = name in _SCALARS or (base in _AXES and axis) or name.startswith(("%lanemask_", "%envreg"))
    if name == "%is_explicit_cluster":
        return "pred"
    return ("u64" if name in WIDE else "u32") if known else None


def special_register(name: str) -> Register:
    """A special register where steps read it, like any other. Raises Unsupported."""
    if (type_ := special_type(name)) is None:
        raise Unsupported
    return Register(name, type_)


def specials_of(inst: Instruction) -> set[Register]:
    """Special registers that a step of an instruction reads; none that is not supported."""
    operands = [part for source in inst.sources for part in parts_of(source)]
    return {special_register(o.name) for o in operands if isinstance(o, Special) and special_type(o.name)}


def register_notes(program: Program) -> list[str]:
    """What is said of a kernel that reads a special register in which no GPU has what it has here."""
    read = ((o.name, i.line) for i in program.instructions for o in i.sources if isinstance(o, Special))
    lines = {name: line for name, line in reversed([*read]) if name in _NOT_A_GPUS}
    return [f"{name} {_NOT_A_GPUS[name]} here (PTX line {line})" for name, line in sorted(lines.items())]


def reserved_shared_offset(launch: Launch) -> int:
    """It lies behind a thread block's own, static and dynamic."""
    return -(-launch.shared_bytes // 16) * 16


def register_dtype(register: Register) -> np.dtype:
    """How a register is kept: raw bits, predicates as bool."""
    dtype = DTYPES[register.type]
    return dtype if dtype.kind == "b" else RAW_BY_BYTES[dtype.itemsize]


def immediate(value: int | float, type_: str) -> np.ndarray:
    """A literal as (1, 1) array of the type; a float literal for an untyped operand gives its bits."""
    dtype = DTYPES[type_]
    if dtype.kind == "b":
        return np.full((1, 1), bool(value))
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            return np.full((1, 1), value, np.float64).astype(dtype)
    if isinstance(value, float):
        return np.full((1, 1), value, f"f{max(dtype.itemsize, 2)}").view(dtype)
    return np.full((1, 1), value & ((1 << (8 * dtype.itemsize)) - 1), f"u{dtype.itemsize}").view(dtype)


@dataclass
class Slots:
    """Slots of the registers of a program, handed out as decoding meets them."""

    program: Program
    dtypes: list[np.dtype] = field(default_factory=list)
    registers: dict[Register, int] = field(default_factory=dict)
    barrier_results: dict[int, tuple[int, str]] = field(default_factory=dict)  # bar.red: instruction -> slot, operation

    def __post_init__(self) -> None:
        program = self.program
        self.shared = layout(program, "shared")
        self.local = layout(program, "local")
        self.spaces = {v.name: v.space for v in program.variables}
        self.kernel_parameters = {p.name: p.offset for p in program.parameters}
        self.call_parameter_bytes: dict[str, int] = {}
        owned = [p for params, returns in program.function_parameters.values() for p in (*params, *returns)]
        owned += [v for v in program.variables if v.space == "param"]  # type: ignore[misc]
        offsets, used = {}, 0
        for item in owned:
            used = -(-used // 16) * 16
            offsets[item.name], self.call_parameter_bytes[item.name] = used, item.bytes
            used += item.bytes
        self.call_parameters, self.call_bytes = offsets, used
        self.named = {*self.spaces, *self.kernel_parameters, *self.call_parameters}  # symbols with an address
        sizes = [self.local[v.name] + v.bytes for v in program.variables if v.space == "local"]
        self.local_bytes = -(-max(sizes, default=0) // 16) * 16
        self.call_bytes = -(-self.call_bytes // 16) * 16 if program.recursive else self.call_bytes
        # A recursive program keeps all of it once a call in progress, up to what CUDA could ever give a thread
        self.frame_bytes = self.local_bytes + self.call_bytes if program.recursive else 0
        self.frames = 1 if not program.recursive else min(MOST_CALLS, STACK_BYTES // max(self.frame_bytes, 1)) + 1
        self._live = live_in(program) if program.recursive else ()
        self._reserves = any(Special(RESERVED_SHARED) in i.sources for i in program.instructions)

    def shared_bytes_of(self, launch: Launch) -> int:
        """Of a thread block, with what is CUDA's own if the program asks where that lies."""
        return reserved_shared_offset(launch) + RESERVED_SHARED_BYTES if self._reserves else launch.shared_bytes

    def kept_across(self, block: BasicBlock) -> tuple[int, ...]:
        """Slots of the registers a recursive program has to put aside for the call that ends `block`."""
        if not self.program.recursive or block.index + 1 >= len(self._live):
            return ()
        return tuple(sorted(self.register(r) for r in self._live[block.index + 1]))

    def register(self, register: Register) -> int:
        """The slot of a register."""
        if register not in self.registers:
            self.registers[register] = len(self.dtypes)
            self.dtypes.append(register_dtype(register))
        return self.registers[register]

    def arguments(self, call: Instruction, callee: str) -> Pairs:
        """Which variable goes to which parameter. Raises Unsupported if they do not match, in number or in size."""
        formal, returns = self.program.function_parameters.get(callee, ((), ()))
        given = call.sources if call.callee else call.sources[1:]
        names = [s.name for s in given if isinstance(s, Symbol)]
        refuse_if(len(names) != len(formal) or len(given) != len(names) or len(call.destinations) != len(returns))
        refuse_if(any(name not in self.call_parameters for name in names))
        into = [d.name for d in call.destinations if isinstance(d, Symbol)]
        pairs = (*zip(names, formal, strict=True), *zip(into, returns, strict=False))
        refuse_if(any(self.call_parameter_bytes[name] != parameter.bytes for name, parameter in pairs))
        return [(name, p.name, p.bytes) for name, p in zip(names, formal, strict=True)]

    def results(self, call: Instruction, callee: str) -> Pairs:
        """Which parameter that a function returns goes to which variable."""
        named = zip(self.program.function_parameters[callee][1], call.destinations, strict=True)
        return [(p.name, d.name, p.bytes) for p, d in named if isinstance(d, Symbol)]

    def address_of(self, symbol: Symbol, memory: Memory) -> int:
        """Address of a symbol within its own state space."""
        name, offset = symbol.name, symbol.offset
        for table in (self.shared, self.local, self.kernel_parameters, self.call_parameters):
            if name in table:
                return (table[name] + offset) % (1 << 64)
        if name not in self.spaces:
            return function_address(name)
        regions = memory.global_variables if self.spaces[name] == "global" else memory.const_variables
        return (regions[name].address + offset) % (1 << 64)
