"""`cvt`: every pair of integer and floating-point types, with rounding, saturation and flush to zero; 8-bit floats.

e4m3 has no infinities and one NaN a sign. Source: PTX ISA, "Alternate Floating-Point Data Formats"; Micikevicius et
al., "FP8 Formats for Deep Learning" (2022)."""

from functional.isa import floats, video
from functional.isa.emitter import BITS, Emitter, Value
from functional.isa.operation import FLOATS, ROUNDINGS, Builder, Operation, flags_of, refuse_if, rounding, types_of
from functional.isa.operation import kind_of as kind
from functional.ptx.ir import Instruction

_TO_INTEGER = {"rni": "rint", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}
_FP8 = {"e4m3x2": (4, 3, 7, 0x7E), "e5m2x2": (5, 2, 15, 0x7B)}  # exponent, mantissa bits, bias, largest finite code
_INTEGERS = frozenset(f"{k}{n}" for k in "bus" for n in (8, 16, 32, 64))


def _cvt(inst: Instruction) -> Operation:
    if "pack" in inst.modifiers:
        return video.pack(inst)
    flags = flags_of(inst, {*ROUNDINGS, *_TO_INTEGER, "rna", "sat", "ftz", "relu", "satfinite"})
    types = types_of(inst)
    refuse_if(len(types) != 2)
    to, from_ = types
    if {to, from_} & set(_FP8):
        return _from_fp8(flags, to, from_) if from_ in _FP8 else _to_fp8(flags, to, from_)
    if to in ("f16x2", "bf16x2"):
        return _pair(flags, to, from_)
    if to == "tf32":
        return _to_tf32(flags)
    refuse_if(not {to, from_} <= FLOATS | _INTEGERS or "satfinite" in flags)
    refuse_if("relu" in flags and (to not in ("f16", "bf16") or from_ != "f32" or flags - {"rn", "rz", "relu"}))
    refuse_if(to == "bf16" and "sat" in flags)
    if to in FLOATS:
        convert = _float_to_float if from_ in FLOATS else _integer_to_float
    else:
        convert = _float_to_integer if from_ in FLOATS else _integer_to_integer
    refuse_if(convert is _float_to_integer and len(flags & set(_TO_INTEGER)) != 1)
    return Operation(lambda e, a: convert(e, flags, to, from_, a), (to,), (from_,))


def _integer_to_integer(e: Emitter, flags: frozenset[str], to: str, from_: str, a: Value) -> Value:
    if "sat" in flags:
        (low, high), (least, most) = video.range_of(to), video.range_of(from_)
        sign = "s" if from_[0] == "s" else "u"
        if low > least:
            a = e.intrinsic(f"{sign}max", a, e.literal(low, a.kind))
        if high < most:
            a = e.intrinsic(f"{sign}min", a, e.literal(high, a.kind))
    return e.resize(a, kind(to), from_[0] == "s")


def _float_to_integer(e: Emitter, flags: frozenset[str], to: str, from_: str, a: Value) -> Value:
    """Saturating; NaN gives 0, or the top bit where 64 bits are involved."""
    (mode,) = (_TO_INTEGER[f] for f in flags if f in _TO_INTEGER)
    a = floats.up(e, a) if from_ == "bf16" else a
    if "ftz" in flags and a.kind == "float":
        a = floats.flush(e, a)
    x = e.intrinsic(mode, floats.up(e, a))
    result = e.intrinsic("fptosi.sat" if to[0] == "s" else "fptoui.sat", x, returns=kind(to))
    if from_ == "f64" or BITS[kind(to)] == 64:
        result = e.select(e.compare("uno", x, x), e.literal(1 << (BITS[kind(to)] - 1), kind(to)), result)
    return result


def _integer_to_float(e: Emitter, flags: frozenset[str], to: str, from_: str, a: Value) -> Value:
    mode, name = rounding(flags), "sitofp" if from_[0] == "s" else "uitofp"
    if mode == "rn" and to in ("f32", "f64"):
        result = e.cast(name, a, kind(to))
    elif a.bits <= 32:
        result = _narrowed(e, e.cast(name, a, "double"), to, mode)
    else:
        low = e.cast("uitofp", e.op("and", a, 0xFFFFFFFF), "double")
        high = e.cast(name, e.op("ashr" if from_[0] == "s" else "lshr", a, 32), "double")
        near, error = floats.two_sum(e, e.op("fmul", high, 2.0**32), low)
        odd = floats.direct(e, near, error, mode) if to == "f64" else floats.round_to_odd(e, near, error)
        result = _narrowed(e, odd, to, mode)
    return floats.saturate(e, result) if "sat" in flags else result


def _narrowed(e: Emitter, odd: Value, to: str, mode: str) -> Value:
    if to == "bf16":
        return floats.to_bf16(e, odd, mode)
    return odd if to == "f64" else floats.narrow(e, odd, kind(to), mode)


def _float_to_float(e: Emitter, flags: frozenset[str], to: str, from_: str, a: Value) -> Value:
    integral, mode, ftz = [_TO_INTEGER[f] for f in flags if f in _TO_INTEGER], rounding(flags), "ftz" in flags
    wider = BITS[kind(to)] >= BITS[kind(from_)]
    a = floats.up(e, a) if from_ == "bf16" else a
    a = floats.flush(e, a) if ftz and a.kind == "float" else a
    a = floats.rectify(e, a) if "relu" in flags else a
    if integral and wider:
        half = a.kind == "half"
        a = e.intrinsic(integral[0], floats.up(e, a))
        a = e.cast("fptrunc", a, "half") if half else a
    if to == "bf16":
        return floats.to_bf16(e, floats.up(e, a), mode)
    a = floats.up(e, a) if to != "f16" else a
    result = e.cast("fpext", a, kind(to)) if wider and not (from_ == "bf16" and to == "f16") else (
        floats.narrow(e, e.cast("fpext", a, "double"), kind(to), mode))  # fmt: skip
    result = floats.flush(e, result) if ftz and result.kind == "float" else result
    return floats.saturate(e, result) if "sat" in flags else result


