"""The sections of `abstim validate` and `abstim bench`: predicted against measured cycles, and speed by stage."""

from __future__ import annotations

from typing import Any

from abstim.brief import grouped
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


def _points(plot: Any, rows: list[dict[str, Any]], x: str, y: str, variant: str, color: str) -> None:
    keys = ("benchmark", "variant", "measured_cycles", "predicted_cycles", "error")
    data = {key: [row[key] for row in rows] for key in keys}
    plot.scatter(x, y, source=data, size=7, alpha=0.7, color=color, legend_label=variant)


_TOOLTIPS = [("benchmark", "@benchmark on @variant"), ("error", "@error{+0.00%}")]


def _scatter_chart(found: list[dict[str, Any]]) -> Chart:
    tooltips = [*_TOOLTIPS[:1], ("measured", "@measured_cycles{0,0}"), ("predicted", "@predicted_cycles{0,0}")]
    tooltips += _TOOLTIPS[1:]
    plot = figure("measured cycles", "predicted cycles", tooltips, x_axis_type="log", y_axis_type="log")
    cycles = [row[key] for row in found for key in ("measured_cycles", "predicted_cycles")]
    ends = [min(cycles) / 1.5, max(cycles) * 1.5]
    plot.line(ends, ends, color=COLORS[6], line_width=1)
    for k, (variant, rows) in enumerate(grouped(found, lambda row: row["variant"]).items()):
        _points(plot, rows, "measured_cycles", "predicted_cycles", variant, COLORS[k % len(COLORS)])
    mean = sum(abs(row["error"]) for row in found) / len(found)
    worst = max(found, key=lambda row: abs(row["error"]))
    summary = f"Mean absolute error {mean:.2%}; the worst is {worst['benchmark']} on {worst['variant']} "
    summary += f"with {worst['error']:+.2%}. On the line prediction and measurement are equal."
    columns = "benchmark | group | variant | measured cycles | predicted cycles | error: {error:+.2%}"
    return Chart("Predicted against measured cycles", summary, legend_outside(plot), Table.of(columns, found))


def _error_chart(found: list[dict[str, Any]], summaries: list[dict[str, Any]]) -> Chart:
    from bokeh.models import NumeralTickFormatter

    names = list(dict.fromkeys(row["benchmark"] for row in found))
    plot = figure("benchmark", "error", _TOOLTIPS, x_range=names)
    plot.yaxis.formatter = NumeralTickFormatter(format="0.0%")
    plot.xaxis.major_label_orientation = 1.2
    for k, (variant, rows) in enumerate(grouped(found, lambda row: row["variant"]).items()):
        _points(plot, rows, "benchmark", "error", variant, COLORS[k % len(COLORS)])
    summary = "; ".join(f"{s['variant']} {s['group']}: mean {s['mean_error']:.2%}" for s in summaries) + "."
    columns = "variant | group | benchmarks | mean: {mean_error:.2%} | median: {median_error:.2%} "
    columns += "| max: {max_error:.2%} | worst"
    return Chart("Error of every benchmark", summary, legend_outside(plot), Table.of(columns, summaries))


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
    tooltips = [("benchmark", "@x"), (y, f"@y{{{form}}}"), ("", "@series")]
    plot = figure("benchmark", y, tooltips, x_range=names, **options)
    plot.xaxis.major_label_orientation = 1.2
    for k, (name, rows) in enumerate(series.items()):
        data = {"x": [row[0] for row in rows], "y": [row[1] for row in rows], "series": [name] * len(rows)}
        plot.scatter("x", "y", source=data, size=8, color=COLORS[k % len(COLORS)], legend_label=name)
    return legend_outside(plot)


def _speed_chart(data: Bench) -> Chart:
    found = data["benchmarks"]
    series = {
        stage: [(name, stages[stage]["thread_mips"]) for name, stages in found.items() if stage in stages]
        for stage in data["geomean"]
    }
    plot = _dots("thread MIPS", list(found), series, "0,0.0", y_axis_type="log")
    rows = [{"benchmark": name, "stage": stage} | r for name, stages in found.items() for stage, r in stages.items()]
    summary = "Represented thread instructions a second by stage, in millions; geometric means: "
    summary += ", ".join(f"{stage} {quantity(m['thread_mips'])}" for stage, m in data["geomean"].items()) + "."
    columns = (
        "benchmark | stage | median: {seconds:time} | MAD: {mad_seconds:time} | thread MIPS: {thread_mips} "
        "| warp MIPS: {warp_mips} | stepped thread: {stepped_thread_mips} | stepped warp: {stepped_warp_mips}"
    )
    return Chart("Speed of every stage", summary, plot, Table.of(columns, rows))


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
    parts = []
    for variant in variants:
        own = [row for row in rows if row["variant"] == variant]
        mean = sum(abs(row["error"]) for row in own) / len(own)
        parts.append(
            f"{variant} {mean:.2%}" if is_error else f"{variant} {quantity(geomean([r['speedup'] for r in own]))}x"
        )
    summary = ("Mean absolute error: " if is_error else "Geometric mean of the speed-up: ") + ", ".join(parts) + "."
    columns = (
        "benchmark | variant | measured: {measured_cycles} | predicted: {predicted_cycles} | error: {error:+.2%} "
        "| reference: {reference_seconds:time} | abstim: {seconds:time} "
        "| with parsing and characterising: {all_seconds:time} | speed-up: {speedup} | thread MIPS: {thread_mips}"
    )
    title = "Error against the reference" if is_error else "Speed-up over the reference"
    return Chart(title, summary, plot, Table.of(columns, rows))


def _compare_chart(verdicts: list[dict[str, Any]]) -> Chart:
    from bokeh.models import ColumnDataSource, Span, TeeHead, Whisker

    names = [v["stage"] for v in verdicts]
    tooltips = [("stage", "@x"), ("speed", "@y{0.000}")]
    plot = figure("stage", "speed against the earlier result", tooltips, x_range=names)
    known = [v for v in verdicts if v["low"] is not None]
    plot.scatter(names, [v["speed"] for v in verdicts], size=10, color=COLORS[0])
    ends = ColumnDataSource({key: [v[key] for v in known] for key in ("stage", "low", "high")})
    head = TeeHead(line_color=COLORS[0], size=10)  # else black, on dark paper too
    style = {"line_color": COLORS[0], "lower_head": head, "upper_head": head}
    plot.add_layout(Whisker(base="stage", lower="low", upper="high", source=ends, **style))
    plot.add_layout(Span(location=1, dimension="width", line_color=COLORS[6]))
    summary = "; ".join(f"{v['stage']}: {v['verdict']} ({v['speed']:.3f}x)" for v in verdicts) + "."
    table = Table.of("stage | verdict | speed | low | high | old MAD: {old_mad} | new MAD: {new_mad}", verdicts)
    return Chart("Against the earlier result", summary, plot, table)
