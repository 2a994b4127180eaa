"""`abstim run`: how long a target takes on one GPU, or on several side by side."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from abstim.cli.options import (
    Batch,
    GpuNames,
    InstructionBudget,
    Json,
    LaunchOptions,
    Model,
    Overrides,
    Prompt,
    Steps,
    expanded,
    refuse_options,
)
from abstim.show.tables import print_json, progress
from functional.errors import InputError
from functional.terminal import note

if TYPE_CHECKING:
    from abstim.gpu.config import Gpu
    from abstim.progress import Progress
    from abstim.session.issue_logs import HotSpot
    from abstim.session.result import RunResult
    from abstim.session.session import Session
    from abstim.study.baseline import Baseline
    from abstim.study.energy.launch_energy import Energy
    from functional.launches.case import Case

    Refused = list[tuple[Gpu, str]]  # GPUs that a thread block does not fit on, and why

MOST_NOTES = 5  # findings that are said of a target; the others are counted


def prechecked(opened: Callable[[], Case], check: bool, strict: bool) -> Callable[[], Case]:
    """`opened`, and what it opens looked at. It raises InputError if there are no expected outputs to `check`, and, if
    `strict`, for what is a note otherwise (`functional.execution.findings`), and where nothing will be executed."""

    def looked_at() -> Case:
        from functional.traces.store import StoredCase

        case = opened()
        if check and not (case.manifest.outputs if isinstance(case, StoredCase) else case.expected):
            raise InputError(f"--check: {case.name} has no expected outputs")
        if strict and (case.traces or isinstance(case, StoredCase)):
            raise InputError(f"--strict: {case.name} is a trace; what it did when it was made cannot be looked at")
        _tell(case, strict)
        return case

    return looked_at


def _tell(case: Case, strict: bool) -> None:
    from functional.execution.findings import findings

    if case.module.target == "sass":  # another machine's code: what it leaves out was never read
        return
    programs = {launch.program.name: launch.program for launch in case.launches}
    found = [line for program in programs.values() for line in findings(program)]
    if found and strict:
        raise InputError(found[0] + (f" (and {len(found) - 1} findings more)" if len(found) > 1 else ""))
    for line in found[:MOST_NOTES]:
        note(f"abstim: {line}")
    if len(found) > MOST_NOTES:
        note(f"abstim: and {len(found) - MOST_NOTES} findings more")


@expanded
def run(
    *,
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="A suite benchmark (`abstim suite`), a launches.json, a .ptx or .cu file, a folder of `abstim trace`, "
            "or an Accel-Sim trace directory.",
        ),
    ],
    gpu: GpuNames = ["gtx480"],  # noqa: B006  typer copies it
    overrides: Overrides = None,
    launch: LaunchOptions,
    prompt: Prompt = None,
    steps: Steps = None,
    batch: Batch = None,
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
    device: Annotated[
        str,
        typer.Option(
            metavar="compiled|arrays",
            help="With --model occupancy: lanes as machine code, or as a JAX program on what JAX_PLATFORMS names.",
        ),
    ] = "compiled",
    limits: Annotated[
        bool,
        typer.Option(
            "--limits",
            help="Find what limits it by making each resource twice as fast, one at a time: some twenty timings more. "
            "Without it the limit is an estimate.",
        ),
    ] = False,
    hot: Annotated[
        bool,
        typer.Option(
            "--hot",
            help="Also say where in the source time goes, by CUDA line (`nvcc -lineinfo`) and PTX line: stalls, "
            "misses, sectors a request, bank conflicts.",
        ),
    ] = False,
    energy: Annotated[
        bool,
        typer.Option("--energy", help="Also estimate energy and power, and say what is known of their error: v100."),
    ] = False,
    against: Annotated[
        Path | None,
        typer.Option(metavar="JSON", help="Also compare with what `abstim run --json` printed earlier."),
    ] = None,
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

    `abstim run hotspot --gpu gtx480 --gpu rtx3070 --set schedulers_per_sm=1`

    `abstim run hotspot --limits`

    `abstim run hotspot --gpu v100 --hot --energy`

    `abstim run hotspot --timeline hotspot-timeline.json`

    `abstim run hotspot --model analytic`

    `abstim run k.ptx --kernel add --grid 64 --block 256 --arg buf:f32:16384 --arg 16384`
    """
    from abstim.gpu.config import load_gpu
    from abstim.models import open_for
    from abstim.study.baseline import compare, read_baseline
    from abstim.targets.execution import chosen_executor

    _refuse_what_has_no_effect(gpu, model, limits, hot, timeline)
    refuse_options("with several GPUs", against=against and len(gpu) > 1)
    old = read_baseline(against) if against else None
    gpus = [load_gpu(name, overrides or ()) for name in gpu]
    _refuse_energy(energy, gpus, model)
    opened = launch.of(target, prompt=prompt, steps=steps, batch=batch)
    refused: Refused = []
    with progress(quiet=as_json, shorter=_shorter(target, model)) as report, _lanes_on(device, model):
        session = open_for(
            model, prechecked(opened, check, strict), gpus, executor=chosen_executor(strict=True) if strict else None,
            instruction_budget=instruction_budget, flush=flush, progress=report,
            refused=refused if len(gpus) > 1 else None,
        )  # fmt: skip
        gpus = [each for each in gpus if each not in [without for without, _ in refused]]
        results = _results(session, gpus, model, limits, flush, report)
        spots = _hot_spots(session, gpus[0], flush, report) if hot else []
    beside, found = compare(old, results[0]) if old else None, _energy(results[0], gpus[0]) if energy else None
    everything = (results, spots, beside, found, refused)
    print_json(_as_json(*everything)) if as_json else _print(*everything)
    _write_timeline(timeline, session, gpus[0], flush, quiet=as_json)
    _report_outputs(results[0], check)
    _end_for(refused)


