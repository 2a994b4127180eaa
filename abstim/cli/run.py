"""`abstim run`: how long a target takes on one GPU, or on several side by side."""

from __future__ import annotations

from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Any

import typer

from abstim.cli.options import (
    Arguments,
    Block,
    DynamicShared,
    GpuNames,
    Grid,
    InstructionBudget,
    Json,
    Kernel,
    Model,
    Overrides,
)

if TYPE_CHECKING:
    from abstim.gpu.config import Gpu
    from abstim.session.result import RunResult
    from abstim.session.session import Session

UNLIKE_MEMORY = "with perfect memory nothing behind the first-level caches takes time; compare it with its like"
MOST_ROWS = 250  # launches of a target that are printed one by one


def run(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="A suite benchmark (`abstim suite`), a launches.json, a .ptx file, a folder of `abstim trace`, "
            "or an Accel-Sim trace directory.",
        ),
    ],
    gpu: GpuNames = ["gtx480"],  # noqa: B006  typer copies it
    overrides: Overrides = None,
    kernel: Kernel = "",
    grid: Grid = "",
    block: Block = "",
    arg: Arguments = None,
    dynamic_shared: DynamicShared = 0,
    instruction_budget: InstructionBudget = None,
    flush: Annotated[
        str,
        typer.Option(
            metavar="all|l1|l1d|none", help="Caches invalidated before each launch: all, the SMs' own, L1D, none."
        ),
    ] = "all",
    check: Annotated[bool, typer.Option("--check", help="Exit code 1 if an output is not the expected one.")] = False,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Refuse a kernel that reads what nothing has written (registers, shared and local memory, constants) "
            "or whose thread blocks race. It is executed by the slower executor, on one thread.",
        ),
    ] = False,
    model: Model = "detailed",
    timeline: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Also write a timeline for Perfetto or chrome://tracing: SMs, warps, basic blocks.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Say how long a target takes on a GPU: cycles, seconds, IPC, occupancy, issue slots by reason.

    Examples:

    `abstim run hotspot`

    `abstim run hotspot --gpu gtx480 --set schedulers_per_sm=1`

    `abstim run hotspot --gpu gtx480 --gpu rtx3070`

    `abstim run hotspot --timeline hotspot-timeline.json`

    `abstim run hotspot --model analytic`

    `abstim run k.ptx --kernel add --grid 64 --block 256 --arg buf:f32:16384 --arg 16384`
    """
    from functools import partial

    from abstim.cli.prechecks import prechecked
    from abstim.gpu.config import load_gpu
    from abstim.models import open_for, run_many
    from abstim.show.tables import print_json, print_printf, progress
    from abstim.target.executors import chosen_executor
    from abstim.target.resolve import resolve

    gpus = [load_gpu(name, overrides or ()) for name in gpu]
    opened = partial(
        resolve, target, kernel=kernel, grid=grid, block=block, arguments=arg or (), dynamic_shared_bytes=dynamic_shared
    )
    case = prechecked(opened, check, strict)
    with progress(quiet=as_json) as report:
        session = open_for(
            model, case, gpus, executor=chosen_executor(strict=True) if strict else None,
            instruction_budget=instruction_budget, flush=flush, progress=report,
        )  # fmt: skip
        results = run_many(session, gpus, model=model, flush=flush, progress=report)
    if as_json:
        print_json(results[0].to_json() if len(results) == 1 else _runs(results))
    else:
        print_printf(results[0].printf)
        _print_run(results[0]) if len(results) == 1 else _print_comparison(results)
    if timeline is not None:
        _write_timeline(timeline, session, gpus[0], flush, quiet=as_json)
    _report_outputs(results[0], check)


def _write_timeline(path: Path, session: Session, gpu: Gpu, flush: str, quiet: bool) -> None:
    from abstim.session.issue_logs import issue_logs
    from abstim.show.tables import progress
    from abstim.show.timeline import write_timeline
    from functional.terminal import note

    with progress(quiet=quiet) as report:
        launches = list(issue_logs(session, gpu, flush, report))
    if said := write_timeline(path, launches, gpu.spec.core_clock_hz):
        note(said)


def _runs(results: list[RunResult]) -> dict[str, Any]:
    mixed = len({result.memory_model for result in results}) > 1
    return {"kind": "runs", "mixed_memory_models": mixed, "runs": [result.to_json() for result in results]}


def _where(result: RunResult) -> str:
    from abstim.show.tables import on_gpu

    return f"{result.target} on {on_gpu(result)}"


def _print_run(result: RunResult) -> None:
    from abstim.show.tables import duration, quantity

    total, first = result.totals, result.launches[0]
    if len(result.launches) > MOST_ROWS:
        _print_kernels(result)
    else:
        _print_launches(result)
    if first.issue_slots:
        _print_slots(result)
        if len(result.launches) <= MOST_ROWS:
            _print_memory(result)
    else:
        _print_bounds(result)
    print(f"Total: {quantity(total['cycles'])} cycles, {duration(total['seconds'])}, ", end="")
    print(f"{quantity(total['thread_instructions'])} thread instructions, {total['ipc']:.4g} a cycle")
    print(f"Registers a thread: {first.registers_per_thread} (from {first.registers_source})")
    if first.timed_code != "PTX":
        made, matched = first.machine_code_share, first.matched_access_share
        print(f"Timed: {first.timed_code}; {made:.1%} of the instructions, {matched:.1%} of the accesses")
    print(fill(f"Error on this GPU: {result.known_error}", 80))
    print("This took " + ", ".join(f"{stage} {duration(s)}" for stage, s in result.wall_seconds.items()))


def _print_kernels(result: RunResult) -> None:
    """A row a kernel, where there are too many launches to read."""
    from abstim.show.tables import duration, print_table

    groups: dict[str, list] = {}
    for launch in result.launches:
        groups.setdefault(launch.kernel, []).append(launch)
    rows = []
    for kernel, launches in groups.items():
        cycles, seconds = sum(x.cycles for x in launches), sum(x.seconds for x in launches)
        ipc = sum(x.thread_instructions for x in launches) / cycles
        rows.append((kernel, len(launches), cycles, duration(seconds), ipc))
    title = f"{_where(result)}, {len(result.launches):,} launches (--json has each)"
    print_table(title, ("kernel", "launches", "cycles", "time", "IPC"), rows)


def _print_launches(result: RunResult) -> None:
    from abstim.show.tables import duration, print_table

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
    print_table(_where(result), columns, rows, left=1)


def _name(launch) -> str:
    return f"{launch.launch} {launch.kernel}" + (f" ({launch.label})" if launch.label else "")


def _print_slots(result: RunResult) -> None:
    from abstim.session.result import SLOT_REASONS
    from abstim.show.tables import print_table

    slots = {reason: sum(launch.issue_slots[reason] for launch in result.launches) for reason in SLOT_REASONS}
    total = max(1, sum(slots.values()))
    names = [reason.replace("_", " ") for reason in SLOT_REASONS]
    print_table("Issue slots", names, [[f"{count / total:.1%}" for count in slots.values()]], left=0)


def _rate(launch, cache: str) -> str:
    found = launch.memory.get(f"{cache}_hit_rate")
    return "-" if found is None else f"{found:.1%}"


def _print_memory(result: RunResult) -> None:
    from abstim.show.tables import print_table

    rows = [
        (
            launch.launch,
            *(_rate(launch, cache) for cache in ("l1d", "const", "l1i", "l2")),
            f"{launch.memory['l2_bytes'] / 1024:,.0f} KiB",
            f"{(launch.memory['dram_read_bytes'] + launch.memory['dram_write_bytes']) / 1024:,.0f} KiB",
            f"{launch.memory['dram_use']:.0%}",
            launch.limit,
        )
        for launch in result.launches
    ]
    columns = ("launch", "L1D hits", "const", "L1I", "L2 hits", "to L2", "to DRAM", "DRAM use", "limited by")
    print_table("Memory", columns, rows, left=1)


def _print_bounds(result: RunResult) -> None:
    """Of the analytic model: what limits each launch, hit rates, traffic."""
    from abstim.show.tables import print_table

    columns = ("launch", "bound", "next bound", "L1D hits", "L2 hits", "DRAM bytes")
    print_table("Limits", columns, [_bound_row(launch) for launch in result.launches], left=2)


def _bound_row(launch):
    second = sorted(launch.bounds_cycles.values())[-2] / max(1.0, launch.bounds_cycles[launch.limit])
    rates = [_rate(launch, cache) for cache in ("l1d", "l2")]
    return (_name(launch), launch.limit, f"{second:.0%}", *rates, launch.memory["dram_read_bytes"])


def _print_comparison(results: list[RunResult]) -> None:
    """One row a GPU, the first one the yardstick."""
    from abstim.show.tables import duration, print_table

    first = results[0].totals["cycles"]
    rows = [
        (
            r.gpu,
            r.memory_model,
            int(r.totals["cycles"]),
            duration(r.totals["seconds"]),
            r.totals["ipc"],
            f"{first / r.totals['cycles']:.2f}x",
        )
        for r in results
    ]
    launches = len(results[0].launches)
    title = f"{results[0].target} ({launches} launch{'es' if launches > 1 else ''})"
    print_table(title, ("GPU", "memory", "cycles", "time", "IPC", f"speed against {results[0].gpu}"), rows, left=2)
    _print_errors(results)


def _print_errors(results: list[RunResult]) -> None:
    """What the comparison does not say: that memory is not alike, and how far each GPU's times are to be trusted."""
    if len({r.memory_model for r in results}) > 1:
        print(fill(f"Not alike: {UNLIKE_MEMORY}", 80))
    for r in results:
        print(fill(f"Error on {r.gpu}: {r.known_error}", 80, subsequent_indent="  "))


def _report_outputs(result: RunResult, check: bool) -> None:
    from functional.terminal import note

    wrong = [output for output in result.outputs or () if output.mismatches]
    for output in wrong:
        note(f"abstim: output {output.message}")
    if wrong and check:
        raise typer.Exit(1)
