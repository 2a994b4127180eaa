"""The sections of `abstim validate` and `abstim bench`: predicted against measured cycles, and speed by stage."""

from __future__ import annotations

from typing import Any

from abstim.show.report.chart import COLORS, Chart, Section, Table, figure, legend_outside, stacked_bars
from abstim.show.tables import counted, duration, quantity
from abstim.study.bench.rate import geomean


def validation_section(name: str, data: dict[str, Any]) -> Section:
    """`data`: `Validation.to_json`."""
    found = data["benchmarks"]
    facts = [("Comparisons", quantity(len(found)))]
    if not found:
        return Section(f"Validation {name}", facts, notes=data["skipped"])
    charts = [_scatter_chart(found), _error_chart(found, data["summaries"])]
    return Section(f"Validation {name}", facts, charts, data["skipped"])


def _by_variant(found: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in found:
        groups.setdefault(row["variant"], []).append(row)
    return groups


def _points(plot: Any, rows: list[dict[str, Any]], x: str, y: str, variant: str, color: str) -> None:
    from bokeh.models import ColumnDataSource

    keys = ("benchmark", "variant", "measured_cycles", "predicted_cycles", "error")
    source = ColumnDataSource({key: [row[key] for row in rows] for key in keys})
    plot.scatter(x, y, source=source, size=7, alpha=0.7, color=color, legend_label=variant)


def _scatter_chart(found: list[dict[str, Any]]) -> Chart:
    tooltips = [("benchmark", "@benchmark on @variant"), ("measured", "@measured_cycles{0,0}"),
                ("predicted", "@predicted_cycles{0,0}"), ("error", "@error{+0.00%}")]  # fmt: skip
    plot = figure("measured cycles", "predicted cycles", tooltips, x_axis_type="log", y_axis_type="log")
    cycles = [row[key] for row in found for key in ("measured_cycles", "predicted_cycles")]
    ends = [min(cycles) / 1.5, max(cycles) * 1.5]
    plot.line(ends, ends, color=COLORS[6], line_width=1)
    for k, (variant, rows) in enumerate(_by_variant(found).items()):
        _points(plot, rows, "measured_cycles", "predicted_cycles", variant, COLORS[k % len(COLORS)])
    mean = sum(abs(row["error"]) for row in found) / len(found)
    worst = max(found, key=lambda row: abs(row["error"]))
    summary = f"Mean absolute error {mean:.2%}; the worst is {worst['benchmark']} on {worst['variant']} "
    summary += f"with {worst['error']:+.2%}. On the line prediction and measurement are equal."
    cells = [
        (r["benchmark"], r["group"], r["variant"], r["measured_cycles"], r["predicted_cycles"], f"{r['error']:+.2%}")
        for r in found
    ]
    columns = ("benchmark", "group", "variant", "measured cycles", "predicted cycles", "error")
    return Chart("Predicted against measured cycles", summary, legend_outside(plot), Table(columns, cells))


def _error_chart(found: list[dict[str, Any]], summaries: list[dict[str, Any]]) -> Chart:
    from bokeh.models import FactorRange, NumeralTickFormatter

    names = list(dict.fromkeys(row["benchmark"] for row in found))
    tooltips = [("benchmark", "@benchmark on @variant"), ("error", "@error{+0.00%}")]
    plot = figure("benchmark", "error", tooltips, x_range=FactorRange(*names))
    plot.yaxis.formatter = NumeralTickFormatter(format="0.0%")
    plot.xaxis.major_label_orientation = 1.2
    for k, (variant, rows) in enumerate(_by_variant(found).items()):
        _points(plot, rows, "benchmark", "error", variant, COLORS[k % len(COLORS)])
    errors = ("mean_error", "median_error", "max_error")
    cells = [
        (s["variant"], s["group"], s["benchmarks"], *(f"{s[key]:.2%}" for key in errors), s["worst"])
        for s in summaries
    ]  # fmt: skip
    summary = "; ".join(f"{s['variant']} {s['group']}: mean {s['mean_error']:.2%}" for s in summaries) + "."
    columns = ("variant", "group", "benchmarks", "mean", "median", "max", "worst")
    return Chart("Error of every benchmark", summary, legend_outside(plot), Table(columns, cells))


Bench = dict[str, Any]  # `BenchResult.to_json`


def bench_section(data: Bench) -> Section:
    """One result of `abstim bench`."""
    machine = data["machine"]
    facts = [("Memory", data.get("memory_model", "not said"))]
    facts += [("Processor", f"{machine['processor']}, {machine['cpus']} CPUs"), ("abstim", machine["abstim"])]
    facts += [
        (f"{stage}, geometric mean", f"{quantity(m['thread_mips'])} thread MIPS")
        for stage, m in data["geomean"].items()
    ]
    charts = [_speed_chart(data), _share_chart(data)]
    if data["against"]:
        charts += [_against_chart(data, "error"), _against_chart(data, "speedup")]
    if data.get("compare"):
        charts.append(_compare_chart(data["compare"]))
    points = counted(data["points"], "design point", "design points")
    return Section(f"Speed of abstim on {data['gpu']}, {points}", facts, charts)


def _dots(y: str, names: list[str], series: dict[str, list[tuple[str, float]]], form: str, **options: Any) -> Any:
    """A dot for each (benchmark, value), a colour for each series."""
    from bokeh.models import ColumnDataSource, FactorRange

    tooltips = [("benchmark", "@x"), (y, f"@y{{{form}}}"), ("", "@series")]
    plot = figure("benchmark", y, tooltips, x_range=FactorRange(*names), **options)
    plot.xaxis.major_label_orientation = 1.2
    for k, (name, rows) in enumerate(series.items()):
        data = {"x": [row[0] for row in rows], "y": [row[1] for row in rows], "series": [name] * len(rows)}
        plot.scatter("x", "y", source=ColumnDataSource(data), size=8, color=COLORS[k % len(COLORS)], legend_label=name)
    return legend_outside(plot)


def _speed_chart(data: Bench) -> Chart:
    found = data["benchmarks"]
    series = {
        stage: [(name, stages[stage]["thread_mips"]) for name, stages in found.items() if stage in stages]
        for stage in data["geomean"]
    }
    plot = _dots("thread MIPS", list(found), series, "0,0.0", y_axis_type="log")
    rows = [
        (name, stage, duration(r["seconds"]), duration(r["mad_seconds"]),
         *(r[f] for f in ("thread_mips", "warp_mips", "stepped_thread_mips", "stepped_warp_mips")))
        for name, stages in found.items() for stage, r in stages.items()
    ]  # fmt: skip
    summary = "Represented thread instructions a second by stage, in millions; geometric means: "
    summary += ", ".join(f"{stage} {quantity(m['thread_mips'])}" for stage, m in data["geomean"].items()) + "."
    columns = ("benchmark", "stage", "median", "MAD", "thread MIPS", "warp MIPS", "stepped thread", "stepped warp")
    return Chart("Speed of every stage", summary, plot, Table(columns, rows))


def _share_chart(data: Bench) -> Chart:
    found, stages = data["benchmarks"], list(data["geomean"])
    seconds = {name: [own[s]["seconds"] if s in own else 0.0 for s in stages] for name, own in found.items()}
    parts = {s: [row[k] / sum(row) for row in seconds.values()] for k, s in enumerate(stages)}
    plot = stacked_bars(
        "benchmark", "share of the time", list(found), parts, dict(zip(stages, COLORS, strict=False)), "share"
    )
    total = sum(map(sum, seconds.values()))
    shares = {s: sum(row[k] for row in seconds.values()) / total for k, s in enumerate(stages)}
    summary = (
        "Where abstim's own time goes, all benchmarks: " + ", ".join(f"{s} {v:.0%}" for s, v in shares.items()) + "."
    )
    rows = [(name, *map(duration, row)) for name, row in seconds.items()]
    return Chart("Where abstim's time goes", summary, plot, Table(("benchmark", *stages), rows))


def _against_chart(data: Bench, figure_name: str) -> Chart:
    rows = data["against"]
    names = list(dict.fromkeys(row["benchmark"] for row in rows))
    variants = list(dict.fromkeys(row["variant"] for row in rows))
    is_error = figure_name == "error"
    series = {
        v: [(r["benchmark"], 100 * r["error"] if is_error else r["speedup"]) for r in rows if r["variant"] == v]
        for v in variants
    }
    label, form = ("error in %", "+0.00") if is_error else ("times as fast as the reference", "0,0.0")
    plot = _dots(label, names, series, form, y_axis_type="linear" if is_error else "log")
    table = [
        (r["benchmark"], r["variant"], r["measured_cycles"], r["predicted_cycles"], f"{r['error']:+.2%}",
         duration(r["reference_seconds"]), *(duration(r[key]) for key in ("seconds", "all_seconds")), r["speedup"],
         r["thread_mips"])
        for r in rows
    ]  # fmt: skip
    parts = []
    for variant in variants:
        own = [row for row in rows if row["variant"] == variant]
        mean = sum(abs(row["error"]) for row in own) / len(own)
        parts.append(
            f"{variant} {mean:.2%}" if is_error else f"{variant} {quantity(geomean([r['speedup'] for r in own]))}x"
        )
    summary = ("Mean absolute error: " if is_error else "Geometric mean of the speed-up: ") + ", ".join(parts) + "."
    columns = ("benchmark", "variant", "measured", "predicted", "error", "reference", "abstim",
               "with parsing and characterising",                "speed-up", "thread MIPS")  # fmt: skip
    title = "Error against the reference" if is_error else "Speed-up over the reference"
    return Chart(title, summary, plot, Table(columns, table))


def _compare_chart(verdicts: list[dict[str, Any]]) -> Chart:
    from bokeh.models import ColumnDataSource, FactorRange, Span, TeeHead, Whisker

    names = [v["stage"] for v in verdicts]
    plot = figure(
        "stage",
        "speed against the earlier result",
        [("stage", "@x"), ("speed", "@y{0.000}")],
        x_range=FactorRange(*names),
    )
    known = [v for v in verdicts if v["low"] is not None]
    plot.scatter(names, [v["speed"] for v in verdicts], size=10, color=COLORS[0])
    ends = {"x": [v["stage"] for v in known], "low": [v["low"] for v in known], "high": [v["high"] for v in known]}
    head = TeeHead(line_color=COLORS[0], size=10)  # else black, on dark paper too
    source = ColumnDataSource(ends)
    plot.add_layout(Whisker(base="x", lower="low", upper="high", source=source, line_color=COLORS[0],
                            lower_head=head, upper_head=head))  # fmt: skip
    plot.add_layout(Span(location=1, dimension="width", line_color=COLORS[6]))
    summary = "; ".join(f"{v['stage']}: {v['verdict']} ({v['speed']:.3f}x)" for v in verdicts) + "."
    rows = [(v["stage"], v["verdict"], v["speed"], v["low"], v["high"], v["old_mad"], v["new_mad"]) for v in verdicts]
    columns = ("stage", "verdict", "speed", "low", "high", "old MAD", "new MAD")
    return Chart("Against the earlier result", summary, plot, Table(columns, rows))
