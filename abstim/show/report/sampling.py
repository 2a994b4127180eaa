"""The sections of `abstim sample`, with `--compare` and without, and of `abstim coldstart`: one target, sampled by one
method or by several, and what empty caches cost its launches."""

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from bokeh.models import BasicTicker, ColorBar, ColumnDataSource, LinearColorMapper, NumeralTickFormatter, Span
from bokeh.palettes import Viridis256

from abstim.show.report import chart
from abstim.show.report.chart import COLORS, Chart, Option, Section, Table, bars, figure, hover_on, legend_outside
from abstim.show.tables import counted, duration, quantity
from abstim.study.sample.sample_result import OTHER_WAYS, by_way

# What an error counts at least: a logarithmic axis has no zero, and a single one would make a geometric mean 0
LEAST_ERROR = 1e-4
LEAST_PERCENT = 100 * LEAST_ERROR
AXIS = "error (%)"
TOOLTIPS = (("", "@label"), ("error", "@percent{0.00[00]}%"), ("true cycles in its interval", "@inside"))
LEGEND = f"Hollow points: the true cycles are outside the interval. Triangles: an error of {LEAST_PERCENT:g}% or less."


class ErrorPoint(NamedTuple):
    """An error (of 1) at a place of the horizontal axis; `covered`: the interval holds the true value."""

    label: str
    x: Any
    error: float
    covered: bool


def error_points(plot: Any, points: Iterable[ErrorPoint], color: str = COLORS[0], **options: Any) -> Any:
    """Draw them; those without a finite place are left out. The renderer."""
    drawn = [point for point in points if not isinstance(point.x, float) or math.isfinite(point.x)]
    data: dict[str, Sequence[Any]] = {
        "label": [point.label for point in drawn],
        "x": [point.x for point in drawn],
        "y": [max(100 * point.error, LEAST_PERCENT) for point in drawn],
        "percent": [100 * point.error for point in drawn],
        "inside": ["yes" if point.covered else "no" for point in drawn],
        "fill": [0.75 if point.covered else 0.0 for point in drawn],
        "marker": ["circle" if point.error > LEAST_ERROR else "inverted_triangle" for point in drawn],
    }
    style = {"marker": "marker", "size": 9, "color": color, "fill_alpha": "fill", "line_width": 2}
    return plot.scatter("x", "y", source=data, **style, **options)


Sample = dict[str, Any]  # `SampleResult.to_json`

KINDS = {"in detail": COLORS[2], "projected": COLORS[1], "either": COLORS[6]}  # of parts
SHOWN_PARTS = 24  # more are put together by how they were found
SHOWN_KERNELS = 8  # that contribute most
SHOWN_STEPPED = 6  # launches whose history is drawn: those stepped longest


def sampling_section(data: Sample) -> Section:
    """One target sampled by one method."""
    estimate, truth = data["estimate"], data.get("true_cycles")
    ends = "no bound" if estimate["high"] is None else f"{estimate['low']:,.0f} to {estimate['high']:,.0f}"
    facts = [
        ("Method", data["method"]),
        ("Memory", data.get("memory_model", "not said")),
        ("Cycles", f"{estimate['total']:,.0f}"),
        (f"{estimate['confidence']:.0%} interval ({estimate['basis']})", ends),
        ("Simulated in detail", f"{estimate['detailed_fraction']:.1%} of the warp instructions"),
        ("Executed at all", f"{estimate['functional_fraction']:.1%} of the warp instructions"),
        ("Took", ", ".join(f"{stage} {duration(s)}" for stage, s in data["seconds"].items() if s) or "nothing"),
    ]
    if len(kernels := data.get("kernels", [])) > 1:
        shares = [f"{k['kernel']} {k['share']:.1%}" for k in kernels[:SHOWN_KERNELS]]
        facts.append(("Cycles by kernel", ", ".join(shares)))
    if truth:
        facts.append(("Error", f"{estimate['total'] / truth - 1:+.2%} of {quantity(truth)} cycles"))
    charts = [_parts_chart(estimate["parts"]), _steadiness_chart(data["stability"])]
    title = f"{data['target']} on {data['gpu']}, sampled"
    notes = ["Ideal: choosing what to simulate took the full simulation."] if estimate["ideal"] else []
    return Section(title, facts, [chart for chart in charts if chart is not None], [*notes, *data.get("notes", [])])


