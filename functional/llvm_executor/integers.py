"""Integer arithmetic, logic, shifts and bit fields as LLVM IR. `emit(e, inst, values)` yields the results.

What an instruction's operands are is decided by the oracle's tables; here they arrive as values of those types.
"""

from __future__ import annotations

from collections.abc import Callable

from functional.llvm_executor.emit import BITS, Emitter, Value
from functional.llvm_executor.unit import NotGenerated
from functional.ptx.ir import Immediate, Instruction

Emit = Callable[..., "Value | tuple[Value, ...]"]


def signed(inst: Instruction) -> bool:
    """Is the instruction's type a signed integer?"""
    return inst.type[:1] == "s"


def plain(signed_name: str, unsigned_name: str = "") -> Emit:
    """One LLVM instruction, by signedness."""

    def emit(e: Emitter, inst: Instruction, a: Value, b: Value) -> Value:
        return e.op(signed_name if signed(inst) or not unsigned_name else unsigned_name, a, b)

    return emit


def intrinsic(signed_name: str, unsigned_name: str) -> Emit:
    """An instruction that is one LLVM intrinsic, signed or unsigned by its type."""

    def emit(e: Emitter, inst: Instruction, a: Value, b: Value) -> Value:
        value = e.intrinsic(signed_name if signed(inst) else unsigned_name, a, b)
        return e.intrinsic("smax", value, e.literal(0, value.kind)) if "relu" in inst.modifiers else value

    return emit


def _add_sub(name: str) -> Emit:
    def emit(e: Emitter, inst: Instruction, a: Value, b: Value) -> Value | tuple[Value, ...]:
        if "cc" in inst.modifiers:
            return _carry(e, inst, a, b)
        return e.intrinsic(f"s{name}.sat", a, b) if "sat" in inst.modifiers else e.op(name, a, b)

    return emit


def _wide(e: Emitter, inst: Instruction, a: Value, b: Value) -> tuple[Value, Value]:
    kind = f"i{2 * a.bits}"
    return e.resize(a, kind, signed(inst)), e.resize(b, kind, signed(inst))


def _product(e: Emitter, inst: Instruction, a: Value, b: Value) -> Value:
    """lo, hi or wide."""
    if "lo" in inst.modifiers:
        return e.op("mul", a, b)
    kind, bits = a.kind, a.bits
    full = e.op("mul", *_wide(e, inst, a, b)) if bits < 64 else _wide64(e, inst, a, b)
    if "wide" in inst.modifiers:
        return full
    return e.cast("trunc", e.op("lshr", full, bits), kind)


def _wide64(e: Emitter, inst: Instruction, a: Value, b: Value) -> Value:
    BITS.setdefault("i128", 128)
    name = "sext" if signed(inst) else "zext"
    return e.op("mul", e.cast(name, a, "i128"), e.cast(name, b, "i128"))


def _mul(e: Emitter, inst: Instruction, a: Value, b: Value) -> Value:
    return _product(e, inst, a, b)


def _carry(e: Emitter, inst: Instruction, *values: Value) -> Value | tuple[Value, ...]:
    """`add.cc addc sub.cc subc mad.cc madc`: the condition code is the last source and result. It is the carry of the
    adder, which subtracts by adding the complement: of a subtraction the opposite of the borrow."""
    *numbers, code = values if inst.opcode in ("addc", "subc", "madc") else (*values, e.literal(0, "i1"))
    if inst.opcode in ("mad", "madc"):
        numbers = [_product(e, inst, numbers[0], numbers[1]), numbers[2]]
    a, b = numbers
    if inst.opcode == "subc":
        code = e.op("xor", code, e.literal(1, "i1"))
    carried = e.cast("zext", code, a.kind)
    if inst.opcode.startswith("sub"):
        difference = e.op("sub", a, b)
        value = e.op("sub", difference, carried)
        borrow = e.op("or", e.compare("ult", a, b), e.op("and", e.compare("eq", difference, 0), code))
        out = e.op("xor", borrow, e.literal(1, "i1"))
    else:
        total = e.op("add", a, b)
        value = e.op("add", total, carried)
        out = e.op("or", e.compare("ult", total, a), e.compare("ult", value, total))
    return (value, out) if "cc" in inst.modifiers else value


def _mad(e: Emitter, inst: Instruction, a: Value, b: Value, c: Value) -> Value | tuple[Value, ...]:
    if "cc" in inst.modifiers:
        return _carry(e, inst, a, b, c)
    if "sat" in inst.modifiers:
        raise NotGenerated
    return e.op("add", _product(e, inst, a, b), c)


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
    rest = e.op("sub", a, e.op("mul", _quotient(e, inst, a, b), b))
    return e.select(e.compare("eq", b, 0), a, rest)


