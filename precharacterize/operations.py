"""How many fp32, fp64 and integer operations an instruction is to a thread, as Nsight Compute counts them.

The metrics are `smsp__sass_thread_inst_executed_op_{fadd,fmul,ffma}_pred_on`, the same of `d`, and
`..._op_integer_pred_on` (Kernel Profiling Guide): a fused multiply-add is two floating-point operations; what a warp
executes once for all of its threads (the uniform datapath) is none.
"""

from __future__ import annotations

from typing import NamedTuple

from functional.ptx.ir import Instruction
from precharacterize.classify import latency_class
from precharacterize.machine_code.instruction import MachineInstruction


class Operations(NamedTuple):
    """Of one thread, or of all threads of a launch."""

    fp32: int = 0
    fp64: int = 0
    integer: int = 0

    def plus(self, other: Operations) -> Operations:
        """Both together."""
        return Operations(*(a + b for a, b in zip(self, other, strict=True)))


NONE, INTEGER = Operations(), Operations(integer=1)
_MACHINE = {
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
_PTX = {
    **dict.fromkeys(("fp32_add", "fp32_mul"), Operations(fp32=1)),
    "fp32_mad": Operations(fp32=2),
    **dict.fromkeys(("fp64_add", "fp64_mul"), Operations(fp64=1)),
    "fp64_mad": Operations(fp64=2),
    **dict.fromkeys(("int_add", "int_mul", "int_mad", "int_max"), INTEGER),
}


def operations_of(instruction: MachineInstruction) -> Operations:
    """A machine instruction's."""
    return _MACHINE.get(instruction.name, NONE)


def ptx_operations_of(instruction: Instruction) -> Operations:
    """A PTX instruction's, where no machine code says what became of it."""
    return _PTX.get(latency_class(instruction), NONE)
