"""`abstim validate`: predicted against measured cycles."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from abstim.cli.options import Json, Model, TimedCode, expanded, refuse_options
from abstim.show.tables import known, print_json, print_table, progress, say
from functional.errors import InputError
from functional.terminal import note


@dataclass(kw_only=True)
class ValidateOptions:
    """Options of `abstim validate`.

    --reference CSV  Measured cycles; columns: benchmark, launch, variant, cycles.
    --variant  Only this variant; repeatable.
    --group  Only this group; repeatable.
    --benchmark  Only this benchmark; repeatable.
    --plot FILE  Also draw predicted against measured cycles (.svg, .png, .pdf).
    --measured-by NAME  What measured them, as the plot names it: a simulator, a GPU.
    --flush all|none  Which rows of the table: caches invalidated before launches, or kept.
    --silicon CSV  Times measured on hardware: target, gpu, core_clock_hz, flush, time_ns, class; where known, launch,
        fp32_operations, fp64_operations, integer_operations.
    --programs DIR  Where --silicon's targets lie: launches.json, recorded traces.
    """

    reference: Path | None = None
    variant: list[str] | None = None
    group: list[str] | None = None
    benchmark: list[str] | None = None
    plot: Path | None = None
    measured_by: str = "reference"
    flush: str = "all"
    silicon: Path | None = None
    programs: Path = Path()
    timed_code: TimedCode = ""
    model: Model = "detailed"
    points: Annotated[
        int,
        typer.Option(
            min=0,
            max=100_000,
            help="Instead of a reference: the analytic model (or --model occupancy) against the detailed one on "
            "random GPUs.",
        ),
    ] = 0


@expanded
def validate(*, options: ValidateOptions, as_json: Json = False) -> None:
    """Compare predicted with measured cycles: the error of every benchmark, mean, median, maximum, correlation.

    A benchmark's error is that of its cycles summed over the launches in the table. Variants are GPUs with overrides,
    listed in `configs/validation/variants.toml`; others are skipped, and said so.

    Examples:

    `abstim validate --reference tests/data/cycles.csv --variant GTX480_a --group table1`

    `abstim validate --silicon times.csv --programs my_kernels`

    `abstim validate --points 1000 --benchmark hotspot --benchmark srad`
    """
    from abstim.study import validate as library

    o = options
    alone = {"reference": o.reference, "variant": o.variant, "group": o.group, "flush": o.flush != "all"}
    if o.points:
        refuse_options("with --points", silicon=o.silicon, plot=o.plot, timed_code=o.timed_code, **alone)
        return _rank(o.benchmark or [], o.points, "analytic" if o.model == "detailed" else o.model, as_json)
    if o.silicon is not None:
        refuse_options("with --silicon", benchmark=o.benchmark, model=o.model != "detailed", **alone)
        return _silicon(o.silicon, o.programs, o.plot, o.timed_code, as_json)
    refuse_options("without --silicon", programs=o.programs != Path(), timed_code=o.timed_code)
    if o.reference is None:
        raise InputError("validate needs --reference CSV, --silicon CSV, or --points COUNT with --benchmark")
    if o.flush not in library.TABLE_FLUSHES:
        raise InputError(f"--flush {o.flush!r} is not one of {', '.join(library.TABLE_FLUSHES)}")
    _check_plot(o.plot)
    table = library.read_reference(o.reference, o.flush)
    chosen, skipped = library.select(table, o.variant or (), o.group or (), o.benchmark or ())
    with progress(quiet=as_json) as report:
        found = library.validate(chosen, report, o.model, o.flush)
    found.skipped[:0] = skipped
    if o.plot is not None and found.comparisons:
        library.plot(found, o.plot, o.measured_by)
    print_json(found.to_json()) if as_json else _print(found)
    if not found.comparisons:
        raise InputError(f"{o.reference}: nothing was compared, {len(found.skipped)} skipped" + _why(found.skipped))


def _check_plot(plot: Path | None) -> None:
    """Can it be drawn, and written? Asked before anything is timed."""
    from abstim.extras import need
    from functional.keep.folder import check_output

    if plot is not None:
        need("matplotlib")
        check_output(plot)


def _why(skipped: list[str]) -> str:
    return f"; the first: {skipped[0]}" if skipped else ": the table has no row of this --flush"


def _silicon(table: Path, programs: Path, plot: Path | None, timed_code: str, as_json: bool) -> None:
    from abstim.session.result import not_machine_code
    from abstim.study import silicon as library

    rows = library.read_measured_times(table)
    with progress(quiet=as_json) as report:
        found = list(library.compare_times(rows, programs, report, timed_code))
    if plot is not None:
        library.plot(found, plot)
    if as_json:
        print_json(library.to_json(found))
        return
    lines = [
        (k.measured.name, k.measured.kind, k.measured.gpu, f"{k.measured.time_ns / 1e3:.2f} us",
         f"{k.predicted_ns / 1e3:.2f} us", f"{k.ratio:.3f}", f"{k.machine_code_share:.1%}",
         known(k.operations_error, ".1%"))
        for k in found
    ]  # fmt: skip
    heads = ("target", "class", "GPU", "measured", "predicted", "ratio", "machine code", "operations off")
    print_table("", heads, lines, left=3)
    sums = [
        (s.name, s.kernels, f"{s.mean_error:.1%}", f"{s.median_error:.1%}", f"{s.error_90:.1%}", f"{s.bias:.3f}",
         known(s.rank_correlation, ".3f"))
        for s in library.summarise(found)
    ]  # fmt: skip
    names = ("", "kernels", "mean error", "median", "90th percentile", "bias", "rank correlation")
    print_table("Time on hardware", names, sums, left=1)
    for kind, (error, count) in library.operations_median(found).items():
        print(f"{kind} operations: median error {error:.2%} of {count} kernels")
    if note := not_machine_code([k.timed_code for k in found], "kernels"):
        say(f"Note: {note}")


def _rank(benchmarks: list[str], points: int, model: str, as_json: bool) -> None:
    from abstim.study.ranking import pooled, rank_random

    if not benchmarks:
        raise InputError("--points needs at least one --benchmark")
    with progress(quiet=as_json) as report:
        found = rank_random(benchmarks, points, model=model, progress=report)
    if as_json:
        print_json({"rankings": [r.to_json() for r in found], "pooled_correlation": pooled(found)})
        return
    rows = [
        (
            r.target,
            r.points,
            f"{r.correlation:.4f}",
            f"{r.mean_error:.1%}",
            f"{r.median_ratio:.3f}",
            f"{1e6 * r.point_seconds:.1f} us",
            f"{1e3 * r.engine_point_seconds:.1f} ms",
        )
        for r in found
    ]
    heads = ("benchmark", "points", "rank correlation", "mean error", "median ratio", "a point", "detailed")
    print_table(f"Model {model} against the detailed one, on random GPUs", heads, rows)
    print(f"Rank correlation of all together: {pooled(found):.4f}")


def _print(found) -> None:
    for line in found.skipped:
        note(f"skipped: {line}")
    if not found.comparisons:
        return
    rows = [
        (c.benchmark, c.group, c.variant, c.launches, c.measured_cycles, c.predicted_cycles, f"{c.error:+.2%}")
        for c in found.comparisons
    ]
    columns = ("benchmark", "group", "variant", "launches", "measured", "predicted", "error")
    print_table("", columns, rows, left=3)
    summaries = [
        (
            s.variant,
            s.memory_model,
            s.group,
            s.worst,
            s.benchmarks,
            *(f"{error:.2%}" for error in (s.mean_error, s.median_error, s.max_error)),
            known(s.correlation, ".5f"),
        )
        for s in found.summaries()
    ]
    heads = ("variant", "memory", "group", "worst", "benchmarks", "mean", "median", "max", "correlation")
    print_table("Absolute errors", heads, summaries, left=4)
    _print_relative(found)


def _print_relative(found) -> None:
    from abstim.study.validate import median_miss_errors, relative_accuracy

    for name, (error, count) in median_miss_errors(found.comparisons).items():
        print(f"{name.replace('_', ' ')}: median error {error:.2%} of {count} benchmarks")
    relative = relative_accuracy(found.comparisons)
    if relative:
        print(
            f"Speed-ups between {relative.variants} variants ({relative.speed_ups}): "
            f"Kendall's tau {relative.pooled:.3f}; mean of the pairs {relative.mean:.3f},\n"
            f"least {relative.least:.3f} ({' to '.join(relative.least_pair)})"
        )
