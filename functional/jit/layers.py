"""The lower layers of functional.jit.staged: lines of LLVM IR, what is computed of numbers, what lies in memory."""

import ast
import operator
from collections.abc import Callable, Sequence
from struct import pack
from typing import Any

import numpy as np

from functional.jit.marked import Known, layout
from functional.jit.values import INT, REAL, SET, TRUTH, At, Row, Rows, Tuple, Word, llvm_type

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
        number = 4 + 2 * self._tags.setdefault(of, len(self._tags))
        return f", !tbaa !{number + 1}"

    def text(self) -> str:
        """The module."""
        tags = ['!0 = !{!"memory"}', "!1 = !{}", '!2 = !{!"llvm.loop.vectorize.enable", i1 true}']
        tags.append("!3 = distinct !{!3, !2}")
        for number in range(4, 4 + 2 * len(self._tags), 2):
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


_REALS = {np.dtype(np.float64): "double", np.dtype(np.float32): "float"}


class Memory(Arithmetic):
    """What lies in memory."""

    def known(self, value: Any) -> Any:
        """A value of Python's; unsigned ones are none, because Python has no operations for them."""
        if isinstance(value, np.uint64):
            return Word(str(int(value)), SET)
        return int(value) if isinstance(value, (np.integer, int)) and not isinstance(value, bool) else value

    def attribute(self, of: Any, name: str) -> Any:
        """A record's field, an array's shape or column, a tuple's array, or what Python finds."""
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
                ats = (At(f"{at}, i64 {field.first_size + k}") for k in range(len(field.dimensions)))
                sizes = tuple(map(self.unit.known.sizes.get, field.dimensions, ats))
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
        if self.unit.known.checked:
            self.check(stop, self.binary(ast.Add(), self.size(array.sizes[0]), 1))
            self.check(first, self.binary(ast.Add(), stop, 1))
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
        """Stop the process (SIGILL) where an index is out of range."""
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
        """The number at a place."""
        if not isinstance(place, Rows):  # known
            return place
        bits = 8 * place.dtype.itemsize
        constant = not self.unit.known.constant.isdisjoint((place.tag, place.tag[0]))
        more = ", !invariant.load !1" if constant else self.unit.tag(place.tag)
        type_ = _REALS.get(place.dtype) or f"i{bits}"
        found = self.new(f"load {type_}, ptr {place.name}, align {place.dtype.itemsize}{more}")
        if place.dtype in _REALS:
            return Word(self.new(f"fpext float {found} to double") if bits < 64 else found, REAL)
        if bits < 64:
            found = self.new(f"{'sext' if place.dtype.kind == 'i' else 'zext'} i{bits} {found} to i64")
        return Word(found, SET if place.dtype == np.uint64 else INT)

    def store(self, place: Rows, value: Any) -> None:
        """Write a number to a place."""
        bits, type_ = 8 * place.dtype.itemsize, _REALS.get(place.dtype, "")
        if type_:
            found = self.converted(value, Word("", REAL)).name
            found = self.new(f"fptrunc double {found} to float") if bits < 64 else found
        else:
            found, type_ = self.number(value), f"i{bits}"
            found = self.new(f"trunc i64 {found} to {type_}") if bits < 64 else found
        more = f"align {place.dtype.itemsize}{self.unit.tag(place.tag)}"
        self.do(f"store {type_} {found}, ptr {place.name}, {more}")
