"""Names at a place of a PTX file: scopes, constant expressions, and declarations."""

from __future__ import annotations

import operator as op
import struct
from collections.abc import Callable, Container
from math import prod
from typing import Any, TypeVar

from lark import Token
from msgspec import Struct, field
from msgspec.structs import replace

from functional.errors import PtxError
from functional.ptx import _syntax as raw
from functional.ptx._syntax import RawElements, RawGeneric, RawUnary, floating, integer
from functional.ptx.ir import TYPE_BYTES, Parameter, Register, Symbol, Variable

T = TypeVar("T")


class Source(Struct, frozen=True):
    path: str
    functions: Container[str] = ()
    spaces: dict[str, str] = field(default_factory=dict)

    def fail(self, where: Any, message: str) -> PtxError:
        """The error for a token or a syntax node; the caller raises it."""
        while isinstance(where, (tuple, list)):  # the first token inside
            where = next((x for x in where if isinstance(x, (Token, tuple, list)) and x), None)
        return PtxError(self.path, getattr(where, "line", None) or 1, message)

    def refuse(self, wrong: object, where: Any, message: str) -> None:
        """Raises that error if something is wrong."""
        if wrong:
            raise self.fail(where, message)


class Scope(Struct):
    """Names declared between two braces; the outermost scope is the module."""

    source: Source
    parent: Scope | None = None
    suffix: str = ""  # makes the names of a nested scope unique; ' cannot occur in a PTX name
    function: str = ""  # that the scope is in
    registers: dict[str, Register] = field(default_factory=dict)
    ranges: list[tuple[str, int, str]] = field(default_factory=list)  # `%r<9>`: prefix, count, type
    vectors: dict[str, tuple[Register, ...]] = field(default_factory=dict)  # `.reg .v4 .f32 v`
    symbols: dict[str, Symbol] = field(default_factory=dict)
    labels: dict[str, int] = field(default_factory=dict)  # instruction index
    target_lists: dict[str, list[Token]] = field(default_factory=dict)

    def register(self, name: str) -> Register | None:
        """The register a name stands for here, or None."""
        return self._find(lambda scope: scope._own_register(name))

    def vector(self, name: str) -> tuple[Register, ...] | None:
        """The registers of the vector a name stands for here, or None."""
        return self._find(lambda scope: scope.vectors.get(name))

    def symbol(self, name: str) -> Symbol | None:
        """The variable, parameter or function a name stands for here, or None."""
        found = self._find(lambda scope: scope.symbols.get(name))
        return Symbol(name) if found is None and name in self.source.functions else found

    def label(self, token: Token) -> int:
        """The instruction a label stands for. Raises PtxError if there is none."""
        found = self._find(lambda scope: scope.labels.get(str(token)))
        return self._known(found, token, f"label '{token}' is not defined in this function")

    def target_list(self, token: Token) -> list[Token]:
        """The labels of a `.branchtargets` list. Raises PtxError if there is none."""
        found = self._find(lambda scope: scope.target_lists.get(str(token)))
        return self._known(found, token, f"'{token}' is not the label of a .branchtargets list above")

    def known_symbol(self, token: Token) -> Symbol:
        """The variable, parameter or function of a name. Raises PtxError if it is not declared."""
        return self._known(self.symbol(str(token)), token, f"'{token}' is not declared")

    def _known(self, found: T | None, token: Token, message: str) -> T:
        if found is None:
            raise self.source.fail(token, message)
        return found

    def _own_register(self, name: str) -> Register | None:
        if (register := self.registers.get(name)) is not None:
            return register
        for prefix, count, type_ in self.ranges:
            number = name[len(prefix) :]
            if name.startswith(prefix) and number.isascii() and number.isdecimal() and int(number) < count:
                return self.registers.setdefault(name, Register(f"{name}{self.suffix}", type_))
        return None

    def _find(self, look: Callable[[Scope], T | None]) -> T | None:
        scope: Scope | None = self
        while scope is not None:
            if (found := look(scope)) is not None:
                return found
            scope = scope.parent
        return None

    def value(self, node: Any, depth: int = 0) -> int | float | Symbol:
        """The number or address a constant expression stands for here. Raises PtxError."""
        self.source.refuse(depth > MAX_NESTING, node, "constant expression nested too deeply")
        match node:
            case Token(type="INT"):
                return integer(node)
            case Token(type="FLOAT"):
                return floating(node)
            case Token(type="NAME"):
                return self.known_symbol(node)
            case RawUnary(operator=operator, value=inner):
                return self._unary(operator, self.value(inner, depth + 1))
            case RawGeneric(prefix=Token(type="NAME") as prefix, value=inner):
                self.source.refuse(prefix != "generic", prefix, f"expected 'generic(symbol)', found '{prefix}('")
                found = self.value(inner, depth + 1)
                return replace(found, generic=True) if isinstance(found, Symbol) else found
            case list():
                return self._fold(node, depth)
        raise self.source.fail(node, "expected a constant")

    def integer(self, node: Any) -> int:
        value = self.value(node)
        if not isinstance(value, int):
            raise self.source.fail(node, "expected an integer constant")
        return value

    def _unary(self, operator: Token, value: Any) -> int | float:
        if isinstance(value, Symbol) or (operator == "~" and isinstance(value, float)):
            raise self.source.fail(operator, f"'{operator}' cannot be applied to this operand")
        return {"-": lambda: -value, "+": lambda: value, "~": lambda: ~value, "!": lambda: int(not value)}[operator]()

    def _fold(self, items: list[Any], depth: int) -> Any:
        """Operator-precedence evaluation of `atom operator atom ...`, left to right within a level."""
        values: list[Any] = [self.value(items[0], depth + 1)]
        operators: list[Token] = []

        def reduce(level: int) -> None:
            while operators and _LEVEL[operators[-1]] >= level:
                right, left = values.pop(), values.pop()
                values.append(self._binary(operators.pop(), left, right))

        for operator, atom in zip(items[1::2], items[2::2], strict=True):
            reduce(_LEVEL[operator])
            operators.append(operator)
            values.append(self.value(atom, depth + 1))
        reduce(0)
        return values[0]

    def _binary(self, operator: Token, a: Any, b: Any) -> int | float | Symbol:
        if isinstance(a, Symbol) and isinstance(b, int) and operator in ("+", "-"):
            return replace(a, offset=a.offset + (b if operator == "+" else -b))
        if isinstance(b, Symbol) and isinstance(a, int) and operator == "+":
            return replace(b, offset=b.offset + a)
        if not (isinstance(a, int) and isinstance(b, int)):
            raise self.source.fail(operator, f"'{operator}' needs integer constants")
        if operator in ("/", "%"):
            self.source.refuse(b == 0, operator, "division by zero in a constant expression")
            quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
            return quotient if operator == "/" else a - quotient * b
        self.source.refuse(operator in ("<<", ">>") and not 0 <= b < 64, operator, f"shift by {b} is outside 0 to 63")
        return int(_INTEGER_OPERATIONS[str(operator)](a, b))


