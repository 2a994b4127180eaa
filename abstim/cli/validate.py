"""`abstim validate`: predicted against measured cycles."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from abstim.cli.options import Backend, Json


def validate(
    reference: Annotated[
        Path, typer.Option(metavar="CSV", help="Measured cycles; columns: benchmark, launch, variant, cycles.")
    ],
    variant: Annotated[list[str] | None, typer.Option(help="Only this variant; repeatable.")] = None,
    group: Annotated[list[str] | None, typer.Option(help="Only this group; repeatable.")] = None,
    benchmark: Annotated[list[str] | None, typer.Option(help="Only this benchmark; repeatable.")] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also draw predicted against measured cycles (.svg, .png, .pdf)."),
    ] = None,
    flush: Annotated[
        str,
        typer.Option(metavar="all|none", help="Which rows of the table: caches invalidated before launches, or kept."),
    ] = "all",
    backend: Backend = "compiled",
    as_json: Json = False,
) -> None:
    """Compare predicted with measured cycles: the error of every benchmark, mean, median, maximum, correlation.

    A benchmark's error is that of its cycles summed over the launches in the table. Variants are GPUs with overrides,
    listed in `configs/validation/variants.toml`; others are skipped, and said so.

    Example: `abstim validate --reference tests/data/cycles.csv --variant GTX480_a --group table1`
    """
    from abstim import validate as library
    from abstim.cache import note
    from abstim.cli.tables import print_json, progress
    from functional.errors import InputError

    if flush not in library.FLUSHES:
        raise InputError(f"--flush {flush!r} is not one of {', '.join(library.FLUSHES)}")
    table = library.read_reference(reference, flush)
    chosen, skipped = library.select(table, variant or (), group or (), benchmark or ())
    with progress(quiet=as_json) as report:
        found = library.validate(chosen, backend, report, flush)
    found.skipped[:0] = skipped
    if plot is not None:
        library.plot(found, plot)
    if as_json:
        print_json(found.to_json())
        return
    for line in found.skipped:
        note(f"skipped: {line}")
    _print(found)


def _print(found) -> None:
    from abstim.cli.tables import print_table

    rows = [
        (c.benchmark, c.group, c.variant, c.launches, c.measured_cycles, c.predicted_cycles, f"{c.error:+.2%}")
        for c in found.comparisons
    ]
    columns = ("benchmark", "group", "variant", "launches", "measured", "predicted", "error")
    print_table("", columns, rows, left=3)
    summaries = [
        (
            s.variant,
            s.group,
            s.worst,
            s.benchmarks,
            *(f"{error:.2%}" for error in (s.mean_error, s.median_error, s.max_error)),
            "-" if s.correlation is None else f"{s.correlation:.5f}",
        )
        for s in found.summaries()
    ]
    heads = ("variant", "group", "worst", "benchmarks", "mean", "median", "max", "correlation")
    print_table("Absolute errors", heads, summaries, left=3)
    _print_relative(found)


def _print_relative(found) -> None:
    from abstim.relative import median_miss_errors, relative_accuracy

    for name, (error, count) in median_miss_errors(found.comparisons).items():
        print(f"{name.replace('_', ' ')}: median error {error:.2%} of {count} benchmarks")
    relative = relative_accuracy(found.comparisons)
    if relative:
        print(
            f"Speed-ups between {relative.variants} variants ({relative.speed_ups}): "
            f"Kendall's tau {relative.pooled:.3f}; mean of the pairs {relative.mean:.3f},\n"
            f"least {relative.least:.3f} ({' to '.join(relative.least_pair)})"
        )
