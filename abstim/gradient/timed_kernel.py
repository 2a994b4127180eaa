"""A target's kernels as functions of latencies, whichever model times them, and the models that can; the values
of a GPU to which kernel times have derivatives, as a vector."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from importlib import import_module
from threading import Lock
from typing import Any, cast

import numpy as np

from abstim.engine.rules import UNITS_A_CYCLE
from abstim.gpu.config import Gpu, load_gpu, nearest, refuse_machine_code, with_values
from abstim.gpu.spec import FROM_TIME, INSTRUCTION_CLASSES, SECTIONS, Params
from abstim.progress import in_parallel
from abstim.session.session import Session, open_session
from abstim.targets.resolve import Target
from functional.arrays import Float64
from functional.errors import InputError, refuse

# In cycles, so that models may carry derivatives to them along
PARAMETERS = (
    *(f.name for f in fields(Params)),
    *(f"latency_cycles.{name}" for name in INSTRUCTION_CLASSES),
    *(f"initiation_cycles.{name}" for name in INSTRUCTION_CLASSES),
)
TIMES = (*FROM_TIME.values(),)  # of [time]; their derivatives are differences
INDEX = {name: k for k, name in enumerate((*PARAMETERS, *TIMES))}  # order of a GPU's values
STEPS = {name: 1.0 for name in TIMES} | {"dram_bytes_per_second": 1e9}


def values_of(gpu: Gpu) -> Float64[np.ndarray, " parameter"]:
    """A GPU's values in the order of INDEX."""
    return np.array([float(gpu.settings[name].value) for name in INDEX])


def is_whole(name: str) -> bool:
    """Does the engine take only whole cycles of this parameter?"""
    return _domain(name).type is int


def step_of(name: str) -> float:
    """The step between values that are tried: a cycle, a 64th of one of a service time, a nanosecond, a GB/s."""
    return STEPS.get(name, 1.0 if is_whole(name) else 1 / UNITS_A_CYCLE)


def bounds_of(name: str, factor: float, value: float) -> tuple[float, float]:
    """`value / factor` .. `value * factor`, cut to what the parameter accepts."""
    accepts = _domain(name).accepts
    low, high = value / factor, max(value * factor, 1.0)
    candidates = np.linspace(low, high, 257)
    if is_whole(name):
        candidates = np.unique(np.round(candidates))
    inside = [float(v) for v in candidates if accepts(v)]
    return min(inside), max(inside)


def _domain(name: str) -> Any:
    section, _, key = name.rpartition(".")
    return SECTIONS[section or ("time" if key in TIMES else "params")][key]


def check_names(names: Iterable[str]) -> tuple[str, ...]:
    """The names as a tuple. Raises InputError for one that is no parameter, or is there twice."""
    found = tuple(names)
    for name in found:
        if name not in INDEX:
            near = nearest(name, INDEX) or "; `abstim gpus gtx480` lists them"
            raise InputError(f"{name!r} is no latency or service time of a GPU{near}")
        refuse(found.count(name) > 1, f"parameter {name!r} is named twice")
    refuse(not found, "name at least one parameter")
    return found


def refuse_times(names: Iterable[str]) -> None:
    """Raises InputError for a name of [time], for whoever carries derivatives along."""
    for name in names:
        refuse(name in TIMES, f"{name}: derivatives to times are differences, of the detailed model, or box=True")


def base_values(gpu: Gpu, values: Mapping[str, float]) -> dict[str, int | float]:
    """Where the engine runs for given real values: the nearest step (`step_of`); the GPU's own value if that is the
    same. Raises InputError for a value that is not finite."""
    base: dict[str, int | float] = {}
    for name, value in values.items():
        refuse(not np.isfinite(value), f"{name} = {value} is not a number of cycles")
        own, step = gpu.settings[name].value, step_of(name)
        if is_whole(name):
            base[name] = int(np.floor(value + 0.5))
        else:
            base[name] = float(own) if round(value / step) == round(own / step) else round(value / step) * step
    return base


def gpu_at(gpu: Gpu, base: Mapping[str, int | float]) -> Gpu:
    """The GPU at the base values. Raises InputError for a value out of range."""
    return with_values(gpu, base, "kernel_time")


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
        gpu, session = gpu_at(self.gpu, self.base(values)), self.session
        firsts = [session.first_alike(n, session.traces.trace(n)) for n in self.launches]
        took = {n: session.simulate(n, gpu).cycles for n in dict.fromkeys(firsts)}
        return np.array([took[n] for n in firsts], float)


# Model -> (the module, its class); imported when it is asked for
KERNELS = {
    "analytic": ("abstim.gradient.kernel_time", "FormulaKernel"),
    "detailed": ("abstim.gradient.timed_kernel", "DetailedKernel"),
    "occupancy": ("abstim.gradient.occupancy_kernel", "OccupancyKernel"),
}


def kernel_of(model: str) -> type[TimedKernel]:
    """What times kernels by a model, with derivatives. Raises InputError for a model that has none."""
    refuse(model not in KERNELS, f"no derivatives by model {model!r}{nearest(model, KERNELS)}")
    module, name = KERNELS[model]
    return cast("type[TimedKernel]", getattr(import_module(module), name))
