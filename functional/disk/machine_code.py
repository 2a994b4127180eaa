"""Compiled functions as the rest of the package calls them: machine code kept on disk, loaded without a compiler."""

from __future__ import annotations

import ctypes
import hashlib
import sys
from collections.abc import Callable
from functools import cache, update_wrapper
from importlib import import_module
from importlib.metadata import version
from inspect import unwrap
from operator import index
from threading import Lock
from typing import Any

import numpy as np

from functional.disk.digest import sources_digest
from functional.disk.folder import cache_dir, note, write_atomic

ENTRY = "entry"  # what a function is called in its object file
_DIGEST_BYTES = 32  # of what follows, at the head of a file
_compiling = Lock()


class Native:
    """The function `name` of a module, which is imported only if there is no machine code yet.

    It takes C-contiguous arrays, records, named tuples of arrays, and whole numbers, and returns nothing. The
    interpreter lock is released while it runs. `notice` is said on stderr, if that is a terminal, when it must be
    compiled.
    """

    def __init__(self, module: str, name: str, notice: str = "") -> None:
        self._module, self._name, self._notice = module, name, notice
        self._folder = cache_dir("engine")
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
                engine = _engine(self._object_code(kinds, arguments))
                function = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_int64] * (words + 2))
                self._engines.append(engine)
                self._entries[kinds] = function(engine.get_function_address(ENTRY))
            return self._entries[kinds]

    def _object_code(self, kinds: tuple[str, ...], arguments: tuple[Any, ...]) -> bytes:
        """From disk, if it is there and whole."""
        path = self._folder / self._key(kinds)
        try:
            data = path.read_bytes()
        except OSError:
            data = b""
        if data and hashlib.sha256(data[_DIGEST_BYTES:]).digest() == data[:_DIGEST_BYTES]:
            return data[_DIGEST_BYTES:]
        from functional.disk.compile import object_code

        if self._notice and sys.stderr.isatty():
            note(self._notice)
        code = object_code(unwrap(getattr(import_module(self._module), self._name)), arguments)
        write_atomic(path, lambda file: file.write(hashlib.sha256(code).digest() + code))
        return code

    def _key(self, kinds: tuple[str, ...]) -> str:
        """Name of the file: of what the machine code is made, and of nothing else, so that copies of the sources share
        it."""
        llvm = _binding()
        parts = (
            sources_digest(self._module), self._module, self._name, *kinds, version("numba"),
            version("llvmlite"), version("numpy"), llvm.get_default_triple(), llvm.get_host_cpu_name(), _features(),
        )  # fmt: skip
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()


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


@cache
def _binding() -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm


@cache
def _features() -> str:
    return str(_binding().get_host_cpu_features().flatten())


def _engine(code: bytes) -> Any:
    """An engine that holds an object file; its other symbols are those of the process."""
    llvm = _binding()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=_features(), jit=True, reloc="pic", codemodel="jitdefault"
    )
    empty = llvm.parse_assembly("")
    empty.triple = machine.triple
    engine = llvm.create_mcjit_compiler(empty, machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return engine
