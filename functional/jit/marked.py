"""Functions that are compiled when they are called from compiled code, without a compiler.

    def touch(sm, last_use, k):
        sm.stamp += 1
        last_use[k] = sm.stamp

They work on whole numbers, records, arrays and named tuples of these. `staged.py` compiles them, and what they call,
for what is known when it does. They become parts of their callers, as far as the optimiser finds that worth it, but for
those that are `outlined`."""

import ctypes
import platform
from collections import namedtuple
from collections.abc import Callable, Mapping
from functools import cache
from operator import index
from typing import Any, NamedTuple

import numpy as np

from functional.jit.values import INT, Rows, Tuple, Word

WORD_BYTES = 8


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


of: Any = Array  # for the type checker a field is what is made of its declaration
part: Any = Part
CACHE_LINE_BYTES = 64  # of the CPU that runs this


def record(*fields: str | tuple, kind: type = np.int64) -> np.dtype:
    """A record of fields of one kind, and of others where (names, type) or (names, type, shape) says so; a text names
    one or several."""
    each = ((field, kind) if isinstance(field, str) else field for field in fields)
    return np.dtype([(name, *form) for names, *form in each for name in names.split()], align=True)


def in_whole_lines(kind: np.dtype) -> np.dtype:
    """The same record, of which many are side by side, each on lines of the simulating CPU's cache of its own."""
    fields: Any = kind.fields
    found: Any = {"formats": [fields[n][0] for n in fields], "offsets": [fields[n][1] for n in fields]}
    found |= {"names": [*fields], "itemsize": -(-kind.itemsize // CACHE_LINE_BYTES) * CACHE_LINE_BYTES}
    return np.dtype(found)


class Field(NamedTuple):
    """Of a named tuple that compiled code sees as words: its first word, an address; the named tuple that it is, or its
    type, the names of its dimensions and the word of their first size, and `tag`, which arrays have in common that may
    overlap."""

    word: int
    kind: Any
    dtype: np.dtype = np.dtype(np.int64)
    dimensions: tuple[str, ...] = ()
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
            found[name] = Field(word, None, np.dtype(field.dtype), tuple(names[seen:]), word + 1 + seen, tag)
            word += 1 + len(names)
    return found


@cache
def length(kind: Any) -> int:
    """How many words a named tuple, or a View of it, is: as many, some of them not used."""
    own = kind.kind if isinstance(kind, View) else kind
    each = own._field_defaults.values()
    return sum(
        1 if f == INT else length(f.kind) if isinstance(f, Part) else 1 + len(f.dimensions.split()) for f in each
    )


def _stored_address(array: np.ndarray) -> int:
    """Where an array's data are, as CPython stores it: the first field behind the object's head."""
    return ctypes.c_size_t.from_address(id(array) + object.__basicsize__).value


# What says where an array's data are: NumPy's own way takes three microseconds, and a call passes dozens
_PROBE = np.zeros(1)
_AS_STORED = _stored_address(_PROBE) == _PROBE.ctypes.data
address_of: Callable[[np.ndarray], int] = _stored_address if _AS_STORED else lambda array: int(array.ctypes.data)
_LAID_OUT = 0x101  # NPY_ARRAY_C_CONTIGUOUS and NPY_ARRAY_ALIGNED, in one look


def words_of(value: Any, shown: list[Any] | None = None) -> list[int]:
    """The words of a named tuple of C-contiguous arrays, and whole numbers; `shown` gets what tells their kinds."""
    words: list[int] = []
    for one in value:
        if isinstance(one, (np.ndarray, np.void)):
            array = one if type(one) is np.ndarray else np.asarray(one)
            if array.flags.num & _LAID_OUT != _LAID_OUT:
                raise ValueError("an array is not contiguous, or not aligned")
            words += (address_of(array), *array.shape)
            seen: Any = array.dtype, array.ndim
        elif isinstance(one, tuple):
            words += words_of(one, shown)
            seen = type(one), len(one)
        else:
            words.append(index(one))
            seen = None
        if shown is not None:
            shown.append(seen)
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
    sizes: Mapping[str, int] = {}  # by the name of a dimension
    checked: bool = False  # stop the process (SIGILL) at an index out of range


class Marked:
    """A function to be compiled; called from Python, it is run as Python."""

    symbol, inline = "", False  # its name in the object file, if it has one there; is it always a part of its callers?
    loops = ""  # metadata of those that go over a range

    def __init__(self, function: Callable[..., Any], outlined: bool = False) -> None:
        self.function, self.outlined = function, outlined
        self.attributes = "nounwind noinline" if outlined else "nounwind"
        self.names: Mapping[str, Any] = function.__globals__
        self.__doc__, self.__name__ = function.__doc__, function.__name__

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)


def outlined(function: Callable[..., Any]) -> Any:
    """Decorator: stays a function, because it runs long or is called from many places."""
    return Marked(function, True)


def vectors(function: Callable[..., Any]) -> Any:
    """Decorator: stays a function, and its loops over a range are made into vectors, as no others are."""
    marked = Marked(function, True)
    marked.loops = ", !llvm.loop !3"
    return marked


class Operation:
    """Decorator: what compiled code does by LLVM IR. `emit(body, ...)` writes it, given the function that
    is compiled and the arguments, and returns the result."""

    def __init__(self, emit: Callable[..., Any]) -> None:
        self.emit = emit
        self.__doc__ = emit.__doc__


@Operation
def lowest_bit(body: Any, word: Word) -> Word:
    """The number of the lowest one of a word that is not 0."""
    body.unit.declarations.add("declare i64 @llvm.cttz.i64(i64, i1)")
    return Word(body.new(f"call i64 @llvm.cttz.i64(i64 {word.name}, i1 true)"), INT)


@Operation
def members(body: Any, word: Word) -> None:
    """The numbers of the ones of a word as it is now, the lowest first: `for k in members(word)`."""
    raise TypeError("`members` stands in a `for` alone")


@Operation
def ones(body: Any, word: Word) -> Word:
    """How many bits of a word are 1."""
    body.unit.declarations.add("declare i64 @llvm.ctpop.i64(i64)")
    return Word(body.new(f"call i64 @llvm.ctpop.i64(i64 {word.name})"), INT)


@Operation
def refer(body: Any, kind: Any, words: Rows) -> Tuple:
    """The named tuple of a kind that words describe."""
    return Tuple(words.name, kind)


@Operation
def zero(body: Any, what: Any, rows: Any = None) -> None:
    """Make a record, an array, or all arrays of a named tuple zero; of an array with `rows`, so many of the first."""
    if isinstance(what, Tuple):
        for name in layout(what.kind):
            zero.emit(body, body.attribute(what, name))
    else:
        body.fill(what if rows is None else what._replace(sizes=(rows, *what.sizes[1:])), 0)


# Words that several threads read and write: what is written before a store is seen by whoever loads what it stored


@Operation
def load(body: Any, words: Rows, k: Any) -> Word:
    """words[k]"""
    return Word(body.new(f"load atomic i64, ptr {body.element(words, [k]).name} seq_cst, align 8"), INT)


@Operation
def store(body: Any, words: Rows, k: Any, value: Any) -> None:
    """words[k] = value"""
    place = body.element(words, [k]).name
    body.do(f"store atomic i64 {body.number(value)}, ptr {place} seq_cst, align 8")


def _replaced(body: Any, how: str, words: Rows, k: Any, value: Any) -> Word:
    place = body.element(words, [k]).name
    return Word(body.new(f"atomicrmw {how} ptr {place}, i64 {body.number(value)} seq_cst"), INT)


@Operation
def add(body: Any, words: Rows, k: Any, value: Any) -> Word:
    """words[k] += value; returns what was there."""
    return _replaced(body, "add", words, k, value)


@Operation
def raise_to(body: Any, words: Rows, k: Any, value: Any) -> Word:
    """words[k] = max(words[k], value); returns what was there."""
    return _replaced(body, "max", words, k, value)


@Operation
def pause(body: Any) -> None:
    """A moment's rest for a thread that waits for another."""
    if platform.machine() in ("x86_64", "AMD64"):
        body.unit.declarations.add("declare void @llvm.x86.sse2.pause()")
        body.do("call void @llvm.x86.sse2.pause()")


@Operation
def sleep(body: Any, microseconds: Any) -> None:
    """Let others have the processor; for 0 only if they want it."""
    body.unit.declarations |= {"declare i32 @sched_yield()", "declare i32 @usleep(i32)"}
    if microseconds == 0:
        body.do("call i32 @sched_yield()")
    else:
        body.do(f"call i32 @usleep(i32 {body.new(f'trunc i64 {body.number(microseconds)} to i32')})")


@Operation
def all_written(body: Any) -> None:
    """What was written before is read after, though by another name: elsewhere arrays of other names lie apart."""
    body.do('call void asm sideeffect "", "~{memory}"()')
