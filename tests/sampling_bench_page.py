"""The page of `bench_sampling.py methods`: charts of methods over a set of targets."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from abstim.show.report.chart import (
    COLORS,
    Chart,
    Option,
    Section,
    Table,
    figure,
    hover_on,
    legend_outside,
    named_beside,
)
from abstim.show.report.sampling import AXIS, LEGEND, SPEED_UPS, TOOLTIPS, ErrorPoint, error_points, inside, times
from abstim.show.tables import duration, quantity

Bench = dict[str, Any]  # `SampleBench.to_json`
Row = dict[str, Any]  # one of its rows: a target and a method


def sample_bench_section(data: Bench) -> Section:
    """One result of `bench_sampling.py methods --json`."""
    machine, overall, rows = data["machine"], data["overall"], data["rows"]
    targets = list(dict.fromkeys(row["target"] for row in rows))
    facts = [
        ("Processor", f"{machine['processor']}, {machine['cpus']} CPUs"),
        ("abstim", machine["abstim"]),
        ("Memory", data.get("memory_model", "not said")),
        ("Targets", quantity(len(targets))),
        ("Methods", quantity(len(data["methods"]))),
    ]
    notes = ["Interrupted: targets are missing."] if data["interrupted"] else []
    notes += [f"{target} is left out: {why}" for target, why in data["failed"].items()]
    charts = []
    if overall is not None:
        facts.append(("Mean error", f"{overall['mean_error']:.2%}"))
        charts = [_methods_chart(data["methods"]), _errors_chart(rows, targets), _detailed_chart(rows, targets)]
        charts.append(_speed_up_chart(rows, targets))
    return Section(f"Sampling methods over {len(targets)} targets, {data['gpu']}", facts, charts, notes)


def _methods_chart(methods: list[dict[str, Any]]) -> Chart:
    """A point a method: means over the targets."""
    x, y = "geometric mean of the speed-up", f"mean {AXIS}"
    plot = figure(x, y, [*TOOLTIPS[:2], ("speed-up", "@x{0.00}x")], x_axis_type="log", y_axis_type="log")
    points = error_points(
        plot,
        [
            ErrorPoint(m["method"], m["speed_up"] or math.inf, m["mean_error"], m["covered"] in (None, 1.0))
            for m in methods
        ],
    )
    named_beside(plot, points)
    hover_on(plot, [points])
    summary = "; ".join(
        f"{m['method']}: error {m['mean_error']:.2%}, {times(m['speed_up'] or math.inf)} as fast" for m in methods
    )
    keys = ("mean_error", "geomean_error", "worst_error", "detailed_fraction")
    rows = [
        (m["method"], m["targets"], m["sampled"], *(f"{m[key]:.2%}" for key in keys),
         *("-" if m[key] is None else f"{m[key]:.2%}" for key in ("covered", "covered_of_sampled")),
         m["speed_up"], m["least_speed_up"], m["best_speed_up"])
        for m in methods
    ]  # fmt: skip
    columns = ("method", "targets", "of them sampled", "mean error", "geomean", "worst", "detailed", "in interval",
               "in interval if sampled", "speed-up, geomean", "least", "best")  # fmt: skip
    hollow = "Hollow: the true cycles of a target are outside the interval."
    return Chart("Methods over all targets", f"{summary}. {hollow}", plot, Table(columns, rows))


def _methods(rows: list[Row]) -> Iterator[tuple[str, str, float, list[Row]]]:
    """Each method, its colour, how far beside a target its points are drawn (in widths of a target), and its rows."""
    names = list(dict.fromkeys(row["method"] for row in rows))
    for k, name in enumerate(names):
        beside = 0.7 * ((k + 0.5) / len(names) - 0.5)
        yield name, COLORS[k % len(COLORS)], beside, [row for row in rows if row["method"] == name]


def _over_targets(y: str, targets: list[str], tooltips: list[tuple[str, str]], **options: Any) -> Any:
    from bokeh.models import FactorRange

    plot = figure("target", y, tooltips, x_range=FactorRange(*targets), **options)
    plot.xaxis.major_label_orientation = 0.9
    return plot


def _errors_chart(rows: list[Row], targets: list[str]) -> Chart:
    plot = _over_targets(AXIS, targets, [*TOOLTIPS], y_axis_type="log")
    for method, color, beside, own in _methods(rows):
        points = [ErrorPoint(f"{method}, {r['target']}", (r["target"], beside), r["error"], r["covered"]) for r in own]
        error_points(plot, points, color, legend_label=method)
    worst = max(rows, key=lambda row: row["error"])
    summary = f"The worst is {worst['method']} on {worst['target']} with {worst['error']:.2%}. {LEGEND}"
    columns = ("target", "method", "true cycles", "cycles", "error", "in interval", "launches")
    cells = [
        (r["target"], r["method"], r["true_cycles"], r["cycles"], f"{r['error']:.2%}", inside(r),
         r["launches"])
        for r in rows
    ]  # fmt: skip
    return Chart("Error of every target", summary, legend_outside(plot), Table(columns, cells))


def _points(plot: Any, rows: list[Row], beside: float, key: str, scale: float, **options: Any) -> None:
    """A figure of each row; what is not finite is left out."""
    from bokeh.models import ColumnDataSource

    shown = [row for row in rows if math.isfinite(row[key])]
    data = {
        "x": [(row["target"], beside) for row in shown],
        "y": [scale * row[key] for row in shown],
        "label": [f"{row['method']}, {row['target']}" for row in shown],
    }
    plot.scatter("x", "y", source=ColumnDataSource(data), size=8, legend_label=rows[0]["method"], **options)


def _detailed_chart(rows: list[Row], targets: list[str]) -> Chart:
    plot = _over_targets("simulated in detail (%)", targets, [("", "@label"), ("in detail", "@y{0.00} %")])
    means = []
    for method, color, beside, own in _methods(rows):
        _points(plot, own, beside, "detailed_fraction", 100.0, color=color)
        means.append(f"{method} {sum(row['detailed_fraction'] for row in own) / len(own):.1%}")
    plot.y_range.start = 0
    cells = [
        (r["target"], r["method"], f"{r['detailed_fraction']:.2%}", f"{r['functional_fraction']:.2%}") for r in rows
    ]
    table = Table(("target", "method", "simulated in detail", "executed at all"), cells)
    summary = f"Of the warp instructions, on average: {', '.join(means)}."
    return Chart("Share simulated in detail", summary, legend_outside(plot), table)


def _speed_up_chart(rows: list[Row], targets: list[str]) -> Chart:
    """Speed-ups by target; which of them can be chosen."""
    options = [Option(name, "target", f"speed-up of {name}") for name in SPEED_UPS]
    tooltips = [("", "@label"), ("speed-up", "@y{0.00}x")]
    plot = _over_targets(options[0].y_label, targets, tooltips, y_axis_type="log")
    plot.y_range.only_visible = True
    for _, color, beside, own in _methods(rows):
        for name, key in SPEED_UPS.items():
            _points(plot, own, beside, key, 1.0, color=color, name=name, visible=name == options[0].value)
    best = max(rows, key=lambda row: row["speed_up"])
    summary = f"The greatest of the whole way is {times(best['speed_up'])}, {best['method']} on {best['target']}."
    cells = [
        (r["target"], r["method"], duration(r["full_seconds"]), duration(r["seconds"]),
         *(times(r[key]) for key in SPEED_UPS.values()))
        for r in rows
    ]  # fmt: skip
    columns = ("target", "method", "full simulation", "took", *SPEED_UPS)
    legend_outside(plot)
    plot.legend.click_policy = "none"  # hiding is what the choice does
    return Chart("Speed-up of every target", summary, plot, Table(columns, cells), options, "Speed-up of")
