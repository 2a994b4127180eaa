"""The device that a program sees: CUDA's attributes by their numbers, and memory that both processes share, the same
bytes at the same addresses.

The shim maps it where the GPU has it. So a device pointer can be followed on the host, managed and pinned memory need
nothing more, a copy is a copy of bytes, and no launch sends a buffer."""

import fcntl
import mmap
import os
import struct
from bisect import bisect_right
from collections.abc import Iterable

import numpy as np

from abstim.gpu.config import Gpu
from functional.errors import refuse
from functional.files import rows_beside
from functional.launches.memory import CONST_LIMIT_BYTES, GLOBAL_BASE, GLOBAL_LIMIT, Memory, Region
from functional.ptx.ir import Variable

_NAME_BYTES = 256
_LIMIT = 2**31 - 1
_ACCESS_WINDOW_BYTES = 128 << 20


def compute_capability(gpu: Gpu, of_program: int) -> tuple[int, int]:
    """Major and minor. A GPU whose description names no architecture has that of the program's newest PTX."""
    named = gpu.spec.architecture
    number = of_program if named == "none" else int(named.removeprefix("sm_"))
    return number // 10, number % 10


def most_shared_bytes(gpu: Gpu) -> int:
    """Shared memory that a thread block can have where it asks for more than the usual 48 KiB."""
    spec = gpu.spec
    reserved = 1024 if spec.shared_bytes_per_sm > 64 << 10 else 0  # an SM keeps it for a block from 8.0 on
    return max(48 << 10, spec.shared_bytes_per_sm - reserved) if spec.shared_bytes_per_sm > 48 << 10 else 48 << 10


def attributes(gpu: Gpu, of_program: int) -> dict[int, int]:
    """Number (cudaDeviceAttr) -> value. What a description does not have is what every GPU since 7.0 has."""
    spec = gpu.spec
    major, minor = compute_capability(gpu, of_program)
    l2_bytes = min(128 * spec.l2_lines, _LIMIT)
    own = dict(
        MaxRegistersPerBlock=min(65536, spec.registers_per_sm), MultiProcessorCount=spec.sm_count,
        ClockRate=round(spec.core_clock_hz / 1000), MemoryClockRate=round(spec.core_clock_hz / 1000),
        GlobalMemoryBusWidth=64 * spec.dram_channels, L2CacheSize=l2_bytes,
        MaxThreadsPerMultiProcessor=spec.max_threads_per_sm, MaxRegistersPerMultiprocessor=spec.registers_per_sm,
        ComputeCapabilityMajor=major, ComputeCapabilityMinor=minor, MaxBlocksPerMultiprocessor=spec.max_blocks_per_sm,
        MaxSharedMemoryPerMultiprocessor=spec.shared_bytes_per_sm, MaxSharedMemoryPerBlockOptin=most_shared_bytes(gpu),
    )  # fmt: skip
    if major >= 8:  # parts of L2 that can be set aside: three quarters (CUDA's programming guide); not modelled
        persisting = l2_bytes * 3 // 4
        own |= {"MaxPersistingL2CacheSize": persisting, "MaxAccessPolicyWindowSize": _ACCESS_WINDOW_BYTES}
    if major >= 9:
        own["ClusterLaunch"] = 1
    rows = rows_beside(__file__, "attributes.csv")
    known = {row["name"]: int(row["value"]) for row in rows if row["value"]} | own
    return {int(row["number"]): known[row["name"]] for row in rows if row["name"] in known}


def described(gpu: Gpu, of_program: int) -> bytes:
    """Name and attributes, as the shim wants them."""
    name = gpu.title.partition(",")[0].encode()[: _NAME_BYTES - 1].ljust(_NAME_BYTES, b"\0")
    return name + b"".join(struct.pack("<ii", *pair) for pair in attributes(gpu, of_program).items())


_MODULES = 1024  # that can be loaded, each with constants of its own in front of global memory
_CONST_BYTES = _MODULES * CONST_LIMIT_BYTES


class DeviceMemory:
    """`start` and `bytes`: what the shim maps of `file`, constants of every module, then global memory."""

    start = GLOBAL_BASE - _CONST_BYTES
    global_bytes = GLOBAL_LIMIT - GLOBAL_BASE
    bytes = _CONST_BYTES + global_bytes

    def __init__(self) -> None:
        """Raises InputError if this system cannot share memory without a file."""
        refuse(not hasattr(os, "memfd_create"), "programs can be run on Linux only")
        self.file = os.memfd_create("abstim device memory", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.file, self.bytes)
        fcntl.fcntl(self.file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)  # the program has it too
        self._map = mmap.mmap(self.file, self.bytes)
        self._all = np.frombuffer(self._map, np.uint8)
        self.memory = Memory.over(self._all[_CONST_BYTES:])
        self._modules = self._made = 0

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

    def holds(self, address: int, size_bytes: int) -> bool:
        """Do so many bytes lie in one buffer or variable, or in modules' constants?"""
        region, end = self.region_at(address), address + size_bytes
        return self.start <= address and end <= GLOBAL_BASE if region is None else end <= region.address + region.bytes

    def of_module(self, variables: Iterable[Variable]) -> tuple[Memory, int]:
        """Memory as a new module sees it, and where the program finds the module's first constant. Raises InputError
        for too many modules, or constants or variables that do not fit."""
        refuse(self._modules == _MODULES, f"the program loads more than {_MODULES} modules")
        first = self._modules * CONST_LIMIT_BYTES
        self._modules += 1
        memory = self.memory.of_another_module(variables)
        constants = self._all[first : first + len(memory.const_arena)]
        constants[:] = memory.const_arena
        memory.const_arena = constants
        return memory, self.start + first
