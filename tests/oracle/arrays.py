"""The meaning of an instruction as a function over NumPy arrays: an emitter that writes Python, and its compilation.

Integers are arrays of unsigned numbers, seen as signed ones where an operation has a sign. Arrays broadcast to
[warp, 32].
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from inspect import signature

import numpy as np

from functional.isa.emitter import FLOATING, Emitter, Value
from functional.isa.floats import direct, fused, sum_to_odd
from functional.isa.operation import Operation, kind_of
from functional.steps.stack import pack

F32, F64, U32, U64 = np.float32, np.float64, np.uint32, np.uint64
_LANES = np.arange(32, dtype=U32)
_HUGE, _TINY = F64(2.0**970), F64(2.0**-960)  # outside, splitting over- or underflows


@cache
def _of_doubles(emit: Callable, mode: str = "") -> Callable:
    """A function of the tables of arithmetic, as one of arrays of float64."""
    count = len(signature(emit).parameters) - 1 - bool(mode)
    more = (mode,) if mode else ()
    return function_of(Operation(lambda e, *values: emit(e, *values, *more), ("f64",), ("f64",) * count))


def fma32(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Correctly rounded a * b + c in float32.

    The product is exact in float64; rounding the float64 sum again to float32 is wrong only where that sum lies
    half-way between two float32, or where the result is subnormal: those lanes are done again via round-to-odd.
    """
    s = np.multiply(a, b, dtype=F64) + c
    r = s.astype(F32)
    doubtful = (s.view(U64) & U64(0x1FFFFFFF)) == U64(0x10000000)
    doubtful |= (r.view(U32) & U32(0x7F800000)) == 0
    if doubtful.any():
        doubtful &= s != 0
        where = np.nonzero(doubtful)
        if where[0].size:
            x, y, z = (np.broadcast_to(v, s.shape)[where].astype(F64) for v in (a, b, c))
            r[where] = _of_doubles(sum_to_odd)(x * y, z).astype(F32)
    return r


def fma64(a: np.ndarray, b: np.ndarray, c: np.ndarray, mode: str = "rn") -> np.ndarray:
    """a * b + c in float64, rounded once by `mode`."""
    a, b, c = np.broadcast_arrays(a, b, c)
    r = _of_doubles(fused, mode)(a, b, c)
    p = a * b
    size = np.abs(p)  # what follows says where neither splitting nor the sums can over- or underflow
    product = ((size < _HUGE) & (size > _TINY)) | (((a == 0) | (b == 0)) & np.isfinite(p) & (c != 0))
    extreme = np.nonzero(~(product & (np.abs(a) < _HUGE) & (np.abs(b) < _HUGE) & (np.abs(c) < _HUGE)))
    if extreme[0].size:
        r[extreme] = [_fma_exact(*v, mode) for v in zip(a[extreme], b[extreme], c[extreme], strict=True)]
    return r


def _fma_exact(a: float, b: float, c: float, mode: str) -> float:
    plain = float(a) * float(b) + float(c)
    if not np.isfinite([a, b, c]).all():
        return plain
    exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    if exact == 0:
        return plain
    try:
        r = float(exact)  # int / int in Python rounds correctly, subnormals included
    except OverflowError:
        r = np.inf if exact > 0 else -np.inf
    e = -np.sign(r) if np.isinf(r) else float((exact > Fraction(r)) - (exact < Fraction(r)))
    return float(_of_doubles(direct, mode)(*np.array([r, e], F64).reshape(2, 1, 1))[0, 0])


_SYMBOLS = {
    **{"add": "+", "sub": "-", "mul": "*", "udiv": "//", "and": "&", "or": "|", "xor": "^", "shl": "<<", "lshr": ">>"},
    **{"fadd": "+", "fsub": "-", "fmul": "*", "fdiv": "/", "eq": "==", "ne": "!=", "oeq": "==", "une": "!="},
    **{order + name: symbol for order in "uso" for name, symbol in
       {"lt": "<", "le": "<=", "gt": ">", "ge": ">="}.items()},
}  # fmt: skip
_UNORDERED = {"ult": "~({0} >= {1})", "ule": "~({0} > {1})", "ugt": "~({0} <= {1})", "uge": "~({0} < {1})",
              "one": "({0} < {1}) | ({0} > {1})", "ueq": "~(({0} < {1}) | ({0} > {1}))",
              "ord": "({0} == {0}) & ({1} == {1})", "uno": "({0} != {0}) | ({1} != {1})"}  # fmt: skip
