"""Device memory that a program's process shares: the same bytes, at the same addresses, on both sides.

The shim maps it where the GPU has it. So a device pointer can be followed on the host, managed and pinned memory need
nothing more, a copy is a copy of bytes, and no launch sends a buffer.
"""

from __future__ import annotations

import mmap
import os
from bisect import bisect_right
from collections.abc import Iterable

import numpy as np

from functional.errors import InputError
from functional.launches.memory import CONST_LIMIT_BYTES, GLOBAL_BASE, GLOBAL_LIMIT, Memory, Region
from functional.ptx.ir import Variable

_MODULES = 1024  # that can be loaded, each with constants of its own in front of global memory
_CONST_BYTES = _MODULES * CONST_LIMIT_BYTES


class DeviceMemory:
    """`start` and `bytes`: what the shim maps of `file`, constants of every module, then global memory."""

    start = GLOBAL_BASE - _CONST_BYTES
    global_bytes = GLOBAL_LIMIT - GLOBAL_BASE
    bytes = _CONST_BYTES + global_bytes

    def __init__(self) -> None:
        """Raises InputError if this system cannot share memory without a file."""
        if not hasattr(os, "memfd_create"):
            raise InputError("programs can be run on Linux only")
        self.file = os.memfd_create("abstim device memory", os.MFD_CLOEXEC)
        os.ftruncate(self.file, self.bytes)
        self._map = mmap.mmap(self.file, self.bytes)
        self._all = np.frombuffer(self._map, np.uint8)
        self.memory = Memory.over(self._all[_CONST_BYTES:])
        self._modules = self._made = 0

    @property
    def free_bytes(self) -> int:
        """Of global memory."""
        return self.global_bytes - sum(region.bytes for region in self.memory.regions)

    def allocate(self, size_bytes: int) -> int:
        """The address of a new buffer. Raises InputError if there is no room."""
        self._made += 1
        return self.memory.allocate(f"allocation {self._made}", size_bytes).address

    def release(self, address: int) -> bool:
        """Give back the buffer that begins at an address, and its pages; False if none does."""
        region = self.region_at(address)
        if region is None or region.address != address or region.name not in self.memory.buffers:
            return False
        self.memory.release(region.name)
        first = -(-(region.address - self.start) // mmap.PAGESIZE) * mmap.PAGESIZE
        after = (region.address + region.bytes - self.start) // mmap.PAGESIZE * mmap.PAGESIZE
        if after > first:
            self._map.madvise(mmap.MADV_REMOVE, first, after - first)
        return True

    def region_at(self, address: int) -> Region | None:
        """The buffer or variable that holds an address."""
        regions = self.memory.regions
        at = bisect_right(regions, address, key=lambda region: region.address) - 1
        found = regions[at] if at >= 0 else None
        return found if found is not None and address < found.address + found.bytes else None

    def of_module(self, variables: Iterable[Variable]) -> tuple[Memory, int]:
        """Memory as a new module sees it, and where the program finds the module's first constant.

        Raises InputError for too many modules, or constants or variables that do not fit.
        """
        if self._modules == _MODULES:
            raise InputError(f"the program loads more than {_MODULES} modules")
        first = self._modules * CONST_LIMIT_BYTES
        self._modules += 1
        memory = self.memory.of_another_module(variables)
        constants = self._all[first : first + len(memory.const_arena)]
        constants[:] = memory.const_arena
        memory.const_arena = constants
        return memory, self.start + first
