"""LLVM IR of marked functions (functional.jit.marked), for what is known when they are compiled.

Expressions are Python's where all they are made of is known, and values of LLVM where not: a branch that is known not
to be taken is not compiled, nor what it alone calls. A function is compiled once for each combination of the types of
its arguments, and of those arguments that are known.

Numbers are int64, uint64 (sets), float64, or truth values. A record is known by its address. A tuple is known by the
address of words (`words_of`): of each array its address and its shape. No index is negative.
"""

from __future__ import annotations

import ast
import builtins
import operator
import platform
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from inspect import getsource
from struct import pack
from typing import Any, NamedTuple

import numpy as np

from functional.jit.marked import INT, OPERATORS, WORD_BYTES, Array, Known, Marked, Operation, layout, length

SET, TRUTH, REAL = "set", "truth", "real"
_TYPES = {INT: "i64", SET: "i64", TRUTH: "i1", REAL: "double"}
_BINARY: dict[type, tuple[str, Any]] = {
    ast.Add: ("add", operator.add), ast.Sub: ("sub", operator.sub), ast.Mult: ("mul", operator.mul),
    ast.LShift: ("shl", operator.lshift), ast.RShift: ("ashr", operator.rshift), ast.BitAnd: ("and", operator.and_),
    ast.BitOr: ("or", operator.or_), ast.BitXor: ("xor", operator.xor), ast.FloorDiv: ("sdiv", operator.floordiv),
    ast.Mod: ("srem", operator.mod), ast.Div: ("div", operator.truediv),
}  # fmt: skip
_COMPARED: dict[type, tuple[str, Any]] = {
    ast.Eq: ("eq", operator.eq), ast.NotEq: ("ne", operator.ne), ast.Lt: ("lt", operator.lt),
    ast.LtE: ("le", operator.le), ast.Gt: ("gt", operator.gt), ast.GtE: ("ge", operator.ge),
}  # fmt: skip


_CASTS = {("i1", "i64"): "zext", ("i64", "double"): "sitofp", ("i1", "double"): "uitofp"}


class Word(NamedTuple):
    """A number, or a vector of them, whose kind is LLVM's type."""

    name: str
    kind: str

    @property
    def type(self) -> str:
        """LLVM's."""
        return _TYPES.get(self.kind, self.kind)


class Row(NamedTuple):
    """A record."""

    name: str
    dtype: np.dtype


class Rows(NamedTuple):
    """An array; `sizes` are numbers, or where their words lie; arrays of different `tag`s do not overlap. `stride`: of
    a field of records, their bytes."""

    name: str
    dtype: np.dtype
    sizes: tuple[Any, ...]
    tag: Any
    stride: int = 0


class Tuple(NamedTuple):
    """A named tuple, whose words lie at an address."""

    name: str
    kind: Any


VALUES = (Word, Row, Tuple)  # that LLVM knows as one value


@dataclass(frozen=True)
class At:
    """Where a word lies."""

    name: str


class _Made(NamedTuple):
    """A compiled function: what it is called, and what it returns: types of its results, or what is known of them."""

    name: str
    results: tuple[Any, ...]
    single: bool


class Unit:
    """A module of LLVM IR, which grows by what entries call."""

    def __init__(self, known: Known) -> None:
        self.known, self.texts, self._count = known, list[str](), 0
        self.declarations: set[str] = set()
        self._made: dict[Any, _Made] = {}
        self._tags: dict[Any, int] = {}

    def entry(self, function: Marked, kinds: Sequence[Any], name: str) -> None:
        """Compile a function that returns nothing: of named tuples (given by their classes), arrays, records, and whole
        numbers (INT)."""
        given: list[Any] = []
        for k, kind in enumerate(kinds):
            if isinstance(kind, Array):
                dtype, dimensions = np.dtype(kind.dtype), len(kind.dimensions.split())
                given.append(Rows("", dtype, (At(""),) * dimensions, f"argument {k}") if dimensions else Row("", dtype))
            else:
                given.append(Word("", INT) if kind == INT else Tuple("", kind))
        self.made(function, given, name)

    def made(self, function: Marked, given: Sequence[Any], name: str = "") -> _Made:
        """The function for arguments like these."""
        key = function.function, tuple(map(_kind, given))
        if key not in self._made:
            self._count += 1
            body = _Body(self, function, given, name or f"{function.__name__}.{self._count}")
            self._made[key] = _Made(body.name, *body.results())
            self.texts.append(body.text(bool(name)))
        return self._made[key]

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


