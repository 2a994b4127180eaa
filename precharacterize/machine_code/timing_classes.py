"""Latency classes, kinds of timing events and operations of machine instructions."""

from __future__ import annotations

import re

from precharacterize.classify import INTEGER, NO_OPERATIONS, Kind, Operations
from precharacterize.machine_code.assemble import MachineInstruction
from precharacterize.synchronisation import NONE, OF_CLUSTER, code_of

_CLASS = {
    **dict.fromkeys(("FADD", "FADD32I", "FSWZADD"), "fp32_add"),
    **dict.fromkeys(("FMUL", "FMUL32I"), "fp32_mul"),
    **dict.fromkeys(("FFMA", "FFMA32I", "HFMA2", "HADD2", "HMUL2", "HFMA2.MMA", "HADD2_32"), "fp32_mad"),
    **dict.fromkeys(("IMAD", "IMUL", "IDP", "IDP4A"), "int_mad"),
    **dict.fromkeys(("IADD3", "IADD", "IADD32I", "LEA", "VIADD"), "int_add"),
    **dict.fromkeys(("IMNMX", "FMNMX", "VIMNMX", "I2FP"), "int_max"),
    "DADD": "fp64_add", "DMUL": "fp64_mul", "DFMA": "fp64_mad", "DSETP": "fp64_max", "DMNMX": "fp64_max",
    "MUFU": "sfu", "SHFL": "int_shfl",
    **dict.fromkeys(("HMMA", "IMMA", "BMMA", "DMMA", "QMMA", "HGMMA", "IGMMA", "QGMMA", "BGMMA"), "tensor"),
    **dict.fromkeys(("F2F", "F2I", "I2F", "FRND", "POPC", "FLO", "BREV", "S2R", "B2R", "MATCH", "REDUX"), "convert"),
    **dict.fromkeys(
        ("BRA", "BRX", "JMP", "EXIT", "RET", "CALL", "BSSY", "BSYNC", "BREAK", "NOP", "WARPSYNC", "YIELD", "BAR",
         "MEMBAR", "ERRBAR", "DEPBAR", "LDGDEPBAR", "CCTL", "BMOV", "NANOSLEEP", "KILL", "PMTRIG"), "control"),
}  # fmt: skip
_OPERATIONS = {
    **dict.fromkeys(("FADD", "FADD32I", "FMUL", "FMUL32I"), Operations(fp32=1)),
    **dict.fromkeys(("FFMA", "FFMA32I"), Operations(fp32=2)),
    **dict.fromkeys(("DADD", "DMUL"), Operations(fp64=1)),
    "DFMA": Operations(fp64=2),
    **dict.fromkeys(
        ("IADD", "IADD3", "IADD32I", "IMAD", "IMUL", "IDP", "IDP4A", "LEA", "ISETP", "ICMP", "IMNMX", "VIADD", "VIMNMX",
         "VABSDIFF", "VABSDIFF4", "LOP3", "LOP", "LOP32I", "SHF", "SHL", "SHR", "BMSK", "SGXT", "FLO", "POPC", "BREV",
         "IABS", "ISCADD", "XMAD"),
        INTEGER,
    ),
}  # fmt: skip
_UNIFORM = ("R2UR", "S2UR", "VOTEU", "REDUX")
_KIND = {
    "LDG": Kind.GLOBAL_LOAD, "LD": Kind.GLOBAL_LOAD, "LDL": Kind.GLOBAL_LOAD, "LDGSTS": Kind.GLOBAL_LOAD,
    "SULD": Kind.GLOBAL_LOAD, "STG": Kind.GLOBAL_STORE, "ST": Kind.GLOBAL_STORE, "STL": Kind.GLOBAL_STORE,
    "SUST": Kind.GLOBAL_STORE, "LDS": Kind.SHARED_LOAD, "LDSM": Kind.SHARED_LOAD, "STS": Kind.SHARED_STORE,
    "ATOMS": Kind.SHARED_ATOMIC, "ATOM": Kind.GLOBAL_ATOMIC, "ATOMG": Kind.GLOBAL_ATOMIC, "RED": Kind.GLOBAL_ATOMIC,
    "UTMALDG": Kind.GLOBAL_LOAD, "UBLKCP": Kind.GLOBAL_LOAD, "UTMASTG": Kind.GLOBAL_STORE,
    "UTMAREDG": Kind.GLOBAL_STORE, "UBLKRED": Kind.GLOBAL_STORE, "SYNCS": Kind.GLOBAL_ATOMIC,
    "ARRIVES": Kind.GLOBAL_ATOMIC, "UTCBAR": Kind.GLOBAL_LOAD,
    "LDC": Kind.CONST_LOAD, "TEX": Kind.TEXTURE_LOAD, "TLD": Kind.TEXTURE_LOAD, "TXD": Kind.TEXTURE_LOAD,
    "BAR": Kind.BARRIER, "MEMBAR": Kind.FENCE, "EXIT": Kind.EXIT,
}  # fmt: skip
_SHAPES = {
    "884": (8, 8, 4), "1684": (16, 8, 4), "1688": (16, 8, 8), "16816": (16, 8, 16), "8816": (8, 8, 16),
    "8832": (8, 8, 32), "16832": (16, 8, 32), "16864": (16, 8, 64), "88128": (8, 8, 128), "168128": (16, 8, 128),
    "168256": (16, 8, 256),
}  # fmt: skip
_BITS = {"TF32": 32, "S4": 4, "U4": 4}
_MATRIX_BITS = {"IMMA": 8, "BMMA": 1, "DMMA": 256, "QMMA": 8, "IGMMA": 8, "QGMMA": 8, "BGMMA": 1}
_WIDE = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16}


