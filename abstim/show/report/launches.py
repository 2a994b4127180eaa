"""The sections of `abstim run`, of several GPUs side by side, and of `abstim advise`."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from bokeh.models import ColumnDataSource, LinearAxis, Range1d

from abstim.brief import grouped
from abstim.session.issue_logs import source_text
from abstim.session.limits import dram_bytes
from abstim.session.result import SLOT_REASONS
from abstim.show.report import chart
from abstim.show.report.chart import COLORS, SLOT_COLORS, Chart, Listing, Section, SourceRow, Table, bars, figure
from abstim.show.tables import counted, duration, quantity
from functional.ptx.source import shown_name


class Roof(NamedTuple):
    """What a roofline counts: `work` of a launch, how many of it a second the GPU does at most, and its names."""

    work: Callable[[dict[str, Any]], int]
    peak: float
    unit: str
    rate_unit: str
    scale: float  # of `rate_unit`


def roofline_chart(gpu: dict[str, Any], launches: Sequence[dict[str, Any]]) -> Chart | None:
    """One point a launch and level of memory: the kind of floating-point operation that there is most of, or warp
    instructions; None if no launch went to L2, or the GPU's peaks are not known."""
    peaks = launches[0].get("peaks", {})
    if not gpu or gpu["perfect_memory"] or "dram_bytes" not in peaks:
        return None
    roof, levels = _roof(gpu, launches, peaks), {"L2": peaks["l2_bytes"], "DRAM": peaks["dram_bytes"]}
    rows = [row for launch in launches for row in _roofline_rows(launch, levels, roof)]
    if not rows:
        return None
    bounds = [f"{row['launch']} {row['share']:.0%} of its {row['level']} roof" for row in rows[:6]]
    summary = f"The GPU does at most {roof.peak / roof.scale:.4g} {roof.rate_unit}. " + "; ".join(bounds) + "."
    columns = f"launch | level | {roof.unit} a byte: {{intensity}} | {roof.rate_unit}: {{rate}} "
    table = Table.of(f"{columns}| share of its roof: {{share:.1%}}", rows)
    return Chart("Roofline", summary, _roofline_plot(rows, levels, roof), table)


def _roof(gpu: dict[str, Any], launches: Sequence[dict[str, Any]], peaks: dict[str, float]) -> Roof:
    done = Counter[str]()
    for launch in launches:
        done.update({kind: count for kind, count in launch["work"].items() if peaks.get(f"{kind}_flops")})
    if not done.total():
        most = gpu["sm_count"] * gpu["schedulers_per_sm"] * gpu["core_clock_hz"]
        return Roof(lambda launch: launch["warp_instructions"], most, "warp instructions", "G warp instructions/s", 1e9)
    ((kind, _),) = done.most_common(1)
    name = kind if kind == "tensor" else kind.upper()
    return Roof(lambda launch: launch["work"][kind], peaks[f"{kind}_flops"], "FLOP", f"{name} TFLOP/s", 1e12)


def _roofline_rows(launch: dict[str, Any], levels: Mapping[str, float], roof: Roof) -> Iterator[dict[str, Any]]:
    """A row for each level of memory that a launch moved something from or to."""
    memory, work = launch["memory"], roof.work(launch)
    moved = {"L2": memory["l2_bytes"], "DRAM": dram_bytes(memory) or 0}
    for level in (name for name in levels if moved[name] and work):
        intensity, rate = work / moved[level], work / launch["seconds"]
        name = f"{launch['launch']} {launch['label'] or launch['kernel']}"
        row = {"launch": name, "level": level, "intensity": intensity, "rate": rate / roof.scale}
        yield row | {"share": rate / min(roof.peak, intensity * levels[level])}


