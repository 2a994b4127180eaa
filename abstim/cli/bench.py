"""`abstim bench`: how fast abstim itself is, by stage, beside the reference and beside an earlier result."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from abstim.cli.options import Json, Model, TimedGpuOptions, expanded, refuse_options
from abstim.show.tables import counted, duration, on_gpu, print_json, print_records, print_table, progress, quantity
from functional.errors import note

if TYPE_CHECKING:
    from abstim.study.bench import BenchResult, Verdict


@dataclass(kw_only=True)
class BenchOptions:
    """Options of `abstim bench`.

    --group  Measured if no name is given: table1, apps, micro or all; repeatable. Default: table1.
    --stage  Only this stage: parse, characterize, execute or time; repeatable.
    --points  Design points to time in one call.
    --threads  Measure the stage time on so many threads, too, and how it scales; repeatable.
    --rounds  Go over all benchmarks so often; 5 or more show the noise.

    Beside the reference:
    --reference CSV  Measured cycles with reference_cpu_s.
    --variant  Only this variant; repeatable; else GTX480_a to _d.

    Beside an earlier result:
    --compare JSON  What `--json` printed earlier; says faster, slower or same."""

    group: list[str] | None = None
    stage: list[str] | None = None
    model: Model = "detailed"
    points: int = 1
    threads: list[int] | None = None
    rounds: int = 1
    reference: Path | None = None
    variant: list[str] | None = None
    compare: Path | None = None


@expanded
def bench(options: BenchOptions, gpu: TimedGpuOptions, names: list[str] | None = None, as_json: Json = False) -> None:
    """Measure how fast each stage is, in million instructions a second (MIPS), and their geometric mean.

    [NAME]...  Suite benchmarks; without any, the whole group.

    Represented instructions are those a result stands for; stepped ones are those the engine really walked.

    Examples:
    `abstim bench hotspot`
    `abstim bench --stage time --points 64`
    `abstim bench hotspot --gpu h100 --stage time --threads 1 --threads 2`
    `abstim bench --rounds 5 --reference tests/data/cycles.csv --json > now.json`
    `abstim bench --rounds 5 --compare before.json`"""
    o = options
    refuse_options("beside names of benchmarks", group=o.group and names)
    refuse_options("without --reference", variant=o.variant and not o.reference)
    from abstim.study import bench as library
    from functional import suite

    chosen = names or [n for g in o.group or ("table1",) for n in suite.names(None if g == "all" else g)]
    stages, point, threads = o.stage or library.STAGES, gpu.load(), o.threads or ()
    old = library.read_old(o.compare, o.model, chosen, stages) if o.compare else None
    beside = library.read_rows(o.reference, o.variant or (), chosen) if o.reference else None
    with progress(quiet=as_json) as report:
        found = library.bench(chosen, stages, point, o.points, o.rounds, beside, report, o.model, threads)
    json = found.to_json()
    old = None if found.interrupted else old
    verdicts, changed = (library.compared(old, json), library.differences(old, json)) if old else ([], [])
    if as_json:
        print_json(json | ({"compare": [asdict(v) for v in verdicts], "differences": changed} if old else {}))
    else:
        _print_rates(found)
        _print_scaling(found)
        _print_against(found)
        _print_verdicts(found, verdicts, changed)
    if found.interrupted:
        raise KeyboardInterrupt


def _print_rates(found: BenchResult) -> None:
    from abstim.study.bench import FIGURES

    rows = list[tuple]()
    for name, stages in found.rates.items():
        for stage, r in stages.items():
            times = map(duration, (r.first_seconds, r.seconds, r.cpu_seconds))
            rows.append((name, stage, *times, *map(quantity, r.mips.values())))
    for stage in found.stages():
        rows.append(("geometric mean", stage, "", "", "", *(quantity(found.geomean(stage, f)) for f in FIGURES)))
    points = counted(found.points, "design point", "design points")
    title = f"{on_gpu(found)}, {found.model} model, {points}, {found.machine['cpus']} CPUs"
    columns = ("benchmark", "stage", "first", "median", "processor", "thread", "warp", "stepped thr.", "stepped warp")
    print_table(f"{title}; MIPS, represented and stepped", columns, rows, left=2)


def _print_scaling(found: BenchResult) -> None:
    rows: list[tuple] = []
    for threads, rates in found.scaling.items():
        for name, r in rates.items():
            times = map(duration, (r.seconds, r.cpu_seconds))
            rows.append((name, threads, *times, quantity(r.mips["thread_mips"]), ""))
        rows.append(("geometric mean", threads, "", "", "", f"{found.scaled(threads) or 0:.2f}x"))
    columns = ("benchmark", "threads", "median", "processor", "thread MIPS", f"against {next(iter(found.scaling), 1)}")
    print_table(f"The stage time, {found.model} model, by threads", columns, rows, left=1) if rows else None


def _print_against(found: BenchResult) -> None:
    from abstim.study.bench import geomean

    if not found.against:
        return
    rows = [
        (a.benchmark, a.variant, f"{a.error:+.2%}", duration(a.reference_seconds), duration(a.seconds),
         f"{quantity(a.speedup)}x", a.thread_mips)
        for a in found.against
    ]  # fmt: skip
    for variant in dict.fromkeys(a.variant for a in found.against):
        own = [a for a in found.against if a.variant == variant]
        error = sum(abs(a.error) for a in own) / len(own)
        speed, mips = geomean([a.speedup for a in own]), geomean([a.thread_mips for a in own])
        rows.append(("mean of all", variant, f"{error:.2%}", "", "", f"{quantity(speed)}x", mips or 0.0))
    columns = ("benchmark", "variant", "error", "reference", "abstim", "speed-up", "thread MIPS")
    print_table(f"Beside the reference (abstim: execute, and time by the {found.model} model)", columns, rows, left=2)


def _print_verdicts(found: BenchResult, verdicts: list[Verdict], changed: list[str]) -> None:
    if not verdicts:
        return
    columns = (
        "stage | verdict | benchmarks | speed: {speed:.3f}x | 95 % interval: {interval} "
        "| old rounds, MAD: {old_rounds}, ±{old_mad:.1%} | new rounds, MAD: {new_rounds}, ±{new_mad:.1%}"
    )
    title = f"Beside the earlier result, {found.model} model"
    between: Any = lambda v: "-" if v.low is None else f"{v.low:.3f} to {v.high:.3f}"  # noqa: E731
    print_records(title, columns, verdicts, left=2, interval=between)
    for line in changed:
        note(f"not the same: {line}")
