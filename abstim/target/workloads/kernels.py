"""Kernels of several PTX files under one roof: programs, registers, and the memory their variables need."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from functional import suite
from functional.ir import Module
from functional.launch import Argument, Launch, make_launch
from functional.link import link
from functional.memory import Memory
from functional.parser import parse
from functional.program import Program

LAYERS = Path(__file__).with_name("layers.ptx")
# Registers a thread of the kernels of layers.ptx, from `ptxas -v` 13.0 for sm_75, as the suite's resources.json
LAYER_REGISTERS = {
    "conv2d": 40, "bias_relu": 10, "batchnorm": 16, "add_relu": 12, "maxpool2x2": 14, "average_pool": 15,
    "fully_connected_single": 14,
}  # fmt: skip


class Kernels:
    """Every kernel of some suite benchmarks, and, with `layers`, of layers.ptx."""

    def __init__(self, benchmarks: Sequence[str], layers: bool = False) -> None:
        paths = [suite.ptx_path(name) for name in benchmarks] + [LAYERS] * layers
        self.modules: list[Module] = [parse(path) for path in paths]
        self.registers = dict(LAYER_REGISTERS) if layers else {}
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
        memory: Memory, label: str = "",
    ) -> Launch:  # fmt: skip
        """A launch whose pointers lead into `memory`."""
        return make_launch(self.programs[kernel], grid, block, arguments, memory, label=label)
