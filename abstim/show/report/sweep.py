"""The section of a sweep: what is fast for what it costs, how two parameters act together, and every point at once.

A sweep is a table, one row a design point: what was varied, names that the user defined, then `cycles` and `seconds`. A
number to the left of these two that is no key of a GPU is something the user defined: a cost."""

from collections.abc import Sequence
from dataclasses import asdict
from itertools import combinations
from typing import Any

import pandas
from bokeh.models import ColorBar, ColumnDataSource, LogColorMapper, Range1d
from bokeh.palettes import Viridis256

from abstim.gpu.spec import SECTIONS
from abstim.show.report.chart import COLORS, Chart, Option, Section, Table, bars, figure, turn_names
from abstim.show.tables import Computed, counted, duration, quantity
from abstim.study.explore.result import of_columns

SHOWN_POINTS = 4096  # drawn: the fastest of each Pareto front, then an even choice of the others
TABLE_POINTS = 1024  # in tables: the fastest
HEAT_PARAMETERS = 5  # those with the most values; every pair of them can be chosen
MOST_LEVELS = 24  # of a heat map's axis; more values are put into bins
TIME = "time (us)"


def is_number(column: pandas.Series) -> bool:
    """Does every row of a column hold a number?"""
    return column.dtype.kind in "iuf" and not column.hasnans


