"""`abstim advise`: what could be changed about a target, and what each change would save."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from abstim.cli.options import (
    Arguments,
    Block,
    DynamicShared,
    GpuName,
    Grid,
    Json,
    Kernel,
    Overrides,
    launched,
)
from functional.ptx.source import shown_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from abstim.gpu.config import Gpu
    from abstim.session.session import Session
    from abstim.study.advice import Advice

MOST_GRIDS = 3  # of launches that leave SMs idle, said


def advise(
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="A suite benchmark, a launches.json, a .ptx or .cu file.")
    ],
    gpu: GpuName = "gtx480",
    overrides: Overrides = None,
    kernel: Kernel = "",
    grid: Grid = "",
    block: Block = "",
    arg: Arguments = None,
    dynamic_shared: DynamicShared = 0,
    as_json: Json = False,
) -> None:
    """Say what could be changed about a target: uncoalesced accesses, bank conflicts, atomics, occupancy, tail waves.

    What each would save is found by timing the launches without it, not by a rule of thumb.

    Examples:

    `abstim advise transpose`

    `abstim advise hist.cu --kernel hist --grid 120 --block 256 --arg buf:i32:65536:random --arg 65536 --arg
    buf:i32:256`
    """
    from abstim.gpu.config import load_gpu
    from abstim.session.session import open_session
    from abstim.show.tables import print_json, progress, say
    from abstim.study.advice import advise as run

    point = load_gpu(gpu, overrides or ())
    opened = launched(target, kernel, grid, block, arg, dynamic_shared)
    with progress(quiet=as_json) as report:
        session = open_session(opened, [point], progress=report)
        found = run(session, point, report)
    grids = [line for number in range(len(session)) for line in _grid_notes(session, number, point)]
    if as_json:
        print_json(found.to_json() | {"grids": grids})
        return
    _print(found)
    for line in grids[:MOST_GRIDS]:
        say(f"grid: {line}")


def _grid_notes(session: Session, number: int, gpu: Gpu) -> Sequence[str]:
    from abstim.session.rates import grid_notes

    launch = session.launch(number)
    name = f"launch {number} {shown_name(launch.program.name)}"
    return grid_notes(name, launch.thread_blocks, session.blocks_per_sm(number, gpu), gpu.spec.sm_count)


def _print(found: Advice) -> None:
    from abstim.show.tables import on_gpu, print_table, say

    rows = [(finding.kind, finding.cycles, f"{finding.gain:.1%}") for finding in found.findings]
    title = f"{found.target} on {on_gpu(found)}: {found.cycles:,} cycles"
    if not rows:
        print(f"{title}\nNothing that abstim looks for would save 2 %; abstim run --limits says what limits it")
        return
    print_table(title, ("finding", "cycles without it", "saved"), rows)
    for finding in found.findings:
        say(f"{finding.kind}: {finding.text}")
