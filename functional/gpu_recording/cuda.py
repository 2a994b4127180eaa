"""A real GPU through the CUDA driver API (`libcuda`), without a CUDA toolkit."""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p

import numpy as np

from functional.errors import InputError
from functional.launches.launch import Dim3

_LIBRARY = "libcuda.so.1"
_PARAMETERS, _PARAMETERS_SIZE, _END = c_void_p(1), c_void_p(2), c_void_p(0)  # CU_LAUNCH_PARAM_*
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_DEFAULT_SHARED_BYTES = 48 << 10  # more must be asked for
# CUdevice_attribute
CLOCK_RATE, SM_COUNT, L2_BYTES, THREADS_PER_SM, MAJOR, MINOR, SHARED_PER_SM = 13, 16, 38, 39, 75, 76, 81


class CudaDevice:
    """The GPU `number` of this computer. Raises InputError if there is none; every method does if it refuses. `library`
    stands in for libcuda in tests: a file's name, or an object with its calls."""

    def __init__(self, number: int = 0, library: object = _LIBRARY) -> None:
        if isinstance(library, str):
            try:
                library = ctypes.CDLL(library)
            except OSError:
                raise InputError(f"this needs an NVIDIA GPU and its driver; {library} is not here") from None
        self._library = library
        self._module, self._device, context = c_void_p(), c_int(), c_void_p()
        self._functions: dict[str, c_void_p] = {}  # of the module
        self._call("cuInit", 0)
        self._call("cuDeviceGet", byref(self._device), c_int(number))
        self._call("cuDevicePrimaryCtxRetain", byref(context), self._device)
        self._call("cuCtxSetCurrent", context)

    @property
    def name(self) -> str:
        """As its maker calls it."""
        text = ctypes.create_string_buffer(256)
        self._call("cuDeviceGetName", text, c_int(256), self._device)
        return text.value.decode()

    def attribute(self, number: int) -> int:
        """A CUdevice_attribute."""
        found = c_int()
        self._call("cuDeviceGetAttribute", byref(found), c_int(number), self._device)
        return found.value

    def load(self, ptx: str) -> None:
        """Compile a module for this GPU; `launch` and `variable` mean the latest."""
        self._functions.clear()
        self._call("cuModuleLoadData", byref(self._module), c_char_p(ptx.encode()))

    def allocate(self, size_bytes: int) -> int:
        """Address of that many bytes of device memory, whatever is in them."""
        address = c_uint64()
        self._call("cuMemAlloc_v2", byref(address), c_size_t(size_bytes))
        return address.value

    def free(self, address: int) -> None:
        """Give back what `allocate` gave."""
        self._call("cuMemFree_v2", c_uint64(address))

    def write(self, address: int, data: np.ndarray) -> None:
        """Copy an array's bytes to the device."""
        data = np.ascontiguousarray(data)
        if data.nbytes:
            self._call("cuMemcpyHtoD_v2", c_uint64(address), c_void_p(data.ctypes.data), c_size_t(data.nbytes))

    def clear(self, address: int, size_bytes: int) -> None:
        """Fill device memory with zeros."""
        self._call("cuMemsetD8_v2", c_uint64(address), c_ubyte(0), c_size_t(size_bytes))

    def read(self, address: int, size_bytes: int) -> np.ndarray:
        """Bytes of device memory: uint8 [size_bytes]."""
        data = np.empty(size_bytes, np.uint8)
        if size_bytes:
            self._call("cuMemcpyDtoH_v2", c_void_p(data.ctypes.data), c_uint64(address), c_size_t(size_bytes))
        return data

    def variable(self, name: str) -> int:
        """Address of a global variable of the module."""
        address, size = c_uint64(), c_size_t()
        self._call("cuModuleGetGlobal_v2", byref(address), byref(size), self._module, c_char_p(name.encode()))
        return address.value

    def launch(self, kernel: str, grid: Dim3, block: Dim3, parameters: bytes, dynamic_shared_bytes: int) -> None:
        """Run a kernel of the module to its end."""
        self.enqueue(kernel, grid, block, parameters, dynamic_shared_bytes)
        self._call("cuCtxSynchronize")

    def enqueue(
        self, kernel: str, grid: Sequence[int], block: Sequence[int], parameters: bytes, dynamic_shared_bytes: int
    ) -> None:
        """Start a kernel of the module, after those started before; returns at once."""
        function = self._functions.setdefault(kernel, c_void_p())
        if not function:
            self._call("cuModuleGetFunction", byref(function), self._module, c_char_p(kernel.encode()))
        if dynamic_shared_bytes > _DEFAULT_SHARED_BYTES:
            self._call("cuFuncSetAttribute", function, c_int(_MAX_DYNAMIC_SHARED), c_int(dynamic_shared_bytes))
        packed = ctypes.create_string_buffer(parameters, max(1, len(parameters)))
        size = c_size_t(len(parameters))
        held = [ctypes.cast(thing, c_void_p) for thing in (packed, byref(size))]
        pointers = [_PARAMETERS, held[0], _PARAMETERS_SIZE, held[1], _END]
        extra = (c_void_p * len(pointers))(*pointers)
        extents = [c_uint(n) for n in (*grid, *block, dynamic_shared_bytes)]
        self._call("cuLaunchKernel", function, *extents, c_void_p(), c_void_p(), extra)

    @contextmanager
    def stopwatch(self) -> Iterator[list[float]]:
        """Seconds that what is started within takes on the GPU, after all before it; there once the context is left."""
        events, seconds = (c_void_p(), c_void_p()), list[float]()
        for event in events:
            self._call("cuEventCreate", byref(event), c_uint(0))
        self._call("cuEventRecord", events[0], c_void_p())
        yield seconds
        self._call("cuEventRecord", events[1], c_void_p())
        self._call("cuEventSynchronize", events[1])
        milliseconds = c_float()
        self._call("cuEventElapsedTime", byref(milliseconds), *events)
        for event in events:
            self._call("cuEventDestroy_v2", event)
        seconds.append(milliseconds.value / 1e3)

    def _call(self, name: str, *arguments: object) -> None:
        if status := getattr(self._library, name)(*arguments):
            text = c_char_p()
            self._library.cuGetErrorString(c_int(status), byref(text))  # type: ignore[attr-defined]
            reason = text.value.decode() if text.value else f"error {status}"
            raise InputError(f"the GPU refuses {name}: {reason}")
