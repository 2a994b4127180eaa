"""What names mean at one place of a PTX file, and errors with their place."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import Any, TypeVar

from lark import Token

from functional.errors import PtxError
from functional.ptx.ir import Register, Symbol

T = TypeVar("T")


@dataclass(frozen=True)
class Source:
    """A PTX file: its name for messages, the functions it declares, and the spaces of its variables."""

    path: str
    functions: Container[str] = ()
    spaces: dict[str, str] = field(default_factory=dict)

    def fail(self, where: Any, message: str) -> PtxError:
        """The error for a token or a syntax node; the caller raises it."""
        return PtxError(self.path, _line(where), message)


def _line(node: Any) -> int:
    """Line of the first token inside a syntax node."""
    while isinstance(node, (tuple, list)):
        node = next((x for x in node if isinstance(x, (Token, tuple, list)) and x), None)
    return getattr(node, "line", None) or 1


@dataclass
class Scope:
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
        position = self._find(lambda scope: scope.labels.get(str(token)))
        if position is None:
            raise self.source.fail(token, f"label '{token}' is not defined in this function")
        return position

    def target_list(self, token: Token) -> list[Token]:
        """The labels of a `.branchtargets` list. Raises PtxError if there is none."""
        labels = self._find(lambda scope: scope.target_lists.get(str(token)))
        if labels is None:
            raise self.source.fail(token, f"'{token}' is not the label of a .branchtargets list above")
        return labels

    def known_symbol(self, token: Token) -> Symbol:
        """The variable, parameter or function of a name. Raises PtxError if it is not declared."""
        symbol = self.symbol(str(token))
        if symbol is None:
            raise self.source.fail(token, f"'{token}' is not declared")
        return symbol

    def _own_register(self, name: str) -> Register | None:
        register = self.registers.get(name)
        if register is not None:
            return register
        for prefix, count, type_ in self.ranges:
            number = name[len(prefix) :]
            if name.startswith(prefix) and number.isascii() and number.isdecimal() and int(number) < count:
                return self.registers.setdefault(name, Register(f"{name}{self.suffix}", type_))
        return None

    def _find(self, look: Callable[[Scope], T | None]) -> T | None:
        scope: Scope | None = self
        while scope is not None:
            found = look(scope)
            if found is not None:
                return found
            scope = scope.parent
        return None
