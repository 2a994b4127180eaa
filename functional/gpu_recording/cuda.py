"""A real GPU through the CUDA driver API (`libcuda`), without a CUDA toolkit."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint64, c_void_p

import numpy as np

from functional.errors import InputError
from functional.launches.launch import Dim3

_LIBRARY = "libcuda.so.1"
_PARAMETERS, _PARAMETERS_SIZE, _END = c_void_p(1), c_void_p(2), c_void_p(0)  # CU_LAUNCH_PARAM_*
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_DEFAULT_SHARED_BYTES = 48 << 10  # more must be asked for


class CudaDevice:
    """The GPU `number` of this computer. Raises InputError if there is none; every method does if it refuses.

    `library` stands in for libcuda in tests.
    """

    def __init__(self, number: int = 0, library: object = None) -> None:
        if library is None:
            try:
                library = ctypes.CDLL(_LIBRARY)
            except OSError:
                raise InputError(f"no GPU to run on: {_LIBRARY} is not there") from None
        self._library = library
        self._module = c_void_p()
        device, context = c_int(), c_void_p()
        self._call("cuInit", 0)
        self._call("cuDeviceGet", byref(device), c_int(number))
        self._call("cuDevicePrimaryCtxRetain", byref(context), device)
        self._call("cuCtxSetCurrent", context)

    def load(self, ptx: str) -> None:
        """Compile a module for this GPU; `launch` and `variable` mean the latest."""
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
        function = c_void_p()
        self._call("cuModuleGetFunction", byref(function), self._module, c_char_p(kernel.encode()))
        if dynamic_shared_bytes > _DEFAULT_SHARED_BYTES:
            self._call("cuFuncSetAttribute", function, c_int(_MAX_DYNAMIC_SHARED), c_int(dynamic_shared_bytes))
        packed = ctypes.create_string_buffer(parameters, max(1, len(parameters)))
        size = c_size_t(len(parameters))
        pointers = [
            _PARAMETERS,
            ctypes.cast(packed, c_void_p),
            _PARAMETERS_SIZE,
            ctypes.cast(byref(size), c_void_p),
            _END,
        ]
        extra = (c_void_p * len(pointers))(*pointers)
        extents = [ctypes.c_uint(n) for n in (*grid, *block, dynamic_shared_bytes)]
        self._call("cuLaunchKernel", function, *extents, c_void_p(), c_void_p(), extra)
        self._call("cuCtxSynchronize")

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            text = c_char_p()
            self._library.cuGetErrorString(c_int(status), byref(text))  # type: ignore[attr-defined]
            reason = text.value.decode() if text.value else f"error {status}"
            raise InputError(f"the GPU refuses {name}: {reason}")
