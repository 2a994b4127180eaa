"""The section of `abstim advise`: what could be changed, and what each change would save."""

from __future__ import annotations

from typing import Any

from abstim.show.report.chart import SLOT_COLORS, Chart, Section, Table, stacked_bars
from abstim.show.tables import quantity


def advice_section(advice: dict[str, Any]) -> Section:
    """Findings, the most rewarding first, each with a sentence."""
    facts = [("Memory", advice["memory_model"]), ("Cycles", quantity(advice["cycles"]))]
    findings = advice["findings"]
    notes = [f"{finding['kind']}: {finding['text']}." for finding in findings]
    title = f"Advice on {advice['target']} on {advice['gpu']}"
    if not findings:
        return Section(title, facts, notes=["Nothing that abstim looks for would save 2 %."])
    return Section(title, facts, [_chart(findings)], notes)


def _chart(findings: list[dict[str, Any]]) -> Chart:
    kinds = [finding["kind"] for finding in findings]
    parts = {"issued": [100 * finding["gain"] for finding in findings]}
    plot = stacked_bars("change", "cycles saved (%)", kinds, parts, SLOT_COLORS, "saved (%)")
    plot.legend.visible = False
    summary = f"Most would be saved by {kinds[0]}: {findings[0]['gain']:.1%} of the cycles."
    rows = [(finding["kind"], finding["cycles"], f"{finding['gain']:.1%}") for finding in findings]
    return Chart("What each change would save", summary, plot, Table(("change", "cycles without it", "saved"), rows))
