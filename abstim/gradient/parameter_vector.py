"""The values of a GPU to which kernel times have derivatives, as a vector."""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from abstim.engine.rules import UNITS_A_CYCLE
from abstim.gpu.config import Gpu, nearest, with_values
from abstim.gpu.spec import FROM_TIME, INSTRUCTION_CLASSES, SECTIONS, Params
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
