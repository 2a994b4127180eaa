"""How fast abstim itself is: each stage with a stopwatch, beside the reference's speed, and beside an earlier result.

A stage is repeated within a round until it has taken `MIN_SECONDS`; the fastest repetition is the round's figure.
Rounds go over all benchmarks, so that those of one benchmark lie far enough apart to show the machine's other work.
Results are plain data; `to_json` is the contract of `abstim bench --json`."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from itertools import product
from math import exp, log
from pathlib import Path
from statistics import fmean, geometric_mean, median
from time import perf_counter, process_time
from typing import Any

import numpy as np

from abstim import __version__
from abstim.gpu.config import Gpu, load_gpu
from abstim.models import DETAILED, model_named
from abstim.progress import Progress, silent
from abstim.session.detailed import engine_results
from abstim.session.session import Session, open_session
from abstim.study.baseline import read_result
from abstim.study.validate import Measured, known_variants, read_reference, select
from abstim.targets.execution import execute_case
from functional.errors import InputError, refuse
from functional.execution.computer import default_threads, so_many_threads
from functional.files import number_in, table_rows
from functional.programs.link import link
from functional.ptx.parser import parse
from precharacterize import characterize

LIBRARIES = ("numpy", "llvmlite", "jax", "jaxlib")


def describe_machine() -> dict[str, Any]:
    """Processor, CPUs this process may use, threads it uses, Python, abstim and the libraries that set its speed."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = (line.partition(":")[2].strip() for line in file if line.startswith("model name"))
            processor = next(names, platform.machine())
    except OSError:
        processor = platform.processor() or platform.machine()
    return {
        "processor": processor,
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "threads": default_threads(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "abstim": __version__,
    } | {name: metadata.version(name) for name in LIBRARIES}


def yardstick_seconds() -> float:
    """Time of a fixed piece of work that is none of abstim's: how fast the machine is just now. Interpreted code, a
    sort and a pass over memory, about 30 ms together; the fastest of three."""
    values = np.random.default_rng(0).random(200_000)

    def work() -> float:
        started = perf_counter()
        table: dict[int, int] = {}
        for number in range(60_000):
            table[number % 977] = table.get(number % 977, 0) + number
        np.cumsum(np.sort(values)).sum()
        return perf_counter() - started

    return min(work() for _ in range(3))


STAGES = ("parse", "characterize", "execute", "time")
FIGURES = ("thread_mips", "warp_mips", "stepped_thread_mips", "stepped_warp_mips")


@dataclass(frozen=True, slots=True)
class Rate:
    """One stage of one benchmark. Instructions are dynamic ones of all launches, times the design points in `time`. A
    *represented* instruction is one the result stands for, on every design point; a *stepped* one is one the stage
    really walked: it may treat equal SMs, launches or points once. Both are reported, never mixed."""

    round_seconds: tuple[float, ...]  # the fastest repetition of each round
    round_cpu_seconds: tuple[float, ...]  # processor time, of all threads: the least of a repetition of each round
    first_seconds: float  # the very first repetition, compilers and caches included
    thread_instructions: int
    warp_instructions: int
    stepped_thread_instructions: int
    stepped_warp_instructions: int

    @property
    def seconds(self) -> float:
        """Median over the rounds."""
        return median(self.round_seconds)

    @property
    def cpu_seconds(self) -> float:
        """Processor time, median over the rounds."""
        return median(self.round_cpu_seconds)

    @property
    def mad_seconds(self) -> float:
        """Median absolute deviation of the rounds."""
        return mad(self.round_seconds)

    @property
    def mips(self) -> dict[str, float]:
        """Millions of instructions a second, by FIGURES."""
        return {f: getattr(self, f.replace("mips", "instructions")) / self.seconds / 1e6 for f in FIGURES}

    def merged(self, later: Rate) -> Rate:
        """The same work, measured again."""
        both = {name: getattr(self, name) + getattr(later, name) for name in ("round_seconds", "round_cpu_seconds")}
        return replace(self, **both)

    def to_json(self) -> dict[str, Any]:
        """Figures and rates."""
        found = {name: getattr(self, name) for name in ("seconds", "cpu_seconds", "mad_seconds")}
        return asdict(self) | found | self.mips


@dataclass(frozen=True, slots=True)
class Against:
    """A benchmark on a variant of the reference's GPU: how exact and how fast abstim is beside the reference. `seconds`
    is what executing and timing take; parsing and characterising, done once a kernel, are in `all_seconds`."""

    benchmark: str
    group: str
    variant: str
    predicted_cycles: int
    measured_cycles: int
    thread_instructions: int
    seconds: float
    all_seconds: float
    reference_seconds: float

    error: float  # signed, as a fraction of the measured cycles
    speedup: float  # the reference's processor time over abstim's
    thread_mips: float  # thread instructions executed and timed, in millions a second


@dataclass(frozen=True, slots=True)
class BenchResult:
    """Rates by benchmark and stage, and the comparison with the reference if one was asked for."""

    gpu: str
    points: int
    rates: dict[str, dict[str, Rate]]
    against: list[Against] = field(default_factory=list)
    yardstick_seconds: list[float] = field(default_factory=list)  # of each round: `machine.yardstick_seconds`
    machine: dict[str, Any] = field(default_factory=describe_machine)
    model: str = "detailed"  # of the stage `time`
    memory_model: str = ""  # of the GPU
    scaling: dict[int, dict[str, Rate]] = field(default_factory=dict)  # by threads and benchmark: the stage `time`
    interrupted: bool = False

    def stages(self) -> list[str]:
        """Those that were measured, in order."""
        return [stage for stage in STAGES if any(stage in found for found in self.rates.values())]

    def geomean(self, stage: str, figure: str) -> float | None:
        """Geometric mean of a rate over the benchmarks that have the stage."""
        return geomean([stages[stage].mips[figure] for stages in self.rates.values() if stage in stages])

    def scaled(self, threads: int) -> float | None:
        """How much faster the stage `time` is on so many threads than on the first number measured: geometric mean."""
        first = next(iter(self.scaling.values()))
        return geomean([first[name].seconds / rate.seconds for name, rate in self.scaling[threads].items()])

    def to_json(self) -> dict[str, Any]:
        """Everything, as what `json.dumps` takes."""
        said = ("machine", "gpu", "memory_model", "points", "model", "yardstick_seconds", "interrupted")
        return {"kind": "bench"} | {name: getattr(self, name) for name in said} | {
            "benchmarks": {n: {s: r.to_json() for s, r in found.items()} for n, found in self.rates.items()},
            "geomean": {s: {figure: self.geomean(s, figure) for figure in FIGURES} for s in self.stages()},
            "against": [asdict(row) for row in self.against],
            "scaling": [
                {"threads": n, "speedup": self.scaled(n), "benchmarks": {b: r.to_json() for b, r in rates.items()}}
                for n, rates in self.scaling.items()
            ],
        }  # fmt: skip


def geomean(values: Sequence[float]) -> float | None:
    """Geometric mean; None without values, or if one is not positive."""
    return geometric_mean(values) if values and min(values) > 0 else None


def mad(values: Sequence[float]) -> float:
    """Median absolute deviation."""
    middle = median(values)
    return median(abs(value - middle) for value in values)


MIN_SECONDS = 0.2


def _rate(session: Session, run: Callable[[], Any], points: int = 1) -> tuple[Rate, Any]:
    """One round of a stage that walks all it stands for, called for MIN_SECONDS at least, and its last result."""
    times, cpu_times = list[float](), list[float]()
    while sum(times[1:]) < MIN_SECONDS:
        started, cpu_started = perf_counter(), process_time()
        result = run()
        times.append(perf_counter() - started)
        cpu_times.append(process_time() - cpu_started)
        if times[0] > 10 * MIN_SECONDS and len(times) > 1:
            break
    traces = list(session.traces.in_order())
    threads, warps = (points * sum(int(getattr(trace, kind).sum()) for trace in traces) for kind in _KINDS)
    return Rate((min(times),), (min(cpu_times),), times[0], threads, warps, threads, warps), result


def stage_rate(stage: str, session: Session, gpus: Sequence[Gpu], model: str) -> Rate:
    """One round of a stage."""
    if stage == "time":
        return time_stage(session, gpus, model)[0]
    from functional.execution.default_executor import default_executor

    case, programs = session.case, {launch.program.name: launch.program for launch in session.case.launches}

    def parsed() -> None:
        module = parse(case.module.path)
        for kernel in programs:
            link(module, kernel)

    before: dict[str, Callable[[], Any]] = {
        "parse": parsed,
        "characterize": lambda: [characterize(program, gpus[0].pipeline) for program in programs.values()],
        "execute": lambda: execute_case(case, default_executor()),
    }
    return _rate(session, before[stage])[0]


_KINDS = ("thread_instructions", "warp_instructions")


def time_stage(session: Session, gpus: Sequence[Gpu], model: str = DETAILED) -> tuple[Rate, list[int]]:
    """One round of timing every launch on every GPU, and cycles of all launches by GPU."""
    if model == DETAILED:
        rate, results = _rate(session, lambda: engine_results(session, gpus), len(gpus))
        launches = zip(session.traces.in_order(), results, strict=True)
        cycles = [sum(of_gpu.cycles for of_gpu in column) for column in zip(*results, strict=True)]
        walked = {id(result): trace for trace, launch in launches for result in launch}  # once if launches do the same
        stepped = [[int(getattr(trace, kind).sum()) for kind in _KINDS] for trace in walked.values()]
    else:
        rate, results = _rate(session, lambda: model_named(model).time(session, gpus, "all", silent), len(gpus))
        cycles = [sum(row.cycles for row in result.launches) for result in results]
        rows = [row for result in results for row in result.launches]
        stepped = [[getattr(row, "stepped_fraction", 0.0) * getattr(row, kind) for kind in _KINDS] for row in rows]
    threads, warps = (round(sum(column)) for column in zip(*stepped, strict=True))
    return replace(rate, stepped_thread_instructions=threads, stepped_warp_instructions=warps), cycles


SECONDS_COLUMN = "reference_cpu_s"
VARIANTS = ("GTX480_a", "GTX480_b", "GTX480_c", "GTX480_d")  # of Figures 4 and 6: perfect and real memory


@dataclass(frozen=True)
class Reference:
    """Measured cycles, and the reference's processor time by (benchmark, variant), summed over the launches."""

    measured: list[Measured]
    seconds: dict[tuple[str, str], float]


def read_rows(path: Path, variants: Sequence[str], benchmarks: Sequence[str]) -> Reference:
    """The rows of a table that are to be compared. Raises InputError as `read_reference` does, and without seconds."""
    chosen, _ = select(read_reference(path), variants or VARIANTS, (), ())
    chosen = [entry for entry in chosen if entry.benchmark in benchmarks]
    refuse(not chosen, f"{path}: has none of the benchmarks to be measured")
    seconds: dict[tuple[str, str], float] = {}
    for where, row in table_rows(path):
        if row.get("flush") in (None, "", "all"):
            key = (row["benchmark"], row["variant"])
            seconds[key] = seconds.get(key, 0.0) + number_in(where, row, SECONDS_COLUMN)
    return Reference(chosen, seconds)


def against(
    reference: Reference, sessions: Mapping[str, Session], rates: Mapping[str, Mapping[str, Rate]], rounds: int,
    model: str, progress: Progress,
) -> Iterator[Against]:  # fmt: skip
    """Every benchmark on every variant. Raises InputError for a stage not measured, or a launch not in the table."""
    gpus = known_variants()
    for number, entry in enumerate(reference.measured):
        progress(f"bench {entry.benchmark} on {entry.variant}", number, len(reference.measured))
        session, stages = sessions[entry.benchmark], rates[entry.benchmark]
        if missing := [stage for stage in STAGES if stage not in stages]:
            raise InputError(f"a comparison with the reference needs every stage; not measured: {', '.join(missing)}")
        if sorted(entry.cycles) != list(range(len(session.case.launches))):
            raise InputError(f"the table does not have every launch of {entry.benchmark} on {entry.variant}")
        timed = [time_stage(session, [gpus[entry.variant]], model) for _ in range(rounds)]
        rate, (cycles,) = timed[0]
        seconds = stages["execute"].seconds + median(each.seconds for each, _ in timed)
        measured, slow = sum(entry.cycles.values()), reference.seconds[entry.benchmark, entry.variant]
        yield Against(
            entry.benchmark, entry.group, entry.variant, predicted_cycles=cycles, measured_cycles=measured,
            thread_instructions=rate.thread_instructions, seconds=seconds,
            all_seconds=seconds + stages["parse"].seconds + stages["characterize"].seconds, reference_seconds=slow,
            error=cycles / measured - 1, speedup=slow / seconds, thread_mips=rate.thread_instructions / seconds / 1e6,
        )  # fmt: skip


MOST_ROUNDS = 1000


def bench(
    names: Sequence[str], stages: Sequence[str] = STAGES, gpu: Gpu | None = None, points: int = 1, rounds: int = 1,
    reference: Reference | None = None, progress: Progress = silent, model: str = DETAILED, threads: Sequence[int] = (),
) -> BenchResult:  # fmt: skip
    """Measure the stages on suite benchmarks. `time` runs on `points` design points in one call (`design_points`), and
    once more on each number of `threads`. Raises InputError for an unknown benchmark or stage. Uses the trace cache
    unless `execute` itself is measured. With `reference` every benchmark is also timed on its variants. An interrupt
    keeps what has been measured."""
    model_named(model)
    names, stages, threads = list(names), list(stages), list(threads)
    if unknown := [stage for stage in stages if stage not in STAGES]:
        raise InputError(f"no stage {unknown[0]!r}; there are {', '.join(STAGES)}")
    refuse(not 1 <= rounds <= MOST_ROUNDS, f"rounds = {rounds} is not a whole number from 1 to {MOST_ROUNDS}")
    gpu = gpu or load_gpu("gtx480")
    gpus = design_points(gpu, points)
    found = BenchResult(gpu.name, points, {}, model=model, memory_model=gpu.memory_model)
    sessions: dict[str, Session] = {}
    try:
        for number in range(rounds):
            yardsticks = []
            for place, name in enumerate(names):
                progress(f"bench {name}", number * len(names) + place, len(names) * rounds)
                session = sessions.get(name) or sessions.setdefault(name, open_session(name))
                yardsticks.append(yardstick_seconds())
                rates = {stage: stage_rate(stage, session, gpus, model) for stage in stages}
                earlier = found.rates.get(name)
                found.rates[name] = {s: earlier[s].merged(r) for s, r in rates.items()} if earlier else rates
                for count in threads:
                    with so_many_threads(count):
                        rate = stage_rate("time", session, gpus, model)
                    of_count = found.scaling.setdefault(count, {})
                    of_count[name] = of_count[name].merged(rate) if name in of_count else rate
            found.yardstick_seconds.append(median(yardsticks))
        if reference is not None:
            found.against.extend(against(reference, sessions, found.rates, rounds, model, progress))
    except KeyboardInterrupt:
        if not found.rates:
            raise
        return replace(found, interrupted=True)
    return found


def design_points(gpu: Gpu, count: int) -> list[Gpu]:
    """`gpu` itself, then variations of SM count, schedulers, policy and blocks an SM: up to 1,024 different points."""
    refuse(not 1 <= count <= 1024, f"points = {count} is not a whole number from 1 to 1024")
    choices = {
        "sm_count": (15, 8, 24, 30, 12, 20, 4, 48), "schedulers_per_sm": (2, 1, 4, 3),
        "scheduler": ("gto", "lrr", "oldest", "two_level"), "max_blocks_per_sm": (8, 4, 16, 6, 12, 5, 7, 10),
    }  # fmt: skip
    found = {gpu: None}
    for values in product(*(choices[key] for key in reversed(choices))):
        if len(found) == count:
            break
        changed: dict[str, Any] = dict(zip(reversed(choices), values, strict=True))
        found[replace(gpu, spec=replace(gpu.spec, **changed))] = None
    return list(found)


# A verdict a stage on two results: the figure of a round is the mean log time over the benchmarks both results have,
# less that of the round's yardstick, since a machine that is slower today is no slower abstim. Rounds of one result are
# its sample; the interval is Welch's for the difference of two means. The yardstick follows the machine only in part,
# so nothing is told where it moved by more than MOST_DRIFT between the results, nor a change below LEAST_CHANGE.
CONFIDENCE = 0.95
LEAST_CHANGE = 0.03
MOST_DRIFT = 0.10
LEAST_ROUNDS = 3  # fewer say nothing about noise
TOO_FEW, UNSTEADY = "untold: fewer than 3 rounds", "untold: the machine was not as fast"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One stage. `speed`: how many times as fast the new result is, `low` to `high` at 95 % confidence."""

    stage: str
    benchmarks: int
    old_rounds: int
    new_rounds: int
    old_mad: float  # median absolute deviation of the rounds, as a fraction of the time
    new_mad: float
    speed: float
    low: float | None
    high: float | None
    verdict: str  # faster, slower, same within noise, or why it is untold


def read_old(path: Path, model: str, names: Sequence[str], stages: Sequence[str]) -> dict[str, Any]:
    """An earlier `abstim bench --json`, beside which stages of some benchmarks are to stand. Raises InputError if it is
    none, of another model, or has none of these."""
    data = read_result(path)
    refuse(not isinstance(data, dict) or data.get("kind") != "bench", f"{path}: not a result of `abstim bench --json`")
    refuse(data.get("interrupted"), f"{path}: its measurement was interrupted; compare with a whole one")
    if (before := data.get("model", DETAILED)) != model:
        raise InputError(f"{path}: measured the {before} model; compare it with --model {before}")
    try:
        compared(data, data), differences(data, data)
        shared = any(stage in data["benchmarks"].get(name, ()) for name in names for stage in stages)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise InputError(f"{path}: not a whole result of `abstim bench --json`: {error}") from None
    refuse(not shared, "the two results have no benchmark and stage in common")
    return data


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What besides abstim changed between two results: a comparison then says less."""
    pairs = [(key, old["machine"].get(key), value) for key, value in new["machine"].items() if key != "abstim"]
    pairs += [(key, old[key], new[key]) for key in ("gpu", "memory_model", "points")]
    return [f"{key} was {before}, is {after}" for key, before, after in pairs if before != after]


def compared(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Verdict]:
    """A verdict a stage of which both have a benchmark, from two `BenchResult.to_json`."""
    drift = log(median(old["yardstick_seconds"]) / median(new["yardstick_seconds"]))
    found, steady = [], abs(drift) < log(1 + MOST_DRIFT)
    for stage in STAGES:
        before = {name for name, stages in old["benchmarks"].items() if stage in stages}
        shared = [name for name, stages in new["benchmarks"].items() if stage in stages and name in before]
        if shared:
            earlier, later = (_rounds(result, stage, shared) for result in (old, new))
            found.append(_verdict(stage, len(shared), earlier, later, steady))
    return found


def _rounds(result: Mapping[str, Any], stage: str, names: Sequence[str]) -> list[float]:
    """Of every round the mean log time, in yardsticks."""
    rounds = zip(*(result["benchmarks"][name][stage]["round_seconds"] for name in names), strict=True)
    return [fmean(map(log, row)) - log(unit) for row, unit in zip(rounds, result["yardstick_seconds"], strict=True)]


def _verdict(stage: str, benchmarks: int, old: Sequence[float], new: Sequence[float], steady: bool) -> Verdict:
    speed, ends, verdict = fmean(old) - fmean(new), None, TOO_FEW
    if min(len(old), len(new)) >= LEAST_ROUNDS:
        ends = _interval(old, new)
        clear = (ends[0] > 0 or ends[1] < 0) and abs(speed) > log(1 + LEAST_CHANGE)
        told = "same within noise" if not clear else "faster" if speed > 0 else "slower"
        verdict = told if steady else UNSTEADY
    low, high = (exp(ends[0]), exp(ends[1])) if ends else (None, None)
    return Verdict(stage, benchmarks, len(old), len(new), mad(old), mad(new), exp(speed), low, high, verdict)


def _interval(old: Sequence[float], new: Sequence[float]) -> tuple[float, float]:
    """Of mean(old) - mean(new). Without any spread there is nothing to doubt."""
    from scipy.stats import ttest_ind

    if max(*old, *new) == min(*old, *new) or (len(set(old)) == 1 and len(set(new)) == 1):
        return (fmean(old) - fmean(new),) * 2
    interval = ttest_ind(old, new, equal_var=False).confidence_interval(CONFIDENCE)
    return float(interval.low), float(interval.high)
