"""The instruction roofline: warp instructions a cycle over warp instructions a byte, under what the GPU could do.

Roofs are issue (SMs x schedulers, one warp instruction a cycle each) and the bandwidth of L2 and DRAM, from the GPU's
own description: slices / l2_sector_cycles and channels / dram_sector_cycles, 32 B a sector.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from abstim.show.report.chart import COLORS, Chart, Table, figure, legend_outside

SECTOR_BYTES = 32


def roofline_chart(gpu: dict[str, Any], launches: Sequence[dict[str, Any]]) -> Chart | None:
    """One point a launch and level of memory; None if no launch went to L2, or the GPU's values are not known."""
    if not gpu or gpu["perfect_memory"]:
        return None
    slices = gpu["dram_channels"] * gpu["l2_slices_per_channel"]
    levels = {
        "L2": ("l2_accesses", SECTOR_BYTES * slices / max(gpu["l2_sector_cycles"], 1e-9)),
        "DRAM": ("dram_reads", SECTOR_BYTES * gpu["dram_channels"] / max(gpu["dram_sector_cycles"], 1e-9)),
    }
    peak = gpu["sm_count"] * gpu["schedulers_per_sm"]
    found = [_row(launch, level, *levels[level], peak) for launch in launches for level in levels]
    rows = [row for row in found if row is not None]
    if not rows:
        return None
    bounds = [f"{name} {share:.0%} of its {level} roof" for name, level, _, _, share in rows]
    summary = f"Issue allows {peak} warp instructions a cycle. " + "; ".join(bounds[:6]) + "."
    table = [(*row[:-1], f"{row[-1]:.1%}") for row in rows]
    columns = ("launch", "level", "warp instructions a byte", "warp instructions a cycle", "share of its roof")
    return Chart("Roofline", summary, _plot(rows, levels, peak), Table(columns, table))


def _row(launch: dict[str, Any], level: str, counter: str, bytes_per_cycle: float, peak: int) -> tuple | None:
    moved = SECTOR_BYTES * launch["caches"].get(counter, 0)
    if not moved:
        return None
    intensity, ipc = launch["warp_instructions"] / moved, launch["warp_ipc"]
    name = f"{launch['launch']} {launch['label'] or launch['kernel']}"
    return name, level, intensity, ipc, ipc / min(peak, intensity * bytes_per_cycle)


def _plot(rows: list[tuple], levels: dict[str, tuple[str, float]], peak: int) -> Any:
    from bokeh.models import ColumnDataSource

    tooltips = [("launch", "@name"), ("instructions a byte", "@x{0.000}"), ("a cycle", "@y{0.00}")]
    plot = figure(
        "warp instructions a byte", "warp instructions a cycle", tooltips, x_axis_type="log", y_axis_type="log"
    )
    knees = [peak / bandwidth for _, bandwidth in levels.values()]
    low = min([row[2] for row in rows] + knees) / 4
    high = max([row[2] for row in rows] + knees) * 4
    for (level, (_, bandwidth)), color in zip(levels.items(), COLORS, strict=False):
        knee = peak / bandwidth
        plot.line([low, knee, high], [low * bandwidth, peak, peak], color=color, line_width=2, legend_label=level)
        own = [row for row in rows if row[1] == level]
        data = {"name": [r[0] for r in own], "x": [r[2] for r in own], "y": [r[3] for r in own]}
        plot.scatter("x", "y", source=ColumnDataSource(data), size=9, color=color, alpha=0.8, legend_label=level)
    return legend_outside(plot)
