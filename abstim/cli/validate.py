"""`abstim validate`: predicted against measured cycles."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from abstim.cli.options import Json, Model, TimedCode, expanded, refuse_options
from abstim.extras import need
from abstim.show.tables import print_json, print_records, progress, say
from functional.errors import InputError, note, refuse
from functional.keep.folder import check_output

_POINTS = "Instead of a reference: the analytic model (or --model occupancy) against the detailed one on random GPUs."


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
    --programs DIR  Where --silicon's targets lie: launches.json, recorded traces."""

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
    points: Annotated[int, typer.Option(min=0, max=100_000, help=_POINTS)] = 0


@expanded
def validate(*, options: ValidateOptions, as_json: Json = False) -> None:
    """Compare predicted with measured cycles: the error of every benchmark, mean, median, maximum, correlation.

    A benchmark's error is that of its cycles summed over the launches in the table. Variants are GPUs with overrides,
    listed in `configs/validation/variants.toml`; others are skipped.

    Examples:
    `abstim validate --reference tests/data/cycles.csv --variant GTX480_a --group table1`
    `abstim validate --silicon times.csv --programs my_kernels`
    `abstim validate --points 1000 --benchmark hotspot --benchmark srad`"""
    from abstim.study import validate as library

    o = options
    drawn = o.reference is not None and o.plot is not None
    refuse_options("without --reference and --plot", measured_by=not drawn and o.measured_by != "reference")
    alone = {"reference": o.reference, "variant": o.variant, "group": o.group, "flush": o.flush != "all"}
    if o.plot is not None:  # can it be drawn, and written? Asked before anything is timed
        need("matplotlib")
        check_output(o.plot)
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
    table = library.read_reference(o.reference, o.flush)
    chosen, skipped = library.select(table, o.variant or (), o.group or (), o.benchmark or ())
    with progress(quiet=as_json) as report:
        found = library.validate(chosen, report, o.model, o.flush)
    found.skipped[:0] = skipped
    print_json(found.to_json()) if as_json else _print(found)
    if o.plot is not None and found.comparisons:
        library.plot(found, o.plot, o.measured_by)
    if not found.comparisons:
        why = f"; the first: {found.skipped[0]}" if found.skipped else ": the table has no row of this --flush"
        raise InputError(f"{o.reference}: nothing was compared, {len(found.skipped)} skipped{why}")


_KERNELS = (
    "target: {measured.name} | class: {measured.kind} | GPU: {measured.gpu} | measured: {measured.time_us:.2f} us "
    "| predicted: {predicted_us:.2f} us | ratio: {ratio:.3f} | machine code: {machine_code_share:.1%} "
    "| operations off: {operations_error:.1%}"
)
_TIME_ERRORS = (
    ": {name} | kernels | mean error: {mean_error:.1%} | median: {median_error:.1%} | 90th percentile: {error_90:.1%} "
    "| bias: {bias:.3f} | rank correlation: {rank_correlation:.3f}"
)


def _silicon(table: Path, programs: Path, plot: Path | None, timed_code: str, as_json: bool) -> None:
    from abstim.study import silicon as library

    rows = library.read_measured_times(table)
    with progress(quiet=as_json) as report:
        found, skipped = library.compare_times(rows, programs, report, timed_code)
    print_json(library.to_json(found, skipped)) if as_json else _print_silicon(found, skipped)
    if plot is not None:
        library.plot(found, plot)


def _print_silicon(found: list, skipped: list[str]) -> None:
    from abstim.session.result import not_machine_code
    from abstim.study import silicon as library

    for line in skipped:
        note(f"skipped: {line}")
    print_records("", _KERNELS, found, left=3)
    print_records("Time on hardware", _TIME_ERRORS, library.summarise(found))
    for kind, (error, count) in library.operations_median(found).items():
        print(f"{kind} operations: median error {error:.2%} of {count} kernels")
    if said := not_machine_code([k.timed_code for k in found], "kernels"):
        say(f"Note: {said}")


_RANKINGS = (
    "benchmark: {target} | points | rank correlation: {correlation:.4f} | mean error: {mean_error:.1%} "
    "| median ratio: {median_ratio:.3f} | a point: {point_seconds:.1f us} | detailed: {engine_point_seconds:.1f ms}"
)


def _rank(benchmarks: list[str], points: int, model: str, as_json: bool) -> None:
    from abstim.study.validate import pooled, rank_random

    refuse(not benchmarks, "--points needs at least one --benchmark")
    with progress(quiet=as_json) as report:
        found = rank_random(benchmarks, points, model=model, progress=report)
    if as_json:
        print_json({"rankings": [asdict(r) for r in found], "pooled_correlation": pooled(found)})
        return
    print_records(f"Model {model} against the detailed one, on random GPUs", _RANKINGS, found)
    print(f"Rank correlation of all together: {pooled(found):.4f}")


_COMPARISONS = (
    "benchmark | group | variant | launches | measured: {measured_cycles} | predicted: {predicted_cycles} "
    "| error: {error:+.2%}"
)
_SUMMARIES = (
    "variant | memory: {memory_model} | group | worst | benchmarks | mean: {mean_error:.2%} "
    "| median: {median_error:.2%} | max: {max_error:.2%} | correlation: {correlation:.5f}"
)


def _print(found) -> None:
    from abstim.study.validate import median_miss_errors, relative_accuracy

    for line in found.skipped:
        note(f"skipped: {line}")
    if not found.comparisons:
        return
    print_records("", _COMPARISONS, found.comparisons, left=3)
    print_records("Absolute errors", _SUMMARIES, found.summaries(), left=4)
    for name, (error, count) in median_miss_errors(found.comparisons).items():
        print(f"{name.replace('_', ' ')}: median error {error:.2%} of {count} benchmarks")
    if relative := relative_accuracy(found.comparisons):
        print(
            f"Speed-ups between {relative.variants} variants ({relative.speed_ups}): "
            f"Kendall's tau {relative.pooled:.3f}; mean of the pairs {relative.mean:.3f},\n"
            f"least {relative.least:.3f} ({' to '.join(relative.least_pair)})"
        )
