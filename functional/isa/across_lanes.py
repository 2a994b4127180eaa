"""Forms of the operations across the lanes of a warp: `shfl vote match redux activemask elect`."""

from __future__ import annotations

from functional.isa.operation import Builder, Operation, Unsupported, flags_of, only_type
from functional.ptx.ir import Instruction

_MODES = {"shfl": ("up", "down", "bfly", "idx"), "vote": ("all", "any", "uni", "ballot"), "match": ("any", "all"),
          "redux": ("add", "min", "max", "and", "or", "xor")}  # fmt: skip


def mode_of(inst: Instruction) -> str:
    """Which of the operations of its opcode it is: "bfly" of `shfl.sync.bfly.b32`. Raises Unsupported."""
    flags = flags_of(inst, {"sync", *_MODES[inst.opcode]}) - {"sync"}
    if len(flags) != 1:
        raise Unsupported
    return next(iter(flags))


def _members(inst: Instruction) -> tuple[str, ...]:
    return ("u32",) if "sync" in inst.modifiers else ()


def _shfl(inst: Instruction) -> Operation:
    mode_of(inst)
    only_type(inst, ("b32",))
    results = ("b32", "pred")[: len(inst.destinations)]
    return Operation(None, results, ("b32", "u32", "u32", *_members(inst)))


def _vote(inst: Instruction) -> Operation:
    if inst.type != ("b32" if mode_of(inst) == "ballot" else "pred"):
        raise Unsupported
    return Operation(None, (inst.type,), ("pred", *_members(inst)))


def _match(inst: Instruction) -> Operation:
    mode_of(inst)
    type_ = only_type(inst, ("b32", "b64"))
    return Operation(None, ("b32", "pred")[: len(inst.destinations)], (type_, "u32"))


def _redux(inst: Instruction) -> Operation:
    if inst.type not in (("b32",) if mode_of(inst) in ("and", "or", "xor") else ("u32", "s32")):
        raise Unsupported
    return Operation(None, (inst.type,), (inst.type, "u32"))


def _activemask(inst: Instruction) -> Operation:
    only_type(inst, ("b32",))
    return Operation(None, ("b32",), ())


def _elect(inst: Instruction) -> Operation:
    flags_of(inst, {"sync"})
    return Operation(None, ("b32", "pred"), ("u32",))


TABLE: dict[str, Builder] = {
    "shfl": _shfl, "vote": _vote, "match": _match, "redux": _redux, "activemask": _activemask, "elect": _elect,
}  # fmt: skip
