"""A user's own kernel from Python. (Several launches: `device_program.py`.)

    kernel = abstim.load("k.ptx").kernel("k")
    launched = kernel.launch(grid=4, block=256, args=[x, y, np.int32(1024), 0.5])
    abstim.run(launched, gpu="gtx480")      # how long it takes
    x_after, y_after = launched.outputs()   # what it computes

The same from a command line: `parse_argument` reads one `--arg`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from abstim.targets.device_program import DeviceProgram
from functional.errors import InputError
from functional.launches.launch import Scalar, Struct
from functional.launches.launches_json import DTYPES, SCALARS
from functional.launches.memory import Memory
from functional.programs.link import link
from functional.programs.program import Program
from functional.ptx.ir import TYPE_BYTES, Module, Parameter
from functional.ptx.lazy_module import open_module

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

    def program(self) -> DeviceProgram:
        """Memory with the module's variables, and nothing launched yet. Raises InputError if they do not fit."""
        return DeviceProgram(self.source or self.module.path, self.module, Memory(self.module.variables), ())


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
    ) -> DeviceProgram:
        """A case of one launch, for `abstim.run`.

        `args`, in the order of the kernel's parameters: an array (of numpy, or anything with `__array__` or DLPack on
        the CPU) becomes a buffer with a copy of its contents (the same array twice is one buffer); Python numbers take
        the parameter's type; numpy scalars keep theirs; a `Struct` may hold arrays and numpy scalars. `symbols`: what
        variables of the module are set to, by name, as arrays or numpy scalars. `cluster`: thread blocks of a cluster,
        if the kernel does not say.
        Raises InputError for a missing, superfluous or ill-fitting argument, or a grid no GPU could launch.
        """
        program = LoadedModule(self.module).program()
        for name, value in symbols.items():
            program.set(name, value)
        program.launch(self.program, grid, block, args, dynamic_shared_bytes, cluster=cluster)
        program.name = self.name
        return program

    def parse_arguments(self, texts: Sequence[str]) -> list[np.ndarray | Scalar | Struct]:
        """The `--arg`s of a command line, one a parameter. Raises InputError if there are too many or too few."""
        if len(texts) != len(self.parameters):
            expected = ", ".join(f"{p.name} (.{p.type})" for p in self.parameters) or "none"
            raise InputError(
                f"kernel '{self.name}' takes {len(self.parameters)} arguments, {len(texts)} were given: {expected}"
            )
        return [parse_argument(text, p) for text, p in zip(texts, self.parameters, strict=True)]


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