MAX_NESTING = 64
_PRECEDENCE = "|| , && , | , ^ , & , == != , < > <= >= , << >> , + - , * / %"
_LEVEL = {operator: level for level, own in enumerate(_PRECEDENCE.split(",")) for operator in own.split()}
_INTEGER_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    **{"||": lambda a, b: bool(a) or bool(b), "&&": lambda a, b: bool(a) and bool(b)},
    **{"|": op.or_, "^": op.xor, "&": op.and_, "<<": op.lshift, ">>": op.rshift, "+": op.add, "-": op.sub, "*": op.mul},
    **{"==": op.eq, "!=": op.ne, "<": op.lt, ">": op.gt, "<=": op.le, ">=": op.ge},
}


class Initialiser:
    """Fills the bytes of a variable from its initialiser; elements not named stay zero."""

    def __init__(self, scope: Scope, type_: str, shape: tuple[int, ...]) -> None:
        self.scope, self.type, self.shape = scope, type_, shape
        self.element_bytes = TYPE_BYTES[type_]
        self.data = bytearray(prod(shape) * self.element_bytes)
        self.relocations: list[tuple[int, Symbol]] = []
        self.bytes_to_come = 0  # of addresses that are given byte by byte

    def fill(self, node: Any, first: int = 0, level: int = 0) -> None:
        """Store `node`, which initialises `shape[level:]` from element `first` on."""
        if not isinstance(node, RawElements):
            self._store(node, first)
            return
        stride, extent = prod(self.shape[level + 1 :]), self.shape[level] if level < len(self.shape) else 1
        self.scope.source.refuse(level > max(len(self.shape) - 1, 0), node, "more nested braces than array dimensions")
        nested = any(isinstance(item, RawElements) for item in node.items)
        step, limit = (stride, extent) if nested else (1, extent * stride)
        self.scope.source.refuse(len(node.items) > limit, node, f"{len(node.items)} initialisers for {limit} elements")
        for position, item in enumerate(node.items):
            self.fill(item, first + position * step, level + 1)

    def _store(self, node: Any, element: int) -> None:
        at = element * self.element_bytes
        if isinstance(node, RawGeneric) and node.prefix.type == "INT":
            self._store_address_byte(node, at)
            return
        value = self.scope.value(node)
        if isinstance(value, Symbol):
            if self.element_bytes != 8:
                raise self.scope.source.fail(node, f"an address needs a 64-bit element, not .{self.type}")
            self.relocations.append((at, value))
        else:
            self.data[at : at + self.element_bytes] = self._encode(node, value)

    def _encode(self, node: Any, value: int | float) -> bytes:
        if self.type in ("f16", "f32", "f64"):
            try:
                return struct.pack({"f16": "<e", "f32": "<f", "f64": "<d"}[self.type], value)
            except OverflowError:
                raise self.scope.source.fail(node, f"{value} does not fit in .{self.type}") from None
        if isinstance(value, float):
            raise self.scope.source.fail(node, f"a floating-point value cannot initialise .{self.type}")
        return (value & ((1 << 8 * self.element_bytes) - 1)).to_bytes(self.element_bytes, "little")

    def _store_address_byte(self, node: RawGeneric, at: int) -> None:
        """`0xFF(x), 0xFF00(x), ...`: nvcc's way to write an address into bytes, lowest byte first."""
        symbol, mask = self.scope.value(node.value), integer(node.prefix)
        byte = next((k for k in range(8) if mask == 0xFF << 8 * k), None)
        if self.element_bytes != 1 or byte is None or not isinstance(symbol, Symbol):
            raise self.scope.source.fail(node.prefix, "expected one byte of an address, such as 0xFF00(symbol)")
        if byte == 0:
            self.relocations.append((at, symbol))
            self.bytes_to_come += 8
        elif (at - byte, symbol) not in self.relocations[-1:]:
            raise self.scope.source.fail(node.prefix, "the bytes of an address must follow each other, lowest first")
        self.bytes_to_come -= 1