def _parts_chart(parts: list[dict[str, Any]]) -> Chart | None:
    """A bar a part, or a way to find parts if they are many."""
    if not parts:
        return None
    ways = by_way((part["how"], part.get("units", 1), part["instructions"], part["cycles"]) for part in parts)
    if len(parts) <= SHOWN_PARTS:
        table = Table.of("part: {name} | how | warp instructions: {instructions} | cycles", parts)
        bars = [(f"{part['name']}: {part['how']}", part["how"], part["cycles"]) for part in parts]
    else:
        table = Table.of("how | parts | warp instructions: {instructions} | cycles", ways)
        bars = [(f"{way.how} ({counted(way.parts, 'part', 'parts')})", way.how, way.cycles) for way in ways]
    cycles = sum(part["cycles"] for part in parts) or 1.0
    shares = ", ".join(f"{way.how} {way.cycles / cycles:.1%}" for way in ways[:4])
    more = f", and {len(ways) - 4} ways more" if len(ways) > 4 else ""
    summary = f"Cycles of {counted(len(parts), 'part', 'parts')} by how they were found: {shares}{more}."
    return Chart("How its parts were found", summary, _bars(bars), table)


def _was(how: str) -> str:
    """Of KINDS; nothing is projected of "3 of 3 launches"."""
    if how.endswith(OTHER_WAYS):
        return "either"
    return "in detail" if how == "detailed" or re.match(r"([\d,]+) of \1 ", how) else "projected"


def _bars(bars: list[tuple[str, str, float]]) -> Any:
    """Horizontal ones, whose names may be long: (name, how, cycles)."""
    names = chart.unique([name for name, *_ in bars])
    plot = figure("cycles", "", [("", "@name"), ("cycles", "@cycles{0,0}")], y_range=names[::-1])
    for kind, color in KINDS.items():
        own = [k for k, (_, how, _) in enumerate(bars) if _was(how) == kind]
        data = {"name": [names[k] for k in own], "cycles": [bars[k][2] for k in own]}
        if own:
            plot.hbar("name", 0.7, "cycles", source=data, color=color, legend_label=kind, line_color=None)
    plot.x_range.start = 0
    plot.xaxis.formatter = NumeralTickFormatter(format="0,0")
    return legend_outside(plot)


def _steadiness_chart(stability: dict[str, list[tuple[float, float]]]) -> Chart | None:
    """Of each stepped launch, instructions a cycle until its detailed simulation ended."""
    longest = sorted(stability.items(), key=lambda item: -item[1][-1][0])[:SHOWN_STEPPED]
    if not longest:
        return None
    tooltips = [("launch", "$name"), ("cycle", "@x{0,0}"), ("a cycle", "@y{0.00}")]
    plot = figure("cycle of the launch", "warp instructions a cycle", tooltips)
    for k, (name, history) in enumerate(longest):
        cycles, rates = ([*column] for column in zip(*history, strict=True))
        style: dict[str, Any] = {"name": name, "legend_label": name, "color": COLORS[k]}
        plot.step(cycles, rates, mode="before", line_width=2, **style)
        plot.scatter(cycles[-1:], rates[-1:], size=9, marker="square", **style)
        line: dict[str, Any] = {"line_color": COLORS[k], "line_dash": "dashed", "line_alpha": 0.7}
        plot.add_layout(Span(location=cycles[-1], dimension="height", **line))
    plot.y_range.start, plot.x_range.start = 0, 0
    name, history = longest[0]
    summary = f"Detailed simulation of {name} ended at cycle {history[-1][0]:,.0f}, with {history[-1][1]:.2f} warp "
    summary += "instructions a cycle: a square and a dashed line."
    if len(stability) > len(longest):
        summary += f" The {len(longest)} launches stepped longest, of {len(stability)}."
    table = [(name, cycle, rate) for name, history in longest for cycle, rate in history]
    columns = ("launch", "to cycle", "warp instructions a cycle")
    return Chart("Steadiness of what was simulated", summary, legend_outside(plot), Table(columns, table))


