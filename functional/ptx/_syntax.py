"""The syntax tree of a PTX file, in which names are still text: its nodes, and the builder that lark calls."""

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from lark import Token, Transformer
from lark.visitors import Discard

from functional.ptx.ir import Immediate

_LONGEST_LITERAL = 2 + 64  # characters, in binary


class RawOffset(NamedTuple):  # symbol+8
    name: Token
    offset: int


class RawAddress(NamedTuple):
    """`[base+offset]`, and the coordinates that tex and tensor operations put in the same brackets."""

    base: Token | None
    offset: int
    rest: tuple[Any, ...] = ()


class RawElements(NamedTuple):  # {a, b}
    items: tuple[Any, ...]


class RawArguments(NamedTuple):  # (a, b) of a call
    items: tuple[Any, ...]


class RawNegated(NamedTuple):  # !%p1
    name: Token


class RawPair(NamedTuple):  # d|p
    first: Token
    second: Token


class RawInstruction(NamedTuple):
    guard: Token | None
    opcode: Token
    operands: list[Any]


class RawTargets(NamedTuple):  # name: .branchtargets a, b;
    name: Token
    labels: list[Token]


class RawRegisters(NamedTuple):
    qualifiers: list[tuple[str, Any]]
    names: list[tuple[Token, Token | None]]


class RawUnary(NamedTuple):
    operator: Token
    value: Any


class RawGeneric(NamedTuple):
    """`generic(symbol)`, or `0xFF00(symbol)`: one byte of an address."""

    prefix: Token
    value: Any


class RawDeclarator(NamedTuple):
    name: Token
    dimensions: list[Any]  # None: `[]`
    initialiser: Any


class RawVariable(NamedTuple):
    space: Token
    qualifiers: list[tuple[str, Any]]
    declarators: list[RawDeclarator]
    linkage: str = ""


class RawFunction(NamedTuple):
    name: Token
    is_entry: bool
    returns: list[RawVariable]
    parameters: list[RawVariable]
    directives: dict[str, tuple[int, ...]]
    statements: list[Any] | None  # None: a declaration without a body


class RawAlias(NamedTuple):
    name: Token
    target: Token


class RawModule(NamedTuple):
    version: Token
    target: Token
    address_size: Token | None
    items: list[Any]


class BadLiteral(Exception):
    def __init__(self, token: str) -> None:
        super().__init__(f"'{token[:24]}' does not fit in 64 bits")
        self.line = getattr(token, "line", None) or 1


def integer(token: str) -> int:
    """The value of a PTX integer literal: decimal, hex, octal or binary, with or without U. Raises BadLiteral."""
    text = token.rstrip("U")
    base = 16 if text[1:2] in ("x", "X") else 2 if text[1:2] in ("b", "B") else 8 if text[0] == "0" else 10
    value = int(text, base) if len(text) <= _LONGEST_LITERAL else 1 << 64
    if value >= 1 << 64:
        raise BadLiteral(token)
    return value


def floating(token: str) -> float:
    """The value of a PTX floating literal: `0f3F800000`, `0d3FF0000000000000` or decimal."""
    if token[:2] in ("0f", "0F"):
        return struct.unpack(">f", bytes.fromhex(token[2:]))[0]
    if token[:2] in ("0d", "0D"):
        return struct.unpack(">d", bytes.fromhex(token[2:]))[0]
    return float(token)


Children = list[Any]


def _made(node: type) -> Callable[[Any, Children], Any]:
    """A rule whose children are the fields of a node."""
    return lambda _, c: node(*c)


def _list_of(node: type) -> Callable[[Any, Children], Any]:
    """A rule of any number of items, perhaps of none."""
    return lambda _, c: node(() if c == [None] else tuple(c))


def _named(name: str, value: Callable[[Children], Any]) -> Callable[[Any, Children], tuple[str, Any]]:
    """A rule that is one of several parts of a declaration: its name, and what it says."""
    return lambda _, c: (name, value(c))


def _number(value: Callable[[Token], int | float], sign: int = 1) -> Callable[[Any, Children], Immediate]:
    return lambda _, c: Immediate(sign * value(c[0]))


def _offset(node: type, positive: str) -> Callable[[Any, Children], Any]:
    """A name with an offset, which is added after the sign `positive` and taken away after the other one."""
    return lambda _, c: node(c[0], integer(c[2]) if c[1] == positive else -integer(c[2]))


