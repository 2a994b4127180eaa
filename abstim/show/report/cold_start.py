"""The section of `abstim coldstart`: what empty caches cost each launch, and what each way to warm up gives back."""

from __future__ import annotations

from typing import Any

from abstim.show.report.chart import COLORS, Chart, Section, Table, figure, hover_on, legend_outside, named_beside
from abstim.show.tables import quantity

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
    """A cell for every launch and policy."""
    from bokeh.models import BasicTicker, ColorBar, ColumnDataSource, FactorRange, LinearColorMapper
    from bokeh.palettes import Viridis256

    instructions, policies = data["instructions"], data["policies"]
    most = sorted(range(len(instructions)), key=lambda k: -instructions[k])[:SHOWN_LAUNCHES]
    shown, names = sorted(most), [policy["name"] for policy in policies]
    cells = [(str(k), policy["name"], 100 * policy["accuracy"][k]) for policy in policies for k in shown]
    columns = zip(*cells, strict=True)
    source = ColumnDataSource(dict(zip(("launch", "policy", "accuracy"), map(list, columns), strict=True)))
    mapper = LinearColorMapper(list(Viridis256[56:232]), low=min(*source.data["accuracy"], 99.0), high=100.0)
    tooltips = [("launch", "@launch"), ("warm-up", "@policy"), ("accuracy", "@accuracy{0.00} %")]
    ranges: dict[str, Any] = {"x_range": FactorRange(*map(str, shown)), "y_range": FactorRange(*reversed(names))}
    plot = figure("launch", "", tooltips, **ranges)
    fill: Any = {"field": "accuracy", "transform": mapper}
    plot.rect("launch", "policy", 1, 1, source=source, fill_color=fill, line_color=None)
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
    """What a policy walks against what it gives."""
    from bokeh.models import ColumnDataSource

    tooltips = [("warm-up", "@label"), ("warmed", "@x{0.00} %"), ("accuracy", "@y{0.00} %"), ("of", "@of")]
    plot = figure("warmed a launch (% of all instructions)", PER_CENT, tooltips)
    drawn = []
    warmed = [100 * policy["warmed_share"] for policy in policies]
    for (label, key), color, marker in zip(
        (("worst launch", "worst_accuracy"), ("all, by instructions", "mean_accuracy")), (COLORS[3], COLORS[0]),
        ("triangle", "circle"), strict=True,
    ):  # fmt: skip
        data = {"label": [policy["name"] for policy in policies], "x": warmed,
                "y": [100 * policy[key] for policy in policies], "of": [label] * len(policies)}  # fmt: skip
        drawn.append(plot.scatter("x", "y", source=ColumnDataSource(data), size=10, marker=marker, color=color,
                                  alpha=0.8, legend_label=label))  # fmt: skip
    named_beside(plot, drawn[0])
    hover_on(plot, drawn)
    enough = [policy for policy in policies if policy["worst_accuracy"] >= 0.99]
    least = min(enough or policies, key=lambda policy: policy["warmed_share"])
    summary = (
        f"The least that leaves no launch below 99% is {least['name']}, which walks {least['warmed_share']:.1%}."
        if enough else "Nothing leaves every launch at 99% or more."
    )  # fmt: skip
    rows = [
        (p["name"], *(f"{p[key]:.2%}" for key in ("worst_accuracy", "mean_accuracy", "warmed_share")))
        for p in policies
    ]  # fmt: skip
    columns = ("warm-up", "worst launch", "all, by instructions", "warmed a launch")
    return Chart("Share warmed against accuracy", summary, legend_outside(plot), Table(columns, rows))


def _affected_chart(affected: dict[str, float]) -> Chart:
    from bokeh.models import ColumnDataSource, FactorRange

    names = [f"{float(threshold):.0%} or more" for threshold in affected]
    shares = [100 * share for share in affected.values()]
    plot = figure("change of a launch's IPC", "share of the instructions (%)",
                  [("change", "@x"), ("share", "@y{0.0} %")], x_range=FactorRange(*names))  # fmt: skip
    plot.vbar("x", 0.6, "y", source=ColumnDataSource({"x": names, "y": shares}), color=COLORS[0], line_color=None)
    plot.y_range.start, plot.y_range.end = 0, 100
    rows = list(zip(names, (f"{share:.1%}" for share in affected.values()), strict=True))
    summary = "Instructions in launches whose IPC flushing changes, by how much: "
    summary += ", ".join(f"{name} {share}" for name, share in rows) + "."
    return Chart("What flushing affects", summary, plot, Table(("change of IPC", "share of the instructions"), rows))
