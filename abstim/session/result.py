"""What a simulation returns. Plain data; `to_json` is the contract of `--json`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from abstim import __version__
from abstim.brief import Brief
from abstim.gpu.config import Gpu, known_error_of
from abstim.session.limits import FLOATS, TRAFFIC, limit_of, peaks, rates, work_of
from abstim.session.turns import queue_notes
from abstim.targets.execution import OutputCheck
from precharacterize.timed_code import why_not_machine

if TYPE_CHECKING:
    import pandas

    from abstim.session.session import Session
    from abstim.session.side_by_side import Overlap
    from functional.launches.launch import Launch
    from functional.traces.trace import Trace

Result = TypeVar("Result", bound="LaunchResult")
# Why a scheduler did, or did not, issue in a cycle; the order of `EngineResult.issue_slots`.
NOTHING_ALONE = "no resource alone"  # what limits a launch that no resource twice as fast makes faster
LEAST_GAIN = 0.02  # of a launch's cycles: what brings less is not named as its limit
ESTIMATE, COUNTERFACTUAL = "estimate", "counterfactual"  # how a limit was found
SLOT_REASONS = ("issued", "no_ready_warp", "unit_busy", "barrier", "memory", "empty")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A resource twice as fast, all else as it is: `cycles` then, and the share of them saved."""

    resource: str
    cycles: int
    gain: float


def ranked(cycles: Mapping[str, int], now: int) -> list[Limit]:
    """What each resource twice as fast would make of `now` cycles, the greatest gain first."""
    found = [Limit(resource=name, cycles=count, gain=1 - count / now) for name, count in cycles.items()]
    return sorted(found, key=lambda limit: limit.cycles)


def limit_named(limits: Sequence[Limit]) -> str:
    """What limits, of ranked ones: the resource that brings most, if that is enough to speak of."""
    return limits[0].resource if limits and limits[0].gain >= LEAST_GAIN else NOTHING_ALONE


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LaunchResult(Brief):
    """One kernel launch on one GPU."""

    kernel: str
    launch: int  # position in the target's list of launches
    label: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cycles: int
    seconds: float  # cycles / core clock
    thread_instructions: int  # active: lanes whose guard predicate holds
    warp_instructions: int  # of the PTX
    ipc: float  # thread instructions a cycle, all SMs together
    warp_ipc: float  # warp instructions a cycle, all SMs together
    occupancy: float  # resident warps / most an SM can hold, mean over the cycles of SMs that still have work
    blocks_per_sm: int
    occupancy_limiter: str
    registers_per_thread: int
    registers_source: str
    shared_bytes: int  # static and dynamic, a thread block
    issue_slots: dict[str, int]  # scheduler cycles by reason, all SMs together
    issue_slots_per_sm: dict[str, list[int]]
    caches: dict[str, int]
    memory: dict[str, float]  # hit rates, traffic, use of capacity: abstim.session.limits.memory_use
    windows: dict[str, Any]  # issue over time: abstim.engine.simulation.Launch.history
    limit: str  # what kept it from being faster, as `limit_basis` found it
    limit_basis: str = ESTIMATE  # abstim.session.limits.estimated_gains; COUNTERFACTUAL: abstim.study.counterfactual
    estimated_gains: dict[str, float] = field(default_factory=dict)  # shares of the cycles that twice of each saves
    limits: list[Limit] = field(default_factory=list)  # of a counterfactual: every resource, the greatest gain first
    timed_instructions: int = 0  # warp instructions of what was timed; 0: those of the PTX
    timed_code: str = "PTX"  # what was timed: the PTX, PTX with loads hoisted, machine code, and what made that
    machine_code_share: float = 0.0  # of the instructions timed
    operations: dict[str, int] = field(default_factory=dict)  # timed, of threads (fma: 2): `Operations`; {}: of PTX
    matched_access_share: float = 1.0  # of the PTX's memory accesses, constants apart, that a timed instruction makes
    timed_shares: dict[str, float] = field(default_factory=dict)  # of what was executed, by class; {}: PTX, all of it
    shared_accesses: int = 0  # of warps, to shared memory; passes for bank conflicts are not counted
    notes: list[str] = field(default_factory=list)  # why its cycles may not be a GPU's
    work: dict[str, int] = field(default_factory=dict)  # floating-point operations of the PTX: rates.work_of
    peaks: dict[str, float] = field(default_factory=dict)  # of the GPU, a second: rates.peaks
    rates: dict[str, float] = field(init=False)  # a second, and shares of those: rates.rates
    active_sms: float = 0.0  # SMs between the launch's first cycle on an SM and their own last, mean over its cycles

    def __post_init__(self) -> None:
        object.__setattr__(self, "rates", rates(self.work, self.memory, self.seconds, self.peaks))


