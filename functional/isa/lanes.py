"""What looks at other lanes of a warp: `shfl vote match redux activemask elect`.

A member mask names the lanes that run an instruction together; groups of a warp may name different ones."""

from functional.isa.emitter import Emitter, Value
from functional.isa.operation import Builder, Operation, flags_of, only_type, refuse_if
from functional.ptx.ir import Instruction

_MODES = {"shfl": ("up", "down", "bfly", "idx"), "vote": ("all", "any", "uni", "ballot"), "match": ("any", "all"),
          "redux": ("add", "min", "max", "and", "or", "xor")}  # fmt: skip
_NEUTRAL = {"add": 0, "or": 0, "xor": 0, "and": -1, "umin": -1, "umax": 0, "smin": 0x7FFFFFFF, "smax": -(1 << 31)}


def _mode_of(inst: Instruction) -> str:
    """Which of the operations of its opcode it is: "bfly" of `shfl.sync.bfly.b32`. Raises Unsupported."""
    flags = flags_of(inst, {"sync", *_MODES[inst.opcode]}) - {"sync"}
    refuse_if(len(flags) != 1)
    return next(iter(flags))


def _masks(inst: Instruction) -> tuple[str, ...]:
    return ("u32",) if "sync" in inst.modifiers else ()


def _members(e: Emitter, *mask: Value) -> Value:
    """Active lanes, as bits; of those only the ones that the instruction names."""
    return e.op("and", e.active(), mask[0]) if mask else e.active()


def _shfl(inst: Instruction) -> Operation:
    """PTX's rule for the source lane; lanes that are not active give what they hold."""
    mode, pair = _mode_of(inst), len(inst.destinations) == 2
    only_type(inst, ("b32",))

    def emit(e: Emitter, a: Value, b: Value, c: Value, *_: Value) -> Value | tuple[Value, ...]:
        b, clamp, segment = e.op("and", b, 31), e.op("and", c, 31), e.op("and", e.op("lshr", c, 8), 31)
        lanes, outside = e.lane_numbers(), e.op("xor", segment, 31)
        first = e.op("and", lanes, segment)
        last = e.op("or", first, e.op("and", clamp, outside))
        if mode == "idx":
            source = e.op("or", first, e.op("and", b, outside))
        else:
            source = e.op({"up": "sub", "down": "add", "bfly": "xor"}[mode], lanes, b)
        inside = e.compare("sge" if mode == "up" else "sle", source, last)
        value = e.permute(a, e.select(inside, source, lanes))
        return (value, inside) if pair else value

    return Operation(emit, ("b32", "pred")[: 1 + pair], ("b32", "u32", "u32", *_masks(inst)), True)


def _vote(inst: Instruction) -> Operation:
    mode = _mode_of(inst)
    refuse_if(inst.type != ("b32" if mode == "ballot" else "pred"))

    def emit(e: Emitter, p: Value, *mask: Value) -> Value:
        members = _members(e, *mask)
        true = e.op("and", members, e.ballot(p))
        every, none = e.compare("eq", true, members), e.compare("eq", true, 0)
        return {"ballot": true, "all": every, "any": e.invert(none), "uni": e.op("or", every, none)}[mode]

    return Operation(emit, (inst.type,), ("pred", *_masks(inst)), True)


def _match(inst: Instruction) -> Operation:
    """Which members hold the same word; `.all`: all of them, or none, and whether all do."""
    mode, pair, type_ = _mode_of(inst), len(inst.destinations) == 2, only_type(inst, ("b32", "b64"))

    def emit(e: Emitter, a: Value, mask: Value) -> Value | tuple[Value, ...]:
        members = _members(e, mask)
        same = e.op("and", e.alike(a), members)
        if mode == "any":
            return same
        agree = e.compare("eq", same, members)
        value = e.select(agree, members, 0)
        return (value, agree) if pair else value

    return Operation(emit, ("b32", "pred")[: 1 + pair], (type_, "u32"), True)


def _redux(inst: Instruction) -> Operation:
    mode, type_ = _mode_of(inst), inst.type
    refuse_if(type_ not in (("b32",) if mode in ("and", "or", "xor") else ("u32", "s32")))
    name = type_[0] + mode if mode in ("min", "max") else mode
    emit = lambda e, a, mask: e.reduced(name, a, _members(e, mask), _NEUTRAL[name])  # noqa: E731
    return Operation(emit, (type_,), (type_, "u32"), True)


def _activemask(inst: Instruction) -> Operation:
    only_type(inst, ("b32",))
    return Operation(lambda e: e.active(), ("b32",), (), True)


def _elect(inst: Instruction) -> Operation:
    """The lowest member, and in its lane true."""
    flags_of(inst, {"sync"})

    def emit(e: Emitter, mask: Value) -> tuple[Value, Value]:
        members = _members(e, mask)
        lowest = e.op("and", members, e.op("sub", e.literal(0, "i32"), members))
        leader = e.op("and", e.intrinsic("ctpop", e.op("sub", lowest, 1)), 31)
        return leader, e.compare("eq", leader, e.lane_numbers())

    return Operation(emit, ("b32", "pred"), ("u32",), True)


TABLE: dict[str, Builder] = {
    "shfl": _shfl, "vote": _vote, "match": _match, "redux": _redux, "activemask": _activemask, "elect": _elect,
}  # fmt: skip
