"""The suite of 58 benchmarks, by name: inputs from a fixed seed, launches, expected outputs (README.md)."""

from __future__ import annotations

import json
from collections.abc import Callable
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from functional.errors import InputError

if TYPE_CHECKING:
    from functional.launches.case import Case
    from functional.suite._recipe import Recipe

GROUPS = ("table1", "apps", "micro")
_MODULES = (
    "_table1_networks", "_table1_grids", "_table1_particles", "_apps_dense", "_apps_data", "_apps_science",
    "_apps_layers", "_micro_units", "_micro_memory", "_micro_control",
)  # fmt: skip
_FOLDER = Path(__file__).parent


def names(group: str | None = None) -> tuple[str, ...]:
    """Names of all benchmarks, or of one group, in the suite's order. Raises InputError for an unknown group."""
    if group is not None and group not in GROUPS:
        raise InputError(f"no group '{group}' in the suite; there are {', '.join(GROUPS)}")
    return tuple(name for name, (own, _) in _benchmarks().items() if group in (None, own))


def group_of(name: str) -> str:
    """Group of a benchmark (`table1`, `apps`, `micro`); `name` may carry a `:LABEL`."""
    return _benchmarks()[_known(name.partition(":")[0])][0]


def labels(name: str) -> tuple[str, ...]:
    """Labels of a benchmark's launches; empty if they cannot run alone."""
    described = recipe(name)
    return tuple(launch.label for launch in described.launches) if described.independent else ()


def recipe(name: str) -> Recipe:
    """The description of `NAME` or of `NAME:LABEL`, one launch of a benchmark whose launches are independent.

    Raises InputError for an unknown name or label.
    """
    base, _, label = name.partition(":")
    with np.errstate(over="ignore"):  # integer wrap-around is intended
        full = _benchmarks()[_known(base)][1]()
    return full.only(base, label) if label else full


def case(name: str) -> Case:
    """A benchmark ready to run: `hotspot`, or one launch of it, `micro_divergence:ways_8`.

    Raises InputError for an unknown name or label, with the nearest name.
    """
    return case_of(name, name.partition(":")[0], recipe(name))


def case_of(name: str, base: str, described: Recipe) -> Case:
    """A recipe for the kernels of the benchmark `base` as a case of some name."""
    from functional.launches.case import Case, Expected
    from functional.launches.launch import make_launch
    from functional.launches.memory import Memory
    from functional.programs.link import link
    from functional.ptx.parser import open_module

    module = open_module(ptx_path(base))
    memory = Memory(module.variables)
    for buffer in described.buffers.values():
        memory.allocate(buffer.name, buffer.bytes, buffer.init)
    programs = {k: link(module, k) for k in dict.fromkeys(launch.kernel for launch in described.launches)}
    launches = tuple(
        make_launch(programs[x.kernel], x.grid, x.block, x.args, memory, x.dynamic_shared_bytes, x.label)
        for x in described.launches
    )
    buffers = described.buffers.values()
    expected = {b.name: Expected(b.expect, b.rtol, b.atol) for b in buffers if b.expect is not None}
    dtypes = {b.name: b.dtype for b in buffers}
    return Case(name, module, memory, launches, expected, dtypes, group_of(base), registers(base))


def ptx_path(name: str) -> Path:
    """The PTX file of a benchmark."""
    return _FOLDER / _known(name) / "kernel.ptx"


def registers(name: str) -> dict[str, int]:
    """Registers a thread of every kernel of a benchmark, as ptxas reports them."""
    return {kernel: entry["registers"] for kernel, entry in _resources()[_known(name)]["kernels"].items()}


def instruction_counts(name: str) -> dict[str, list[int]]:
    """PTX thread instructions of every launch: "issued" (reached) and "active" (guard true), see README.md."""
    return json.loads((_FOLDER / "counts.json").read_text())[_known(name)]


def is_name(target: str) -> bool:
    """Does `target` name a benchmark (with or without a label)?"""
    return target.partition(":")[0] in _benchmarks()


@cache
def _resources() -> dict:
    return json.loads((_FOLDER / "resources.json").read_text())


def _known(name: str) -> str:
    if name in _benchmarks():
        return name
    near = get_close_matches(name, _benchmarks(), 3)
    hint = f"did you mean {' or '.join(near)}?" if near else "`names()` lists them"
    raise InputError(f"no benchmark '{name}' in the suite; {hint}")


@cache
def _benchmarks() -> dict[str, tuple[str, Callable[..., Recipe]]]:
    """Name -> (group, function), in the suite's order; importing a module registers its benchmarks."""
    from functional.suite._recipe import BENCHMARKS

    for module in _MODULES:
        import_module(f"functional.suite.{module}")
    return BENCHMARKS