def _kind(value: Any) -> Any:
    """What a function is compiled for: the type of an argument, or its value if it is known."""
    match value:
        case Word(_, kind):
            return kind
        case Row(_, dtype):
            return "row", dtype
        case Rows(_, dtype, sizes, tag, stride):
            return "rows", dtype, tag, stride, tuple(size if isinstance(size, int) else -1 for size in sizes)
        case Tuple(_, kind):
            return "tuple", kind
    return "known", type(value), value


@cache
def _source(function: Any) -> tuple[ast.FunctionDef, frozenset[str]]:
    """What is written, and the names that are assigned to more than once."""
    node = ast.parse(textwrap.dedent(getsource(function))).body[0]
    assert isinstance(node, ast.FunctionDef)
    names = [a.arg for a in node.args.args]
    for each in ast.walk(node):
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
            names.append(each.id)
        if isinstance(each, ast.For) and isinstance(each.target, ast.Name):
            names.append(each.target.id)
    return node, frozenset(name for name in names if names.count(name) > 1)


def _like(value: Any) -> Any:
    """A value of the type of another one."""
    if isinstance(value, (bool, np.bool_)):
        return Word("", TRUTH)
    if isinstance(value, (int, np.integer)):
        return Word("", INT)
    if isinstance(value, float):
        return Word("", REAL)
    if not isinstance(value, VALUES):
        raise TypeError(f"{value} cannot come from a branch")
    return value


class _Slots:
    """Room for one of several tuples of values, as they come from branches of a function."""

    def __init__(self, body: _Body) -> None:
        self._body, self.rooms, self.values = body, list[str](), list[tuple[Any, ...]]()

    def put(self, values: tuple[Any, ...]) -> None:
        """One of them."""
        if not self.values:
            self.rooms = [self._body.room(_like(v)) for v in values]
        self.values.append(values)
        for room, value, first in zip(self.rooms, values, self.values[0], strict=True):
            like = _like(first)
            self._body.do(f"store {_llvm(like)} {self._body.converted(value, like).name}, ptr {room}")

    def types(self) -> tuple[Any, ...]:
        """Of each place: what it always is, or a value without a name of its type."""
        found = []
        for column in zip(*self.values, strict=True):
            first, like = column[0], _like(column[0])
            if not isinstance(first, VALUES) and all(type(v) is type(first) and v == first for v in column):
                found.append(first)
            elif any(isinstance(v, Word) and v.kind == SET for v in column):
                found.append(Word("", SET))
            else:
                found.append(like._replace(name=""))
        return tuple(found)

    def take(self) -> tuple[Any, ...]:
        """What is there."""
        return tuple(
            like._replace(name=self._body.new(f"load {_llvm(like)}, ptr {room}"))
            if isinstance(like, VALUES) else like
            for room, like in zip(self.rooms, self.types(), strict=True)
        )  # fmt: skip


def _llvm(value: Any) -> str:
    return value.type if isinstance(value, Word) else "ptr"


