"""What `abstim bench --stage sample` prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from abstim.study.bench.sampling import SampleBench, Summary


def bench_sample(
    names: Sequence[str], groups: Sequence[str], methods: Sequence[str], gpu: str, overrides: Sequence[str],
    as_json: bool,
) -> None:  # fmt: skip
    """Measure and print what was done; then end with 130 after an interrupt, or raise InputError for what failed."""
    from abstim.show.tables import print_json, progress
    from abstim.study.bench import sampling
    from abstim.targets.resolve import names_in
    from functional.errors import InputError

    targets = list(names) or [name for group in groups or (sampling.GROUP,) for name in names_in(group)]
    with progress(quiet=as_json) as report:
        found = sampling.bench_samples(targets, methods or sampling.METHODS, gpu, overrides, report)
    if as_json:
        print_json(found.to_json())
    elif found.comparisons:
        _print_rows(found)
        _print_summaries(found)
        _print_reliability(found)
    if found.interrupted:
        raise typer.Exit(130)
    if found.failed:
        raise InputError("; ".join(f"{target} is left out: {why}" for target, why in found.failed.items()))


def _print_rows(found: SampleBench) -> None:
    from abstim.show.tables import duration, on_gpu, print_table

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
    from abstim.show.tables import print_table

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
    from abstim.show.tables import print_table

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