def _roofline_plot(rows: list[dict[str, Any]], levels: dict[str, float], roof: Roof) -> Any:
    tooltips = [("launch", "@launch"), (f"{roof.unit} a byte", "@intensity{0.000}"), (roof.rate_unit, "@rate{0.000}")]
    plot = figure(f"{roof.unit} a byte", roof.rate_unit, tooltips, x_axis_type="log", y_axis_type="log")
    peak, knees = roof.peak / roof.scale, [roof.peak / bytes_a_second for bytes_a_second in levels.values()]
    places = [row["intensity"] for row in rows] + knees
    low, high = min(places) / 4, max(places) * 4
    for (level, bytes_a_second), knee, color in zip(levels.items(), knees, COLORS, strict=False):
        heights = [low * bytes_a_second / roof.scale, peak, peak]
        plot.line([low, knee, high], heights, color=color, line_width=2, legend_label=level)
    return chart.dots(plot, rows, "intensity", "rate", "level", alpha=0.8)


SAVED = "cycles saved (%)"
SHOWN = 10  # bars; the table has all


def limits_chart(limits: Sequence[dict[str, Any]]) -> Chart | None:
    """`limits`: of `RunResult.to_json`, the greatest gain first; None if nobody asked for them."""
    if not limits:
        return None
    shown = [limit for limit in limits[:SHOWN] if limit["gain"] > 0]
    best = limits[0]
    summary = f"Twice {best['resource']} would save most: {best['gain']:.1%} of the cycles."
    plot = bars("resource", SAVED, {limit["resource"]: 100 * limit["gain"] for limit in shown})
    table = Table.of("resource | cycles | saved: {gain:+.2%}", limits)
    return Chart("Each resource twice as fast, alone", summary, plot, table)


def advice_section(advice: dict[str, Any]) -> Section:
    """Of `abstim advise`: findings, the most rewarding first, each with a sentence."""
    facts = [("Memory", advice["memory_model"]), ("Cycles", quantity(advice["cycles"]))]
    findings = advice["findings"]
    title = f"Advice on {advice['target']} on {advice['gpu']}"
    if not findings:
        return Section(title, facts, notes=["Nothing that abstim looks for would save 2 %."])
    plot = bars("change", SAVED, {finding["kind"]: 100 * finding["gain"] for finding in findings})
    summary = f"Most would be saved by {findings[0]['kind']}: {findings[0]['gain']:.1%} of the cycles."
    table = Table.of("change: {kind} | cycles without it: {cycles} | saved: {gain:.1%}", findings)
    notes = [f"{finding['kind']}: {finding['text']}." for finding in findings]
    return Section(title, facts, [Chart("What each change would save", summary, plot, table)], notes)


Spot = dict[str, Any]  # `HotSpot.to_json`
AROUND = 3  # lines shown before and after one that took time


def hot_listings(spots: Sequence[Spot]) -> list[Listing]:
    """One a source file, and one a kernel of the PTX; none without spots."""
    total = max(1, sum(spot["cycles"] for spot in spots))
    of_files = grouped([spot for spot in spots if spot["source"]], lambda spot: spot["source"]["file"])
    listings = [_of_source(file, own, total) for file, own in of_files.items()]
    for kernel, own in grouped(spots, lambda spot: spot["kernel"]).items():
        rows = [_row(spot["line"], spot["text"], [spot], total) for spot in own]
        listings.append(Listing(f"PTX of {kernel}", _summary(rows), rows))
    return listings


def _of_source(file: str, spots: Sequence[Spot], total: int) -> Listing:
    text = source_text(file)
    by_line = grouped(spots, lambda spot: spot["source"]["line"])
    near = sorted({k for line in by_line for k in range(line - AROUND, line + AROUND + 1) if 0 < k <= len(text)})
    rows = [_row(k, text[k - 1], by_line.get(k, []), total) for k in near or sorted(by_line) if text]
    rows = rows or [_row(k, "(the source is not here)", by_line[k], total) for k in sorted(by_line)]
    return Listing(Path(file).name, _summary(rows), rows)


def _row(line: int, text: str, spots: Sequence[Spot], total: int) -> SourceRow:
    share, stalls = sum(spot["cycles"] for spot in spots) / total, Counter[str]()
    for spot in spots:
        stalls.update(spot["stalls"])
    why = next((name.replace("_", " ") for name, cycles in stalls.most_common(1) if cycles), "")
    return SourceRow(line, share if share >= 0.0005 else 0.0, why, text)


