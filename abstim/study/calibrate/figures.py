"""Figures measured on hardware and published, with their sources: `figures.csv` beside this file."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from functional.errors import InputError

TABLE = Path(__file__).with_name("figures.csv")


@dataclass(frozen=True, slots=True)
class Figure:
    """What was measured for one of our measurements: in its unit, on a GPU at a core clock, by whom."""

    gpu: str  # the description it is held against
    group: str
    quantity: str
    at: int
    unit: str
    value: float
    core_clock_hz: float
    measured_on: str
    source: str


def read_figures(table: Path = TABLE) -> list[Figure]:
    """All of a table. Raises InputError for one that cannot be read or has other columns."""
    try:
        with table.open(newline="", encoding="utf-8") as file:
            return [_figure(row) for row in csv.DictReader(file)]
    except (OSError, UnicodeDecodeError, KeyError, ValueError, TypeError) as error:
        raise InputError(f"{table}: no table of figures: {type(error).__name__}: {error}") from None


def _figure(row: dict[str, str]) -> Figure:
    return Figure(
        row["gpu"], row["group"], row["quantity"], int(row["at"]), row["unit"], float(row["value"]),
        1e6 * float(row["core_clock_MHz"]), row["measured_on"], row["source"],
    )  # fmt: skip


def figures_of(gpu: str, figures: list[Figure]) -> dict[tuple[str, str, int], Figure]:
    """Those of one description, by group, quantity and place."""
    return {(f.group, f.quantity, f.at): f for f in figures if f.gpu == gpu}


def measured_clock_hz(gpu: str, figures: list[Figure]) -> float | None:
    """The core clock at which a description's figures were measured; None: there are none."""
    return next((f.core_clock_hz for f in figures if f.gpu == gpu), None)
