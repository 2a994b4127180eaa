"""A device that is our own executor: what a GPU would do with instrumented PTX, without one."""

from __future__ import annotations

import numpy as np

from functional.execution.default_executor import default_executor
from functional.launches.launch import Launch, check_shape
from functional.launches.memory import GLOBAL_BASE, Memory
from functional.programs.link import link
from functional.ptx.parser import parse


class ExecutorDevice:
    """In place of a `CudaDevice`. Its memory is laid out unlike the case's: another buffer comes first."""

    def load(self, ptx):
        self.module = parse(ptx)
        self.memory = Memory(self.module.variables)
        self.memory.allocate("in front", 12_345)
        self.executor = default_executor()
        self.freed = []

    def allocate(self, size_bytes):
        return self.memory.allocate(f"allocation {len(self.memory.buffers)}", size_bytes).address

    def free(self, address):
        self.freed.append(address)

    def write(self, address, data):
        self.memory.arena[address - GLOBAL_BASE :][: len(data)] = data

    def read(self, address, size_bytes):
        return self.memory.arena[address - GLOBAL_BASE :][:size_bytes].copy()

    def variable(self, name):
        return self.memory.global_variables[name].address

    def launch(self, kernel, grid, block, parameters, dynamic_shared_bytes):
        program = link(self.module, kernel)
        check_shape(program, grid, block, dynamic_shared_bytes)
        self.executor.run(Launch(program, grid, block, parameters, dynamic_shared_bytes), self.memory)


def equal(a, b):
    """Are two traces the same in every stream?"""
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in a.__dataclass_fields__)
