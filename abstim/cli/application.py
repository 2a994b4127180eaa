"""`abstim app`: a whole CUDA program, as it is."""

from __future__ import annotations

import itertools
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from signal import Signals
from typing import TYPE_CHECKING, Any

import typer

from abstim.brief import grouped
from abstim.cli.options import GpuNames, GpusOptions, InstructionBudget, Json, Model, expanded, flags_of, refuse_options
from abstim.cli.run_tables import print_notes, print_overlap
from abstim.cli.sample import print_sample
from abstim.show.tables import duration, print_json, print_table, progress, say
from functional.errors import InputError, note, refuse
from functional.ptx.source import shown_name

if TYPE_CHECKING:
    from abstim.application.run_application import ApplicationResult
    from abstim.study.sample.sample_result import SampleResult


@dataclass(kw_only=True)
class ProgramGpus(GpusOptions):
    """Those of `abstim run`; one that today's programs have PTX for, if none is given."""

    gpu: GpuNames = field(default_factory=lambda: ["rtx3070"])


@dataclass(kw_only=True)
class ProgramOptions:
    """What `abstim app` is asked for.

    --only KERNEL  Time kernels with this in their name alone.
    --launches 10:20  Time launches 10 to 19 alone, numbered from 0.
    --record DIR  Also keep the traces of these launches, for `abstim run` and `abstim sample`.
    --sample METHOD  Execute everything, time only what this method of `abstim sample` chooses: pks, stem, ...
    --flush all|data|l1|l1d|none  Caches emptied before each launch. Default: none, as on a GPU (by models that keep
        none: all).
    --serial  Kernels one at a time, whatever their streams allow.
    --pass-options  The program's own options may look like abstim's."""

    only: str = ""
    launches: str = ""
    record: Path | None = None
    sample: str = ""
    flush: str = ""
    serial: bool = False
    pass_options: bool = False
    instruction_budget: InstructionBudget = None
    model: Model = "detailed"

    def of_run(self, output: int | None) -> dict[str, Any]:
        """As `run_application` takes them. Raises InputError for a stretch of launches that is none."""
        from abstim.application.launch_recorder import Selection

        said = {name: getattr(self, name) for name in ("model", "flush", "instruction_budget", "serial", "record")}
        return said | {"selection": Selection(self.only, *_stretch(self.launches)), "output": output}


@expanded
def app(*, command: list[str], gpu: ProgramGpus, options: ProgramOptions, as_json: Json = False) -> None:
    """Run a CUDA program without a GPU: its kernels are executed and timed, its own output is its own.

    PROGRAM [ARGUMENTS]  The program, with PTX in it.

    Its events read simulated times. Options for abstim stand before the program's name.

    Examples:
    `abstim app ./vector_add`
    `abstim app --gpu rtx3070 --gpu a100 ./reduce --n=100000`
    `abstim app --only gemm --launches 10:20 ./train 3`
    `abstim app --sample pks ./train 3`
    `abstim app --record traces ./train 3`, then `abstim sample traces/module-1`"""
    from abstim.application.run_application import run_application

    refuse_options("with --sample, but all", flush=options.sample and options.flush not in ("", "all"))
    ours = set() if options.pass_options else flags_of(ProgramGpus, ProgramOptions) | {"--json"}
    if behind := [word for word in command[1:] if word.partition("=")[0] in ours]:
        raise InputError(
            f"{behind[0]} stands behind the program's name; abstim's options stand before it. If it is the program's "
            "own: --pass-options before the program's name"
        )
    gpus, given = gpu.load(), options.of_run(sys.stderr.fileno() if as_json else None)
    sys.stdout.flush()
    if options.sample:
        from abstim.study.sample.sampler import sample_application

        result, samples = sample_application(command, gpus, options.sample, **given)
    else:
        done = itertools.count()  # how many launches there will be the program alone knows
        with progress(quiet=as_json) as report:
            (tell := lambda _=None: report("launches timed", next(done), None))()  # the first may take long
            given["told"] = tell
            result, samples = run_application(command, gpus, **given), None
    print_notes([timed.results[0] for timed in result.launches])
    if as_json:
        print_json(result.to_json() | ({} if samples is None else {"samples": [s.to_json() for s in samples]}))
    else:
        _print(result, samples)
        if result.executed and _reads_host_clock(command[0]):
            say("What the program measures by the host's clock, if it does, is this computer's time, not the GPU's.")
    chosen = {"--only": options.only, "--launches": options.launches}
    raise typer.Exit(_status(result, "" if samples else " ".join(f"{k} {v}" for k, v in chosen.items() if v)))


