"""`abstim run`: how long a target takes on one GPU, or on several side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from abstim.cli.options import GpusOptions, InstructionBudget, Json, Model, SizedLaunchOptions, expanded, refuse_marked
from abstim.cli.run_tables import print_baseline, print_energy, print_hot, print_results
from abstim.show.tables import counted, print_json, progress, say
from functional.errors import InputError, note, refuse
from functional.keep.folder import check_output

if TYPE_CHECKING:
    from abstim.gpu.config import Gpu
    from abstim.progress import Progress
    from abstim.session.issue_logs import HotSpot
    from abstim.session.result import RunResult
    from abstim.session.session import Session
    from abstim.study.baseline import Baseline
    from abstim.study.energy import Energy
    from functional.launches.case import Case

OF_DETAILED, OF_ONE_GPU = "of the detailed model", "of one GPU"  # in a field's `Annotated`: marks (`refuse_marked`)
_PASSED_ON = ("model", "flush", "coupled", "serial", "instruction_budget")  # options, as they are called
MOST_NOTES = 5  # findings that are said of a target; the others are counted


def prechecked(opened: Callable[[], Case], check: bool, strict: bool) -> Callable[[], Case]:
    """`opened`, and what it opens looked at. It raises InputError if there are no expected outputs to `check`, and, if
    `strict`, for what is a note otherwise (`functional.execution.findings`), and where nothing will be executed."""

    def looked_at() -> Case:
        from functional.execution.findings import findings
        from functional.traces.store import StoredCase

        case = opened()
        if check and not (case.manifest.outputs if isinstance(case, StoredCase) else case.expected):
            raise InputError(f"--check: {case.name} has no expected outputs")
        if strict and (case.traces or isinstance(case, StoredCase)):
            raise InputError(f"--strict: {case.name} is a trace; what it did when it was made cannot be looked at")
        if case.module.target == "sass":  # another machine's code: what it leaves out was never read
            return case
        programs = {launch.program.name: launch.program for launch in case.launches}
        given = case.memory.given.union(case.memory.const_variables if isinstance(case, StoredCase) else ())
        found = [line for program in programs.values() for line in findings(program, given)]
        if found and strict:
            raise InputError(found[0] + (f" (and {len(found) - 1} findings more)" if len(found) > 1 else ""))
        for line in found[:MOST_NOTES]:
            note(f"abstim: {line}")
        if len(found) > MOST_NOTES:
            note(f"abstim: and {len(found) - MOST_NOTES} findings more")
        return case

    return looked_at


@dataclass(kw_only=True)
class RunOptions:
    """What `abstim run` is asked for.

    --flush all|data|l1|l1d|none  Caches emptied before each launch: all, all but code in L2 (as profilers do), SMs'
        own, L1D, none.
    --check  Exit code 1 if an output is not the expected one.
    --strict  Refuse a kernel that reads memory or registers that nothing has written, or whose thread blocks race
        (some 30 times slower).
    --coupled  Where the order of thread blocks decides (work queues, locks), let the engine's clock say who comes
        first (some hundred times slower).
    --serial  Launches one after the other, whatever their streams allow.
    --device compiled|arrays  With --model occupancy: machine code, or a JAX program on what JAX_PLATFORMS names.
    --limits  Find what limits it: each resource twice as fast, one at a time. Without it the limit is an estimate.
    --hot  Also say where in the source time goes, by CUDA line (`nvcc -lineinfo`) and PTX line.
    --energy  Also estimate energy and power (v100).
    --against JSON  Also compare with what `abstim run --json` printed earlier.
    --timeline FILE  Also write a timeline for Perfetto or chrome://tracing: SMs, warps, basic blocks."""

    instruction_budget: InstructionBudget = None
    flush: str = "all"
    check: bool = False
    strict: bool = False
    coupled: Annotated[bool, OF_DETAILED] = False
    serial: bool = False
    model: Model = "detailed"
    device: str = "compiled"
    limits: Annotated[bool, OF_DETAILED] = False
    hot: Annotated[bool, OF_DETAILED, OF_ONE_GPU] = False
    energy: Annotated[bool, OF_ONE_GPU] = False
    against: Annotated[Path | None, OF_ONE_GPU] = None
    timeline: Annotated[Path | None, OF_DETAILED, OF_ONE_GPU] = None

    def lanes(self) -> AbstractContextManager[None]:
        """Within it they are run on the device."""
        if self.device == RunOptions.device:
            return nullcontext()
        from abstim.occupancy_vector.lanes import on_device

        return on_device(self.device, self.model)

    def check_together(self, gpus: Sequence[Gpu]) -> None:
        """Raises InputError for options that these GPUs, or the model, have no use for, before anything is executed."""
        refuse_marked(self, OF_DETAILED, self.model != "detailed", f"; leave out --model {self.model}")
        refuse_marked(self, OF_ONE_GPU, len(gpus) > 1, f", and {len(gpus)} were given; choose one")
        if self.timeline is not None:
            check_output(self.timeline, ".json")
        if self.energy:
            from abstim.study.energy import refuse_energy

            refuse_energy(gpus[0], self.model)


class Found(NamedTuple):
    """What `abstim run` prints. `refused`: GPUs that a thread block does not fit on, and why."""

    results: list[RunResult]
    spots: list[HotSpot]
    beside: Baseline | None
    energy: Energy | None
    refused: list[tuple[Gpu, str]]


