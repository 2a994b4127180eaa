"""The models whose cycles have derivatives."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from abstim.gpu.config import nearest
from abstim.gradient.timed_kernel import TimedKernel
from functional.errors import InputError

# Model -> (the module, its class); imported when it is asked for
KERNELS = {
    "detailed": ("abstim.gradient.recorded_kernel", "RecordedKernel"),
    "occupancy": ("abstim.gradient.occupancy_kernel", "OccupancyKernel"),
}


def kernel_of(model: str) -> type[TimedKernel]:
    """What times kernels by a model, with derivatives. Raises InputError for a model that has none."""
    if model not in KERNELS:
        raise InputError(f"no derivatives by model {model!r}{nearest(model, KERNELS)}")
    module, name = KERNELS[model]
    return cast("type[TimedKernel]", getattr(import_module(module), name))
