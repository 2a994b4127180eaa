"""Integers: arithmetic with wrap-around, saturation and carry chains; logic, shifts, bit fields, byte permutation."""

from collections.abc import Callable

from functional.isa.emitter import BITS, Emitter, Value
from functional.isa.operation import Builder, Operation, as_number, flags_of, only_type, refuse_if, same_type, types_of
from functional.ptx.ir import Instruction

INTEGERS = ("u16", "u32", "u64", "s16", "s32", "s64")
_SIGNED = ("s16", "s32", "s64")
_BITS = ("b16", "b32", "b64")
_LOGIC = (*_BITS, "pred")
_WORDS = ("u32", "s32", "u64", "s64")


def signed(inst: Instruction) -> bool:
    """Is the instruction's type a signed integer?"""
    return inst.type[:1] == "s"


def _plain(signed_name: str, unsigned_name: str = "") -> Callable[..., Value]:
    """One binary instruction, by signedness."""

    def emit(e: Emitter, inst: Instruction, a: Value, b: Value) -> Value:
        return e.op(signed_name if signed(inst) or not unsigned_name else unsigned_name, a, b)

    return emit


def _additive(inst: Instruction) -> Operation:
    """`add sub`, with `.sat` or `.cc`."""
    flags, type_ = flags_of(inst, {"sat", "cc"}), only_type(inst, INTEGERS)
    if "cc" in flags:
        return _carry(inst)
    if "sat" not in flags:
        return same_type(_plain(inst.opcode), INTEGERS, 2)(inst)
    refuse_if(type_ != "s32")
    return Operation(lambda e, a, b: e.intrinsic(f"s{inst.opcode}.sat", a, b), (type_,), (type_, type_))


def _wide(e: Emitter, inst: Instruction, a: Value, b: Value) -> tuple[Value, Value]:
    kind = f"i{2 * a.bits}"
    return e.resize(a, kind, signed(inst)), e.resize(b, kind, signed(inst))


def _product(e: Emitter, inst: Instruction, a: Value, b: Value) -> Value:
    if "lo" in inst.modifiers:
        return e.op("mul", a, b)
    if "wide" in inst.modifiers:
        return e.op("mul", *_wide(e, inst, a, b))
    return e.high_product(a, b, signed(inst))


def _types_of_product(inst: Instruction, more: tuple[str, ...] = ()) -> tuple[str, str, frozenset[str]]:
    """(type of the factors, type of the result, flags) of `mul` and `mad`."""
    flags, type_ = flags_of(inst, {"lo", "hi", "wide", *more}), only_type(inst, INTEGERS)
    kind, bits = type_[0], int(type_[1:])
    refuse_if(len(flags & {"lo", "hi", "wide"}) != 1 or ("wide" in flags and bits == 64))
    return type_, f"{kind}{2 * bits}" if "wide" in flags else type_, flags


def _mul(inst: Instruction) -> Operation:
    type_, result, _ = _types_of_product(inst)
    return Operation(lambda e, a, b: _product(e, inst, a, b), (result,), (type_, type_))


def _mad(inst: Instruction) -> Operation:
    type_, result, flags = _types_of_product(inst, ("sat", "cc"))
    if "cc" in flags:
        return _carry(inst)
    refuse_if("sat" in flags and (type_ != "s32" or "hi" not in flags))

    def emit(e: Emitter, a: Value, b: Value, c: Value) -> Value:
        product = _product(e, inst, a, b)
        return e.intrinsic("sadd.sat", product, c) if "sat" in flags else e.op("add", product, c)

    return Operation(emit, (result,), (type_, type_, result))


