"""The table of instructions that compute, opcode and type to their form and meaning; forms of the operations across the
lanes of a warp (`shfl vote match redux activemask elect`); what ends a block, and what has no effect.
"""

from __future__ import annotations

from functional.isa import conversions, floats, integers, selections, video
from functional.isa.operation import FLOATS, PACKED, Builder, Operation, Unsupported, flags_of, only_type
from functional.ptx.ir import Instruction, Vector

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


_ACROSS_LANES: dict[str, Builder] = {
    "shfl": _shfl, "vote": _vote, "match": _match, "redux": _redux, "activemask": _activemask, "elect": _elect,
}  # fmt: skip
_COMMON: dict[str, Builder] = {**conversions.TABLE, **selections.TABLE, **_ACROSS_LANES}
_INTEGERS: dict[str, Builder] = {**integers.TABLE, **video.TABLE}
ENDS = frozenset({"bra", "brx", "ret", "exit", "trap", "bar", "barrier", "call"})  # of a basic block
CARRIED = ("addc", "subc", "madc")  # that read the condition code
# One warp instruction each, without effect on what a data-race-free kernel computes
_NO_EFFECT = frozenset(
    ("membar", "fence", "prefetch", "prefetchu", "nanosleep", "pmevent", "discard", "applypriority", "griddepcontrol")
)
_GROUPS = frozenset({"commit_group", "wait_group", "wait_all"})
_TENSOR_WAITS = frozenset(
    {
        ("wait::ld", "sync", "aligned"),
        ("wait::st", "sync", "aligned"),
        ("fence::before_thread_sync",),
        ("fence::after_thread_sync",),
    }
)


def operation_of(inst: Instruction) -> Operation:
    """The operation of an arithmetic instruction. Raises Unsupported."""
    table = floats.TABLE if inst.type in FLOATS else floats.PACKED_TABLE if inst.type in PACKED else _INTEGERS
    builder = _COMMON.get(inst.opcode) or table.get(inst.opcode)
    if builder is None:
        raise Unsupported
    return builder(inst)


def has_no_effect(inst: Instruction) -> bool:
    """Is it one warp instruction that changes nothing here: fences, hints, waits for what is already done?"""
    if inst.opcode == "wgmma":
        return inst.modifiers[:1] in (("fence",), ("commit_group",), ("wait_group",))
    if inst.opcode == "tcgen05":
        return inst.modifiers in _TENSOR_WAITS
    return inst.opcode in _NO_EFFECT or (inst.opcode == "cp" and _is_group(inst))


def _is_group(inst: Instruction) -> bool:
    """`cp.async[.bulk].commit_group`, `wait_group`, `wait_all`, `prefetch`."""
    if inst.modifiers[:2] == ("async", "bulk"):
        waits = (("commit_group",), ("wait_group",), ("wait_group", "read"))
        return inst.modifiers[2:] in waits or inst.modifiers[2:3] == ("prefetch",)
    return len(inst.modifiers) == 2 and inst.modifiers[0] == "async" and inst.modifiers[1] in _GROUPS


def is_vector_move(inst: Instruction) -> bool:
    """`mov.b64 {a, b}, c` or `mov.b64 c, {a, b}`."""
    return inst.opcode == "mov" and any(isinstance(o, Vector) for o in (*inst.destinations, *inst.sources))


def is_wide_move(inst: Instruction) -> bool:
    """`mov.v4.u32 {a, b, c, d}, {e, f, g, h}`: each element by itself."""
    return not {"v2", "v4", "v8"}.isdisjoint(inst.modifiers)
