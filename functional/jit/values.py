"""What code is made of while it is compiled: numbers, records, arrays and tuples that LLVM knows by a name."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct

INT, SET, TRUTH, REAL = "int", "set", "truth", "real"  # kinds of numbers: int64, uint64, one bit, float64
_TYPES = {INT: "i64", SET: "i64", TRUTH: "i1", REAL: "double"}


class Word(NamedTuple):
    """A number, or a vector of them, whose kind is LLVM's type."""

    name: str
    kind: str

    @property
    def type(self) -> str:
        """LLVM's."""
        return _TYPES.get(self.kind, self.kind)


class Row(NamedTuple):
    """A record."""

    name: str
    dtype: np.dtype


class Rows(NamedTuple):
    """An array; `sizes` are numbers, or where their words lie; arrays of different `tag`s do not overlap. `stride`: of
    a field of records, their bytes."""

    name: str
    dtype: np.dtype
    sizes: tuple[Any, ...]
    tag: Any
    stride: int = 0


class Tuple(NamedTuple):
    """A named tuple, whose words lie at an address."""

    name: str
    kind: Any


VALUES = (Word, Row, Tuple)  # that LLVM knows as one value


class At(Struct, frozen=True):
    """Where a word lies."""

    name: str


def form_of(value: Any) -> Any:
    """What a function is compiled for: the type of an argument, or its value if it is known."""
    match value:
        case Word(_, kind):
            return kind
        case Row(_, dtype):
            return "row", dtype
        case Rows(_, dtype, sizes, tag, stride):
            return "rows", dtype, tag, stride, tuple(size if isinstance(size, int) else -1 for size in sizes)
        case Tuple(_, kind):
            return "tuple", kind
    return "known", type(value), value


def form_like(value: Any) -> Any:
    """A value of the type of another one."""
    if isinstance(value, (bool, np.bool_)):
        return Word("", TRUTH)
    if isinstance(value, (int, np.integer)):
        return Word("", INT)
    if isinstance(value, float):
        return Word("", REAL)
    if not isinstance(value, VALUES):
        raise TypeError(f"{value} cannot come from a branch")
    return value


def llvm_type(value: Any) -> str:
    """LLVM's type of a value."""
    return value.type if isinstance(value, Word) else "ptr"


def aggregate(values: Sequence[Any]) -> str:
    """LLVM's type of what a function returns."""
    if not values:
        return "void"
    return llvm_type(values[0]) if len(values) == 1 else "{ " + ", ".join(map(llvm_type, values)) + " }"
