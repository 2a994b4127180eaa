"""Operations across the lanes of a warp: `shfl`, `vote`, `activemask`, `redux`, `elect`; and vector moves."""

from __future__ import annotations

from functional.isa.emitter import LANES, Value, vector
from functional.isa.instructions import mode_of
from functional.isa.operation import Unsupported
from functional.llvm_executor import context_layout as at
from functional.llvm_executor.emit import constants
from functional.llvm_executor.unit import Unit
from functional.ptx.ir import TYPE_BYTES, Instruction, Vector

_LANE_NUMBERS = constants(range(LANES), "i32")


def shfl(unit: Unit, inst: Instruction) -> None:
    """`shfl[.sync]`: PTX ISA's rule for the source lane; lanes that are not active give what they hold."""
    e = unit.e
    mode = mode_of(inst)
    value = e.widen(unit.get(inst.sources[0], "b32"))
    b, c = (unit.get(s, "u32") for s in inst.sources[1:3])
    b, clamp = e.op("and", b, 31), e.op("and", c, 31)
    segment = e.op("and", e.op("lshr", c, 8), 31)
    outside = e.op("xor", segment, 31)
    first = e.op("and", _LANE_NUMBERS, segment)
    last = e.op("or", first, e.op("and", clamp, outside))
    if mode == "idx":
        source = e.op("or", first, e.op("and", b, outside))
    else:
        source = e.op({"up": "sub", "down": "add", "bfly": "xor"}[mode], _LANE_NUMBERS, b)
    inside = e.compare("sge" if mode == "up" else "sle", source, last)
    chosen = e.op("and", e.select(inside, source, _LANE_NUMBERS), 31)
    unit.set(inst.destinations[0], _permute(unit, value, chosen), "b32")
    if len(inst.destinations) > 1:
        unit.set(inst.destinations[1], inside, "pred")


def _permute(unit: Unit, value: Value, lanes: Value) -> Value:
    """`value[lanes]`, through memory."""
    e = unit.e
    e.store("%frame", at.SHUFFLE, value, align=4)
    base = e.field("%frame", at.SHUFFLE)
    address = e.let(f"getelementptr i32, ptr {base}, {e.widen(lanes)}", "ptr", True)
    e.declarations["@llvm.masked.gather.v32i32.v32p0"] = (
        f"declare {vector('i32')} @llvm.masked.gather.v32i32.v32p0({vector('ptr')}, {vector('i1')}, {vector('i32')})"
    )
    return e.let(
        f"call {vector('i32')} @llvm.masked.gather.v32i32.v32p0({vector('ptr')} align 4 {address.name}, "
        f"{vector('i1')} splat (i1 true), {vector('i32')} zeroinitializer)", "i32", True,
    )  # fmt: skip


def _members(unit: Unit, inst: Instruction, mask_at: int) -> Value:
    """Active lanes (bits of an i32) that the member mask of a `.sync` form names; a lane each where lanes may name
    different ones: groups of a warp that run the instruction together."""
    active = Value(unit.mask, "i32", False)
    if len(inst.sources) <= mask_at:
        return active
    return unit.e.op("and", active, unit.get(inst.sources[mask_at], "u32"))


def vote(unit: Unit, inst: Instruction) -> None:
    """`vote[.sync].{all,any,uni,ballot}`."""
    e = unit.e
    kind = mode_of(inst)
    p = e.bits_of(e.widen(unit.get(inst.sources[0], "pred", 0 in inst.negated_sources)))
    members = _members(unit, inst, 1)
    true = e.op("and", members, Value(p, "i32", False))
    if kind == "ballot":
        unit.set(inst.destinations[0], e.widen(true), "b32")
        return
    every, none = e.compare("eq", true, members), e.compare("eq", true, 0)
    some = e.op("xor", none, e.literal(1, "i1"))
    result = {"all": every, "any": some, "uni": e.op("or", every, none)}[kind]
    unit.set(inst.destinations[0], e.widen(result), "pred")