Comparison = dict[str, Any]  # `abstim.study.sample.Comparison.to_json`

WHOLE = 0.999  # a method that simulates more than this in detail has sampled nothing
SPEED_UPS = {
    "the timing stage": "timing_speed_up",
    "the whole way": "speed_up",
    "instructions in detail": "instruction_speed_up",
}
STAGE_COLORS = {"execute": COLORS[2], "time": COLORS[0], "analyse": COLORS[1]}


def comparison_of_methods_section(data: Comparison) -> Section:
    """One target, all methods asked for."""
    rows = data["rows"][1:]  # the first is the full simulation
    without = sum(has_no_bound(row) for row in rows)
    facts = [
        ("Cycles", quantity(data["true_cycles"])),
        ("Memory", data.get("memory_model", "not said")),
        ("Launches", quantity(len(data["cycles"]))),
        ("Full simulation", duration(data["rows"][0]["seconds"])),
        ("Intervals that hold the true cycles", f"{sum(row['covered'] for row in rows)} of {len(rows) - without}"),
    ]
    ideal = [found["method"] for found in data["results"] if found["estimate"]["ideal"]]
    notes = [f"Ideal, choosing what to simulate took the full simulation: {', '.join(ideal)}."] if ideal else []
    notes += data["full"].get("notes", [])
    title = f"Sampling methods on {data['target']}, {data['gpu']}"
    charts = [_error_chart(rows, ideal), _interval_chart(data), _seconds_chart(data)] if rows else []
    return Section(title, facts, [chart for chart in charts if chart is not None], notes)


def _error_chart(rows: list[dict[str, Any]], ideal: list[str]) -> Chart:
    first = next(iter(SPEED_UPS))
    options = [Option(name, f"speed-up of {name}", AXIS) for name in SPEED_UPS]
    tooltips = [*TOOLTIPS, ("speed-up", "@x{0.00}x")]
    plot = figure(options[0].x_label, AXIS, tooltips, x_axis_type="log", y_axis_type="log")
    shown = []
    for name, key in SPEED_UPS.items():
        points = error_points(plot, [ErrorPoint(r["method"], float(r[key]), r["error"], r["covered"]) for r in rows])
        shown.append(points)
        for renderer in (points, chart.named_beside(plot, points)):
            renderer.name, renderer.visible = name, name == first
    hover_on(plot, shown)
    plot.x_range.only_visible = plot.y_range.only_visible = True
    columns = "method | cycles | error: {error:.2%} | in interval: {inside} | detailed: {detailed_fraction:.2%} "
    columns += "| executed: {functional_fraction:.1%} | took: {seconds:time}"
    columns += "".join(f" | {name}: {{{name}}}" for name in SPEED_UPS)
    saved = {name: lambda row, key=key: times(row[key]) for name, key in SPEED_UPS.items()}
    summary = f"{_best([row for row in rows if row['method'] not in ideal])} {LEGEND}"
    table = Table.of(columns, rows, inside=inside, **saved)
    return Chart("Error against speed-up", summary, plot, table, options, "Speed-up of")


def _best(rows: list[dict[str, Any]]) -> str:
    sampled = [row for row in rows if row["detailed_fraction"] < WHOLE]
    if not sampled:
        return "No method left anything out."
    closest = min(sampled, key=lambda row: row["error"])
    fastest = max(sampled, key=lambda row: row["timing_speed_up"])
    return (
        f"Of the methods that left something out, {closest['method']} is closest with an error of "
        f"{closest['error']:.2%}; {fastest['method']} saves most of the timing stage "
        f"({times(fastest['timing_speed_up'])}) with {fastest['error']:.2%}."
    )


def has_no_bound(row: dict[str, Any]) -> bool:
    """Of a row of a comparison or of a bench; rows of old files all have an interval."""
    return "half_width" in row and row["half_width"] is None


def inside(row: dict[str, Any]) -> str:
    """Whether the true cycles are in the interval, for people."""
    return "no bound" if has_no_bound(row) else "yes" if row["covered"] else "no"


