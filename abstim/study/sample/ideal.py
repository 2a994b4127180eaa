"""Baselines over the units of a full simulation. They cost all of it: only how few units they need says anything.

Their intervals are ideal, too: the spread is that of all units. A launch's last ones hold far more cycles than others,
and a sample of a tenth may not meet them.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

import sampling
from abstim.study.sample.kept_samples import MeasuredStore
from abstim.study.sample.sampled_program import SampledProgram
from abstim.study.sample.units import Units, simulate_units
from functional.keep.kept import Kept
from sampling import Estimate, Profile, Selection
from sampling.selection import profiled_spread
from sampling.statistics import t_quantile

if TYPE_CHECKING:
    from jaxtyping import Float64

SHARE = 0.1  # of the units or instructions, as TBPoint takes of random ones
IDEAL: dict[str, tuple[str, Callable[[Profile], Any]]] = {
    "ideal-first": (
        "the first tenth of the instructions",
        lambda units: sampling.FirstInstructions(SHARE * units.instructions.sum()),
    ),
    "ideal-random": ("a tenth of the units at random", lambda _: sampling.RandomUnits(SHARE)),
    "ideal-systematic": ("one unit of every ten", lambda _: sampling.Systematic(SHARE)),
    "ideal-simpoint": ("clusters of basic-block vectors, one unit each", lambda _: sampling.SimPoint()),
}


def estimate(name: str, program: SampledProgram) -> Estimate:
    """What a baseline of `IDEAL` says of a program whose traces memory can hold together."""
    units = units_of(program)
    program.spent("time", units.seconds)
    return from_units(name, units.profile)


def from_units(name: str, units: Profile) -> Estimate:
    """The estimate of a baseline from units whose `cycles` are all known."""
    assert units.cycles is not None
    method = IDEAL[name][1](units)
    selection = replace(method.select(units), unit="units")
    cycles = units.cycles[selection.units]
    own = getattr(method, "estimate", None)
    found: Estimate = own(selection, cycles) if own else selection.estimate(cycles.tolist())
    half = t_quantile(math.inf) * max(_error(selection, units.cycles), found.standard_error)
    return replace(
        found, low=max(found.total - half, 0.0), high=found.total + half, basis="model" if half else "exact",
        functional_fraction=1.0, ideal=True, unit_cycles=(),
    )  # fmt: skip


def _error(selection: Selection, cycles: Float64[np.ndarray, " unit"]) -> float:
    """Standard error of a sample as large drawn at random from each stratum, whose spread is known."""
    strata, size = selection.strata, selection.size
    chosen, members = np.bincount(strata[selection.units]), np.bincount(strata)
    spread = profiled_spread(cycles, size, strata) * np.bincount(strata, cycles)
    return float(np.sqrt(np.sum((1.0 - chosen / members) / chosen * spread**2)))


def units_of(program: SampledProgram) -> Units:
    """Units of a program, simulated once: they are kept on disk."""
    kept, name = Kept("units"), MeasuredStore(program.case, program.gpu).name
    units = kept.load(name, _units)
    if units is None:
        units = simulate_units(program)
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **{name: getattr(units, name) for name in (*_COLUMNS, "seconds")})
        kept.save(name, buffer.getvalue())
    return units


def _units(content: bytes) -> Units:
    """The units of a file."""
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        return Units(seconds=float(file["seconds"]), **{name: file[name] for name in _COLUMNS})


_COLUMNS = ("instructions", "cycles", "basic_blocks")