class TreeBuilder(Transformer):
    """Turns grammar rules into the tuples above as the parser reduces them."""

    version = target = address_size = local_variable = dimension = initialiser = atom = number = lambda _, c: c[0]
    label = number
    expression = scope = lambda _, c: c  # atoms and operators in turn, precedence not yet applied; statements
    pragma = call_targets = lambda _, c: Discard

    def start(self, c: Children) -> RawModule:
        size = c[2] if len(c) > 2 and isinstance(c[2], Token) else None
        return RawModule(c[0], c[1], size, c[2:] if size is None else c[3:])

    # -- declarations
    align, vector, type = (_named(name, lambda c: c[0]) for name in ("align", "vector", "type"))
    pointer, attribute = (_named(name, lambda c: None) for name in ("pointer", "attribute"))
    unary, generic, masked = _made(RawUnary), _made(RawGeneric), _made(RawGeneric)

    def module_variable(self, c: Children) -> RawVariable:
        return c[-1] if len(c) == 1 else c[-1]._replace(linkage=str(c[0]))

    def item(self, c: Children) -> Any:
        return c[-1]  # the linkage of a function changes nothing

    def variable(self, c: Children) -> RawVariable:
        qualifiers = [q for q in c[1:] if type(q) is tuple]
        space = Token(c[0].type, ".global") if c[0] == ".tex" else c[0]  # PTX 1.x: a texture reference
        return RawVariable(space, qualifiers, [d for d in c[1:] if isinstance(d, RawDeclarator)])

    parameter = variable

    def declarator(self, c: Children) -> RawDeclarator:
        return RawDeclarator(c[0], c[1:-1], c[-1])

    def braces(self, c: Children) -> RawElements:
        return RawElements(tuple(x for x in c if x is not None))

    def register(self, c: Children) -> tuple[Token, Token | None]:
        return c[0], c[1]

    def registers(self, c: Children) -> RawRegisters:
        names = [x for x in c if isinstance(x[0], Token)]
        return RawRegisters([x for x in c if not isinstance(x[0], Token)], names)

    # -- functions
    returns, parameters = (
        _named(name, lambda c: [p for p in c if p is not None]) for name in ("returns", "parameters")
    )
    performance = _named("performance", lambda c: (str(c[0])[1:], tuple(integer(x) for x in c[1:] if x is not None)))
    body = _named("body", lambda c: c)
    alias = _made(RawAlias)

    def entry(self, c: Children) -> RawFunction:
        return self._function(c, True)

    def func(self, c: Children) -> RawFunction:
        return self._function(c, False)

    def _function(self, c: Children, is_entry: bool) -> RawFunction:
        name = next(x for x in c if isinstance(x, Token))
        parts: dict[str, Any] = dict(x for x in c if type(x) is tuple and x[0] != "performance")
        directives = dict(x[1] for x in c if type(x) is tuple and x[0] == "performance")
        returns, parameters = parts.get("returns", []), parts.get("parameters", [])
        return RawFunction(name, is_entry, returns, parameters, directives, parts.get("body"))

    # -- statements
    def branch_targets(self, c: Children) -> RawTargets:
        return RawTargets(c[0], c[1:])

    def instruction(self, c: Children) -> RawInstruction:
        guarded = c[0].type == "GUARD"
        operands = c[2:] if guarded else c[1:]
        return RawInstruction(c[0] if guarded else None, c[guarded], [] if operands == [None] else operands)

    # -- operands
    integer, negative_integer = _number(integer), _number(integer, -1)
    floating, negative_floating = _number(floating), _number(floating, -1)
    negated, pair = _made(RawNegated), _made(RawPair)
    elements, arguments = _list_of(RawElements), _list_of(RawArguments)
    symbol_offset, symbol_offset_negative = _offset(RawOffset, "+"), _offset(RawOffset, "-")
    address_offset, address_offset_negative = _offset(RawAddress, "+"), _offset(RawAddress, "-")

    def brackets(self, c: Children) -> RawAddress:
        return c[0]._replace(rest=tuple(c[1:])) if len(c) > 1 else c[0]

    def address(self, c: Children) -> RawAddress:
        return RawAddress(c[0], 0)

    def absolute_address(self, c: Children) -> RawAddress:
        return RawAddress(None, int(c[0].value))
