"""The limits of a launch, and what could be changed about its kernel, by timing the launch again: each resource made
twice as fast, alone, and each change of the kernel made.

counterfactual(open_session("hotspot"), [load_gpu("gtx480")])[0].limits  # the most rewarding first"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import filter
from functools import partial
from math import prod
from pathlib import Path
from time import perf_counter
from typing import Any

from abstim.brief import Told
from abstim.engine import EngineResult, LaunchInputs, simulate_point
from abstim.gpu.config import Gpu, changed, domains, gpu_of, gpus_of
from abstim.progress import Progress, in_parallel, silent
from abstim.session.detailed import launch_result
from abstim.session.issue_logs import HotSpot, hot_spots
from abstim.session.memory_accesses import coalesced, halved_atomics, halved_conflicts, without_conflicts
from abstim.session.result import COUNTERFACTUAL, LEAST_GAIN, RunResult, limit_named, ranked, run_result, target_note
from abstim.session.session import Session, open_session
from abstim.session.warm_up import Flushed, check_flush
from abstim.targets.resolve import Target
from functional.errors import InputError
from functional.files import toml_beside
from functional.launches.launch import Launch
from functional.traces.trace import Trace

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Resource:
    """What is made twice as fast: keys whose values double, keys whose values halve; `instead`: keys that
    double where the first of `double` may not; `inputs`: what it changes of a launch."""

    name: str
    double: tuple[str, ...] = ()
    halve: tuple[str, ...] = ()
    instead: tuple[str, ...] = ()
    inputs: Callable[[LaunchInputs], LaunchInputs] | None = None


def _resources() -> Iterator[Resource]:
    """The table; a key may be a pattern of several."""
    changes = {change.__name__: change for change in (halved_conflicts, halved_atomics)}
    for name, said in toml_beside(__file__, "resources.toml").items():
        inputs = changes.get(said.pop("inputs", ""))
        keys = {how: tuple(key for own in patterns for key in filter(domains(), own)) for how, patterns in said.items()}
        yield Resource(name, **keys, inputs=inputs)


RESOURCES = tuple(_resources())


@dataclass(frozen=True)
class Variant:
    """A GPU with one resource twice as fast."""

    resource: Resource
    gpu: Gpu

    def inputs(self, session: Session, number: int, trace: Trace) -> LaunchInputs:
        """Of a launch, as this GPU sees it."""
        found = session.inputs(number, self.gpu, trace)
        return self.resource.inputs(found) if self.resource.inputs else found


def variants(gpu: Gpu, resources: Sequence[Resource] = RESOURCES) -> list[Variant]:
    """One a resource that can be made faster on this GPU: not one the engine has no more of, nor one it has none of."""
    found = []
    for resource in resources:
        values = _scaled(gpu, resource.double, _doubled)
        if resource.instead and resource.double[0] not in values:
            values |= _scaled(gpu, resource.instead, _doubled)
        values |= _scaled(gpu, resource.halve, _halved)
        if values or resource.inputs:
            try:
                found.append(Variant(resource, changed(gpu, values, f"{gpu.name}, twice {resource.name}")))
            except InputError:  # it makes no GPU together with the other values
                continue
    return found


def _scaled(gpu: Gpu, keys: Sequence[str], scale: Callable[[str, Any], Any]) -> dict[str, Any]:
    """Values that change; those of 0 say that there is no such thing, those that [time] derives follow it."""
    old = {key: gpu.settings[key].value for key in keys if not gpu.why_derived(key)}
    new = {key: scale(key, value) for key, value in old.items() if value}
    return {key: value for key, value in new.items() if value != old[key]}


def _doubled(key: str, value: Any) -> Any:
    """Twice, or as much as the engine knows of it."""
    domain = domains()[key]
    if domain.type is float:
        return 2 * value
    return next((more for more in range(2 * value, value, -1) if domain.accepts(more)), value)


def _halved(key: str, value: Any) -> Any:
    half = value // 2 if domains()[key].type is int else value / 2
    return half if domains()[key].accepts(half) else value


def counterfactual(
    target: Target | Session, gpus: str | Gpu | Sequence[str | Gpu], flush: str = "all", progress: Progress = silent
) -> list[RunResult]:
    """Every launch on every GPU by the detailed model, with `limits`: exact, and some twenty times the work. Raises
    InputError as the detailed model does."""
    check_flush(flush)
    session = open_session(target, points := gpus_of(gpus), progress=progress)
    results = []
    for gpu in points:
        started, before, found = perf_counter(), session.prepared_seconds, []
        for number, launch, trace, base, cycles in timed_with(session, gpu, RESOURCES, flush, progress):
            row, limits = launch_result(session, number, launch, trace, gpu, base), ranked(cycles, base.cycles)
            found.append(replace(row, limit=limit_named(limits), limits=limits, limit_basis=COUNTERFACTUAL))
        seconds = perf_counter() - started - (session.prepared_seconds - before)
        results.append(run_result(session, gpu, found, seconds, flush=flush))
    return results


def timed_with(
    session: Session, gpu: Gpu, resources: Sequence[Resource], flush: str, progress: Progress
) -> Iterator[tuple[int, Launch, Trace, EngineResult, dict[str, int]]]:
    """Every launch in order: its number, the launch, its trace, the engine's result as things are, and its cycles with
    each of the resources twice as fast, by name."""
    tried = [Variant(Resource("nothing"), gpu), *variants(gpu, resources)]
    policies = [Flushed(flush) for _ in tried]
    prepared: list[LaunchInputs] = []

    def one(number: int, k: int) -> EngineResult:
        gpu = tried[k].gpu
        caches = policies[k].before(session, number, gpu)
        return simulate_point(prepared[k], gpu, session.blocks_per_sm(number, gpu), caches)

    for number, launch, trace in session.each():
        prepared = [variant.inputs(session, number, trace) for variant in tried]  # characterised in this thread

        def told(k: int, total: int, number: int = number) -> None:
            progress(f"limits of {session.case.name}", number * total + k, len(session) * total)

        base, *results = in_parallel(partial(one, number), len(tried), told)
        yield number, launch, trace, base, {v.resource.name: r.cycles for v, r in zip(tried[1:], results, strict=True)}


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


@dataclass(frozen=True)
class Finding:
    """What could be changed: `cycles` of all launches without it, by a run of the model, and the share saved."""

    kind: str
    text: str
    cycles: int
    gain: float


@dataclass(frozen=True, repr=False)
class Advice(Told):
    """Findings on a target, the most rewarding first."""

    kind = "advice"
    target: str
    gpu: str
    memory_model: str
    cycles: int
    findings: list[Finding]
    note: str = ""  # what keeps the times from being what they should be


def advise(target: Target | Session, gpu: str | Gpu, progress: Progress = silent) -> Advice:
    """Look at every launch of a target on a GPU. Raises InputError as the detailed model does."""
    gpu = gpu_of(gpu)
    session = open_session(target, [gpu], progress=progress)
    total, without, limiters = 0, Counter[str](), Counter[str]()  # cycles: all, without each thing, by what limits
    for number, launch, trace, base, cycles in timed_with(session, gpu, TRIED, "all", progress):
        tail = _without_tail(session, number, launch, gpu, session.inputs(number, gpu, trace), base.cycles)
        total += base.cycles
        without.update({kind: cycles.get(kind, base.cycles) for kind in (r.name for r in TRIED)} | {TAIL: tail})
        limiters[session.occupancy(number, gpu).limiter] += base.cycles
    spots = hot_spots(session, gpu) if gpu.spec.timed_code == "ptx" else []
    texts = {kind: _worst_place(spots, kind) for kind in _EXCESS} | {
        ATOMICS: "half as many atomics on global memory: add up in registers or shared memory first",
        TAIL: "the last wave of thread blocks does not fill the SMs: choose a grid of whole waves",
        OCCUPANCY: f"twice the thread blocks an SM; they are limited by {limiters.most_common(1)[0][0]}",
        LAUNCHES: f"half the launch latency, of {len(session)} launches: do more in each",
    }  # fmt: skip
    found = [Finding(kind, texts[kind], n, 1 - n / total) for kind, n in without.items()]
    found = sorted((f for f in found if f.gain >= LEAST_GAIN), key=lambda finding: -finding.gain)
    return Advice(session.case.name, gpu.name, gpu.memory_model, total, found, target_note(session, gpu))


def _without_tail(session: Session, number: int, launch: Launch, gpu: Gpu, inputs: LaunchInputs, cycles: int) -> int:
    """A launch's cycles if its last wave were as full as the others: those of its whole waves, scaled to all blocks."""
    blocks, blocks_per_sm = prod(launch.grid), session.blocks_per_sm(number, gpu)
    whole = blocks // (gpu.spec.sm_count * blocks_per_sm) * gpu.spec.sm_count * blocks_per_sm
    if whole in (0, blocks):
        return cycles
    part = replace(inputs, trace=inputs.trace.part(0, whole))
    return min(cycles, round(simulate_point(part, gpu, blocks_per_sm).cycles * blocks / whole))


# Of a spot: what may be too many a request, of how many requests, how many are none too many, what to do, and the words
# for it where a place is known. 32 lanes of 4 B need 4 sectors
_EXCESS = {
    UNCOALESCED: ("sectors_per_request", "requests", 4, "fewer sectors a request",
                  "asks for {:.1f} sectors of 32 B a request; lanes side by side need fewer"),
    CONFLICTS: ("passes_per_request", "shared_requests", 1, "fewer bank passes",
                "takes {:.1f} passes of shared memory's banks a request; 1 is none too many"),
}  # fmt: skip


def _worst_place(spots: Sequence[HotSpot], kind: str) -> str:
    """Where it is worst, and how bad it is there."""
    rate, requests, needed, wanted, text = _EXCESS[kind]
    if not spots:
        return wanted
    worst = max(spots, key=lambda spot: ((getattr(spot, rate) or 0.0) - needed) * getattr(spot, requests))
    at = f"{Path(worst.source.file).name}:{worst.source.line}, " if worst.source else ""
    return f"{at}PTX line {worst.line} ({worst.text.split()[0]}) {text.format(getattr(worst, rate) or 0.0)}"