def _neg(e: Emitter, inst: Instruction, a: Value) -> Value:
    return e.op("sub", e.literal(0, a.kind), a)


def _abs(e: Emitter, inst: Instruction, a: Value) -> Value:
    return e.intrinsic("abs", a, extra="i1 false")


def _sad(e: Emitter, inst: Instruction, a: Value, b: Value, c: Value) -> Value:
    less = e.compare("slt" if signed(inst) else "ult", a, b)
    return e.op("add", c, e.select(less, e.op("sub", b, a), e.op("sub", a, b)))


def _not(e: Emitter, inst: Instruction, a: Value) -> Value:
    return e.op("xor", a, e.literal(-1, a.kind))


def _cnot(e: Emitter, inst: Instruction, a: Value) -> Value:
    return e.cast("zext", e.compare("eq", a, 0), a.kind)


def _shift(e: Emitter, inst: Instruction, a: Value, n: Value) -> Value:
    """Amounts of the width or more give 0, or the sign."""
    bits = a.bits
    if inst.opcode == "shr" and signed(inst):
        return e.op("ashr", a, e.resize(e.intrinsic("umin", n, e.literal(bits - 1, "i32")), a.kind, False))
    moved = e.op("shl" if inst.opcode == "shl" else "lshr", a, e.resize(e.op("and", n, bits - 1), a.kind, False))
    return e.select(e.compare("uge", n, bits), 0, moved)


def _funnel(e: Emitter, inst: Instruction, a: Value, b: Value, n: Value) -> Value:
    wraps, left = "wrap" in inst.modifiers, "l" in inst.modifiers
    n = e.op("and", n, 31) if wraps else e.intrinsic("umin", n, e.literal(32, "i32"))
    both = e.op("or", e.op("shl", e.cast("zext", b, "i64"), 32), e.cast("zext", a, "i64"))
    n = e.cast("zext", n, "i64")
    moved = e.op("lshr", e.op("shl", both, n), 32) if left else e.op("lshr", both, n)
    return e.cast("trunc", moved, "i32")


def _lop3(e: Emitter, inst: Instruction, a: Value, b: Value, c: Value, _: Value) -> Value:
    table = inst.sources[3] if len(inst.sources) == 4 else None
    if not isinstance(table, Immediate):
        raise NotGenerated
    total: Value = e.literal(0, "i32")
    inverse = {0: _not(e, inst, a), 1: _not(e, inst, b), 2: _not(e, inst, c)}
    for term in range(8):
        if int(table.value) >> term & 1:
            picked = [x if term & bit else inverse[i] for i, (x, bit) in enumerate(((a, 4), (b, 2), (c, 1)))]
            total = e.op("or", total, e.op("and", e.op("and", picked[0], picked[1]), picked[2]))
    return total


def _popc(e: Emitter, inst: Instruction, a: Value) -> Value:
    return e.resize(e.intrinsic("ctpop", a), "i32", False)


def _clz(e: Emitter, inst: Instruction, a: Value) -> Value:
    return e.resize(e.intrinsic("ctlz", a, extra="i1 false"), "i32", False)


def _brev(e: Emitter, inst: Instruction, a: Value) -> Value:
    return e.intrinsic("bitreverse", a)


def _bfind(e: Emitter, inst: Instruction, a: Value) -> Value:
    if signed(inst):
        a = e.op("xor", a, e.op("ashr", a, a.bits - 1))
    zeros = e.resize(e.intrinsic("ctlz", a, extra="i1 false"), "i32", False)
    shown = zeros if "shiftamt" in inst.modifiers else e.op("sub", e.literal(a.bits - 1, "i32"), zeros)
    return e.select(e.compare("eq", a, 0), -1, shown)


def _ones(e: Emitter, length: Value, kind: str) -> Value:
    """The lowest `length` (i32, at most the width) bits set."""
    width = BITS[kind]
    n = e.resize(e.op("and", length, width - 1), kind, False)
    some = e.op("sub", e.op("shl", e.literal(1, kind), n), 1)
    return e.select(e.compare("uge", length, width), -1, some)


def _bfe(e: Emitter, inst: Instruction, a: Value, position: Value, length: Value) -> Value:
    width, kind = a.bits, a.kind
    position, length = e.op("and", position, 255), e.op("and", length, 255)
    at = e.intrinsic("umin", position, e.literal(width, "i32"))
    moved = e.select(
        e.compare("uge", position, width), 0,
        e.op("lshr", a, e.resize(e.op("and", position, width - 1), kind, False)),
    )  # fmt: skip
    kept = e.intrinsic("umin", length, e.op("sub", e.literal(width, "i32"), at))
    ones = _ones(e, kept, kind)
    field = e.op("and", moved, ones)
    if not signed(inst):
        return field
    last = e.op("sub", e.op("add", position, length), 1)
    sign_at = e.resize(e.intrinsic("umin", last, e.literal(width - 1, "i32")), kind, False)
    negative = e.compare("ne", e.op("and", e.op("lshr", a, sign_at), 1), 0)
    negative = e.op("and", negative, e.compare("ne", length, 0))
    return e.select(negative, e.op("or", field, _not(e, inst, ones)), field)


