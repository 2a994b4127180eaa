"""Compiled functions as the rest of the package calls them: object files kept on disk, loaded without a compiler."""

from __future__ import annotations

import ctypes
import sys
from collections import defaultdict
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


_compiling = Lock()
_making: dict[Any, Lock] = defaultdict(Lock)  # by function and what is known of it


FEW_PASSES = ("always_inliner", "sroa", "instruction_combine", "simplify_cfg")


def assembled(text: str, passes: tuple[str, ...] = (), level: int = 1) -> bytes:
    """An object file of LLVM IR, for this CPU, by passes of these names, else by LLVM's own of the first level: more
    make no code of ours faster. Raises RuntimeError for what is no IR."""
    llvm, host = binding(), machine(level)
    module = llvm.parse_assembly(text, llvm.create_context())
    module.triple, module.data_layout = host.triple, str(host.target_data)
    builder = llvm.create_pass_builder(host, llvm.create_pipeline_tuning_options(speed_level=1))
    manager = llvm.create_new_module_pass_manager() if passes else builder.getModulePassManager()
    for name in passes:
        getattr(manager, f"add_{name}_pass")()
    manager.run(module, builder)
    return bytes(host.emit_object(module))


class Native:
    """The function `name` of a module, which is imported only if there is no machine code yet.

    It takes C-contiguous arrays, records, named tuples of arrays, and whole numbers, and returns nothing. The
    interpreter lock is released while it runs. `notice` is said on stderr, if that is a terminal, when it must be
    compiled.
    """

    def __init__(self, module: str, name: str, notice: str = "") -> None:
        self._module, self._name, self._notice = module, name, notice
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
                engine = engine_of(self.object_code(kinds, arguments))
                function = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_int64] * (words + 2))
                self._engines.append(engine)
                self._entries[kinds] = function(engine.get_function_address(ENTRY))
            return self._entries[kinds]

    def object_code(self, kinds: tuple[str, ...], arguments: tuple[Any, ...]) -> bytes:
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
        self._kept = Kept("objects")
        self._entries: dict[str, Callable[..., None]] = {}  # by what is known
        self._engines: list[Any] = []  # which hold the code

    def __call__(self, known: Known, *arguments: Any) -> None:
        words: list[int] = []
        for argument in arguments:
            words += words_of((argument,)) if isinstance(argument, np.ndarray) else (index(argument),)
        (self._entries.get(known.key) or self._load(known, len(words)))(*words)

    def _load(self, known: Known, words: int) -> Callable[..., None]:
        with _making[self, known.key]:  # what is compiled for something else goes on meanwhile
            if known.key not in self._entries:
                code = self.object_code(known)
                with _compiling:
                    self._engines.append(engine_of(code))
                    kind = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * words)
                    self._entries[known.key] = kind(self._engines[-1].get_function_address(ENTRY))
            return self._entries[known.key]

    def object_code(self, known: Known) -> bytes:
        """From disk, if it is there."""
        modules, checked = (self._module, "functional.jit.staged"), str(known.checked)
        name = key(modules, "staged", self._module, self._name, known.key, checked, target())
        return self._kept.load_or_make(name, lambda: self._compile(known))

    def _compile(self, known: Known) -> bytes:
        from functional.jit.staged import Unit

        if self._notice and sys.stderr.isatty():
            note(self._notice)
        unit = Unit(known)
        unit.entry(getattr(import_module(self._module), self._name), self._kinds, ENTRY)
        return assembled(unit.text())


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