def _summary(rows: Sequence[SourceRow]) -> str:
    best = max(rows, key=lambda row: row.share)
    return f"Share of the warps' cycles; most at line {best.line} with {best.share:.1%}."


SHOWN_LAUNCHES = 200  # a chart shows the longest ones; the totals hold all
CACHES = ("l1d", "const", "l1i", "l2")

Run = dict[str, Any]  # `RunResult.to_json`


def run_section(run: Run) -> Section:
    """One target on one GPU."""
    total = run["totals"]
    weighed = sum(launch["occupancy"] * launch["cycles"] for launch in run["launches"])
    facts = [
        ("Time", duration(total["seconds"])),
        ("Memory", run.get("memory_model", "not said")),
        ("Limited by", _limit(run)),
        ("Cycles", quantity(int(total["cycles"]))),
        ("Launches", quantity(len(run["launches"]))),
        ("Thread instructions", quantity(int(total["thread_instructions"]))),
        ("Thread instructions a cycle", quantity(float(total["ipc"]))),
        ("Occupancy", f"{weighed / max(1, sum(launch['cycles'] for launch in run['launches'])):.0%}"),
        ("Timed from", run.get("timed_code", "not said")),
        ("Known error", run.get("known_error", "not said")),
        ("By", f"abstim {run.get('version', 'of unknown version')}"),
    ]
    longest = sorted(_shown(run), key=lambda launch: -launch["cycles"])
    roofline = roofline_chart(run.get("gpu_values", {}), longest)
    charts = [_time_chart(run), limits_chart(run.get("limits", ())), _windows_chart(run), _balance_chart(run)]
    charts += [_cache_chart(run), roofline, _streams_chart(run.get("overlap"))]
    notes = []
    if len(run["launches"]) > SHOWN_LAUNCHES:
        notes.append(f"Charts by launch show the {SHOWN_LAUNCHES} longest of {counted(len(run['launches']))}.")
    title, drawn = f"{run['target']} on {run['gpu']}", [c for c in charts if c is not None]
    return Section(title, facts, drawn, notes, hot_listings(run.get("hot", ())))


def _streams_chart(overlap: dict[str, Any] | None) -> Chart | None:
    """A bar a launch from its start to its end, a line a stream."""
    if not overlap:
        return None
    shown = overlap["launches"][:SHOWN_LAUNCHES]
    data = {name: [x[name] for x in shown] for name in ("start_cycle", "end_cycle", "launch")}
    data |= {"kernel": [shown_name(x["kernel"]) for x in shown], "stream": [x["stream"] or "-" for x in shown]}
    tooltips = [("launch", "@launch @kernel"), ("cycles", "@start_cycle{0,0} to @end_cycle{0,0}")]
    plot = figure("cycle", "stream", tooltips, y_range=list(dict.fromkeys(data["stream"]))[::-1])
    style = {"color": COLORS[0], "fill_alpha": 0.6}
    plot.hbar("stream", left="start_cycle", right="end_cycle", height=0.6, source=ColumnDataSource(data), **style)
    serial = f"{quantity(overlap['serial_cycles'])} one after the other: {overlap['speed_up']:.2f}x"
    rows = list(zip(data["stream"], *(data[x] for x in ("launch", "kernel", "start_cycle", "end_cycle")), strict=True))
    summary = f"Side by side the launches take {quantity(overlap['cycles'])} cycles, {serial}."
    return Chart("Streams", summary, plot, Table(("stream", "launch", "kernel", "start", "end"), rows))


def _limit(run: Run) -> str:
    return f"{run['limit']} ({run['limit_basis']})" if run.get("limit") else "not said"


