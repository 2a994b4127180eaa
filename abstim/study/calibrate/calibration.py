"""All micro-benchmarks on a device, each beside the figure measured in public (`figures.csv`)."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from abstim.gpu.config import Gpu, nearest, with_values
from abstim.progress import Progress, silent
from abstim.study.calibrate.microbenchmarks import GROUPS, Device, Measurement, measurements
from functional.errors import InputError
from functional.files import read_text

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
        return [_figure(row) for row in csv.DictReader(read_text(table).splitlines())]
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


@dataclass(frozen=True, slots=True)
class Row:
    """One number, and the figure that was measured for it, if there is one."""

    group: str
    quantity: str
    at: int
    unit: str
    value: float
    measured: Figure | None

    @property
    def error(self) -> float | None:
        """Relative to the figure."""
        return self.value / self.measured.value - 1 if self.measured else None


@dataclass(frozen=True, slots=True)
class GroupError:
    """How far a group's numbers are from their figures: |error|, mean and worst."""

    group: str
    figures: int
    mean: float
    worst: float


@dataclass(frozen=True)
class Calibration:
    """What came of all of them on one device."""

    device: str
    core_clock_hz: float
    rows: list[Row]

    def errors(self) -> list[GroupError]:
        """By group, of those that have figures."""
        found = []
        for group in GROUPS:
            errors = [abs(r.error) for r in self.rows if r.group == group and r.error is not None]
            if errors:
                found.append(GroupError(group, len(errors), float(np.mean(errors)), max(errors)))
        return found

    def to_json(self) -> dict[str, Any]:
        """Everything, as what `json.dumps` takes."""
        rows = [asdict(row) | {"error": row.error} for row in self.rows]
        errors = [asdict(error) for error in self.errors()]
        return {
            "kind": "calibration", "device": self.device, "core_clock_hz": self.core_clock_hz, "rows": rows,
            "errors": errors,
        }  # fmt: skip


def at_measured_clock(gpu: Gpu, figures: list[Figure]) -> Gpu:
    """A description at the core clock at which its figures were measured; as it is if there are none."""
    clock = measured_clock_hz(gpu.name, figures)
    return gpu if clock is None else with_values(gpu, {"core_clock_hz": clock}, "at which the figures were measured")


def calibrate(
    device: Device, only: Sequence[str] = (), figures: list[Figure] | None = None, progress: Progress = silent
) -> Calibration:
    """Run the micro-benchmarks of the groups `only` (none named: all of them), and put each beside its figure.

    A group, or group and quantity as in `stream/read`. Raises InputError for one that is not there.
    """
    chosen = select(list(measurements(device.facts, device.effort)), only)
    known = figures_of(device.facts.name, read_figures() if figures is None else figures)
    rows = []
    for number, each in enumerate(chosen):
        progress(f"{each.group}/{each.quantity}", number, len(chosen))
        value = measure(device, each)
        rows.append(
            Row(each.group, each.quantity, each.at, each.unit, value, known.get((each.group, each.quantity, each.at)))
        )
    return Calibration(device.facts.name, device.facts.core_clock_hz, rows)


def select(every: list[Measurement], only: Sequence[str]) -> list[Measurement]:
    """Those of the groups, or groups and quantities, that are named. Raises InputError for a name of none."""
    names = {m.group for m in every} | {f"{m.group}/{m.quantity}" for m in every}
    for name in only:
        if name not in names:
            raise InputError(f"--only {name}: no such micro-benchmark{nearest(name, names)}")
    return [m for m in every if not only or m.group in only or f"{m.group}/{m.quantity}" in only]


def measure(device: Device, each: Measurement) -> float:
    """One number. Raises InputError if more work takes no more time: then it was not measured."""
    short, long = each.rounds
    seconds = device.seconds(each.experiment(long))
    if short:
        seconds -= device.seconds(each.experiment(short))
    if seconds <= 0:
        where = f"{each.group}/{each.quantity} at {each.at}"
        raise InputError(f"{device.facts.name}: {where}: {long} rounds take no longer than {short}")
    return each.value(seconds / (long - short))
