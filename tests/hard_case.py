"""A program of the hard sets while it is being made: buffers, then launches of the kernels of hard_set.ptx."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from functional.launches.case import Case
from functional.launches.launch import Argument, Launch, Pointer, make_launch
from functional.launches.memory import Memory
from functional.programs.link import link
from functional.programs.program import Program
from functional.ptx.ir import Module
from functional.ptx.parser import parse

if TYPE_CHECKING:
    from jaxtyping import Int64, Shaped

KERNELS = Path(__file__).with_name("hard_set.ptx")
# Registers a thread, from `ptxas -v` 13.0 for sm_75
REGISTERS = {
    "phases": 40, "persistent": 29, "gather": 53, "rows": 49, "frontier": 14, "smooth": 18, "coarsen": 14, "refine": 10,
    "attend": 54, "project": 52, "strided": 21, "dirty": 36, "count": 15, "escape": 16, "bitonic": 10, "eliminate": 12,
    "relax": 39, "search": 12, "solve": 58, "tiles": 47, "sweep": 24, "match": 11,
    "banks": 18, "bank_runs": 19, "walk": 21, "convolve": 43, "mix": 14, "ordered": 30, "skewed": 12, "multiply": 64,
}  # fmt: skip


@cache
def _module() -> Module:
    return parse(KERNELS)


@cache
def _program(kernel: str) -> Program:
    return link(_module(), kernel)


class HardCase:
    """`rng` decides parameters and data: another seed, another program of the same kind."""

    def __init__(self, name: str, rng: np.random.Generator) -> None:
        self.name, self.rng = name, rng
        self.memory = Memory(_module().variables)
        self._dtypes: dict[str, np.dtype] = {}
        self._launches: list[Launch] = []

    def buffer(self, name: str, values: Shaped[np.ndarray, " n"]) -> Pointer:
        """Memory that holds these values, int32, float32 or bytes."""
        self.memory.allocate(name, values.nbytes, values)
        self._dtypes[name] = values.dtype
        return Pointer(name)

    def ints(self, name: str, values: Sequence[int] | np.ndarray) -> Pointer:
        """Of whole numbers."""
        return self.buffer(name, np.asarray(values).astype(np.int32))

    def floats(self, name: str, count: int) -> Pointer:
        """Of random numbers."""
        return self.buffer(name, self.rng.uniform(0.5, 1.5, count).astype(np.float32))

    def graph(
        self, degrees: Int64[np.ndarray, " node"], columns: Int64[np.ndarray, " edge"]
    ) -> tuple[Pointer, Pointer]:
        """Compressed rows: where each node's edges begin, and where they lead."""
        return self.ints("start", np.append(0, np.cumsum(degrees))), self.ints("column", columns)

    def launch(self, kernel: str, blocks: int, threads: int, *arguments: Argument) -> None:
        """Add a launch."""
        self._launches.append(make_launch(_program(kernel), int(blocks), threads, arguments, self.memory))

    def case(self) -> Case:
        """The program."""
        return Case(
            self.name, _module(), self.memory, tuple(self._launches), dtypes=self._dtypes, group="workloads",
            resources=REGISTERS,
        )  # fmt: skip