def again(result: Result, launch: Launch, number: int) -> Result:
    """What a launch took, of another one that does the same."""
    return replace(result, launch=number, label=launch.label)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """Every launch of a target on one GPU. `wall_seconds` is this program's own time by stage."""

    target: str
    gpu: str
    launches: list[LaunchResult]
    wall_seconds: dict[str, float]
    outputs: list[OutputCheck] | None = None  # None: not checked, or nothing to check against
    printf: str = ""  # what the kernels wrote with it
    memory_model: str = ""  # what lies behind the first-level caches
    known_error: str = "nothing is known of it"  # what has been measured of the model's error of times on this GPU
    note: str = ""  # what keeps the times from being what they should be
    model: str = "detailed"  # that timed it
    flush: str = "all"  # caches emptied before each launch
    gpu_values: dict[str, Any] = field(default_factory=dict)  # every value of the GPU but those of [time]
    version: str = __version__  # of abstim
    overlap: Overlap | None = None  # of launches on streams; then `totals` are of all of them side by side
    totals: dict[str, float] = field(init=False)
    rates: dict[str, float] = field(init=False)  # those of a launch, of all of them in the time of `totals`

    def __post_init__(self) -> None:
        summed = ("cycles", "seconds", "thread_instructions", "warp_instructions")
        totals = {key: sum(getattr(launch, key) for launch in self.launches) for key in summed}
        if self.overlap is not None:
            totals["seconds"] *= self.overlap.cycles / totals["cycles"]
            totals["cycles"] = self.overlap.cycles
        totals["ipc"] = totals["thread_instructions"] / totals["cycles"] if totals["cycles"] else 0.0
        object.__setattr__(self, "totals", totals)
        work = {kind: sum([launch.work.get(kind, 0) for launch in self.launches]) for kind in FLOATS}
        moved = {name: [launch.memory[name] for launch in self.launches if name in launch.memory] for name in TRAFFIC}
        memory = {name: sum(map(int, each)) for name, each in moved.items() if each}
        memory |= self.overlap.memory if self.overlap is not None else {}
        most = self.launches[0].peaks if self.launches else {}
        reached = rates(work, memory, totals["seconds"], most) if totals["seconds"] else {}
        object.__setattr__(self, "rates", reached)

    def __repr__(self) -> str:
        launches = f"{len(self.launches)} launch{'es' if len(self.launches) != 1 else ''}"
        note = f"; {self.note}" if self.note else ""
        total = f"{self.totals['cycles']:,} cycles, {launches}, limited by {self.limit}"
        return f"<{self.target} on {self.gpu}: {total}{note}>"

    @property
    def timed_code(self) -> str:
        """What was timed: "PTX", "PTX with loads hoisted", "machine code", or several of them."""
        return " and ".join(dict.fromkeys(x.timed_code.partition(" (")[0] for x in self.launches))

    def to_frame(self) -> pandas.DataFrame:
        """A row a launch; what is not one number or text is left out."""
        import pandas

        rows = [asdict(launch).items() for launch in self.launches]
        return pandas.DataFrame([{k: v for k, v in row if isinstance(v, (str, int, float))} for row in rows])

    def _repr_html_(self) -> str:
        from html import escape

        import pandas

        columns = ["kernel", "cycles", "seconds", "ipc", "occupancy", "blocks_per_sm", "limit"]
        with pandas.option_context("display.max_colwidth", None):
            table = self.to_frame()[columns].to_html(index=False, float_format="{:.4g}".format)
        facts = f"{repr(self)[1:-1]}; memory: {self.memory_model}; error: {self.known_error}"
        return f"<p>{escape(facts)}</p>{table}"

    @property
    def limits(self) -> list[Limit]:
        """Of all launches together, the greatest gain first; empty unless counterfactuals were asked for."""
        cycles = Counter[str]()
        for launch in self.launches:
            cycles.update({limit.resource: limit.cycles for limit in launch.limits})
        return ranked(cycles, int(self.totals["cycles"]))

    @property
    def limit(self) -> str:
        """What limits it: of counterfactuals, or what is estimated of the launches with the most cycles."""
        if self.limits:
            return limit_named(self.limits)
        found = Counter[str]()
        for launch in self.launches:
            found.update({name: int(launch.cycles * gain) for name, gain in launch.estimated_gains.items()})
        if found:
            return limit_of(found)
        for launch in self.launches:
            found[launch.limit] += launch.cycles
        return max(found, key=found.__getitem__)

    @property
    def limit_basis(self) -> str:
        """How `limit` was found."""
        return COUNTERFACTUAL if self.limits else ESTIMATE

    def to_json(self) -> dict[str, Any]:
        """Everything, as what `json.dumps` takes."""
        limits = {"limit": self.limit, "limit_basis": self.limit_basis, "limits": [asdict(x) for x in self.limits]}
        return {"kind": "run"} | asdict(self) | limits | {"timed_code": self.timed_code}


