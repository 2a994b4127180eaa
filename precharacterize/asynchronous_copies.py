"""What instructions do with asynchronous work, `LatencyTable.copies`: start some, close a group of it, wait for groups,
or meet others at an `mbarrier`.

There are three families of groups: of `cp.async`, of bulk and tensor copies out of shared memory, and of `wgmma`
products. Groups of a family and warp are told apart modulo GROUPS; work in one that is older counts as of the one
GROUPS later. A value from 0 on is a wait: family * WAITS + so many of the latest groups, the open one counted,
that are not waited for.
"""

from __future__ import annotations

from typing import Any

from functional.ptx.ir import Immediate, Instruction

NONE = -1
COPIES, BULK, PRODUCTS = 0, 1, 2
FAMILIES, GROUPS, WAITS = 3, 16, 32
COPY, COMMIT = -2, -3  # of family 0; those of the next are two less each
LAST_PRODUCT = COPY - 2 * FAMILIES  # a product that closes its group (machine code)
# At an `mbarrier`, as the trace says (line_record.py): at once; when all `cp.async` before it are complete; a
# copy, when it is itself
MEETS, MEETS_LATER, FILLS = LAST_PRODUCT - 1, LAST_PRODUCT - 2, LAST_PRODUCT - 3
COMMITS = LAST_PRODUCT - 4  # when all products before it are
_MOST_PENDING = GROUPS - 1


def starts(family: int) -> int:
    """The column, of work that joins the open group."""
    return COPY - 2 * family


def closes(family: int) -> int:
    """The column, of what closes the open group."""
    return COMMIT - 2 * family


def waits_for(family: int, pending_groups: int) -> int:
    """The column, of a wait that lets so many closed groups be on their way."""
    return family * WAITS + min(pending_groups, _MOST_PENDING) + 1


def starts_work(copies: Any) -> Any:
    """Does it join a group? The last product of one does, too."""
    return (copies <= COPY) & (copies >= LAST_PRODUCT) & (copies % 2 == 0)


def closes_group(copies: Any) -> Any:
    """Does it close a group?"""
    return (copies <= COMMIT) & (copies > LAST_PRODUCT) & (copies % 2 == 1)


def family_of(copies: Any) -> Any:
    """The family whose group it starts work in, or closes."""
    return min((COPY - copies) // 2, PRODUCTS)


def copies_of(instruction: Instruction) -> int:
    """The column, of a PTX instruction."""
    modifiers = instruction.modifiers
    if instruction.opcode == "wgmma":
        return starts(PRODUCTS) if "mma_async" in modifiers else _group(instruction, modifiers[0], PRODUCTS)
    if instruction.opcode == "tcgen05":
        return {"mma": starts(PRODUCTS), "cp": starts(PRODUCTS), "commit": COMMITS}.get(modifiers[0], NONE)
    if instruction.opcode == "mbarrier" and instruction.is_memory:
        return MEETS
    if instruction.opcode != "cp" or "prefetch" in modifiers:
        return NONE
    if "bulk" in modifiers:
        return _bulk(instruction)
    if modifiers[1] == "mbarrier":
        return MEETS_LATER
    return _group(instruction, modifiers[1], COPIES) if modifiers[1] in _GROUP else starts(COPIES)


_GROUP = ("commit_group", "wait_all", "wait_group")


def _bulk(instruction: Instruction) -> int:
    if instruction.modifiers[2] in _GROUP:
        return _group(instruction, instruction.modifiers[2], BULK)
    return starts(BULK) if "bulk_group" in instruction.modifiers else FILLS


def _group(instruction: Instruction, what: str, family: int) -> int:
    if what == "commit_group":
        return closes(family)
    if what == "wait_all":
        return family * WAITS
    pending = instruction.sources[0] if what == "wait_group" else None
    return waits_for(family, int(pending.value)) if isinstance(pending, Immediate) else NONE
