"""The lower layers of functional.jit.staged: lines of LLVM IR, and what is computed of numbers."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Sequence
from struct import pack
from typing import Any

import numpy as np

from functional.jit.marked import Known
from functional.jit.values import INT, REAL, SET, TRUTH, Word, llvm_type

BINARY: dict[type, tuple[str, Any]] = {
    ast.Add: ("add", operator.add), ast.Sub: ("sub", operator.sub), ast.Mult: ("mul", operator.mul),
    ast.LShift: ("shl", operator.lshift), ast.RShift: ("ashr", operator.rshift), ast.BitAnd: ("and", operator.and_),
    ast.BitOr: ("or", operator.or_), ast.BitXor: ("xor", operator.xor), ast.FloorDiv: ("sdiv", operator.floordiv),
    ast.Mod: ("srem", operator.mod), ast.Div: ("div", operator.truediv),
}  # fmt: skip
COMPARED: dict[type, tuple[str, Any]] = {
    ast.Eq: ("eq", operator.eq), ast.NotEq: ("ne", operator.ne), ast.Lt: ("lt", operator.lt),
    ast.LtE: ("le", operator.le), ast.Gt: ("gt", operator.gt), ast.GtE: ("ge", operator.ge),
}  # fmt: skip
_CASTS = {("i1", "i64"): "zext", ("i64", "double"): "sitofp", ("i1", "double"): "uitofp"}
# By kind of a Word that is a vector: (body, name, left, right) -> Word
OPERATORS: dict[str, Callable[..., Any]] = {}


class Module:
    """A module of LLVM IR: what is known when it is compiled, and what its functions declare."""

    def __init__(self, known: Known) -> None:
        self.known, self.texts, self.declarations = known, list[str](), set[str]()
        self._tags: dict[Any, int] = {}

    def tag(self, of: Any) -> str:
        """Metadata of loads and stores of what does not overlap with what has another tag."""
        number = 2 + 2 * self._tags.setdefault(of, len(self._tags))
        return f", !tbaa !{number + 1}"

    def text(self) -> str:
        """The module."""
        tags = ['!0 = !{!"memory"}', "!1 = !{}"]
        for number in range(2, 2 + 2 * len(self._tags), 2):
            tags += [f'!{number} = !{{!"t{number}", !0, i64 0}}', f"!{number + 1} = !{{!{number}, !{number}, i64 0}}"]
        return "\n".join([*sorted(self.declarations), *self.texts, *tags, ""])


class Lines:
    """The IR of one function while it is written."""

    def __init__(self, unit: Module, name: str) -> None:
        self.unit, self.name, self.count, self.open = unit, name, 0, True
        self.lines, self.rooms, self.used = list[str](), list[str](), set[str]()

    def new(self, text: str) -> str:
        """The name of what an instruction yields."""
        self.count += 1
        self.do(f"%v{self.count} = {text}")
        return f"%v{self.count}"

    def do(self, text: str) -> None:
        """An instruction that yields nothing."""
        self.lines.append(f"  {text}")

    def room(self, like: Any) -> str:
        """Memory for a value of a type."""
        self.count += 1
        self.rooms.append(f"  %r{self.count} = alloca {llvm_type(like)}")
        return f"%r{self.count}"

    def end(self, text: str, *labels: str) -> None:
        """The last line of a basic block."""
        if self.open:
            self.do(text)
            self.used.update(labels)
        self.open = False

    def jump(self, label: str) -> None:
        """Go to a label; ends a basic block."""
        self.end(f"br label %{label}", label)

    def label(self, name: str) -> None:
        """A basic block begins, if anybody goes there."""
        if self.open:
            self.jump(name)
        if name in self.used:
            self.lines.append(f"{name}:")
            self.open = True

    def labels(self, *kinds: str) -> list[str]:
        """New labels, one of each kind."""
        self.count += 1
        return [f"{kind}{self.count}" for kind in kinds]


class Arithmetic(Lines):
    """What is computed of numbers: by Python where all are known."""

    def converted(self, value: Any, like: Any) -> Any:
        """A value as one of a type."""
        if not isinstance(like, Word):
            if type(value) is not type(like) or value[1] != like[1]:
                raise TypeError(f"{self.name}: {value} in place of a {like}")
            return value
        if isinstance(value, float) and like.kind == REAL:
            return Word(f"0x{pack('>d', value).hex()}", REAL)
        if isinstance(value, (bool, int, np.integer, np.bool_)):
            return self.converted(float(value), like) if like.kind == REAL else Word(str(int(value)), like.kind)
        if isinstance(value, Word) and value.type == like.type:
            return value
        cast = _CASTS.get((value.type, like.type)) if isinstance(value, Word) else None
        if cast is None:
            raise TypeError(f"{self.name}: {value} in place of a {like}")
        return Word(self.new(f"{cast} {value.type} {value.name} to {like.type}"), like.kind)

    def number(self, value: Any) -> str:
        """As 64 bits."""
        return str(self.converted(value, Word("", INT)).name)

    def truth(self, value: Any) -> Any:
        """Is it true? What is known, or one bit."""
        if not isinstance(value, Word):
            return bool(value)
        return value if value.kind == TRUTH else Word(self.new(f"icmp ne i64 {value.name}, 0"), TRUTH)

    def inverted(self, value: Word) -> Word:
        """All its bits."""
        return Word(self.new(f"xor {value.type} {value.name}, -1"), value.kind)

    def binary(self, kind: ast.operator, a: Any, b: Any) -> Any:
        """What an operator makes of two values."""
        name, python = BINARY[type(kind)]
        if not isinstance(a, Word) and not isinstance(b, Word):
            return python(a, b)
        words = [v for v in (a, b) if isinstance(v, Word)]
        for word in words:
            if word.kind in OPERATORS:
                return OPERATORS[word.kind](self, name, a, b)
        if isinstance(kind, ast.Div) or self.is_real(a, b):
            left, right = (self.converted(v, Word("", REAL)).name for v in (a, b))
            return Word(self.new(f"f{name} double {left}, {right}"), REAL)
        if name in ("and", "or", "xor") and all(w.kind == TRUTH for w in words) and len(words) == 2:
            return Word(self.new(f"{name} i1 {a.name}, {b.name}"), TRUTH)
        both = SET if any(w.kind == SET for w in words) else INT
        if both == SET and name in ("ashr", "sdiv", "srem"):
            name = {"ashr": "lshr", "sdiv": "udiv", "srem": "urem"}[name]
        if name in ("sdiv", "srem"):
            return self.divided(name == "sdiv", a, b)
        return Word(self.new(f"{name} i64 {self.number(a)}, {self.number(b)}"), both)

    def everywhere(self, vector: str, number: str) -> str:
        """A vector, of LLVM's type, of one number."""
        lanes, kind = vector.strip("<>").split(" x ")
        first = self.new(f"insertelement {vector} poison, {kind} {number}, i32 0")
        return self.new(f"shufflevector {vector} {first}, {vector} poison, <{lanes} x i32> zeroinitializer")

    def is_real(self, *values: Any) -> bool:
        """Is one of them no whole number?"""
        return any(isinstance(v, float) or (isinstance(v, Word) and v.kind == REAL) for v in values)

    def divided(self, quotient: bool, a: Any, b: Any) -> Word:
        """Towards less, as Python divides."""
        if isinstance(b, int) and b > 0 and b & (b - 1) == 0:
            does, by = ("ashr", b.bit_length() - 1) if quotient else ("and", b - 1)
            return Word(self.new(f"{does} i64 {self.number(a)}, {by}"), INT)
        a, b = self.number(a), self.number(b)
        rest = self.new(f"srem i64 {a}, {b}")
        apart = self.new(f"icmp slt i64 {self.new(f'xor i64 {rest}, {b}')}, 0")
        less = self.new(f"and i1 {self.new(f'icmp ne i64 {rest}, 0')}, {apart}")
        if not quotient:
            return Word(self.new(f"select i1 {less}, i64 {self.new(f'add i64 {rest}, {b}')}, i64 {rest}"), INT)
        whole = self.new(f"sdiv i64 {a}, {b}")
        return Word(self.new(f"sub i64 {whole}, {self.new(f'zext i1 {less} to i64')}"), INT)

    def compared(self, left: Any, kinds: Sequence[ast.cmpop], rights: Sequence[Any]) -> Any:
        """`a < b <= c`, and `a in (b, c)`."""
        found: Any = True
        for kind, right in zip(kinds, rights, strict=True):
            if isinstance(kind, (ast.In, ast.NotIn)):
                one: Any = False
                for each in right:
                    one = self.joined("or", one, self.compared(left, [ast.Eq()], [each]))
                if isinstance(kind, ast.NotIn):
                    one = self.inverted(one) if isinstance(one, Word) else not one
            else:
                one = self.comparison(kind, left, right)
            found, left = self.joined("and", found, one), right
        return found

    def joined(self, name: str, a: Any, b: Any) -> Any:
        """Of two truth values."""
        for one, other in ((a, b), (b, a)):
            if not isinstance(one, Word):
                return other if one == (name == "and") else one
        return Word(self.new(f"{name} i1 {a.name}, {b.name}"), TRUTH)

    def comparison(self, kind: ast.cmpop, a: Any, b: Any) -> Any:
        """What one comparison says."""
        name, python = COMPARED[type(kind)]
        words = [v for v in (a, b) if isinstance(v, Word)]
        if not words:
            return python(a, b)
        if self.is_real(a, b):
            left, right = (self.converted(v, Word("", REAL)).name for v in (a, b))
            return Word(self.new(f"fcmp {'u' if name == 'ne' else 'o'}{name} double {left}, {right}"), TRUTH)
        if name not in ("eq", "ne"):
            name = ("u" if any(w.kind == SET for w in words) else "s") + name
        return Word(self.new(f"icmp {name} i64 {self.number(a)}, {self.number(b)}"), TRUTH)

    def extreme(self, function: Any, given: Sequence[Any]) -> Any:
        """The least or the greatest."""
        known = [v for v in given if not isinstance(v, Word)]
        words = [v for v in given if isinstance(v, Word)]
        if not words:
            return function(known)
        like = Word("", REAL if self.is_real(*given) else INT)
        kind, name = like.type, f"llvm.s{function.__name__}.i64"
        if like.kind == REAL:
            name = f"llvm.{function.__name__}num.f64"
        self.unit.declarations.add(f"declare {kind} @{name}({kind}, {kind})")
        first, *others = [self.converted(v, like).name for v in [*words, *([function(known)] if known else [])]]
        for other in others:
            first = self.new(f"call {kind} @{name}({kind} {first}, {kind} {other})")
        return Word(first, like.kind)