def _end_for(refused: Refused) -> None:
    """Raises InputError if the target does not fit on some of the GPUs."""
    if refused:
        raise InputError("; ".join(why for _, why in refused))


def _shorter(target: str, model: str) -> str:
    """What estimates a target from a part of it."""
    source = target.lower().endswith((".ptx", ".cu"))
    return "" if source or model != "detailed" else f"abstim sample {target} (simulates a part, gives an interval)"


def _lanes_on(device: str, model: str) -> AbstractContextManager[None]:
    from abstim.occupancy_vector.lanes import on_device

    return on_device(device, model)


def _refuse_what_has_no_effect(gpus: list[str], model: str, limits: bool, hot: bool, timeline: Path | None) -> None:
    from functional.keep.folder import check_output

    of_one_gpu = {"--hot": hot, "--timeline": timeline is not None}
    for option, given in ({"--limits": limits} | of_one_gpu).items():
        if given and model != "detailed":
            raise InputError(f"{option} is of the detailed model; leave out --model {model}")
    for option, given in of_one_gpu.items():
        if given and len(gpus) > 1:
            raise InputError(f"{option} is of one GPU, and {len(gpus)} were given; choose one")
    if timeline is not None:
        check_output(timeline, ".json")
    if twice := [name for name in gpus if gpus.count(name) > 1]:
        raise InputError(f"--gpu {twice[0]}: given twice")


def _results(
    session: Session, gpus: list[Gpu], model: str, limits: bool, flush: str, report: Progress
) -> list[RunResult]:
    from abstim.models import run_many

    if not limits:
        return run_many(session, gpus, model=model, flush=flush, progress=report)
    from abstim.study.counterfactual import counterfactual

    return counterfactual(session, gpus, flush, report)


def _hot_spots(session: Session, gpu: Gpu, flush: str, report: Progress) -> list[HotSpot]:
    from abstim.session.issue_logs import hot_spots

    return hot_spots(session, gpu, flush, report)


def _refuse_energy(asked: bool, gpus: list[Gpu], model: str) -> None:
    if not asked:
        return
    from abstim.study.energy.launch_energy import refuse_energy

    refuse_options("with several GPUs", energy=len(gpus) > 1)
    refuse_energy(gpus[0], model)


def _energy(result: RunResult, gpu: Gpu) -> Energy:
    from abstim.study.energy.launch_energy import energy_of

    return energy_of(result, gpu)


def _write_timeline(path: Path | None, session: Session, gpu: Gpu, flush: str, quiet: bool) -> None:
    if path is None:
        return
    from abstim.session.issue_logs import issue_logs
    from abstim.show.timeline import write_timeline

    with progress(quiet=quiet) as report:
        launches = list(issue_logs(session, gpu, flush, report))
    if said := write_timeline(path, launches, gpu.spec.core_clock_hz):
        note(said)


def _print(
    results: list[RunResult], spots: list[HotSpot], beside: Baseline | None, energy: Energy | None, refused: Refused
) -> None:
    from abstim.cli.run_tables import print_baseline, print_energy, print_hot, print_results

    print_results(results, [gpu for gpu, _ in refused])
    if energy:
        print_energy(energy)
    if beside:
        print_baseline(beside)
    if spots:
        print_hot(spots)


def _as_json(
    results: list[RunResult], spots: list[HotSpot], beside: Baseline | None, energy: Energy | None, refused: Refused
) -> dict[str, Any]:
    if len(results) == 1 and not refused:
        hot = {"hot": [spot.to_json() for spot in spots]} if spots else {}
        others = {"against": beside, "energy": energy}
        return results[0].to_json() | hot | {name: x.to_json() for name, x in others.items() if x}
    mixed = len({result.memory_model for result in results}) > 1
    without = [{"gpu": gpu.name, "reason": why} for gpu, why in refused]
    runs = [result.to_json() for result in results]
    return {"kind": "runs", "mixed_memory_models": mixed, "runs": runs, "refused": without}


def _report_outputs(result: RunResult, check: bool) -> None:
    if check and not result.outputs:
        raise InputError(f"--check: nothing of {result.target} was checked; it has no expected outputs")
    wrong = [output for output in result.outputs or () if output.mismatches]
    for output in wrong:
        note(f"abstim: output {output.message}")
    if wrong and check:
        raise typer.Exit(1)
