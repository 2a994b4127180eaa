"""Compiled functions as the rest of the package calls them: object files kept on disk, loaded without a compiler.

Parts of a function with object files of their own are made by a process each, `python -m functional.jit.machine_code
MODULE NAME`: the type of the part's reference comes in, pickled, and the object file goes out.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from functools import cache, update_wrapper
from importlib import import_module
from inspect import unwrap
from operator import index
from threading import Lock
from typing import Any

import numpy as np

from functional.jit.marked import Known, words_of
from functional.keep.kept import Kept, key
from functional.terminal import note

ENTRY = "entry"  # what a function of Numba's is called in its object file


@cache
def binding() -> Any:
    """llvmlite's binding, ready for this CPU; imported when it is first needed."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm


@cache
def features() -> str:
    """Of this CPU, as LLVM names them."""
    return str(binding().get_host_cpu_features().flatten())


@cache
def target() -> str:
    """What machine code depends on besides its source: the system, the CPU, and the version of LLVM."""
    llvm = binding()
    version = ".".join(map(str, llvm.llvm_version_info))
    return " ".join((llvm.get_default_triple(), llvm.get_host_cpu_name(), features(), version))


def machine(level: int = 1) -> Any:
    """A target machine that emits code to be loaded into this process; `level` of optimisation, 0 the quickest."""
    llvm = binding()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=features(), opt=level, jit=True, reloc="pic", codemodel="jitdefault"
    )


def engine_of(*codes: bytes) -> Any:
    """An engine that holds object files; their other symbols are those of the process. It has to outlive every call."""
    llvm, host = binding(), machine()
    empty = llvm.parse_assembly("")
    empty.triple = host.triple
    engine = llvm.create_mcjit_compiler(empty, host)
    for code in codes:
        engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return engine


class Part:
    """The part `name` of a module, which is imported only if there is no object file yet."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name

    def key(self, kinds: tuple[str, ...]) -> str:
        """Of its object file; `kinds`: the types of the words that it has a reference to."""
        return key((self.module, "functional.jit.machine_code"), "part", self.module, self.name, *kinds, target())

    def make(self, to: Any) -> bytes:
        """An object file, for a reference to a tuple of Numba's type `to`."""
        from functional.jit.compile import part_object_code

        return part_object_code(getattr(import_module(self.module), self.name).function, to)


class Making:
    """Object files on their way, for a reference to `value`, a named tuple of arrays."""

    def __init__(self, parts: tuple[Part, ...], kinds: tuple[str, ...], value: Any) -> None:
        self._kept, self._value, self._names = Kept("objects"), value, {part: part.key(kinds) for part in parts}
        self._found = {part: self._kept.load(name, bytes) for part, name in self._names.items()}
        self._processes = {part: _start(part, self._type()) for part, code in self._found.items() if code is None}

    def _type(self) -> Any:
        from functional.jit.compile import type_of

        return type_of(self._value)

    def finish(self) -> list[bytes]:
        """All of them, once they are there."""
        for part, process in self._processes.items():
            code = _output(process) or part.make(self._type())
            self._kept.save(self._names[part], code)
            self._found[part] = code
        return [code for code in self._found.values() if code is not None]

    def stop(self) -> None:
        """End what has not ended."""
        for process in self._processes.values():
            if process and process.poll() is None:
                process.kill()
                process.wait()


def _start(part: Part, to: Any) -> subprocess.Popen[bytes] | None:
    """A process that makes a part's object file; None if there cannot be one."""
    # -P: what lies in the user's folder is none of its modules
    words = [sys.executable, "-P", "-m", "functional.jit.machine_code", part.module, part.name]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    try:
        process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=nothing, env=environment)
    except OSError:
        return None
    assert process.stdin
    try:
        process.stdin.write(pickle.dumps(to))
        process.stdin.close()
    except OSError:  # it has ended
        pass
    return process


def _output(process: subprocess.Popen[bytes] | None) -> bytes:
    """What a process has written; nothing if it failed."""
    if process is None:
        return b""
    assert process.stdout
    with process.stdout as file:
        code = file.read()
    return b"" if process.wait() else code


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
        kinds, words = flat(arguments)
        entry = self._entries.get(kinds) or self._load(kinds, arguments, len(words))
        returned, exception = ctypes.c_void_p(), ctypes.c_void_p()
        if entry(ctypes.addressof(returned), ctypes.addressof(exception), *words):
            raise ZeroDivisionError(f"in {self._module}.{self._name}")  # nothing else can be raised

    def _load(self, kinds: tuple[str, ...], arguments: tuple[Any, ...], words: int) -> Callable[..., int]:
        with _compiling:
            if kinds not in self._entries:
                engine = engine_of(*self.object_codes(kinds, arguments))
                function = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_int64] * (words + 2))
                self._engines.append(engine)
                self._entries[kinds] = function(engine.get_function_address(ENTRY))
            return self._entries[kinds]

    def object_codes(self, kinds: tuple[str, ...], arguments: tuple[Any, ...]) -> list[bytes]:
        """Of the function and of its parts, which other processes make meanwhile."""
        making = Making(self._parts, flat(arguments[0])[0] if self._parts else (), arguments[0])
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
        return object_code(unwrap(getattr(import_module(self._module), self._name)), arguments, ENTRY)


class Staged:
    """The function `name` of a module, compiled by functional.jit.staged for what is known of it, once for each such
    `Known`. Its arguments are of `kinds`: classes of named tuples, of which the address of their words is passed,
    declarations of arrays, and INT. The interpreter lock is released while it runs."""

    def __init__(self, module: str, name: str, kinds: tuple[Any, ...], notice: str = "") -> None:
        self._module, self._name, self._kinds, self._notice = module, name, kinds, notice
        self._entries: dict[Any, Callable[..., None]] = {}  # by what is known
        self._engines: list[Any] = []

    def __call__(self, known: Known, *arguments: Any) -> None:
        words: list[int] = []
        for argument in arguments:
            words += (argument,) if isinstance(argument, int) else words_of((argument,))
        (self._entries.get(known.key) or self._load(known, len(words)))(*words)

    def _load(self, known: Known, words: int) -> Callable[..., None]:
        with _compiling:
            if known.key not in self._entries:
                name = key((self._module, "functional.jit.staged"), "staged", self._module, self._name, known.key, target())
                engine = engine_of(Kept("objects").load_or_make(name, lambda: self._make(known)))
                self._engines.append(engine)
                kind = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * words)
                self._entries[known.key] = kind(engine.get_function_address(ENTRY))
            return self._entries[known.key]

    def _make(self, known: Known) -> bytes:
        from functional.jit.staged import Unit, object_code

        if self._notice and sys.stderr.isatty():
            note(self._notice)
        unit = Unit(known)
        unit.entry(getattr(import_module(self._module), self._name), self._kinds, ENTRY)
        return object_code(unit)


def compiled(function: Callable[..., None]) -> Native:
    """Decorator: the function as machine code."""
    native = Native(function.__module__, function.__name__)
    update_wrapper(native, function)
    return native


def flat(argument: Any) -> tuple[tuple[str, ...], list[int]]:
    """(type, words) of an argument as Numba hands it over: an array is an owner (none), a parent object (none), its
    size, its element's bytes, its address, its shape and its strides; a record is its address."""
    if isinstance(argument, tuple):
        parts = [flat(part) for part in argument]
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


if __name__ == "__main__":
    sys.stdout.buffer.write(Part(*sys.argv[1:]).make(pickle.load(sys.stdin.buffer)))
