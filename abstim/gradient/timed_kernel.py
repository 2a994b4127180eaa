"""A target's kernels as functions of latencies, whichever model times them, and the models that can."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from threading import Lock
from typing import TYPE_CHECKING, cast

import numpy as np

from abstim.gpu.config import Gpu, load_gpu, nearest, refuse_machine_code
from abstim.gradient.parameter_vector import INDEX, base_values, check_names, values_of
from abstim.session.session import Session, open_session
from functional.errors import InputError

if TYPE_CHECKING:
    from jaxtyping import Float64

    from abstim.targets.resolve import Target


class TimedKernel:
    """Cycles of a target's launches, caches flushed before each, as a function of some parameters of a GPU.

    `launches`: positions in the target's list; all of them if None. Raises InputError for a launch that is not there,
    a name that is no parameter, or a GPU that times machine code.
    """

    def __init__(
        self,
        target: Target | Session,
        names: Sequence[str],
        gpu: str | Gpu = "gtx480",
        launches: Sequence[int] | None = None,
    ) -> None:
        self.names = check_names(names)
        self.gpu = load_gpu(gpu) if isinstance(gpu, str) else gpu
        self.session = open_session(target, [self.gpu])
        self._lock = Lock()
        case = self.session.case
        self.launches = tuple(range(len(case.launches)) if launches is None else launches)
        if not self.launches or not set(self.launches) <= set(range(len(case.launches))):
            raise InputError(f"{case.name} has launches 0 to {len(case.launches) - 1}, not {list(self.launches)}")
        self._columns = np.array([INDEX[name] for name in self.names])
        refuse_machine_code(self.gpu, "kernel_time differentiates the times of")

    def __call__(self, values: Float64[np.ndarray, " name"]) -> tuple[float, Float64[np.ndarray, " name"]]:
        """Cycles of all launches, and their gradient. Raises InputError for a value its parameter does not accept."""
        cycles, gradient = self.by_launch(values)
        return float(cycles.sum()), gradient.sum(0)

    def at(self, values: Float64[np.ndarray, " name"]) -> float:
        """Cycles of all launches."""
        return self(values)[0]

    def by_launch(
        self, values: Float64[np.ndarray, " name"]
    ) -> tuple[Float64[np.ndarray, " launch"], Float64[np.ndarray, "launch name"]]:
        """Cycles of each launch, and their gradient."""
        raise NotImplementedError

    def engine_cycles(self, values: Float64[np.ndarray, " name"]) -> Float64[np.ndarray, " launch"]:
        """What the model itself says at the base point of some values."""
        raise NotImplementedError

    def base(self, values: Float64[np.ndarray, " name"]) -> dict[str, int | float]:
        """The base point of some values."""
        return base_values(self.gpu, dict(zip(self.names, np.asarray(values, float).tolist(), strict=True)))

    def defaults(self) -> Float64[np.ndarray, " name"]:
        """The GPU's own values."""
        return values_of(self.gpu)[self._columns]


# Model -> (the module, its class); imported when it is asked for
KERNELS = {
    "analytic": ("abstim.gradient.formula_kernel", "FormulaKernel"),
    "detailed": ("abstim.gradient.detailed_kernel", "DetailedKernel"),
    "occupancy": ("abstim.gradient.occupancy_kernel", "OccupancyKernel"),
}


def kernel_of(model: str) -> type[TimedKernel]:
    """What times kernels by a model, with derivatives. Raises InputError for a model that has none."""
    if model not in KERNELS:
        raise InputError(f"no derivatives by model {model!r}{nearest(model, KERNELS)}")
    module, name = KERNELS[model]
    return cast("type[TimedKernel]", getattr(import_module(module), name))
