"""`abstim calibrate` and `abstim fit`: a GPU's values from micro-benchmarks, or from measured cycles."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from abstim.cli.options import Json, Model, Overrides
from abstim.show.tables import duration, print_json, print_table, progress
from functional.errors import InputError

if TYPE_CHECKING:
    from abstim.study.fit import Fit


def calibrate(
    name: Annotated[str | None, typer.Argument(metavar="[GPU]", help="A GPU's name or TOML file.")] = None,
    overrides: Overrides = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="GROUP[/QUANTITY]", help="Only these micro-benchmarks, as in stream/read; repeatable."),
    ] = None,
    native: Annotated[
        bool, typer.Option("--native", help="Run on this computer's GPU, through its driver, in place of a model.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="TOML", help="With --native: describe the GPU in this file."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure latencies, bandwidths and rates of a GPU with our own micro-benchmarks, beside public figures.

    Groups: latency (dependent loads against footprint), stream (DRAM against occupancy), bandwidth (L1, L2, shared
    memory), throughput and operation_latency (by unit), atomics, launch. A description that has public figures runs at
    the core clock of their measurement, unless --set changes it.

    Examples: `abstim calibrate v100 --only latency`, `abstim calibrate --native -o mine.toml`
    """
    from abstim.study.calibrate import calibrate as run

    if native == (name is not None):
        raise InputError("calibrate needs a GPU's name, or --native, and not both")
    if output is not None and not native:
        raise InputError("--output describes what --native measured")
    device = _native() if native else _modelled(name or "", overrides or [])
    with progress(quiet=as_json) as report:
        found = run(device, only or (), progress=report)
    if output is not None:
        from abstim.study.calibrate.calibration import described
        from functional.keep.folder import write_output

        write_output(output, described(found, device.facts).encode())
    if as_json:
        print_json(found.to_json())
    else:
        _print(found)


def _native():
    from abstim.study.calibrate.devices import OnGpu

    return OnGpu()


def _modelled(name: str, overrides: list[str]):
    from abstim.gpu.config import load_gpu
    from abstim.study.calibrate import at_measured_clock
    from abstim.study.calibrate.calibration import read_figures
    from abstim.study.calibrate.devices import Modelled

    gpu = load_gpu(name, overrides)
    return Modelled(gpu if overrides else at_measured_clock(gpu, read_figures()))


def _print(found) -> None:
    rows = [
        (
            *(r.group, r.quantity, r.at or "", r.unit, r.value),
            *((r.measured.value, f"{r.error:+.1%}") if r.measured else ("", "")),
        )
        for r in found.rows
    ]
    heads = ("group", "quantity", "at", "unit", "found", "measured", "error")
    print_table(f"{found.device} at {found.core_clock_hz / 1e6:,.0f} MHz", heads, rows, left=2)
    if errors := found.errors():
        lines = [(e.group, e.figures, f"{e.mean:.1%}", f"{e.worst:.1%}") for e in errors]
        print_table("Against public figures", ("group", "figures", "mean error", "worst"), lines)
    sources = sorted({(r.measured.measured_on, r.measured.source.partition(",")[0]) for r in found.rows if r.measured})
    for measured_on, source in sources:
        print(f"{measured_on}: {source}")


def fit(
    reference: Annotated[
        Path, typer.Option(metavar="CSV", help="Measured cycles; columns: benchmark, launch, variant, cycles.")
    ],
    params: Annotated[
        str,
        typer.Option(
            metavar="NAME,...",
            help="What to fit: keys of [params], [latency_cycles], [initiation_cycles], with commas.",
        ),
    ],
    gpu: Annotated[
        str | None, typer.Option(metavar="GPU", help="A GPU's name or TOML file; default: the variants' own.")
    ] = None,
    overrides: Overrides = None,
    variant: Annotated[list[str] | None, typer.Option(help="Only this variant; repeatable.")] = None,
    group: Annotated[list[str] | None, typer.Option(help="Only this group; repeatable.")] = None,
    benchmark: Annotated[list[str] | None, typer.Option(help="Only this benchmark; repeatable.")] = None,
    split: Annotated[float, typer.Option(help="Part of the benchmarks to fit; the others are held out.")] = 0.5,
    seed: Annotated[int, typer.Option(help="Chooses which are held out.")] = 0,
    factor: Annotated[float, typer.Option(help="Search from start / FACTOR to start x FACTOR.")] = 4.0,
    rounds: Annotated[int, typer.Option(min=0, help="Rounds of the final search on whole cycles, at most.")] = 4,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="TOML", help="Write the fitted GPU here.")
    ] = None,
    model: Model = "detailed",
    as_json: Json = False,
) -> None:
    """Fit latencies and service times of a GPU to measured cycles.

    The search starts at the GPU's values (`--set` changes them) and is bounded least squares on the logarithms of
    cycles. Says how well each value is known, and which the data cannot tell apart.

    Example: `abstim fit --reference tests/data/cycles.csv --variant GTX480_d --group micro --params
    l1d_latency_cycles,dram_latency_cycles -o fitted.toml`
    """
    from abstim.study import fit as library
    from abstim.study.fit.fitted import check_output
    from abstim.study.validate import choose, read_reference

    if output is not None:
        check_output(output)
    table = choose(read_reference(reference), variant or (), group or (), benchmark or ())
    names = [name.strip() for name in params.split(",") if name.strip()]
    with progress(quiet=as_json) as report:
        found = library.fit(
            table, names, gpu=gpu, overrides=overrides or (), fraction=split, seed=seed, factor=factor,
            polish_rounds=rounds, reference=reference.name, model=model, progress=report,
        )  # fmt: skip
    if output is not None:
        found.save(output)
    if as_json:
        print_json(found.to_json())
        return
    _print_fit(found)
    if output is not None:
        print(f"Written to {output}: abstim run hotspot --gpu {output}")


def _print_fit(found: Fit) -> None:
    from abstim.study.fit.fitted import interval

    rows = [(p.name, interval(p), p.start, p.value) for p in found.parameters]
    print_table(f"{found.gpu} fitted to {found.reference}", ("parameter", "known to", "start", "fit"), rows, left=2)
    errors = [
        (e.part, e.values, e.benchmarks, f"{e.mean_error:.2%}", f"{e.median_error:.2%}", f"{e.max_error:.2%}", e.worst)
        for e in found.errors
    ]
    print_table("Absolute errors", ("benchmarks", "values", "count", "mean", "median", "max", "worst"), errors, left=2)
    _print_correlations(found)
    for direction in found.unidentified:
        weights = ", ".join(f"{name} {weight:+.2g}" for name, weight in direction.items())
        print(f"The data does not tell (in logarithms): {weights}")
    print(f"This took {duration(found.wall_seconds)}")


def _print_correlations(found: Fit) -> None:
    """Pairs of estimates that go together."""
    own, table = found.parameters, found.correlation
    pairs = [
        (own[j].name, own[k].name, f"{table[j][k]:+.2f}")
        for k in range(len(own))
        for j in range(k)
        if own[j].identified and own[k].identified and abs(table[j][k]) >= 0.5
    ]
    if pairs:
        print_table("Correlated estimates", ("parameter", "parameter", "correlation"), pairs, left=2)
