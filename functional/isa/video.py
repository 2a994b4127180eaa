"""Integer oddities of CUDA's SIMD intrinsics: `vabsdiff4 vadd4 vmax2 ...`, `fns`, `szext`, and `cvt.pack`.

The video instructions take words, halves or bytes of any two operands in order: compilers emit no operand selectors."""

from collections.abc import Callable

from functional.isa.emitter import Emitter, Value
from functional.isa.integers import ones, part
from functional.isa.operation import Builder, Operation, flags_of, kind_of, only_type, refuse_if, types_of
from functional.ptx.ir import Instruction

Combine = Callable[[Emitter, Value, Value], Value]


def _average(e: Emitter, a: Value, b: Value) -> Value:
    """Rounded away from zero where it is not negative."""
    total = e.op("add", a, b)
    return e.op("ashr", e.op("add", total, e.cast("zext", e.compare("sge", total, 0), total.kind)), 1)


_COMBINE: dict[str, Combine] = {
    "vadd": lambda e, a, b: e.op("add", a, b),
    "vsub": lambda e, a, b: e.op("sub", a, b),
    "vabsdiff": lambda e, a, b: e.intrinsic("abs", e.op("sub", a, b), extra="i1 false"),
    "vmin": lambda e, a, b: e.intrinsic("smin", a, b),
    "vmax": lambda e, a, b: e.intrinsic("smax", a, b),
    "vavrg": _average,
    "vshl": lambda e, a, b: e.op("shl", a, b),
    "vshr": lambda e, a, b: e.op("ashr", a, b),
}


def range_of(type_: str) -> tuple[int, int]:
    """(least, greatest) number of an integer type."""
    bits = int(type_[1:])
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if type_[0] == "s" else (0, (1 << bits) - 1)


def _clip(e: Emitter, v: Value, type_: str) -> Value:
    low, high = range_of(type_)
    return e.intrinsic("smin", e.intrinsic("smax", v, e.literal(low, v.kind)), e.literal(high, v.kind))


def _simd(name: str, count: int) -> Builder:
    """`vNAME{2,4}.D.A.B{.sat,.add} d, a, b, c`: by parts; `.add` sums the parts onto c, else c is where none are."""
    combine, bits = _COMBINE[name], 32 // count

    def build(inst: Instruction) -> Operation:
        flags, types = flags_of(inst, {"sat", "add"}), types_of(inst)
        refuse_if(len(types) != 3 or not set(types) <= {"u32", "s32"} or len(inst.sources) != 3 or len(flags) > 1)
        out, left, right = types

        def emit(e: Emitter, a: Value, b: Value, c: Value) -> Value:
            total = c if "add" in flags else e.literal(0, "i32")
            for i in range(count):
                value = combine(e, part(e, a, bits, i, left == "s32"), part(e, b, bits, i, right == "s32"))
                if "add" in flags:
                    total = e.op("add", total, value)
                    continue
                value = _clip(e, value, f"{out[0]}{bits}") if "sat" in flags else value
                total = e.op("or", total, e.op("shl", e.op("and", value, (1 << bits) - 1), bits * i))
            return total

        return Operation(emit, (out,), ("b32", "b32", out))

    return build


def _scalar(name: str) -> Builder:
    """`vNAME.D.A.B{.sat}{.add,.min,.max}{.clamp,.wrap} d, a, b{, c}` on whole words, in 34 bits; then c joins it."""
    shifts = name in ("vshl", "vshr")

    def build(inst: Instruction) -> Operation:
        flags = flags_of(inst, {"sat", "add", "min", "max", *(("clamp", "wrap") if shifts else ())})
        types, second, modes = types_of(inst), flags & {"add", "min", "max"}, flags & {"clamp", "wrap"}
        refuse_if(len(types) != 3 or not set(types) <= {"u32", "s32"} or len(second) > 1 or len(modes) != shifts)
        out, left, right = types

        def emit(e: Emitter, a: Value, b: Value, *c: Value) -> Value:
            a, b = e.resize(a, "i64", left == "s32"), e.resize(b, "i64", right == "s32")
            if shifts:
                b = e.op("and", b, 31) if "wrap" in modes else e.intrinsic("umin", b, e.literal(32, "i64"))
            value = _COMBINE[name](e, a, b)
            value = e.resize(_clip(e, value, out) if "sat" in flags else value, "i32", False)
            if "add" in second:
                return e.op("add", value, c[0])
            return e.intrinsic(out[0] + next(iter(second)), value, c[0]) if second else value

        return Operation(emit, (out,), (left, right, *([out] if second else [])))

    return build


