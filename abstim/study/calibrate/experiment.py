"""What micro-benchmarks run on: a description's model, or a GPU. What either is asked, and must know of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, slots=True)
class Facts:
    """What experiments are laid out by. Clock in Hz, sizes in bytes; `target`: 80 of sm_80."""

    name: str
    core_clock_hz: float
    sm_count: int
    target: int
    shared_bytes_per_sm: int
    threads_per_sm: int
    l2_bytes: int


@dataclass(frozen=True, slots=True)
class KernelCall:
    """A launch of a kernel of `ptx_text.module`: names of buffers, then 32-bit numbers, as its parameters go."""

    kernel: str
    grid: int
    block: int
    buffers: tuple[str, ...] = ()
    numbers: tuple[int, ...] = ()
    shared_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Experiment:
    """A launch to time, after others that leave the caches as it shall find them; with none before it they are
    flushed. `buffers`: initial contents, or a size in bytes of zeros."""

    timed: KernelCall
    before: tuple[KernelCall, ...] = ()
    buffers: Mapping[str, np.ndarray | int] | None = None


class Device(Protocol):
    """A description's model, or a GPU."""

    @property
    def facts(self) -> Facts:
        """What it is."""
        ...

    @property
    def effort(self) -> int:
        """How often to repeat what need be done once only if time is exact."""
        ...

    def seconds(self, experiment: Experiment) -> float:
        """How long the timed launch takes."""
        ...
