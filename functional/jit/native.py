"""Functions written in a small part of Python, made LLVM IR by native_code: the run time of compiled kernels is such.

    @routine
    def lowest_active(ctx: Context, address: Lanes64, mask: I32) -> I64:
        if mask == 0:
            return 0
        return op.reduce_umin(op.where(Flags(mask), address, -1))

Numbers have no sign: `<`, `>>` and `//` are those of unsigned ones. Operations join scalars, vectors and Python
numbers; a scalar goes to all lanes. `T(x)` converts: to fewer or more bits, between addresses and numbers, 32 flags
to the bits of a word. `p[T, i]` is the i-th T at an address, `p + n` lies n bytes further, `p.name` is a field of what
a pointer of a record type points to. `op.name(...)` is a method `op_name` in native_code, else LLVM's
intrinsic, or comparison. What is known when a routine is compiled (numbers, tuples, strings around the function) is
computed then, `if` included.
"""

from __future__ import annotations

import ast
import sys
from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from types import FunctionType
from typing import Any

_BITS = {"ptr": 64, "double": 64, "float": 32}  # of a kind that is no number of bits


@dataclass(frozen=True)
class Type:
    """A type of LLVM: `lanes` of a kind. `fields`: offset in bytes and type of each, of what a pointer points to."""

    kind: str
    lanes: int = 1
    fields: Mapping[str, tuple[int, Type]] = field(default_factory=dict, compare=False)

    def __str__(self) -> str:
        return self.kind if self.lanes == 1 else f"<{self.lanes} x {self.kind}>"

    @property
    def suffix(self) -> str:
        """As the names of intrinsics spell it."""
        kind = {"ptr": "p0", "double": "f64", "float": "f32"}.get(self.kind, self.kind)
        return kind if self.lanes == 1 else f"v{self.lanes}{kind}"

    @property
    def bits(self) -> int:
        """Of all lanes."""
        return (_BITS.get(self.kind) or int(self.kind[1:])) * self.lanes


@dataclass(frozen=True)
class Value:
    """A value of LLVM."""

    name: str
    type: Type

    def __str__(self) -> str:
        return f"{self.type} {self.name}"


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


def record_type(names: tuple[str, ...], pointers: frozenset[str]) -> Any:
    """Pointer to a row of 8-byte fields: addresses, else numbers."""
    return Type("ptr", 1, {name: (8 * n, Pointer if name in pointers else I64) for n, name in enumerate(names)})


class _Operations:
    def __getattr__(self, name: str) -> Any:
        return _Operation(name)


@dataclass(frozen=True)
class _Operation:
    name: str


op: Any = _Operations()
_ALL: dict[str, Routine] = {}


class Routine:
    """A function of the run time; `inline`: into all that call it."""

    def __init__(self, function: FunctionType, name: str, inline: bool, names: Mapping[str, object]) -> None:
        self.name, self.inline, self.module = name, inline, function.__module__
        self.names = ChainMap(dict(names), function.__globals__)
        self._place = function.__code__.co_filename, function.__code__.co_firstlineno
        _ALL[name] = self

    @cached_property
    def node(self) -> ast.FunctionDef:
        """What is written."""
        file, line = self._place
        return _functions(file)[line]

    def type_of(self, node: ast.expr | None) -> Type:
        """The type that an annotation names."""
        if node is None or (isinstance(node, ast.Constant) and node.value is None):
            return Type("void")
        return self.names[node.id]  # type: ignore[attr-defined, no-any-return]

    @cached_property
    def parameters(self) -> list[Value]:
        """What it is called with."""
        return [Value(f"%{a.arg}", self.type_of(a.annotation)) for a in self.node.args.args]

    @property
    def result(self) -> Type:
        """Of what it yields."""
        return self.type_of(self.node.returns)


@cache
def _functions(file: str) -> dict[int, ast.FunctionDef]:
    """Those of a file that are decorated, by the line of their decorator."""
    with open(file, encoding="utf-8") as source:
        nodes = ast.walk(ast.parse(source.read()))
    return {n.decorator_list[0].lineno: n for n in nodes if isinstance(n, ast.FunctionDef) and n.decorator_list}


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
    return tuple(one.name for one in routines(package) if not one.inline)


def routines(package: str) -> list[Routine]:
    """Those of the loaded modules of a package."""
    return [one for one in _ALL.values() if f"{one.module}.".startswith(f"{package}.")]


def routine_named(name: str) -> Routine:
    """Of the modules that are loaded."""
    return _ALL[name]
