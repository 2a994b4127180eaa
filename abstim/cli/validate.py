"""`abstim validate`: predicted against measured cycles."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from abstim.cli.options import Json, Model, TimedCode, refuse_options
from abstim.show.tables import print_json, print_table, progress, say
from functional.errors import InputError
from functional.terminal import note


def validate(
    reference: Annotated[
        Path | None, typer.Option(metavar="CSV", help="Measured cycles; columns: benchmark, launch, variant, cycles.")
    ] = None,
    variant: Annotated[list[str] | None, typer.Option(help="Only this variant; repeatable.")] = None,
    group: Annotated[list[str] | None, typer.Option(help="Only this group; repeatable.")] = None,
    benchmark: Annotated[list[str] | None, typer.Option(help="Only this benchmark; repeatable.")] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also draw predicted against measured cycles (.svg, .png, .pdf)."),
    ] = None,
    measured_by: Annotated[
        str, typer.Option(metavar="NAME", help="What measured them, as the plot names it: a simulator, a GPU.")
    ] = "reference",
    flush: Annotated[
        str,
        typer.Option(metavar="all|none", help="Which rows of the table: caches invalidated before launches, or kept."),
    ] = "all",
    silicon: Annotated[
        Path | None,
        typer.Option(
            metavar="CSV",
            help="Times measured on hardware: target, gpu, core_clock_hz, flush, time_ns, class; where known, launch, "
            "fp32_operations, fp64_operations, integer_operations.",
        ),
    ] = None,
    programs: Annotated[
        Path, typer.Option(metavar="DIR", help="Where --silicon's targets lie: launches.json, recorded traces.")
    ] = Path(),
    timed_code: TimedCode = "",
    model: Model = "detailed",
    points: Annotated[
        int,
        typer.Option(
            min=0,
            max=100_000,
            help="Instead of a reference: the analytic model (or --model occupancy) against the detailed one on "
            "random GPUs.",
        ),
    ] = 0,
    as_json: Json = False,
) -> None:
    """Compare predicted with measured cycles: the error of every benchmark, mean, median, maximum, correlation.

    A benchmark's error is that of its cycles summed over the launches in the table. Variants are GPUs with overrides,
    listed in `configs/validation/variants.toml`; others are skipped, and said so.

    Examples:

    `abstim validate --reference tests/data/cycles.csv --variant GTX480_a --group table1`

    `abstim validate --silicon times.csv --programs my_kernels`

    `abstim validate --points 1000 --benchmark hotspot --benchmark srad`
    """
    from abstim.study import validate as library

    alone = {"reference": reference, "variant": variant, "group": group, "flush": flush != "all"}
    if points:
        refuse_options("with --points", silicon=silicon, plot=plot, timed_code=timed_code, **alone)
        _rank(benchmark or [], points, "analytic" if model == "detailed" else model, as_json)
        return
    if silicon is not None:
        refuse_options("with --silicon", benchmark=benchmark, model=model != "detailed", **alone)
        _silicon(silicon, programs, plot, timed_code, as_json)
        return
    refuse_options("without --silicon", programs=programs != Path(), timed_code=timed_code)
    if reference is None:
        raise InputError("validate needs --reference CSV, --silicon CSV, or --points COUNT with --benchmark")
    if flush not in library.TABLE_FLUSHES:
        raise InputError(f"--flush {flush!r} is not one of {', '.join(library.TABLE_FLUSHES)}")
    _check_plot(plot)
    table = library.read_reference(reference, flush)
    chosen, skipped = library.select(table, variant or (), group or (), benchmark or ())
    with progress(quiet=as_json) as report:
        found = library.validate(chosen, report, model, flush)
    found.skipped[:0] = skipped
    if plot is not None and found.comparisons:
        library.plot(found, plot, measured_by)
    print_json(found.to_json()) if as_json else _print(found)
    if not found.comparisons:
        raise InputError(f"{reference}: nothing was compared, {len(found.skipped)} skipped" + _why(found.skipped))


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
         "-" if k.operations_error is None else f"{k.operations_error:.1%}")
        for k in found
    ]  # fmt: skip
    heads = ("target", "class", "GPU", "measured", "predicted", "ratio", "machine code", "operations off")
    print_table("", heads, lines, left=3)
    sums = [
        (s.name, s.kernels, f"{s.mean_error:.1%}", f"{s.median_error:.1%}", f"{s.error_90:.1%}", f"{s.bias:.3f}",
         "-" if s.rank_correlation is None else f"{s.rank_correlation:.3f}")
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
            "-" if s.correlation is None else f"{s.correlation:.5f}",
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
