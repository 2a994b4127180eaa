"""The section of `abstim validate`: predicted against measured cycles, and the error of every benchmark."""

from __future__ import annotations

from typing import Any

from abstim.show.report.chart import COLORS, Chart, Section, Table, figure, legend_outside
from abstim.show.tables import quantity


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
