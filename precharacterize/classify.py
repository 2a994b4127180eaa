"""Latency classes and kinds of timing events of PTX instructions.

The classes are those of the reference's PTX front end (GPGPU-Sim 4.2, `ptx_opcode_latency_*`)."""

from __future__ import annotations

import re
from enum import IntEnum
from typing import NamedTuple

from functional.programs.program import Program
from functional.ptx.ir import TYPE_BYTES, Instruction

_HALVES = frozenset({"f16", "f16x2", "bf16", "bf16x2"})


class Kind(IntEnum):
    """What the engine does when an instruction issues."""

    ALU = 0
    BARRIER = 1
    EXIT = 2
    FENCE = 3
    PARAM_LOAD = 4  # from here on: memory
    CONST_LOAD = 5
    SHARED_LOAD = 6
    SHARED_STORE = 7
    SHARED_ATOMIC = 8
    GLOBAL_LOAD = 9  # and local, generic, surface
    GLOBAL_STORE = 10
    GLOBAL_ATOMIC = 11
    TEXTURE_LOAD = 12
    L2_LOAD = 13  # a global load that L1D does not answer


class Operations(NamedTuple):
    """How many fp32, fp64, integer and tensor operations an instruction is to a thread, or what a launch is to all of
    them, the first three as Nsight Compute counts them. Of a matrix product a thread of the warp has a 32nd.

    The metrics are `smsp__sass_thread_inst_executed_op_{fadd,fmul,ffma}_pred_on`, the same of `d`, and
    `..._op_integer_pred_on` (Kernel Profiling Guide): a fused multiply-add is two floating-point operations; what a
    warp executes once for all of its threads (the uniform datapath) is none."""

    fp32: int = 0
    fp64: int = 0
    integer: int = 0
    tensor: int = 0

    def plus(self, other: Operations) -> Operations:
        """Both together."""
        return Operations(*(a + b for a, b in zip(self, other, strict=True)))


NO_OPERATIONS, INTEGER = Operations(), Operations(integer=1)
_OPERATIONS = {
    **dict.fromkeys(("fp32_add", "fp32_mul"), Operations(fp32=1)),
    "fp32_mad": Operations(fp32=2),
    **dict.fromkeys(("fp64_add", "fp64_mul"), Operations(fp64=1)),
    "fp64_mad": Operations(fp64=2),
    **dict.fromkeys(("int_add", "int_mul", "int_mad", "int_max"), INTEGER),
}
_FAMILY = {
    **dict.fromkeys(("add", "sub", "addc", "subc"), "add"),
    **dict.fromkeys(("min", "max"), "max"),
    **dict.fromkeys(("mul", "mul24"), "mul"),
    **dict.fromkeys(("mad", "madc", "mad24", "fma"), "mad"),
    **dict.fromkeys(("div", "rem"), "div"),
}
_SFU = frozenset({"sqrt", "sin", "cos", "ex2", "lg2", "rsqrt", "rcp", "tanh"})
_TCGEN05 = {"mma": "wgmma", "cp": "wgmma", "ld": "int_shfl", "st": "int_shfl"}
_PAST_L1D = frozenset({"cg", "cv", "volatile", "relaxed", "acquire", "mmio"})


def latency_class(instruction: Instruction) -> str:
    """Name of the latency class: `int_add`, `fp32_mad`, `fp64_div`, `sfu`, `int_shfl`, `tensor`, `wgmma` or `other`."""
    opcode = instruction.opcode
    if opcode in _SFU:
        return "sfu"
    if opcode == "shfl":
        return "int_shfl"
    if opcode == "tcgen05":
        return _TCGEN05.get(instruction.modifiers[0], "other")
    if opcode in ("mma", "wmma") and not instruction.is_memory:
        return "tensor"
    if instruction.is_warpgroup_product:
        return "wgmma"
    family = _FAMILY.get(opcode)
    type_name = next((m for m in instruction.modifiers if m in TYPE_BYTES), "b32")
    return f"{_number_class(type_name)}_{family}" if family else "other"


def hardware_class(instruction: Instruction) -> str:
    """`latency_class`, and what hardware has of its own (`HARDWARE_CLASSES`); a conversion of integers is a move."""
    if instruction.opcode in ("bra", "brx", "ret", "exit", "bar"):
        return "control"
    found, types = latency_class(instruction), [m for m in instruction.modifiers if m == "pred" or m[-1].isdigit()]
    if found.startswith("fp32") and _HALVES.intersection(types):
        return "fp16"
    if instruction.opcode != "cvt" or all(_number_class(t) == "int" for t in types):
        return found
    return "convert_64bit" if any(t.endswith("64") for t in types) else "convert"


