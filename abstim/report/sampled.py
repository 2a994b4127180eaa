"""The section of `abstim sample`: which parts were simulated and which projected, and how steady the rest was.

Read from the JSON: `target`, `gpu`, `estimate` (the fields of `sampling.estimate.Estimate`), `true_cycles` (or null),
and `stability`: a list of {part, issued_instructions, drift}, the detector's figure after each step.
"""

from __future__ import annotations

from typing import Any

from abstim.cli.tables import quantity
from abstim.report.chart import COLORS, Chart, Section, Table, figure, legend_outside, stacked_bars, unique

SHOWN_PARTS = 200


def sampling_section(data: dict[str, Any]) -> Section:
    """One target sampled by one method."""
    estimate, truth = data["estimate"], data.get("true_cycles")
    facts = [
        ("Method", estimate["method"]),
        ("Cycles", f"{estimate['total']:,.0f}"),
        (
            f"{estimate['confidence']:.0%} interval ({estimate['basis']})",
            f"{estimate['low']:,.0f} to {estimate['high']:,.0f}",
        ),
        ("Simulated in detail", f"{estimate['detailed_fraction']:.1%} of the warp instructions"),
        ("Executed at all", f"{estimate['functional_fraction']:.1%} of the warp instructions"),
    ]
    if truth:
        facts.append(("Error", f"{estimate['total'] / truth - 1:+.2%} of {quantity(truth)} cycles"))
    charts = [_parts_chart(estimate["parts"]), _stability_chart(data.get("stability") or [])]
    title = f"{data['target']} on {data['gpu']}, sampled"
    return Section(title, facts, [chart for chart in charts if chart is not None])


def _parts_chart(parts: list[dict[str, Any]]) -> Chart | None:
    if not parts:
        return None
    shown = sorted(parts, key=lambda part: -part["cycles"])[:SHOWN_PARTS]
    ways = list(dict.fromkeys(part["how"] for part in parts))
    stacks = {way: [part["cycles"] if part["how"] == way else 0.0 for part in shown] for way in ways}
    colors = {way: COLORS[k % len(COLORS)] for k, way in enumerate(ways)}
    plot = stacked_bars("part", "cycles", unique([part["name"] for part in shown]), stacks, colors, "cycles")
    cycles = sum(part["cycles"] for part in parts) or 1.0
    shares = {way: sum(p["cycles"] for p in parts if p["how"] == way) / cycles for way in ways}
    summary = "Cycles by how they were found: " + ", ".join(f"{way} {share:.1%}" for way, share in shares.items()) + "."
    rows = [(part["name"], part["how"], part["instructions"], part["cycles"]) for part in shown]
    return Chart("What was skipped", summary, plot, Table(("part", "how", "warp instructions", "cycles"), rows))


def _stability_chart(stability: list[dict[str, Any]]) -> Chart | None:
    rows = [(row["part"], row["issued_instructions"], row["drift"]) for row in stability if row["drift"] is not None]
    if not rows:
        return None
    plot = figure("warp instructions issued", "relative drift", [("part", "$name"), ("drift", "@y{0.0%}")])
    for k, part in enumerate(dict.fromkeys(row[0] for row in rows)):
        own = [row for row in rows if row[0] == part]
        plot.line([r[1] for r in own], [r[2] for r in own], name=part, legend_label=part, color=COLORS[k % len(COLORS)])
    summary = f"The drift of execution times ends at {rows[-1][2]:.1%}; below its bound a part counts as stable."
    table = [(part, issued, f"{drift:.2%}") for part, issued, drift in rows]
    columns = ("part", "warp instructions issued", "drift")
    return Chart("Stability over time", summary, legend_outside(plot), Table(columns, table))
