"""`abstim app`: a whole CUDA program, as it is."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from abstim.cli.options import GpuNames, GpusOptions, InstructionBudget, Json, Model, expanded
from abstim.show.tables import duration, print_json, print_table, progress, say
from functional.errors import InputError
from functional.terminal import note

if TYPE_CHECKING:
    from abstim.application.launch_recorder import Timed
    from abstim.application.run_application import ApplicationResult
    from abstim.study.sample import SampleResult

_OURS = frozenset(
    {"--gpu", "--set", "--timed-code", "--only", "--launches", "--record", "--instruction-budget", "--model", "--json"}
    | {"--sample"}
)


@dataclass(kw_only=True)
class ProgramGpus(GpusOptions):
    """Those of `abstim run`; one that today's programs have PTX for, if none is given."""

    gpu: GpuNames = field(default_factory=lambda: ["rtx3070"])


@expanded
def app(
    *,
    command: Annotated[list[str], typer.Argument(metavar="PROGRAM [ARGUMENTS]", help="The program, with PTX in it.")],
    gpu: ProgramGpus,
    only: Annotated[str, typer.Option(metavar="KERNEL", help="Time kernels with this in their name alone.")] = "",
    launches: Annotated[str, typer.Option(metavar="10:20", help="Time launches 10 to 19 alone, numbered from 0.")] = "",
    record: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Also keep the traces of these launches, for `abstim run` and `abstim sample`."
        ),
    ] = None,
    sample: Annotated[
        str,
        typer.Option(
            metavar="METHOD",
            help="Execute everything, time only what this method of `abstim sample` chooses: pks, stem, ...",
        ),
    ] = "",
    instruction_budget: InstructionBudget = None,
    model: Model = "detailed",
    as_json: Json = False,
) -> None:
    """Run a CUDA program without a GPU: its kernels are executed and timed, its own output is its own.

    It holds PTX (as nvcc makes it by default) and uses CUDA's runtime, shared or static. Its events read simulated
    times. Options for abstim stand before the program's name.

    Examples:

    `abstim app ./vector_add`

    `abstim app --gpu rtx3070 --gpu a100 ./reduce --n=100000`

    `abstim app --only gemm --launches 10:20 ./train 3`

    `abstim app --sample pks ./train 3`

    `abstim app --record traces ./train 3`, then `abstim sample traces/module-1`
    """
    import sys

    from abstim.application.launch_recorder import Selection
    from abstim.application.run_application import run_application

    _say_whose(command[1:])
    gpus = gpu.load()
    first, after = _stretch(launches)
    options: dict[str, Any] = {
        "model": model, "selection": Selection(only, first, after), "instruction_budget": instruction_budget,
        "record": record, "output": sys.stderr.fileno() if as_json else None,
    }  # fmt: skip
    sys.stdout.flush()
    if sample:
        from abstim.study.sample.sampler import sample_application

        result, samples = sample_application(command, gpus, sample, **options)
    else:
        with _progress(as_json) as told:
            result, samples = run_application(command, gpus, told=told, **options), None
    if as_json:
        print_json(result.to_json() | ({} if samples is None else {"samples": [s.to_json() for s in samples]}))
    else:
        _print(result, samples)
    raise typer.Exit(_status(result) or (0 if samples or launches else _unmatched(only, result)))


def _say_whose(arguments: Sequence[str]) -> None:
    """An option of ours behind the program's name is the program's: that is said, since it may not have been meant."""
    if given := [a for a in arguments if a.partition("=")[0] in _OURS]:
        note(
            f"abstim: {given[0]} stands behind the program's name and is given to it; abstim's options stand before it"
        )


def _unmatched(only: str, result: ApplicationResult) -> int:
    """The exit code: 2 if kernels were launched and none has `only` in its name, which is said; else 0."""
    if not only or result.launches or not result.executed or result.interrupted:
        return 0
    note(f"abstim: no kernel that was launched has '{only}' in its name, so nothing was timed (--only)")
    return 2


def _stretch(text: str) -> tuple[int, int | None]:
    """`10:20`, `10:` or `:20`. Raises InputError."""
    first, separator, after = text.partition(":")
    if text and (not separator or not all(part.isdecimal() or not part for part in (first, after))):
        raise InputError(f"--launches {text}: expected two numbers with a colon between them, like 10:20")
    if after and int(after) < int(first or 0):
        raise InputError(f"--launches {text}: ends before it begins")
    return int(first or 0), int(after) if after else None


def _signal(number: int) -> str:
    import signal

    return f"signal {number}" + (f" ({signal.Signals(number).name})" if number in set(signal.Signals) else "")


def _status(result: ApplicationResult) -> int:
    """130 after an interrupt, 2 where something could not be done, else the program's own."""
    from functional.terminal import note

    if result.interrupted:
        return 130
    if result.status < 0:
        note(f"abstim: the program was ended by {_signal(-result.status)}")
    if result.problems:
        return 2
    return result.status if result.status >= 0 else 128 - result.status


@contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[Timed], None]]:
    """Says how many launches are timed; how many there will be the program alone knows."""
    done = itertools.count(1)
    with progress(quiet=quiet) as report:
        yield lambda timed: report("launches timed", next(done), None)


def _print(result: ApplicationResult, samples: Sequence[SampleResult] | None) -> None:
    from abstim.cli.sample import print_sample

    if samples is not None:
        for found in samples:
            print_sample(found)
        say(f"{result.executed:,} launches executed. They took no time in the program's own events.")
        return
    if not result.executed:
        say(f"{result.program} launched no kernel.")
    for k, gpu in enumerate(result.gpus if result.executed else ()):
        groups: dict[str, list[Timed]] = {}
        for timed in result.launches:
            groups.setdefault(timed.launch.program.name, []).append(timed)
        names = _names(list(groups))
        rows = [_row(names[kernel], [timed.results[k] for timed in found]) for kernel, found in groups.items()]
        title = f"{result.program} on {gpu}, {len(result.launches):,} of {result.executed:,} launches timed"
        print_table(title, ("kernel", "launches", "cycles", "time", "shortest", "longest", "IPC"), rows)
    busy = ", ".join(f"{engine} {duration(seconds)}" for engine, seconds in result.busy_seconds.items())
    if not result.interrupted:
        say(f"From start to end on {result.gpus[0]}: {duration(result.seconds)} ({busy or 'nothing'})")
    if result.kernels_waited_seconds:
        waited = duration(result.kernels_waited_seconds)
        say(f"Kernels run one at a time: {waited} of waiting for other streams' that a GPU may run side by side.")
    for gpu, known, missing in zip(result.gpus, result.known_errors, result.notes, strict=True):
        if missing:
            say(f"Note on {gpu}: {missing}")
        say(f"Error on {gpu}: {known}")
    if result.executed > len(result.launches) and not result.interrupted:
        print("Launches that were not timed count as no time, in events too.")


def _names(kernels: Sequence[str]) -> dict[str, str]:
    """What each is shown as; its whole name where two would look alike."""
    from functional.ptx.source import shown_name

    shown = [shown_name(kernel) for kernel in kernels]
    return {kernel: name if shown.count(name) == 1 else kernel for kernel, name in zip(kernels, shown, strict=True)}


def _row(name, launches):
    cycles, times = sum(x.cycles for x in launches), [x.seconds for x in launches]
    ipc = sum(x.thread_instructions for x in launches) / max(1, cycles)
    return (
        name,
        len(launches),
        cycles,
        duration(sum(times)),
        duration(min(times)),
        duration(max(times)),
        ipc,
    )
