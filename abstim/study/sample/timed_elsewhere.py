"""Chosen launches that something else has timed, a profiler or another simulator: their times in, an estimate out."""

from __future__ import annotations

import csv
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from abstim.study.sample.sample_result import plain_estimate
from functional.errors import InputError
from sampling import Estimate, FirstInstructions, SamplingError, Selection
from sampling.bounds import bounded
from sampling.nsight import read_nsight_times
from sampling.selection_files import read_json

if TYPE_CHECKING:
    from jaxtyping import Float64

UNITS = ("cycles", "nanoseconds", "microseconds", "seconds")  # columns that times may stand in


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedElsewhere:
    """A program's time from those of its chosen launches, in the `unit` in which these were given."""

    target: str
    method: str
    unit: str
    launches: int
    selected: int
    estimate: Estimate

    def to_json(self) -> dict[str, Any]:
        """Everything, as what `json.dumps` takes."""
        return asdict(self) | {"kind": "sample-from-times", "estimate": plain_estimate(self.estimate)}


def estimate_from(selection: str, times: Path) -> TimedElsewhere:
    """`selection`: the selection.json of `write_selection`, or its folder; `times`: a CSV with a column `launch` and
    one of UNITS, or the output of `ncu --csv`, in the order of the launches.

    Raises InputError for files that are not what they should be, or of other launches than were selected.
    """
    path = Path(selection)
    try:
        chosen, method, target = read_json(path / "selection.json" if path.is_dir() else path)
        unit, found = _times(times, chosen)
        baseline = FirstInstructions() if method == "first" else chosen
        estimate = baseline.estimate(chosen, found) if method == "first" else chosen.estimate(found.tolist())  # type: ignore[call-arg,arg-type]
    except SamplingError as error:
        raise InputError(str(error)) from None
    return TimedElsewhere(
        target=target, method=method, unit=unit, launches=len(chosen.strata), selected=len(chosen.units),
        estimate=bounded(estimate, method),
    )  # fmt: skip


def _times(path: Path, selection: Selection) -> tuple[str, Float64[np.ndarray, " sample"]]:
    rows = _rows(path)
    if rows is None:
        unit, found = read_nsight_times(path)
    else:
        unit = next((unit for unit in UNITS if unit in rows[0]), "")
        found = _of_launches(path, rows, unit, selection)
    if len(found) != len(selection.units):
        raise InputError(f"{path}: {len(found)} times for {len(selection.units)} selected launches")
    if not (np.isfinite(found) & (found > 0)).all():
        raise InputError(f"{path}: a time is not a positive number")
    return unit, found


def _rows(path: Path) -> list[dict[str, str]] | None:
    """Of a table with a column `launch`; None for anything else."""
    try:
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from None
    return rows if rows and "launch" in rows[0] else None


def _of_launches(
    path: Path, rows: list[dict[str, str]], unit: str, selection: Selection
) -> Float64[np.ndarray, " sample"]:
    """In the order of the selection; a launch may be there several times, and counts with its mean."""
    if not unit:
        raise InputError(f"{path}: no column of times; name one {', '.join(UNITS)}")
    try:
        launches, times = np.array([int(row["launch"]) for row in rows]), np.array([float(row[unit]) for row in rows])
    except (TypeError, ValueError) as error:
        raise InputError(f"{path}: {error}") from None
    if missing := sorted(set(selection.units.tolist()) - set(launches.tolist())):
        raise InputError(f"{path}: no time of launch {missing[0]}, which was selected ({len(missing)} are missing)")
    return np.array([times[launches == unit].mean() for unit in selection.units])
