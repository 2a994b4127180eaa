"""LLVM IR of functions (functional.jit.marked), for what is known when they are compiled.

Expressions are Python's where all they are made of is known, and values of LLVM where not: a branch that is known not
to be taken is not compiled, nor what it alone calls. A function is compiled once for each combination of the types of
its arguments, and of those arguments that are known.

Numbers are int64, uint64 (sets), float64, or truth values. A record is known by its address. A tuple is known by the
address of words (`words_of`): of each array its address and its shape. No index is negative."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Sequence
from functools import cache
from linecache import getlines
from threading import Lock
from types import CodeType, FunctionType
from typing import Any

import numpy as np

from functional.jit.layers import Memory, Module
from functional.jit.marked import WORD_BYTES, Array, Known, Marked, Operation, length, lowest_bit, members
from functional.jit.values import (
    INT,
    REAL,
    SET,
    TRUTH,
    VALUES,
    At,
    Row,
    Rows,
    Tuple,
    Word,
    aggregate,
    form_like,
    form_of,
    llvm_type,
)  # fmt: skip

_PARSING = Lock()  # ast.parse of two threads at once ends in a SystemError (CPython issue 106905)


@cache
def _functions(file: str) -> dict[int, ast.FunctionDef]:
    """Of a source file, by the line on which they begin, decorators included."""
    with _PARSING:
        found = [node for node in ast.walk(ast.parse("".join(getlines(file)))) if isinstance(node, ast.FunctionDef)]
    return {min([node.lineno, *(each.lineno for each in node.decorator_list)]): node for node in found}


@cache
def _source(code: CodeType) -> tuple[ast.FunctionDef, frozenset[str]]:
    """What is written, and the names that are assigned to more than once."""
    node = _functions(code.co_filename)[code.co_firstlineno]
    names = [a.arg for a in node.args.args]
    for each in ast.walk(node):
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
            names.append(each.id)
        if isinstance(each, ast.For) and isinstance(each.target, ast.Name):
            names.append(each.target.id)
    return node, frozenset(name for name in names if names.count(name) > 1)


def _each(value: Any) -> tuple[Any, ...]:
    return value if type(value) is tuple else (value,)


def _renamed(value: Any, names: Iterable[str]) -> Any:
    """A value, or a tuple of values, of which those that are not known have these names."""
    left = iter(names)
    found = tuple(v._replace(name=next(left)) if isinstance(v, VALUES) else v for v in _each(value))
    return found if type(value) is tuple else found[0]


class _Slots:
    """Room for one of several values, or tuples of values, as they come from branches of a function."""

    def __init__(self, body: Body) -> None:
        self._body, self.rooms, self.values = body, list[str](), list[Any]()

    def put(self, value: Any) -> None:
        if not self.values:
            self.rooms = [self._body.room(form_like(v)) for v in _each(value)]
        self.values.append(value)
        for room, one, first in zip(self.rooms, _each(value), _each(self.values[0]), strict=True):
            like = form_like(first)
            self._body.do(f"store {llvm_type(like)} {self._body.converted(one, like).name}, ptr {room}")

    def types(self) -> Any:
        """What it, or each place of it, always is, or a value without a name of its type. None if there is nothing."""
        found = []
        for column in zip(*map(_each, self.values), strict=True):
            first, like = column[0], form_like(column[0])
            if not isinstance(first, VALUES) and all(type(v) is type(first) and v == first for v in column):
                found.append(first)
            elif any(isinstance(v, Word) and v.kind == SET for v in column):
                found.append(Word("", SET))
            else:
                found.append(like._replace(name=""))
        return tuple(found) if self.values and type(self.values[0]) is tuple else found[0] if found else None

    def take(self) -> Any:
        types = self.types()
        there = [(like, room) for like, room in zip(_each(types), self.rooms, strict=True) if isinstance(like, VALUES)]
        return _renamed(types, [self._body.new(f"load {llvm_type(like)}, ptr {room}") for like, room in there])


class Body(Memory):
    """The IR of one function while it is written: its statements, and what calls."""

    def __init__(self, unit: Unit, function: Marked, given: Sequence[Any], name: str) -> None:
        super().__init__(unit, name)
        self.function, self.made = function, unit.made
        self.names: dict[str, Any] = {}  # what a name stands for that is assigned to once
        self.variables: dict[str, tuple[str, Any]] = {}  # where the others lie, and their types
        self.loops: list[tuple[str, str]] = []  # labels of `continue` and `break`
        self.returned = _Slots(self)
        self.node, self.often = _source(function.function.__code__)
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

    def text(self, exported: bool, more: str = "") -> str:
        """The definition, with `more` attributes."""
        results = [v for v in _each(self.returned.types()) if isinstance(v, VALUES)]
        type_ = aggregate(results)
        self.lines.append("exit:")
        if not results:
            self.lines.append("  ret void")
        else:
            taken = [v for v in _each(self.returned.take()) if isinstance(v, VALUES)]
            whole = taken[0].name if len(taken) == 1 else "poison"
            for k, value in enumerate(taken if len(taken) > 1 else ()):
                whole = self.new(f"insertvalue {type_} {whole}, {llvm_type(value)} {value.name}, {k}")
            self.lines.append(f"  ret {type_} {whole}")
        kind = "" if exported else "internal "
        head = f"define {kind}{type_} @{self.name}({', '.join(self.parameters)}) {self.function.attributes}{more} {{"
        return "\n".join([head, "entry:", *self.rooms, *self.lines, "}"])

    def statements(self, nodes: Iterable[ast.stmt]) -> None:
        """One after the other, as long as anybody gets there."""
        for node in nodes:
            if self.open:
                self.statement(node)

    def statement(self, node: ast.stmt) -> None:
        """Write one."""
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
                    self.set(target.id, self.binary(kind, self.value(ast.Name(target.id, ast.Load())), more))
                else:
                    place = self.place(target)
                    self.store(place, self.binary(kind, self.load(place), more))
            case ast.Return(value):
                if value is not None:
                    self.returned.put(self.value(value))
                self.end("br label %exit")
            case ast.If() | ast.While():
                self.fork(node)
            case ast.For(ast.Name(name), ast.Tuple(elements), body):
                for each in elements:
                    self.names[name] = self.value(each)
                    self.statements(body)
            case ast.For(ast.Name(name), ast.Call(of, [whole]), body) if self.value(of) is members:
                self.go_through(name, self.converted(self.value(whole), Word("", SET)), body)
            case ast.For():
                self.count_through(node)
            case ast.Break() | ast.Continue():
                self.jump(self.loops[-1][isinstance(node, ast.Break)])
            case _:
                raise TypeError(f"{self.name}: {ast.unparse(node)}")

    def fork(self, node: ast.If | ast.While) -> None:
        """Two ways, or a loop."""
        again, inside, other, after = self.labels("again", "inside", "other", "after")
        repeats = isinstance(node, ast.While)
        if repeats:
            self.label(again)
        self.branch(node.test, inside, after if repeats else other)
        self.label(inside)
        if repeats:
            self.loop(node.body, again, after)
        else:
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
        before = "sgt" if isinstance(step, int) and step < 0 else "slt"
        test = self.new(f"icmp {before} i64 {at.name}, {self.number(stop)}")
        self.end(f"br i1 {test}, label %{body}, label %{after}", body, after)
        self.label(body)
        self.set(node.target.id, at)
        self.loop(node.body, again, after)
        self.label(again)
        if self.open:
            following = self.new(f"add i64 {at.name}, {self.number(step)}")
            self.do(f"store i64 {following}, ptr {place}")
            self.end(f"br label %{head}{self.function.loops}", head)
        self.label(after)

    def go_through(self, name: str, whole: Word, nodes: Iterable[ast.stmt]) -> None:
        """Over the members of a set."""
        place = self.room(whole)
        self.do(f"store i64 {whole.name}, ptr {place}")
        again, inside, after = self.labels("again", "inside", "after")
        self.label(again)
        left = self.new(f"load i64, ptr {place}")
        some = self.new(f"icmp ne i64 {left}, 0")
        self.end(f"br i1 {some}, label %{inside}, label %{after}", inside, after)
        self.label(inside)
        self.set(name, lowest_bit.emit(self, Word(left, SET)))
        without = self.new(f"and i64 {left}, {self.new(f'sub i64 {left}, 1')}")
        self.do(f"store i64 {without}, ptr {place}")
        self.loop(nodes, again, after)
        self.label(after)

    def assign(self, target: ast.expr, value: Any) -> None:
        """Assign to a name, several, or a place in memory."""
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
                return self.do(f"store {llvm_type(value)} {value.name}, ptr {self.variables[name][0]}")
            self.names[name] = value
            return None
        if name not in self.variables:
            like = form_like(value)
            self.variables[name] = self.room(like), like
        place, like = self.variables[name]
        if isinstance(value, Word) and value.kind == SET and isinstance(like, Word) and like.kind == INT:
            self.variables[name] = place, Word("", SET)
        return self.do(f"store {llvm_type(like)} {self.converted(value, like).name}, ptr {place}")

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
        """What an expression stands for."""
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
                return self.attribute(self.value(of), name)
            case ast.Subscript(of, index):
                return self.item(self.value(of), self.value(index))
            case ast.Call(function, arguments, []):
                return self.called(self.value(function), [self.value(a) for a in arguments])
        raise TypeError(f"{self.name}: {ast.unparse(node)}")

    def item(self, of: Any, at: Any) -> Any:
        """An element of a tuple, or one or several of an array."""
        if not isinstance(of, Rows):
            return self.parts(of)[at]
        if isinstance(at, slice):
            return self.part(of, at)
        return self.seen(self.element(of, at if type(at) is tuple else (at,)))

    def named(self, name: str) -> Any:
        """What a name stands for."""
        if name in self.variables:
            place, like = self.variables[name]
            return like._replace(name=self.new(f"load {llvm_type(like)}, ptr {place}"))
        if name in self.names:
            return self.names[name]
        names = self.function.names
        return self.known(names[name] if name in names else getattr(builtins, name))

    def chosen(self, test: ast.expr, first: ast.expr, second: ast.expr) -> Any:
        """One of two values."""
        yes, no, after = self.labels("yes", "no", "chosen")
        self.branch(test, yes, no)
        if not (yes in self.used and no in self.used):
            self.label(yes if yes in self.used else no)
            return self.value(first if yes in self.used else second)
        slots = _Slots(self)
        for name, node in ((yes, first), (no, second)):
            self.label(name)
            slots.put(self.value(node))
            self.jump(after)
        self.label(after)
        return slots.take()

    def place(self, node: ast.expr) -> Any:
        """What is written to: a record, or one element, as an array without dimensions."""
        if isinstance(node, ast.Attribute):
            return self.field(self.value(node.value), node.attr)
        assert isinstance(node, ast.Subscript)
        at = self.value(node.slice)
        return self.element(self.value(node.value), at if type(at) is tuple else (at,))

    def called(self, function: Any, given: list[Any]) -> Any:
        """What a function yields."""
        if isinstance(function, (Marked, FunctionType)):
            return self.call(function if isinstance(function, Marked) else Marked(function), given)
        if isinstance(function, Operation):
            return function.emit(self, *given)
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

    def call(self, function: Marked, given: Sequence[Any]) -> Any:
        """Another marked function. One that stays a function is not made anew for each number that is known."""
        if function.outlined:
            given = [
                v if not isinstance(v, int) else Word(str(int(v)), TRUTH if isinstance(v, bool) else INT) for v in given
            ]
        name, result = self.made(function, given)
        operands: list[str] = []
        for value in given:
            if isinstance(value, Word):
                operands.append(f"{value.type} {value.name}")
            elif isinstance(value, (Row, Rows, Tuple)):
                operands.append(f"ptr {value.name}")
            if isinstance(value, Rows):
                operands += [f"i64 {self.number(self.size(s))}" for s in value.sizes if not isinstance(s, int)]
        passed = [v for v in _each(result) if isinstance(v, VALUES)]
        type_ = aggregate(passed)
        text = f"call {type_} @{name}({', '.join(operands)})"
        if not passed:
            self.do(text)
            return result
        whole, many = self.new(text), range(len(passed) if len(passed) > 1 else 0)
        return _renamed(result, [self.new(f"extractvalue {type_} {whole}, {k}") for k in many] or [whole])


class Unit(Module):
    """A module of LLVM IR, which grows by what entries call."""

    body = Body

    def __init__(self, known: Known, inlines: bool = False) -> None:
        super().__init__(known)
        self.inlines = inlines  # whatever is not outlined, wherever it is called
        self._made: dict[Any, tuple[str, Any]] = {}
        self._count = 0

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

    def made(self, function: Marked, given: Sequence[Any], name: str = "") -> tuple[str, Any]:
        """The function for arguments like these: what it is called, and what is known of its result."""
        key = function.function, tuple(map(form_of, given))
        if key not in self._made:
            self._count += 1
            name = name or function.symbol
            body = self.body(self, function, given, name or f"{function.__name__}.{self._count}")
            self._made[key] = body.name, body.returned.types()
            exported = bool(name) and not function.inline
            is_part = self.inlines and not exported and not function.outlined
            self.texts.append(body.text(exported, " alwaysinline" if is_part else ""))
        return self._made[key]
