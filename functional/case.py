"""A case: kernels with their memory, their launches in order, and what the buffers must hold afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from functional.ir import Module
from functional.launch import Launch
from functional.memory import Memory
from functional.resources import Registers, registers_per_thread
from functional.trace import Trace


@dataclass(frozen=True)
class Expected:
    """Contents a buffer must have: |got - values| <= atol + rtol * |values|, exactly equal for integers."""

    values: np.ndarray
    rtol: float = 0.0
    atol: float = 0.0


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
    if values.dtype.kind == "f":
        error = _relative_error(got, values, expected.rtol, expected.atol)
        wrong = error > 1
    else:
        wrong = got != values
        error = np.where(wrong, np.inf, 0.0)
    if not wrong.any():
        return None
    first = int(np.argmax(wrong))
    worst = float(error.max(initial=0.0))
    return Mismatch(name, int(wrong.sum()), values.size, first, got[first].item(), values[first].item(), worst)


def _relative_error(got: np.ndarray, values: np.ndarray, rtol: float, atol: float) -> np.ndarray:
    """Error of each element as a fraction of its tolerance; NaN and infinities never match."""
    expected, found = values.astype(np.float64), got.astype(np.float64)
    with np.errstate(all="ignore"):
        error = np.abs(found - expected)
        fraction = np.where(error == 0, 0.0, error / (atol + rtol * np.abs(expected)))
    return np.nan_to_num(fraction, nan=np.inf, posinf=np.inf)
