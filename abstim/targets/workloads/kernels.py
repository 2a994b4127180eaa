"""Kernels of several PTX files under one roof: programs, registers, and the memory their variables need."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from functional import suite
from functional.launches.launch import Argument, Launch, make_launch
from functional.launches.memory import Memory
from functional.programs.link import link
from functional.programs.program import Program
from functional.ptx.ir import Module
from functional.ptx.parser import parse

LAYERS, TRANSFORMER = (Path(__file__).with_name(name) for name in ("layers.ptx", "transformer.ptx"))
# Registers a thread of the kernels of each, from `ptxas -v` 13.0 for sm_75, as the suite's resources.json
REGISTERS = {
    LAYERS: {
        "conv2d": 40, "bias_relu": 10, "batchnorm": 16, "add_relu": 12, "maxpool2x2": 14, "average_pool": 15,
        "fully_connected_single": 14,
    },
    TRANSFORMER: {
        "embed": 15, "layernorm": 23, "rmsnorm": 19, "gemm": 39, "gemv": 22, "gemv_batch": 60, "append_cache": 26,
        "attention": 23, "swiglu": 18, "gelu": 16, "add": 10, "argmax": 11,
    },
}  # fmt: skip


class Kernels:
    """Every kernel of some suite benchmarks, and of one of the files of REGISTERS."""

    def __init__(self, benchmarks: Sequence[str], own: Path) -> None:
        paths = [*map(suite.ptx_path, benchmarks), own]
        self.modules: list[Module] = [parse(path) for path in paths]
        self.registers = dict(REGISTERS[own])
        for name in benchmarks:
            self.registers |= suite.registers(name)
        self.programs: dict[str, Program] = {
            name: link(module, name) for module in self.modules for name, kernel in module.kernels.items()
            if kernel.is_entry
        }  # fmt: skip

    def memory(self) -> Memory:
        """Device memory with the variables of all files."""
        return Memory(variable for module in self.modules for variable in module.variables)

    def launch(
        self, kernel: str, grid: int | Sequence[int], block: int | Sequence[int], arguments: Sequence[Argument],
        memory: Memory, label: str = "", dynamic_shared_bytes: int = 0,
    ) -> Launch:  # fmt: skip
        """A launch whose pointers lead into `memory`."""
        return make_launch(self.programs[kernel], grid, block, arguments, memory, dynamic_shared_bytes, label)
