"""A target's kernels as functions of latencies, whichever model times them, and the models that can."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from threading import Lock
from typing import Any, cast

import numpy as np

from abstim.gpu.config import Gpu, load_gpu, nearest, refuse_machine_code
from abstim.gradient.parameter_vector import INDEX, base_values, check_names, gpu_at, refuse_times, step_of, values_of
from abstim.progress import in_parallel
from abstim.session.session import Session, open_session
from abstim.targets.resolve import Target
from functional.arrays import Float64
from functional.errors import InputError, refuse

# Cycles of each launch, and their gradient
Slopes = tuple[Float64[np.ndarray, " launch"], Float64[np.ndarray, "launch name"]]
BESIDE = 0.1  # of a value to either side: what a box is
MOST_KEPT = 1 << 16  # points whose cycles are kept


class TimedKernel:
    """Cycles of a target's launches, caches flushed before each, as a function of some parameters of a GPU.

    `launches`: positions in the target's list; all of them if None. `box`: the derivative to a parameter is the
    difference between BESIDE more and BESIDE less of it, a step of the grid at least: a schedule turns with single
    cycles, so a slope at a point would say little of what a designer can change. Raises InputError for a launch that is
    not there, a name that is no parameter, or, without `box`, a GPU that times machine code."""

    def __init__(
        self, target: Target | Session, names: Sequence[str], gpu: str | Gpu = "gtx480",
        launches: Sequence[int] | None = None, box: bool = False,
    ) -> None:  # fmt: skip
        self.box, self._kept = box, dict[tuple[float, ...], Any]()
        self.names = check_names(names)
        self.gpu = load_gpu(gpu) if isinstance(gpu, str) else gpu
        self.session = open_session(target, [self.gpu])
        self._lock = Lock()
        case = self.session.case
        self.launches = tuple(range(len(case.launches)) if launches is None else launches)
        if not self.launches or not set(self.launches) <= set(range(len(case.launches))):
            raise InputError(f"{case.name} has launches 0 to {len(case.launches) - 1}, not {list(self.launches)}")
        self._columns = np.array([INDEX[name] for name in self.names])
        if not box:
            refuse_times(self.names)
            refuse_machine_code(self.gpu, "without box=True, kernel_time differentiates the times of")

    def __call__(self, values: Float64[np.ndarray, " name"]) -> tuple[float, Float64[np.ndarray, " name"]]:
        """Cycles of all launches, and their gradient. Raises InputError for a value its parameter does not accept."""
        cycles, gradient = self.by_launch(values)
        return float(cycles.sum()), gradient.sum(0)

    def at(self, values: Float64[np.ndarray, " name"]) -> float:
        """Cycles of all launches."""
        if not self.box:
            return self(values)[0]
        base = self.base(values)
        moved = [name for name, value in zip(self.names, values, strict=True) if value != base[name]]
        return float(self._beside(values, moved)[0].sum())

    def by_launch(self, values: Float64[np.ndarray, " name"], names: Sequence[str] | None = None) -> Slopes:
        """Cycles of each launch, and their gradient; in a box that to others than `names` need not be worked out."""
        if not self.box:
            return self.with_own_slopes(values)
        return self._beside(values, self.names if names is None else names)

    def with_own_slopes(self, values: Float64[np.ndarray, " name"]) -> Slopes:
        """The same with the derivatives that the model carries along."""
        raise NotImplementedError

    def _beside(self, values: Float64[np.ndarray, " name"], names: Sequence[str]) -> Slopes:
        """Cycles of each launch, and their gradient, of the mean over a box; that to others than `names` is 0."""
        base = self.base(values)
        points = [base] + [point for name in names for point in self._points_beside(base, name)]
        found = iter(in_parallel(lambda k: self._cycles(points[k]), len(points)))
        cycles, slopes = next(found), np.zeros((len(self.launches), len(self.names)))
        for name in names:
            (less, more), low, high = self._points_beside(base, name), next(found), next(found)
            slopes[:, self.names.index(name)] = (high - low) / max(more[name] - less[name], step_of(name))
        moved = np.asarray(values, float) - np.array(list(base.values()), float)
        return cycles + slopes @ moved, slopes

    def _points_beside(self, base: Mapping[str, int | float], name: str) -> list[dict[str, int | float]]:
        """A base point with less of a parameter, and with more of it; where the GPU does not accept that, with its own
        value."""
        value, least = base[name], step_of(name)
        step = max(1, round(BESIDE * value / least)) * least
        points = [{**base, name: type(value)(value + sign * step)} for sign in (-1, 1)]
        for k, point in enumerate(points):
            try:
                gpu_at(self.gpu, point)
            except InputError:
                points[k] = dict(base)
        return points

    def _cycles(self, base: Mapping[str, int | float]) -> Float64[np.ndarray, " launch"]:
        key = tuple(base.values())
        if key not in self._kept:
            if len(self._kept) == MOST_KEPT:
                self._kept.clear()
            self._kept[key] = self.engine_cycles(np.array(key, float))
        return self._kept[key]

    def engine_cycles(self, values: Float64[np.ndarray, " name"]) -> Float64[np.ndarray, " launch"]:
        """What the model itself says at the base point of some values."""
        raise NotImplementedError

    def base(self, values: Float64[np.ndarray, " name"]) -> dict[str, int | float]:
        """The base point of some values."""
        return base_values(self.gpu, dict(zip(self.names, np.asarray(values, float).tolist(), strict=True)))

    def defaults(self) -> Float64[np.ndarray, " name"]:
        """The GPU's own values."""
        return values_of(self.gpu)[self._columns]


class DetailedKernel(TimedKernel):
    """By the detailed engine, which it is exactly at whole cycles (64ths of one for service times); derivatives are of
    the mean over a box, whether asked for or not."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named | {"box": True})

    def engine_cycles(self, values: Float64[np.ndarray, " name"]) -> Float64[np.ndarray, " launch"]:
        """What the engine says at the base point of some values."""
        gpu = gpu_at(self.gpu, self.base(values))
        return np.array([self.session.simulate(n, gpu).cycles for n in self.launches], float)


# Model -> (the module, its class); imported when it is asked for
KERNELS = {
    "analytic": ("abstim.gradient.formula_kernel", "FormulaKernel"),
    "detailed": ("abstim.gradient.timed_kernel", "DetailedKernel"),
    "occupancy": ("abstim.gradient.occupancy_kernel", "OccupancyKernel"),
}


def kernel_of(model: str) -> type[TimedKernel]:
    """What times kernels by a model, with derivatives. Raises InputError for a model that has none."""
    refuse(model not in KERNELS, f"no derivatives by model {model!r}{nearest(model, KERNELS)}")
    module, name = KERNELS[model]
    return cast("type[TimedKernel]", getattr(import_module(module), name))
