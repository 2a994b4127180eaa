"""Which barrier an instruction reaches, and for how many warps it is: `LatencyTable.barrier`.

Numbers and counts are known where they are literals. In a program that computes one of them, all barriers are taken
for number 0 and for all warps.
"""

from __future__ import annotations

from collections.abc import Sequence

from functional.ptx.ir import Immediate, Instruction
from precharacterize.classify import Kind
from precharacterize.table import BARRIERS

NONE, OF_CLUSTER = -1, 16
_WARP_THREADS = 32


def code_of(number: int, threads: int) -> int:
    """The column's value for a barrier of so many threads (0: all of the block)."""
    return number + BARRIERS * (threads // _WARP_THREADS)


def barriers_of(instructions: Sequence[Instruction], kinds: Sequence[Kind]) -> list[int]:
    """The column, of a program's instructions."""
    return settled([_reached(i) for i in instructions], kinds)


def splits_blocks(codes: Sequence[int], kinds: Sequence[int], warps_per_block: int) -> bool:
    """Is a barrier of the column for a part of a block's warps, or does one count arrivals that do not wait?"""
    reached = [(code // BARRIERS, kind) for code, kind in zip(codes, kinds, strict=True) if code != NONE]
    return any(warps not in (0, warps_per_block) or kind != Kind.BARRIER for warps, kind in reached)


def settled(found: Sequence[int | None], kinds: Sequence[int]) -> list[int]:
    """The column, of what each instruction reaches: NONE, a code, or None for a barrier that is not known."""
    if None not in found:
        return [code if code is not None else NONE for code in found]
    return [0 if kind == Kind.BARRIER else NONE for kind in kinds]


def _reached(instruction: Instruction) -> int | None:
    modifiers = instruction.modifiers
    if instruction.opcode not in ("bar", "barrier") or "warp" in modifiers:
        return NONE
    if "cluster" in modifiers:
        return code_of(OF_CLUSTER, 0) if "wait" in modifiers else NONE
    operands = instruction.sources[:-1] if "red" in modifiers else instruction.sources
    if not 1 <= len(operands) <= 2 or not all(isinstance(o, Immediate) and 0 <= o.value < 1 << 16 for o in operands):
        return None
    number, threads = [int(o.value) for o in operands if isinstance(o, Immediate)] + [0] * (2 - len(operands))
    return code_of(number, threads) if number < OF_CLUSTER else None
