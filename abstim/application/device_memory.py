"""The device that a program sees: CUDA's attributes by their numbers, and memory that both processes share, the same
bytes at the same addresses.

The shim maps it where the GPU has it. So a device pointer can be followed on the host, managed and pinned memory need
nothing more, a copy is a copy of bytes, and no launch sends a buffer. Memory of
the host that a launch works on is copied to the device before it, and back after it."""

from __future__ import annotations

import ctypes
import fcntl
import gc
import mmap
import os
import struct
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from abstim.application.stream_clock import dram_seconds
from abstim.gpu.config import Gpu
from functional.arrays import UInt8, UInt64
from functional.errors import InputError, refuse
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


USUAL_SHARED_BYTES = 48 << 10  # that a thread block can have


def most_shared_bytes(gpu: Gpu) -> int:
    """Shared memory that a thread block can have where it asks for more."""
    spec = gpu.spec
    reserved = 1024 if spec.shared_bytes_per_sm > 96 << 10 else 0  # an SM keeps it for a block from 8.0 on
    return max(USUAL_SHARED_BYTES, spec.shared_bytes_per_sm - reserved)


def memory_clock_and_width(gpu: Gpu) -> tuple[int, int]:
    """In kHz and bits: programs take two transfers a cycle of all the bits for the most that DRAM carries."""
    bits = 64 * gpu.spec.dram_channels
    most = 1 / max(dram_seconds(gpu, 0, 1), 1e-18)
    return min(round(most * 8 / (2 * bits) / 1000), _LIMIT), bits


