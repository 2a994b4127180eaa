"""Compiled functions as the rest of the package calls them: machine code kept on disk, loaded without a compiler."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import update_wrapper
from importlib import import_module
from inspect import unwrap
from operator import index
from threading import Lock
from typing import Any

import numpy as np

from functional.jit.compiled_parts import Making, Part
from functional.jit.llvm import ENTRY, engine_of, target
from functional.keep.kept import Kept, key
from functional.terminal import note

_compiling = Lock()


class Native:
    """The function `name` of a module, which is imported only if there is no machine code yet.

    It takes C-contiguous arrays, records, named tuples of arrays, and whole numbers, and returns nothing. The
    interpreter lock is released while it runs. `notice` is said on stderr, if that is a terminal, when it must be
    compiled. `parts`: what it calls that has object files of its own; their references are to the first argument.
    """

    def __init__(self, module: str, name: str, notice: str = "", parts: tuple[Part, ...] = ()) -> None:
        self._module, self._name, self._notice, self._parts = module, name, notice, parts
        self._kept = Kept("objects")
        self._entries: dict[tuple[str, ...], Callable[..., int]] = {}  # by the types of the arguments
        self._engines: list[Any] = []  # which hold the code

    def __call__(self, *arguments: Any) -> None:
        """Raises ValueError for an array that is not contiguous, TypeError for a number that is not whole, and
        ZeroDivisionError."""
        arguments = tuple(a if isinstance(a, (tuple, np.ndarray, np.void)) else int(index(a)) for a in arguments)
        kinds, words = _flat(arguments)
        entry = self._entries.get(kinds) or self._load(kinds, arguments, len(words))
        returned, exception = ctypes.c_void_p(), ctypes.c_void_p()
        if entry(ctypes.addressof(returned), ctypes.addressof(exception), *words):
            raise ZeroDivisionError(f"in {self._module}.{self._name}")  # nothing else can be raised

    def _load(self, kinds: tuple[str, ...], arguments: tuple[Any, ...], words: int) -> Callable[..., int]:
        with _compiling:
            if kinds not in self._entries:
                engine = engine_of(*self._object_codes(kinds, arguments))
                function = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_int64] * (words + 2))
                self._engines.append(engine)
                self._entries[kinds] = function(engine.get_function_address(ENTRY))
            return self._entries[kinds]

    def _object_codes(self, kinds: tuple[str, ...], arguments: tuple[Any, ...]) -> list[bytes]:
        """Of the function and of its parts, which other processes make meanwhile."""
        making = Making(self._parts, _flat(arguments[0])[0] if self._parts else (), arguments[0])
        try:
            return [self._object_code(kinds, arguments), *making.finish()]
        finally:
            making.stop()

    def _object_code(self, kinds: tuple[str, ...], arguments: tuple[Any, ...]) -> bytes:
        """From disk, if it is there. Copies of the sources share it: where they lie is no part of the key."""
        modules = (self._module, "functional.jit.compile")
        return self._kept.load_or_make(
            key(modules, "function", self._module, self._name, *kinds, target()), lambda: self._compile(arguments)
        )

    def _compile(self, arguments: tuple[Any, ...]) -> bytes:
        from functional.jit.compile import object_code

        if self._notice and sys.stderr.isatty():
            note(self._notice)
        return object_code(unwrap(getattr(import_module(self._module), self._name)), arguments)


def compiled(function: Callable[..., None]) -> Native:
    """Decorator: the function as machine code."""
    native = Native(function.__module__, function.__name__)
    update_wrapper(native, function)
    return native


def _flat(argument: Any) -> tuple[tuple[str, ...], list[int]]:
    """(type, words) of an argument as Numba hands it over: an array is an owner (none), a parent object (none), its
    size, its element's bytes, its address, its shape and its strides; a record is its address."""
    if isinstance(argument, tuple):
        parts = [_flat(part) for part in argument]
        return tuple(kind for kinds, _ in parts for kind in kinds), [word for _, words in parts for word in words]
    if isinstance(argument, np.ndarray):
        if not (argument.flags.c_contiguous and argument.flags.aligned):
            raise ValueError("an array is not contiguous, or not aligned")
        address = argument.ctypes.data
        words = [0, 0, argument.size, argument.itemsize, address, *argument.shape, *argument.strides]
        return (f"{argument.dtype.str}:{argument.ndim}",), words
    if isinstance(argument, np.void):
        return (argument.dtype.str,), [np.asarray(argument).ctypes.data]
    return ("int",), [argument]
