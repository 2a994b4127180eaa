"""Constant expressions and the initialisers of variables (PTX ISA, "Initializers")."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from lark import Token

from functional.ptx._syntax import RawElements, RawExpression, RawGeneric, RawUnary, floating, integer
from functional.ptx.ir import TYPE_BYTES, Symbol

Fail = Callable[[Any, str], Exception]  # (token, message) -> the error to raise
MAX_NESTING = 64
_PRECEDENCE = [
    ("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<", ">", "<=", ">="), ("<<", ">>"), ("+", "-"),
    ("*", "/", "%"),
]  # fmt: skip
_LEVEL = {operator: level for level, operators in enumerate(_PRECEDENCE) for operator in operators}


class Constants:
    """Evaluates constant expressions; `resolve(token)` gives the symbol a name stands for."""

    def __init__(self, fail: Fail, resolve: Callable[[Token], Symbol]) -> None:
        self.fail, self.resolve = fail, resolve

    def value(self, node: Any, depth: int = 0) -> int | float | Symbol:
        """The number or address a constant expression stands for."""
        if depth > MAX_NESTING:
            raise self.fail(node, "constant expression nested too deeply")
        match node:
            case Token(type="INT"):
                return integer(node)
            case Token(type="FLOAT"):
                return floating(node)
            case Token(type="NAME"):
                return self.resolve(node)
            case RawUnary(operator=operator, value=inner):
                return self._unary(operator, self.value(inner, depth + 1))
            case RawGeneric(prefix=Token(type="NAME") as prefix, value=inner):
                if prefix != "generic":
                    raise self.fail(prefix, f"expected 'generic(symbol)', found '{prefix}('")
                found = self.value(inner, depth + 1)
                return replace(found, generic=True) if isinstance(found, Symbol) else found
            case RawExpression(items=items):
                return self._fold(items, depth)
        raise self.fail(node, "expected a constant")

    def integer(self, node: Any) -> int:
        """A constant that must be an integer, such as an array size."""
        value = self.value(node)
        if not isinstance(value, int):
            raise self.fail(node, "expected an integer constant")
        return value

    def _unary(self, operator: Token, value: Any) -> int | float:
        if isinstance(value, Symbol) or (operator == "~" and isinstance(value, float)):
            raise self.fail(operator, f"'{operator}' cannot be applied to this operand")
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
            raise self.fail(operator, f"'{operator}' needs integer constants")
        if operator in ("/", "%"):
            return self._divide(operator, a, b)
        if operator in ("<<", ">>") and not 0 <= b < 64:
            raise self.fail(operator, f"shift by {b} is outside 0 to 63")
        return int(_INTEGER_OPERATIONS[str(operator)](a, b))

    def _divide(self, operator: Token, a: int, b: int) -> int:
        if b == 0:
            raise self.fail(operator, "division by zero in a constant expression")
        quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        return quotient if operator == "/" else a - quotient * b


_INTEGER_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "||": lambda a, b: bool(a) or bool(b), "&&": lambda a, b: bool(a) and bool(b),
    "|": lambda a, b: a | b, "^": lambda a, b: a ^ b, "&": lambda a, b: a & b,
    "==": lambda a, b: a == b, "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b, ">": lambda a, b: a > b, "<=": lambda a, b: a <= b, ">=": lambda a, b: a >= b,
    "<<": lambda a, b: a << b, ">>": lambda a, b: a >> b, "+": lambda a, b: a + b, "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
}  # fmt: skip


class Initialiser:
    """Fills the bytes of a variable from its initialiser; elements not named stay zero."""

    def __init__(self, constants: Constants, type_: str, shape: tuple[int, ...]) -> None:
        self.constants, self.type, self.shape = constants, type_, shape
        self.element_bytes = TYPE_BYTES[type_]
        count = 1
        for extent in shape:
            count *= extent
        self.data = bytearray(count * self.element_bytes)
        self.relocations: list[tuple[int, Symbol]] = []

    def fill(self, node: Any, first: int = 0, level: int = 0) -> None:
        """Store `node`, which initialises `shape[level:]` from element `first` on."""
        if not isinstance(node, RawElements):
            self._store(node, first)
            return
        stride, extent = 1, self.shape[level] if level < len(self.shape) else 1
        for inner in self.shape[level + 1 :]:
            stride *= inner
        if level > max(len(self.shape) - 1, 0):
            raise self.constants.fail(node, "more nested braces than array dimensions")
        nested = any(isinstance(item, RawElements) for item in node.items)
        step, limit = (stride, extent) if nested else (1, extent * stride)
        if len(node.items) > limit:
            raise self.constants.fail(node, f"{len(node.items)} initialisers for {limit} elements")
        for position, item in enumerate(node.items):
            self.fill(item, first + position * step, level + 1)

    def _store(self, node: Any, element: int) -> None:
        at = element * self.element_bytes
        if isinstance(node, RawGeneric) and node.prefix.type == "INT":
            self._store_address_byte(node, at)
            return
        value = self.constants.value(node)
        if isinstance(value, Symbol):
            if self.element_bytes != 8:
                raise self.constants.fail(node, f"an address needs a 64-bit element, not .{self.type}")
            self.relocations.append((at, value))
        else:
            self.data[at : at + self.element_bytes] = self._encode(node, value)

    def _encode(self, node: Any, value: int | float) -> bytes:
        if self.type in ("f16", "f32", "f64"):
            try:
                return struct.pack({"f16": "<e", "f32": "<f", "f64": "<d"}[self.type], value)
            except OverflowError:
                raise self.constants.fail(node, f"{value} does not fit in .{self.type}") from None
        if isinstance(value, float):
            raise self.constants.fail(node, f"a floating-point value cannot initialise .{self.type}")
        return (value & ((1 << 8 * self.element_bytes) - 1)).to_bytes(self.element_bytes, "little")

    def _store_address_byte(self, node: RawGeneric, at: int) -> None:
        """`0xFF(x), 0xFF00(x), ...`: nvcc's way to write an address into bytes, lowest byte first."""
        symbol, mask = self.constants.value(node.value), integer(node.prefix)
        byte = next((k for k in range(8) if mask == 0xFF << 8 * k), None)
        if self.element_bytes != 1 or byte is None or not isinstance(symbol, Symbol):
            raise self.constants.fail(node.prefix, "expected one byte of an address, such as 0xFF00(symbol)")
        if byte == 0:
            self.relocations.append((at, symbol))
        elif (at - byte, symbol) not in self.relocations:
            raise self.constants.fail(node.prefix, "the bytes of an address must follow each other, lowest first")
