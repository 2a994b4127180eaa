"""The seam to whatever runs the instrumented kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from functional.launches.launch import Dim3

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import UInt8


class Device(Protocol):
    """A GPU as a driver shows it. Every method raises InputError if the device refuses."""

    def load(self, ptx: str) -> None:
        """Make a module's kernels and variables available."""
        ...

    def allocate(self, size_bytes: int) -> int:
        """Address of new memory, 256-byte aligned."""
        ...

    def free(self, address: int) -> None:
        """Give memory back."""
        ...

    def write(self, address: int, data: UInt8[np.ndarray, " byte"]) -> None:
        """Copy bytes to the device."""
        ...

    def read(self, address: int, size_bytes: int) -> UInt8[np.ndarray, " byte"]:
        """Copy bytes from the device."""
        ...

    def variable(self, name: str) -> int:
        """Address of a global variable of the loaded module."""
        ...

    def launch(self, kernel: str, grid: Dim3, block: Dim3, parameters: bytes, dynamic_shared_bytes: int) -> None:
        """Run a kernel to its end. `parameters` is the parameter block, in PTX layout."""
        ...
