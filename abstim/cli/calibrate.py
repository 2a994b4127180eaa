"""`abstim calibrate`: micro-benchmarks on a description, or on the GPU, beside figures measured in public."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from abstim.cli.options import Json, Overrides


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
    from abstim.show.tables import print_json, progress
    from abstim.study.calibrate import calibrate as run
    from functional.errors import InputError

    if native == (name is not None):
        raise InputError("calibrate needs a GPU's name, or --native, and not both")
    if output is not None and not native:
        raise InputError("--output describes what --native measured")
    device = _native() if native else _modelled(name or "", overrides or [])
    with progress(quiet=as_json) as report:
        found = run(device, only or (), progress=report)
    if output is not None:
        from abstim.study.calibrate.described import described
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
    from abstim.show.tables import print_table

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
