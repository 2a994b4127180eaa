"""Functions on lanes, with types by annotation: the run time of compiled kernels, compiled by functional.jit.staged.

    @routine
    def lowest_active(ctx: Context, address: Lanes64, mask: I32) -> I64:
        if mask == 0:
            return 0
        return op.reduce_umin(op.where(Flags(mask), address, -1))

Numbers have no sign: `<`, `>>` and `//` are those of unsigned ones. Operations join scalars, vectors and Python
numbers; a scalar goes to all lanes. `T(x)` converts: to fewer or more bits, between addresses and numbers, 32 flags
to the bits of a word. `p[T, i]` is the i-th T at an address, `p + n` lies n bytes further, `p.name` is a field of what
a pointer of a record type points to. `op.name(...)` is an operation defined here, else LLVM's intrinsic, or comparison.
What is known when a routine is compiled (numbers, tuples, strings around it) is computed then, `if` included."""

from __future__ import annotations

import ast
import sys
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from types import FunctionType
from typing import Any

from functional.jit import staged
from functional.jit.layers import BINARY, COMPARED
from functional.jit.marked import Known, Marked, Operation
from functional.jit.values import INT, REAL, SET, TRUTH, Word

_OWN = {"i64": SET, "i1": TRUTH, "double": REAL}  # kinds that a single value has in functional.jit.values
_BITS = {"ptr": 64, "double": 64, "float": 32}  # of what is no number of bits
_UNSIGNED = {"ashr": "lshr", "sdiv": "udiv", "srem": "urem"}


class Type(str):
    """The kind of a word: `lanes` of an `element`, as LLVM spells it. `fields`: offset in bytes and type of each, of
    what a pointer points to."""

    element: str
    lanes: int
    fields: Mapping[str, tuple[int, Type]]

    def __new__(cls, element: str, lanes: int = 1, fields: Mapping[str, tuple[int, Type]] | None = None) -> Type:
        made = super().__new__(cls, _OWN.get(element, element) if lanes == 1 else f"<{lanes} x {element}>")
        made.element, made.lanes, made.fields = element, lanes, fields or {}
        return made

    @property
    def suffix(self) -> str:
        """As the names of intrinsics spell it."""
        kind = {"ptr": "p0", "double": "f64", "float": "f32", "half": "f16"}.get(self.element, self.element)
        return kind if self.lanes == 1 else f"v{self.lanes}{kind}"

    @property
    def bits(self) -> int:
        """Of all lanes."""
        return (_BITS.get(self.element) or int(self.element[1:])) * self.lanes


# Types stand in annotations, whose names a type checker takes for anything
I1: Any = Type("i1")
I8: Any = Type("i8")
I16: Any = Type("i16")
I32: Any = Type("i32")
I64: Any = Type("i64")
Double: Any = Type("double")
Pointer: Any = Type("ptr")
Flags: Any = Type("i1", 32)
Lanes8: Any = Type("i8", 32)
Lanes16: Any = Type("i16", 32)
Lanes32: Any = Type("i32", 32)
Lanes64: Any = Type("i64", 32)
LanePointers: Any = Type("ptr", 32)
LANES_OF: dict[int, Any] = {8: Lanes8, 16: Lanes16, 32: Lanes32, 64: Lanes64}
LANES = tuple(range(32))
_KINDS: dict[str, Any] = {INT: I64, SET: I64, TRUTH: I1, REAL: Double}


def record_type(names: tuple[str, ...], pointers: frozenset[str]) -> Any:
    """Pointer to a row of 8-byte fields: addresses, else numbers."""
    return Type("ptr", 1, {name: (8 * n, Pointer if name in pointers else I64) for n, name in enumerate(names)})


ROUTINES: dict[str, Routine] = {}  # of the modules that are loaded, by name


class Routine(Marked):
    """A function of the run time; `inline`: into all that call it. It knows `names`, those around it."""

    def __init__(self, function: FunctionType, name: str, inline: bool, names: Mapping[str, object]) -> None:
        super().__init__(function)
        self.symbol, self.inline, self.module = name, inline, function.__module__
        self.attributes = "alwaysinline #0" if inline else "#0"
        self.names = ChainMap(dict(names), function.__globals__)
        ROUTINES[name] = self

    @cached_property
    def parameters(self) -> list[Word]:
        """What it is called with, by its names."""
        given = self.function.__annotations__.items()
        return [Word(name, self.names[kind]) for name, kind in given if name != "return"]

    @property
    def result(self) -> Any:
        """The type of what it yields, or None."""
        return self.names.get(self.function.__annotations__["return"])


