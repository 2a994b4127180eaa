"""Programs of kernels of several PTX files, put together launch by launch."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from functional import suite
from functional.arrays import UInt8
from functional.launches.case import StreamedCase
from functional.launches.launch import Launch, Pointer, make_launch
from functional.launches.launches_json import read_resources
from functional.launches.memory import Contents, Memory
from functional.programs.link import link
from functional.programs.program import Program
from functional.ptx.parser import open_module

LAYERS, TRANSFORMER = (Path(__file__).with_name(name) for name in ("layers.ptx", "transformer.ptx"))


def drawn(seed: int, name: str, least: float, most: float) -> Contents:
    """A buffer of float32, uniform between `least` and `most`."""

    def make(into: UInt8[np.ndarray, " byte"]) -> None:
        values = into.view(np.float32)
        np.random.default_rng([seed, crc32(name.encode())]).random(dtype=np.float32, out=values)
        values *= np.float32(most - least)
        values += np.float32(least)

    return Contents(f"float32 uniform from {least!r} to {most!r}, seed {seed}, {name}", make)


class LaunchedProgram:
    """A program in the making: launches of kernels of some suite benchmarks, and of one of the files beside, call by
    call; `case()` is the whole. `parameters` counts its learnt numbers; its buffers hold float32, but for those of
    `integers`."""

    threads, spread = 256, 1.0  # of a block of elementwise kernels; of learnt numbers, times their inputs
    integers: tuple[str, ...] = ()

    def __init__(self, name: str, seed: int, benchmarks: Sequence[str], own: Path) -> None:
        modules = [open_module(path) for path in (*map(suite.ptx_path, benchmarks), own)]
        self.name, self.seed, self.module, self.parameters = name, seed, modules[0], 0
        self.memory = Memory(variable for module in modules for variable in module.variables)
        self.registers = read_resources(Path(__file__).with_name("resources.json"))  # from `ptxas -v` 13.0 for sm_75
        for benchmark in benchmarks:
            self.registers |= suite.registers(benchmark)
        self.programs: dict[str, Program] = {kernel: link(m, kernel) for m in modules for kernel in m.entries}
        self.launches: list[Launch] = []

    def case(self, launches: Any = None) -> StreamedCase:
        """All launches (or others, of the same memory), and memory before the first."""
        dtypes: dict[str, np.dtype] = dict.fromkeys(self.memory.buffers, np.dtype(np.float32))
        dtypes |= dict.fromkeys(self.integers, np.dtype(np.int32))
        about: dict[str, Any] = {"dtypes": dtypes, "group": "workloads", "resources": self.registers}
        return StreamedCase(self.name, self.module, self.memory, launches or tuple(self.launches), **about)

    def launch(
        self, kernel: str, grid: int | tuple[int, int], block: int | tuple[int, int],
        arguments: Sequence[Any], label: str, dynamic_shared_bytes: int = 0,
    ) -> None:  # fmt: skip
        """The next launch; a name among its arguments is a buffer."""
        given = [Pointer(a) if isinstance(a, str) else a for a in arguments]
        program, dynamic = self.programs[kernel], dynamic_shared_bytes
        self.launches.append(make_launch(program, grid, block, given, self.memory, dynamic, label))

    def elementwise(self, kernel: str, threads: int, arguments: Sequence[Any], label: str) -> None:
        """The next launch, of a thread for each of so many things."""
        self.launch(kernel, -(-threads // self.threads), self.threads, arguments, label)

    def drawn(self, name: str, size: int, least: float, most: float) -> str:
        """A buffer of so many uniform numbers; yields its name."""
        self.memory.allocate(name, 4 * size, drawn(self.seed, name, least, most))
        return name

    def weight(self, name: str, size: int, inputs: int) -> str:
        """Learnt numbers, uniform, whose variance keeps sums over so many inputs as large as these."""
        bound = sqrt(self.spread / inputs)
        self.parameters += size
        return self.drawn(name, size, -bound, bound)
