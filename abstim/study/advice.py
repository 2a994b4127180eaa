"""Advice: what could be changed about a kernel, and what that would save, by timing the launch without it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from abstim.gpu.config import Gpu
from abstim.progress import Progress, silent
from abstim.session.issue_logs import HotSpot, hot_spots
from abstim.session.memory_accesses import coalesced, halved_atomics, without_conflicts
from abstim.session.result import LEAST_GAIN
from abstim.session.session import Session
from abstim.study.counterfactual import RESOURCES, Resource, timed_with

if TYPE_CHECKING:
    from abstim.engine import LaunchInputs
    from functional.launches.launch import Launch

_BY_NAME = {resource.name: resource for resource in RESOURCES}
UNCOALESCED, CONFLICTS, ATOMICS, TAIL = "uncoalesced access", "bank conflicts", "atomics", "tail wave"
OCCUPANCY, LAUNCHES = "occupancy", "launch latency"
TRIED = (
    Resource(UNCOALESCED, inputs=coalesced),
    Resource(CONFLICTS, inputs=without_conflicts),
    Resource(ATOMICS, inputs=halved_atomics),
    _BY_NAME[OCCUPANCY],
    _BY_NAME[LAUNCHES],
)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What could be changed: `cycles` of all launches without it, by a run of the model, and the share saved."""

    kind: str
    text: str
    cycles: int
    gain: float


@dataclass(frozen=True, kw_only=True)
class Advice:
    """Findings on a target, the most rewarding first."""

    target: str
    gpu: str
    memory_model: str
    cycles: int
    findings: list[Finding]

    def to_json(self) -> dict[str, Any]:
        """Everything, as what `json.dumps` takes."""
        return {"kind": "advice"} | asdict(self)


@dataclass
class _Totals:
    """Over the launches: cycles as they are, and as they would be without each thing."""

    cycles: int = 0
    without: dict[str, int] = field(default_factory=dict)
    limiters: dict[str, int] = field(default_factory=dict)  # of occupancy, by cycles
    last_wave: float = 0.0  # least share of a launch's last wave that is filled
    launches: int = 0

    def add(self, cycles: int, without: Mapping[str, int], limiter: str) -> None:
        """Take in a launch."""
        self.cycles += cycles
        self.launches += 1
        for kind in (*(resource.name for resource in TRIED), TAIL):
            self.without[kind] = self.without.get(kind, 0) + without.get(kind, cycles)
        self.limiters[limiter] = self.limiters.get(limiter, 0) + cycles


def advise(session: Session, gpu: Gpu, progress: Progress = silent) -> Advice:
    """Look at every launch of a target on a GPU. Raises InputError as the detailed model does."""
    totals = _Totals()
    for number, launch, trace, base, cycles in timed_with(session, gpu, TRIED, "all", progress):
        limit = session.occupancy(number, gpu)
        tail = _without_tail(session, number, launch, gpu, session.inputs(number, gpu, trace), base.cycles)
        totals.add(base.cycles, cycles | {TAIL: tail}, limit.limiter)
    spots = hot_spots(session, gpu) if gpu.spec.timed_code == "ptx" else []
    return Advice(
        target=session.case.name, gpu=gpu.name, memory_model=gpu.memory_model, cycles=totals.cycles,
        findings=_findings(totals, spots),
    )  # fmt: skip


def _without_tail(session: Session, number: int, launch: Launch, gpu: Gpu, inputs: LaunchInputs, cycles: int) -> int:
    """A launch's cycles if its last wave were as full as the others: those of its whole waves, scaled to all blocks."""
    from abstim.engine import simulate_point

    blocks, blocks_per_sm = prod(launch.grid), session.blocks_per_sm(number, gpu)
    whole = blocks // (gpu.spec.sm_count * blocks_per_sm) * gpu.spec.sm_count * blocks_per_sm
    if whole in (0, blocks):
        return cycles
    part = replace(inputs, trace=inputs.trace.part(0, whole))
    return min(cycles, round(simulate_point(part, gpu, blocks_per_sm).cycles * blocks / whole))


def _findings(totals: _Totals, spots: Sequence[HotSpot]) -> list[Finding]:
    texts: dict[str, Callable[[], str]] = {
        UNCOALESCED: lambda: _worst_place(spots, _excess_sectors, "asks for {:.1f} sectors of 32 B a request; "
                                          "lanes side by side need fewer"),
        CONFLICTS: lambda: _worst_place(spots, _excess_passes, "takes {:.1f} passes of shared memory's banks a "
                                        "request; 1 is none too many"),
        ATOMICS: lambda: "half as many atomics on global memory: add up in registers or shared memory first",
        TAIL: lambda: "the last wave of thread blocks does not fill the SMs: choose a grid of whole waves",
        OCCUPANCY: lambda: f"twice the thread blocks an SM; they are limited by {_most(totals.limiters)}",
        LAUNCHES: lambda: f"half the launch latency, of {totals.launches} launches: do more in each",
    }  # fmt: skip
    found = [
        Finding(kind=kind, text=texts[kind](), cycles=cycles, gain=1 - cycles / totals.cycles)
        for kind, cycles in totals.without.items()
    ]
    return sorted((f for f in found if f.gain >= LEAST_GAIN), key=lambda finding: -finding.gain)


def _excess_sectors(spot: HotSpot) -> tuple[float, float]:
    """(sectors a request, how many all requests are above 4, what 32 lanes of 4 B need)."""
    a_request = spot.sectors_per_request or 0.0
    return a_request, (a_request - 4) * spot.requests


def _excess_passes(spot: HotSpot) -> tuple[float, float]:
    """(passes a request, how many all requests are above 1)."""
    a_request = spot.passes_per_request or 0.0
    return a_request, (a_request - 1) * spot.shared_requests


def _worst_place(spots: Sequence[HotSpot], excess: Callable[[HotSpot], tuple[float, float]], text: str) -> str:
    """Where it is worst, and how bad it is there."""
    if not spots:
        return text.split(" {")[0].replace("asks for", "fewer sectors a request").replace("takes", "fewer bank passes")
    worst = max(spots, key=lambda spot: excess(spot)[1])
    at = f"{Path(worst.source.file).name}:{worst.source.line}, " if worst.source else ""
    return f"{at}PTX line {worst.line} ({worst.text.split()[0]}) {text.format(excess(worst)[0])}"


def _most(cycles: Mapping[str, int]) -> str:
    return max(cycles, key=cycles.__getitem__)
