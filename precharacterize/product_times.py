"""How long an instruction holds its unit if that depends on more than its latency class: products of many rows."""

from __future__ import annotations

import re
from dataclasses import replace

from functional.programs.program import Program
from functional.ptx.ir import Instruction
from precharacterize import tensor_work
from precharacterize.classify import is_product
from precharacterize.parameters import Operation


def sized(instruction: Instruction, program: Program, one: Operation) -> Operation:
    """The operation of an instruction, given that of its latency class. Raises PtxError if that is not known."""
    if instruction.opcode == "tcgen05":
        return tensor_work.operation_of(instruction, program, one)
    return _warpgroup_product(instruction, one) if is_product(instruction) else one


def _warpgroup_product(instruction: Instruction, one: Operation) -> Operation:
    """The 16 rows of a warp take the unit as often as `mma` of 16 x 8 x 32 bytes would."""
    columns = re.search(r"m64n(\d+)k", instruction.name)
    times = int(columns[1]) // 8 if columns else 1
    more = (times - 1) * one.initiation_cycles
    return replace(one, latency_cycles=one.latency_cycles + more, initiation_cycles=times * one.initiation_cycles)