def _pair(flags: frozenset[str], to: str, from_: str) -> Operation:
    """`cvt.rn.f16x2.f32 d, a, b`: a becomes the upper half."""
    refuse_if(from_ != "f32" or flags - {"rn", "rz", "relu"})

    def half(e: Emitter, a: Value) -> Value:
        a = floats.rectify(e, a) if "relu" in flags else a
        mode = rounding(flags)
        if to == "bf16x2":
            return floats.to_bf16(e, a, mode)
        return floats.narrow(e, e.cast("fpext", a, "double"), "half", mode)

    def emit(e: Emitter, a: Value, b: Value) -> Value:
        low, high = half(e, b), half(e, a)
        return floats.join(e, low, high)

    return Operation(emit, (to,), (from_, from_))


def _to_tf32(flags: frozenset[str]) -> Operation:
    """float32 with 10 mantissa bits: `.rna` rounds half away from zero, `.rn` to even, `.rz` truncates."""
    mode = flags - {"relu", "satfinite"}
    refuse_if(mode not in ({"rna"}, {"rn"}, {"rz"}))

    def emit(e: Emitter, a: Value) -> Value:
        bits = e.raw_bits(floats.rectify(e, a) if "relu" in flags else a)
        if mode == {"rna"}:
            biased = e.op("add", bits, 0x1000)
        elif mode == {"rn"}:
            biased = e.op("add", e.op("add", bits, 0xFFF), e.op("and", e.op("lshr", bits, 13), 1))
        else:
            biased = bits
        rounded = e.select(floats.finite(e, a), e.op("and", biased, ~0x1FFF), bits)
        if "satfinite" not in flags:
            return rounded
        over = e.compare("oeq", floats.fabs(e, e.as_kind(rounded, "float")), float("inf"))
        return e.select(over, e.op("sub", rounded, 0x2000), rounded)

    return Operation(emit, ("b32",), ("f32",))


def _from_fp8(flags: frozenset[str], to: str, from_: str) -> Operation:
    """A pair of codes as f16x2: e5m2 is the upper byte of an f16, e4m3 the same field at another bias."""
    refuse_if(to != "f16x2" or "rn" not in flags or flags - {"rn", "relu"})
    _, mantissa, bias, largest = _FP8[from_]
    last = largest if largest == 0x7E else largest + 1  # code that is no NaN: the largest number, or infinity

    def half(e: Emitter, code: Value) -> Value:
        size = e.op("and", code, 0x7F)
        field = e.as_kind(e.op("shl", size, 10 - mantissa), "half")
        moved = e.raw_bits(e.cast("fptrunc", e.op("fmul", floats.up(e, field), 2.0 ** (15 - bias)), "half"))
        nan, sign = e.compare("ugt", size, last), e.op("and", code, 0x80)
        bits = e.op("or", e.select(nan, 0x7E00, moved), e.op("shl", sign, 8))
        if "relu" not in flags:
            return bits
        return e.select(e.op("and", e.compare("ne", sign, 0), e.invert(nan)), 0, bits)

    return Operation(lambda e, a: floats.join(e, half(e, a), half(e, e.op("lshr", a, 8))), (to,), (from_,))


def _to_fp8(flags: frozenset[str], to: str, from_: str) -> Operation:
    """A pair of float32 or f16 to codes: to nearest even, beyond the range the largest finite number."""
    refuse_if(not {"rn", "satfinite"} <= flags or flags - {"rn", "satfinite", "relu"} or from_ not in ("f32", "f16x2"))

    def code(e: Emitter, x: Value) -> Value:
        x = floats.rectify(e, x) if "relu" in flags else x
        sign = e.op("and", e.op("lshr", e.raw_bits(x), 24), 0x80)
        return e.select(e.compare("uno", x, x), 0x7F, e.op("or", _fp8_code(e, floats.fabs(e, x), to), sign))

    def emit(e: Emitter, *values: Value) -> Value:
        if from_ == "f16x2":
            (low,), (high,) = floats.halves(e, "half", *values)
        else:
            high, low = values
        both = e.op("or", e.op("shl", code(e, floats.up(e, high)), 8), code(e, floats.up(e, low)))
        return e.resize(both, "i16", False)

    return Operation(emit, (to,), (from_, from_) if from_ == "f32" else (from_,))


def _fp8_code(e: Emitter, size: Value, to: str) -> Value:
    """The code (i32) of a float32 that is not negative: rounded by adding a number whose last place is the code's."""
    _, mantissa, bias, largest = _FP8[to]
    limit = ((1 << mantissa) + (largest & ((1 << mantissa) - 1))) * 2.0 ** ((largest >> mantissa) - bias - mantissa)
    size = e.select(e.compare("olt", size, limit), size, limit)
    exponent = e.intrinsic("umax", e.op("lshr", e.raw_bits(size), 23), e.literal(128 - bias, "i32"))
    large = e.as_kind(e.op("shl", e.op("add", exponent, 23 - mantissa), 23), "float")
    rounded = e.op("fsub", e.op("fadd", size, large), large)
    return e.op("lshr", e.raw_bits(e.op("fmul", rounded, 2.0 ** (bias - 127))), 23 - mantissa)


TABLE: dict[str, Builder] = {"cvt": _cvt}