def attributes(gpu: Gpu, of_program: int) -> dict[int, int]:
    """Number (cudaDeviceAttr) -> value. What a description does not have is what every GPU since 7.0 has."""
    spec = gpu.spec
    major, minor = compute_capability(gpu, of_program)
    l2_bytes, (memory_khz, bits) = min(128 * spec.l2_lines, _LIMIT), memory_clock_and_width(gpu)
    own = dict(
        MaxRegistersPerBlock=min(65536, spec.registers_per_sm), MultiProcessorCount=spec.sm_count,
        ClockRate=round(spec.core_clock_hz / 1000), MemoryClockRate=memory_khz,
        GlobalMemoryBusWidth=bits, L2CacheSize=l2_bytes,
        MaxThreadsPerMultiProcessor=spec.max_threads_per_sm, MaxRegistersPerMultiprocessor=spec.registers_per_sm,
        ComputeCapabilityMajor=major, ComputeCapabilityMinor=minor, MaxBlocksPerMultiprocessor=spec.max_blocks_per_sm,
        MaxSharedMemoryPerMultiprocessor=spec.shared_bytes_per_sm, MaxSharedMemoryPerBlockOptin=most_shared_bytes(gpu),
        ReservedSharedMemoryPerBlock=spec.shared_bytes_kept_per_block,
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


_LOWEST = 1 << 32  # numbers below are no addresses of the host


def tensors_behind(words: Iterable[UInt64[np.ndarray, " word"]]) -> list[Any]:
    """Tensors of torch, on the CPU, that begin at one of the numbers or hold it: kernels follow addresses that lie in a
    tensor, which are the host's, to other tensors."""
    named = [w[w >= _LOWEST] for w in words]
    wanted = np.unique(np.concatenate([np.zeros(0, np.uint64), *named]))
    torch = sys.modules.get("torch")
    if torch is None or not wanted.size:
        return []
    return [tensor for tensor in gc.get_objects() if issubclass(type(tensor), torch.Tensor) and _holds(tensor, wanted)]


def _holds(tensor: Any, wanted: UInt64[np.ndarray, " word"]) -> bool:
    if tensor.device.type != "cpu" or tensor.layout is not sys.modules["torch"].strided:
        return False
    storage = tensor.untyped_storage()
    first = np.searchsorted(wanted, storage.data_ptr())
    return bool(first < len(wanted) and wanted[first] < storage.data_ptr() + storage.nbytes())


def translate(words: UInt64[np.ndarray, " word"], start: int, size_bytes: int, device: int) -> Callable[[], None]:
    """Numbers that lie in `size_bytes` from host address `start` become addresses from `device` on. What is returned
    undoes that: those that the kernel has not changed are what they were."""
    places = np.flatnonzero((words >= start) & (words < start + size_bytes))
    host = words[places].copy()
    there = words[places] = host - np.uint64(start) + np.uint64(device)

    def undo() -> None:
        same = words[places] == there
        words[places[same]] = host[same]

    return undo


@dataclass
class _Range:
    start: int  # on the host
    bytes: int
    writeable: bool
    device: int = 0  # where `start` lies there
    allocation: int = 0


class HostRanges:
    """What arrays and tensors lie in, on the device for as long as the context is open. What a kernel changed is
    written back at its end, unless it ended in an error."""

    def __init__(self, memory: DeviceMemory, arguments: Iterable[Any], addresses: Iterable[Any] = ()) -> None:
        """`addresses`: those of the arguments that hold 64-bit integers, which may lead to tensors. Raises InputError
        for an argument that is no array or tensor of the CPU."""
        self._memory = memory
        self._integers = [_range_of(argument) for argument in addresses if argument is not None]
        behind = tensors_behind(_words(_on_host(part)) for part in self._integers)
        self._ranges = _merged(_range_of(a) for a in (*arguments, *behind) if a is not None)
        self._scratch: list[int] = []
        self._undo: list[Callable[[], None]] = []

    def __enter__(self) -> HostRanges:
        for part in self._ranges:
            before = part.start % 16
            part.allocation = self._memory.allocate(part.bytes + before)
            part.device = part.allocation + before
            self._on_device(part)[:] = _on_host(part)
        for integers in self._integers:
            host = integers.start
            owner = next(part for part in self._ranges if part.start <= host < part.start + part.bytes)
            words = _words(self._on_device(owner)[integers.start - owner.start :][: integers.bytes])
            self._undo += [translate(words, part.start, part.bytes, part.device) for part in self._ranges]
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            for undo in self._undo:
                undo()
            for part in self._ranges if kind is None else ():
                host, device = _on_host(part), self._on_device(part)
                if np.array_equal(host, device):
                    continue
                refuse(not part.writeable, "a kernel wrote to an array that is read-only")
                host[:] = device
        finally:
            for address in (*(part.allocation for part in self._ranges), *self._scratch):
                self._memory.release(address)

    def address(self, argument: Any) -> int:
        """Where the first element of an array or tensor lies on the device; 0 for None."""
        if argument is None:
            return 0
        host = argument.data_ptr()
        part = next((r for r in reversed(self._ranges) if r.start <= host <= r.start + r.bytes), None)
        return 0 if part is None else part.device + host - part.start

    def scratch(self, size_bytes: int) -> int:
        """Address of memory that a launch has for itself; 0 for none."""
        if not size_bytes:
            return 0
        self._scratch.append(self._memory.allocate(size_bytes))
        return self._scratch[-1]

    def _on_device(self, part: _Range) -> UInt8[np.ndarray, " byte"]:
        region = self._memory.region_at(part.allocation)
        assert region is not None
        return self._memory.memory.bytes_of(region)[part.device - part.allocation :][: part.bytes]


def _words(data: UInt8[np.ndarray, " byte"]) -> UInt64[np.ndarray, " word"]:
    return data[: len(data) // 8 * 8].view(np.uint64)


def _on_host(part: _Range) -> UInt8[np.ndarray, " byte"]:
    return np.ctypeslib.as_array((ctypes.c_uint8 * part.bytes).from_address(part.start))


def _range_of(argument: Any) -> _Range:
    """All of what an array or tensor is a view of. Raises InputError."""
    array = getattr(argument, "array", None)
    if isinstance(array, np.ndarray):
        owner = array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        first, after = np.lib.array_utils.byte_bounds(owner)
        return _Range(first, after - first, array.flags.writeable)
    if not hasattr(argument, "untyped_storage"):
        kind = type(argument).__name__
        raise InputError(f"an argument of type {kind} is neither a NumPy array nor a tensor of torch")
    if argument.device.type != "cpu":
        raise InputError(f"a tensor lies on '{argument.device}': abstim.capture takes those of the CPU")
    storage = argument.untyped_storage()
    return _Range(storage.data_ptr(), storage.nbytes(), True)


def _merged(ranges: Iterable[_Range]) -> list[_Range]:
    """Ranges that share bytes as one; none that is empty."""
    found: list[_Range] = []
    for part in sorted((r for r in ranges if r.bytes), key=lambda r: r.start):
        last = found[-1] if found else None
        if last is None or part.start >= last.start + last.bytes:
            found.append(part)
        else:
            last.bytes = max(last.start + last.bytes, part.start + part.bytes) - last.start
            last.writeable = last.writeable or part.writeable
    return found
