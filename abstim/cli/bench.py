"""`abstim bench`: how fast abstim itself is, by stage."""

from __future__ import annotations

from typing import Annotated

import typer

from abstim.cli.options import Backend, GpuName, Json, Overrides


def bench(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Suite benchmarks; without any, the whole group.")
    ] = None,
    group: Annotated[str, typer.Option(help="Group to measure if no name is given: table1, apps or micro.")] = "table1",
    stage: Annotated[
        list[str] | None, typer.Option(help="Only this stage: parse, characterize, execute, time; repeatable.")
    ] = None,
    points: Annotated[int, typer.Option(help="Design points to time in one call.")] = 1,
    gpu: GpuName = "gtx480",
    overrides: Overrides = None,
    backend: Backend = "compiled",
    as_json: Json = False,
) -> None:
    """Measure how fast each stage is, in million instructions a second (MIPS), and their geometric mean.

    Represented instructions are those a result stands for; stepped ones are those the engine really walked.

    Examples: `abstim bench hotspot`, `abstim bench --stage time --points 64`
    """
    from abstim import bench as library
    from abstim.cli.tables import print_json, progress
    from abstim.config import load_gpu
    from functional import suite

    chosen = names or suite.names(group)
    with progress(quiet=as_json) as report:
        found = library.bench(chosen, stage or library.STAGES, load_gpu(gpu, overrides or ()), points, backend, report)
    if as_json:
        print_json(found.to_json())
    else:
        _print(found)


def _print(found) -> None:
    from abstim.cli.tables import duration, print_table, quantity

    rows = [
        (name, stage, duration(r.first_seconds), duration(r.seconds), r.thread_mips, r.warp_mips, r.stepped_warp_mips)
        for name, stages in found.rates.items()
        for stage, r in stages.items()
    ]
    stages = dict.fromkeys(stage for stages in found.rates.values() for stage in stages)
    figures = ("thread_mips", "warp_mips", "stepped_warp_mips")
    rows += [("geometric mean", s, "", "", *(quantity(found.geomean(s, figure)) for figure in figures)) for s in stages]
    title = f"{found.gpu}, {found.points} design point{'s' if found.points > 1 else ''}, {found.cpus} CPUs"
    columns = ("benchmark", "stage", "first", "best", "thread MIPS", "warp MIPS", "stepped warp MIPS")
    print_table(f"{title} (MIPS: represented)", columns, rows, left=2)
