"""`abstim export-trace`: what a target does, as an Accel-Sim trace directory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from abstim.cli.options import (
    Arguments,
    Block,
    DynamicShared,
    Grid,
    Json,
    Kernel,
    launched,
)


def export_trace(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="A suite benchmark or a launches.json.")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="A directory without a trace.")],
    xz: Annotated[bool, typer.Option("--xz", help="Compress the kernels: `.traceg.xz`.")] = False,
    kernel: Kernel = "",
    grid: Grid = "",
    block: Block = "",
    arg: Arguments = None,
    dynamic_shared: DynamicShared = 0,
    as_json: Json = False,
) -> None:
    """Execute a target and write an Accel-Sim trace directory: kernelslist.g, and a .traceg file a launch.

    Example: `abstim export-trace hotspot -o traces/hotspot --xz`
    """
    from abstim.show.tables import counted, print_json, progress, quantity
    from abstim.targets.resolve import open_target
    from abstim.targets.trace_directory import sass_opcode
    from functional.accelsim import write

    case = open_target(launched(target, kernel, grid, block, arg, dynamic_shared))
    with progress(quiet=as_json) as report:
        files = write(case, output, sass_opcode, compress=xz, progress=report)
    total = sum(file.stat().st_size for file in files)
    if as_json:
        print_json({"directory": str(output), "kernels": [f.name for f in files], "bytes": total})
    else:
        print(f"{output}: {counted(len(files), 'kernel', 'kernels')}, {quantity(total)} bytes")