def routine(name: str | Callable, inline: bool = False) -> Any:
    """Decorator of a function of the run time, by its own name or another one. It knows what is defined around it."""
    around = sys._getframe(2 if inline else 1)
    names = {} if around.f_locals is around.f_globals else around.f_locals
    if isinstance(name, str):
        return lambda function: Routine(function, name, inline, names)
    return Routine(name, name.__name__, inline, names)  # type: ignore[arg-type]


def inlined(name: str | Callable) -> Any:
    """Decorator of a function that becomes a part of all that call it."""
    return routine(name, True)


def exported(package: str) -> tuple[str, ...]:
    """Names of the routines that may be called from outside, of the loaded modules of a package."""
    return tuple(one.symbol for one in _routines(package) if not one.inline)


def _routines(package: str) -> list[Routine]:
    return [one for one in ROUTINES.values() if f"{one.module}.".startswith(f"{package}.")]


def text(package: str) -> str:
    """LLVM IR of all routines of the loaded modules of a package."""
    unit = _Unit(Known())
    for one in _routines(package):
        unit.made(one, one.parameters)
    return unit.text()


class _Body(staged.Body):
    function: Routine

    def statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Return(ast.expr() as value):
                self.returned.put(self.converted(self.value(value), Word("", self.function.result)))
                self.end("br label %exit", "exit")
            case _:
                super().statement(node)

    def assign(self, target: ast.expr, value: Any) -> None:
        match target:
            case ast.Attribute(of, name):
                self._write(self.value(of), name, value)
            case ast.Subscript(of, index):
                self._write(self.value(of), self.value(index), value)
            case _:
                super().assign(target, value)

    def _write(self, pointer: Word, index: Any, value: Any) -> None:
        place = self._place(pointer, index)
        found = self.converted(value, place)
        self.do(f"store {found.type} {found.name}, ptr {place.name}, align 1")

    def _place(self, pointer: Word, index: Any) -> Word:
        """Where a field or an element lies, as a word of its type."""
        if isinstance(index, str):
            offset, kind = _type(pointer).fields[index]
            return Word(self.new(f"getelementptr i8, ptr {pointer.name}, i64 {offset}"), kind)
        kind, number = index
        like = Word("", kind)
        return like._replace(name=self.new(f"getelementptr {like.type}, ptr {pointer.name}, i64 {self.number(number)}"))

    def attribute(self, of: Any, name: str) -> Any:
        return self.item(of, name) if isinstance(of, Word) else super().attribute(of, name)

    def item(self, of: Any, at: Any) -> Any:
        """An element of a vector, or what lies at an address."""
        if not isinstance(of, Word):
            return super().item(of, at)
        if _type(of).element == "ptr":
            place = self._place(of, at)
            return place._replace(name=self.new(f"load {place.type}, ptr {place.name}, align 1"))
        lane = self.converted(at, Word("", I32)).name
        return Word(self.new(f"extractelement {of.type} {of.name}, i32 {lane}"), Type(_type(of).element))

    def called(self, function: Any, given: list[Any]) -> Any:
        if isinstance(function, Type):
            return self.converted(given[0], Word("", function))
        return super().called(function, given)

    def call(self, function: Marked, given: Sequence[Any]) -> Any:
        known = ROUTINES[function.symbol]  # one of a name, though it may have been defined several times
        return super().call(known, [self.converted(v, like) for v, like in zip(given, known.parameters, strict=True)])

    def truth(self, value: Any) -> Any:
        return self.converted(value, Word("", I1)) if isinstance(value, Word) else bool(value)

    def inverted(self, value: Word) -> Word:
        return self.binary(ast.BitXor(), value, -1)

    def binary(self, kind: ast.operator, a: Any, b: Any) -> Any:
        types = _types(a, b)
        if {*types} <= {I64, Double}:
            return super().binary(kind, a, b)
        name = BINARY[type(kind)][0]
        if isinstance(a, Word) and types[0].element == "ptr":
            return self._moved(a, b, name)
        a, b = self._level(a, b)
        name = f"f{name}" if _type(a).element in ("float", "double") else _UNSIGNED.get(name, name)
        return Word(self.new(f"{name} {a.type} {a.name}, {b.name}"), a.kind)

    def _moved(self, pointer: Word, by: Any, name: str) -> Word:
        """A pointer so many bytes further; the distance of two pointers."""
        if isinstance(by, Word) and _type(by).element == "ptr":
            return self.binary(ast.Sub(), *(self.converted(p, Word("", I64)) for p in (pointer, by)))
        by = by if isinstance(by, Word) else self.converted(-by if name == "sub" else by, Word("", I64))
        moved = self.new(f"getelementptr i8, {pointer.type} {pointer.name}, {by.type} {by.name}")
        return Word(moved, Type("ptr", _type(by).lanes))

    def comparison(self, kind: ast.cmpop, a: Any, b: Any) -> Any:
        if {*_types(a, b)} <= {I64, Double}:
            return super().comparison(kind, a, b)
        name = COMPARED[type(kind)][0]
        return self.compare(name if name in ("eq", "ne") else f"u{name}", a, b)

    def compare(self, predicate: str, a: Any, b: Any) -> Word:
        a, b = self._level(a, b)
        return Word(self.new(f"icmp {predicate} {a.type} {a.name}, {b.name}"), Type("i1", _type(a).lanes))

    def _level(self, a: Any, b: Any) -> tuple[Word, Word]:
        """Two operands as words of one type, that of the wider one."""
        known = _types(a, b)
        known += [Type(known[0].element, len(v)) for v in (a, b) if isinstance(v, tuple) and not isinstance(v, Word)]
        if len({kind.element for kind in known}) > 1:
            raise TypeError(f"{self.name}: {a} and {b}")
        like = Word("", max(known, key=lambda kind: kind.lanes))
        return self.converted(a, like), self.converted(b, like)

    def converted(self, value: Any, like: Any) -> Any:
        kind: Type = _type(like)
        if not isinstance(value, Word):
            return self._literal(kind, value)
        own = _type(value)
        if own == kind:
            return value._replace(kind=kind)
        if own.lanes == 1 and kind.lanes > 1 and own.bits != kind.bits:
            one = self.converted(value, Word("", Type(kind.element)))
            return Word(self.everywhere(like.type, one.name), kind)
        if "ptr" in (own.element, kind.element):
            cast = "ptrtoint" if own.element == "ptr" else "inttoptr"
        elif {own.element, kind.element} == {"float", "double"}:
            cast = "fptrunc" if kind.element == "float" else "fpext"
        else:
            cast = "bitcast" if own.bits == kind.bits else "trunc" if own.bits > kind.bits else "zext"
        return Word(self.new(f"{cast} {value.type} {value.name} to {like.type}"), kind)

    def _literal(self, kind: Type, number: Any) -> Word:
        if kind.element in ("float", "double"):
            if number != 0:
                raise TypeError(f"{self.name}: {number} as a {kind}; of these there is 0 alone")
            return Word("zeroinitializer", kind)
        if kind.element == "i1" and kind.lanes > 1:  # a number is the flags' bits, not the same for all
            number = tuple(number >> lane & 1 for lane in range(kind.lanes))
        bits = kind.bits // kind.lanes
        each = [n & (1 << bits) - 1 for n in (number if isinstance(number, tuple) else (int(number),))]
        texts = [f"{kind.element} {n - (n >> bits - 1 << bits) if bits > 1 else n}" for n in each]
        if isinstance(number, tuple):
            return Word(f"<{', '.join(texts)}>", kind)
        return Word(f"splat ({texts[0]})" if kind.lanes > 1 else texts[0].partition(" ")[2], kind)

    def foreign(self, name: str, result: Any, operands: Sequence[Word], more: str = "") -> Word | None:
        """Call what is declared and no routine; `more`: words behind the type of an argument that is a pointer."""
        kind = "void" if result is None else Word("", result).type
        self.unit.declarations.add(f"declare {kind} @{name}({', '.join(v.type for v in operands)})")
        return self.invoke(f"@{name}", result, operands, more)

    def invoke(self, function: str, result: Any, operands: Sequence[Word], more: str = "") -> Word | None:
        """Call a function by its name or address; one without a result yields nothing."""
        given = ", ".join(f"{v.type}{more if _type(v).element == 'ptr' else ''} {v.name}" for v in operands)
        if result is None:
            self.do(f"call void {function}({given})")
            return None
        return Word(self.new(f"call {Word('', result).type} {function}({given})"), result)


