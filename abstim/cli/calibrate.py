"""`abstim calibrate` and `abstim fit`: a GPU's values from micro-benchmarks, or from measured cycles."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from abstim.cli.options import Json, Model, Overrides, expanded, refuse_options
from abstim.show.tables import duration, print_json, print_records, print_table, progress, say
from functional.errors import InputError, refuse
from functional.keep.folder import check_output, write_output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from abstim.study.calibrate.microbenchmarks import Device
    from abstim.study.fit.fitted import Fit
    from abstim.study.silicon import MeasuredTime
    from abstim.study.validate import Measured


@dataclass(kw_only=True)
class CalibrateOptions:
    """Options of `abstim calibrate`.

    --only GROUP[/QUANTITY]  Only these micro-benchmarks, as in stream/read; repeatable.
    --native  Run on this computer's GPU, through its driver, in place of a model.
    --output, -o TOML  With --native: describe the GPU in this file."""

    overrides: Overrides = None
    only: list[str] | None = None
    native: bool = False
    output: Path | None = None


@expanded
def calibrate(*, name: str | None = None, options: CalibrateOptions, as_json: Json = False) -> None:
    """Measure latencies, bandwidths and rates of a GPU with our own micro-benchmarks, beside public figures.

    [GPU]  A GPU's name or TOML file.

    Groups: latency (dependent loads against footprint), stream (DRAM against occupancy), bandwidth (L1, L2, shared
    memory), throughput and operation_latency (by unit), atomics, launch. A GPU with public figures runs at the core
    clock of their measurement, unless --set changes it.

    Examples: `abstim calibrate v100 --only latency`, `abstim calibrate --native -o mine.toml`"""
    from abstim.gpu.config import load_gpu
    from abstim.study.calibrate.calibration import Modelled, OnGpu, at_measured_clock, described, read_figures
    from abstim.study.calibrate.calibration import calibrate as run

    o = options
    refuse(o.native == (name is not None), "calibrate needs a GPU's name, or --native, and not both")
    refuse(o.output is not None and not o.native, "--output describes what --native measured")
    if o.native:
        device: Device = OnGpu()
    else:
        gpu = load_gpu(name or "", o.overrides or [])
        device = Modelled(gpu if o.overrides else at_measured_clock(gpu, read_figures()))
    with progress(quiet=as_json) as report:
        found = run(device, o.only or (), progress=report)
    print_json(found.to_json()) if as_json else _print(found)
    if found.interrupted:
        raise KeyboardInterrupt
    if o.output is not None:
        write_output(o.output, described(found, device.facts).encode())


def _print(found) -> None:
    columns = "group | quantity | at: {place} | unit | found: {value} | measured: {public} | error: {off}"
    print_records(
        f"{found.device} at {found.core_clock_hz / 1e6:,.0f} MHz", columns, found.rows, left=2,
        place=lambda row: row.at or "", public=lambda row: row.measured.value if row.measured else "",
        off=lambda row: f"{row.error:+.1%}" if row.measured else "",
    )  # fmt: skip
    if errors := found.errors():
        columns = "group | figures | mean error: {mean:.1%} | worst: {worst:.1%}"
        print_records("Against public figures", columns, errors)
    sources = sorted({(r.measured.measured_on, r.measured.source.partition(",")[0]) for r in found.rows if r.measured})
    for measured_on, source in sources:
        print(f"{measured_on}: {source}")


@dataclass(kw_only=True)
class FitOptions:
    """Options of `abstim fit`.

    What was measured:
    --reference CSV  Cycles; columns: benchmark, launch, variant, cycles.
    --silicon CSV  Or times on hardware; columns: target, gpu, core_clock_hz, flush, time_ns, class; launch.
    --programs DIR  Where --silicon's targets lie: launches.json, recorded traces.
    --variant  Only this variant; repeatable.
    --group  Only this group; repeatable.
    --benchmark  Only this benchmark or target; repeatable.

    What is fitted:
    --params NAME,...  What to fit: keys of [params], [time], [latency_cycles], [initiation_cycles].
    --gpu GPU  A GPU's name or TOML file; default: the variants' own.
    --split  Part of the programs to fit; the others are held out, and decide whether the start is kept.
    --seed  Chooses which are held out.
    --factor  Search from start / FACTOR to start x FACTOR.
    --output, -o TOML  Write the fitted GPU here."""

    params: str
    reference: Path | None = None
    silicon: Path | None = None
    programs: Path = Path()
    gpu: str | None = None
    overrides: Overrides = None
    variant: list[str] | None = None
    group: list[str] | None = None
    benchmark: list[str] | None = None
    split: float = 0.5
    seed: int = 0
    factor: float = 4.0
    rounds: Annotated[int, typer.Option(min=0, help="Rounds of the final search on whole cycles, at most.")] = 4
    output: Path | None = None
    model: Model = "detailed"


@expanded
def fit(*, options: FitOptions, as_json: Json = False) -> None:
    """Fit latencies and service times of a GPU to measured cycles, or times.

    The search starts at the GPU's values (`--set` changes them). Says how well each value is known, and which the data
    cannot tell apart. If the error of the programs held out does not fall, the start is kept.

    Examples:
    `abstim fit --reference tests/data/cycles.csv --variant GTX480_d --group micro --params
    l1d_latency_cycles,dram_latency_cycles -o fitted.toml`
    `abstim fit --silicon times.csv --programs my_kernels --params l1d_latency_cycles,l2_request_cycles`"""
    from abstim.study.fit import solve as library

    o = options
    if o.output is not None:
        check_output(o.output, ".toml")
    table = _measured(o)
    names = [name.strip() for name in o.params.split(",") if name.strip()]
    given: dict[str, Any] = {name: getattr(o, name) for name in ("gpu", "model", "programs", "seed", "factor")}
    given |= {"overrides": o.overrides or (), "fraction": o.split, "polish_rounds": o.rounds}
    given["reference"] = (o.reference or o.silicon or Path()).name
    with progress(quiet=as_json) as report:
        found = library.fit(table, names, **given, progress=report)
    print_json(found.to_json()) if as_json else _print_fit(found)
    if o.output is not None:
        found.save(o.output)
    if o.output is not None and not as_json:
        print(f"Written to {o.output}: abstim run hotspot --gpu {o.output}")


def _measured(o: FitOptions) -> Sequence[Measured] | Sequence[MeasuredTime]:
    """Raises InputError for a table that is none, for none and for two."""
    from abstim.gpu.config import nearest
    from abstim.study import silicon, validate

    refuse((o.reference is None) == (o.silicon is None), "fit needs --reference CSV, or --silicon CSV")
    if o.reference is not None:
        refuse_options("without --silicon", programs=o.programs != Path())
        return validate.choose(validate.read_reference(o.reference), o.variant or (), o.group or (), o.benchmark or ())
    assert o.silicon is not None
    refuse_options("with --silicon", variant=o.variant, group=o.group)
    times = silicon.read_measured_times(o.silicon)
    for name in o.benchmark or ():
        if name not in (known := {row.target for row in times}):
            raise InputError(f"the table has no target {name!r}{nearest(name, known)}")
    return [row for row in times if not o.benchmark or row.target in o.benchmark]


def _print_fit(found: Fit) -> None:
    from abstim.study.fit.fitted import interval

    columns = "parameter: {name} | start | the start's source: {prior} | fit: {fitted} | known to: {interval} | value"
    title = f"{found.gpu} fitted to {found.reference}"
    prior: Any = lambda p: "-" if p.prior is None else f"within {p.prior:.1f}x"  # noqa: E731
    print_records(title, columns, found.parameters, left=1, interval=interval, prior=prior)
    columns = (
        "benchmarks: {part} | values | count: {benchmarks} | mean: {mean_error:.2%} | median: {median_error:.2%} "
        "| max: {max_error:.2%} | worst"
    )
    print_records("Absolute errors", columns, found.errors, left=2)
    known = [(number, own.name) for number, own in enumerate(found.parameters) if own.identified]
    both = [(a, b, found.correlation[j][k]) for (k, b), (j, a) in product(known, known) if j < k]
    if pairs := [(a, b, f"{value:+.2f}") for a, b, value in both if abs(value) >= 0.5]:
        print_table("Correlated estimates", ("parameter", "parameter", "correlation"), pairs, left=2)
    for direction in found.unidentified:
        weights = ", ".join(f"{name} {weight:+.2g}" for name, weight in direction.items())
        say(f"The data does not tell (in logarithms): {weights}")
    say(found.verdict)
    print(f"This took {duration(found.wall_seconds)}")