NO_CLUSTERS = "thread blocks of a cluster wait for each other by the detailed model alone"
ONE_BY_ONE = "kernels of different streams are timed one by one; `abstim run` times them side by side"
FORMULA_TIMES_PTX = "the formula times PTX, not the machine code that this GPU runs"
ENOUGH_TIMED = 0.85  # of what was executed of a class, less is said


def not_machine_code(codes: Sequence[str], things: str = "launches") -> str:
    """Of launches (or other `things`) that were to be timed from machine code, given what was timed: how many were
    not, and why; "" if all were."""
    found = [why for code in codes if (why := why_not_machine(code))]
    some = "" if len(found) == len(codes) else f"{len(found)} of {len(codes)} {things} "
    return f"{some}not timed from machine code, and so up to 2.5 times off: {found[0]}" if found else ""


def code_notes(gpu: Gpu, model: str, launches: Sequence[LaunchResult]) -> tuple[str, str]:
    """What was timed of launches in place of what this GPU runs, and how much less than was executed: what is known of
    the error then (see `known_error_of`), and what to say of it, "" if there is nothing."""
    if model == "analytic" and gpu.spec.timed_code == "machine":
        return known_error_of(gpu, model, "ptx"), FORMULA_TIMES_PTX
    other = not_machine_code([x.timed_code for x in launches])
    notes = (other, too_little_timed((x.kernel, x.timed_shares) for x in launches))
    return known_error_of(gpu, model, "hoisted" if other else ""), "; ".join(filter(None, notes))


def target_note(session: Session, gpu: Gpu, model: str = "detailed") -> str:
    """What keeps the times of a target's launches, each by itself, from being a GPU's; "" if nothing is known."""
    return "; ".join(filter(None, (target_code_note(session, gpu, model), *_left_out(session, model))))


def _left_out(session: Session, model: str, side_by_side: bool = False) -> tuple[str, str]:
    """What of a target's launches the model does not time, as texts."""
    one_by_one = session.may_overlap and not side_by_side
    return ONE_BY_ONE * one_by_one, NO_CLUSTERS * (session.in_clusters and model != "detailed")


def target_code_note(session: Session, gpu: Gpu, model: str) -> str:
    """Of a target's kernels: why some are not timed from the machine code that a GPU runs; "" if all are."""
    if gpu.spec.timed_code != "machine" or model == "analytic":
        return FORMULA_TIMES_PTX if gpu.spec.timed_code == "machine" else ""
    firsts = {session.first_launch_of(number) for number in range(len(session))}
    return not_machine_code([code.description for n in firsts if (code := session.timed_code(n, gpu))], "kernels")


def too_little_timed(launches: Iterable[tuple[str, Mapping[str, float]]]) -> str:
    """Of kernels and `timed_shares` of their launches: the class of which most is missing; "" if enough is timed."""
    found = [(part, name, kernel) for kernel, parts in launches for name, part in parts.items() if part < ENOUGH_TIMED]
    if not found:
        return ""
    share, name, kernel = min(found)
    kernels = len({other for _, _, other in found})
    others = f", and too little of {kernels - 1} kernels more" if kernels > 1 else ""
    said = f"of the {name} that '{kernel}' executes {share:.0%} are timed{others}"
    return f"{said}: the assembler merged the rest or left it out"


