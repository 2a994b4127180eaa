"""Sampling methods beside the full simulation over a set of targets, and the bounds that are learnt from it.

    python tests/bench_sampling.py methods --group hard --method all --json > rows.json
    python tests/bench_sampling.py learn-bounds rows.json ...           # writes sampling/bounds.csv
    python tests/bench_sampling.py learn-bounds --split rows.json ... # one half of the programs held against the other
    python tests/bench_sampling.py sample hard_spans              # any command of abstim, on the hard sets too

Intervals of methods whose own say too much or too little come from how far off they were on the hard sets: split
conformal prediction (Vovk, Gammerman and Shafer, Algorithmic Learning in a Random World, 2005).
"""

from __future__ import annotations

import csv
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Annotated, Any

import hard_set
import typer

from abstim.cli import main
from abstim.cli.app import COMMANDS
from abstim.cli.options import GpuName, Json, Overrides
from abstim.gpu.config import Gpu, gpu_of
from abstim.progress import Progress, silent
from abstim.show.report.sampling import LEAST_ERROR, WHOLE
from abstim.show.tables import duration, on_gpu, print_json, print_table, progress
from abstim.study.bench import describe_machine, geomean
from abstim.study.sample import sampler as library
from abstim.study.sample.methods import METHODS, method_named
from abstim.study.sample.sample_result import Comparison, Row
from abstim.targets.resolve import names_in
from functional.errors import InputError
from functional.keep.folder import check_output, write_output
from sampling.estimate import FILE, Basis, Bound
from sampling.statistics import CONFIDENCE