# U and S: the type of the result, or of the first operand where that is another one, without and with a sign
_INTRINSICS = {
    "fabs": "abs({0})", "copysign": "copysign({0}, {1})", "sqrt": "sqrt({0})", "rint": "rint({0})",
    "trunc": "trunc({0})", "floor": "floor({0})", "ceil": "ceil({0})", "umin": "minimum({0}, {1})",
    "umax": "maximum({0}, {1})", "smin": "minimum({0}.view(S), {1}.view(S)).view(U)",
    "smax": "maximum({0}.view(S), {1}.view(S)).view(U)", "abs": "abs({0}.view(S)).view(U)",
    "ctpop": "bitwise_count({0}).astype(U)", "ctlz": "leading_zeros({0})", "bitreverse": "reversed_bits({0})",
    "sadd.sat": "clamped({0}.view(S).astype(i8) + {1}.view(S), S).view(U)",
    "ssub.sat": "clamped({0}.view(S).astype(i8) - {1}.view(S), S).view(U)",
    "fptosi.sat": "integers({0}, S).view(U)", "fptoui.sat": "integers({0}, U)",
}  # fmt: skip
_DTYPES = {"i1": "b1", "half": "f2", "float": "f4", "double": "f8"}
_MANTISSA = {"half": "e", "float": "f", "double": "d"}


def _dtype(kind: str, signed: bool = False) -> str:
    return _DTYPES.get(kind) or f"{'i' if signed else 'u'}{int(kind[1:]) // 8}"


def _leading_zeros(a: np.ndarray) -> np.ndarray:
    half = a.dtype.itemsize * 4
    high = (a >> a.dtype.type(half)).astype(np.float64)  # halves convert exactly
    low = (a & a.dtype.type((1 << half) - 1)).astype(np.float64)
    bits = np.where(high > 0, np.frexp(high)[1] + half, np.frexp(low)[1])
    return (2 * half - bits).astype(a.dtype)


_REVERSED = np.array([int(f"{i:08b}"[::-1], 2) for i in range(256)], np.uint8)


def _reversed_bits(a: np.ndarray) -> np.ndarray:
    data = np.ascontiguousarray(a).view(np.uint8).reshape(*a.shape, a.dtype.itemsize)
    return np.ascontiguousarray(_REVERSED[data][..., ::-1]).view(a.dtype)[..., 0]


def _integers(x: np.ndarray, dtype: str) -> np.ndarray:
    """Integral floats as integers of a type, clamped to its range; NaN gives 0."""
    info, x = np.iinfo(dtype), x.astype(np.float64)
    inside = (x < np.float64(2.0 ** (info.bits - (info.min < 0)))) & (x >= np.float64(info.min))
    value = np.where(inside, x, 0).astype(dtype)
    beyond = np.where(x > 0, value.dtype.type(info.max), value.dtype.type(info.min))
    return np.where(inside | np.isnan(x), value, beyond)


