"""The values of a GPU to which kernel times have derivatives, as a vector."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from abstim.engine.rules import UNITS_A_CYCLE
from abstim.gpu.config import Gpu, nearest, with_values
from abstim.gpu.spec import INSTRUCTION_CLASSES, SECTIONS, Params
from functional.arrays import Float64
from functional.errors import InputError

# Order of a parameter vector everywhere in this package
PARAMETERS = (
    *(f.name for f in fields(Params)),
    *(f"latency_cycles.{name}" for name in INSTRUCTION_CLASSES),
    *(f"initiation_cycles.{name}" for name in INSTRUCTION_CLASSES),
)
INDEX = {name: k for k, name in enumerate(PARAMETERS)}


def values_of(gpu: Gpu) -> Float64[np.ndarray, " parameter"]:
    """A GPU's values in the order of PARAMETERS."""
    return np.array([float(gpu.settings[name].value) for name in PARAMETERS])


def is_whole(name: str) -> bool:
    """Does the engine take only whole cycles of this parameter?"""
    return _domain(name).type is int


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
    return SECTIONS[section or "params"][key]


def check_names(names: Iterable[str]) -> tuple[str, ...]:
    """The names as a tuple. Raises InputError for one that is no parameter, or is there twice."""
    found = tuple(names)
    for name in found:
        if name not in INDEX:
            near = nearest(name, PARAMETERS) or "; `abstim gpus gtx480` lists them"
            raise InputError(f"{name!r} is no latency or service time of a GPU{near}")
        if found.count(name) > 1:
            raise InputError(f"parameter {name!r} is named twice")
    if not found:
        raise InputError("name at least one parameter")
    return found


def base_values(gpu: Gpu, values: Mapping[str, float]) -> dict[str, int | float]:
    """Where the engine runs for given real values: the nearest whole cycle, or the 64th of one in whose cell the value
    lies; the GPU's own value if that is in the same cell. Raises InputError for a value that is not finite."""
    base: dict[str, int | float] = {}
    for name, value in values.items():
        if not np.isfinite(value):
            raise InputError(f"{name} = {value} is not a number of cycles")
        own = gpu.settings[name].value
        if is_whole(name):
            base[name] = int(np.floor(value + 0.5))
        elif round(value * UNITS_A_CYCLE) == round(own * UNITS_A_CYCLE):
            base[name] = float(own)
        else:
            base[name] = round(value * UNITS_A_CYCLE) / UNITS_A_CYCLE
    return base


def gpu_at(gpu: Gpu, base: Mapping[str, int | float]) -> Gpu:
    """The GPU at the base values. Raises InputError for a value out of range."""
    return with_values(gpu, base, "kernel_time")