def comparison_section(runs: Sequence[Run]) -> Section:
    """One target on several GPUs: a chart of all, then a section each."""
    names = chart.unique([run["gpu"] for run in runs])
    plot = chart.stacked_bars("GPU", "cycles", names, _parts([run["launches"] for run in runs]), _COLORS, "cycles")
    first = runs[0]["totals"]["seconds"]
    rows = []
    for name, run in zip(names, runs, strict=True):
        cycles, seconds = int(run["totals"]["cycles"]), run["totals"]["seconds"]
        memory, faster = run.get("memory_model", "not said"), f"{first / seconds:.2f}x"
        rows.append((name, memory, cycles, duration(seconds), faster, _limit(run)))
    best = min(runs, key=lambda run: run["totals"]["seconds"])
    summary = f"The fastest of {len(runs)} is {best['gpu']} with {duration(best['totals']['seconds'])}."
    table = Table(("GPU", "memory", "cycles", "time", f"speed against {names[0]}", "limited by"), rows)
    cycles_chart = Chart("Cycles by GPU, and where the issue slots went", summary, plot, table)
    mixed = len({run.get("memory_model") for run in runs}) > 1
    notes = ["Not alike: with perfect memory nothing behind the first-level caches takes time."] if mixed else []
    title = f"{runs[0]['target']} on {len(runs)} GPUs"
    parts_of = [run_section(run).noted(run.get("note")) for run in runs]
    return Section(title, charts=[cycles_chart], notes=notes, parts=parts_of)


_WHOLE = "cycles"  # what they are when the model does not say where they went
_COLORS = {**SLOT_COLORS, _WHOLE: COLORS[0]}


def _parts(groups: Sequence[Sequence[dict[str, Any]]]) -> dict[str, list[float]]:
    """Of each group of launches the cycles that each reason accounts for: split as their issue slots are."""
    if not all(launch["issue_slots"] for launches in groups for launch in launches):
        return {_WHOLE: [sum(launch["cycles"] for launch in launches) for launches in groups]}
    slots = [(k, x["cycles"], x["issue_slots"]) for k, launches in enumerate(groups) for x in launches]
    found = {reason: [0.0] * len(groups) for reason in SLOT_REASONS}
    for (k, cycles, own), reason in product(slots, SLOT_REASONS):
        found[reason][k] += cycles * own[reason] / max(1, sum(own.values()))
    return found


def _shown(run: Run) -> list[dict[str, Any]]:
    launches = sorted(run["launches"], key=lambda launch: -launch["cycles"])[:SHOWN_LAUNCHES]
    return sorted(launches, key=lambda launch: launch["launch"])


def _time_chart(run: Run) -> Chart:
    launches = _shown(run)
    names = [f"{launch['launch']} {launch['label'] or shown_name(launch['kernel'])}" for launch in launches]
    parts = _parts([[launch] for launch in launches])
    plot = chart.stacked_bars("launch", "cycles", names, parts, _COLORS, "cycles")
    columns = "launch: {name} | grid | block | cycles | time: {seconds:time} | IPC: {ipc}"
    rows = [launch | {"name": name} for launch, name in zip(launches, names, strict=True)]
    if _WHOLE in parts:
        return Chart("Kernel time", "This model does not say where issue slots go.", plot, Table.of(columns, rows))
    columns += "".join(f" | {reason.replace('_', ' ')}: {{{reason}:.1%}}" for reason in SLOT_REASONS)
    rows = [row | {r: parts[r][k] / row["cycles"] for r in SLOT_REASONS} for k, row in enumerate(rows)]
    shares = {reason: cycles / run["totals"]["cycles"] for reason, (cycles,) in _parts([run["launches"]]).items()}
    stall = max((reason for reason in SLOT_REASONS if reason != "issued"), key=shares.__getitem__)
    lost = f"{shares['issued']:.0%} of the schedulers' cycles issued an instruction; "
    lost += f"the largest loss is {stall.replace('_', ' ')} with {shares[stall]:.0%}."
    return Chart("Kernel time, and where the issue slots went", lost, plot, Table.of(columns, rows))


