"""Names of points, as text beside them, where it hides as little as may be of other points and names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

# Where text goes, from the point: pixels to the right, pixels down, what of the text is there.
_PLACES = ((7, 5, "left"), (-7, 5, "right"), (0, -8, "center"), (0, 18, "center"))
_START = {"left": 0.0, "center": 0.5, "right": 1.0}  # share of the text that is left of that
_WIDTH, _HEIGHT, _LETTER, _LINE, _POINT = 1000, 240, 6, 11, 5  # pixels, about: the plot, text, half a point

Box = tuple[float, float, float, float]  # left, top, right, bottom


def named_beside(plot: Any, points: Any, log_axes: str = "") -> Any:
    """Write each point's "label", of points in "x" and "y", beside it. `log_axes`: of "xy". The text's renderer."""
    source = points.data_source
    x, y = (_shares(source.data[axis], axis in log_axes) for axis in "xy")
    pixels = [(_WIDTH * a, _HEIGHT * (1 - b)) for a, b in zip(x, y, strict=True)]
    places = _places(pixels, source.data["label"])
    for column, name in enumerate(("name_x", "name_y", "name_align")):
        source.data[name] = [place[column] for place in places]
    return plot.text("x", "y", "label", source=source, x_offset="name_x", y_offset="name_y", text_align="name_align",
                     text_font_size="11px")  # fmt: skip


def _shares(values: Sequence[float], log: bool) -> list[float]:
    """Of the way from the least value to the greatest, which are a twentieth from the ends of the axis."""
    scaled = [math.log(value) for value in values] if log else list(values)
    low, high = min(scaled, default=0.0), max(scaled, default=0.0)
    return [0.05 + 0.9 * (value - low) / ((high - low) or 1.0) for value in scaled]


def _places(points: Sequence[tuple[float, float]], names: Sequence[str]) -> list[tuple[int, int, str]]:
    """One a point: the first that hides least."""
    taken: list[Box] = [(x - _POINT, y - _POINT, x + _POINT, y + _POINT) for x, y in points]
    found = []
    for (x, y), name in zip(points, names, strict=True):
        boxes = [_box(x + right, y + down, name, _START[align]) for right, down, align in _PLACES]
        hidden = [sum(_overlap(box, other) for other in taken) + 9 * _outside(box) for box in boxes]
        best = hidden.index(min(hidden))
        taken.append(boxes[best])
        found.append(_PLACES[best])
    return found


def _box(x: float, bottom: float, name: str, start: float) -> Box:
    width = _LETTER * len(name)
    return x - start * width, bottom - _LINE, x + (1 - start) * width, bottom


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _outside(box: Box) -> bool:
    return box[0] < 0 or box[2] > _WIDTH


def hover_on(plot: Any, renderers: Sequence[Any]) -> None:
    """Say something at these only: the names would say it a second time."""
    plot.hover.renderers = list(renderers)