@expanded
def run(target: str, gpu: GpusOptions, launch: SizedLaunchOptions, options: RunOptions, as_json: Json = False) -> None:
    """Say how long a target takes on a GPU: cycles, seconds, IPC, occupancy, issue slots by reason.

    TARGET  A suite benchmark (`abstim suite`), a launches.json, a .ptx or .cu file, a folder of `abstim trace`, or an
        Accel-Sim trace directory.

    Examples:
    `abstim run hotspot`
    `abstim run hotspot --gpu gtx480 --gpu rtx3070 --set schedulers_per_sm=1`
    `abstim run hotspot --gpu v100 --hot --energy --limits`
    `abstim run hotspot --timeline hotspot-timeline.json`
    `abstim run hotspot --model analytic`
    `abstim run k.ptx --kernel add --grid 64 --block 256 --arg buf:f32:16384 --arg 16384`"""
    from abstim.models import open_for
    from abstim.targets.execution import chosen_executor

    o, gpus = options, gpu.load()
    o.check_together(gpus)
    refused: list[tuple[Gpu, str]] = []
    old: dict[str, Any] | None = None
    if o.against is not None:
        from abstim.study.baseline import read_baseline

        old = read_baseline(o.against)
    whole = target.lower().endswith((".ptx", ".cu")) or o.model != "detailed"  # nothing estimates it from a part
    shorter = "" if whole else f"abstim sample {target} (simulates a part, gives an interval)"
    with progress(quiet=as_json, shorter=shorter) as report, o.lanes():
        said: dict[str, Any] = {name: getattr(o, name) for name in _PASSED_ON}
        said |= {"executor": chosen_executor(strict=True) if o.strict else None, "progress": report}
        opened, several = prechecked(launch.of(target), o.check, o.strict), refused if len(gpus) > 1 else None
        session = open_for(opened, gpus, refused=several, **said)
        fitting = [gpu for gpu in gpus if gpu not in [other for other, _ in refused]]
        found = Found(*_found(session, fitting, o, old, report), refused)
    print_json(_as_json(found)) if as_json else _print(found)
    _write_timeline(o.timeline, session, gpus[0], o.flush, quiet=as_json)
    _end(found, o.check)


def _found(
    session: Session, gpus: list[Gpu], options: RunOptions, old: dict[str, Any] | None, report: Progress
) -> tuple[list[RunResult], list[HotSpot], Baseline | None, Energy | None]:
    """What is printed of these GPUs: results, hot spots, what an earlier result is beside them, energy."""
    from abstim.models import run_many

    if options.limits:
        from abstim.study.counterfactual import counterfactual

        by_gpu = [counterfactual(session.on(gpu), [gpu], options.flush, report) for gpu in gpus]
        results = [found for of_gpu in by_gpu for found in of_gpu]
    else:
        results = run_many(session, gpus, model=options.model, flush=options.flush, progress=report)
    spots: list[HotSpot] = []
    beside = energy = None
    if options.hot:
        from abstim.session.issue_logs import hot_spots

        spots = hot_spots(session, gpus[0], options.flush, report)
    if old:
        from abstim.study.baseline import compare

        beside = compare(old, results[0])
    if options.energy:
        from abstim.study.energy import energy_of

        energy = energy_of(results[0], gpus[0])
    return results, spots, beside, energy


def _write_timeline(path: Path | None, session: Session, gpu: Gpu, flush: str, quiet: bool) -> None:
    if path is None:
        return
    from abstim.session.issue_logs import issue_logs
    from abstim.show.timeline import write_timeline

    with progress(quiet=quiet) as report:
        launches = list(issue_logs(session, gpu, flush, report))
    if said := write_timeline(path, launches, gpu.spec.core_clock_hz):
        note(said)
    if not quiet:
        say(f"Timeline: {path}, for https://ui.perfetto.dev or chrome://tracing")


def _print(found: Found) -> None:
    print_results(found.results, [gpu for gpu, _ in found.refused])
    if found.energy:
        print_energy(found.energy)
    if found.beside:
        print_baseline(found.beside)
    if found.spots:
        print_hot(found.spots)


def _as_json(found: Found) -> dict[str, Any]:
    results = found.results
    if len(results) == 1 and not found.refused:
        hot = {"hot": [spot.to_json() for spot in found.spots]} if found.spots else {}
        others = {"against": found.beside, "energy": found.energy}
        return results[0].to_json() | hot | {name: x.to_json() for name, x in others.items() if x}
    mixed = len({result.memory_model for result in results}) > 1
    without = [{"gpu": gpu.name, "reason": why} for gpu, why in found.refused]
    runs = [result.to_json() for result in results]
    return {"kind": "runs", "mixed_memory_models": mixed, "runs": runs, "refused": without}


def _end(found: Found, check: bool) -> None:
    """Raises Exit for a wrong output, if that is to be, and InputError if the target does not fit some of the GPUs."""
    result = found.results[0]
    refuse(check and not result.outputs, f"--check: nothing of {result.target} was checked; it has no expected outputs")
    wrong = [output for output in result.outputs or () if output.mismatches]
    for output in wrong:
        note(f"abstim: output {output.message}")
    if wrong and check:
        raise typer.Exit(1)
    if check:
        note(f"abstim: {counted(len(result.outputs or ()), 'output is', 'outputs are')} as expected")
    refuse(found.refused, "; ".join(why for _, why in found.refused))
