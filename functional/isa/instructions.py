"""The table of instructions that compute: opcode and type to their form and meaning."""

from __future__ import annotations

from functional.isa import across_lanes, conversions, floats, integers, selections, video
from functional.isa.operation import FLOATS, PACKED, Builder, Operation, Unsupported
from functional.ptx.ir import Instruction, Vector

_COMMON: dict[str, Builder] = {**conversions.TABLE, **selections.TABLE, **across_lanes.TABLE}
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