def _high_unsigned(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Upper half of the product of uint64."""
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    a_hi, a_lo, b_hi, b_lo = a >> half, a & low, b >> half, b & low
    middle_a, middle_b = a_lo * b_hi, a_hi * b_lo
    carry = ((a_lo * b_lo) >> half) + (middle_a & low) + (middle_b & low)
    return a_hi * b_hi + (middle_a >> half) + (middle_b >> half) + (carry >> half)


_UFUNCS = {"add": np.add, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "min": np.minimum,
           "max": np.maximum}  # fmt: skip


def _reduced(a: np.ndarray, members: np.ndarray, neutral: np.ndarray, name: str) -> np.ndarray:
    """Over the members [row, 1 or lane] of each lane; [row, 1 or lane]."""
    chosen = np.where((members[..., None] >> _LANES & U32(1)) != 0, a[:, None, :], neutral[..., None])
    return _UFUNCS[name].reduce(chosen, axis=2, dtype=a.dtype)


_NAMES: dict[str, object] = {
    **{name: np.dtype(name) for name in ["b1", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8"]},
    **{name: getattr(np, name) for name in (
        "abs", "copysign", "sqrt", "rint", "trunc", "floor", "ceil", "minimum", "maximum", "bitwise_count", "where",
        "copy", "sin", "cos", "log2", "exp2", "tanh", "multiply")},
    "leading_zeros": _leading_zeros, "reversed_bits": _reversed_bits, "integers": _integers,
    "high_unsigned": _high_unsigned, "fma32": fma32, "fma64": fma64,
    "pack": pack, "reduced": _reduced, "lane_numbers": _LANES[None],
    "clamped": lambda x, dtype: np.clip(x, np.iinfo(dtype).min, np.iinfo(dtype).max).astype(dtype),
    "permuted": lambda a, lanes: np.take_along_axis(a, lanes.astype(np.intp), axis=1),
    # Of each lane those that hold the same, as bits [row, lane]
    "alike": lambda a: np.packbits(a[:, :, None] == a[:, None, :], axis=2, bitorder="little").view(U32)[..., 0],
}  # fmt: skip


class ArrayEmitter(Emitter):
    """Writes the body of one function, a statement an operation."""

    def __init__(self, kinds: tuple[str, ...]) -> None:
        self.lines: list[str] = []
        self.arguments = tuple(Value(f"a{i}", kind, True) for i, kind in enumerate(kinds))
        self._borrowed = {v.name for v in self.arguments}  # names of what others may hold, views of it too

    def _let(self, text: str, kind: str) -> Value:
        name = f"v{len(self.lines)}"
        self.lines.append(f"{name} = {text}")
        return Value(name, kind, True)

    def _view(self, v: Value, kind: str) -> Value:
        seen = self._let(f"{v.name}.view({_dtype(kind)})", kind)
        if v.name in self._borrowed:
            self._borrowed.add(seen.name)
        return seen

    def _constant(self, name: str, number: object, kind: str) -> Value:
        if name not in _NAMES:
            _NAMES[name] = np.full((1, 1), number, _dtype(kind))
        self._borrowed.add(name)
        return Value(name, kind, False, True)

    def literal(self, number: int, kind: str) -> Value:
        number &= 1 if kind == "i1" else (1 << int(kind[1:])) - 1
        return self._constant(f"c_{kind}_{number}", number, kind)

    def floating(self, value: float, kind: str) -> Value:
        bits = struct.pack("<" + _MANTISSA[kind], value).hex()
        return self._constant(f"c_{kind}_{bits}", value, kind)

    def op(self, name: str, a: Value, b: Value | int | float) -> Value:
        b = self.const(b, a.kind)
        if name == "ashr":
            signed = _dtype(a.kind, True)
            text = f"({a.name}.view({signed}) >> {b.name}.view({signed})).view({_dtype(a.kind)})"
            return self._let(text, a.kind)
        return self._let(f"{a.name} {_SYMBOLS[name]} {b.name}", a.kind)

    def compare(self, predicate: str, a: Value, b: Value | int | float) -> Value:
        b = self.const(b, a.kind)
        if predicate in _UNORDERED and a.kind in FLOATING:
            return self._let(_UNORDERED[predicate].format(a.name, b.name), "i1")
        view = f".view({_dtype(a.kind, True)})" if predicate[0] == "s" else ""
        return self._let(f"{a.name}{view} {_SYMBOLS[predicate]} {b.name}{view}", "i1")

    def select(self, p: Value, a: Value | int | float, b: Value | int | float, kind: str = "") -> Value:
        kind = next((v.kind for v in (a, b) if isinstance(v, Value)), kind)
        return self._let(f"where({p.name}, {self.const(a, kind).name}, {self.const(b, kind).name})", kind)

    def cast(self, name: str, v: Value, kind: str) -> Value:
        if v.kind == kind:
            return v
        if name == "bitcast":
            return self._view(v, kind)
        if name == "sext" and v.kind == "i1":
            return self.select(v, -1, 0, kind)
        of = f"{v.name}.view({_dtype(v.kind, True)})" if name in ("sext", "sitofp") else v.name
        text = f"{of}.astype({_dtype(kind, name in ('sext', 'fptosi'))})"
        return self._let(text + (f".view({_dtype(kind)})" if name in ("sext", "fptosi") else ""), kind)

    def intrinsic(self, name: str, *values: Value, extra: str = "", returns: str = "") -> Value:
        kind = returns or values[0].kind
        if name == "fma":
            text = f"fma{values[0].bits}({', '.join(v.name for v in values)})"
        else:
            text = _INTRINSICS[name].format(*(v.name for v in values))
            text = text.replace("S)", f"{_dtype(kind, True)})").replace("U)", f"{_dtype(kind)})")
        return self._let(text, kind)

    def library(self, name: str, x: Value) -> Value:
        return self._let(f"{name.removeprefix('math_')}({x.name})", "double")

    def high_product(self, a: Value, b: Value, signed: bool) -> Value:
        if a.bits == 64:
            high = self._let(f"high_unsigned({a.name}, {b.name})", a.kind)
            for x, y in ((a, b), (b, a)) if signed else ():  # two's complement correction of the unsigned product
                high = self.op("sub", high, self.select(self.compare("slt", x, 0), y, 0))
            return high
        return super().high_product(a, b, signed)

    def _of_frame(self, text: str) -> Value:
        found = self._let(text, "i32")
        self._borrowed.add(found.name)
        return found

    def lane_numbers(self) -> Value:
        return self._of_frame("lane_numbers")

    def active(self) -> Value:
        return self._of_frame("frame.bits[:, None]")

    def ballot(self, p: Value) -> Value:
        return self._let(f"pack({p.name}, frame.count)[:, None]", "i32")

    def permute(self, v: Value, lanes: Value) -> Value:
        return self._let(f"permuted(frame.full({v.name}), frame.full({lanes.name}))", v.kind)

    def alike(self, v: Value) -> Value:
        return self._let(f"alike(frame.full({v.name}))", "i32")

    def reduced(self, name: str, v: Value, members: Value, neutral: int) -> Value:
        view, start = _dtype(v.kind, name[0] == "s"), self.literal(neutral, v.kind).name
        given = f"frame.full({v.name}).view({view}), {members.name}, {start}.view({view}), {name.lstrip('su')!r}"
        return self._let(f"reduced({given}).view({_dtype(v.kind)})", v.kind)

    def directed_fma(self, a: Value, b: Value, c: Value, mode: str) -> Value:
        return self._let(f"fma64({a.name}, {b.name}, {c.name}, '{mode}')", a.kind)

    def result(self, value: Value) -> str:
        """The name of a result, or of a copy of it: results are new arrays, never views of a source."""
        return f"copy({value.name})" if value.name in self._borrowed else value.name


def function_of(operation: Operation) -> Callable:
    """The operation as a function of arrays, of the kinds of its sources, behind the frame where lanes look at each
    other; it yields one array, or a tuple."""
    e = ArrayEmitter(tuple(kind_of(type_) for type_ in operation.sources))
    results = operation.emit(e, *e.arguments)
    results = results if isinstance(results, tuple) else (results,)
    returned = ", ".join(e.result(r) for r in results)
    head = f"def function({', '.join([*['frame'] * operation.across, *(v.name for v in e.arguments)])}):"
    return _compiled("\n    ".join([head, *e.lines, f"return {returned}"]))


@cache
def _compiled(text: str) -> Callable:
    found: dict[str, Callable] = {}
    exec(text, _NAMES, found)
    return found["function"]
