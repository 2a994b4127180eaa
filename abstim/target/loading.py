"""A user's own kernel from Python.

    kernel = abstim.load("k.ptx").kernel("k")
    launched = kernel.launch(grid=4, block=256, args=[x, y, np.int32(1024), 0.5])
    abstim.run(launched, gpu="gtx480")      # how long it takes
    x_after, y_after = launched.outputs()   # what it computes

The same from a command line: `parse_argument` reads one `--arg`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from functional.case import Case
from functional.errors import InputError
from functional.ir import TYPE_BYTES, Module, Parameter
from functional.launch import Argument, Pointer, Scalar, Struct, make_launch
from functional.launches_json import DTYPES, SCALARS
from functional.lazy_module import open_module
from functional.link import link
from functional.memory import Memory
from functional.program import Program
from functional.source_lines import naming_source
from functional.symbols import say_unset_constants, set_symbol

_RANDOM_SEED = 2024
_MEMBER = Parameter("a member", "", 0, 1, 0)  # of a structure, of which PTX declares no more than its bytes


def load(path: str | Path) -> LoadedModule:
    """A PTX file. Raises PtxError if it does not parse, InputError if it cannot be read."""
    return LoadedModule(open_module(path))


@dataclass(frozen=True)
class LoadedModule:
    """The kernels of a PTX file. `source`: what the file was compiled from, if the user named that."""

    module: Module
    source: str = ""

    @property
    def kernels(self) -> tuple[str, ...]:
        """Names of the kernels, in file order."""
        return self.module.entries

    def kernel(self, name: str | None = None) -> LoadedKernel:
        """A kernel by name; without one, the only kernel of the file. Raises InputError."""
        if name is None and len(self.kernels) != 1:
            which = ", ".join(self.kernels) or "the file has none"
            raise InputError(f"{self.source or self.module.path}: choose a kernel: {which}")
        return LoadedKernel(self.module, link(self.module, self.kernels[0] if name is None else name))


@dataclass(frozen=True)
class LoadedKernel:
    """A kernel that can be launched."""

    module: Module
    program: Program

    @property
    def name(self) -> str:
        """Of the entry, as in the PTX."""
        return self.program.name

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """What a launch must give values for, in order."""
        return self.program.parameters

    def launch(
        self,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        args: Sequence[Any] = (),
        dynamic_shared_bytes: int = 0,
        symbols: Mapping[str, Any] = MappingProxyType({}),
        cluster: int | Sequence[int] | None = None,
    ) -> LaunchedKernel:
        """A case of one launch, for `abstim.run`.

        `args`, in the order of the kernel's parameters: an array (of numpy, or anything that `as_array` takes) becomes
        a buffer with a copy of its contents (the same array twice is one buffer); Python numbers take the parameter's
        type; numpy scalars keep theirs; a `Struct` may hold arrays and numpy scalars. `symbols`: what variables of the
        module are set to, by name, as arrays or numpy scalars. `cluster`: thread blocks of a cluster, if the kernel
        does not say.
        Raises InputError for a missing, superfluous or ill-fitting argument, or a grid no GPU could launch.
        """
        memory = Memory(self.module.variables)
        buffers: dict[int, tuple[str, np.ndarray]] = {}  # id of the array -> its buffer
        for name, value in symbols.items():
            set_symbol(memory, name, np.asarray(value))
        say_unset_constants(self.program, symbols)
        arguments = [_placed(argument, f"arg{position}", memory, buffers) for position, argument in enumerate(args)]
        launch = make_launch(self.program, grid, block, arguments, memory, dynamic_shared_bytes, cluster=cluster)
        arrays = {name: array for name, array in buffers.values()}
        dtypes = {name: array.dtype for name, array in arrays.items()}
        return LaunchedKernel(
            name=self.name, module=self.module, memory=memory, launches=(launch,), dtypes=dtypes, arrays=arrays
        )

    def parse_arguments(self, texts: Sequence[str]) -> list[np.ndarray | Scalar | Struct]:
        """The `--arg`s of a command line, one a parameter. Raises InputError if there are too many or too few."""
        if len(texts) != len(self.parameters):
            expected = ", ".join(f"{p.name} (.{p.type})" for p in self.parameters) or "none"
            raise InputError(
                f"kernel '{self.name}' takes {len(self.parameters)} arguments, {len(texts)} were given: {expected}"
            )
        return [parse_argument(text, p) for text, p in zip(texts, self.parameters, strict=True)]


def _placed(argument: Any, name: str, memory: Memory, buffers: dict[int, tuple[str, np.ndarray]]) -> Argument:
    """An argument whose arrays are buffers."""
    if isinstance(argument, Struct):
        members = enumerate(argument.members)
        return Struct(tuple(_placed(member, f"{name}_{k}", memory, buffers) for k, member in members))
    array = as_array(argument)
    if array is None:
        return argument
    name, array = buffers.setdefault(id(argument), (name, array))
    if name not in memory.buffers:
        _allocate(memory, name, array)
    return Pointer(name)


def as_array(argument: Any) -> np.ndarray | None:
    """A numpy array of what has `__array__` or, on the CPU, `__dlpack__` (PyTorch, JAX, CuPy's host copies); None for
    anything else. Raises InputError for what lies in another device's memory, or cannot be read."""
    if isinstance(argument, np.ndarray):
        return argument
    if isinstance(argument, np.generic) or not (hasattr(argument, "__array__") or hasattr(argument, "__dlpack__")):
        return None
    try:
        return np.asarray(argument) if hasattr(argument, "__array__") else np.from_dlpack(argument)
    except (TypeError, ValueError, BufferError, RuntimeError) as error:
        raise InputError(f"a {type(argument).__name__} cannot be read as an array: {error}") from None


@dataclass
class LaunchedKernel(Case):
    """A `Case` made from Python arguments. `arrays`: buffer name -> the array given for it (never written to)."""

    arrays: dict[str, np.ndarray] = field(default_factory=dict)

    def outputs(self) -> tuple[np.ndarray, ...]:
        """What the kernel leaves in each array argument: executes it and returns new arrays of the same shapes."""
        memory = self._executed()
        return tuple(self.buffer(name, memory).reshape(array.shape) for name, array in self.arrays.items())

    def printed(self) -> tuple[str, ...]:
        """What the kernel prints with `printf`, a call each, by thread block: executes it."""
        return tuple(self._executed().printed.calls)

    def _executed(self) -> Memory:
        from abstim.target.executors import chosen_executor

        memory, executor = self.memory.copy(), chosen_executor()
        for launch in self.launches:
            with naming_source(launch.program):
                executor.run(launch, memory)
        return memory


def parse_argument(text: str, parameter: Parameter) -> np.ndarray | Scalar | Struct:
    """One `--arg`: an array (a buffer to be) or a scalar.

    `i32:5`, `f32:0.5` are scalars of that type; `5` and `0.5` take the parameter's type; `buf:f32:1024` is a buffer of
    1024 zeros, `buf:f32:1024:random` one of uniform values (floats from 0 to 1, integers below 1024, so that
    they can be indices; from a fixed seed); `npy:x.npy` holds that file; `struct(f32:1,f32:2,buf:f32:16)` is a
    structure of such members. Raises InputError for anything else.
    """
    kind, separator, rest = text.partition(":")
    where = f"argument '{text}' for {parameter.name}"
    if text.startswith("struct(") and text.endswith(")"):
        members = _split(text.removeprefix("struct(")[:-1])
        given: list[Any] = [parse_argument(member, _MEMBER) for member in members]  # arrays become pointers in a launch
        return Struct(tuple(given))
    if not separator:
        return _plain(text, parameter, where)
    if kind == "buf":
        return _buffer(rest, parameter, where)
    if kind == "npy":
        return _npy(rest, where)
    if kind not in SCALARS:
        types = ", ".join(SCALARS)
        raise InputError(f"{where}: expected buf:TYPE:COUNT, npy:FILE, a number, or TYPE:VALUE with {types}")
    return Scalar(kind, _number(rest, kind.startswith("f"), where))


def _split(text: str) -> list[str]:
    """At commas that stand in no parentheses."""
    parts, depth = [""], 0
    for sign in text:
        depth += {"(": 1, ")": -1}.get(sign, 0)
        if sign == "," and not depth:
            parts.append("")
        else:
            parts[-1] += sign
    return parts


def _plain(text: str, parameter: Parameter, where: str) -> Scalar:
    if parameter is _MEMBER:
        raise InputError(f"{where}: a member needs its type, like f32:1.5")
    if parameter.bytes != TYPE_BYTES.get(parameter.type):
        raise InputError(f"{where}: a structure of {parameter.bytes} bytes is given as struct(f32:1,f32:2,...)")
    if parameter.type.startswith("b"):  # untyped: the number's form decides
        floating = re.fullmatch(r"[+-]?(0[xXbBoO]\w+|\d+)", text) is None
        return Scalar(f"{'f' if floating else 'i'}{8 * parameter.bytes}", _number(text, floating, where))
    return Scalar(parameter.type, _number(text, parameter.type.startswith("f"), where))


def _number(text: str, floating: bool, where: str) -> int | float:
    try:
        return float(text) if floating else int(text, 0)
    except ValueError:
        raise InputError(f"{where}: '{text}' is not {'a number' if floating else 'an integer'}") from None


def _buffer(rest: str, parameter: Parameter, where: str) -> np.ndarray:
    type_, _, size = rest.partition(":")
    count, _, fill = size.partition(":")
    if type_ not in DTYPES:
        raise InputError(f"{where}: expected buf:TYPE:COUNT with a type of {', '.join(DTYPES)}")
    if not count.isdecimal() or fill not in ("", "zero", "random"):
        raise InputError(f"{where}: expected buf:{type_}:COUNT or buf:{type_}:COUNT:random")
    dtype, length = np.dtype(DTYPES[type_]), int(count)
    try:
        if fill != "random":
            return np.zeros(length, dtype)
        generator = np.random.default_rng([_RANDOM_SEED, parameter.offset])
        if dtype.kind == "f":
            return generator.random(length).astype(dtype)
        return generator.integers(0, min(max(length, 1), np.iinfo(dtype).max), length).astype(dtype)
    except (MemoryError, ValueError):
        raise InputError(f"{where}: {length} elements do not fit in this computer's memory") from None


def _npy(file: str, where: str) -> np.ndarray:
    try:
        found = np.load(file, allow_pickle=False)
    except OSError as error:
        raise InputError(f"{where}: cannot read {file}: {error.strerror or error}") from None
    except (ValueError, EOFError):  # NumPy takes it for a pickle, and says how to load one
        found = None
    if not isinstance(found, np.ndarray):
        raise InputError(f"{where}: {file} is no .npy file of numbers; write one with numpy.save")
    return found


def _allocate(memory: Memory, name: str, array: np.ndarray) -> None:
    if array.dtype.kind not in "biufc":
        raise InputError(f"{name}: an array of {array.dtype} cannot be passed to a kernel")
    memory.allocate(name, array.nbytes, array)
