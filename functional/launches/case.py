"""A case: kernels with their launches, what a host writes to memory before them, and what buffers must hold afterwards.
Launches may be made, executed and dropped one by one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from functional.arrays import Bool, Shaped
from functional.errors import InputError, note, refuse
from functional.execution.executor import Executor, Interleaving
from functional.launches.launch import Launch, Pointer, device_address
from functional.launches.memory import Memory
from functional.programs.registers import Registers, registers_per_thread
from functional.ptx.ir import Module
from functional.traces.trace import Trace

if TYPE_CHECKING:
    from functional.programs.program import Program


class Expected(msgspec.Struct, frozen=True):
    """Contents a buffer must have: |got - values| <= atol + rtol * |values|, exactly equal for integers. `values` are
    those of the buffer's elements from number `first` on; `compared`: which of them count, None: all."""

    values: np.ndarray
    rtol: float = 0.0
    atol: float = 0.0
    first: int = 0
    compared: Bool[np.ndarray, " value"] | None = None

    @property
    def count(self) -> int:
        """How many elements are compared."""
        return int(self.values.size if self.compared is None else np.count_nonzero(self.compared))


class Mismatch(msgspec.Struct, frozen=True):
    """A buffer that differs. `error` is the largest error over its tolerance (inf for NaN and for integers)."""

    buffer: str
    elements: int
    of: int
    first: int  # flat index
    got: float
    expected: float
    error: float

    def __str__(self) -> str:
        differ = f"{self.elements} of {self.of} elements differ"
        return f"{self.buffer}: {differ}, first [{self.first}] is {self.got!r}, expected {self.expected!r}"


@dataclass
class Case:
    """What a target names. `memory` holds the initial state: run on `memory.copy()` to keep it."""

    name: str
    module: Module
    memory: Memory
    launches: tuple[Launch, ...]
    expected: dict[str, Expected] = field(default_factory=dict)
    dtypes: dict[str, np.dtype] = field(default_factory=dict)  # of the buffers, where known
    group: str = ""
    resources: Mapping[str, int] = field(default_factory=dict)  # kernel -> registers a thread, from resources.json
    traces: tuple[Trace, ...] = ()  # one a launch, recorded elsewhere: nothing is executed then

    def __repr__(self) -> str:
        number = len(self.launches)
        return f"<{self.name}: {number:,} launch{'es' * (number != 1)}>"

    def registers(self, launch: Launch) -> Registers:
        """Registers a thread of a launched kernel, and where the number is from."""
        if self.module.target == "sass":
            return Registers(self.resources[launch.program.name], "trace header")
        return registers_per_thread(launch.program, self.module.target, self.resources)

    def to_execute_on(self) -> Memory:
        """What the launches work on. Raises InputError for a case that has none."""
        return self.memory.copy()

    def compare(self, memory: Memory) -> list[Mismatch]:
        """The buffers of `memory` that are not as expected."""
        found = (compare(name, self.buffer(name, memory), e) for name, e in self.expected.items())
        return [mismatch for mismatch in found if mismatch is not None]

    def buffer(self, name: str, memory: Memory | None = None) -> np.ndarray:
        """Contents of a buffer (a copy, one-dimensional); of the initial memory if none is given."""
        return (memory or self.memory).read(name, self.dtypes.get(name, np.dtype(np.uint8)))


def compare(name: str, got: np.ndarray, expected: Expected) -> Mismatch | None:
    """How a buffer differs from what is expected, or None."""
    values = expected.values.reshape(-1)
    got = got[expected.first : expected.first + values.size]
    floating = values.dtype.kind == "f"
    wrong = ~_close(got, values, expected) if floating else got != values
    if expected.compared is not None:
        wrong &= expected.compared
    if not wrong.any():
        return None
    first = int(np.argmax(wrong))
    worst = np.inf
    if floating:
        reference = values[wrong].astype(np.float64)
        with np.errstate(all="ignore"):
            fraction = np.abs(got[wrong] - reference) / (expected.atol + expected.rtol * np.abs(reference))
        worst = float(np.nan_to_num(fraction, nan=np.inf, posinf=np.inf).max())
    found, wanted = got[first].item(), values[first].item()
    return Mismatch(name, int(wrong.sum()), expected.count, expected.first + first, found, wanted, worst)


