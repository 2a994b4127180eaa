"""Memory of the host that a launch works on: copied to the device before it, and back after it."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from abstim.application.device_memory import DeviceMemory
from functional.arrays import UInt8, UInt64
from functional.errors import InputError, refuse

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
