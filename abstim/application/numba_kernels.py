"""Numba's CUDA: its driver is given our library in place of `libcuda.so.1`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from abstim.application.shim_library import DRIVER, driver_folder
from functional.errors import InputError

if TYPE_CHECKING:
    from abstim.application.python_device import PythonDevice


def attach(device: PythonDevice) -> None:
    """Make Numba find the device; for as long as the process lives. Raises InputError if it has found another one."""
    from numba.core import config
    from numba.cuda.cudadrv.driver import driver

    library = str(driver_folder("libcudart.so.13") / DRIVER)
    if library == config.CUDA_DRIVER:
        return
    if driver.is_initialized and driver.initialization_error is None:
        raise InputError("abstim.capture: Numba uses a GPU's driver already; capture before its first use of CUDA")
    device.listen()
    config.CUDA_DRIVER = library
    driver.__init__()  # it looked for a library when it was imported, and found none
