"""A GPU's power as a sum of non-negative terms, fitted to kernels whose power and counters were measured in public.

watts = idle + per active SM + energy of a warp instruction, an access of a warp to shared memory, a sector at L1D and
one at DRAM, each times how many there are a second. `measured_power.csv` has the kernels: AccelWattch's hardware
profiles (Kandiah et al., MICRO 2021) of a Volta at 1,417 MHz. What a sector at DRAM takes is published (O'Connor et
al., MICRO 2017: 3.92 pJ a bit of HBM2), since no kernel of the table is bound by it alone; what L2 and the switch
take is in the sectors.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from functional.errors import InputError

if TYPE_CHECKING:
    from jaxtyping import Float64

CLOCK_HZ = 1_417_000_000  # at which the powers were measured
SMS = 80
DRAM_SECTOR_JOULES = 32 * 8 * 3.92e-12


class Rates(NamedTuple):
    """What a kernel does: SMs that have work, on average, and events a second."""

    active_sms: float
    warp_instructions: float
    shared_accesses: float
    l1d_sectors: float
    dram_sectors: float


FITTED = ("idle", *Rates._fields[:-1])  # and DRAM's, which is given


@dataclass(frozen=True, slots=True)
class MeasuredKernel:
    """A row of `measured_power.csv`. `warp_instructions`: as this project executes the same program; None where it was
    not, and there they follow from `pipeline_duty`."""

    name: str
    watts: float
    elapsed_cycles: float
    active_sms: float
    pipeline_duty: float
    shared_accesses: float
    l1d_sectors: float
    dram_sectors: float
    warp_instructions: float | None

    @property
    def instructions_of_duty(self) -> float:
        """Of one whole duty: warp instructions a cycle and SM."""
        assert self.warp_instructions is not None
        return self.warp_instructions / (self.elapsed_cycles * SMS * self.pipeline_duty)

    def rates(self, of_duty: float) -> Rates:
        """A second."""
        instructions = self.warp_instructions
        if instructions is None:
            instructions = of_duty * self.pipeline_duty * self.elapsed_cycles * SMS
        counts = np.array([instructions, self.shared_accesses, self.l1d_sectors, self.dram_sectors])
        return Rates(self.active_sms, *(counts * CLOCK_HZ / self.elapsed_cycles).tolist())


@dataclass(frozen=True, slots=True)
class PowerModel:
    """`watts_of` by term, and what is known of its error: of kernels that were left out of the fit, one at a time."""

    idle_watts: float
    each: Rates  # watts an active SM, joules an event
    mean_error: float
    worst_error: float
    kernels: int

    def watts_of(self, rates: Rates) -> dict[str, float]:
        """By term; their sum is the power."""
        parts = {name: a * b for name, a, b in zip(Rates._fields, self.each, rates, strict=True)}
        return {"idle": self.idle_watts} | parts


@cache
def measured_kernels() -> tuple[MeasuredKernel, ...]:
    """The table."""
    names = [name for name in MeasuredKernel.__dataclass_fields__ if name not in ("name", "warp_instructions")]
    with (Path(__file__).parent / "measured_power.csv").open(newline="", encoding="utf-8") as file:
        return tuple(
            MeasuredKernel(
                name=row["kernel"],
                warp_instructions=float(row["warp_instructions"]) if row["warp_instructions"] else None,
                **{name: float(row[name]) for name in names},
            )
            for row in csv.DictReader(file)
        )


@cache
def power_model(gpu: str) -> PowerModel:
    """Of a GPU by its name, overrides included. Raises InputError where no power was measured: anything but a V100, at
    whatever clock."""
    base, *changes = gpu.split()
    if base != "v100" or not all(change.startswith("core_clock_hz=") for change in changes):
        raise InputError(f"--energy: power was measured on a V100 alone, and this is {gpu}; choose --gpu v100")
    return fitted(measured_kernels())


def fitted(kernels: Sequence[MeasuredKernel]) -> PowerModel:
    """To kernels of which each relative error counts alike."""
    of_duty = float(np.median([k.instructions_of_duty for k in kernels if k.warp_instructions is not None]))
    rates, watts = np.array([k.rates(of_duty) for k in kernels]), np.array([k.watts for k in kernels])
    errors = [abs(_left_out(rates, watts, k)) for k in range(len(kernels))]
    idle, *each = _fit(rates, watts).tolist()
    known = float(np.mean(errors)), float(np.max(errors)), len(kernels)
    return PowerModel(idle, Rates._make([*each, DRAM_SECTOR_JOULES]), *known)


def _fit(rates: Float64[np.ndarray, "kernel rate"], watts: Float64[np.ndarray, " kernel"]) -> np.ndarray:
    """The `FITTED` terms, none negative, by least squares of relative errors."""
    from scipy.optimize import nnls

    terms = np.column_stack([np.ones(len(watts)), rates[:, :-1]])
    scale = terms.mean(0)
    found, _ = nnls(terms / scale / watts[:, None], 1 - rates[:, -1] * DRAM_SECTOR_JOULES / watts)
    return found / scale


def _left_out(rates: Float64[np.ndarray, "kernel rate"], watts: Float64[np.ndarray, " kernel"], k: int) -> float:
    """Relative error of a kernel's power by a fit to all others."""
    others = np.arange(len(watts)) != k
    idle, *each = _fit(rates[others], watts[others]).tolist()
    return (idle + float(rates[k] @ [*each, DRAM_SECTOR_JOULES])) / float(watts[k]) - 1