def times(speed_up: float) -> str:
    """A speed-up for people; what took no time at all has none."""
    return f"{speed_up:.3g}x" if math.isfinite(speed_up) else "-"


def _interval_chart(data: Comparison) -> Chart | None:
    """Every method's interval around its estimate, as multiples of the true cycles; none if no method has one."""
    truth = data["true_cycles"]
    found = [each for each in data["results"] if each["estimate"]["high"] is not None]
    unbounded = [row["method"] for row in data["rows"][1:] if has_no_bound(row)]
    if not found:
        return None
    rows = [each["estimate"] | {"method": each["method"], "truth": truth} for each in found]
    table = Table.of("method | low | estimate: {total} | high | true cycles: {truth} | which rests on: {basis}", rows)
    low, total, high = ([row[key] / truth for row in rows] for key in ("low", "total", "high"))
    names = [row["method"] for row in rows]
    source = ColumnDataSource({"name": names, "low": low, "total": total, "high": high})
    tooltips = [("", "@name"), ("estimate", "@total{0.0000}"), ("interval", "@low{0.0000} to @high{0.0000}")]
    plot = figure("cycles, as a multiple of the true ones", "", tooltips, y_range=names[::-1])
    plot.segment("low", "name", "high", "name", source=source, color=COLORS[0], line_width=2)
    for end in ("low", "high"):
        plot.scatter(end, "name", source=source, marker="dash", angle=math.pi / 2, size=10, color=COLORS[0])
    points = plot.scatter("total", "name", source=source, size=8, color=COLORS[0])
    hover_on(plot, [points])
    plot.add_layout(Span(location=1, dimension="height", line_color=COLORS[3], line_width=2))
    missed = [row["method"] for row in data["rows"][1:] if not row["covered"] and not has_no_bound(row)]
    summary = f"{len(rows) - len(missed)} of {len(rows)} intervals hold the true {truth:,} cycles, the vertical line"
    summary += f"; not {', '.join(missed)}" if missed else ""
    summary += f"; {', '.join(unbounded)}: no bound." if unbounded else "."
    return Chart("Intervals around the true cycles", summary, plot, table)


def _seconds_chart(data: Comparison) -> Chart:
    found = [data["full"], *data["results"]]
    stages = list(data["full"]["seconds"])
    parts = {stage: [each["seconds"][stage] for each in found] for stage in stages}
    names = [each["method"] for each in found]
    plot = chart.stacked_bars("method", "seconds", names, parts, STAGE_COLORS, "s")
    full, quickest = found[0], min(found, key=lambda each: sum(each["seconds"].values()))
    summary = f"The full simulation took {duration(sum(full['seconds'].values()))}, "
    summary += f"{quickest['method']} the least with {duration(sum(quickest['seconds'].values()))}."
    rows = [(name, *(duration(parts[stage][k]) for stage in stages)) for k, name in enumerate(names)]
    return Chart("Where the time of each method goes", summary, plot, Table(("method", *stages), rows))


ColdStart = dict[str, Any]  # `ColdStart.to_json`

SHOWN_LAUNCHES = 200  # those with the most instructions
PER_CENT = "accuracy of IPC (%)"


def coldstart_section(data: ColdStart) -> Section:
    """One target on one GPU."""
    launches = len(data["instructions"])
    facts = [
        ("Launches", quantity(launches)),
        ("Cycles, caches kept", quantity(sum(data["kept_cycles"]))),
        ("Cycles, all flushed", quantity(sum(data["flushed_cycles"]))),
        ("Lines the next launch touches too", _mean(data["forward_reuse"])),
        ("Lines the one before touched", _mean(data["backward_reuse"])),
    ]
    charts = [_launches_chart(data), _cost_chart(data["policies"]), _affected_chart(data["affected"])]
    notes = []
    if launches > SHOWN_LAUNCHES:
        notes.append(f"Charts by launch show the {SHOWN_LAUNCHES} of {launches} launches with the most instructions.")
    return Section(f"Cold start of {data['target']} on {data['gpu']}", facts, charts, notes)


def _mean(shares: list[float | None]) -> str:
    known = [share for share in shares if share is not None]
    return f"{sum(known) / len(known):.1%} (mean)" if known else "-"