def shared_source(table: pandas.DataFrame, varied: list[str], fronts: dict[str, list[int]]) -> tuple[Any, list[int]]:
    """The points that are drawn: all charts of a sweep share them, so a selection in one shows in the others."""
    step = -(-len(table) // SHOWN_POINTS)
    # the fastest last: drawn on top
    shown = sorted({row for front in fronts.values() for row in front} | set(range(0, len(table), step)), reverse=True)
    data: dict[str, Any] = {c: table.loc[shown, c].tolist() for c in (*varied, *fronts, "cycles", "time_us", "known")}
    data["point"] = [", ".join(f"{key}={table.at[row, key]}" for key in varied) for row in shown]
    return ColumnDataSource(data), shown


def pareto_chart(table: pandas.DataFrame, source: Any, fronts: dict[str, list[int]]) -> Chart:
    """Time in microseconds against each cost; `fronts`: by cost, the rows of the points that nothing beats in both."""
    tooltips = [("point", "@point"), ("time", "@time_us{0,0.00} us@known"), ("cycles", "@cycles{0,0}")]
    first = next(iter(fronts))
    plot = figure(first, TIME, tooltips, y_axis_type="log")
    plot.add_tools("tap", "box_select")
    plot.x_range.only_visible = plot.y_range.only_visible = True
    for cost, front in fronts.items():
        ends = (table.loc[front, column].tolist() for column in (cost, "time_us"))
        line = plot.step(*ends, mode="after", color=COLORS[3], line_width=2)
        points = plot.scatter(cost, "time_us", source=source, size=6, color=COLORS[0], alpha=0.5)
        for renderer in (line, points):
            renderer.name, renderer.visible = cost, cost == first
    points = counted(len(table), "point is", "points are")
    summary = f"{len(fronts[first])} of {points} the fastest for their {first} or less. "
    summary += "Select points to see them in the parallel coordinates."
    rows = []
    for cost, front in fronts.items():
        for row in front:
            seconds, cycles = table.at[row, "seconds"], int(table.at[row, "cycles"])
            rows.append((cost, float(table.at[row, cost]), duration(seconds) + table.at[row, "known"], cycles))
    options, shown = [Option(cost, cost, TIME) for cost in fronts], Table(("against", "value", "time", "cycles"), rows)
    return Chart("Pareto front", summary, plot, shown, options, "Time against")


def _levels(column: pandas.Series) -> pandas.Series:
    """A parameter's values as text in ascending order, as a categorical; bins if they are many."""
    if column.nunique() <= MOST_LEVELS or not is_number(column):
        values = sorted(column.unique()) if is_number(column) else sorted(set(column.map(str)))
        return pandas.Series(pandas.Categorical(column.map(str), [str(v) for v in values]), column.index)
    bins = pandas.cut(column.astype(float), MOST_LEVELS)
    middles = [f"{interval.mid:.4g}" for interval in bins.cat.categories]
    return pandas.Series(pandas.Categorical.from_codes(bins.cat.codes, middles), column.index)


def _colors(table: pandas.DataFrame) -> Any:
    """Time to colour: the middle of Viridis, whose ends vanish on white or on black."""
    low, high = (float(end) for end in table["time_us"].agg(["min", "max"]))
    return LogColorMapper(list(Viridis256[56:232]), low=low, high=high)


def heat_chart(table: pandas.DataFrame, varied: Sequence[str]) -> Chart:
    """For every pair of parameters, the least time over all others."""
    chosen = sorted(varied, key=lambda key: -table[key].nunique())[:HEAT_PARAMETERS]
    levels = {key: _levels(table[key]) for key in varied if key in chosen}
    pairs = list(combinations(levels, 2))
    mapper = _colors(table)
    tooltips = [("x", "@x"), ("y", "@y"), ("least time", "@time_us{0,0.00} us")]
    names = {key: list(own.cat.categories) for key, own in levels.items()}
    options = [Option(f"{x} × {y}", x, y, names[x], names[y]) for x, y in pairs]
    plot = figure(*pairs[0], tooltips, x_range=options[0].x_factors, y_range=options[0].y_factors)
    rows: list[tuple] = []
    for (x, y), option in zip(pairs, options, strict=True):
        best = table["time_us"].groupby([levels[x], levels[y]], observed=True).min()
        cells = [(str(a), str(b), float(time)) for (a, b), time in best.items()]
        data = dict(zip(("x", "y", "time_us"), map(list, zip(*cells, strict=True)), strict=True))
        fill: Any = {"fill_color": {"field": "time_us", "transform": mapper}, "line_color": None}
        plot.rect("x", "y", 1, 1, source=data, name=option.value, visible=option is options[0], **fill)
        rows += [(option.value, a, b, duration(time / 1e6)) for a, b, time in cells]
    plot.add_layout(ColorBar(color_mapper=mapper, title=TIME, background_fill_color=None), "right")
    summary = f"Least time at each pair of values, over all other parameters; {len(pairs)} pairs to choose from."
    return Chart("Heat map", summary, plot, Table(("parameters", "x", "y", "least time"), rows), options, "Parameters")


def parallel_chart(table: pandas.DataFrame, shown: Sequence[int], varied: Sequence[str], source: Any) -> Chart:
    """A line a point, an axis a parameter; the colour is its time."""
    axes = [*varied, "seconds"]
    heights, ends = {}, {}
    for axis in axes:
        codes = table[axis] if is_number(table[axis]) else _levels(table[axis]).cat.codes
        low, high = float(codes.min()), float(codes.max())
        heights[axis] = ((codes - low) / ((high - low) or 1.0)).loc[shown].round(4).tolist()
        texts = [str(table[axis][codes == value].iloc[0]) for value in (low, high)]
        ends[axis] = texts if axis != "seconds" else [duration(value) for value in (low, high)]
    source.data["xs"] = [list(range(len(axes)))] * len(shown)
    source.data["ys"] = [list(line) for line in zip(*heights.values(), strict=True)]
    plot = figure("", "share of the range", [("point", "@point"), ("time", "@time_us{0,0.00} us@known")])
    plot.hover.line_policy = "nearest"
    plot.add_tools("tap")
    mapper = _colors(table)
    style: Any = {"line_color": {"field": "time_us", "transform": mapper}, "line_alpha": 0.5, "line_width": 1.2}
    style |= {"nonselection_line_alpha": 0.03, "selection_line_width": 2.5}
    plot.multi_line("xs", "ys", source=source, **style)
    plot.x_range = Range1d(-0.4, len(axes) - 0.6)  # room for the outer labels
    plot.xaxis.ticker = list(range(len(axes)))
    labels = [f"{axis}: {ends[axis][0]} to {ends[axis][1]}" for axis in axes]
    plot.xaxis.major_label_overrides = dict(enumerate(labels))
    turn_names(plot, labels)
    rows = [
        (*(row[key] for key in varied), int(row["cycles"]), duration(row["seconds"]) + row["known"])
        for row in table.head(TABLE_POINTS)[[*varied, "cycles", "seconds", "known"]].to_dict("records")
    ]
    over = f"{counted(len(shown), 'point', 'points')} over {counted(len(varied), 'parameter', 'parameters')}"
    summary = f"{over}, each axis from its least to its greatest value."
    return Chart("Parallel coordinates", summary, plot, Table((*varied, "cycles", "time"), rows))


def sensitivity_chart(found: Sequence[dict[str, Any]]) -> Chart:
    """What a sweep says of each key: time at its worst value over that at its best, and per cent for one per cent."""
    rows = sorted(found, key=lambda row: -row["swing"])
    first = rows[0]["key"]
    plot = bars("key", "time at worst / at best value", {row["key"]: row["swing"] for row in rows}, "0.00", least=1.0)
    summary = f"{first} matters most: its worst value takes {rows[0]['swing']:.2f} times as long as its best."
    columns = "key | worst / best: {swing:.3f}x | time for +1 % of it: {change} | best value: {best_value}"
    computed: dict[str, Computed] = {"best_value": lambda row: str(row["best"])}
    computed["change"] = lambda row: None if row["elasticity"] is None else f"{row['elasticity']:+.3f} %"
    return Chart("What matters", summary, plot, Table.of(columns, rows, **computed))


UNITS = ("_kib", "_gbps", "_mhz")  # of keys that stand for one of the GPU's: KiB of L2 for sets of L2
_OF_ONE_TARGET = ("cycles_", "seconds_")
_KEYS = {key if part in ("spec", "params") else f"{part}.{key}" for part, keys in SECTIONS.items() for key in keys}


def sweep_section(name: str, table: pandas.DataFrame) -> Section:
    """One part a target, if there is a column `target`. `table.attrs["sensitivity"]`: how much each key matters."""
    timed = table[table["seconds"] > 0]
    left_out = counted(len(table) - len(timed), "point without a time is", "points without a time are")
    notes = [f"{left_out} left out."] if len(timed) < len(table) else []
    if "found" in table.columns:
        estimated = int((timed["found"] == "estimated").sum())
        notes.append(f"{estimated:,} of {len(timed):,} times are estimates; each has its interval.")
    means = [column.removeprefix("cycles_") for column in table.columns if column.startswith("cycles_")]
    if means:
        notes.append(f"Times are geometric means over {', '.join(means)}.")
    groups = timed.groupby("target", sort=False) if "target" in table.columns else [("All points", timed)]
    parts = [_part(str(target), own) for target, own in groups if len(own)]
    return Section(f"Sweep {name}", [("Points", quantity(len(table)))], notes=notes, parts=parts)


def _part(title: str, table: pandas.DataFrame) -> Section:
    table = table.sort_values(["seconds", "cycles"], kind="stable").reset_index(drop=True)
    table["time_us"], table["known"] = 1e6 * table["seconds"], _known(table)
    varied, costs = _columns(table)
    best = table.iloc[0]
    facts = [("Points", quantity(len(table))), ("Fastest", duration(best["seconds"]))]
    facts += [(f"Fastest {key}", quantity(best[key])) for key in varied]
    notes = []
    if len(table) > TABLE_POINTS:
        notes.append(f"Tables hold the {TABLE_POINTS:,} fastest of {len(table):,} points.")
    if len(table) > SHOWN_POINTS:
        notes.append(f"Charts draw {SHOWN_POINTS:,} of {len(table):,} points: all on a front, evenly chosen others.")
    if not varied:
        return Section(title, facts, notes=[*notes, "No parameter of the GPU varies in this sweep."])
    fronts = {cost: pareto_front(table, cost) for cost in (*costs, *(key for key in varied if is_number(table[key])))}
    source, shown = shared_source(table, varied, fronts)
    charts = [pareto_chart(table, source, fronts)] if fronts else []
    charts += [heat_chart(table, varied)] if len(varied) > 1 else []
    charts.append(parallel_chart(table, shown, varied, source))
    if not (matters := table.attrs.get("sensitivity")):  # Parquet and CSV hold points alone
        columns = {key: table[key].to_numpy() for key in varied}
        columns = {key: c if c.dtype.kind in "if" else c.astype(str) for key, c in columns.items()}
        matters = [asdict(found) for found in of_columns(columns, table["seconds"].to_numpy())]
    charts.append(sensitivity_chart(matters))
    return Section(title, facts, charts, notes)


def _known(table: pandas.DataFrame) -> list[str]:
    """What to say behind each time: how wide its interval is, of a sweep with a stated error."""
    if "found" not in table.columns:
        return [""] * len(table)
    pairs = zip(table["found"], table["cycles_half_width"], strict=True)
    return [f" +- {half:.1%}, {found}" if found == "estimated" else f", {found}" for found, half in pairs]


def _columns(table: pandas.DataFrame) -> tuple[list[str], list[str]]:
    """(what was varied, what can be a cost besides): columns that hold more than one value."""
    left = [c for c in table.columns[: table.columns.get_loc("cycles")] if not c.startswith(_OF_ONE_TARGET)]
    asked = [c for c in left if c not in ("target", "point", "seconds")]
    asked += [c for c in table.columns if c in _KEYS and c not in left]
    several = [c for c in asked if table[c].nunique(dropna=False) > 1]
    friendly = [c for c in several if c.endswith(UNITS) and c not in _KEYS]
    varied = [c for c in several if c in friendly or (c in _KEYS and not _is_one_of(table, c, friendly))]
    return varied, [c for c in several if c not in _KEYS and c not in friendly and is_number(table[c])]


def _is_one_of(table: pandas.DataFrame, key: str, friendly: Sequence[str]) -> bool:
    """Does a column of `friendly` say the same as `key`, value for value?"""
    count = table[key].nunique()
    return any(table[c].nunique() == count == len(table[[key, c]].drop_duplicates()) for c in friendly)


def pareto_front(table: pandas.DataFrame, cost: str) -> list[int]:
    """Rows that no other row beats in both time and cost, cheapest first; one row of equal ones."""
    cheapest_first = table.sort_values([cost, "seconds"], kind="stable")["seconds"]
    fastest_before = cheapest_first.cummin().shift(fill_value=float("inf"))
    return cheapest_first.index[cheapest_first < fastest_before].tolist()
