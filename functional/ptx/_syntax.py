"""The syntax tree of a PTX file, in which names are still text: its nodes, and the builder that lark calls, one method
a rule of grammar.lark.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from lark import Token, Transformer, v_args
from lark.visitors import Discard

from functional.ptx.ir import Immediate

_LONGEST_LITERAL = 2 + 64  # characters, in binary


class RawOffset(NamedTuple):
    """`symbol+8`."""

    name: Token
    offset: int


class RawAddress(NamedTuple):
    """`[base+offset]`, and the coordinates that tex and tensor operations put in the same brackets."""

    base: Token | None
    offset: int
    rest: tuple[Any, ...] = ()


class RawElements(NamedTuple):
    """`{a, b}`."""

    items: tuple[Any, ...]


class RawArguments(NamedTuple):
    """`(a, b)` of a call."""

    items: tuple[Any, ...]


class RawNegated(NamedTuple):
    """`!%p1`."""

    name: Token


class RawPair(NamedTuple):
    """`d|p`."""

    first: Token
    second: Token


class RawInstruction(NamedTuple):
    guard: Token | None
    opcode: Token
    operands: list[Any]


class RawLabel(NamedTuple):
    name: Token


class RawTargets(NamedTuple):
    """`name: .branchtargets a, b;`."""

    name: Token
    labels: list[Token]


class RawScope(NamedTuple):
    statements: list[Any]


class RawRegisters(NamedTuple):
    qualifiers: list[tuple[str, Any]]
    names: list[tuple[Token, Token | None]]


class RawExpression(NamedTuple):
    """Atoms and operators in turn, precedence not yet applied."""

    items: list[Any]


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
    """A number that no register holds."""

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


class TreeBuilder(Transformer):
    """Turns grammar rules into the tuples above as the parser reduces them."""

    def start(self, c: list[Any]) -> RawModule:
        size = c[2] if len(c) > 2 and isinstance(c[2], Token) else None
        return RawModule(c[0], c[1], size, c[2:] if size is None else c[3:])

    def version(self, c: list[Any]) -> Token:
        return c[0]

    target = address_size = version

    # -- declarations
    def module_variable(self, c: list[Any]) -> RawVariable:
        return c[-1] if len(c) == 1 else c[-1]._replace(linkage=str(c[0]))

    def item(self, c: list[Any]) -> Any:
        return c[-1]  # the linkage of a function changes nothing

    def local_variable(self, c: list[Any]) -> RawVariable:
        return c[0]

    def variable(self, c: list[Any]) -> RawVariable:
        qualifiers = [q for q in c[1:] if type(q) is tuple]
        space = Token(c[0].type, ".global") if c[0] == ".tex" else c[0]  # PTX 1.x: a texture reference
        return RawVariable(space, qualifiers, [d for d in c[1:] if isinstance(d, RawDeclarator)])

    parameter = variable

    def align(self, c: list[Any]) -> tuple[str, Any]:
        return "align", c[0]

    def vector(self, c: list[Any]) -> tuple[str, Any]:
        return "vector", c[0]

    def type(self, c: list[Any]) -> tuple[str, Any]:
        return "type", c[0]

    def pointer(self, c: list[Any]) -> tuple[str, Any]:
        return "pointer", None

    def attribute(self, c: list[Any]) -> tuple[str, Any]:
        return "attribute", None

    def declarator(self, c: list[Any]) -> RawDeclarator:
        return RawDeclarator(c[0], c[1:-1], c[-1])

    def dimension(self, c: list[Any]) -> Any:
        return c[0]

    def initialiser(self, c: list[Any]) -> Any:
        return c[0]

    def braces(self, c: list[Any]) -> RawElements:
        return RawElements(tuple(x for x in c if x is not None))

    def expression(self, c: list[Any]) -> RawExpression:
        return RawExpression(c)

    def atom(self, c: list[Any]) -> Any:
        return c[0]

    def unary(self, c: list[Any]) -> RawUnary:
        return RawUnary(c[0], c[1])

    def generic(self, c: list[Any]) -> RawGeneric:
        return RawGeneric(c[0], c[1])

    masked = generic

    def register(self, c: list[Any]) -> tuple[Token, Token | None]:
        return c[0], c[1]

    def registers(self, c: list[Any]) -> RawRegisters:
        names = [x for x in c if isinstance(x[0], Token)]
        return RawRegisters([x for x in c if not isinstance(x[0], Token)], names)

    # -- functions
    def returns(self, c: list[Any]) -> tuple[str, Any]:
        return "returns", [p for p in c if p is not None]

    def parameters(self, c: list[Any]) -> tuple[str, Any]:
        return "parameters", [p for p in c if p is not None]

    def performance(self, c: list[Any]) -> tuple[str, Any]:
        return "performance", (str(c[0])[1:], tuple(integer(x) for x in c[1:] if x is not None))

    def body(self, c: list[Any]) -> tuple[str, Any]:
        return "body", c

    def entry(self, c: list[Any]) -> RawFunction:
        return self._function(c, True)

    def func(self, c: list[Any]) -> RawFunction:
        return self._function(c, False)

    def _function(self, c: list[Any], is_entry: bool) -> RawFunction:
        name = next(x for x in c if isinstance(x, Token))
        parts: dict[str, Any] = dict(x for x in c if type(x) is tuple and x[0] != "performance")
        directives = dict(x[1] for x in c if type(x) is tuple and x[0] == "performance")
        returns, parameters = parts.get("returns", []), parts.get("parameters", [])
        return RawFunction(name, is_entry, returns, parameters, directives, parts.get("body"))

    def alias(self, c: list[Any]) -> RawAlias:
        return RawAlias(c[0], c[1])

    # -- statements
    def pragma(self, c: list[Any]) -> Any:
        return Discard

    def call_targets(self, c: list[Any]) -> Any:
        return Discard

    def label(self, c: list[Any]) -> RawLabel:
        return RawLabel(c[0])

    def branch_targets(self, c: list[Any]) -> RawTargets:
        return RawTargets(c[0], c[1:])

    def scope(self, c: list[Any]) -> RawScope:
        return RawScope(c)

    def instruction(self, c: list[Any]) -> RawInstruction:
        guarded = c[0].type == "GUARD"
        operands = c[2:] if guarded else c[1:]
        return RawInstruction(c[0] if guarded else None, c[guarded], [] if operands == [None] else operands)

    # -- operands
    @v_args(inline=True)
    def integer(self, token: Token) -> Immediate:
        return Immediate(integer(token))

    @v_args(inline=True)
    def floating(self, token: Token) -> Immediate:
        return Immediate(floating(token))

    @v_args(inline=True)
    def negative_integer(self, token: Token) -> Immediate:
        return Immediate(-integer(token))

    @v_args(inline=True)
    def negative_floating(self, token: Token) -> Immediate:
        return Immediate(-floating(token))

    def number(self, c: list[Any]) -> Immediate:
        return c[0]

    @v_args(inline=True)
    def symbol_offset(self, name: Token, sign: Token, value: Token) -> RawOffset:
        return RawOffset(name, -integer(value) if sign == "-" else integer(value))

    @v_args(inline=True)
    def symbol_offset_negative(self, name: Token, sign: Token, value: Token) -> RawOffset:
        return RawOffset(name, integer(value) if sign == "-" else -integer(value))

    def negated(self, c: list[Any]) -> RawNegated:
        return RawNegated(c[0])

    def pair(self, c: list[Any]) -> RawPair:
        return RawPair(c[0], c[1])

    def elements(self, c: list[Any]) -> RawElements:
        return RawElements(() if c == [None] else tuple(c))

    def arguments(self, c: list[Any]) -> RawArguments:
        return RawArguments(() if c == [None] else tuple(c))

    def brackets(self, c: list[Any]) -> RawAddress:
        return c[0]._replace(rest=tuple(c[1:])) if len(c) > 1 else c[0]

    def address(self, c: list[Any]) -> RawAddress:
        return RawAddress(c[0], 0)

    @v_args(inline=True)
    def address_offset(self, name: Token, sign: Token, value: Token) -> RawAddress:
        return RawAddress(name, -integer(value) if sign == "-" else integer(value))

    @v_args(inline=True)
    def address_offset_negative(self, name: Token, sign: Token, value: Token) -> RawAddress:
        return RawAddress(name, integer(value) if sign == "-" else -integer(value))

    @v_args(inline=True)
    def absolute_address(self, number: Immediate) -> RawAddress:
        return RawAddress(None, int(number.value))
