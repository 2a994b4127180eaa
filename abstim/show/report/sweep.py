"""The section of a sweep: what is fast for what it costs, how two parameters act together, and every point at once.

A sweep is a table, one row a design point: what was varied, names that the user defined, then `cycles` and `seconds`. A
number to the left of these two that is no key of a GPU is something the user defined: a cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from abstim.gpu.spec import SECTIONS
from abstim.show.report.chart import Section
from abstim.show.report.sweep_charts import (
    SHOWN_POINTS,
    TABLE_POINTS,
    heat_chart,
    is_number,
    parallel_chart,
    pareto_chart,
    sensitivity_chart,
    shared_source,
)
from abstim.show.tables import duration, quantity
from abstim.study.explore.sensitivity import of_columns

if TYPE_CHECKING:
    import pandas

UNITS = ("_kib", "_gbps", "_mhz")  # of keys that stand for one of the GPU's: KiB of L2 for sets of L2
_OF_ONE_TARGET = ("cycles_", "seconds_")
_KEYS = {
    key if section in ("spec", "params") else f"{section}.{key}" for section in SECTIONS for key in SECTIONS[section]
}


def sweep_section(name: str, table: pandas.DataFrame) -> Section:
    """One part a target, if there is a column `target`. `table.attrs["sensitivity"]`: how much each key matters."""
    timed = table[table["seconds"] > 0]
    notes = [f"{len(table) - len(timed):,} points without a time are left out."] if len(timed) < len(table) else []
    means = [column.removeprefix("cycles_") for column in table.columns if column.startswith("cycles_")]
    if means:
        notes.append(f"Times are geometric means over {', '.join(means)}.")
    groups = timed.groupby("target", sort=False) if "target" in table.columns else [("All points", timed)]
    parts = [_part(str(target), own) for target, own in groups if len(own)]
    return Section(f"Sweep {name}", [("Points", quantity(len(table)))], notes=notes, parts=parts)


def _part(title: str, table: pandas.DataFrame) -> Section:
    table = table.sort_values(["seconds", "cycles"], kind="stable").reset_index(drop=True)
    table["time_us"] = 1e6 * table["seconds"]
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
    charts.append(sensitivity_chart(table.attrs.get("sensitivity") or _sensitivity(table, varied)))
    return Section(title, facts, charts, notes)


def _sensitivity(table: pandas.DataFrame, varied: Sequence[str]) -> list[dict[str, Any]]:
    """How much each key matters, of a table that does not say it: Parquet and CSV hold points alone."""
    columns = {key: table[key].to_numpy() for key in varied}
    columns = {key: c if c.dtype.kind in "if" else c.astype(str) for key, c in columns.items()}
    return [asdict(found) for found in of_columns(columns, table["seconds"].to_numpy())]


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
