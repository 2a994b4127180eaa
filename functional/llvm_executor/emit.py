"""LLVM IR as text: values that are scalars (equal in all lanes of a warp) or vectors of 32 lanes."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

from functional.isa.emitter import BITS, FLOATING, LANES, Emitter, Value, vector
from functional.isa.floats import fused_or_doubtful
from functional.jit.native import ROUTINES, Type
from functional.llvm_executor.context_layout import SHUFFLE

ATTRIBUTES = 'attributes #0 = { nounwind "prefer-vector-width"="512" "min-legal-vector-width"="512" }'


def constants(numbers: Iterable[int], kind: str) -> Value:
    """A number of each lane."""
    bits = BITS[kind]
    signed = [n - (1 << bits) if n >> (bits - 1) == 1 else n for n in numbers]
    return Value("<" + ", ".join(f"{kind} {n}" for n in signed) + ">", kind, True, True)


class LlvmEmitter(Emitter):
    """Appends instructions to one function."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.declarations: dict[str, str] = {}  # function -> its declaration
        self.functions: dict[str, str] = {}  # function -> its definition
        self.mask = Value("", "i32", False)  # active lanes of the basic block
        self.doubtful: Value | None = None  # lanes in which the running instruction is left to its step
        self._count = 0
        self._splats: dict[str, Value] = {}

    def name(self) -> str:
        """A new name."""
        self._count += 1
        return f"%v{self._count}"

    def label(self, text: str) -> None:
        """Begin a block of the function; splats made in others may not dominate it."""
        self.lines.append(f"{text}:")
        self._splats.clear()

    def raw(self, text: str) -> None:
        """Append a line as it is."""
        self.lines.append("  " + text)

    def let(self, text: str, kind: str, wide: bool) -> Value:
        """A new value from the right-hand side `text`."""
        name = self.name()
        self.lines.append(f"  {name} = {text}")
        return Value(name, kind, wide)

    def scalar(self, text: str, kind: str) -> str:
        """A new scalar; yields its name."""
        return self.let(text, kind, False).name

    def literal(self, number: int, kind: str) -> Value:
        bits = BITS[kind]
        number &= (1 << bits) - 1
        if kind == "i1":
            return Value("true" if number else "false", kind, False, True)
        return Value(str(number - (1 << bits) if number >> (bits - 1) else number), kind, False, True)

    def floating(self, value: float, kind: str) -> Value:
        code = {"half": "e", "float": "f", "double": "d"}[kind]
        rounded = struct.unpack("<" + code, struct.pack("<" + code, value))[0]
        if kind == "half":
            return Value(f"0xH{struct.unpack('<H', struct.pack('<e', value))[0]:04X}", kind, False, True)
        return Value(f"0x{struct.unpack('<Q', struct.pack('<d', rounded))[0]:016X}", kind, False, True)

    def widen(self, v: Value) -> Value:
        """The value in all lanes."""
        if v.wide:
            return v
        if v.literal:
            return Value(f"splat ({v.kind} {v.name})", v.kind, True, True)
        if v.name not in self._splats:
            one = self.let(f"insertelement {vector(v.kind)} poison, {v.kind} {v.name}, i32 0", v.kind, True)
            text = f"shufflevector {one}, {vector(v.kind)} poison, <{LANES} x i32> zeroinitializer"
            self._splats[v.name] = self.let(text, v.kind, True)
        return self._splats[v.name]

    def level(self, *values: Value) -> tuple[Value, ...]:
        """All wide, or all scalar."""
        return tuple(self.widen(v) for v in values) if any(v.wide for v in values) else values

    def op(self, name: str, a: Value, b: Value | int | float) -> Value:
        a, b = self.level(a, self.const(b, a.kind))
        return self.let(f"{name} {a}, {b.name}", a.kind, a.wide)

    def compare(self, predicate: str, a: Value, b: Value | int | float) -> Value:
        a, b = self.level(a, self.const(b, a.kind))
        return self.let(f"{'fcmp' if a.kind in FLOATING else 'icmp'} {predicate} {a}, {b.name}", "i1", a.wide)

    def select(self, p: Value, a: Value | int | float, b: Value | int | float, kind: str = "") -> Value:
        kind = next((v.kind for v in (a, b) if isinstance(v, Value)), kind)
        p, a, b = self.level(p, self.const(a, kind), self.const(b, kind))
        return self.let(f"select {p}, {a}, {b}", kind, a.wide)

    def cast(self, name: str, v: Value, kind: str) -> Value:
        if v.kind == kind:
            return v
        return self.let(f"{name} {v} to {vector(kind) if v.wide else kind}", kind, v.wide)

    def intrinsic(self, name: str, *values: Value, extra: str = "", returns: str = "") -> Value:
        """`@llvm.name` overloaded on its operands' type; `extra` are literal operands behind."""
        values = self.level(*values)
        first = values[0]
        kind = returns or first.kind
        overloads = [Type(k, LANES if first.wide else 1).suffix for k in (returns, first.kind) if k]
        types = [v.type for v in values] + [part.split()[0] for part in extra.split(", ") if part]
        full = f"@llvm.{name}.{'.'.join(overloads)}"
        result = vector(kind) if first.wide else kind
        self.declarations[full] = f"declare {result} {full}({', '.join(types)})"
        operands = [str(v) for v in values] + ([extra] if extra else [])
        return self.let(f"call {result} {full}({', '.join(operands)})", kind, first.wide)

    def library(self, name: str, x: Value) -> Value:
        if not x.wide:
            wide = self.library(name, self.widen(x))
            return self.let(f"extractelement {wide}, i32 0", "double", False)
        return self.call(name, x)

    def lane_numbers(self) -> Value:
        return constants(range(LANES), "i32")

    def active(self) -> Value:
        return self.mask

    def ballot(self, p: Value) -> Value:
        return self.bits_of(p)

    def permute(self, v: Value, lanes: Value) -> Value:
        words, pointers = vector(v.kind), vector("ptr")
        self.store("%frame", SHUFFLE, self.widen(v), align=4)
        base = self.field("%frame", SHUFFLE)
        at = self.scalar(f"getelementptr i32, ptr {base}, {self.widen(lanes)}", "ptr")
        name = "@llvm.masked.gather.v32i32.v32p0"
        self.declarations[name] = f"declare {words} {name}({pointers}, {vector('i1')}, {words})"
        given = f"{pointers} align 4 {at}, {vector('i1')} splat (i1 true), {words} zeroinitializer"
        return self.let(f"call {words} {name}({given})", v.kind, True)

    def alike(self, v: Value) -> Value:
        return self.call(f"match_{v.bits}", v, self.mask)

    def reduced(self, name: str, v: Value, members: Value, neutral: int) -> Value:
        if members.wide:
            return self.call(f"redux_{name}", v, members, self.mask, neutral)
        chosen = self.widen(self.select(self.lanes_of(members), v, neutral))
        function = f"@llvm.vector.reduce.{name}.v32i32"
        self.declarations[function] = f"declare i32 {function}({chosen.type})"
        return self.let(f"call i32 {function}({chosen})", "i32", False)

    def directed_fma(self, a: Value, b: Value, c: Value, mode: str) -> Value:
        value, self.doubtful = fused_or_doubtful(self, a, b, c, mode)
        return value

    def call(self, name: str, *given: Value | str | int) -> Value:
        """Call a routine of the run time; pointers by their names, context and frame are those of the kernel."""
        one, left, arguments = ROUTINES[name], list(given), list[str]()
        for parameter in one.parameters:
            value: Value | str | int = f"%{parameter.name}" if parameter.name in ("ctx", "frame") else left.pop(0)
            if not isinstance(value, str):
                kind: Any = parameter.kind
                value = self.const(value, kind.element)
                value = (self.widen(value) if kind.lanes > 1 else value).name
            arguments.append(f"{parameter.type} {value}")
        assert not left, name
        result = Value("", "void", False) if one.result is None else Value("", one.result.element, one.result.lanes > 1)
        types = ", ".join(p.type for p in one.parameters)
        self.declarations[f"@{name}"] = f"declare {result.type} @{name}({types}) #0"
        text = f"call {result.type} @{name}({', '.join(arguments)})"
        if one.result is not None:
            return self.let(text, result.kind, result.wide)
        self.raw(text)
        return result

    def field(self, base: str, offset: int) -> str:
        """The address `base` + `offset` bytes."""
        return self.scalar(f"getelementptr i8, ptr {base}, i64 {offset}", "ptr") if offset else base

    def load(self, base: str, offset: int, kind: str, wide: bool = False, align: int = 4) -> Value:
        """The value at a byte offset from a pointer."""
        type_ = vector(kind) if wide else kind
        return self.let(f"load {type_}, ptr {self.field(base, offset)}, align {align}", kind, wide)

    def store(self, base: str, offset: int, v: Value, align: int = 4) -> None:
        """Write a value at a byte offset from a pointer."""
        self.raw(f"store {v}, ptr {self.field(base, offset)}, align {align}")

    def bits_of(self, p: Value) -> Value:
        """A predicate as a lane mask."""
        return self.let(f"{'bitcast' if p.wide else 'sext'} {p} to i32", "i32", False)

    def lanes_of(self, mask: Value) -> Value:
        """A lane mask as a predicate vector."""
        return self.let(f"bitcast {mask} to {vector('i1')}", "i1", True)
