"""What a host program does to a GPU, from Python: memory, variables, and launches that work on it in order.

program = abstim.load("k.ptx").program()
program.set("factor", np.float32(2))
program.launch("scale", grid=4, block=256, args=[x, 1024])
program.launch("add", grid=4, block=256, args=[x, y, 1024])  # finds what "scale" left in x
abstim.run(program, gpu="gtx480")
program.output(y)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from functional.errors import InputError
from functional.launches.case import Case, Expected, say_unset_constants, set_pointer, set_symbol
from functional.launches.launch import Argument, Pointer, Struct, device_address, make_launch
from functional.launches.memory import Memory
from functional.programs.link import link
from functional.ptx.source import naming_source

if TYPE_CHECKING:
    from jaxtyping import Bool

    from functional.launches.launch import Launch
    from functional.programs.program import Program


@dataclass
class DeviceProgram(Case):
    """A `Case` made from Python. `arrays`: buffer name -> the array whose contents it begins with (never written to).

    The same array is the same buffer, in all launches. All of memory is as it is before the first launch.
    """

    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    _names: dict[int, tuple[str, Any]] = field(default_factory=dict)  # id of an argument -> its buffer, and itself
    _set: set[str] = field(default_factory=set)
    _programs: dict[str, Program] = field(default_factory=dict)
    _after: tuple[int, Memory] | None = None  # launches, and memory after them

    def set(self, name: str, value: Any) -> None:
        """Give a `.global` or `.const` variable of the module a value: an array, a numpy scalar, or the address of an
        array (`address`). Raises InputError for one that is not there, too many bytes, or after a launch."""
        self._refuse_after_launch(f"variable '{name}'")
        set_symbol(self.memory, name, np.asarray(value))
        self._set.add(name)

    def launch(
        self,
        kernel: str | Program,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        args: Sequence[Any] = (),
        dynamic_shared_bytes: int = 0,
        label: str = "",
        cluster: int | Sequence[int] | None = None,
    ) -> Launch:
        """One more launch, of a kernel by its name in PTX or of its C++ function. `args`: see `LoadedKernel.launch`.

        Raises InputError for what cannot be launched; then nothing has changed but for buffers of its arrays.
        """
        program = self._linked(kernel) if isinstance(kernel, str) else kernel
        if all(other.program is not program for other in self.launches):
            say_unset_constants(program, self._set)
        arguments = [self._argument(argument, f"arg{position}") for position, argument in enumerate(args)]
        launch = make_launch(program, grid, block, arguments, self.memory, dynamic_shared_bytes, label, cluster)
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
        self,
        array: Any,
        values: np.ndarray,
        *,
        rtol: float = 0.0,
        atol: float = 0.0,
        first: int = 0,
        compared: Bool[np.ndarray, " value"] | None = None,
    ) -> None:
        """What an array must hold after all launches, from element `first` on; `compared`: which of these values count.

        `abstim.run` says whether it does. Raises InputError for values that do not fit.
        """
        name = self._buffer(array, "array")
        flat = np.asarray(values, self.arrays[name].dtype).reshape(-1)
        mask = None if compared is None else np.asarray(compared, bool).reshape(-1)
        if first < 0 or first + flat.size > self.arrays[name].size or (mask is not None and mask.size != flat.size):
            count = self.arrays[name].size
            raise InputError(f"{self.name}: what is expected of '{name}' does not fit its {count} elements")
        self.expected[name] = Expected(flat, rtol, atol, first, mask)

    def output(self, array: Any) -> np.ndarray:
        """What an array holds after all launches, which are executed. Raises InputError for one that no launch has."""
        if id(array) not in self._names:
            raise InputError(f"{self.name}: no launch was given this array")
        return self._read(self._names[id(array)][0])

    def outputs(self) -> tuple[np.ndarray, ...]:
        """What the launches leave in each array, in the order in which arrays were given: executes them."""
        return tuple(self._read(name) for name in self.arrays)

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
        if self.launches:
            raise InputError(f"{self.name}: set {what} before the first launch")

    def _linked(self, kernel: str) -> Program:
        if kernel not in self._programs:
            self._programs[kernel] = link(self.module, kernel)
        return self._programs[kernel]

    def _argument(self, argument: Any, name: str) -> Argument:
        """An argument whose arrays are buffers."""
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
            self._allocate(free, array)
            self._names[id(argument)] = free, argument  # itself: as long as it is held, no other has its id
        return self._names[id(argument)][0]

    def _allocate(self, name: str, array: np.ndarray) -> None:
        if array.dtype.kind not in "biufc":
            raise InputError(f"{name}: an array of {array.dtype} cannot be passed to a kernel")
        self.memory.allocate(name, array.nbytes, array)
        self.arrays[name], self.dtypes[name], self._after = array, array.dtype, None

    def _read(self, name: str) -> np.ndarray:
        return self.buffer(name, self._executed()).reshape(self.arrays[name].shape)

    def _executed(self) -> Memory:
        from abstim.targets.executors import chosen_executor

        if self._after is None or self._after[0] != len(self.launches):
            memory, executor = self.memory.copy(), chosen_executor()
            for launch in self.launches:
                with naming_source(launch.program):
                    executor.run(launch, memory)
            self._after = len(self.launches), memory
        return self._after[1]


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
