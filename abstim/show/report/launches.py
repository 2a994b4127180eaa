"""The sections of `abstim run`: where the time went, how it was spread, and what bounds it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from abstim.session.result import SLOT_REASONS
from abstim.show.report.chart import (
    COLORS,
    SLOT_COLORS,
    Chart,
    Section,
    Table,
    figure,
    legend_outside,
    plain_numbers,
    stacked_bars,
    unique,
)
from abstim.show.report.hot_source import hot_listings
from abstim.show.report.roofline import roofline_chart
from abstim.show.report.twice_as_fast import limits_chart
from abstim.show.tables import duration, quantity
from functional.ptx.source import shown_name

SHOWN_LAUNCHES = 200  # a chart shows the longest ones; the totals hold all
CACHES = ("l1d", "const", "l1i", "l2")

Run = dict[str, Any]  # `RunResult.to_json`


def run_section(run: Run) -> Section:
    """One target on one GPU."""
    total = run["totals"]
    facts = [
        ("Time", duration(total["seconds"])),
        ("Memory", run.get("memory_model", "not said")),
        ("Limited by", _limit(run)),
        ("Cycles", quantity(int(total["cycles"]))),
        ("Launches", quantity(len(run["launches"]))),
        ("Thread instructions", quantity(int(total["thread_instructions"]))),
        ("Thread instructions a cycle", quantity(float(total["ipc"]))),
        ("Occupancy", f"{_mean_occupancy(run):.0%}"),
    ]
    longest = sorted(_shown(run), key=lambda launch: -launch["cycles"])
    roofline = roofline_chart(run.get("gpu_values", {}), longest)
    charts = [
        _time_chart(run),
        limits_chart(run.get("limits", ())),
        _windows_chart(run),
        _balance_chart(run),
        _cache_chart(run),
        roofline,
    ]
    notes = []
    if len(run["launches"]) > SHOWN_LAUNCHES:
        notes.append(f"Charts by launch show the {SHOWN_LAUNCHES} longest of {len(run['launches'])} launches.")
    title, drawn = f"{run['target']} on {run['gpu']}", [c for c in charts if c is not None]
    return Section(title, facts, drawn, notes, hot_listings(run.get("hot", ())))


def _limit(run: Run) -> str:
    """Old results name none."""
    return f"{run['limit']} ({run['limit_basis']})" if run.get("limit") else "not said"


def comparison_section(runs: Sequence[Run]) -> Section:
    """One target on several GPUs: a chart of all, then a section each."""
    names = unique([run["gpu"] for run in runs])
    parts = {reason: [_slot_cycles(run["launches"], reason) for run in runs] for reason in SLOT_REASONS}
    plot = stacked_bars("GPU", "cycles", names, parts, SLOT_COLORS, "cycles")
    first = runs[0]["totals"]["cycles"]
    rows = [
        (
            name,
            run.get("memory_model", "not said"),
            int(run["totals"]["cycles"]),
            duration(run["totals"]["seconds"]),
            f"{first / run['totals']['cycles']:.2f}x",
            _limit(run),
        )
        for name, run in zip(names, runs, strict=True)
    ]
    best = min(runs, key=lambda run: run["totals"]["seconds"])
    summary = f"The fastest of {len(runs)} is {best['gpu']} with {duration(best['totals']['seconds'])}."
    table = Table(("GPU", "memory", "cycles", "time", f"speed against {names[0]}", "limited by"), rows)
    chart = Chart("Cycles by GPU, and where the issue slots went", summary, plot, table)
    mixed = len({run.get("memory_model") for run in runs}) > 1
    notes = ["Not alike: with perfect memory nothing behind the first-level caches takes time."] if mixed else []
    title = f"{runs[0]['target']} on {len(runs)} GPUs"
    return Section(title, charts=[chart], notes=notes, parts=[run_section(run) for run in runs])


def _mean_occupancy(run: Run) -> float:
    cycles = sum(launch["cycles"] for launch in run["launches"])
    return sum(launch["occupancy"] * launch["cycles"] for launch in run["launches"]) / max(1, cycles)


def _slot_cycles(launches: Sequence[dict[str, Any]], reason: str) -> float:
    """Cycles of some launches that a reason accounts for: their cycles, split as their issue slots are."""
    return sum(
        launch["cycles"] * launch["issue_slots"][reason] / max(1, sum(launch["issue_slots"].values()))
        for launch in launches
    )


def _names(launches: Sequence[dict[str, Any]]) -> list[str]:
    return [f"{launch['launch']} {launch['label'] or shown_name(launch['kernel'])}" for launch in launches]


def _shown(run: Run) -> list[dict[str, Any]]:
    launches = sorted(run["launches"], key=lambda launch: -launch["cycles"])[:SHOWN_LAUNCHES]
    return sorted(launches, key=lambda launch: launch["launch"])


def _time_chart(run: Run) -> Chart:
    launches = _shown(run)
    names = _names(launches)
    parts = {reason: [_slot_cycles([launch], reason) for launch in launches] for reason in SLOT_REASONS}
    plot = stacked_bars("launch", "cycles", names, parts, SLOT_COLORS, "cycles")
    shares = {reason: _slot_cycles(run["launches"], reason) / run["totals"]["cycles"] for reason in SLOT_REASONS}
    stall = max((reason for reason in SLOT_REASONS if reason != "issued"), key=shares.__getitem__)
    summary = (
        f"{shares['issued']:.0%} of the schedulers' cycles issued an instruction; "
        f"the largest loss is {stall.replace('_', ' ')} with {shares[stall]:.0%}."
    )
    columns = ("launch", "grid", "block", "cycles", "time", "IPC", *(r.replace("_", " ") for r in SLOT_REASONS))
    rows = [
        (
            name, "x".join(map(str, launch["grid"])), "x".join(map(str, launch["block"])), launch["cycles"],
            duration(launch["seconds"]), launch["ipc"],
            *(f"{parts[reason][k] / launch['cycles']:.1%}" for reason in SLOT_REASONS),
        )
        for k, (name, launch) in enumerate(zip(names, launches, strict=True))
    ]  # fmt: skip
    return Chart("Kernel time, and where the issue slots went", summary, plot, Table(columns, rows))


def _windows_chart(run: Run) -> Chart | None:
    """Issue over time, launches one after the other; None without `windows` (`abstim.show.timeline.windows`)."""
    from bokeh.models import LinearAxis, Range1d

    starts, rows, start = [], [], 0
    for launch in run["launches"]:
        windows = launch.get("windows") or {"window_cycles": 1, "warp_instructions": [], "resident_warp_cycles": []}
        width = windows["window_cycles"]
        pairs = zip(windows["warp_instructions"], windows["resident_warp_cycles"], strict=True)
        for k, (issued, resident) in enumerate(pairs):
            cycles = min(width, launch["cycles"] - k * width)
            rows.append((start + k * width, issued / cycles, resident / cycles))
        starts.append(start)
        start += launch["cycles"]
    if not rows:
        return None
    at, ipc, warps = ([*column] for column in zip(*rows, strict=True))
    plot = figure("cycle", "warp instructions a cycle", [("cycle", "@x{0,0}"), ("value", "@y{0.00}")])
    plot.step(at, ipc, mode="after", line_width=2, color=COLORS[0], legend_label="warp instructions")
    plot.extra_y_ranges = {"warps": Range1d(0, 1.05 * max(*warps, 1))}
    plot.add_layout(LinearAxis(y_range_name="warps", axis_label="resident warps, all SMs"), "right")
    plain_numbers(plot)
    plot.step(at, warps, mode="after", y_range_name="warps", line_dash="dashed", color=COLORS[1], legend_label="warps")
    plot.y_range.start, plot.y_range.end = 0, 1.05 * max(*ipc, 0.01)  # else the axis is as long as that of the warps
    peak = max(range(len(ipc)), key=ipc.__getitem__)
    summary = f"Warp instructions a cycle, highest at cycle {at[peak]:,} with {ipc[peak]:.2f}; {len(starts)} launches."
    table = Table(("from cycle", "warp instructions a cycle", "resident warps"), rows)
    return Chart("IPC over time", summary, legend_outside(plot), table)


def _balance_chart(run: Run) -> Chart:
    launches = run["launches"]
    count = max(len(launch["issue_slots_per_sm"]["issued"]) for launch in launches)
    parts = {reason: [0] * count for reason in SLOT_REASONS}
    for launch in launches:
        for reason, slots in launch["issue_slots_per_sm"].items():
            parts[reason] = [a + b for a, b in zip(parts[reason], slots, strict=True)]
    names = [str(sm) for sm in range(count)]
    plot = stacked_bars("SM", "scheduler cycles", names, parts, SLOT_COLORS, "scheduler cycles")
    issued = parts["issued"]
    mean = sum(issued) / count
    summary = f"The busiest of {count} SMs issued {max(issued) / max(mean, 1):.2f} times the mean, the idlest "
    summary += f"{min(issued) / max(mean, 1):.2f} times."
    columns = ("SM", *(reason.replace("_", " ") for reason in SLOT_REASONS))
    return Chart("Balance of the SMs", summary, plot, Table(columns, list(zip(names, *parts.values(), strict=True))))


def _cache_chart(run: Run) -> Chart | None:
    rows = []
    for cache in CACHES:
        counters = (f"{cache}_accesses", f"{cache}_misses")
        accesses, misses = (sum(launch["caches"].get(name, 0) for launch in run["launches"]) for name in counters)
        if accesses:
            rows.append((cache.upper(), accesses, misses, 1 - misses / accesses))
    if not rows:
        return None
    parts = {"hits": [rate for *_, rate in rows], "misses": [1 - rate for *_, rate in rows]}
    colors = {"hits": SLOT_COLORS["issued"], "misses": SLOT_COLORS["memory"]}
    plot = stacked_bars("cache", "share of accesses", [row[0] for row in rows], parts, colors, "share")
    summary = "Hit rates: " + ", ".join(f"{name} {rate:.1%}" for name, *_, rate in rows) + "."
    table = [(name, accesses, misses, f"{rate:.2%}") for name, accesses, misses, rate in rows]
    return Chart("Hit rates", summary, plot, Table(("cache", "accesses", "misses", "hit rate"), table))