class _Body:
    """The IR of one function while it is written."""

    def __init__(self, unit: Unit, function: Marked, given: Sequence[Any], name: str) -> None:
        self.unit, self.function, self.name = unit, function, name
        self.lines, self.rooms, self.count = list[str](), list[str](), 0
        self.open, self.used = True, set[str]()
        self.names: dict[str, Any] = {}  # what a name stands for that is assigned to once
        self.variables: dict[str, tuple[str, Any]] = {}  # where the others lie, and their types
        self.loops: list[tuple[str, str]] = []  # labels of `continue` and `break`
        self.returned = _Slots(self)
        self.node, self.often = _source(function.function)
        self.parameters: list[str] = []
        for argument, value in zip(self.node.args.args, given, strict=True):
            self.set(argument.arg, self._parameter(value))
        self.statements(self.node.body)
        self.end("br label %exit")

    def _parameter(self, value: Any) -> Any:
        """A value like one that is given, by the name it has in here."""

        def named(type_: str, more: str = "") -> str:
            self.parameters.append(f"{type_}{more} %p{len(self.parameters)}")
            return f"%p{len(self.parameters) - 1}"

        match value:
            case Word():
                return value._replace(name=named(value.type))
            case Row():
                return value._replace(name=named("ptr"))
            case Tuple(_, kind):
                return value._replace(name=named("ptr", f" dereferenceable({WORD_BYTES * length(kind)})"))
            case Rows(_, _, sizes, _):
                name = named("ptr")
                return value._replace(
                    name=name, sizes=tuple(s if isinstance(s, int) else Word(named("i64"), INT) for s in sizes)
                )
        return value

    def results(self) -> tuple[tuple[Any, ...], bool]:
        """Types of what it returns, and whether that is one value and no tuple."""
        values = self.returned.values
        return (self.returned.types(), self.single) if values else ((), False)

    def text(self, exported: bool) -> str:
        """The definition."""
        results = [v for v in self.results()[0] if isinstance(v, VALUES)]
        type_ = _aggregate(results)
        self.lines.append("exit:")
        if not results:
            self.lines.append("  ret void")
        else:
            taken = [v for v in self.returned.take() if isinstance(v, VALUES)]
            whole = taken[0].name if len(taken) == 1 else "poison"
            for k, value in enumerate(taken if len(taken) > 1 else ()):
                whole = self.new(f"insertvalue {type_} {whole}, {_llvm(value)} {value.name}, {k}")
            self.lines.append(f"  ret {type_} {whole}")
        kind = "" if exported else "internal "
        more = " noinline" if self.function.outlined else ""
        head = f"define {kind}{type_} @{self.name}({', '.join(self.parameters)}) nounwind{more} {{"
        return "\n".join([head, "entry:", *self.rooms, *self.lines, "}"])

    # Lines

    def new(self, text: str) -> str:
        """The name of what an instruction yields."""
        self.count += 1
        self.do(f"%v{self.count} = {text}")
        return f"%v{self.count}"

    def do(self, text: str) -> None:
        self.lines.append(f"  {text}")

    def room(self, like: Any) -> str:
        """Memory for a value of a type."""
        self.count += 1
        self.rooms.append(f"  %r{self.count} = alloca {_llvm(like)}")
        return f"%r{self.count}"

    def end(self, text: str, *labels: str) -> None:
        """The last line of a basic block."""
        if self.open:
            self.do(text)
            self.used.update(labels)
        self.open = False

    def jump(self, label: str) -> None:
        self.end(f"br label %{label}", label)

    def label(self, name: str) -> None:
        """A basic block begins, if anybody goes there."""
        if self.open:
            self.jump(name)
        if name in self.used:
            self.lines.append(f"{name}:")
            self.open = True

    def labels(self, *kinds: str) -> list[str]:
        self.count += 1
        return [f"{kind}{self.count}" for kind in kinds]

    # Statements

    def statements(self, nodes: Iterable[ast.stmt]) -> None:
        for node in nodes:
            if self.open:
                self.statement(node)

    def statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Expr(ast.Constant()) | ast.Pass():
                pass
            case ast.Expr(value):
                self.value(value)
            case ast.Assign(targets, value):
                found = self.value(value)
                for target in targets:
                    self.assign(target, found)
            case ast.AugAssign(target, kind, value):
                more = self.value(value)
                if isinstance(target, ast.Name):
                    self.set(target.id, self.binary(kind, self.value(_loaded(target)), more))
                else:
                    place = self.place(target)
                    self.store(place, self.binary(kind, self.load(place), more))
            case ast.Return(value):
                if value is not None:
                    found = self.value(value)
                    self.single = type(found) is not tuple
                    self.returned.put((found,) if self.single else found)
                self.end("br label %exit")
            case ast.If() | ast.While():
                self.fork(node)
            case ast.For(ast.Name(name), ast.Tuple(elements), body):
                for each in elements:
                    self.names[name] = self.value(each)
                    self.statements(body)
            case ast.For():
                self.count_through(node)
            case ast.Break() | ast.Continue():
                self.jump(self.loops[-1][isinstance(node, ast.Break)])
            case _:
                raise TypeError(f"{self.name}: {ast.unparse(node)}")

    def fork(self, node: ast.If | ast.While) -> None:
        again, inside, other, after = self.labels("again", "inside", "other", "after")
        repeats = isinstance(node, ast.While)
        if repeats:
            self.label(again)
        self.branch(node.test, inside, after if repeats else other)
        self.label(inside)
        if repeats:
            self.loop(node.body, again, after)
            self.label(after)
            return
        self.statements(node.body)
        if self.open:
            self.jump(after)
        self.label(other)
        self.statements(node.orelse)
        self.label(after)

    def loop(self, nodes: Iterable[ast.stmt], again: str, after: str) -> None:
        """The body of a loop, from where it goes to one of two labels."""
        self.loops.append((again, after))
        self.statements(nodes)
        self.loops.pop()
        if self.open:
            self.jump(again)

    def count_through(self, node: ast.For) -> None:
        """Over a `range`; a step that is not known is positive."""
        assert isinstance(node.target, ast.Name) and isinstance(node.iter, ast.Call)
        bounds = [self.value(a) for a in node.iter.args]
        first, stop, step = (0, bounds[0], 1) if len(bounds) == 1 else (*bounds, 1)[:3]
        place = self.room(Word("", INT))
        self.do(f"store i64 {self.number(first)}, ptr {place}")
        head, body, again, after = self.labels("for", "body", "step", "after")
        self.label(head)
        at = Word(self.new(f"load i64, ptr {place}"), INT)
        test = self.new(
            f"icmp {'sgt' if isinstance(step, int) and step < 0 else 'slt'} i64 {at.name}, {self.number(stop)}"
        )
        self.end(f"br i1 {test}, label %{body}, label %{after}", body, after)
        self.label(body)
        self.set(node.target.id, at)
        self.loop(node.body, again, after)
        self.label(again)
        if self.open:
            following = self.new(f"add i64 {at.name}, {self.number(step)}")
            self.do(f"store i64 {following}, ptr {place}")
            self.jump(head)
        self.label(after)

    def assign(self, target: ast.expr, value: Any) -> None:
        match target:
            case ast.Name(name):
                self.set(name, value)
            case ast.Tuple(targets):
                for each, one in zip(targets, self.parts(value), strict=True):
                    self.assign(each, one)
            case ast.Subscript(_, ast.Slice()):
                self.fill(self.value(target), value)
            case _:
                place = self.place(target)
                if isinstance(place, Row):
                    self.unit.declarations.add("declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)")
                    sizes = f"i64 {place.dtype.itemsize}, i1 false"
                    self.do(f"call void @llvm.memcpy.p0.p0.i64(ptr {place.name}, ptr {value.name}, {sizes})")
                else:
                    self.store(place, value)

    def set(self, name: str, value: Any) -> None:
        """Assign to a name."""
        numeric = isinstance(value, (*VALUES, int, float, np.integer))
        if name not in self.often or not numeric:
            if self.names.get(name, value) is not value and name in self.often:
                raise TypeError(f"{self.name}: {name} stands for two things")
            if isinstance(value, VALUES):  # where it is used, it may not be in sight
                self.variables[name] = self.room(value), value
                return self.do(f"store {_llvm(value)} {value.name}, ptr {self.variables[name][0]}")
            self.names[name] = value
            return None
        if name not in self.variables:
            like = _like(value)
            self.variables[name] = self.room(like), like
        place, like = self.variables[name]
        if isinstance(value, Word) and value.kind == SET and isinstance(like, Word) and like.kind == INT:
            self.variables[name] = place, Word("", SET)
        return self.do(f"store {_llvm(like)} {self.converted(value, like).name}, ptr {place}")

    # Values

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

    def branch(self, node: ast.expr, yes: str, no: str) -> None:
        """Go to one of two labels; `and` and `or` look at what follows only where that decides."""
        match node:
            case ast.BoolOp(kind, operands):
                every = isinstance(kind, ast.And)
                for operand in operands[:-1]:
                    (more,) = self.labels("more")
                    self.branch(operand, *((more, no) if every else (yes, more)))
                    self.label(more)
                    if not self.open:
                        return
                self.branch(operands[-1], yes, no)
            case ast.UnaryOp(ast.Not(), operand):
                self.branch(operand, no, yes)
            case _:
                found = self.truth(self.value(node))
                if isinstance(found, Word):
                    self.end(f"br i1 {found.name}, label %{yes}, label %{no}", yes, no)
                else:
                    self.jump(yes if found else no)

    def value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value):
                return value
            case ast.Name(name):
                return self.named(name)
            case ast.Tuple(elements):
                return tuple(self.value(v) for v in elements)
            case ast.Slice(first, stop):
                return slice(first and self.value(first), stop and self.value(stop))
            case ast.BinOp(left, kind, right):
                return self.binary(kind, self.value(left), self.value(right))
            case ast.UnaryOp(ast.Not(), operand):
                found = self.truth(self.value(operand))
                return Word(self.new(f"xor i1 {found.name}, true"), TRUTH) if isinstance(found, Word) else not found
            case ast.UnaryOp(kind, operand):
                found = self.value(operand)
                if not isinstance(found, Word):
                    return -found if isinstance(kind, ast.USub) else ~found
                return self.binary(ast.Sub(), 0, found) if isinstance(kind, ast.USub) else self.inverted(found)
            case ast.Compare(left, kinds, rights):
                return self.compared(self.value(left), kinds, [self.value(r) for r in rights])
            case ast.BoolOp():
                return self.chosen(node, ast.Constant(True), ast.Constant(False))
            case ast.IfExp(test, first, second):
                return self.chosen(test, first, second)
            case ast.Attribute(of, name):
                found = self.value(of)
                return self.attribute(found, name)
            case ast.Subscript(of, index):
                found = self.value(of)
                at = self.value(index)
                if not isinstance(found, Rows):
                    return self.parts(found)[at]
                if isinstance(at, slice):
                    return self.part(found, at)
                return self.seen(self.element(found, at if type(at) is tuple else (at,)))
            case ast.Call(function, arguments, []):
                return self.called(self.value(function), [self.value(a) for a in arguments])
        raise TypeError(f"{self.name}: {ast.unparse(node)}")

    def named(self, name: str) -> Any:
        """What a name stands for."""
        if name in self.variables:
            place, like = self.variables[name]
            return like._replace(name=self.new(f"load {_llvm(like)}, ptr {place}"))
        if name in self.names:
            return self.names[name]
        names = self.function.function.__globals__
        return self.known(names[name] if name in names else getattr(builtins, name))

    def known(self, value: Any) -> Any:
        """A value of Python's; unsigned ones are none, because Python has no operations for them."""
        if isinstance(value, np.uint64):
            return Word(str(int(value)), SET)
        return int(value) if isinstance(value, (np.integer, int)) and not isinstance(value, bool) else value

    def chosen(self, test: ast.expr, first: ast.expr, second: ast.expr) -> Any:
        """One of two values."""
        yes, no, after = self.labels("yes", "no", "chosen")
        self.branch(test, yes, no)
        if not (yes in self.used and no in self.used):
            self.label(yes if yes in self.used else no)
            return self.value(first if yes in self.used else second)
        slots, single = _Slots(self), True
        for name, node in ((yes, first), (no, second)):
            self.label(name)
            found = self.value(node)
            single = type(found) is not tuple
            slots.put((found,) if single else found)
            self.jump(after)
        self.label(after)
        taken = slots.take()
        return taken[0] if single else taken

    def inverted(self, value: Word) -> Word:
        """All its bits."""
        return Word(self.new(f"xor {value.type} {value.name}, -1"), value.kind)

    def binary(self, kind: ast.operator, a: Any, b: Any) -> Any:
        name, python = _BINARY[type(kind)]
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

    def is_real(self, *values: Any) -> bool:
        """Is one of them no whole number?"""
        return any(isinstance(v, float) or (isinstance(v, Word) and v.kind == REAL) for v in values)

    def divided(self, quotient: bool, a: Any, b: Any) -> Word:
        """Towards less, as Python divides."""
        if isinstance(b, int) and b > 0 and b & (b - 1) == 0:
            what = (
                f"ashr i64 {self.number(a)}, {b.bit_length() - 1}" if quotient else f"and i64 {self.number(a)}, {b - 1}"
            )
            return Word(self.new(what), INT)
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
        name, python = _COMPARED[type(kind)]
        words = [v for v in (a, b) if isinstance(v, Word)]
        if not words:
            return python(a, b)
        if self.is_real(a, b):
            left, right = (self.converted(v, Word("", REAL)).name for v in (a, b))
            return Word(self.new(f"fcmp {'u' if name == 'ne' else 'o'}{name} double {left}, {right}"), TRUTH)
        if name not in ("eq", "ne"):
            name = ("u" if any(w.kind == SET for w in words) else "s") + name
        return Word(self.new(f"icmp {name} i64 {self.number(a)}, {self.number(b)}"), TRUTH)

    # Memory

    def attribute(self, of: Any, name: str) -> Any:
        match of:
            case Row():
                return self.seen(self.field(of, name))
            case Rows(_, _, sizes, _) if name == "shape":
                return tuple(self.size(s) for s in sizes)
            case Rows():
                column = self.field(Row(of.name, of.dtype), name)
                return column._replace(sizes=of.sizes, stride=of.dtype.itemsize)
            case Tuple(at, kind):
                field = layout(kind)[name]
                place = self.new(f"getelementptr inbounds i64, ptr {at}, i64 {field.word}") if field.word else at
                if field.kind == INT:
                    return Word(self.new(f"load i64, ptr {place}, align 8, !invariant.load !1"), INT)
                if field.kind is not None:
                    return Tuple(place, field.kind)
                address = self.new(f"load ptr, ptr {place}, align 8, !invariant.load !1")
                if not field.dimensions:
                    return Row(address, field.dtype)
                sizes = tuple(At(f"{at}, i64 {field.first_size + k}") for k in range(field.dimensions))
                return Rows(address, field.dtype, sizes, field.tag)
        return self.known(getattr(of, name))

    def parts(self, value: Any) -> Any:
        """Of a tuple, named or not."""
        return tuple(self.attribute(value, n) for n in layout(value.kind)) if isinstance(value, Tuple) else value

    def size(self, size: Any) -> Any:
        """Of a dimension."""
        if not isinstance(size, At):
            return size
        place = self.new(f"getelementptr inbounds i64, ptr {size.name}")
        return Word(self.new(f"load i64, ptr {place}, align 8, !invariant.load !1"), INT)

    def place(self, node: ast.expr) -> Any:
        """What is written to: a record, or one element, as an array without dimensions."""
        if isinstance(node, ast.Attribute):
            return self.field(self.value(node.value), node.attr)
        assert isinstance(node, ast.Subscript)
        at = self.value(node.slice)
        return self.element(self.value(node.value), at if type(at) is tuple else (at,))

    def field(self, row: Row, name: str) -> Any:
        """Of a record: what is known of it, or where it lies."""
        if name in self.unit.known.fields.get(row.dtype, {}):
            return self.unit.known.fields[row.dtype][name]
        assert row.dtype.fields is not None
        dtype, offset = row.dtype.fields[name][:2]
        place = self.new(f"getelementptr inbounds i8, ptr {row.name}, i64 {offset}") if offset else row.name
        return Rows(place, dtype.base, dtype.shape, (row.dtype, name))

    def element(self, array: Rows, at: Sequence[Any]) -> Any:
        """An element, as a record or an array without dimensions; with fewer indices than dimensions, an array."""
        sizes = [self.size(s) for s in array.sizes[1:]]
        place: Any = 0
        for k, index in enumerate((*at, *[0] * (len(array.sizes) - len(at)))):
            if self.unit.known.checked and k < len(at):
                self.check(index, self.size(array.sizes[k]))
            place = self.binary(ast.Add(), self.binary(ast.Mult(), place, sizes[k - 1]) if k else 0, index)
        found = self.moved(array, place)
        if len(at) < len(array.sizes):
            return array._replace(name=found, sizes=array.sizes[len(at) :])
        return Row(found, array.dtype) if array.dtype.names else array._replace(name=found, sizes=())

    def moved(self, array: Rows, place: Any) -> str:
        """The address of an element, by its number among all."""
        size = array.stride or array.dtype.itemsize
        return self.new(f"getelementptr inbounds [{size} x i8], ptr {array.name}, i64 {self.number(place)}")

    def part(self, array: Rows, at: slice) -> Rows:
        """Rows of an array from one on, up to another."""
        first, stop = at.start or 0, self.size(array.sizes[0]) if at.stop is None else at.stop
        place = first
        for size in array.sizes[1:]:
            place = self.binary(ast.Mult(), place, self.size(size))
        sizes = (self.binary(ast.Sub(), stop, first), *array.sizes[1:])
        return array._replace(name=self.moved(array, place), sizes=sizes)

    def fill(self, what: Row | Rows, value: int) -> None:
        """All of it becomes 0 or -1."""
        if value not in (0, -1):
            raise TypeError(f"{self.name}: arrays are filled with 0 or -1, not with {value}")
        count: Any = what.dtype.itemsize
        for size in what.sizes if isinstance(what, Rows) else ():
            count = self.binary(ast.Mult(), count, self.size(size))
        self.unit.declarations.add("declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)")
        self.do(f"call void @llvm.memset.p0.i64(ptr {what.name}, i8 {value}, i64 {self.number(count)}, i1 false)")

    def check(self, index: Any, size: Any) -> None:
        self.unit.declarations.add("declare void @llvm.trap()")
        stop, on = self.labels("stop", "on")
        test = self.new(f"icmp ult i64 {self.number(index)}, {self.number(size)}")
        self.end(f"br i1 {test}, label %{on}, label %{stop}", on, stop)
        self.label(stop)
        self.do("call void @llvm.trap()")
        self.jump(on)
        self.label(on)

    def seen(self, place: Any) -> Any:
        """What lies somewhere: a number, else the place."""
        return self.load(place) if isinstance(place, Rows) and not place.sizes else place

    def load(self, place: Rows) -> Word:
        if not isinstance(place, Rows):  # known
            return place
        bits = 8 * place.dtype.itemsize
        constant = not self.unit.known.constant.isdisjoint((place.tag, place.tag[0]))
        more = ", !invariant.load !1" if constant else self.unit.tag(place.tag)
        type_ = "double" if place.dtype == np.float64 else f"i{bits}"
        found = self.new(f"load {type_}, ptr {place.name}, align {place.dtype.itemsize}{more}")
        if type_ == "double":
            return Word(found, REAL)
        if bits < 64:
            found = self.new(f"{'sext' if place.dtype.kind == 'i' else 'zext'} i{bits} {found} to i64")
        return Word(found, SET if place.dtype == np.uint64 else INT)

    def store(self, place: Rows, value: Any) -> None:
        bits, type_ = 8 * place.dtype.itemsize, "double"
        if place.dtype == np.float64:
            found = self.converted(value, Word("", REAL)).name
        else:
            found, type_ = self.number(value), f"i{bits}"
            found = self.new(f"trunc i64 {found} to {type_}") if bits < 64 else found
        more = f"align {place.dtype.itemsize}{self.unit.tag(place.tag)}"
        self.do(f"store {type_} {found}, ptr {place.name}, {more}")

    # Calls

    def called(self, function: Any, given: list[Any]) -> Any:
        if isinstance(function, Marked):
            return self.call(function, given)
        if isinstance(function, Operation):
            return function.emit(self, *given) if function.emit else getattr(self, f"op_{function.name}")(*given)
        if function is len:
            return self.size(given[0].sizes[0]) if isinstance(given[0], Rows) else len(given[0])
        if function in (min, max):
            return self.extreme(function, given)
        if function is abs:
            return self.extreme(max, [given[0], self.binary(ast.Sub(), 0, given[0])])
        if function in (np.int64, np.uint64):
            if isinstance(given[0], Word) and given[0].kind == REAL:
                return Word(self.new(f"fptosi double {given[0].name} to i64"), INT)
            if function is np.int64 and not isinstance(given[0], Word):
                return int(given[0])
            return Word(self.number(given[0]), INT if function is np.int64 else SET)
        raise TypeError(f"{self.name}: {function}")

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

    def call(self, function: Marked, given: Sequence[Any]) -> Any:
        """Another marked function. One that stays a function is not made anew for each number that is known."""
        if function.outlined:
            given = [
                v if not isinstance(v, int) else Word(str(int(v)), TRUTH if isinstance(v, bool) else INT) for v in given
            ]
        made = self.unit.made(function, given)
        operands: list[str] = []
        for value in given:
            if isinstance(value, Word):
                operands.append(f"{value.type} {value.name}")
            elif isinstance(value, (Row, Rows, Tuple)):
                operands.append(f"ptr {value.name}")
            if isinstance(value, Rows):
                operands += [f"i64 {self.number(self.size(s))}" for s in value.sizes if not isinstance(s, int)]
        passed = [v for v in made.results if isinstance(v, VALUES)]
        type_ = _aggregate(passed)
        text = f"call {type_} @{made.name}({', '.join(operands)})"
        if not passed:
            self.do(text)
            return made.results[0] if made.single else made.results or None
        whole, found, k = self.new(text), [], 0
        for one in made.results:
            if isinstance(one, VALUES):
                found.append(
                    one._replace(name=self.new(f"extractvalue {type_} {whole}, {k}") if len(passed) > 1 else whole)
                )
                k += 1
            else:
                found.append(one)
        return found[0] if made.single else tuple(found)

    # Operations

    def op_lowest_bit(self, word: Word) -> Word:
        self.unit.declarations.add("declare i64 @llvm.cttz.i64(i64, i1)")
        return Word(self.new(f"call i64 @llvm.cttz.i64(i64 {word.name}, i1 true)"), INT)

    def op_refer(self, kind: Any, words: Rows) -> Tuple:
        return Tuple(words.name, kind)

    def op_zero(self, what: Any, rows: Any = None) -> None:
        if isinstance(what, Tuple):
            for name in layout(what.kind):
                self.op_zero(self.attribute(what, name))
        else:
            self.fill(what if rows is None else what._replace(sizes=(rows, *what.sizes[1:])), 0)

    def op_load(self, words: Rows, k: Any) -> Word:
        return Word(self.new(f"load atomic i64, ptr {self.element(words, [k]).name} seq_cst, align 8"), INT)

    def op_store(self, words: Rows, k: Any, value: Any) -> None:
        place = self.element(words, [k]).name
        self.do(f"store atomic i64 {self.number(value)}, ptr {place} seq_cst, align 8")

    def op_add(self, words: Rows, k: Any, value: Any, name: str = "add") -> Word:
        place = self.element(words, [k]).name
        return Word(self.new(f"atomicrmw {name} ptr {place}, i64 {self.number(value)} seq_cst"), INT)

    def op_raise_to(self, words: Rows, k: Any, value: Any) -> Word:
        return self.op_add(words, k, value, "max")

    def op_pause(self) -> None:
        if platform.machine() in ("x86_64", "AMD64"):
            self.unit.declarations.add("declare void @llvm.x86.sse2.pause()")
            self.do("call void @llvm.x86.sse2.pause()")

    def op_sleep(self, microseconds: Any) -> None:
        self.unit.declarations |= {"declare i32 @sched_yield()", "declare i32 @usleep(i32)"}
        if microseconds == 0:
            self.do("call i32 @sched_yield()")
        else:
            self.do(f"call i32 @usleep(i32 {self.new(f'trunc i64 {self.number(microseconds)} to i32')})")


def _aggregate(values: Sequence[Any]) -> str:
    """LLVM's type of what a function returns."""
    if not values:
        return "void"
    return _llvm(values[0]) if len(values) == 1 else "{ " + ", ".join(map(_llvm, values)) + " }"


def _loaded(name: ast.Name) -> ast.Name:
    return ast.Name(name.id, ast.Load())