def _bfi(e: Emitter, inst: Instruction, a: Value, b: Value, position: Value, length: Value) -> Value:
    width, kind = a.bits, a.kind
    position = e.op("and", position, 255)
    length = e.intrinsic("umin", e.op("and", length, 255), e.literal(width, "i32"))
    at = e.resize(e.op("and", position, width - 1), kind, False)
    beyond = e.compare("uge", position, width)
    field = e.select(beyond, 0, e.op("shl", _ones(e, length, kind), at))
    moved = e.select(beyond, 0, e.op("shl", a, at))
    return e.op("or", e.op("and", b, _not(e, inst, field)), e.op("and", moved, field))


def _prmt(e: Emitter, inst: Instruction, a: Value, b: Value, selector: Value) -> Value:
    if len([m for m in inst.modifiers if m != "b32"]):
        raise NotGenerated
    both = e.op("or", e.op("shl", e.cast("zext", b, "i64"), 32), e.cast("zext", a, "i64"))
    result: Value = e.literal(0, "i32")
    for i in range(4):
        nibble = e.op("and", e.op("lshr", selector, 4 * i), 15)
        at = e.cast("zext", e.op("shl", e.op("and", nibble, 7), 3), "i64")
        byte = e.op("and", e.cast("trunc", e.op("lshr", both, at), "i32"), 255)
        sign = e.select(e.compare("ugt", byte, 127), 255, 0, "i32")
        byte = e.select(e.compare("ugt", nibble, 7), sign, byte)
        result = e.op("or", result, e.op("shl", byte, 8 * i))
    return result


def _bmsk(e: Emitter, inst: Instruction, at: Value, length: Value) -> Value:
    """A mask of `length` bits from bit `at` on."""
    if "wrap" in inst.modifiers:
        at, length = e.op("and", at, 31), e.op("and", length, 31)
    ones = _ones(e, length, "i32")
    return e.select(e.compare("uge", at, 32), 0, e.op("shl", ones, e.op("and", at, 31)))


def _dot(width: int) -> Emit:
    """`dp4a dp2a`: products of parts of two registers, summed onto a third."""

    def emit(e: Emitter, inst: Instruction, a: Value, b: Value, c: Value) -> Value:
        left, right = (m for m in inst.modifiers if m in ("u32", "s32"))
        first, total = 2 if "hi" in inst.modifiers else 0, c
        for i in range(width):
            x = _part(e, a, 32 // width, i, left == "s32")
            total = e.op("add", total, e.op("mul", x, _part(e, b, 8, i + first, right == "s32")))
        return total

    return emit


def _part(e: Emitter, a: Value, bits: int, i: int, sign: bool) -> Value:
    """Bits `bits * i` and on of an i32, extended."""
    up = 32 - bits * (i + 1)
    moved = e.op("shl", a, up) if up else a
    return e.op("ashr" if sign else "lshr", moved, 32 - bits)


def _mul24(e: Emitter, inst: Instruction, a: Value, b: Value, *c: Value) -> Value:
    sign = signed(inst)
    a, b = (e.op("ashr" if sign else "lshr", e.op("shl", x, 8), 8) for x in (a, b))
    full = e.op("mul", *_wide(e, inst, a, b))
    part = e.cast("trunc", e.op("lshr", full, 16 if "hi" in inst.modifiers else 0), "i32")
    return e.op("add", part, c[0]) if c else part


TABLE: dict[str, Emit] = {
    "add": _add_sub("add"), "sub": _add_sub("sub"), "mul": _mul, "mad": _mad, "div": _quotient, "rem": _remainder,
    "neg": _neg, "abs": _abs, "min": intrinsic("smin", "umin"), "max": intrinsic("smax", "umax"), "sad": _sad,
    "mul24": _mul24, "mad24": _mul24, "addc": _carry, "subc": _carry, "madc": _carry,
    "and": plain("and"), "or": plain("or"), "xor": plain("xor"), "not": _not, "cnot": _cnot, "shl": _shift,
    "shr": _shift, "shf": _funnel, "lop3": _lop3, "popc": _popc, "clz": _clz, "brev": _brev, "bfind": _bfind,
    "bfe": _bfe, "bfi": _bfi, "prmt": _prmt, "bmsk": _bmsk, "dp4a": _dot(4), "dp2a": _dot(2),
}  # fmt: skip
