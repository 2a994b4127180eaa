"""The parts of a page: sections of charts, each with a sentence and a table that say it without the picture."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from abstim.brief import grouped
from abstim.show.tables import Computed, cells


def named_beside(plot: Any, points: Any) -> Any:
    """Write each point's "label" beside it: towards the middle, now higher, now lower. The text's renderer."""
    source = points.data_source
    across = sorted(range(len(source.data["x"])), key=source.data["x"].__getitem__)
    places = {k: (place < len(across) / 2, place % 2) for place, k in enumerate(across)}
    for name, values in {"name_x": (-7, 7), "name_align": ("right", "left")}.items():
        source.data[name] = [values[places[k][0]] for k in range(len(across))]
    source.data["name_y"] = [(5, -8)[places[k][1]] for k in range(len(across))]
    style = {"x_offset": "name_x", "y_offset": "name_y", "text_align": "name_align", "text_font_size": "11px"}
    return plot.text("x", "y", "label", source=source, **style)


def hover_on(plot: Any, renderers: Sequence[Any]) -> None:
    """Say something at these only: the names would say it a second time."""
    plot.hover.renderers = list(renderers)


# Okabe and Ito's colours, told apart with any colour vision; they are legible on white and on near-black.
COLORS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#999999", "#8b6508")
_SLOTS = ("memory", "unit_busy", "issued", "barrier", "no_ready_warp", "empty")
SLOT_COLORS = dict(zip(_SLOTS, (COLORS[k] for k in (3, 1, 2, 4, 5, 6)), strict=True))
HEIGHT_PX = 340
NARROW_PX = 360  # of a chart on a telephone; a legend fits it, for its columns cannot change with the page
AXIS_PX = 80  # left of a plot, and the tools right of it
MOST_NAMES = 24
LEGEND_KEY_PX, LETTER_PX = 34, 7  # of an entry: its colour and the gaps; a letter of its name


@dataclass(frozen=True)
class Table:
    """The numbers behind a chart; cells are text or numbers."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]

    @classmethod
    def of(cls, columns: str, records: Iterable[Any], **computed: Computed) -> Table:
        """Of records: `tables.cells`."""
        return cls(*cells(columns, records, **computed))


@dataclass(frozen=True)
class Option:
    """What a chart shows if this is chosen: the renderers named `value`, under these axes."""

    value: str
    x_label: str
    y_label: str
    x_factors: Sequence[str] = ()  # of a categorical axis; empty leaves the axis as it is
    y_factors: Sequence[str] = ()


@dataclass(frozen=True)
class Chart:
    """A Bokeh figure, and what to tell somebody who does not see it."""

    title: str
    summary: str
    figure: Any
    table: Table
    options: Sequence[Option] = ()  # the first is shown at the beginning
    choice: str = ""  # what is chosen among them


@dataclass(frozen=True)
class SourceRow:
    """A line of a listing: its number, its share of the time (0 to 1), what it waited for, and its text."""

    line: int
    share: float
    why: str
    text: str


@dataclass(frozen=True)
class Listing:
    """A source with a bar a line."""

    title: str
    summary: str
    rows: Sequence[SourceRow]


@dataclass(frozen=True)
class Section:
    """A part of the page: one result on one GPU, one sweep of one target."""

    title: str
    facts: Sequence[tuple[str, str]] = ()
    charts: Sequence[Chart] = ()
    notes: Sequence[str] = ()
    listings: Sequence[Listing] = ()
    parts: Sequence[Section] = field(default_factory=tuple)

    def noted(self, note: str | None) -> Section:
        """With a note before its own, if there is one."""
        return replace(self, notes=[note, *self.notes]) if note else self


_STYLE = {
    "height": HEIGHT_PX, "sizing_mode": "stretch_width", "tools": "pan,box_zoom,wheel_zoom,reset",
    "toolbar_location": "right", "background_fill_color": None, "border_fill_color": None, "outline_line_color": None,
}  # fmt: skip


