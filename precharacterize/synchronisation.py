"""Barriers and asynchronous work of instructions: `LatencyTable.barrier` and `.copies`.

Asynchronous work is started, a group of it is closed, and groups are waited for, or others met at an `mbarrier`. There
are three families of groups: of `cp.async`, of bulk and tensor copies out of shared memory, and of `wgmma` products.
Groups of a family and warp are told apart modulo GROUPS; work in one that is older counts as of the one GROUPS later. A
value from 0 on is a wait: family * WAITS + so many of the latest groups, the open one counted, that are not waited for.

Numbers and counts of barriers are known where they are literals. In a program that computes one of them, the trace
says of all barriers who meets whom. Machine code that the program's barriers are not found in has them all as number 0,
for all warps."""

from collections.abc import Sequence
from typing import Any

from functional.ptx.ir import CLUSTER_SHARED, Immediate, Instruction
from precharacterize.classify import Kind
from precharacterize.table import BARRIERS

NONE = -1
COPIES, BULK, PRODUCTS = 0, 1, 2
FAMILIES, GROUPS, WAITS = 3, 16, 32
COPY, COMMIT = -2, -3  # of family 0; those of the next are two less each
LAST_PRODUCT = COPY - 2 * FAMILIES  # a product that closes its group (machine code)
# At an `mbarrier`, as the trace says (line_record.py): at once; when all `cp.async` before it are complete; a
# copy, when it is itself
MEETS, MEETS_LATER, FILLS = LAST_PRODUCT - 1, LAST_PRODUCT - 2, LAST_PRODUCT - 3
COMMITS = LAST_PRODUCT - 4  # when all products before it are
# Asks for registers, or gives some back, as `LatencyTable.word` says; of kernels side by side, waits for the one before
# its own, or lets the next begin; an access of the shared memory of another thread block of the cluster
REGISTERS, AWAITS, TRIGGERS, ELSEWHERE = COMMITS - 1, COMMITS - 2, COMMITS - 3, COMMITS - 4
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
    if instruction.opcode in ("griddepcontrol", "setmaxnreg"):
        return {"wait": AWAITS, "launch_dependents": TRIGGERS}.get(modifiers[0], REGISTERS)
    if instruction.opcode == "tcgen05":
        return {"mma": starts(PRODUCTS), "cp": starts(PRODUCTS), "commit": COMMITS}.get(modifiers[0], NONE)
    if instruction.meets or (instruction.opcode == "mbarrier" and instruction.is_memory):
        return MEETS
    if CLUSTER_SHARED in modifiers and "async" not in modifiers and instruction.opcode in ("ld", "st", "atom", "red"):
        return ELSEWHERE
    if instruction.opcode != "cp" or "prefetch" in modifiers:
        return NONE
    if "bulk" in modifiers:
        if modifiers[2] in _GROUP:
            return _group(instruction, modifiers[2], BULK)
        return starts(BULK) if "bulk_group" in modifiers else FILLS
    if modifiers[1] == "mbarrier":
        return MEETS_LATER
    return _group(instruction, modifiers[1], COPIES) if modifiers[1] in _GROUP else starts(COPIES)


def register_count(instruction: Instruction) -> int:
    """`LatencyTable.word` of a `setmaxnreg`: registers a thread that its warp wants, or, negative, keeps."""
    count = instruction.sources[0]
    return (1 if "inc" in instruction.modifiers else -1) * int(count.value) if isinstance(count, Immediate) else 0


_GROUP = ("commit_group", "wait_all", "wait_group")


def _group(instruction: Instruction, what: str, family: int) -> int:
    if what == "commit_group":
        return closes(family)
    if what == "wait_all":
        return family * WAITS
    pending = instruction.sources[0] if what == "wait_group" else None
    return waits_for(family, int(pending.value)) if isinstance(pending, Immediate) else NONE


_WARP_THREADS = 32


def code_of(number: int, threads: int) -> int:
    """The column's value for a barrier of so many threads (0: all of the block)."""
    return number + BARRIERS * (threads // _WARP_THREADS)


def barriers_of(instructions: Sequence[Instruction], kinds: Sequence[Kind]) -> list[int]:
    """The column, of a program's instructions."""
    return settled([barrier_of(i) for i in instructions], kinds)


def splits_blocks(codes: Sequence[int], kinds: Sequence[int], warps_per_block: int) -> bool:
    """Is a barrier of the column for a part of a block's warps, or does one count arrivals that do not wait?"""
    reached = [(code // BARRIERS, kind) for code, kind in zip(codes, kinds, strict=True) if code != NONE]
    return any(warps not in (0, warps_per_block) or kind != Kind.BARRIER for warps, kind in reached)


def settled(found: Sequence[int | None], kinds: Sequence[int]) -> list[int]:
    """The column, of what each instruction reaches: NONE, a code, or None for a barrier that is not known."""
    if None not in found:
        return [code if code is not None else NONE for code in found]
    return [0 if kind == Kind.BARRIER else NONE for kind in kinds]


def barrier_of(instruction: Instruction) -> int | None:
    """The number of the barrier that an instruction reaches, and for how many warps; None if that is not known."""
    modifiers = instruction.modifiers
    if instruction.opcode not in ("bar", "barrier") or "warp" in modifiers or instruction.meets:
        return NONE
    operands = instruction.sources[:-1] if "red" in modifiers else instruction.sources
    if not 1 <= len(operands) <= 2 or not all(isinstance(o, Immediate) and 0 <= o.value < 1 << 16 for o in operands):
        return None
    number, threads = [int(o.value) for o in operands if isinstance(o, Immediate)] + [0] * (2 - len(operands))
    return code_of(number, threads) if number < BARRIERS else None