def _fns(inst: Instruction) -> Operation:
    """`fns.b32 d, mask, base, offset`: the offset-th set bit from base on, upwards or downwards; of 0, base."""
    only_type(inst, ("b32",))

    def emit(e: Emitter, mask: Value, base: Value, offset: Value) -> Value:
        wanted = e.intrinsic("umax", e.intrinsic("abs", offset, extra="i1 false"), e.literal(1, "i32"))
        found = []
        for inside, order in (("ule", range(32)), ("uge", range(31, -1, -1))):
            rank, at = e.literal(0, "i32"), e.literal(-1, "i32")
            for i in order:
                bit = e.op("and", e.op("lshr", mask, i), 1)
                bit = e.select(e.compare(inside, base, i), bit, 0)
                rank = e.op("add", rank, bit)
                hit = e.op("and", e.compare("ne", bit, 0), e.compare("eq", rank, wanted))
                at = e.select(hit, e.literal(i, "i32"), at)
            found.append(at)
        itself = e.op("and", e.compare("eq", offset, 0), e.compare("ne", found[0], base))
        return e.select(itself, -1, e.select(e.compare("slt", offset, 0), found[1], found[0]))

    return Operation(emit, ("b32",), ("b32", "b32", "s32"))


def _szext(inst: Instruction) -> Operation:
    """`szext.{wrap,clamp}`: extend the lowest b bits by their sign, or by zeros."""
    flags, type_ = flags_of(inst, {"wrap", "clamp"}), only_type(inst, ("u32", "s32"))

    def emit(e: Emitter, a: Value, b: Value) -> Value:
        width = e.op("and", b, 31) if "wrap" in flags else e.intrinsic("umin", b, e.literal(32, "i32"))
        kept = ones(e, width, "i32")
        field = e.op("and", a, kept)
        if type_ == "u32":
            return field
        top = e.op("xor", kept, e.op("lshr", kept, 1))
        negative = e.compare("ne", e.op("and", a, top), 0)
        return e.select(negative, e.op("or", field, e.invert(kept)), field)

    return Operation(emit, (type_,), (type_, "u32"))


def pack(inst: Instruction) -> Operation:
    """`cvt.pack.sat.u8.s32.b32 d, a, b, c`: a and b clamped, a on top of b, above them the low bits of c."""
    flags, types = flags_of(inst, {"pack", "sat"}), types_of(inst)
    refuse_if(flags != {"pack", "sat"} or types[1:] not in (("s32",), ("s32", "b32")))
    out = types[0]
    bits = int(out[1:])
    refuse_if(out not in (("u16", "s16") if len(types) == 2 else ("u8", "s8")))

    def emit(e: Emitter, a: Value, b: Value, *c: Value) -> Value:
        high, low = (e.resize(e.resize(_clip(e, x, out), kind_of(out), False), "i32", False) for x in (a, b))
        joined = e.op("or", e.op("shl", high, bits), low)
        return e.op("or", joined, e.op("shl", c[0], 2 * bits)) if c else joined

    return Operation(emit, ("b32",), ("s32", "s32", *types[2:]))


TABLE: dict[str, Builder] = {
    **{f"{name}{count}": _simd(name, count) for name in list(_COMBINE)[:6] for count in (2, 4)},
    **{name: _scalar(name) for name in _COMBINE if name != "vavrg"},
    "fns": _fns,
    "szext": _szext,
}
