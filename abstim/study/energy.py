"""Energy of the launches of a result: its counts through a power model fitted to kernels measured in public.

A GPU's power is a sum of non-negative terms. watts = idle + per active SM + energy of a warp instruction, an access of
a warp to shared memory, a sector at L1D and one at DRAM, each times how many there are a second. `measured_power.csv`
has the kernels: AccelWattch's hardware profiles (Kandiah et al., MICRO 2021) of a Volta at 1,417 MHz. What a sector at
DRAM takes is published (O'Connor et al., MICRO 2017: 3.92 pJ a bit of HBM2), since no kernel of the table is bound by
it alone; what L2 and the switch take is in the sectors."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from abstim.gpu.config import Gpu
from abstim.session.result import LaunchResult, RunResult
from functional.arrays import Float64
from functional.errors import InputError, refuse
from functional.files import rows_beside

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
    warp_instructions: float | None = None

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
    names = MeasuredKernel.__dataclass_fields__.keys() - {"name"}
    rows = rows_beside(__file__, "measured_power.csv")
    return tuple(MeasuredKernel(row["kernel"], **{n: float(row[n]) for n in names if row[n]}) for row in rows)


@cache
def power_model(gpu: str) -> PowerModel:
    """Of a GPU by its name, overrides included. Raises InputError for any but a V100, the only one measured."""
    base, *changes = gpu.split()
    if base != "v100" or not all(change.startswith("core_clock_hz=") for change in changes):
        raise InputError(f"--energy: power was measured on a V100 alone, and this is {gpu}; choose --gpu v100")
    return fitted(measured_kernels())


def fitted(kernels: Sequence[MeasuredKernel]) -> PowerModel:
    """To kernels of which each relative error counts alike."""
    of_duty = float(np.median([k.instructions_of_duty for k in kernels if k.warp_instructions is not None]))
    rates, watts = np.array([k.rates(of_duty) for k in kernels]), np.array([k.watts for k in kernels])
    errors = []  # relative ones, of a kernel's power by a fit to all others
    for k in range(len(kernels)):
        others = np.arange(len(watts)) != k
        idle, *each = _fit(rates[others], watts[others]).tolist()
        errors.append(abs((idle + float(rates[k] @ [*each, DRAM_SECTOR_JOULES])) / float(watts[k]) - 1))
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


SAME_CLOCK = 0.01
FP64_SHARE = 0.01  # of the operations; more of them than in any kernel whose power was measured


@dataclass(frozen=True, slots=True)
class LaunchEnergy:
    """Of one launch: mean watts by term, their sum, and joules."""

    launch: int
    kernel: str
    label: str
    seconds: float
    watts_by_term: dict[str, float]

    @property
    def watts(self) -> float:
        """Mean power while it runs."""
        return sum(self.watts_by_term.values())

    @property
    def joules(self) -> float:
        """Of the whole launch."""
        return self.watts * self.seconds


@dataclass(frozen=True, slots=True)
class Energy:
    """Of all launches of a target. `known`: what is known of its error; `unlike`: what no measured kernel has."""

    launches: list[LaunchEnergy]
    known: str
    unlike: list[str]

    @property
    def joules(self) -> float:
        """Of all launches."""
        return sum(launch.joules for launch in self.launches)

    def to_json(self) -> dict[str, Any]:
        """Everything, as what `json.dumps` takes."""
        names = ("launch", "joules", "watts", "watts_by_term")
        rows = [{name: getattr(launch, name) for name in names} for launch in self.launches]
        return {"joules": self.joules, "known_error": self.known, "unlike": self.unlike, "launches": rows}


def refuse_energy(gpu: Gpu, model: str) -> PowerModel:
    """The power model of a GPU. Raises InputError where none was fitted, or another model than the detailed counts."""
    refuse(model != "detailed", f"--energy is of the detailed model, which counts events; leave out --model {model}")
    return power_model(gpu.name)


def energy_of(result: RunResult, gpu: Gpu) -> Energy:
    """Of a result of the detailed model. Raises InputError as `refuse_energy`."""
    model = refuse_energy(gpu, result.model)
    spent = [(x, model.watts_of(rates_of(x))) for x in result.launches]
    launches = [LaunchEnergy(x.launch, x.kernel, x.label, x.seconds, watts) for x, watts in spent]
    known = (
        f"{model.mean_error:.0%} mean, {model.worst_error:.0%} worst of the power of {model.kernels} kernels, each by "
        f"a fit to the others, from counters of the hardware at {CLOCK_HZ / 1e9:g} GHz; the error of the time comes on "
        "top"
    )
    return Energy(launches, known, list(_unlike(result, gpu)))


def rates_of(launch: LaunchResult) -> Rates:
    """Events a second of a launch."""
    counts, seconds = launch.caches, launch.seconds
    return Rates(
        active_sms=launch.active_sms,
        warp_instructions=(launch.timed_instructions or launch.warp_instructions) / seconds,
        shared_accesses=launch.shared_accesses / seconds,
        l1d_sectors=counts["l1d_accesses"] / seconds,
        dram_sectors=(counts["dram_reads"] + counts["dram_writes"]) / seconds,
    )


def _unlike(result: RunResult, gpu: Gpu) -> Iterator[str]:
    """What sets these launches apart from all whose power was measured, a phrase each."""
    if abs(gpu.spec.core_clock_hz / CLOCK_HZ - 1) > SAME_CLOCK:
        yield f"the clock is {gpu.spec.core_clock_hz / 1e9:g} GHz: energies are of {CLOCK_HZ / 1e9:g} GHz"
    if result.overlap is not None:
        yield "kernels side by side: energies are of one after the other"
    if any(x.timed_code.startswith("PTX") for x in result.launches):
        yield "instructions are counted of the PTX: no assembler was at hand"
    fp64 = sum(x.operations.get("fp64", 0) for x in result.launches)
    if fp64 > FP64_SHARE * sum(sum(x.operations.values()) for x in result.launches):
        yield "fp64 operations count as any other: no measured kernel has some"
