"""Latency classes, kinds of timing events and operations of machine instructions."""

import re
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from functional.files import toml_beside
from precharacterize.classify import NO_OPERATIONS, Kind, Operations
from precharacterize.machine_code.assemble import MachineInstruction
from precharacterize.synchronisation import NONE, code_of
from precharacterize.table import BARRIERS, PipelineParameters

_TABLE = toml_beside(__file__, "opcodes.toml")
_CLASS = {opcode: name for name, opcodes in _TABLE["class"].items() for opcode in opcodes.split()}
_KIND = {opcode: Kind[name] for name, opcodes in _TABLE["event"].items() for opcode in opcodes.split()}
_OPERATIONS = {
    opcode: Operations(**{kind: int(count)})
    for kind, by_count in _TABLE["operations"].items()
    for count, opcodes in by_count.items()
    for opcode in opcodes.split()
}
PRODUCTS = ("tensor", "wgmma")
_64_BITS = {"F64", "S64", "U64"}
_SHAPES, _BITS, _WIDE = _TABLE["matrix_shape"], _TABLE["matrix_bits"], _TABLE["access_bytes"]


def latency_class(instruction: MachineInstruction) -> str:
    """One of the classes of a GPU's [latency_cycles]."""
    found = "control" if instruction.name.startswith("U") else _CLASS.get(instruction.name, "other")
    if found == "int_mad" and "HI" in instruction.modifiers:
        return "int_mul"  # the upper half of a product
    return "convert_64bit" if found == "convert" and _64_BITS.intersection(instruction.modifiers) else found


def tensor_share(instruction: MachineInstruction) -> float:
    """How long a matrix instruction holds its unit, as a part of one of 16 x 8 x 16 of 16 bits: by products, bits."""
    m, n, k = _matrix_shape(instruction)
    said = (_BITS["modifier"][x] for x in instruction.modifiers if x in _BITS["modifier"])
    by_opcode = _BITS["opcode"] | (_BITS["sixteen_rows"] if m == 16 else {})
    bits = next(said, by_opcode.get(instruction.name, 16))
    sparse = 2 if "SP" in instruction.modifiers else 1  # half of its products are made
    return m * n * k * bits / (16 * 8 * 16 * 16) / sparse


def _matrix_shape(instruction: MachineInstruction) -> tuple[int, int, int]:
    """Of the product that a warp makes; it has 16 rows of a warpgroup's 64."""
    group = next((g for x in instruction.modifiers if (g := re.fullmatch(r"64x(\d+)x(\d+)", x))), None)
    shape = (16, int(group[1]), int(group[2])) if group else (16, 8, 16)
    return next((tuple(_SHAPES[x]) for x in instruction.modifiers if x in _SHAPES), shape)


def kind_of(instruction: MachineInstruction) -> Kind:
    """The timing event. A barrier that does not wait, a fence within the SM, and every register instruction, is ALU."""
    if {("BAR", "ARV"), ("MEMBAR", "CTA")} & {(instruction.name, m) for m in instruction.modifiers}:
        return Kind.ALU
    return _KIND.get(instruction.name, Kind.ALU)


def barrier_of(instruction: MachineInstruction) -> int | None:
    """`LatencyTable.barrier`; None if a register says which: `BAR.SYNC.DEFER_BLOCKING 0x1, 0x80`."""
    if instruction.name != "BAR":
        return NONE
    operands = [o.strip() for o in instruction.operands.split(",") if not re.match(r"\s*!?U?P", o)]
    if not operands or not all(re.fullmatch(r"0x[0-9a-f]+", o) for o in operands[:2]):
        return None
    number, threads = ([int(o, 16) for o in operands[:2]] + [0])[:2]
    return code_of(number, threads) if number < BARRIERS else None


def access_bytes(instruction: MachineInstruction) -> int:
    """Bytes a lane of a memory instruction accesses."""
    return next((_WIDE[m] for m in instruction.modifiers if m in _WIDE), 4)


def ends_block(instruction: MachineInstruction) -> bool:
    """Does control go elsewhere behind it, ever? `BRA.DIV` goes where a warp's parts meet, which in a trace have."""
    names = ("BRA", "BRX", "JMP", "EXIT", "RET", "CALL", "KILL", "BREAK")
    return instruction.name in names and "DIV" not in instruction.modifiers


_BY_REGISTER = ("RET", "BRX", "JMX", "BRXU")


def with_branches(code: Sequence[MachineInstruction], pipeline: PipelineParameters) -> list[MachineInstruction]:
    """The code, its stall counts at least what branches take that mostly are taken: those that ask an `mbarrier` again
    are not."""
    starts, made = {i.label: i.address for i in code if i.label}, list(code)
    for k, instruction in enumerate(code):
        cycles = _cycles_to_target(instruction, starts, pipeline)
        if cycles > instruction.stall and not _asks_again(code, k):
            made[k] = replace(instruction, stall=cycles)
    return made


def _asks_again(code: Sequence[MachineInstruction], k: int) -> bool:
    """Does an `mbarrier`'s answer decide whether the branch at position `k` is taken?"""
    predicate = code[k].guard.lstrip("@!")
    written = (c for c in reversed(code[:k]) if predicate in [o.strip() for o in c.operands.split(",")[:2]])
    return bool(predicate) and "TRYWAIT" in next((c.modifiers for c in written), ())


def _cycles_to_target(instruction: MachineInstruction, starts: Mapping[str, int], pipeline: PipelineParameters) -> int:
    """From the issue of a branch to that of its target, where it is mostly taken: back, jumping, calling, returning; 0
    of all others. `starts`: addresses of labels."""
    if instruction.name in _BY_REGISTER:
        return pipeline.return_cycles
    goes_back = starts.get(instruction.target, instruction.address + 1) <= instruction.address
    taken = instruction.name == "BRA" and (goes_back or not instruction.guard) and ends_block(instruction)
    return pipeline.branch_cycles if taken or instruction.name in ("CALL", "JMP") else 0


def falls_through(instruction: MachineInstruction) -> bool:
    """Can the next instruction follow it?"""
    names = ("BRA", "BRX", "JMP", "EXIT", "RET", "KILL")
    return instruction.name not in names or bool(instruction.guard) or not ends_block(instruction)


def operations_of(instruction: MachineInstruction) -> Operations:
    """Operations of a thread that executes it."""
    if latency_class(instruction) in PRODUCTS:
        m, n, k = _matrix_shape(instruction)
        return Operations(tensor=2 * m * n * k // 32)
    return _OPERATIONS.get(instruction.name, NO_OPERATIONS)
