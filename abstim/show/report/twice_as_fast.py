"""What each resource, twice as fast and alone, would save of a target's cycles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from abstim.show.report.chart import SLOT_COLORS, Chart, Table, stacked_bars

SHOWN = 10  # bars; the table has all


def limits_chart(limits: Sequence[dict[str, Any]]) -> Chart | None:
    """`limits`: of `RunResult.to_json`, the greatest gain first; None if nobody asked for them."""
    if not limits:
        return None
    shown = [limit for limit in limits[:SHOWN] if limit["gain"] > 0]
    parts = {"issued": [100 * limit["gain"] for limit in shown]}
    plot = stacked_bars("resource", "cycles saved (%)", [x["resource"] for x in shown], parts, SLOT_COLORS, "saved (%)")
    plot.legend.visible = False
    best = limits[0]
    summary = f"Twice {best['resource']} would save most: {best['gain']:.1%} of the cycles."
    rows = [(limit["resource"], limit["cycles"], f"{limit['gain']:+.2%}") for limit in limits]
    return Chart("Each resource twice as fast, alone", summary, plot, Table(("resource", "cycles", "saved"), rows))
