"""`abstim sample`: how long a target takes, from simulating a small part of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from abstim.cli.options import Json, Model, SizedLaunchOptions, TimedGpuOptions, expanded, given_options, refuse_options
from abstim.show.tables import duration, on_gpu, print_json, print_records, print_table, progress, quantity, say
from abstim.study.sample.methods import names_for_help
from functional.errors import InputError, refuse
from functional.keep.folder import check_output

if TYPE_CHECKING:
    from abstim.gpu.config import Gpu
    from abstim.study.sample.automatic import Aim
    from abstim.study.sample.sample_result import Comparison, SampleResult
    from functional.launches.case import Case
    from sampling import Estimate

_SELECTING = {"output", "traces"}  # options that have no effect without --select-only, and those that have none with it
_SIMULATING = {"error", "confidence", "control", "seed", "model", "inside", "warm_up", "compare", "partial_functional"}


_METHODS = (
    f"{names_for_help()}; with --compare repeatable. Default: auto (with another model or a profile stem), or all."
)


@dataclass(kw_only=True)
class SampleOptions:
    """Options of `abstim sample`.

    --error PERCENT  With auto: half of the interval to reach. Default: 2%.
    --confidence PERCENT  With auto: how often the interval is to hold. Default: 95%.
    --seed N  What is chosen at random, by methods that do. Default: 0.
    --control NAME  With auto: also fit to a quick estimate of every launch (analytic, occupancy, photon, pkp,
        tbpoint).
    --inside NAME  How each chosen launch is simulated: full, photon, pkp, pkp-cycles or tbpoint. Default: full.
    --warm-up N|all|perfect  Warm caches up before each launch that is simulated, with the accesses of the last N
        launches or of all; perfect: with --method full, simulate all in order. Default: flush them.
    --compare  Simulate everything too: errors and speed-ups side by side.
    --plot FILE  With --compare: draw error against speed-up (.svg, .png, .pdf).
    --partial-functional  Do not execute what is skipped, even where later launches read it: right only if values
        decide neither branches nor addresses.

    From and for other tools:
    --select-only  Write which launches to simulate to --output; simulate none.
    --output, -o DIR  Where to write.
    --profile CSV  Launches as Nsight Compute measured them (`ncu --csv`), in place of our own execution.
    --light-profile CSV  For two-level and stem: all launches from Nsight Systems (`nsys stats -r cuda_gpu_trace
        -f csv`).
    --traces  With --select-only: Accel-Sim's traces of the selected launches, too.
    --times CSV  TARGET is the selection.json of --select-only: the total from times measured elsewhere, in columns
        launch and cycles (or nanoseconds, microseconds, seconds), or `ncu --csv`."""

    method: Annotated[list[str], typer.Option(metavar="NAME", help=_METHODS)] = field(default_factory=list)
    error: str = ""
    confidence: str = ""
    control: str = ""
    seed: int | None = None
    model: Model = "detailed"
    inside: str = ""
    warm_up: str = ""
    compare: bool = False
    plot: Path | None = None
    partial_functional: bool = False
    select_only: bool = False
    output: Path | None = None
    profile: Path | None = None
    light_profile: Path | None = None
    traces: bool = False
    times: Path | None = None

    def check(self) -> None:
        """Raises InputError for options that have no effect together, or none but in company."""
        aimed, profiled = self.error or self.confidence or self.control, self.profile or self.light_profile
        wrong = {
            "several methods need --compare": len(self.method) > 1 and not self.compare,
            "--plot needs --compare": self.plot and not self.compare,
            "--compare makes its own profile; leave out --profile and --light-profile": self.compare and profiled,
            "--compare takes every method as it is; leave out --error, --confidence, --control and --seed":
                self.compare and (aimed or self.seed is not None),
        }  # fmt: skip
        for message, is_so in wrong.items():
            refuse(is_so, message)
        idle = sorted(given_options(self).keys() & (_SIMULATING if self.select_only else _SELECTING))
        refuse_options(f"{'with' if self.select_only else 'without'} --select-only", **dict.fromkeys(idle, True))


@expanded
def sample(
    target: str, gpu: TimedGpuOptions, launch: SizedLaunchOptions, options: SampleOptions, as_json: Json = False
) -> None:
    """Estimate a target's cycles from a sample: with a 95 % interval, the share simulated, and how each part was found.

    TARGET  A suite benchmark, a launches.json, or, to select only, a kernelslist.g.

    Examples:
    `abstim sample spmv_csr`
    `abstim sample resnet50 --error 1%`
    `abstim sample gaussian_elimination --method pks`
    `abstim sample resnet50 --model occupancy --gpu qv100`
    `abstim sample hotspot --compare --plot methods.svg`
    `abstim sample kernelslist.g --method pks --profile ncu.csv --select-only -o reduced`
    `abstim sample reduced/selection.json --times measured.csv`"""
    from abstim.study.sample.files import known_from, write_selection

    if options.times is not None:
        _refuse_beside("--times, which needs the selection alone", {"times"}, gpu, launch, options)
        return _say_estimate(target, options.times, as_json)
    options.check()
    known = known_from(options.profile, options.light_profile)
    with progress(quiet=as_json) as report:
        if options.select_only:
            _refuse_beside("--select-only", {"gpu", "overrides"}, gpu, launch)
            chosen = (options.method or ["pks"])[0]
            written = write_selection(target, gpu.load, chosen, known, options.output, report, options.traces)
            if as_json:
                return print_json({"kind": "selection"} | written)
            chosen = f"{written['selected']:,} of {written['launches']:,} launches"
            print(f"{written['method']}: {chosen}, {written['detailed_fraction']:.2%} of the instructions")
            return print("\n".join(written["files"]))
        found = _found(launch.of(target), gpu.load(), options, known, report)
    show: Callable[[Any], None] = print_json if as_json else _print_comparison if options.compare else print_sample
    show(found.to_json() if as_json else found)


def _refuse_beside(option: str, but: set[str], *groups: Any) -> None:
    """Raises InputError for options given, but some, that do nothing beside another one."""
    others = sorted({name for group in groups for name in given_options(group)} - but)
    refuse_options(f"with {option}", **dict.fromkeys(others, True))


def _found(opened: Callable[[], Case], point: Gpu, o: SampleOptions, known: Any, report: Any) -> Any:
    from abstim.study.sample import sampler as library
    from abstim.study.sample.sample_result import PICTURES, draw

    common: dict[str, Any] = {name: getattr(o, name) for name in ("model", "inside", "warm_up")}
    common |= {"partial": o.partial_functional, "progress": report}
    if not o.compare:
        common["seed"] = o.seed
        aim, method = aim_of(o.error, o.confidence, o.control), (o.method or [""])[0]
        return library.sample(opened, point, method, known=known, aim=aim, **common)
    if o.plot is not None:
        o.plot.parent.mkdir(parents=True, exist_ok=True)
        check_output(o.plot, *PICTURES)
    found = library.compare(opened, point, o.method, **common)
    if o.plot is not None:
        draw(found, o.plot)
    return found


def aim_of(error: str, confidence: str, control: str = "") -> Aim | None:
    """Raises InputError for what is no percentage, or none to aim at."""
    from abstim.study.sample.automatic import Aim

    given = {"error": error, "confidence": confidence}
    shares: dict[str, Any] = {name: _share(name, text) for name, text in given.items() if text}
    return Aim(control=control, **shares) if shares or control else None


def _share(name: str, text: str) -> float:
    try:
        return float(text.removesuffix("%")) / 100.0
    except ValueError:
        raise InputError(f"--{name} {text}: give a percentage, as in 2%") from None


def _say_estimate(selection: str, times: Path, as_json: bool) -> None:
    from abstim.study.sample.files import estimate_from

    found = estimate_from(selection, times)
    if as_json:
        return print_json(found.to_json())
    estimate = found.estimate
    rows = [(found.unit, quantity(estimate.total)), *_interval(estimate)]
    rows += [("timed", f"{found.selected:,} of {found.launches:,} launches")]
    rows += [("", f"{estimate.detailed_fraction:.2%} of the instructions")]
    print_table(f"{found.target}, {found.method}, timed elsewhere", ("", ""), rows, left=2)


def print_sample(result: SampleResult) -> None:
    """An estimate as tables: the interval, what it rests on, and how each part was found."""
    estimate = result.estimate
    unknown = "" if estimate.bounded else "; no bound on its error"
    rows = [("cycles", f"{quantity(round(estimate.total))}{unknown}"), *_interval(estimate)]
    ideal = "; ideal: choosing them needs the full simulation" if estimate.ideal else ""
    rows += [("simulated in detail", f"{estimate.detailed_fraction:.2%} of the instructions{ideal}")]
    rows += [("executed", f"{estimate.functional_fraction:.2%}")]
    if result.memory:
        rates = [(name, result.memory.get(f"{name.lower()}_hit_rate")) for name in ("L1D", "L2")]
        known = [f"{name} {rate:.1%}" for name, rate in rates if rate is not None]
        rows += [("projected hit rates", ", ".join(known) or "none"), ("DRAM use", f"{result.memory['dram_use']:.0%}")]
    rows += [("this took", ", ".join(f"{stage} {duration(s)}" for stage, s in result.seconds.items() if s))]
    if result.earlier_seconds:
        rows += [("of it, earlier runs", f"{duration(result.earlier_seconds)}: what they simulated was kept")]
    print_table(f"{result.target} on {on_gpu(result)}, {result.method}", ("", ""), rows, left=2)
    say(f"Timed by the {result.model} model, whose error on this GPU comes on top: {result.known_error}")
    if result.assumes:
        say(f"{result.method} assumes that {result.assumes}")
    for note in result.notes:
        say(f"note: {note}")
    from abstim.study.sample.sample_result import by_way

    whole: dict[str, Any] = {"cycles": lambda x: round(x.cycles), "instructions": lambda x: round(x.instructions)}
    if len(result.kernels) > 1:
        print_records("By kernel", "kernel | launches | cycles | share: {share:.1%}", result.kernels, **whole)
    ways = by_way((part.how, part.units, part.instructions, part.cycles) for part in estimate.parts)
    print_records("How its parts were found", "how | parts | instructions | cycles", ways, **whole)


def _interval(estimate: Estimate) -> list[tuple[str, str]]:
    if not estimate.bounded:
        return [("interval", "none: this method's errors have no bound")]
    ends = f"{quantity(round(estimate.low))} to {quantity(round(estimate.high))}"
    said = f"{ends}, +-{estimate.relative_half_width:.2%}"
    return [(f"{100 * estimate.confidence:.4g} % interval", said), ("which rests on", _BASIS[estimate.basis])]


_BASIS = {
    "exact": "nothing: everything was simulated",
    "sampled": "the spread of the sample",
    "model": "the method's own assumption; one sample has no spread",
}


_ROWS = (
    "method | cycles | error: {error:.2%} | in interval: {inside} | detailed: {detailed_fraction:.2%} "
    "| executed: {functional_fraction:.1%} | took: {seconds:time} | faster: {speed_up:.3g}x "
    "| timing: {timing_speed_up:.3g}x"
)


def _print_comparison(found: Comparison) -> None:
    title = f"{found.full.target} on {on_gpu(found.full)}, {len(found.cycles)} launches"
    print_records(
        title, _ROWS, found.rows(), cycles=lambda row: round(row.cycles),
        inside=lambda row: "no bound" if row.half_width is None else "yes" if row.covered else "no",
    )  # fmt: skip
    for note in found.full.notes:
        say(f"note: {note}")