def activemask(unit: Unit, inst: Instruction) -> None:
    """`activemask`."""
    unit.set(inst.destinations[0], unit.e.widen(Value(unit.mask, "i32", False)), "b32")


def redux(unit: Unit, inst: Instruction) -> None:
    """`redux.sync`: an integer reduction over the member lanes."""
    e, type_ = unit.e, inst.type
    mode = mode_of(inst)
    sign = type_ == "s32"
    neutral = {"add": 0, "or": 0, "xor": 0, "and": -1}
    neutral |= {"min": 0x7FFFFFFF, "max": -(1 << 31)} if sign else {"min": -1, "max": 0}
    value = e.widen(unit.get(inst.sources[0], type_))
    name = mode if mode in ("add", "and", "or", "xor") else ("s" if sign else "u") + mode
    members = _members(unit, inst, 1)
    if members.wide:
        unit.set(inst.destinations[0], e.call(f"redux_{name}", value, members, unit.mask, neutral[mode]), type_)
        return
    chosen = e.select(e.lanes_of(members.name), value, neutral[mode])
    function = f"@llvm.vector.reduce.{name}.v32i32"
    e.declarations[function] = f"declare i32 {function}({vector('i32')})"
    total = e.let(f"call i32 {function}({chosen})", "i32", False)
    unit.set(inst.destinations[0], e.widen(total), type_)


def match(unit: Unit, inst: Instruction) -> None:
    """`match.sync`: which member lanes hold the same word; `.all`: all of them, or none, and whether all do."""
    e, type_ = unit.e, inst.type
    value = e.widen(unit.get(inst.sources[0], type_))
    members = _members(unit, inst, 1)
    found = e.op("and", e.call(f"match_{value.bits}", value, unit.mask), members)
    if "any" in inst.modifiers:
        unit.set(inst.destinations[0], found, "b32")
        return
    every = e.compare("eq", found, members)
    unit.set(inst.destinations[0], e.select(every, members, 0), "b32")
    if len(inst.destinations) > 1:
        unit.set(inst.destinations[1], every, "pred")


def elect(unit: Unit, inst: Instruction) -> None:
    """`elect.sync`: the lowest member lane, and in that lane true."""
    e = unit.e
    members = e.widen(_members(unit, inst, 0))
    words = vector("i32")
    e.declarations["@llvm.cttz.v32i32"] = f"declare {words} @llvm.cttz.v32i32({words}, i1)"
    first = e.let(f"call {words} @llvm.cttz.v32i32({members}, i1 false)", "i32", True)
    leader = e.op("and", first, 31)
    unit.set(inst.destinations[0], leader, "b32")
    unit.set(inst.destinations[1], e.compare("eq", leader, _LANE_NUMBERS), "pred")


def vector_move(unit: Unit, inst: Instruction) -> None:
    """Pack the elements of a vector into one register, the first in the lowest bits, or unpack."""
    e, source, destination = unit.e, inst.sources[0], inst.destinations[0]
    size = TYPE_BYTES[inst.type]
    inputs = source.elements if isinstance(source, Vector) else (source,)
    outputs = destination.elements if isinstance(destination, Vector) else (destination,)
    if size > 8 or size % len(inputs) or size % len(outputs) or None in inputs:
        raise Unsupported
    in_bits, out_bits, kind = 8 * size // len(inputs), 8 * size // len(outputs), f"i{8 * size}"
    packed: Value | None = None
    for i, part in enumerate(inputs):
        value = e.resize(unit.get(part, f"b{in_bits}"), kind, False)
        value = e.op("shl", value, in_bits * i) if i else value
        packed = value if packed is None else e.op("or", packed, value)
    assert packed is not None
    for i, target in enumerate(outputs):
        part_of = e.op("lshr", packed, out_bits * i) if i else packed
        unit.set(target, e.resize(part_of, f"i{out_bits}", False), f"b{out_bits}")


TABLE = {"shfl": shfl, "vote": vote, "activemask": activemask, "redux": redux, "match": match, "elect": elect}
