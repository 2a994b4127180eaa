"""`abstim run`: how long a target takes on one GPU, or on several side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from abstim.cli.options import Backend, GpuNames, Json, Overrides

if TYPE_CHECKING:
    from abstim.result import RunResult

_PTX = "A .ptx target"

MOST_ROWS = 250  # launches of a target that are printed one by one


def run(
    target: Annotated[
        str,
        typer.Argument(metavar="TARGET", help="A suite benchmark (`abstim suite`), a launches.json, or a .ptx file."),
    ],
    gpu: GpuNames = ["gtx480"],  # noqa: B006  typer copies it
    overrides: Overrides = None,
    kernel: Annotated[str, typer.Option(help="Entry to launch, if there are several.", rich_help_panel=_PTX)] = "",
    grid: Annotated[str, typer.Option(help="Thread blocks: `64`, `64x64`, `8x8x8`.", rich_help_panel=_PTX)] = "",
    block: Annotated[str, typer.Option(help="Threads a block, likewise.", rich_help_panel=_PTX)] = "",
    arg: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ARG",
            help="One argument, in order: `5`, `0.5`, `u32:7`, `npy:data.npy`, `buf:f32:1024` (zeros), "
            "`buf:f32:1024:random`; repeatable.",
            rich_help_panel=_PTX,
        ),
    ] = None,
    dynamic_shared: Annotated[
        int, typer.Option(metavar="BYTES", help="Dynamic shared memory a block.", rich_help_panel=_PTX)
    ] = 0,
    instruction_budget: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="COUNT",
            help="Thread instructions after which a launch counts as endless; else 2^18 a thread.",
        ),
    ] = None,
    flush: Annotated[
        str, typer.Option(metavar="all|l1|l1d|none", help="Caches invalidated before each launch: all, the SMs' own, L1D, none.")
    ] = "all",
    check: Annotated[bool, typer.Option("--check", help="Exit code 1 if an output is not the expected one.")] = False,
    backend: Backend = "compiled",
    as_json: Json = False,
) -> None:
    """Say how long a target takes on a GPU: cycles, seconds, IPC, occupancy, issue slots by reason.

    Examples:

    `abstim run hotspot`

    `abstim run hotspot --gpu gtx480 --set schedulers_per_sm=1`

    `abstim run hotspot --gpu gtx480_1sched --gpu gtx480`

    `abstim run k.ptx --kernel add --grid 64 --block 256 --arg buf:f32:16384 --arg 16384`
    """
    from functools import partial

    from abstim.cli.tables import print_json, progress
    from abstim.config import load_gpu
    from abstim.simulate import run_many
    from abstim.target import resolve

    gpus = [load_gpu(name, overrides or ()) for name in gpu]
    case = partial(
        resolve, target, kernel=kernel, grid=grid, block=block, arguments=arg or (), dynamic_shared_bytes=dynamic_shared
    )
    with progress(quiet=as_json) as report:
        results = run_many(case, gpus, instruction_budget=instruction_budget, backend=backend, flush=flush, progress=report)
    if as_json:
        print_json(results[0].to_json() if len(results) == 1 else {"runs": [r.to_json() for r in results]})
    elif len(results) == 1:
        _print_run(results[0])
    else:
        _print_comparison(results)
    _report_outputs(results[0], check)


def _print_run(result: RunResult) -> None:
    from abstim.cli.tables import duration, quantity

    total, first = result.totals, result.launches[0]
    if len(result.launches) > MOST_ROWS:
        _print_kernels(result)
    else:
        _print_launches(result)
    _print_slots(result)
    print(f"Total: {quantity(total['cycles'])} cycles, {duration(total['seconds'])}, ", end="")
    print(f"{quantity(total['thread_instructions'])} thread instructions, {total['ipc']:.4g} a cycle")
    print(f"Registers a thread: {first.registers_per_thread} (from {first.registers_source})")
    print("This took " + ", ".join(f"{stage} {duration(s)}" for stage, s in result.wall_seconds.items()))


def _print_kernels(result: RunResult) -> None:
    """A row a kernel, where there are too many launches to read."""
    from abstim.cli.tables import duration, print_table

    groups: dict[str, list] = {}
    for launch in result.launches:
        groups.setdefault(launch.kernel, []).append(launch)
    rows = []
    for kernel, launches in groups.items():
        cycles, seconds = sum(x.cycles for x in launches), sum(x.seconds for x in launches)
        ipc = sum(x.thread_instructions for x in launches) / cycles
        rows.append((kernel, len(launches), cycles, duration(seconds), ipc))
    title = f"{result.target} on {result.gpu}, {len(result.launches):,} launches (--json has each)"
    print_table(title, ("kernel", "launches", "cycles", "time", "IPC"), rows)


def _print_launches(result: RunResult) -> None:
    from abstim.cli.tables import duration, print_table

    rows = [
        (
            _name(launch),
            "x".join(map(str, launch.grid)),
            "x".join(map(str, launch.block)),
            launch.cycles,
            duration(launch.seconds),
            launch.ipc,
            f"{launch.occupancy:.0%}",
            f"{launch.blocks_per_sm} ({launch.occupancy_limiter})",
        )
        for launch in result.launches
    ]
    columns = ("launch", "grid", "block", "cycles", "time", "IPC", "occupancy", "blocks an SM")
    print_table(f"{result.target} on {result.gpu}", columns, rows, left=1)


def _name(launch) -> str:
    return f"{launch.launch} {launch.kernel}" + (f" ({launch.label})" if launch.label else "")


def _print_slots(result: RunResult) -> None:
    from abstim.cli.tables import print_table
    from abstim.result import SLOT_REASONS

    slots = {reason: sum(launch.issue_slots[reason] for launch in result.launches) for reason in SLOT_REASONS}
    total = max(1, sum(slots.values()))
    names = [reason.replace("_", " ") for reason in SLOT_REASONS]
    print_table("Issue slots", names, [[f"{count / total:.1%}" for count in slots.values()]], left=0)


def _print_comparison(results: list[RunResult]) -> None:
    """One row a GPU, the first one the yardstick."""
    from abstim.cli.tables import duration, print_table

    first = results[0].totals["cycles"]
    rows = [
        (
            r.gpu,
            int(r.totals["cycles"]),
            duration(r.totals["seconds"]),
            r.totals["ipc"],
            f"{first / r.totals['cycles']:.2f}x",
        )
        for r in results
    ]
    launches = len(results[0].launches)
    title = f"{results[0].target} ({launches} launch{'es' if launches > 1 else ''})"
    print_table(title, ("GPU", "cycles", "time", "IPC", f"speed against {results[0].gpu}"), rows)


def _report_outputs(result: RunResult, check: bool) -> None:
    from abstim.cache import note

    wrong = [output for output in result.outputs or () if output.mismatches]
    for output in wrong:
        note(f"abstim: output {output.message}")
    if wrong and check:
        raise typer.Exit(1)
