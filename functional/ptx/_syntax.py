"""The syntax tree of a PTX file. Names are still text; _lower.py resolves them."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from lark import Token

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
