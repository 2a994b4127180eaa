"""Comparisons, selections, moves and addresses: `setp set selp slct testp mov cvta isspacep mapa getctarank
mbarrier.pending_count createpolicy`."""

from functional.isa.emitter import FLOATING, Emitter, Value
from functional.isa.floats import TINY, fabs, finite, flush, halves, join, up
from functional.isa.memory import GENERIC, PENDING_BITS, RANK_BYTES, SHARED_WINDOW, WINDOWS
from functional.isa.operation import (
    FLOATS,
    KINDS,
    Builder,
    Operation,
    flags_of,
    kind_of,
    only_type,
    refuse_if,
    same_type,
    types_of,
)
from functional.launches.memory import GLOBAL_BASE
from functional.ptx.ir import CLUSTER_SHARED, Immediate, Instruction, Register

# An ordered comparison with a NaN is false; `neu` and the others that end in u are true then.
_ORDERED = {
    **{name: "o" + name for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    **{name + "u": "u" + name for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    "num": "ord", "nan": "uno",
}  # fmt: skip
_ORDERED["ne"], _ORDERED["neu"] = "one", "une"
_LESS = {"lt": "lt", "le": "le", "gt": "gt", "ge": "ge", "lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
_UNSIGNED = {"eq": "eq", "ne": "ne", **{name: "u" + less for name, less in _LESS.items()}}
_SIGNED = {"eq": "eq", "ne": "ne", **{name: "s" + less for name, less in _LESS.items()}}
_COMBINATIONS = ("and", "or", "xor")
_PAIRS = ("f16x2", "bf16x2")


class _Comparison:
    """The comparison that an instruction makes on operands of a type, and what joins it with a further predicate."""

    def __init__(self, inst: Instruction, type_: str) -> None:
        self.type, scalar = type_, type_.removesuffix("x2") if type_ in _PAIRS else type_
        table = _ORDERED if scalar in FLOATS else _SIGNED if scalar[0] == "s" else _UNSIGNED
        flags = flags_of(inst, {*table, *_COMBINATIONS, "ftz"})
        named, joined = flags & set(table), flags & set(_COMBINATIONS)
        refuse_if(len(named) != 1 or len(joined) > 1 or (joined and type_ in _PAIRS))
        self.predicate, self.combination = table[next(iter(named))], next(iter(joined), "")
        self.tiny = TINY[scalar] if "ftz" in flags and scalar in ("f32", "f16") else 0.0
        self.sources = (type_, type_, "pred") if joined else (type_, type_)

    def emit(self, e: Emitter, a: Value, b: Value) -> Value:
        """Of scalars."""
        if a.kind in FLOATING or "bf16" in self.type:
            a, b = up(e, a), up(e, b)
        if self.tiny:
            a, b = flush(e, a, self.tiny), flush(e, b, self.tiny)
        return e.compare(self.predicate, a, b)

    def emit_halves(self, e: Emitter, a: Value, b: Value) -> tuple[Value, Value]:
        """Of the low halves and of the high halves of packed operands."""
        low, high = halves(e, "half" if self.type == "f16x2" else "i16", a, b)
        return self.emit(e, *low), self.emit(e, *high)

    def join(self, e: Emitter, result: Value, *other: Value) -> Value:
        """The result combined with the third operand, if there is one."""
        return e.op(self.combination, result, other[0]) if self.combination else result


def _setp(inst: Instruction) -> Operation:
    (type_,) = types_of(inst)
    comparison, pair = _Comparison(inst, type_), len(inst.destinations) == 2
    refuse_if(type_ == "pred" or (type_ in _PAIRS and not pair))

    def emit(e: Emitter, a: Value, b: Value, *c: Value) -> Value | tuple[Value, ...]:
        if type_ in _PAIRS:
            return comparison.emit_halves(e, a, b)
        result = comparison.emit(e, a, b)
        first = comparison.join(e, result, *c)
        return (first, comparison.join(e, e.invert(result), *c)) if pair else first

    return Operation(emit, ("pred", "pred") if pair else ("pred",), comparison.sources)


# `set`: what is written for true, of types that are kept as bits
_TRUE = {"f16x2": 0x3C00, "bf16x2": 0x3F80, "bf16": 0x3F80}


def _set(inst: Instruction) -> Operation:
    out, type_ = types_of(inst)
    comparison, packed = _Comparison(inst, type_), type_ in _PAIRS
    refuse_if(out not in ((type_, "u32", "s32") if packed else ("u32", "s32", "u16", "s16", "f32", "f16", "bf16")))

    def emit(e: Emitter, a: Value, b: Value, *c: Value) -> Value:
        """A number for true; of packed operands a number, or a mask, in each half."""
        if packed:
            true = _TRUE.get(out, 0xFFFF)
            return join(e, *[e.select(r, true, 0, "i16") for r in comparison.emit_halves(e, a, b)])
        result = comparison.join(e, comparison.emit(e, a, b), *c)
        if out == "bf16":
            return e.select(result, _TRUE[out], 0, "i16")
        kind = kind_of(out)
        return e.select(result, 1.0, 0.0, kind) if kind in FLOATING else e.cast("sext", result, kind)

    return Operation(emit, (out,), comparison.sources)


def _selp(inst: Instruction) -> Operation:
    flags_of(inst)
    (type_,) = types_of(inst)
    refuse_if(type_ == "pred")
    # as bits: LLVM gives floating-point NaNs no payload
    return Operation(lambda e, a, b, p: e.select(p, e.raw_bits(a), e.raw_bits(b)), (type_,), (type_, type_, "pred"))


def _slct(inst: Instruction) -> Operation:
    flags, (type_, by) = flags_of(inst, {"ftz"}), types_of(inst)
    refuse_if(by not in ("s32", "f32"))

    def emit(e: Emitter, a: Value, b: Value, c: Value) -> Value:
        if by == "s32":
            return e.select(e.compare("sge", c, 0), a, b)
        c = flush(e, c) if "ftz" in flags else c  # a negative subnormal counts as -0, hence >= 0
        return e.select(e.compare("oge", c, 0.0), a, b)

    return Operation(emit, (type_,), (type_, type_, by))


_TESTS = frozenset({"finite", "infinite", "number", "notanumber", "normal", "subnormal"})


def _testp(inst: Instruction) -> Operation:
    (name,), (type_,) = flags_of(inst, _TESTS), types_of(inst)
    refuse_if(type_ not in ("f32", "f64"))

    def emit(e: Emitter, a: Value) -> Value:
        size = fabs(e, a)
        if name in ("number", "notanumber"):
            return e.compare("ord" if name == "number" else "uno", a, a)
        if name == "infinite":
            return e.compare("oeq", size, float("inf"))
        if name == "subnormal":
            return e.op("and", e.compare("olt", size, TINY[type_]), e.compare("one", a, 0.0))
        whole = finite(e, a)
        return e.op("and", whole, e.compare("oge", size, TINY[type_])) if name == "normal" else whole

    return Operation(emit, ("pred",), (type_,))


def _cvta(inst: Instruction) -> Operation:
    flags, (type_,) = flags_of(inst, {"to", "global", *GENERIC}), types_of(inst)
    (space,) = flags - {"to"}
    window = GENERIC.get(space, 0)
    refuse_if(type_ not in ("u64", "u32"))
    name = "sub" if "to" in flags else "add"
    return Operation(lambda e, a: e.op(name, a, window) if window else a, (type_,), (type_,))


def _isspacep(inst: Instruction) -> Operation:
    (space,), source = flags_of(inst, {"global", *WINDOWS}), inst.sources[0]
    wide = "u32" if isinstance(source, Register) and source.type[1:] == "32" else "u64"

    def emit(e: Emitter, a: Value) -> Value:
        if space == "global":
            return e.compare("uge", a, GLOBAL_BASE)
        start, stop = WINDOWS[space]
        return e.compare("ult", e.op("sub", a, start), stop - start)

    return Operation(emit, ("pred",), (wide,))


def _mapa(inst: Instruction) -> Operation:
    """`mapa[.shared::cluster]`: the address that a variable of the own thread block has in another one of the cluster.
    A generic address may also be of memory that is not shared: it stays as it is."""
    flags, type_ = flags_of(inst, {CLUSTER_SHARED}), only_type(inst, ("u32", "u64"))
    start, stop = (a - SHARED_WINDOW * bool(flags) for a in WINDOWS[CLUSTER_SHARED])

    def emit(e: Emitter, address: Value, rank: Value) -> Value:
        offset = e.op("sub", address, start)
        first = e.op("mul", e.resize(rank, address.kind, False), RANK_BYTES)
        moved = e.op("or", e.op("and", offset, RANK_BYTES - 1), first)
        return e.select(e.compare("ult", offset, stop - start), e.op("add", moved, start), address)

    return Operation(emit, (type_,), (type_, "u32"))


def _getctarank(inst: Instruction) -> Operation:
    flags, type_ = flags_of(inst, {CLUSTER_SHARED}), only_type(inst, ("u32", "u64"))
    shift, first = RANK_BYTES.bit_length() - 1, 0 if flags else SHARED_WINDOW

    def emit(e: Emitter, a: Value) -> Value:
        return e.cast("trunc", e.op("ashr", e.op("sub", e.resize(a, "i64", False), first), shift), "i32")

    return Operation(emit, ("u32",), (type_,))


def _pending_count(inst: Instruction) -> Operation:
    flags_of(inst, {"pending_count"})
    low = (1 << PENDING_BITS) - 1
    emit = lambda e, s: e.cast("trunc", e.op("and", e.op("lshr", s, PENDING_BITS), low), "i32")  # noqa: E731
    return Operation(emit, ("u32",), ("b64",))


def _createpolicy(inst: Instruction) -> Operation:
    """A cache policy is a hint: any number will do."""
    refuse_if(inst.type != "b64")
    kinds: tuple[str, ...] = ("b64",) if "range" not in inst.modifiers and len(inst.sources) == 1 else ()
    if len(inst.sources) > 1 or (kinds and "cvt" not in inst.modifiers):
        kinds = tuple("f32" if isinstance(s, Immediate) else "b64" for s in inst.sources)
    return Operation(lambda e, *_: e.literal(0, "i64"), ("b64",), kinds)


TABLE: dict[str, Builder] = {
    "setp": _setp, "set": _set, "selp": _selp, "slct": _slct, "testp": _testp, "cvta": _cvta, "isspacep": _isspacep,
    "createpolicy": _createpolicy, "mapa": _mapa, "getctarank": _getctarank, "mbarrier": _pending_count,
    "mov": same_type(lambda e, inst, a: a, KINDS, 1),
}  # fmt: skip
