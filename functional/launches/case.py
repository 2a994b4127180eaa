"""A case: kernels with their memory, their launches in order, and what the buffers must hold afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from functional.launches.launch import Launch
from functional.launches.memory import Memory
from functional.programs.resources import Registers, registers_per_thread
from functional.ptx.ir import Module
from functional.traces.trace import Trace

if TYPE_CHECKING:
    from jaxtyping import Bool


@dataclass(frozen=True)
class Expected:
    """Contents a buffer must have: |got - values| <= atol + rtol * |values|, exactly equal for integers.

    `values` are those of the buffer's elements from number `first` on; `compared` says which of them count, None: all.
    """

    values: np.ndarray
    rtol: float = 0.0
    atol: float = 0.0
    first: int = 0
    compared: Bool[np.ndarray, " value"] | None = None

    @property
    def count(self) -> int:
        """How many elements are compared."""
        return int(self.values.size if self.compared is None else np.count_nonzero(self.compared))


@dataclass(frozen=True)
class Mismatch:
    """A buffer that differs. `error` is the largest error over its tolerance (inf for NaN and for integers)."""

    buffer: str
    elements: int
    of: int
    first: int  # flat index
    got: float
    expected: float
    error: float

    def __str__(self) -> str:
        return (
            f"{self.buffer}: {self.elements} of {self.of} elements differ, first [{self.first}] is {self.got!r}, "
            f"expected {self.expected!r}"
        )


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

    def registers(self, launch: Launch) -> Registers:
        """Registers a thread of a launched kernel, and where the number is from."""
        if self.module.target == "sass":
            return Registers(self.resources[launch.program.name], "trace header")
        return registers_per_thread(launch.program, self.module.target, self.resources)

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
    worst = _worst_error(got[wrong], values[wrong], expected) if floating else np.inf
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


def _worst_error(got: np.ndarray, values: np.ndarray, expected: Expected) -> float:
    """The largest error of wrong elements as a fraction of its tolerance."""
    wanted = values.astype(np.float64)
    with np.errstate(all="ignore"):
        fraction = np.abs(got - wanted) / (expected.atol + expected.rtol * np.abs(wanted))
    return float(np.nan_to_num(fraction, nan=np.inf, posinf=np.inf).max())
