"""The section of `abstim sample`: what was simulated, what projected, and how steady launches had become."""

from __future__ import annotations

import re
from typing import Any

from abstim.show.parts import OTHER_WAYS, by_way
from abstim.show.report.chart import COLORS, Chart, Section, Table, figure, legend_outside, unique
from abstim.show.tables import duration, quantity

Sample = dict[str, Any]  # `SampleResult.to_json`

KINDS = {"in detail": COLORS[2], "projected": COLORS[1], "either": COLORS[6]}  # of parts
SHOWN_PARTS = 24  # more are put together by how they were found
SHOWN_KERNELS = 8  # that contribute most
SHOWN_STEPPED = 6  # launches whose history is drawn: those stepped longest


def sampling_section(data: Sample) -> Section:
    """One target sampled by one method."""
    estimate, truth = data["estimate"], data.get("true_cycles")
    fractions = {key: f"{estimate[f'{key}_fraction']:.1%}" for key in ("detailed", "functional")}
    facts = [
        ("Method", data["method"]),
        ("Memory", data.get("memory_model", "not said")),
        ("Cycles", f"{estimate['total']:,.0f}"),
        (
            f"{estimate['confidence']:.0%} interval ({estimate['basis']})",
            "no bound" if estimate["high"] is None else f"{estimate['low']:,.0f} to {estimate['high']:,.0f}",
        ),
        ("Simulated in detail", f"{fractions['detailed']} of the warp instructions"),
        ("Executed at all", f"{fractions['functional']} of the warp instructions"),
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
    ways = by_way((part["how"], part["instructions"], part["cycles"]) for part in parts)
    columns: tuple[str, ...]
    if len(parts) <= SHOWN_PARTS:
        columns = ("part", "how", "warp instructions", "cycles")
        rows = [(part["name"], part["how"], part["instructions"], part["cycles"]) for part in parts]
        bars = [(f"{part['name']}: {part['how']}", part["how"], part["cycles"]) for part in parts]
    else:
        columns = ("how", "parts", "warp instructions", "cycles")
        rows = [(way.how, way.parts, way.instructions, way.cycles) for way in ways]
        bars = [(f"{way.how} ({_parts(way.parts)})", way.how, way.cycles) for way in ways]
    cycles = sum(part["cycles"] for part in parts) or 1.0
    shares = ", ".join(f"{way.how} {way.cycles / cycles:.1%}" for way in ways[:4])
    more = f", and {len(ways) - 4} ways more" if len(ways) > 4 else ""
    summary = f"Cycles of {_parts(len(parts))} by how they were found: {shares}{more}."
    return Chart("How its parts were found", summary, _bars(bars), Table(columns, rows))


def _parts(count: int) -> str:
    return f"{count:,} part" + ("s" if count > 1 else "")


def _was(how: str) -> str:
    """Of KINDS; nothing is projected of "3 of 3 launches"."""
    if how.endswith(OTHER_WAYS):
        return "either"
    return "in detail" if how == "detailed" or re.match(r"([\d,]+) of \1 ", how) else "projected"


def _bars(bars: list[tuple[str, str, float]]) -> Any:
    """Horizontal ones, whose names may be long: (name, how, cycles)."""
    from bokeh.models import ColumnDataSource, FactorRange, NumeralTickFormatter

    names = unique([name for name, *_ in bars])
    plot = figure("cycles", "", [("", "@name"), ("cycles", "@cycles{0,0}")], y_range=FactorRange(*reversed(names)))
    for kind, color in KINDS.items():
        own = [k for k, (_, how, _) in enumerate(bars) if _was(how) == kind]
        data = {"name": [names[k] for k in own], "cycles": [bars[k][2] for k in own]}
        if own:
            source = ColumnDataSource(data)
            plot.hbar("name", 0.7, "cycles", source=source, color=color, legend_label=kind, line_color=None)
    plot.x_range.start = 0
    plot.xaxis.formatter = NumeralTickFormatter(format="0,0")
    return legend_outside(plot)


def _steadiness_chart(stability: dict[str, list[tuple[float, float]]]) -> Chart | None:
    """Of each stepped launch, instructions a cycle until its detailed simulation ended."""
    from bokeh.models import Span

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
        plot.add_layout(
            Span(location=cycles[-1], dimension="height", line_color=COLORS[k], line_dash="dashed", line_alpha=0.7)
        )
    plot.y_range.start, plot.x_range.start = 0, 0
    name, history = longest[0]
    summary = f"Detailed simulation of {name} ended at cycle {history[-1][0]:,.0f}, with {history[-1][1]:.2f} warp "
    summary += "instructions a cycle: a square and a dashed line."
    if len(stability) > len(longest):
        summary += f" The {len(longest)} launches stepped longest, of {len(stability)}."
    table = [(name, cycle, rate) for name, history in longest for cycle, rate in history]
    columns = ("launch", "to cycle", "warp instructions a cycle")
    return Chart("Steadiness of what was simulated", summary, legend_outside(plot), Table(columns, table))
