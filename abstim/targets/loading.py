"""A user's own kernels from Python: memory, variables, and launches that work on it in order.

    kernel = abstim.load("k.ptx").kernel("k")
    launched = kernel.launch(grid=4, block=256, args=[x, y, np.int32(1024), 0.5])
    abstim.run(launched, gpu="gtx480")      # how long it takes
    x_after, y_after = launched.outputs()   # what it computes

    program = abstim.load("k.ptx").program()
    program.set("factor", np.float32(2))
    program.launch("scale", grid=4, block=256, args=[x, 1024])
    program.launch("add", grid=4, block=256, args=[x, y, 1024])  # finds what "scale" left in x
    abstim.run(program, gpu="gtx480")
    program.output(y)

The same from a command line: `parse_argument` reads one `--arg`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from pathlib import Path
from types import MappingProxyType
from typing import Any
from zlib import crc32

import numpy as np

from functional.arrays import Bool
from functional.errors import InputError, refuse
from functional.launches.case import Case, Expected, check_order, say_unset_constants, set_pointer, set_symbol
from functional.launches.launch import Argument, Launch, Order, Pointer, Scalar, Struct, device_address, make_launch
from functional.launches.launches_json import SCALARS
from functional.launches.memory import DTYPES, Memory
from functional.programs.link import link
from functional.programs.program import Program
from functional.ptx.ir import TYPE_BYTES, Module, Parameter
from functional.ptx.parser import open_module
from functional.ptx.source import naming_source


@dataclass(repr=False)
class DeviceProgram(Case):
    """A `Case` made from Python. `arrays`: buffer name -> the array whose contents it begins with (never written to).

    The same array is the same buffer, in all launches. All of memory is as it is before the first launch."""

    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    # id of an argument -> its buffer, itself, and what its bytes were
    _names: dict[int, tuple[str, Any, int]] = field(default_factory=dict)
    _programs: dict[str, Program] = field(default_factory=dict)
    _after: tuple[int, Memory] | None = None  # launches, and memory after them

    def set(self, name: str, value: Any) -> None:
        """Give a `.global` or `.const` variable of the module a value: an array, a numpy scalar, or the address of an
        array (`address`). Raises InputError for one that is not there, a value without a type of its own, too many
        bytes, or after a launch."""
        self._refuse_after_launch(what := f"variable '{name}'")
        given = value if isinstance(value, np.generic) else as_array(value)
        if given is None:
            raise InputError(f"{self.name}: {what}: give an array or a number with its type, like numpy.float32(0.5)")
        _check_array(given := np.asanyarray(given), f"{self.name}: {what}")
        set_symbol(self.memory, name, given)

    def launch(
        self, kernel: str | Program, grid: int | Sequence[int], block: int | Sequence[int], args: Sequence[Any] = (),
        dynamic_shared_bytes: int = 0, label: str = "", cluster: int | Sequence[int] | None = None, stream: str = "",
        after: Sequence[Launch] = (), priority: int = 0, programmatic: bool = False,
    ) -> Launch:  # fmt: skip
        """One more launch, of a kernel by its name in PTX or of its C++ function. `args`: see `LoadedKernel.launch`.
        Launches of other streams may run beside it, but those that it comes `after`; of several that may begin that of
        the lowest `priority` does. `programmatic`: it is launched while the one before it on its stream runs.

        Raises InputError for what cannot be launched; then nothing has changed but for buffers of its arrays."""
        if isinstance(kernel, str):
            program = self._programs[kernel] = self._programs.get(kernel) or link(self.module, kernel)
        else:
            program = kernel
        if all(other.program is not program for other in self.launches):
            say_unset_constants(program, self.memory.given)
        arguments = [self._argument(argument, f"arg{position}") for position, argument in enumerate(args)]
        launch = make_launch(program, grid, block, arguments, self.memory, dynamic_shared_bytes, label, cluster)
        numbers, after = {id(other): number for number, other in enumerate(self.launches)}, tuple(after)
        if any(id(other) not in numbers for other in after):
            raise InputError(f"{self.name}: `after` holds what this program has not launched")
        order = Order(stream, tuple(numbers[id(other)] for other in after), priority, programmatic)
        launch = replace(launch, order=order)
        self.launches += (launch,)
        return launch

    def pointer(self, array: Any, offset_bytes: int = 0) -> Pointer:
        """An argument, or a member of a `Struct`, that leads into an array. Raises InputError beyond its end."""
        pointer = Pointer(self._buffer(array, "array"), offset_bytes)
        device_address(pointer, self.memory, self.name)
        return pointer

    def address(self, array: Any, offset_bytes: int = 0) -> np.uint64:
        """The same as a number: for an array of pointers, or a variable that is one."""
        pointer = self.pointer(array, offset_bytes)
        return np.uint64(int.from_bytes(device_address(pointer, self.memory, self.name), "little"))

    def point(self, array: Any, at_bytes: int, to: Any, offset_bytes: int = 0) -> None:
        """Write an address over 8 bytes of an array's buffer: structures in memory that lead to others, or themselves.
        Raises InputError beyond the end of either array, or after a launch."""
        self._refuse_after_launch("a pointer")
        set_pointer(self.memory, self._buffer(array, "array"), at_bytes, self.pointer(to, offset_bytes), self.name)

    def expect(
        self, array: Any, values: np.ndarray, *, rtol: float = 0.0, atol: float = 0.0, first: int = 0,
        compared: Bool[np.ndarray, " value"] | None = None,
    ) -> None:  # fmt: skip
        """What an array must hold after all launches, from element `first` on; `compared`: which of these values count.

        `abstim.run` says whether it does. Raises InputError for values that do not fit."""
        name = self._names[id(array)][0] if id(array) in self._names else self._buffer(array, "array")
        given = np.asarray(values).reshape(-1)
        refuse(given.dtype.kind not in "biufc", f"{self.name}: what is expected of '{name}' is no array of numbers")
        refuse(isinstance(values, np.ma.MaskedArray), f"{self.name}: `compared` says which values count, not a mask")
        for tolerance in (rtol, atol):
            if not isinstance(tolerance, Real) or not tolerance >= 0:
                raise InputError(f"{self.name}: a tolerance is a number from 0 on, not {tolerance!r}")
        with np.errstate(all="ignore"):
            flat = given.astype(self.arrays[name].dtype)
        inexact = flat.dtype.kind not in "fc" and not np.array_equal(flat, given)
        refuse(inexact, f"{self.name}: what is expected of '{name}' cannot be held by its {flat.dtype}")
        mask = None if compared is None else np.asarray(compared).reshape(-1)
        refuse(mask is not None and mask.dtype != bool, f"{self.name}: `compared` is True or False for each value")
        if first < 0 or first + flat.size > self.arrays[name].size or (mask is not None and mask.size != flat.size):
            count = self.arrays[name].size
            raise InputError(f"{self.name}: what is expected of '{name}' does not fit its {count} elements")
        self.expected[name] = Expected(flat, rtol, atol, first, mask)

    def output(self, array: Any) -> np.ndarray:
        """What an array holds after all launches, which are executed. Raises InputError for one that no launch has."""
        refuse(id(array) not in self._names, f"{self.name}: no launch was given this array")
        name = self._names[id(array)][0]
        return self.buffer(name, self._executed()).reshape(self.arrays[name].shape)

    def outputs(self) -> tuple[np.ndarray, ...]:
        """What the launches leave in each array, in the order in which arrays were given: executes them."""
        after = self._executed()
        return tuple(self.buffer(name, after).reshape(array.shape) for name, array in self.arrays.items())

    def variable(self, name: str, dtype: np.dtype | type) -> np.ndarray:
        """What a `.global` variable holds after all launches, one-dimensional. Raises InputError if there is none."""
        regions = self.memory.global_variables
        if name not in regions:
            raise InputError(f"{self.name}: the module has no .global variable '{name}'; it has {', '.join(regions)}")
        return self._executed().bytes_of(regions[name]).copy().view(dtype)

    def printed(self) -> tuple[str, ...]:
        """What the kernels print with `printf`, a call each, by thread block: executes them."""
        return tuple(self._executed().printed.calls)

    def _refuse_after_launch(self, what: str) -> None:
        refuse(self.launches, f"{self.name}: set {what} before the first launch")

    def _argument(self, argument: Any, name: str) -> Argument:
        if isinstance(argument, Struct):
            return Struct(tuple(self._argument(member, f"{name}_{k}") for k, member in enumerate(argument.members)))
        if id(argument) not in self._names and as_array(argument) is None:
            return argument
        return Pointer(self._buffer(argument, name))

    def _buffer(self, argument: Any, name: str) -> str:
        if id(argument) not in self._names:
            array = as_array(argument)
            if array is None:
                raise InputError(f"{self.name}: a {type(argument).__name__} is no array")
            free = name if name not in self.arrays else f"{name} of launch {len(self.launches)}, {len(self.arrays)}"
            _check_array(array, free)
            shared = next((n for n, other in self.arrays.items() if np.shares_memory(array, other)), "")
            rather = "give that one, or, of a program, `pointer` into it"
            refuse(shared, f"{free}: memory of {shared}, given as another array, would be copied once more: {rather}")
            self.memory.allocate(free, array.nbytes, array)
            self.arrays[free], self.dtypes[free], self._after = array, array.dtype, None
            # itself: as long as it is held, no other has its id
            self._names[id(argument)] = free, argument, crc32(np.ascontiguousarray(array).data)
        found, _, digest = self._names[id(argument)]
        if digest != crc32(np.ascontiguousarray(self.arrays[found]).data):
            rather = "launches find there what those before them left; give new contents as another array"
            raise InputError(f"{self.name}: '{found}' has changed since it was given: {rather}")
        return found

    def _executed(self) -> Memory:
        from abstim.targets.execution import chosen_executor

        if self._after is None or self._after[0] != len(self.launches):
            memory, executor = self.memory.copy(), chosen_executor()
            for launch in self.launches:
                with naming_source(launch.program):
                    executor.run(launch, memory)
            self._after = len(self.launches), memory
        return self._after[1]


def _check_array(array: np.ndarray, where: str) -> None:
    refuse(array.dtype.kind not in "biufc", f"{where}: an array of {array.dtype} cannot be passed to a kernel")
    refuse(isinstance(array, np.ma.MaskedArray), f"{where}: a kernel sees no mask; give what is `filled` in")
    check_order(array, where)


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

    def __repr__(self) -> str:
        return f"<{self.source or self.module.path}: kernels {', '.join(self.kernels) or 'none'}>"

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

    def __repr__(self) -> str:
        taken = ", ".join(f"{parameter.name} (.{parameter.type})" for parameter in self.parameters)
        return f"<kernel {self.name} of {self.module.path}: {taken or 'no arguments'}>"

    @property
    def name(self) -> str:
        """Of the entry, as in the PTX."""
        return self.program.name

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """What a launch must give values for, in order."""
        return self.program.parameters

    def launch(
        self, grid: int | Sequence[int], block: int | Sequence[int], args: Sequence[Any] = (),
        dynamic_shared_bytes: int = 0, symbols: Mapping[str, Any] = MappingProxyType({}),
        cluster: int | Sequence[int] | None = None,
    ) -> DeviceProgram:  # fmt: skip
        """A case of one launch, for `abstim.run`.

        `args`, in the order of the kernel's parameters: an array (of numpy, or anything with `__array__` or DLPack on
        the CPU) becomes a buffer with a copy of its contents (the same array twice is one buffer); Python numbers take
        the parameter's type; numpy scalars keep theirs; a `Struct` may hold arrays and numpy scalars. `symbols`: what
        variables of the module are set to, by name, as arrays or numpy scalars. `cluster`: thread blocks of a cluster,
        if the kernel does not say.
        Raises InputError for a missing, superfluous or ill-fitting argument, or a grid no GPU could launch."""
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
            raise InputError(f"{self.program.takes(len(texts))}: {expected}")
        return [parse_argument(text, p) for text, p in zip(texts, self.parameters, strict=True)]


def parse_argument(text: str, parameter: Parameter) -> np.ndarray | Scalar | Struct:
    """One `--arg`: an array (a buffer to be) or a scalar.

    `i32:5`, `f32:0.5` are scalars of that type; `5` and `0.5` take the parameter's type; `buf:f32:1024` is a buffer of
    1024 zeros, `buf:f32:1024:random` one of uniform values (floats from 0 to 1, integers below 1024, so that
    they can be indices; from a fixed seed); `npy:x.npy` holds that file; `struct(f32:1,f32:2,buf:f32:16)` is a
    structure of such members. Raises InputError for anything else."""
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
        try:
            found = np.load(rest, allow_pickle=False)
        except OSError as error:
            raise InputError(f"{where}: cannot read {rest}: {error.strerror or error}") from None
        except (ValueError, EOFError):  # NumPy takes it for a pickle, and says how to load one
            found = None
        if not isinstance(found, np.ndarray):
            raise InputError(f"{where}: {rest} is no .npy file of numbers; write one with numpy.save")
        return found
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
    refuse(parameter is _MEMBER, f"{where}: a member needs its type, like f32:1.5")
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
    refuse(type_ not in DTYPES, f"{where}: expected buf:TYPE:COUNT with a type of {', '.join(DTYPES)}")
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
