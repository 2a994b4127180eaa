"""The table of instructions that compute, opcode and type to their form and meaning; what has no effect."""

from functools import reduce

from functional.isa import conversions, floats, integers, lanes, selections, video
from functional.isa.emitter import Emitter, Value
from functional.isa.operation import FLOATS, PACKED, Builder, Operation, Unsupported, refuse_if
from functional.isa.slots import CONDITION_CODE
from functional.ptx.ir import TYPE_BYTES, Instruction, Operand, Vector, parts_of

_COMMON: dict[str, Builder] = {**conversions.TABLE, **selections.TABLE, **lanes.TABLE}
_INTEGERS: dict[str, Builder] = {**integers.TABLE, **video.TABLE}
CARRIED = ("addc", "subc", "madc")  # that read the condition code
# One warp instruction each, without effect on what a data-race-free kernel computes
_NO_EFFECT = frozenset(
    ("membar", "fence", "prefetch", "prefetchu", "nanosleep", "pmevent", "discard", "applypriority", "griddepcontrol")
)
_GROUPS = frozenset({"commit_group", "wait_group", "wait_all"})
_TENSOR_WAITS = frozenset(
    {"wait::ld.sync.aligned", "wait::st.sync.aligned", "fence::before_thread_sync", "fence::after_thread_sync"}
)


def operation_of(inst: Instruction) -> Operation:
    """The operation of an arithmetic instruction. Raises Unsupported."""
    table = floats.TABLE if inst.type in FLOATS else floats.PACKED_TABLE if inst.type in PACKED else _INTEGERS
    if (builder := _COMMON.get(inst.opcode) or table.get(inst.opcode)) is None:
        raise Unsupported
    return builder(inst)


def has_no_effect(inst: Instruction) -> bool:
    """Is it one warp instruction that changes nothing here: fences, hints, waits for what is already done?"""
    if inst.opcode == "wgmma":
        return inst.modifiers[:1] in (("fence",), ("commit_group",), ("wait_group",))
    if inst.opcode == "tcgen05":
        return ".".join(inst.modifiers) in _TENSOR_WAITS
    return inst.opcode in _NO_EFFECT or (inst.opcode == "cp" and _is_group(inst))


def _is_group(inst: Instruction) -> bool:
    """`cp.async[.bulk].commit_group`, `wait_group`, `wait_all`, `prefetch`."""
    if inst.modifiers[:2] == ("async", "bulk"):
        waits = (("commit_group",), ("wait_group",), ("wait_group", "read"))
        return inst.modifiers[2:] in waits or inst.modifiers[2:3] == ("prefetch",)
    return len(inst.modifiers) == 2 and inst.modifiers[0] == "async" and inst.modifiers[1] in _GROUPS


def vector_move(inst: Instruction) -> tuple[Operation, tuple[Operand, ...], tuple[Operand | None, ...]]:
    """A `mov` of vectors as an operation on their elements, these, and those it writes: it packs the elements into one
    register, the first in the lowest bits (`mov.b64 c, {a, b}`), or unpacks it, or moves each by itself (`mov.v4.u32`).
    Raises Unsupported."""
    inputs, outputs = map(parts_of, (inst.sources[0], inst.destinations[0]))
    size, wide = TYPE_BYTES[inst.type], not {"v2", "v4", "v8"}.isdisjoint(inst.modifiers)
    refuse_if(None in inputs or (wide and len(inputs) != len(outputs)))
    if wide:
        types = (inst.type,) * len(inputs)
        return Operation(lambda e, *values: values, types, types), inputs, outputs  # type: ignore[return-value]
    refuse_if(size > 8 or size % len(inputs) or size % len(outputs))
    in_bits, out_bits = 8 * size // len(inputs), 8 * size // len(outputs)

    def emit(e: Emitter, *parts: Value) -> tuple[Value, ...]:
        shifted = [e.op("shl", e.resize(p, f"i{8 * size}", False), in_bits * i) for i, p in enumerate(parts)]
        packed = reduce(lambda a, b: e.op("or", a, b), shifted)
        return tuple(e.resize(e.op("lshr", packed, out_bits * i), f"i{out_bits}", False) for i in range(len(outputs)))

    operation = Operation(emit, (f"b{out_bits}",) * len(outputs), (f"b{in_bits}",) * len(inputs))
    return operation, inputs, outputs  # type: ignore[return-value]


def form_of(inst: Instruction) -> tuple[Operation, tuple[Operand, ...], tuple[Operand | None, ...]]:
    """The operation of an instruction that computes, what it reads and writes, flags too. Raises Unsupported."""
    if inst.opcode == "mov" and any(isinstance(o, Vector) for o in (*inst.destinations, *inst.sources)):
        return vector_move(inst)
    sources = (*inst.sources, CONDITION_CODE) if inst.opcode in CARRIED else inst.sources
    destinations = (*inst.destinations, CONDITION_CODE) if "cc" in inst.modifiers else inst.destinations
    return operation_of(inst), sources, destinations