def _carry(inst: Instruction) -> Operation:
    """`add.cc addc sub.cc subc mad.cc madc`: the condition code is an extra predicate operand, last. The code holds the
    carry of the adder, which subtracts by adding the complement: of a subtraction the opposite of the borrow."""
    flags = flags_of(inst, {"cc", "lo", "hi"})
    type_ = only_type(inst, ("b32", "b64", *_WORDS))
    takes, multiplies = inst.opcode in ("addc", "subc", "madc"), inst.opcode in ("mad", "madc")
    subtracts = inst.opcode.startswith("sub")

    def emit(e: Emitter, *values: Value) -> Value | tuple[Value, ...]:
        *numbers, code = values if takes else (*values, e.literal(subtracts, "i1"))
        if multiplies:
            numbers = [_product(e, inst, numbers[0], numbers[1]), numbers[2]]
        total = e.op("add", numbers[0], e.invert(numbers[1]) if subtracts else numbers[1])
        value = e.op("add", total, e.cast("zext", code, total.kind))
        carry = e.op("or", e.compare("ult", total, numbers[0]), e.compare("ult", value, total))
        return (value, carry) if "cc" in flags else value

    results, sources = ("u" + type_[1:], "pred"), (*[type_] * (3 if multiplies else 2), "pred")
    return Operation(emit, results if "cc" in flags else results[:1], sources if takes else sources[:-1])


def _quotient(e: Emitter, inst: Instruction, a: Value, b: Value) -> Value:
    """Truncating division; by zero it gives all ones, and the most negative number / -1 wraps."""
    sign = signed(inst)
    magnitude = (lambda x: e.intrinsic("abs", x, extra="i1 false")) if sign else (lambda x: x)
    top, bottom = magnitude(a), magnitude(b)
    zero = e.compare("eq", b, 0)
    bottom = e.select(zero, 1, bottom)
    if a.bits <= 32:  # exact enough in float64, and a vector instruction
        ratio = e.op("fdiv", e.cast("uitofp", top, "double"), e.cast("uitofp", bottom, "double"))
        q = e.cast("fptoui", ratio, a.kind)
    else:
        q = e.op("udiv", top, bottom)
    if sign:
        negative = e.compare("slt", e.op("xor", a, b), 0)
        q = e.select(negative, e.op("sub", e.literal(0, q.kind), q), q)
    return e.select(zero, -1, q)


def _remainder(e: Emitter, inst: Instruction, a: Value, b: Value) -> Value:
    """It has the sign of the dividend; by zero it is the dividend."""
    rest = e.op("sub", a, e.op("mul", _quotient(e, inst, a, b), b))
    return e.select(e.compare("eq", b, 0), a, rest)


def _extremum(inst: Instruction) -> Operation:
    """`min max`, with `.relu` not below 0."""
    relu, type_ = "relu" in flags_of(inst, {"relu"}), only_type(inst, INTEGERS)
    refuse_if(relu and type_ not in ("s32", "s16"))

    def emit(e: Emitter, a: Value, b: Value) -> Value:
        value = e.intrinsic(type_[0] + inst.opcode, a, b)
        return e.intrinsic("smax", value, e.literal(0, value.kind)) if relu else value

    return Operation(emit, (type_,), (type_, type_))


def _sad(e: Emitter, inst: Instruction, a: Value, b: Value, c: Value) -> Value:
    less = e.compare("slt" if signed(inst) else "ult", a, b)
    return e.op("add", c, e.select(less, e.op("sub", b, a), e.op("sub", a, b)))


def _mul24(e: Emitter, inst: Instruction, a: Value, b: Value, *c: Value) -> Value:
    a, b = (e.op("ashr" if signed(inst) else "lshr", e.op("shl", x, 8), 8) for x in (a, b))
    full = e.op("mul", *_wide(e, inst, a, b))
    part = e.cast("trunc", e.op("lshr", full, 16 if "hi" in inst.modifiers else 0), "i32")
    return e.op("add", part, c[0]) if c else part


def part(e: Emitter, a: Value, bits: int, i: int, sign: bool) -> Value:
    """Bits `bits * i` and on of an i32, extended."""
    up = 32 - bits * (i + 1)
    moved = e.op("shl", a, up) if up else a
    return e.op("ashr" if sign else "lshr", moved, 32 - bits)