def latency_class(instruction: MachineInstruction) -> str:
    """One of the classes of a GPU's [latency_cycles]."""
    name = instruction.name
    if name.startswith("U") or name in _UNIFORM:
        return "control"
    found = _CLASS.get(name, "other")
    return "convert_fp64" if found == "convert" and "F64" in instruction.modifiers else found


def tensor_share(instruction: MachineInstruction) -> float:
    """How long a matrix instruction holds its unit, as a part of one of 16 x 8 x 16 of 16 bits: as its products and
    their bits go. fp64 counts 256 bits: an A100 makes 64 of its products a cycle, of fp16 1,024 (white paper)."""
    m, n, k = _matrix_shape(instruction)
    bits = next((_BITS[x] for x in instruction.modifiers if x in _BITS), _MATRIX_BITS.get(instruction.name, 16))
    sparse = 2 if "SP" in instruction.modifiers else 1  # half of its products are made
    return m * n * k * bits / (16 * 8 * 16 * 16) / sparse


def _matrix_shape(instruction: MachineInstruction) -> tuple[int, int, int]:
    """Of the product that a warp makes; it has 16 rows of a warpgroup's 64."""
    group = next((g for x in instruction.modifiers if (g := re.fullmatch(r"64x(\d+)x(\d+)", x))), None)
    shape = (16, int(group[1]), int(group[2])) if group else (16, 8, 16)
    return next((_SHAPES[x] for x in instruction.modifiers if x in _SHAPES), shape)


def kind_of(instruction: MachineInstruction) -> Kind:
    """The timing event. A barrier that does not wait, and every register instruction, is ALU."""
    if instruction.name == "BAR" and "ARV" in instruction.modifiers:
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
    return code_of(number, threads) if number < OF_CLUSTER else None


def access_bytes(instruction: MachineInstruction) -> int:
    """Bytes a lane of a memory instruction accesses."""
    return next((_WIDE[m] for m in instruction.modifiers if m in _WIDE), 4)


def ends_block(instruction: MachineInstruction) -> bool:
    """Does control go elsewhere behind it, always or sometimes?"""
    return instruction.name in ("BRA", "BRX", "JMP", "EXIT", "RET", "CALL", "KILL", "BREAK")


def falls_through(instruction: MachineInstruction) -> bool:
    """Can the next instruction follow it?"""
    return instruction.name not in ("BRA", "BRX", "JMP", "EXIT", "RET", "KILL") or bool(instruction.guard)


def operations_of(instruction: MachineInstruction) -> Operations:
    """Operations of a thread that executes it."""
    if latency_class(instruction) == "tensor":
        m, n, k = _matrix_shape(instruction)
        return Operations(tensor=2 * m * n * k // 32)
    return _OPERATIONS.get(instruction.name, NO_OPERATIONS)