def run_result(
    session: Session, gpu: Gpu, launches: list[LaunchResult], seconds: float, model: str = "detailed",
    overlap: Overlap | None = None, flush: str = "all", **others: float
) -> RunResult:  # fmt: skip
    """All launches of a session on one GPU, in the terms of `--json`. `seconds`: that timing took; `others`: stages
    that other models do not have."""
    known, note = code_notes(gpu, model, launches)
    left_out = _left_out(session, model, side_by_side=overlap is not None)
    return RunResult(
        target=session.case.name,
        gpu=gpu.name,
        launches=launches,
        wall_seconds=session.wall_seconds | others | {"time": max(0.0, seconds)},  # threads may prepare meanwhile
        outputs=list(session.traces.outputs) or None,
        printf=session.traces.printed,
        memory_model=gpu.memory_model,
        known_error=known,
        note="; ".join(filter(None, (note, session.order_note, *left_out))),
        overlap=overlap,
        model=model,
        flush=flush,
        gpu_values={f.name: getattr(part, f.name) for part in (gpu.spec, gpu.params) for f in fields(part)}
        | {key: of_class.value for key, of_class in gpu.settings.items() if "." in key},
    )


def timed_facts(session: Session, number: int, trace: Trace, gpu: Gpu) -> dict[str, Any]:
    """What was timed of a launch in place of its PTX."""
    code = session.timed_code(number, gpu)
    if code is None:
        return {}
    projected = session.projected(trace, code)
    kept, operations = projected.waits_kept, projected.operations._asdict()
    made, accesses = projected.matched_accesses, projected.accesses
    executed = work_of(trace, session.block_operations(number))
    # by class, of what was executed: operations that are timed, accesses that a timed instruction makes
    counts = {f"{kind} operations": (operations[kind], executed[kind]) for kind in FLOATS}
    names = ("global and local accesses", "shared accesses")
    counts |= dict(zip(names, zip(made, accesses, strict=True), strict=True))
    return {
        "timed_instructions": projected.instructions,
        "timed_code": code.description + ("" if kept == 1 else f", {kept:.0%} of the waits at mbarriers"),
        "machine_code_share": projected.machine_instructions / max(1, projected.instructions),
        "operations": operations,
        "matched_access_share": sum(made) / max(1, sum(accesses)),
        "timed_shares": {name: min(1.0, timed / done) for name, (timed, done) in counts.items() if done},
    }


def executed(session: Session, number: int, launch: Launch, trace: Trace) -> dict[str, Any]:
    """What a launch is and did, on whatever GPU; found once where its trace is held as long as the session."""

    def made() -> dict[str, Any]:
        threads, warps = int(trace.thread_instructions.sum()), int(trace.warp_instructions.sum())
        work = work_of(trace, session.block_operations(number))
        notes = queue_notes(launch.program, trace) + session.register_notes(number)
        did = {"thread_instructions": threads, "warp_instructions": warps, "notes": notes, "work": work}
        registers, asked = session.registers(number), {"kernel": launch.program.name, "launch": number}
        asked |= {"label": launch.label, "grid": launch.grid[:], "block": launch.block[:]}
        held = {"shared_bytes": launch.shared_bytes, "registers_per_thread": registers.count}
        return asked | did | held | {"registers_source": registers.source}

    return session.once_of(number, trace, ("executed", number), made)


def launch_facts(session: Session, number: int, launch: Launch, trace: Trace, gpu: Gpu, cycles: int) -> dict[str, Any]:
    """What every model says of a launch alike: fields of a LaunchResult."""
    limit, did = session.occupancy(number, gpu), executed(session, number, launch, trace)
    rates = {"ipc": did["thread_instructions"] / cycles, "warp_ipc": did["warp_instructions"] / cycles}
    held = {"blocks_per_sm": limit.blocks_per_sm, "occupancy_limiter": limit.limiter, "peaks": peaks(gpu)}
    return {**did, "cycles": cycles, "seconds": cycles / gpu.spec.core_clock_hz, **rates, **held}
