"""Errors of estimates as points on a logarithmic axis, and what the points say besides."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from abstim.show.report.chart import COLORS

# What an error counts at least: a logarithmic axis has no zero, and a single one would make a geometric mean 0
LEAST_ERROR = 1e-4
LEAST_PERCENT = 100 * LEAST_ERROR
AXIS = "error (%)"
TOOLTIPS = (("", "@label"), ("error", "@percent{0.00[00]}%"), ("true cycles in its interval", "@inside"))
LEGEND = f"Hollow points: the true cycles are outside the interval. Triangles: an error of {LEAST_PERCENT:g}% or less."


class ErrorPoint(NamedTuple):
    """An error (of 1) at a place of the horizontal axis; `covered`: the interval holds the true value."""

    label: str
    x: Any
    error: float
    covered: bool


def error_points(plot: Any, points: Iterable[ErrorPoint], color: str = COLORS[0], **options: Any) -> Any:
    """Draw them; those without a finite place are left out. The renderer."""
    from bokeh.models import ColumnDataSource

    drawn = [point for point in points if not isinstance(point.x, float) or math.isfinite(point.x)]
    data: dict[str, Sequence[Any]] = {
        "label": [point.label for point in drawn],
        "x": [point.x for point in drawn],
        "y": [max(100 * point.error, LEAST_PERCENT) for point in drawn],
        "percent": [100 * point.error for point in drawn],
        "inside": ["yes" if point.covered else "no" for point in drawn],
        "fill": [0.75 if point.covered else 0.0 for point in drawn],
        "marker": ["circle" if point.error > LEAST_ERROR else "inverted_triangle" for point in drawn],
    }
    return plot.scatter("x", "y", source=ColumnDataSource(data), marker="marker", size=9, color=color,
                        fill_alpha="fill", line_width=2, **options)  # fmt: skip


def plain_numbers(plot: Any) -> None:
    """Along logarithmic axes, in place of powers of ten."""
    from bokeh.models import NumeralTickFormatter

    for axis in plot.axis:
        if axis.__class__.__name__ == "LogAxis":
            axis.formatter = NumeralTickFormatter(format="0.[00]")
