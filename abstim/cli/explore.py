"""`abstim explore`: targets on many design points of a GPU."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from abstim.cli.options import Json, LaunchOptions, Model, TimedGpuOptions, expanded, refuse_options
from abstim.cli.sample import aim_of
from abstim.extras import need
from abstim.show import tables
from abstim.show.tables import duration, known, on_gpu, print_json, print_records, print_table, progress, quantity, say
from functional.errors import InputError, note, refuse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from abstim.gpu.config import Gpu
    from abstim.study.explore import Exploration
    from abstim.study.explore.sweep import Sweep


@dataclass(kw_only=True)
class ExploreOptions:
    """Options of `abstim explore`.

    Which points:
    --vary KEY=VALUES  A key of `--set`, or l2_kib, dram_gbps, ..., and its values: `8,16,32`, `8:144:8`
        (first:last:step), `512:8192:log2`, `0.5:2:7#` (seven numbers); repeatable.
    --define NAME=EXPRESSION  A column of your own, such as a cost: `area=sm_count*(4+l1d_kib/16)`; repeatable.
    --constraint EXPRESSION  Only points that keep it: `area < 200`; repeatable.
    --strategy grid|random|latin|multi-fidelity  All points, a sample, a Latin hypercube, or the best by quicker
        models alone.
    --points COUNT  Points to time, with any strategy but grid.
    --seed NUMBER  Of random and latin.

    With a stated error:
    --error PERCENT  Time some points and learn the others from them, each with an interval, until 95 % of the points
        are within this error; the best points are timed in any case.
    --sample auto  Besides, time only launches that are chosen once. Default of --error here: 2%.
    --confidence PERCENT  How often the intervals are to hold. Default: 95%.

    --objective EXPRESSION  What to minimise: `time`, `area`, `time*area`, ...; several give a Pareto front. Else the
        time.
    -o, --output FILE  The whole table: .parquet, .csv or .json.
    --plot FILE.html  Also draw the Pareto front, heat maps, parallel coordinates and what matters.

    How:
    --cluster tcp://HOST:PORT  Time on the workers of this dask scheduler."""

    vary: list[str]
    define: list[str] | None = None
    constraint: list[str] | None = None
    model: Model = "detailed"
    strategy: str = "grid"
    points: int | None = None
    seed: int = 0
    sample: str = ""
    error: str = ""
    confidence: str = ""
    objective: list[str] | None = None
    output: Path | None = None
    plot: Path | None = None
    top: Annotated[int, typer.Option(metavar="COUNT", min=1, help="Rows to print.")] = 10
    cluster: str = ""

    def sweep(self, base: Gpu) -> Sweep:
        """Raises InputError for options that have no effect, or contradict each other."""
        from abstim.study.explore import sweep_of
        from abstim.study.explore.points import DERIVED, key_of
        from abstim.study.explore.result import check_format
        from abstim.study.sample.automatic import Aim

        on_grid = self.strategy == "grid"
        refuse_options("with --strategy grid", points=on_grid and self.points, seed=on_grid and self.seed)
        if self.output is not None:
            check_format(self.output)
        if self.plot is not None:
            from abstim.show.report.page import check_page

            check_page(self.plot)
        if self.cluster:
            need("distributed")
        space = (self.vary, self.define or (), self.constraint or (), self.objective or ())
        how: dict[str, Any] = {name: getattr(self, name) for name in ("strategy", "seed", "cluster", "model", "top")}
        if not (self.sample or self.error):
            refuse_options("without --error or --sample auto", confidence=self.confidence)
        alone = "a sweep is sampled by auto alone, which aims at an error"
        refuse(self.sample not in ("", "auto"), f"--sample {self.sample}: {alone}")
        aim = (aim_of(self.error, self.confidence) or Aim()) if self.sample or self.error else None
        found = sweep_of(base, *space, count=self.points, aim=aim, sample=bool(self.sample), **how)
        found.space.refuse_idle()
        for text in self.vary:  # which replaces the key's value at every point
            key = key_of(text.partition("=")[0])
            source = base.settings[DERIVED[key].base if key in DERIVED else key].source
            refuse(source.startswith("--set"), f"{source}: no effect beside --vary {text}")
        return found


@expanded
def explore(
    *, targets: list[str], options: ExploreOptions, gpu: TimedGpuOptions, launch: LaunchOptions, as_json: Json = False
) -> None:
    """Time targets on many design points of a GPU: best points, Pareto front, what matters how much.

    TARGET...  Suite benchmarks (`abstim suite`) or launches.json files; means are geometric.

    Results are kept as they come: killed or interrupted, the same command goes on where it was. The guide is
    `docs/explore.md`.

    Examples:
    `abstim explore hotspot --vary sm_count=8:64:8 --vary schedulers_per_sm=1,2,4 -o results.parquet`
    `abstim explore hotspot nn_euclid --vary sm_count=8:64:8 --vary l1d_kib=8:64:log2 --define
    "area=sm_count*(4+l1d_kib/16)" --objective area --objective time`
    `abstim explore hotspot --vary sm_count=4:32:4 --vary scheduler=gto,lrr --vary dram_gbps=60:240:20 --error 3%`
    `abstim explore resnet50 --vary sm_count=8:64:8 --sample auto --error 3%`"""
    from abstim.study.explore import explore as run

    sweep = options.sweep(gpu.load())
    opened = [launch.of(target) for target in targets]
    with progress(quiet=as_json, shorter="" if options.error or options.sample else "--error 3%") as report:
        found = run(opened, sweep, progress=report)
    if options.output is not None:
        found.save(options.output)
    if options.plot is not None and found.timed.any():
        from abstim.show.report.page import write_sweep

        about = {"sensitivity": [asdict(one) for one in found.sensitivity], "note": found.note}
        write_sweep(found.columns(), about, ", ".join(found.targets), options.plot)
    print_json(found.to_json()) if as_json else _print(found, options.top, options.output, options.plot)
    if not found.timed.any():
        first = next((f"; the first: {reason}" for reason in found.reasons if reason), "")
        raise InputError(f"none of {len(found.reasons)} points could be timed{first}")