GROUP, DEFAULT = "16x", ("photon", "tbpoint")
SILENT = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One method over all targets. Errors, fractions and shares are of 1; `None`: it sampled nothing anywhere.

    `sampled` targets are those of which it left something out. `speed_up` is a geometric mean, which hides single
    targets: the worst error and the least speed-up stand beside.
    """

    method: str
    targets: int
    sampled: int
    mean_error: float
    geomean_error: float
    worst_error: float
    worst_target: str  # whose error that is
    detailed_fraction: float
    covered: float | None  # of those with a bound
    covered_of_sampled: float | None
    speed_up: float | None
    least_speed_up: float
    best_speed_up: float


@dataclass(frozen=True, kw_only=True)
class SampleBench:
    """What was measured: a comparison a target, whole ones only. `interrupted`: targets are missing; so are the
    `failed` ones, each with what was wrong."""

    gpu: str
    memory_model: str = ""
    comparisons: list[Comparison] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    interrupted: bool = False
    machine: dict[str, Any] = field(default_factory=describe_machine)

    def rows(self) -> list[tuple[Comparison, Row]]:
        """One a target and method; not the full simulation, which is what they are compared with."""
        return [(found, row) for found in self.comparisons for row in found.rows()[1:]]

    def summaries(self) -> list[Summary]:
        """One a method."""
        rows = [row for _, row in self.rows()]
        methods = dict.fromkeys(row.method for row in rows)
        return [summary(method, [row for row in rows if row.method == method]) for method in methods]

    def reliability(self) -> list[Reliability]:
        """One a method and basis."""
        return reliability([row for _, row in self.rows()])

    def overall(self) -> Summary | None:
        """Of all methods together."""
        rows = [row for _, row in self.rows()]
        return summary("all", rows) if rows else None

    def to_json(self) -> dict[str, Any]:
        """Everything, as what `json.dumps` takes."""
        overall = self.overall()
        return {
            "kind": "bench-sample",
            "machine": self.machine,
            "gpu": self.gpu,
            "memory_model": self.memory_model,
            "interrupted": self.interrupted,
            "failed": self.failed,
            "rows": [
                {"target": found.full.target, "true_cycles": found.true_cycles, "launches": len(found.cycles),
                 "full_seconds": found.full.total_seconds} | asdict(row)
                for found, row in self.rows()
            ],
            "methods": [asdict(each) for each in self.summaries()],
            "reliability": [asdict(each) for each in self.reliability()],
            "overall": None if overall is None else asdict(overall),
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Reliability:
    """How far intervals of one method that rest on one basis are to be trusted: of rows that left something out.

    `unbounded` rows have none. `silent`: off by more than SILENT with an interval that excludes the truth. Widths and
    errors are medians.
    """

    method: str
    basis: Basis
    rows: int
    unbounded: int
    covered: float | None
    half_width: float | None
    error: float
    silent: int


def reliability(rows: Sequence[Row]) -> list[Reliability]:
    """One a method and basis, in the order of first appearance."""
    keys = dict.fromkeys((row.method, row.basis) for row in rows if row.detailed_fraction < WHOLE)
    return [
        _reliability(*key, [r for r in rows if (r.method, r.basis) == key and r.detailed_fraction < WHOLE])
        for key in keys
    ]


def _reliability(method: str, basis: Basis, rows: Sequence[Row]) -> Reliability:
    widths = [row.half_width for row in rows if row.half_width is not None]
    return Reliability(
        method=method,
        basis=basis,
        rows=len(rows),
        unbounded=len(rows) - len(widths),
        covered=share_covered(rows),
        half_width=median(widths) if widths else None,
        error=median(row.error for row in rows),
        silent=sum(row.error > SILENT and not row.covered and row.half_width is not None for row in rows),
    )


def share_covered(rows: Sequence[Row]) -> float | None:
    """Of the rows with a bound; None if there are none."""
    with_bound = [row for row in rows if row.half_width is not None]
    return fmean(row.covered for row in with_bound) if with_bound else None


def summary(method: str, rows: Sequence[Row]) -> Summary:
    """Means over rows, at least one."""
    errors, speeds = [row.error for row in rows], [row.speed_up for row in rows]
    sampled = [row for row in rows if row.detailed_fraction < WHOLE]
    return Summary(
        method=method,
        targets=len(rows),
        sampled=len(sampled),
        mean_error=fmean(errors),
        geomean_error=geomean([max(error, LEAST_ERROR) for error in errors]) or 0.0,
        worst_error=max(errors),
        worst_target=max(rows, key=lambda row: row.error).target,
        detailed_fraction=fmean(row.detailed_fraction for row in rows),
        covered=share_covered(rows),
        covered_of_sampled=share_covered(sampled),
        speed_up=geomean(speeds),
        least_speed_up=min(speeds),
        best_speed_up=max(speeds),
    )


def expanded(names: Sequence[str]) -> list[str]:
    """Methods by name; `all` stands for those that save something, `ideal` for those that need the full simulation."""
    ideal = [name for name in METHODS if name.startswith("ideal-")]
    sets = {"all": [name for name in METHODS if name not in ("full", *ideal)], "ideal": ideal}
    return list(dict.fromkeys(each for name in names for each in sets.get(name, [name])))


def bench_samples(
    targets: Sequence[str], methods: Sequence[str] = DEFAULT, gpu: str | Gpu = "gtx480",
    overrides: Sequence[str] = (), progress: Progress = silent,
) -> SampleBench:  # fmt: skip
    """Every method (`expanded`) on every target, beside the full simulation; an interrupt ends it with what was done.

    Raises InputError for a method's name; a target that `compare` raises it for is left out (`failed`).
    """
    point, interrupted = gpu_of(gpu, overrides), False
    chosen = [method_named(name).name for name in expanded(methods)]
    found: list[Comparison] = []
    failed: dict[str, str] = {}
    try:
        for place, target in enumerate(targets):
            progress(f"bench {target}", place, len(targets))
            try:
                found.append(library.compare(target, point, chosen))
            except InputError as error:
                failed[target] = str(error)
    except KeyboardInterrupt:
        interrupted = True
    return SampleBench(
        gpu=point.name, memory_model=point.memory_model, comparisons=found, failed=failed, interrupted=interrupted
    )


def _print_rows(found: SampleBench) -> None:
    rows = [
        (
            each.full.target,
            row.method,
            each.true_cycles,
            f"{row.error:.2%}",
            "no bound" if row.half_width is None else "yes" if row.covered else "no",
            f"{row.detailed_fraction:.1%}",
            duration(row.seconds),
            f"{row.speed_up:.3g}x",
        )
        for each, row in found.rows()
    ]
    columns = ("target", "method", "cycles", "error", "inside", "detailed", "took", "faster")
    title = f"Beside the full simulation on {on_gpu(found)}; inside: are its cycles in the 95 % interval?"
    print_table(title, columns, rows, left=2)


def _print_summaries(found: SampleBench) -> None:
    overall, each = found.overall(), found.summaries()
    if overall is None:
        return
    columns = ("method", "error", "geomean", "worst", "detailed", "inside", "if sampled", "faster", "least", "best")
    lines = [_line(s) for s in ([*each, overall] if len(each) > 1 else each)]
    targets = len(found.comparisons)
    title = (
        f"Over {targets} target{'s' if targets > 1 else ''} (inside: of all, of those sampled; faster: geometric mean)"
    )
    print_table(title, columns, lines)
    print("\n".join(f"{s.method} is worst on {s.worst_target}: {s.worst_error:.2%}" for s in each))


def _print_reliability(found: SampleBench) -> None:
    rows = [
        (
            each.method,
            each.basis,
            each.rows,
            each.unbounded,
            "-" if each.covered is None else f"{each.covered:.1%}",
            "-" if each.half_width is None else f"{each.half_width:.2%}",
            f"{each.error:.2%}",
            each.silent,
        )
        for each in found.reliability()
    ]
    columns = ("method", "rests on", "rows", "no bound", "inside", "median half", "median error", "silent")
    if rows:
        print_table(
            "Intervals where something was left out; silent: off by over 10 % and not inside", columns, rows, left=2
        )


def _line(s: Summary) -> tuple[str, ...]:
    return (
        s.method,
        f"{s.mean_error:.2%}",
        f"{s.geomean_error:.2%}",
        f"{s.worst_error:.1%}",
        f"{s.detailed_fraction:.1%}",
        "-" if s.covered is None else f"{s.covered:.1%}",
        "-" if s.covered_of_sampled is None else f"{s.covered_of_sampled:.1%} of {s.sampled}",
        "-" if s.speed_up is None else f"{s.speed_up:.3g}x",
        f"{s.least_speed_up:.3g}x",
        f"{s.best_speed_up:.3g}x",
    )


def learn(method: str, basis: Basis, errors: Sequence[float], own: Sequence[float]) -> Bound:
    """From how far off the truth was of estimates, as a share of these, and half of their methods' intervals.

    Of n rows the one that is the ceil((n + 1) x 0.95)-th in order is within the bound with the confidence asked for,
    whatever their distribution. Of the two ways to state it the one with the narrower intervals is taken.
    """
    constant = _quantile(errors)
    ratios = [error / half if half else (math.inf if error else 0.0) for error, half in zip(errors, own, strict=True)]
    times = _quantile(ratios)
    if times * sum(own) / max(len(own), 1) < constant:
        return Bound(method, basis, "times", times, len(errors))
    return Bound(method, basis, "constant", constant, len(errors))


def _quantile(values: Sequence[float]) -> float:
    place = math.ceil((len(values) + 1) * CONFIDENCE)
    return sorted(values)[place - 1] if place <= len(values) else math.inf


def learn_all(rows: Iterable[dict[str, Any]]) -> list[Bound]:
    """A bound a method and basis, from rows of `methods --json` that left something out."""
    groups: defaultdict[tuple[str, Basis], list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        if row["basis"] != "exact" and row["method"] != "auto":  # auto stands by its own interval
            off = abs(row["true_cycles"] / row["cycles"] - 1.0)
            groups[row["method"], row["basis"]].append((off, row["own_half_width"]))
    return [learn(*key, *map(list, zip(*pairs, strict=True))) for key, pairs in sorted(groups.items())]  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Split:
    """A method on a basis, its bound learnt from one half of the programs and looked at on the other, both ways.

    `own`: share of rows that its own interval holds; `learnt`: of those with a bound, the share that this holds, None
    if there are none; `factor`: by what its own interval would have to grow for 95 %.
    """

    method: str
    basis: Basis
    rows: int
    own: float
    learnt: float | None
    factor: float


def split(rows: Iterable[dict[str, Any]]) -> list[Split]:
    """Of rows of `methods --json` that left something out, auto's too. Halves are of programs,
    in turn by name: seeds and GPUs of one program stay together."""
    groups: defaultdict[tuple[str, Basis], list[tuple[str, float, float]]] = defaultdict(list)
    for row in rows:
        if row["basis"] != "exact":
            off = abs(row["true_cycles"] / row["cycles"] - 1.0)
            groups[row["method"], row["basis"]].append((row["target"].partition(":")[0], off, row["own_half_width"]))
    return [_split(*key, found) for key, found in sorted(groups.items())]


def _split(method: str, basis: Basis, rows: Sequence[tuple[str, float, float]]) -> Split:
    places = {name: place for place, name in enumerate(sorted({name for name, _, _ in rows}))}
    halves = [[row for row in rows if places[row[0]] % 2 == half] for half in (0, 1)]
    inside: list[bool] = []
    for learning, testing in (halves, halves[::-1]):
        bound = learn(method, basis, [off for _, off, _ in learning], [own for _, _, own in learning])
        widths = [bound.relative_half_width(own) for _, _, own in testing]
        inside += [off <= width for (_, off, _), width in zip(testing, widths, strict=True) if math.isfinite(width)]
    ratios = [off / own if own else math.inf for _, off, own in rows]
    held = sum(ratio <= 1.0 for ratio in ratios) / len(rows)
    return Split(method, basis, len(rows), held, sum(inside) / len(inside) if inside else None, _quantile(ratios))


def methods(
    names: Annotated[list[str] | None, typer.Argument(metavar="[TARGET]...")] = None,
    group: Annotated[
        list[str] | None,
        typer.Option(help="table1, apps, micro, all, 16x, 256x, programs, hard, hard2, hard3; else 16x; repeatable."),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(help="As in `abstim sample`; all; or ideal; repeatable. Default: photon, tbpoint."),
    ] = None,
    gpu: GpuName = "gtx480",
    overrides: Overrides = None,
    report: Annotated[Path | None, typer.Option(metavar="HTML", help="Write a page with charts.")] = None,
    as_json: Json = False,
) -> None:
    """Measure and print what was done; then end with 130 after an interrupt, or say what failed."""
    if report:
        check_output(report, ".html", ".htm")
    targets = list(names or ()) or [name for each in group or (GROUP,) for name in names_in(each)]
    with progress(quiet=as_json) as said:
        found = bench_samples(targets, method or DEFAULT, gpu, overrides or (), said)
    if as_json:
        print_json(found.to_json())
    elif found.comparisons:
        _print_rows(found)
        _print_summaries(found)
        _print_reliability(found)
    if report:
        from sampling_bench_page import sample_bench_section

        from abstim.show.report.page import render

        write_output(report, render([sample_bench_section(found.to_json())], "abstim report").encode())
    if found.interrupted:
        raise typer.Exit(130)
    if found.failed:
        raise InputError("; ".join(f"{target} is left out: {why}" for target, why in found.failed.items()))


def learn_bounds(
    paths: Annotated[list[Path], typer.Argument(metavar="JSON...")],
    checking: Annotated[bool, typer.Option("--split", help="Write nothing; hold one half against the other.")] = False,
) -> None:
    """Learn sampling/bounds.csv anew from what `methods --json` printed."""
    rows = [row for path in paths for row in json.loads(path.read_text())["rows"]]
    if checking:
        for found in split(rows):
            learnt = "no bound" if found.learnt is None else f"{found.learnt:.1%}"
            print(f"{found.method} {found.basis}: {found.rows} rows, own interval {found.own:.1%}, learnt from the "
                  f"other half {learnt}, own would have to be {found.factor:.3g} times as wide")  # fmt: skip
        return
    with FILE.open("w", newline="") as file:
        writer = csv.DictWriter(file, ("method", "basis", "how", "value", "rows"), lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(bound) | {"value": f"{bound.value:.4g}"} for bound in learn_all(rows))


if __name__ == "__main__":
    hard_set.make_known()
    COMMANDS.update({"methods": "bench_sampling", "learn-bounds": "bench_sampling"})
    main()