_MAX_BYTES = 1 << 40
_MAX_ALIGNMENT_BYTES = 1 << 16  # of which ptxas makes gaps, and takes minutes
_MAX_INITIALISED_BYTES = 1 << 28
_MOST_VECTORS = 1 << 16


def declare_variables(item: raw.RawVariable, scope: Scope) -> list[Variable]:
    """The variables of one declaration, entered into `scope`. Raises PtxError."""
    found = []
    for declarator in item.declarators:
        name = declarator.name
        if scope.parent is not None and str(name) in scope.symbols:  # the module allows `.extern` before the definition
            raise scope.source.fail(name, f"variable '{name}' is declared twice")
        owner = f"{scope.function}:" if scope.function and is_static(item) else ""
        scope.symbols[str(name)] = symbol = Symbol(f"{owner}{name}{scope.suffix}")
        scope.source.spaces[symbol.name] = str(item.space)[1:]
        found.append(_variable(item, declarator, scope))
    return found


def is_static(item: raw.RawVariable) -> bool:
    """Does a variable live as long as the module, wherever it is declared?"""
    return str(item.space) in (".global", ".const")


def declare_parameters(items: list[raw.RawVariable], scope: Scope) -> tuple[Parameter, ...]:
    """Parameters with their offsets in the parameter block, entered into `scope`. Raises PtxError."""
    found, offset = [], 0
    for item in items:
        variable = declare_variables(item, scope)[0]
        offset = -(-offset // variable.align) * variable.align
        type_ = str(dict(item.qualifiers)["type"])[1:]
        found.append(Parameter(variable.name, type_, variable.bytes, variable.align, offset))
        offset += variable.bytes
    return tuple(found)


def declare_registers(item: raw.RawRegisters, scope: Scope) -> None:
    """Enter registers and register ranges into `scope`. Raises PtxError."""
    qualifiers = dict(item.qualifiers)
    for name, count in item.names:
        scope.source.refuse("type" not in qualifiers, name, f"expected a type such as .b32 before '{name}'")
        type_ = str(qualifiers["type"])[1:]
        if "vector" in qualifiers:
            _declare_vectors(name, count, int(qualifiers["vector"][2:]), type_, scope)
        elif count is not None:
            scope.ranges.append((str(name), raw.integer(count), type_))
        elif str(name) in scope.registers:
            raise scope.source.fail(name, f"register '{name}' is declared twice")
        else:
            scope.registers[str(name)] = Register(f"{name}{scope.suffix}", type_)


_ELEMENTS = ("xr", "yg", "zb", "wa")  # the two names of each


def _declare_vectors(name: Token, count: Token | None, lanes: int, type_: str, scope: Scope) -> None:
    """Enter a vector register, or a range of them, and its elements. Raises PtxError."""
    numbers = [""] if count is None else [str(k) for k in range(raw.integer(count))]
    scope.source.refuse(lanes > len(_ELEMENTS) or len(numbers) > _MOST_VECTORS, name, f"too many registers in '{name}'")
    for whole in (f"{name}{number}" for number in numbers):
        scope.source.refuse(whole in scope.vectors, name, f"register '{whole}' is declared twice")
        elements = [Register(f"{whole}.{names[0]}{scope.suffix}", type_) for names in _ELEMENTS[:lanes]]
        scope.vectors[whole] = tuple(elements)
        scope.registers |= {f"{whole}.{n}": e for e, names in zip(elements, _ELEMENTS, strict=False) for n in names}


def _variable(item: raw.RawVariable, declarator: raw.RawDeclarator, scope: Scope) -> Variable:
    name, source = declarator.name, scope.source
    type_, lanes, align = _type(item.qualifiers, name, source)
    shape = _shape(declarator, scope) + ((lanes,) if lanes > 1 else ())
    size_bytes = TYPE_BYTES[type_] * prod(shape)
    if size_bytes > (_MAX_BYTES if declarator.initialiser is None else _MAX_INITIALISED_BYTES):
        raise source.fail(name, f"'{name}' takes {size_bytes} bytes, too many for a variable")
    data: bytes | None = None
    relocations: tuple[tuple[int, Symbol], ...] = ()
    if declarator.initialiser is not None:
        initialiser = Initialiser(scope, type_, shape)
        initialiser.fill(declarator.initialiser)
        scope.source.refuse(initialiser.bytes_to_come, name, f"an address in '{name}' lacks some of its 8 bytes")
        data, relocations = bytes(initialiser.data), tuple(initialiser.relocations)
    external, space = item.linkage == ".extern", str(item.space)[1:]
    return Variable(scope.symbols[str(name)].name, space, size_bytes, align, data, external, relocations)


def _type(qualifiers: list[tuple[str, Any]], name: Token, source: Source) -> tuple[str, int, int]:
    """(element type, vector lanes, alignment in bytes)."""
    values: dict[str, Any] = dict(qualifiers)
    source.refuse("type" not in values, name, f"expected a type such as .b32 before '{name}'")
    type_ = str(values["type"])[1:]
    source.refuse(type_ not in TYPE_BYTES, name, f"'{name}' of type .{type_} cannot be kept in memory")
    lanes = int(values["vector"][2:]) if "vector" in values else 1
    own = "align" in values and "pointer" not in values  # else it is that of what a pointer leads to
    align = raw.integer(values["align"]) if own else TYPE_BYTES[type_] * lanes
    source.refuse(align <= 0 or align & (align - 1), name, f"alignment {align} of '{name}' is not a power of two")
    if align > _MAX_ALIGNMENT_BYTES:
        raise source.fail(name, f"alignment {align} of '{name}' is more than {_MAX_ALIGNMENT_BYTES}")
    return type_, lanes, align


def _shape(declarator: raw.RawDeclarator, scope: Scope) -> tuple[int, ...]:
    """Extents of an array; an empty first `[]` is as long as its initialiser, or 0."""
    extents = []
    for position, dimension in enumerate(declarator.dimensions):
        if dimension is not None:
            extents.append(scope.integer(dimension))
        else:
            listed = position == 0 and isinstance(declarator.initialiser, raw.RawElements)
            extents.append(len(declarator.initialiser.items) if listed else 0)
    if any(extent < 0 for extent in extents):
        raise scope.source.fail(declarator.name, f"array '{declarator.name}' has a negative size")
    return tuple(extents)
