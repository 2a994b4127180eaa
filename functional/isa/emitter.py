"""Values, and an emitter of operations on them: the language in which the meaning of an instruction is written.

Kinds and operations have LLVM's names; integers have no sign, operations do. An emitter of LLVM IR and one of NumPy
code make the two executors."""

from dataclasses import dataclass
from typing import Protocol

LANES = 32
BITS = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "i128": 128, "half": 16, "float": 32, "double": 64}
FLOATING = {"half", "float", "double"}


@dataclass(frozen=True, slots=True)
class Value:
    """A named value or a literal. `kind` is the type of a lane; not `wide`: equal in all lanes of a warp."""

    name: str
    kind: str
    wide: bool
    literal: bool = False

    @property
    def type(self) -> str:
        """The type as LLVM spells it."""
        return vector(self.kind) if self.wide else self.kind

    @property
    def bits(self) -> int:
        """Bits of a lane."""
        return BITS[self.kind]

    def __str__(self) -> str:
        return f"{self.type} {self.name}"


def vector(kind: str) -> str:
    """`<32 x kind>`."""
    return f"<{LANES} x {kind}>"


class Emitter(Protocol):
    """Appends operations to one function. A Python number among operands is a literal of the other operand's kind."""

    def literal(self, number: int, kind: str) -> Value:
        """A literal of an integer kind."""

    def floating(self, value: float, kind: str) -> Value:
        """A literal of a floating kind."""

    def op(self, name: str, a: Value, b: Value | int | float) -> Value:
        """A binary instruction: `add`, `lshr`, `fmul`, ..."""

    def compare(self, predicate: str, a: Value, b: Value | int | float) -> Value:
        """`icmp` or `fcmp`, by the kind."""

    def select(self, p: Value, a: Value | int | float, b: Value | int | float, kind: str = "") -> Value:
        """`a` where `p` holds, else `b`; `kind` is needed if both are numbers."""

    def cast(self, name: str, v: Value, kind: str) -> Value:
        """A conversion instruction, left out where the kind is the same."""

    def intrinsic(self, name: str, *values: Value, extra: str = "", returns: str = "") -> Value:
        """One of LLVM's intrinsics: `umin`, `ctpop`, `fma`, ...; `extra` are literal operands behind."""

    def library(self, name: str, x: Value) -> Value:
        """A function of the C library on float64: `math_sin`, `math_exp2`, ..."""

    def high_product(self, a: Value, b: Value, signed: bool) -> Value:
        """Upper half of the double-width product."""
        kind = f"i{2 * a.bits}"
        full = self.op("mul", self.resize(a, kind, signed), self.resize(b, kind, signed))
        return self.cast("trunc", self.op("lshr", full, a.bits), a.kind)

    def directed_fma(self, a: Value, b: Value, c: Value, mode: str) -> Value:
        """a * b + c of float64 rounded once by `rz`, `rm` or `rp`."""

    def lane_numbers(self) -> Value:
        """0 to 31, one a lane."""

    def active(self) -> Value:
        """The active lanes of a warp, as bits."""

    def ballot(self, p: Value) -> Value:
        """Lanes in which a predicate holds, active or not, as bits."""

    def permute(self, v: Value, lanes: Value) -> Value:
        """What a lane, named by its number, holds of an i32."""

    def alike(self, v: Value) -> Value:
        """Of each active lane those that hold the same, as bits."""

    def reduced(self, name: str, v: Value, members: Value, neutral: int) -> Value:
        """`add`, `smin`, ... of the i32 that the members hold, of which there may be none."""

    def const(self, v: Value | int | float, kind: str) -> Value:
        """A value as it is, a Python number as a literal of `kind`."""
        if isinstance(v, Value):
            return v
        return self.floating(v, kind) if kind in FLOATING else self.literal(int(v), kind)

    def raw_bits(self, v: Value) -> Value:
        """The same bits as an integer."""
        return self.cast("bitcast", v, f"i{v.bits}")

    def as_kind(self, v: Value, kind: str) -> Value:
        """The same bits as another kind of the same width."""
        return self.cast("bitcast", v, kind)

    def resize(self, v: Value, kind: str, signed: bool) -> Value:
        """Truncate or extend an integer."""
        if BITS[kind] == v.bits:
            return v
        return self.cast("trunc" if BITS[kind] < v.bits else "sext" if signed else "zext", v, kind)

    def invert(self, v: Value) -> Value:
        """All bits the other way."""
        return self.op("xor", v, self.literal(-1, v.kind))
