"""Which instructions start asynchronous copies (`cp.async`), close a group of them, or wait: `LatencyTable.copies`."""

from __future__ import annotations

from functional.ir import Immediate, Instruction

NONE, COPY, COMMIT = -1, -2, -3
# Groups of a warp that are told apart; a copy in one that is older counts as of the one 16 later. From 0 on, a wait:
# for all groups but so many of the latest, the one that is not closed counted
GROUPS = 16
_BULK = ("async", "bulk")


def copies_of(instruction: Instruction) -> int:
    """The column, of a PTX instruction. Bulk copies are counted by barriers, and are none of these."""
    modifiers = instruction.modifiers
    if instruction.opcode != "cp" or modifiers[:1] != ("async",) or modifiers[:2] == _BULK:
        return NONE
    if modifiers[1] == "commit_group":
        return COMMIT
    if modifiers[1] == "wait_all":
        return 0
    if modifiers[1] == "wait_group":
        pending = instruction.sources[0]
        return allowed(int(pending.value)) if isinstance(pending, Immediate) else NONE
    return NONE if modifiers[1] == "mbarrier" else COPY


def allowed(pending_groups: int) -> int:
    """The column, of a wait that lets so many closed groups be on their way."""
    return min(pending_groups + 1, GROUPS)
