"""The few calls of CUDA's driver that micro-benchmarks need, through ctypes: no toolkit, no compiler."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import (
    CDLL,
    POINTER,
    addressof,
    byref,
    c_char_p,
    c_float,
    c_int,
    c_size_t,
    c_ubyte,
    c_uint,
    c_uint64,
    c_void_p,
    create_string_buffer,
)
from typing import Any

import numpy as np

from functional.errors import InputError

LIBRARY = "libcuda.so.1"
# CUdevice_attribute
CLOCK_RATE, SM_COUNT, L2_BYTES, THREADS_PER_SM, MAJOR, MINOR = 13, 16, 38, 39, 75, 76
SHARED_PER_SM, SHARED_PER_BLOCK = 81, 97
MAX_DYNAMIC_SHARED = 8  # CUfunction_attribute
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDeviceGetName": (c_char_p, c_int, c_int),
    "cuDeviceGetAttribute": (POINTER(c_int), c_int, c_int),
    "cuDevicePrimaryCtxRetain": (POINTER(c_void_p), c_int),
    "cuCtxSetCurrent": (c_void_p,),
    "cuModuleLoadData": (POINTER(c_void_p), c_char_p),
    "cuModuleGetFunction": (POINTER(c_void_p), c_void_p, c_char_p),
    "cuFuncSetAttribute": (c_void_p, c_int, c_int),
    "cuMemAlloc_v2": (POINTER(c_uint64), c_size_t),
    "cuMemFree_v2": (c_uint64,),
    "cuMemcpyHtoD_v2": (c_uint64, c_void_p, c_size_t),
    "cuMemcpyDtoH_v2": (c_void_p, c_uint64, c_size_t),
    "cuMemsetD8_v2": (c_uint64, c_ubyte, c_size_t),
    "cuLaunchKernel": (c_void_p, *([c_uint] * 7), c_void_p, POINTER(c_void_p), POINTER(c_void_p)),
    "cuEventCreate": (POINTER(c_void_p), c_uint),
    "cuEventRecord": (c_void_p, c_void_p),
    "cuEventSynchronize": (c_void_p,),
    "cuEventElapsedTime": (POINTER(c_float), c_void_p, c_void_p),
    "cuCtxSynchronize": (),
}  # fmt: skip


class CudaDriver:
    """The first GPU of this computer. Raises InputError if there is none, and for every call that fails."""

    def __init__(self, library: str = LIBRARY) -> None:
        try:
            self._library = CDLL(library)
            for name, arguments in _SIGNATURES.items():
                getattr(self._library, name).argtypes = arguments
        except (OSError, AttributeError):
            raise InputError(f"--native needs an NVIDIA GPU and its driver; {library} is not here") from None
        self._call("cuInit", 0)
        self._device, context = c_int(), c_void_p()
        self._call("cuDeviceGet", byref(self._device), 0)
        self._call("cuDevicePrimaryCtxRetain", byref(context), self._device)
        self._call("cuCtxSetCurrent", context)
        self._events = [self._made("cuEventCreate", 0) for _ in range(2)]

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise InputError(f"--native: {name} of the CUDA driver failed with error {status}")

    def _made(self, name: str, *arguments: Any) -> c_void_p:
        """What a call puts behind its first argument."""
        found = c_void_p()
        self._call(name, byref(found), *arguments)
        return found

    @property
    def name(self) -> str:
        """As its maker calls it."""
        text = create_string_buffer(256)
        self._call("cuDeviceGetName", text, 256, self._device)
        return text.value.decode()

    def attribute(self, number: int) -> int:
        """A CUdevice_attribute."""
        found = c_int()
        self._call("cuDeviceGetAttribute", byref(found), number, self._device)
        return found.value

    def load(self, ptx: str) -> c_void_p:
        """A module of PTX, compiled by the driver."""
        return self._made("cuModuleLoadData", ptx.encode())

    def function(self, module: c_void_p, name: str) -> c_void_p:
        """A kernel, allowed all the shared memory that a block can have."""
        found = self._made("cuModuleGetFunction", module, name.encode())
        self._call("cuFuncSetAttribute", found, MAX_DYNAMIC_SHARED, self.attribute(SHARED_PER_BLOCK) - 8192)
        return found

    @contextmanager
    def buffer(self, contents: np.ndarray | int) -> Iterator[int]:
        """Its address: a copy of an array, or so many bytes of zeros; freed in the end."""
        size = contents if isinstance(contents, int) else contents.nbytes
        address = c_uint64()
        self._call("cuMemAlloc_v2", byref(address), max(1, size))
        try:
            if isinstance(contents, int):
                self._call("cuMemsetD8_v2", address, 0, size)
            else:
                self._call("cuMemcpyHtoD_v2", address, np.ascontiguousarray(contents).ctypes.data, size)
            yield address.value
        finally:
            self._call("cuMemFree_v2", address)

    def read(self, address: int, array: np.ndarray) -> None:
        """Fill an array from device memory."""
        self._call("cuMemcpyDtoH_v2", array.ctypes.data, address, array.nbytes)

    def launch(
        self, function: c_void_p, grid: int, block: int, pointers: list[int], numbers: list[int], shared_bytes: int
    ) -> None:
        """Pointers first, then 32-bit numbers. Returns at once."""
        values = [*map(c_uint64, pointers), *map(c_uint, numbers)]
        packed = (c_void_p * max(1, len(values)))(*map(addressof, values))
        self._call("cuLaunchKernel", function, grid, 1, 1, block, 1, 1, shared_bytes, None, packed, None)

    def start(self) -> None:
        """The stopwatch: what is launched from here on."""
        self._call("cuCtxSynchronize")
        self._call("cuEventRecord", self._events[0], None)

    def stop(self) -> float:
        """Seconds since `start`, when all of it is done."""
        self._call("cuEventRecord", self._events[1], None)
        self._call("cuEventSynchronize", self._events[1])
        milliseconds = c_float()
        self._call("cuEventElapsedTime", byref(milliseconds), *self._events)
        return milliseconds.value / 1e3