class _Unit(staged.Unit):
    body = _Body


def _type(word: Word) -> Type:
    return word.kind if isinstance(word.kind, Type) else _KINDS[word.kind]


def _types(*values: Any) -> list[Type]:
    """Those of what is no number of Python's."""
    return [_type(v) for v in values if isinstance(v, Word)]


class _Operations:
    """What compiled code does by one or two instructions; what is not here is an intrinsic of LLVM, of operands of one
    type (`reduce_` and a name: of all lanes), or a signed comparison."""

    def __getattr__(self, name: str) -> Any:
        if name in ("slt", "sle", "sgt", "sge"):
            return Operation(lambda b, *given: b.compare(name, *given))
        return Operation(partial(_intrinsic, name))

    @Operation
    def where(b: _Body, p: Word, a: Any, other: Any) -> Word:
        """`a` where `p` holds, else `other`."""
        a, other = b._level(a, other)
        lanes = _type(p).lanes
        if lanes > _type(a).lanes:
            a, other = (b.converted(v, Word("", Type(_type(v).element, lanes))) for v in (a, other))
        return Word(b.new(f"select {p.type} {p.name}, {a.type} {a.name}, {other.type} {other.name}"), a.kind)

    @Operation
    def room(b: _Body, kind: Type, count: int = 1) -> Word:
        """Memory of the routine's own, of so many of a type."""
        place = f"%room{len(b.rooms)}"
        b.rooms.append(f"  {place} = alloca [{count} x {Word('', kind).type}], align 64")
        return Word(place, Pointer)

    @Operation
    def shuffle(b: _Body, one: Word, two: Word, lanes: tuple[int, ...]) -> Word:
        """Elements of two vectors, those of the second numbered behind those of the first."""
        chosen = b._literal(Type("i32", len(lanes)), lanes)
        made = b.new(f"shufflevector {one.type} {one.name}, {two.type} {two.name}, {chosen.type} {chosen.name}")
        return Word(made, Type(_type(one).element, len(lanes)))

    @Operation
    def gather(b: _Body, kind: Type, pointers: Word, flags: Word) -> Word | None:
        """What lies at the addresses of the lanes with a flag; 0 in the others."""
        name = f"llvm.masked.gather.{kind.suffix}.{_type(pointers).suffix}"
        return b.foreign(name, kind, [pointers, flags, Word("zeroinitializer", kind)], " align 1")

    @Operation
    def scatter(b: _Body, pointers: Word, value: Word, flags: Word) -> None:
        """Write the lanes with a flag to their addresses, in ascending order."""
        name = f"llvm.masked.scatter.{_type(value).suffix}.{_type(pointers).suffix}"
        b.foreign(name, None, [value, pointers, flags], " align 1")

    @Operation
    def put(b: _Body, pointer: Word, value: Word, flags: Word) -> None:
        """Write the lanes with a flag to an array."""
        b.foreign(f"llvm.masked.store.{_type(value).suffix}.p0", None, [value, pointer, flags], " align 1")

    @Operation
    def copy(b: _Body, to: Word, source: Word, count: Any) -> None:
        count = b.converted(count, Word("", I64))
        b.foreign("llvm.memmove.p0.p0.i64", None, [to, source, count, Word("false", I1)])

    @Operation
    def zero(b: _Body, to: Word, count: Any) -> None:
        count = b.converted(count, Word("", I64))
        b.foreign("llvm.memset.p0.i64", None, [to, Word("0", I8), count, Word("false", I1)])

    @Operation
    def call(b: _Body, function: Word, result: Type, *given: Word) -> Word | None:
        return b.invoke(function.name, result, given)

    @Operation
    def library(b: _Body, name: str, x: Word) -> Word | None:
        return b.foreign(name, x.kind, [x])

    @Operation
    def acquire(b: _Body, kind: Type, pointer: Word) -> Word:
        """Load what another thread may release."""
        return Word(b.new(f"load atomic {kind}, ptr {pointer.name} acquire, align 4"), kind)

    @Operation
    def release(b: _Body, pointer: Word, value: Word) -> None:
        """Store for what other threads acquire."""
        b.do(f"store atomic {value.type} {value.name}, ptr {pointer.name} release, align 4")

    @Operation
    def claim(b: _Body, pointer: Word, old: Word, new: Word) -> Word:
        """Replace `old` by `new`; was it there?"""
        values = f"{old.type} {old.name}, {new.type} {new.name}"
        pair = b.new(f"cmpxchg ptr {pointer.name}, {values} acquire monotonic")
        return Word(b.new(f"extractvalue {{ {old.type}, i1 }} {pair}, 1"), I1)

    @Operation
    def next(b: _Body, pointer: Word) -> Word:
        """A number, one less than that of the next who asks."""
        return Word(b.new(f"atomicrmw add ptr {pointer.name}, i32 1 monotonic"), I32)


def _intrinsic(name: str, b: _Body, first: Word, *more: Any) -> Word | None:
    kind, reduces = _type(first), name.startswith("reduce_")
    operands = [first, *(b.converted(v, first) for v in more)]
    full = f"llvm.{'vector.reduce.' if reduces else ''}{name.removeprefix('reduce_')}.{kind.suffix}"
    if name in ("cttz", "ctlz"):
        operands.append(Word("true", I1))
    return b.foreign(full, Type(kind.element) if reduces else kind, operands)


op: Any = _Operations()
