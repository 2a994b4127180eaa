"""Energy of the launches of a result: its counts through the power model of its GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from abstim.study.energy.power_model import CLOCK_HZ, PowerModel, Rates, power_model
from functional.errors import InputError

if TYPE_CHECKING:
    from abstim.gpu.config import Gpu
    from abstim.session.result import LaunchResult, RunResult

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
        rows = [
            {"launch": x.launch, "joules": x.joules, "watts": x.watts, "watts_by_term": x.watts_by_term}
            for x in self.launches
        ]
        return {"joules": self.joules, "known_error": self.known, "unlike": self.unlike, "launches": rows}


def refuse_energy(gpu: Gpu, model: str) -> PowerModel:
    """The power model of a GPU. Raises InputError where none was fitted, or another model than the detailed counts."""
    if model != "detailed":
        raise InputError(f"--energy is of the detailed model, which counts events; leave out --model {model}")
    return power_model(gpu.name)


def energy_of(result: RunResult, gpu: Gpu) -> Energy:
    """Of a result of the detailed model. Raises InputError as `refuse_energy`."""
    model = refuse_energy(gpu, result.model)
    launches = [
        LaunchEnergy(x.launch, x.kernel, x.label, x.seconds, model.watts_of(rates_of(x))) for x in result.launches
    ]  # fmt: skip
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
    if any(x.timed_code.startswith("PTX") for x in result.launches):
        yield "instructions are counted of the PTX: no assembler was at hand"
    fp64 = sum(x.operations.get("fp64", 0) for x in result.launches)
    if fp64 > FP64_SHARE * sum(sum(x.operations.values()) for x in result.launches):
        yield "fp64 operations count as any other: no measured kernel has some"