def _close(got: np.ndarray, values: np.ndarray, expected: Expected) -> np.ndarray:
    """Is each element within its tolerance? NaN and infinities never are."""
    with np.errstate(all="ignore"):
        error = np.subtract(got, values, dtype=np.float64)
        np.abs(error, out=error)
        tolerance = np.abs(values, dtype=np.float64)
        tolerance *= expected.rtol
        tolerance += expected.atol
        return (error <= tolerance) & (error < np.inf)


def check_order(array: Shaped[np.ndarray, "*shape"], where: str) -> None:
    """Raises InputError for an array whose bytes a kernel would find in another order than they seem to be in."""
    dtype, rather = array.dtype, "numpy's `ascontiguousarray` makes rows of it, its `.T` has the columns as they lie"
    refuse(not dtype.isnative, f"{where}: {dtype} has its bytes in an order that no GPU reads; see numpy's `byteswap`")
    refuse(array.flags.fnc, f"{where}: an array in Fortran's order, column by column; {rather}")


def set_symbol(memory: Memory, name: str, values: Shaped[np.ndarray, "*shape"], where: str = "symbols") -> None:
    """Write the first bytes of a `.global` or `.const` variable. InputError for no such one, or too many bytes."""
    is_constant = name in memory.const_variables
    region = memory.const_variables.get(name) or memory.global_variables.get(name)
    if region is None:
        known = ", ".join([*memory.const_variables, *memory.global_variables]) or "none"
        raise InputError(f"{where}: the module has no variable '{name}'; it has {known}")
    data = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    refuse(data.size > region.bytes, f"{where}: variable '{name}' has {region.bytes} bytes, {data.size} are given")
    place = memory.const_arena[region.address :] if is_constant else memory.bytes_of(region)
    place[: data.size] = data
    memory.given.add(name)


def set_pointer(memory: Memory, buffer: str, at_bytes: int, to: Pointer, where: str = "pointers") -> None:
    """Write an address into a buffer: that of a place in another, or in itself. Raises InputError for a buffer that is
    not there, or a place beyond its end."""
    refuse(buffer not in memory.buffers, f"{where}: there is no buffer '{buffer}'")
    place, data = memory.bytes_of(memory.buffers[buffer]), device_address(to, memory, where)
    if not 0 <= at_bytes <= place.size - len(data):
        raise InputError(f"{where}: a pointer at byte {at_bytes} is outside buffer '{buffer}' of {place.size} bytes")
    place[at_bytes : at_bytes + len(data)] = np.frombuffer(data, np.uint8)


def say_unset_constants(program: Program, given: Collection[str]) -> None:
    """Say which constants a kernel reads that neither the PTX nor anybody sets: they are 0, which is seldom meant."""
    named = {name for instruction in program.instructions for name in instruction.symbols}
    constants = [v for v in program.variables if v.space == "const" and v.initialiser is None]
    unset = [v.name for v in constants if v.name in named and v.name not in given]
    if unset:
        names = ", ".join(f"'{name}'" for name in unset)
        note(f"abstim: kernel '{program.name}' reads constants that nothing sets, and finds 0: {names} (see `symbols`)")


KEPT = 64  # launches


@dataclass
class StreamedCase(Case):
    """A case that is executed and timed launch by launch. `launches` may be `LazyLaunches`. Its kernels reach memory
    through their arguments only: a launch sees the buffers its arguments point into."""


class LazyLaunches(Sequence[Launch]):
    """`count` launches, each made when it is asked for; the latest are kept, because many ask for the same."""

    def __init__(self, count: int, make: Callable[[int], Launch]) -> None:
        self._count, self._make = count, lru_cache(KEPT)(make)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: Any) -> Any:
        found = range(self._count)[number]
        return tuple(map(self._make, found)) if isinstance(number, slice) else self._make(found)


def execute_launch(
    executor: Executor, launch: Launch, memory: Memory, budget: int, thread_blocks: Sequence[int] | None = None,
    interleaving: Interleaving | None = None,
) -> Trace:  # fmt: skip
    """Execute a launch of a StreamedCase on `memory`, which changes. An executor may copy the memory it is given, to
    undo a launch that fails: that of this launch alone, not all weights of a network."""
    seen = memory.part(a.buffer for a in launch.arguments if isinstance(a, Pointer))
    return executor.run(launch, seen, thread_blocks, budget, interleaving)