def hardware_kind(instruction: Instruction, kind: Kind) -> Kind:
    """The timing event on hardware of an instruction that is a `kind` to the reference: L1D answers no load that must
    see other SMs' stores, and no fence for a thread block leaves the SM (PTX ISA, cache operators and memory
    consistency model)."""
    if kind == Kind.FENCE and {"cta", "shared::cta"}.intersection(instruction.modifiers):
        return Kind.ALU
    past_l1d = _PAST_L1D.intersection(instruction.modifiers) and "cta" not in instruction.modifiers
    return Kind.L2_LOAD if kind == Kind.GLOBAL_LOAD and past_l1d else kind


def _number_class(type_name: str) -> str:
    if type_name == "f64":
        return "fp64"
    return "fp32" if type_name[0] == "f" or type_name.startswith("bf") or type_name == "tf32" else "int"


def kind_of(instruction: Instruction, in_entry: bool) -> Kind:
    """The timing event of an instruction. A `ret` of a called function is a branch, not an exit."""
    opcode = instruction.opcode
    if instruction.meets:
        return Kind.GLOBAL_ATOMIC  # as what is done at an `mbarrier`
    if instruction.is_memory:
        return _memory_kind(instruction)
    if opcode in ("bar", "barrier") and not {"warp", "arrive"} & set(instruction.modifiers):
        return Kind.BARRIER
    if opcode == "exit" or (opcode == "ret" and in_entry):
        return Kind.EXIT
    return Kind.FENCE if opcode in ("membar", "fence") else Kind.ALU


def kinds_of(program: Program) -> list[Kind]:
    """The timing event of every instruction."""
    return [kind_of(i, program.function_of[i.index] == program.name) for i in program.instructions]


def _memory_kind(instruction: Instruction) -> Kind:
    opcode, space = instruction.opcode, instruction.space
    if opcode == "tcgen05":
        return Kind.SHARED_STORE if instruction.modifiers[0] == "alloc" else Kind.GLOBAL_LOAD  # a commit asks, goes on
    if opcode in ("ldmatrix", "stmatrix"):
        return Kind.SHARED_LOAD if opcode == "ldmatrix" else Kind.SHARED_STORE
    if opcode == "cp" and "mbarrier" not in instruction.modifiers:  # timed by its global side
        spaces = [m for m in instruction.modifiers if m in ("global", "shared", "shared::cluster")]
        return Kind.GLOBAL_STORE if spaces[:1] == ["global"] else Kind.GLOBAL_LOAD  # what is written comes first
    if opcode in ("mbarrier", "cp"):  # their records say what they do there, beside passes of shared memory
        return Kind.GLOBAL_ATOMIC
    if opcode in ("atom", "red"):
        return Kind.SHARED_ATOMIC if space == "shared" else Kind.GLOBAL_ATOMIC
    if opcode == "tex":
        return Kind.TEXTURE_LOAD
    store = opcode in ("st", "sust", "tensormap") or (opcode == "wmma" and "store" in instruction.modifiers)
    if space == "shared":
        return Kind.SHARED_STORE if store else Kind.SHARED_LOAD
    if space in ("param", "const"):
        return Kind.PARAM_LOAD if space == "param" else Kind.CONST_LOAD
    if store:
        return Kind.GLOBAL_STORE
    return Kind.L2_LOAD if "cg" in instruction.modifiers and space != "local" else Kind.GLOBAL_LOAD


_SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)")


def ptx_operations_of(instruction: Instruction) -> Operations:
    """A PTX instruction's, where no machine code says what it became; of `tcgen05` the text does not say how many."""
    shape = _SHAPE.search(instruction.name) if instruction.opcode in ("mma", "wmma", "wgmma") else None
    if shape is None or (instruction.opcode == "wmma" and ".mma" not in instruction.name):
        halves = any(m in _HALVES for m in instruction.modifiers)  # timed as fp32, and none
        return NO_OPERATIONS if halves else _OPERATIONS.get(latency_class(instruction), NO_OPERATIONS)
    threads = 128 if instruction.opcode == "wgmma" else 32
    return Operations(tensor=2 * int(shape[1]) * int(shape[2]) * int(shape[3]) // threads)
