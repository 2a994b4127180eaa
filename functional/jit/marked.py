"""Functions that are compiled when they are called from compiled code, marked without a compiler.

    @jit
    def touch(sm, last_use, k):
        sm.stamp += 1
        last_use[k] = sm.stamp

They work on whole numbers, records, arrays and named tuples of these. `staged.py` compiles them for what is known when
it does.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np

WORD_BYTES = 8
INT = "int"  # a whole number, among the kinds of arguments


class Array(NamedTuple):
    """How an array of a named tuple is declared: its dimensions by name ("": a record alone), and its type."""

    dimensions: str
    dtype: Any = np.int64


class Part(NamedTuple):
    """The same of a named tuple of arrays: some of its dimensions have other names where it is a part."""

    kind: Any
    names: dict[str, str] = {}  # noqa: RUF012 (of a tuple, which nobody changes)


class View(NamedTuple):
    """A named tuple of which one row is seen of all arrays whose first dimension is `fixed`."""

    kind: Any
    fixed: str


class Field(NamedTuple):
    """Of a named tuple that compiled code sees as words: its first word, an address; the named tuple that it is, or its
    type, its dimensions and the word of their first size, and `tag`, which arrays have in common that may overlap."""

    word: int
    kind: Any
    dtype: np.dtype = np.dtype(np.int64)
    dimensions: int = 0
    first_size: int = 0
    tag: str = ""


@cache
def layout(kind: Any) -> dict[str, Field]:
    """The fields of a named tuple or a View, by name."""
    found: dict[str, Field] = {}
    own, fixed = kind if isinstance(kind, View) else (kind, None)
    word = 0
    for name, field in own._field_defaults.items():
        if field == INT:
            found[name] = Field(word, INT)
            word += 1
        elif isinstance(field, Part):
            found[name] = Field(word, View(field.kind, fixed) if fixed else field.kind)
            word += length(field.kind)
        else:
            names = field.dimensions.split()
            seen = fixed in names[:1]
            tag = f"{own.__name__}.{name}"
            found[name] = Field(word, None, np.dtype(field.dtype), len(names) - seen, word + 1 + seen, tag)
            word += 1 + len(names)
    return found


def length(kind: Any) -> int:
    """How many words a named tuple, or a View of it, is: as many, some of them not used."""
    own = kind.kind if isinstance(kind, View) else kind
    each = own._field_defaults.values()
    return sum(
        1 if f == INT else length(f.kind) if isinstance(f, Part) else 1 + len(f.dimensions.split()) for f in each
    )


def words_of(value: Any) -> list[int]:
    """The words of a named tuple of C-contiguous arrays, and whole numbers."""
    words: list[int] = []
    for one in value:
        if isinstance(one, tuple):
            words += words_of(one)
        elif isinstance(one, (int, np.integer)):
            words.append(int(one))
        else:
            array = np.asarray(one)
            if not (array.flags.c_contiguous and array.flags.aligned):
                raise ValueError("an array is not contiguous, or not aligned")
            words += (array.ctypes.data, *array.shape)
    return words


def kind_of(value: Any) -> Any:
    """The kind of an argument: of an array, a record, a whole number, or a tuple of these."""
    if isinstance(value, tuple):
        names = getattr(value, "_fields", tuple(f"part{k}" for k in range(len(value))))
        return _tuple_of(type(value).__name__, names, tuple(map(kind_of, value)))
    if isinstance(value, (np.ndarray, np.void)):
        return Array("n " * value.ndim, value.dtype)
    return INT


@cache
def _tuple_of(name: str, names: tuple[str, ...], kinds: tuple[Any, ...]) -> Any:
    """A class of named tuples whose fields are declared; one for all that are alike."""
    parts = [kind if kind == INT or isinstance(kind, Array) else Part(kind) for kind in kinds]
    return namedtuple(name, names, defaults=parts)


def described(kind: Any) -> str:
    """A kind in words, to tell it from others."""
    if kind == INT or isinstance(kind, Array):
        return str(kind)
    own = kind.kind if isinstance(kind, (Part, View)) else kind
    return f"{own.__name__}({', '.join(f'{name}: {described(one)}' for name, one in own._field_defaults.items())})"


class Known(NamedTuple):
    """What is known when code is compiled."""

    key: str = ""  # names all of it
    fields: Mapping[np.dtype, Mapping[str, int]] = {}
    constant: frozenset[Any] = frozenset()  # types of records, and arrays ("Streams.blocks"), that nobody writes to
    checked: bool = False  # stop the process (SIGILL) at an index out of range


class Marked:
    """A function to be compiled; called from Python, it is run as Python."""

    def __init__(self, function: Callable[..., Any], outlined: bool = False) -> None:
        self.function, self.outlined = function, outlined
        self.__doc__, self.__name__ = function.__doc__, function.__name__

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)


def jit(function: Callable[..., Any]) -> Any:
    """Decorator: becomes a part of its callers, as far as the optimiser finds that worth it."""
    return Marked(function)


def outlined(function: Callable[..., Any]) -> Any:
    """Decorator: stays a function, because it runs long or is called from many places."""
    return Marked(function, True)


class Operation:
    """What compiled code does by a method of the compiler, or by the LLVM IR that `emit` writes."""

    def __init__(self, name: str, emit: Callable[..., Any] | None = None) -> None:
        self.name, self.emit = name, emit


def operation(emit: Callable[..., Any]) -> Operation:
    """Decorator: `emit(body, ...)` is given the function that is compiled and the arguments, and returns the result."""
    return Operation(emit.__name__, emit)


OPERATORS: dict[str, Callable[..., Any]] = {}  # by kind of a Word that is a vector: (body, name, left, right) -> Word


lowest_bit = Operation("lowest_bit")  # lowest_bit(word): the number of the lowest one of a word that is not 0
refer = Operation("refer")  # refer(kind, words): the named tuple of a kind that words describe (staged.words_of)
zero = Operation(
    "zero"
)  # zero(x): a record, an array, or all arrays of a named tuple; zero(array, rows): the first of it
# Words that several threads read and write: what is written before a store is seen by whoever loads what it stored
load = Operation("load")  # load(words, k): words[k]
store = Operation("store")  # store(words, k, value): words[k] = value
add = Operation("add")  # add(words, k, value): words[k] += value; returns what was there
raise_to = Operation("raise_to")  # raise_to(words, k, value): words[k] = max(words[k], value); returns what was there
pause = Operation("pause")  # pause(): a moment's rest for a thread that waits for another
sleep = Operation("sleep")  # sleep(microseconds): let others have the processor; 0: only if they want it