def _print(found: Exploration, top: int, output: Path | None, plot: Path | None) -> None:
    if found.timed.any():
        _print_points(found, top)
        _print_sensitivity(found)
        failed = [reason for reason in found.reasons if reason]
        for reason in failed[:1]:
            note(f"abstim: {len(failed)} of {len(found.reasons)} points could not be timed; the first: {reason}")
        _print_work(found)
    if found.note:
        say(f"Note: {found.note}")
    if output is not None:
        print(f"Table: {output}")
    if plot is not None and found.timed.any():
        print(f"Charts: {plot}")


def _print_points(found: Exploration, top: int) -> None:
    best = found.best()
    several = len(found.objectives) > 1
    rows = _spread(best, top) if several else best[:top]
    texts = ", ".join(objective.text for objective in found.objectives)
    columns = _shown_columns(found, rows)
    cells = list(zip(*columns.values(), strict=True))
    kind = "Pareto front" if several else "Best points"
    print_table(f"{kind} of {on_gpu(found)}", list(columns), cells, left=0)
    order = f"on the front by {texts}" if several else f"ordered by {texts}"
    equal = " (of equal ones the first)" if several or len(best) < found.timed.sum() else ""
    timed = not several and set(columns.get("found", ())) == {"detailed"}
    beside = "; no other is estimated to be better" if timed else ""
    say(f"{len(rows):,} of {tables.counted(len(best), 'point', 'points')} {order}{equal}{beside}")
    if len(found.targets) > 1:
        say(f"Cycles and time are geometric means of {', '.join(found.targets)}")
    if found.candidates > len(found.points):
        print(f"{len(found.points):,} points timed of {found.candidates:,} screened")


def _spread(rows: Any, top: int) -> Any:
    """At most `top` rows in even spacing, the first and the last among them."""
    last = len(rows) - 1
    return rows if last < top else [rows[round(k * last / max(1, top - 1))] for k in range(top)]


def _shown_columns(found: Exploration, rows: Any) -> dict[str, Sequence[Any]]:
    """Of some rows varied keys, defined names, and the time; keys that derived ones stand for are in the file only."""
    table = found.table(rows)
    names = [axis.key for axis in found.points.space.axes] + list(found.points.space.defines)
    shown: dict[str, Sequence[Any]] = {name: table[name] for name in names}
    shown |= {o.text: table[o.text] for o in found.objectives if o.text in table and o.text != "seconds"}
    shown["cycles"] = table["cycles"]
    shown["time"] = ["-" if value is None else duration(value) for value in table["seconds"]]
    if found.sampled is not None:
        shown["+-"] = [known(value, ".2%") for value in table["cycles_half_width"]]
        pairs = zip(table["speed_up"], table["speed_up_half_width"], strict=True)
        shown["speed-up"] = ["-" if up is None else f"{up:.3f} +- {half:.3f}" for up, half in pairs]
        shown["found"] = table["found"]
    return shown


def _print_sensitivity(found: Exploration) -> None:
    if found.sensitivity:
        rows = sorted(found.sensitivity, key=lambda one: -one.swing)
        columns = "key | time for +1 % of it: {percent} | worst / best value: {swing:.2f}x | best"
        # no minus before a zero
        percent: Any = lambda x: "-" if x.elasticity is None else f"{round(x.elasticity, 2) + 0.0:+.2f} %"  # noqa: E731
        print_records("What matters", columns, rows, percent=percent, best=lambda one: quantity(one.best).lower())
    flat = [one.key for one in found.sensitivity if one.swing == 1]
    if flat:
        say(f"No effect: {', '.join(flat)}")


def _print_work(found: Exploration) -> None:
    work = found.work
    for name, points in zip(found.sampled.names, found.sampled.found, strict=True) if found.sampled else ():
        of_points = f"{points.read.timed.sum():,} of {len(points.read.timed):,} points timed"
        why = f" ({points.read.left})" if points.read.left else ""
        say(f"{name}: {of_points}{why}, as much work as timing it {points.work:.3g} times")
    jobs = tables.counted(work.jobs, "different launch", "different launches")
    how = f"{jobs}, {work.known:,} of them known before" if work.jobs else "by the formula"
    say(f"{tables.counted(work.points, 'point', 'points')}: {how}")
    seconds = max(work.seconds, 1e-9)
    if found.sampled is not None:  # what was not executed has no number of instructions
        print(f"Timing took {duration(work.seconds)}")
        return
    rates = (work.represented_thread_instructions, work.stepped_thread_instructions)
    represented, stepped = (quantity(count / seconds / 1e6) for count in rates)
    walked = f", {stepped} stepped" if work.jobs else ""
    say(f"This took {duration(work.seconds)}; M thread instructions/s: {represented} represented{walked}")