def _windows_chart(run: Run) -> Chart | None:
    """Issue over time, launches one after the other; None without `windows` (`abstim.show.timeline.windows`)."""
    starts, rows, start = [], [], 0
    for launch in run["launches"]:
        windows = launch.get("windows") or {"window_cycles": 1, "warp_instructions": [], "resident_warp_cycles": []}
        width = windows["window_cycles"]
        pairs = zip(windows["warp_instructions"], windows["resident_warp_cycles"], strict=True)
        for k, (issued, resident) in enumerate(pairs):
            cycles = min(width, launch["cycles"] - k * width)
            rows.append((start + k * width, issued / cycles, resident / cycles))
        starts.append(start)
        start += launch["cycles"]
    if not rows:
        return None
    at, ipc, warps = ([*column] for column in zip(*rows, strict=True))
    plot = figure("cycle", "warp instructions a cycle", [("cycle", "@x{0,0}"), ("value", "@y{0.00}")])
    plot.step(at, ipc, mode="after", line_width=2, color=COLORS[0], legend_label="warp instructions")
    plot.extra_y_ranges = {"warps": Range1d(0, 1.05 * max(*warps, 1))}
    plot.add_layout(LinearAxis(y_range_name="warps", axis_label="resident warps, all SMs"), "right")
    chart.plain_numbers(plot)
    plot.step(at, warps, mode="after", y_range_name="warps", line_dash="dashed", color=COLORS[1], legend_label="warps")
    plot.y_range.start, plot.y_range.end = 0, 1.05 * max(*ipc, 0.01)  # else the axis is as long as that of the warps
    peak = max(range(len(ipc)), key=ipc.__getitem__)
    summary = f"Warp instructions a cycle, highest at cycle {at[peak]:,} with {ipc[peak]:.2f}; {counted(len(starts))}."
    table = Table(("from cycle", "warp instructions a cycle", "resident warps"), rows)
    return Chart("IPC over time", summary, chart.legend_outside(plot), table)


def _balance_chart(run: Run) -> Chart | None:
    launches = run["launches"]
    if not all(launch["issue_slots_per_sm"] for launch in launches):
        return None
    of_launches = [launch["issue_slots_per_sm"] for launch in launches]
    parts = {r: [sum(sm) for sm in zip(*(own[r] for own in of_launches), strict=True)] for r in SLOT_REASONS}
    count = len(parts["issued"])
    names = [str(sm) for sm in range(count)]
    plot = chart.stacked_bars("SM", "scheduler cycles", names, parts, SLOT_COLORS, "scheduler cycles")
    issued = parts["issued"]
    mean = sum(issued) / count
    summary = f"The busiest of {count} SMs issued {max(issued) / max(mean, 1):.2f} times the mean, the idlest "
    summary += f"{min(issued) / max(mean, 1):.2f} times."
    columns = ("SM", *(reason.replace("_", " ") for reason in SLOT_REASONS))
    return Chart("Balance of the SMs", summary, plot, Table(columns, list(zip(names, *parts.values(), strict=True))))


def _cache_chart(run: Run) -> Chart | None:
    rows = []
    for cache in CACHES:
        counters = (f"{cache}_accesses", f"{cache}_misses")
        accesses, misses = (sum(launch["caches"].get(name, 0) for launch in run["launches"]) for name in counters)
        if accesses:
            rows.append((cache.upper(), accesses, misses, 1 - misses / accesses))
    if not rows:
        return None
    parts = {"hits": [rate for *_, rate in rows], "misses": [1 - rate for *_, rate in rows]}
    colors = {"hits": SLOT_COLORS["issued"], "misses": SLOT_COLORS["memory"]}
    plot = chart.stacked_bars("cache", "share of accesses", [row[0] for row in rows], parts, colors, "share")
    summary = "Hit rates: " + ", ".join(f"{name} {rate:.1%}" for name, *_, rate in rows) + "."
    table = [(name, accesses, misses, f"{rate:.2%}") for name, accesses, misses, rate in rows]
    return Chart("Hit rates", summary, plot, Table(("cache", "accesses", "misses", "hit rate"), table))
