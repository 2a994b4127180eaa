"""Which values of a GPU a replay can vary, and how the terms of a latency add up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from abstim.engine.rules import UNITS_A_CYCLE
from abstim.gpu.config import Gpu, nearest, with_values
from abstim.gpu.spec import INSTRUCTION_CLASSES, SECTIONS, Params
from functional.errors import InputError

if TYPE_CHECKING:
    from jaxtyping import Float64

# Order of a parameter vector everywhere in this package
PARAMETERS = (
    *(f.name for f in fields(Params)),
    *(f"latency_cycles.{name}" for name in INSTRUCTION_CLASSES),
    *(f"initiation_cycles.{name}" for name in INSTRUCTION_CLASSES),
)
INDEX = {name: k for k, name in enumerate(PARAMETERS)}

# A *term* is a linear function of the parameters: term 0 is none, term 1 + k parameter k alone, then the ways through
# memory: FAMILIES x LEVELS
FAMILIES = ("fetch", "const", "load", "store", "atomic")
LEVELS = ("l1", "l2", "dram", "dram_row")  # the last level asked; `dram_row` opens a row on the way
FIRST_PATH = 1 + len(PARAMETERS)


def path_term(family: Any, level: Any) -> Any:
    """Number of the term of a way through memory (int or integer array)."""
    return FIRST_PATH + family * len(LEVELS) + level


def terms(perfect_memory: bool) -> Float64[np.ndarray, "term parameter"]:
    """How often each term has each parameter in it."""
    rows = np.zeros((FIRST_PATH + len(FAMILIES) * len(LEVELS), len(PARAMETERS)))
    rows[1:FIRST_PATH] = np.eye(len(PARAMETERS))
    for f, family in enumerate(FAMILIES):
        for k in range(len(LEVELS)):
            for name in _path(family, k, perfect_memory):
                rows[path_term(f, k), INDEX[name]] += 1
    return rows


def _path(family: str, level: int, perfect_memory: bool) -> tuple[str, ...]:
    """The latencies along one way (docs/timing-rules.md, rules 5 and 11)."""
    first = {"const": "const_latency_cycles", "load": "l1d_latency_cycles", "store": "l1d_latency_cycles"}
    path = (first[family],) if family in first else ()
    if level == 0:
        return path
    if perfect_memory:
        beyond = {"atomic": "atomic_latency_cycles", "fetch": "l1i_miss_extra_cycles"}
        return (*path, beyond.get(family, "l1_miss_extra_cycles"))
    path = (*path, "l2_request_cycles", "l2_atomic_cycles" if family == "atomic" else "l2_sector_cycles")
    if level == 1:
        return (*path, "l2_reply_cycles")
    row = ("dram_activate_cycles",) if level == 3 else ()
    return (*path, *row, "dram_sector_cycles", "dram_latency_cycles", "dram_reply_cycles")


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
            raise InputError(f"{name!r} is no latency or service time of a GPU{nearest(name, PARAMETERS)}")
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
    return with_values(gpu, base, "replay")