def _dot(width: int) -> Builder:
    """`dp4a` (four byte products) and `dp2a` (two halfword by byte products) plus an accumulator."""

    def build(inst: Instruction) -> Operation:
        flags, types = flags_of(inst, {"lo", "hi"}), types_of(inst)
        refuse_if(len(types) != 2 or not set(types) <= {"u32", "s32"} or (width == 2) != bool(flags))
        out, first, (left, right) = "s32" if "s32" in types else "u32", 2 if "hi" in flags else 0, types

        def emit(e: Emitter, a: Value, b: Value, total: Value) -> Value:
            for i in range(width):
                x = part(e, a, 32 // width, i, left == "s32")
                total = e.op("add", total, e.op("mul", x, part(e, b, 8, i + first, right == "s32")))
            return total

        return Operation(emit, (out,), ("b32", "b32", out))

    return build


def _counted(function: Callable, result: str, sources: tuple[str, ...], allowed: tuple[str, ...]) -> Builder:
    """Builder of an operation on one type, "" among `sources` and as `result`, and on 32-bit counts and results."""

    def build(inst: Instruction) -> Operation:
        flags_of(inst, {"shiftamt"} if inst.opcode == "bfind" else ())
        type_ = only_type(inst, allowed)
        given = tuple(s or type_ for s in sources)
        return Operation(lambda e, *values: function(e, inst, *values), (result or type_,), given)

    return build


def _shift(e: Emitter, inst: Instruction, a: Value, n: Value) -> Value:
    """Amounts of the width or more give 0, or the sign."""
    bits = a.bits
    if inst.opcode == "shr" and signed(inst):
        return e.op("ashr", a, e.resize(e.intrinsic("umin", n, e.literal(bits - 1, "i32")), a.kind, False))
    moved = e.op("shl" if inst.opcode == "shl" else "lshr", a, e.resize(e.op("and", n, bits - 1), a.kind, False))
    return e.select(e.compare("uge", n, bits), 0, moved)


def _pair(e: Emitter, low: Value, high: Value) -> Value:
    return e.op("or", e.op("shl", e.cast("zext", high, "i64"), 32), e.cast("zext", low, "i64"))


def _funnel(inst: Instruction) -> Operation:
    flags = flags_of(inst, {"l", "r", "clamp", "wrap"})
    only_type(inst, ("b32",))

    def emit(e: Emitter, a: Value, b: Value, n: Value) -> Value:
        n = e.op("and", n, 31) if "wrap" in flags else e.intrinsic("umin", n, e.literal(32, "i32"))
        both, n = _pair(e, a, b), e.cast("zext", n, "i64")
        moved = e.op("lshr", e.op("shl", both, n), 32) if "l" in flags else e.op("lshr", both, n)
        return e.cast("trunc", moved, "i32")

    return Operation(emit, ("b32",), ("b32", "b32", "u32"))


def _lop3(inst: Instruction) -> Operation:
    """The bitwise function whose truth table is the fourth operand. `lop3.BOOL d|p, a, b, c, table, q`: and whether it
    is not 0, combined with q."""
    (join,) = flags_of(inst, {"or", "and"}) or ("",)
    only_type(inst, ("b32",))
    refuse_if((len(inst.sources), len(inst.destinations)) != ((5, 2) if join else (4, 1)))
    table = as_number(inst.sources[3])

    def emit(e: Emitter, a: Value, b: Value, c: Value, _: Value, *q: Value) -> Value | tuple[Value, ...]:
        total = e.literal(0, "i32")
        inverse = {0: e.invert(a), 1: e.invert(b), 2: e.invert(c)}
        for term in range(8):
            if table >> term & 1:
                picked = [x if term & bit else inverse[i] for i, (x, bit) in enumerate(((a, 4), (b, 2), (c, 1)))]
                total = e.op("or", total, e.op("and", e.op("and", picked[0], picked[1]), picked[2]))
        return (total, e.op(join, e.compare("ne", total, 0), q[0])) if join else total

    return Operation(emit, ("b32", "pred") if join else ("b32",), ("b32",) * 4 + (("pred",) if join else ()))


def _clz(e: Emitter, inst: Instruction, a: Value) -> Value:
    return e.resize(e.intrinsic("ctlz", a, extra="i1 false"), "i32", False)


def _bfind(e: Emitter, inst: Instruction, a: Value) -> Value:
    if signed(inst):
        a = e.op("xor", a, e.op("ashr", a, a.bits - 1))
    zeros = _clz(e, inst, a)
    shown = zeros if "shiftamt" in inst.modifiers else e.op("sub", e.literal(a.bits - 1, "i32"), zeros)
    return e.select(e.compare("eq", a, 0), -1, shown)


def ones(e: Emitter, length: Value, kind: str) -> Value:
    """The lowest `length` (i32, at most the width) bits set."""
    width = BITS[kind]
    n = e.resize(e.op("and", length, width - 1), kind, False)
    some = e.op("sub", e.op("shl", e.literal(1, kind), n), 1)
    return e.select(e.compare("uge", length, width), -1, some)


def _bfe(e: Emitter, inst: Instruction, a: Value, position: Value, length: Value) -> Value:
    width, kind = a.bits, a.kind
    position, length = e.op("and", position, 255), e.op("and", length, 255)
    at = e.intrinsic("umin", position, e.literal(width, "i32"))
    beyond = e.compare("uge", position, width)
    moved = e.select(beyond, 0, e.op("lshr", a, e.resize(e.op("and", position, width - 1), kind, False)))
    kept = ones(e, e.intrinsic("umin", length, e.op("sub", e.literal(width, "i32"), at)), kind)
    field = e.op("and", moved, kept)
    if not signed(inst):
        return field
    last = e.op("sub", e.op("add", position, length), 1)
    sign_at = e.resize(e.intrinsic("umin", last, e.literal(width - 1, "i32")), kind, False)
    negative = e.compare("ne", e.op("and", e.op("lshr", a, sign_at), 1), 0)
    negative = e.op("and", negative, e.compare("ne", length, 0))
    return e.select(negative, e.op("or", field, e.invert(kept)), field)


def _bfi(e: Emitter, inst: Instruction, a: Value, b: Value, position: Value, length: Value) -> Value:
    width, kind = a.bits, a.kind
    position = e.op("and", position, 255)
    length = e.intrinsic("umin", e.op("and", length, 255), e.literal(width, "i32"))
    at = e.resize(e.op("and", position, width - 1), kind, False)
    beyond = e.compare("uge", position, width)
    field = e.select(beyond, 0, e.op("shl", ones(e, length, kind), at))
    moved = e.select(beyond, 0, e.op("shl", a, at))
    return e.op("or", e.op("and", b, e.invert(field)), e.op("and", moved, field))


def _bmsk(inst: Instruction) -> Operation:
    """A mask of `length` bits from bit `at` on."""
    wraps = "wrap" in flags_of(inst, {"clamp", "wrap"})
    only_type(inst, ("b32",))

    def emit(e: Emitter, at: Value, length: Value) -> Value:
        if wraps:
            at, length = e.op("and", at, 31), e.op("and", length, 31)
        mask = ones(e, length, "i32")
        return e.select(e.compare("uge", at, 32), 0, e.op("shl", mask, e.op("and", at, 31)))

    return Operation(emit, ("b32",), ("u32", "u32"))


# prmt modes: number of the source byte of result byte i, of the lowest two bits of the selector
_PERMUTATIONS: dict[str, Callable[[Emitter, Value, int], Value]] = {
    "f4e": lambda e, s, i: e.op("add", s, i),
    "b4e": lambda e, s, i: e.op("and", e.op("sub", s, i), 7),
    "rc8": lambda e, s, i: s,
    "ecl": lambda e, s, i: e.intrinsic("umax", s, e.literal(i, "i32")),
    "ecr": lambda e, s, i: e.intrinsic("umin", s, e.literal(i, "i32")),
    "rc16": lambda e, s, i: e.op("add", e.op("shl", e.op("and", s, 1), 1), i & 1),
}


def _prmt(inst: Instruction) -> Operation:
    modes = flags_of(inst, _PERMUTATIONS)
    only_type(inst, ("b32",))

    def emit(e: Emitter, a: Value, b: Value, selector: Value) -> Value:
        both, result = _pair(e, a, b), e.literal(0, "i32")
        low = e.op("and", selector, 3) if modes else selector
        for i in range(4):
            if modes:
                number = _PERMUTATIONS[next(iter(modes))](e, low, i)
                byte = _byte(e, both, number)
            else:  # bit 3 of the nibble: replicate the sign of the byte
                nibble = e.op("and", e.op("lshr", selector, 4 * i), 15)
                byte = _byte(e, both, e.op("and", nibble, 7))
                sign = e.select(e.compare("ugt", byte, 127), 255, 0, "i32")
                byte = e.select(e.compare("ugt", nibble, 7), sign, byte)
            result = e.op("or", result, e.op("shl", byte, 8 * i))
        return result

    return Operation(emit, ("b32",), ("b32",) * 3)


def _byte(e: Emitter, words: Value, number: Value) -> Value:
    at = e.cast("zext", e.op("shl", number, 3), "i64")
    return e.op("and", e.cast("trunc", e.op("lshr", words, at), "i32"), 255)


TABLE: dict[str, Builder] = {
    **dict.fromkeys(("add", "sub"), _additive),
    **dict.fromkeys(("addc", "subc", "madc"), _carry),
    "mul": _mul,
    "mad": _mad,
    "div": same_type(_quotient, INTEGERS, 2),
    "rem": same_type(_remainder, INTEGERS, 2),
    "neg": same_type(lambda e, inst, a: e.op("sub", e.literal(0, a.kind), a), _SIGNED, 1),
    "abs": same_type(lambda e, inst, a: e.intrinsic("abs", a, extra="i1 false"), _SIGNED, 1),
    **dict.fromkeys(("min", "max"), _extremum),
    "sad": same_type(_sad, INTEGERS, 3),
    "mul24": same_type(_mul24, ("u32", "s32"), 2, ("lo", "hi")),
    "mad24": same_type(_mul24, ("u32", "s32"), 3, ("lo", "hi")),
    "dp4a": _dot(4),
    "dp2a": _dot(2),
    "and": same_type(_plain("and"), _LOGIC, 2),
    "or": same_type(_plain("or"), _LOGIC, 2),
    "xor": same_type(_plain("xor"), _LOGIC, 2),
    "not": same_type(lambda e, inst, a: e.invert(a), _LOGIC, 1),
    "cnot": same_type(lambda e, inst, a: e.cast("zext", e.compare("eq", a, 0), a.kind), _BITS, 1),
    "shl": _counted(_shift, "", ("", "u32"), _BITS),
    "shr": _counted(_shift, "", ("", "u32"), (*_BITS, *INTEGERS)),
    "shf": _funnel,
    "lop3": _lop3,
    "popc": _counted(lambda e, inst, a: e.resize(e.intrinsic("ctpop", a), "i32", False), "u32", ("",), _BITS[1:]),
    "clz": _counted(_clz, "u32", ("",), ("b32", "b64")),
    "brev": same_type(lambda e, inst, a: e.intrinsic("bitreverse", a), ("b32", "b64"), 1),
    "bfind": _counted(_bfind, "u32", ("",), _WORDS),
    "bfe": _counted(_bfe, "", ("", "u32", "u32"), _WORDS),
    "bfi": _counted(_bfi, "", ("", "", "u32", "u32"), ("b32", "b64")),
    "bmsk": _bmsk,
    "prmt": _prmt,
}