_CHRONO = b"_ZNSt6chrono3_V21%b_clock3nowEv"
_CLOCKS = (b"clock_gettime", b"gettimeofday", b"omp_get_wtime", _CHRONO % b"2system", _CHRONO % b"2steady")
_MOST_BYTES = 1 << 28  # of a program that are looked through


def _reads_host_clock(program: str) -> bool:
    """May a program ask for the time of this computer? One that holds CUDA's runtime may always, as that does. Of an
    interpreter nobody knows."""
    from mmap import ACCESS_READ, mmap

    found = Path(shutil.which(program) or "")
    if not found.is_file() or found.name.startswith(("python", "sh", "bash")) or found.stat().st_size > _MOST_BYTES:
        return False
    with found.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
        return any(content.find(b"\0" + name + b"\0") >= 0 for name in _CLOCKS)


def _stretch(text: str) -> tuple[int, int | None]:
    """`10:20`, `10:` or `:20`. Raises InputError."""
    first, separator, after = text.partition(":")
    if text and (not separator or not all(part.isdecimal() or not part for part in (first, after))):
        raise InputError(f"--launches {text}: expected two numbers with a colon between them, like 10:20")
    refuse(after and int(after) < int(first or 0), f"--launches {text}: ends before it begins")
    return int(first or 0), int(after) if after else None


def _status(result: ApplicationResult, chosen: str) -> int:
    """130 after an interrupt, 2 where something could not be done, else the program's own, or 2 if kernels were
    launched and none is one of the `chosen`, which is said."""
    if result.interrupted:
        return 130
    unmatched = bool(chosen and result.executed and not result.launches)
    if unmatched:
        note(f"abstim: none of {result.executed:,} launches is one of {chosen}, so nothing was timed")
    if (number := -result.status) > 0:
        name = f" ({Signals(number).name})" if number in set(Signals) else ""
        note(f"abstim: the program was ended by signal {number}{name}")
    if result.problems or (unmatched and not result.status):
        return 2
    return result.status if result.status >= 0 else 128 - result.status


def _print(result: ApplicationResult, samples: Sequence[SampleResult] | None) -> None:
    if samples is not None:
        for found in samples:
            print_sample(found)
        say(f"{result.executed:,} launches executed. They took no time in the program's own events.")
        return
    if not result.executed:
        say(f"{result.program} launched no kernel.")
    groups = grouped(result.launches, lambda timed: timed.launch.program.name)
    names = _names(list(groups))
    for k, gpu in enumerate(result.gpus if result.executed else ()):
        rows = [_row(names[kernel], [timed.results[k] for timed in found]) for kernel, found in groups.items()]
        title = f"{result.program} on {gpu}, {len(result.launches):,} of {result.executed:,} launches timed"
        print_table(title, ("kernel", "launches", "cycles", "time", "shortest", "longest", "IPC"), rows)
    if result.overlap:
        hz = result.overlap.cycles / result.seconds
        print_overlap(result.overlap, "time from the program's start", lambda cycles: duration(cycles / hz))
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
    shown = [shown_name(kernel) for kernel in kernels]
    return {kernel: name if shown.count(name) == 1 else kernel for kernel, name in zip(kernels, shown, strict=True)}


def _row(name, launches):
    cycles, times = sum(x.cycles for x in launches), [x.seconds for x in launches]
    ipc = sum(x.thread_instructions for x in launches) / max(1, cycles)
    return (name, len(launches), cycles, *(duration(of(times)) for of in (sum, min, max)), ipc)