def figure(x: str, y: str, tooltips: Sequence[tuple[str, str]] | None = None, **options: Any) -> Any:
    """An empty Bokeh figure in the page's style, as wide as the page. `x_range`, `y_range`: of a categorical axis."""
    from bokeh.models import HoverTool
    from bokeh.plotting import figure as bokeh_figure

    found = bokeh_figure(x_axis_label=x, y_axis_label=y, **_STYLE, **options)
    plain_numbers(found)
    turn_names(found, getattr(found.x_range, "factors", None) or [])
    found.toolbar.logo, found.toolbar.active_scroll = None, None  # type: ignore[assignment]
    if tooltips is not None:
        found.add_tools(HoverTool(tooltips=list(tooltips)))
    return found


def plain_numbers(plot: Any) -> None:
    """Ticks as people write numbers: 250,000, and not 2.500e+5 or a power of ten."""
    from bokeh.models import LinearAxis, LogAxis, NumeralTickFormatter

    for axis in (*plot.select(LinearAxis), *plot.select(LogAxis)):
        axis.formatter = NumeralTickFormatter(format="0,0.[000]")


def turn_names(plot: Any, names: Sequence[str]) -> None:
    """Names along the x axis stand upright where they would touch on a telephone, and are left to the table if many."""
    if len(names) > MOST_NAMES:
        plot.xaxis.major_label_text_font_size = "0px"
    elif sum(LETTER_PX * len(str(name)) + LETTER_PX for name in names) > NARROW_PX - AXIS_PX:
        plot.xaxis.major_label_orientation = "vertical"


def bars(x: str, y: str, values: Mapping[str, float], form: str = "0,0.[0000]", least: float = 0.0) -> Any:
    """A bar for each of the named `values`, from `least` on."""
    plot = figure(x, y, [(x, "@x"), (y, f"@y{{{form}}}")], x_range=list(values))
    data = {"x": list(values), "y": list(values.values())}
    plot.vbar("x", 0.8, "y", least, source=data, color=COLORS[0], line_color=None)
    plot.y_range.start = least
    return plot


def stacked_bars(
    x: str, y: str, categories: Sequence[str], parts: Mapping[str, Sequence[float]], colors: dict[str, str], unit: str
) -> Any:
    """Bars, one a category, each a stack of `parts` (name -> value a category)."""
    from bokeh.models import ColumnDataSource

    names = {part: part.replace("_", " ") for part in parts}
    data: dict[str, Any] = {"category": list(categories)} | {names[p]: list(v) for p, v in parts.items()}
    found = figure(x, y, [(x, "@category"), ("part", "$name"), (unit, "@$name{0,0.[0000]}")], x_range=list(categories))
    shown, style = list(names.values()), {"color": [colors[part] for part in parts], "line_color": None}
    found.vbar_stack(shown, x="category", width=0.8, source=ColumnDataSource(data), legend_label=shown, **style)
    found.y_range.start = 0
    return legend_outside(found)


def dots(plot: Any, rows: Sequence[Mapping[str, Any]], x: str, y: str, series: str, **style: Any) -> Any:
    """Draw a dot a row, at two of its fields; rows of one of `series` have a colour, and an entry of the legend. What
    is said of a dot may be any field with a number or a text."""
    keys = [key for row in rows[:1] for key, value in row.items() if isinstance(value, str | int | float)]
    for k, (name, own) in enumerate(grouped(rows, lambda row: row[series]).items()):
        data = {key: [row[key] for row in own] for key in keys}
        plot.scatter(x, y, source=data, size=8, color=COLORS[k % len(COLORS)], legend_label=name, **style)
    return legend_outside(plot)


def legend_outside(found: Any) -> Any:
    """Move a figure's legend below its plot, where it hides no data; a click on an entry hides its part."""
    if found.legend:
        legend = found.legend[0]
        longest = max(len(str(getattr(item.label, "value", item.label))) for item in legend.items)
        legend.orientation, legend.click_policy = "horizontal", "hide"
        legend.ncols = max(1, min(len(legend.items), NARROW_PX // (LEGEND_KEY_PX + LETTER_PX * longest)))
        legend.background_fill_color, legend.border_line_color = None, None
        found.add_layout(legend, "below")
    return found


def unique(names: Sequence[str]) -> list[str]:
    """The names, numbered where they repeat: a category axis needs them different."""
    seen: dict[str, int] = {}
    found = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        found.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return found