def _launches_chart(data: ColdStart) -> Chart:
    instructions, policies = data["instructions"], data["policies"]
    most = sorted(range(len(instructions)), key=lambda k: -instructions[k])[:SHOWN_LAUNCHES]
    shown, names = sorted(most), [policy["name"] for policy in policies]
    cells = [(str(k), policy["name"], 100 * policy["accuracy"][k]) for policy in policies for k in shown]
    data = dict(zip(("launch", "policy", "accuracy"), map(list, zip(*cells, strict=True)), strict=True))
    mapper = LinearColorMapper(list(Viridis256[56:232]), low=min(*data["accuracy"], 99.0), high=100.0)
    tooltips = [("launch", "@launch"), ("warm-up", "@policy"), ("accuracy", "@accuracy{0.00} %")]
    plot = figure("launch", "", tooltips, x_range=list(map(str, shown)), y_range=names[::-1])
    fill: Any = {"field": "accuracy", "transform": mapper}
    plot.rect("launch", "policy", 1, 1, source=data, fill_color=fill, line_color=None)
    bar = ColorBar(color_mapper=mapper, title=PER_CENT, background_fill_color=None, ticker=BasicTicker())
    plot.add_layout(bar, "right")
    if len(shown) > 40:
        plot.xaxis.major_label_text_font_size = "0px"  # the hover and the table name them
    worst = min(policies[0]["accuracy"][k] for k in shown)
    summary = "A column a launch: its IPC beside that with caches kept. "
    summary += f"Without any warm-up the worst has {worst:.1%}."
    rows = [(str(k), *(f"{policy['accuracy'][k]:.2%}" for policy in policies)) for k in shown]
    return Chart("Accuracy of each launch by warm-up", summary, plot, Table(("launch", *names), rows))


def _cost_chart(policies: list[dict[str, Any]]) -> Chart:
    tooltips = [("warm-up", "@label"), ("warmed", "@x{0.00} %"), ("accuracy", "@y{0.00} %"), ("of", "@of")]
    plot = figure("warmed a launch (% of all instructions)", PER_CENT, tooltips)
    drawn = []
    data: dict[str, list] = {"label": [policy["name"] for policy in policies]}
    data["x"] = [100 * policy["warmed_share"] for policy in policies]
    worst = {"color": COLORS[3], "marker": "triangle", "legend_label": "worst launch"}
    mean = {"color": COLORS[0], "marker": "circle", "legend_label": "all, by instructions"}
    for key, style in (("worst_accuracy", worst), ("mean_accuracy", mean)):
        own = data | {"y": [100 * policy[key] for policy in policies], "of": [style["legend_label"]] * len(policies)}
        drawn.append(plot.scatter("x", "y", source=own, size=10, alpha=0.8, **style))
    chart.named_beside(plot, drawn[0])
    hover_on(plot, drawn)
    enough = [policy for policy in policies if policy["worst_accuracy"] >= 0.99]
    least = min(enough or policies, key=lambda policy: policy["warmed_share"])
    best = f"The least that leaves no launch below 99% is {least['name']}, which walks {least['warmed_share']:.1%}."
    summary = best if enough else "Nothing leaves every launch at 99% or more."
    columns = "warm-up: {name} | worst launch: {worst_accuracy:.2%} | all, by instructions: {mean_accuracy:.2%} "
    columns += "| warmed a launch: {warmed_share:.2%}"
    return Chart("Share warmed against accuracy", summary, legend_outside(plot), Table.of(columns, policies))


def _affected_chart(affected: dict[str, float]) -> Chart:
    shares = {f"{float(threshold):.0%} or more": 100 * share for threshold, share in affected.items()}
    plot = bars("change of a launch's IPC", "share of the instructions (%)", shares, "0.0")
    plot.y_range.end = 100
    rows = [(name, f"{share:.1f}%") for name, share in shares.items()]
    summary = "Instructions in launches whose IPC flushing changes, by how much: "
    summary += ", ".join(f"{name} {share}" for name, share in rows) + "."
    return Chart("What flushing affects", summary, plot, Table(("change of IPC", "share of the instructions"), rows))
