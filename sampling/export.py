"""A selection as files for the user's own simulator: a reduced kernelslist.g, SimPoint's two files, or CSV."""

from __future__ import annotations

import csv
import re
from pathlib import Path

from sampling.errors import SamplingError
from sampling.selection import Selection

_KERNEL = re.compile(r"kernel-(\d+)\.traceg")


def write_kernelslist(selection: Selection, source: Path, folder: Path) -> Path:
    """Accel-Sim's list with the selected launches only; copies between host and device stay. Returns the file.

    Raises SamplingError where the list holds another number of launches than the selection was made from.
    """
    lines = source.read_text().splitlines()
    launches = [place for place, line in enumerate(lines) if _KERNEL.search(line)]
    if len(launches) != len(selection.strata):
        raise SamplingError(
            f"{source}: lists {len(launches)} kernels, but the selection was made from {len(selection.strata)} launches"
        )
    keep = {launches[unit] for unit in selection.units.tolist()} | (set(range(len(lines))) - set(launches))
    path = _fresh(folder, "kernelslist.g")
    path.write_text("".join(line + "\n" for place, line in enumerate(lines) if place in keep))
    return path


def write_simpoints(selection: Selection, folder: Path) -> tuple[Path, Path]:
    """SimPoint 3's formats: `unit cluster` a line, and `weight cluster` a line, weights summing to 1."""
    weights = selection.multipliers * selection.instructions[selection.units]
    weights = weights / weights.sum()
    points, shares = _fresh(folder, "launches.simpoints"), _fresh(folder, "launches.weights")
    numbers = list(enumerate(selection.units.tolist()))
    points.write_text("".join(f"{unit} {number}\n" for number, unit in numbers))
    shares.write_text("".join(f"{weights[number]:.9g} {number}\n" for number, _ in numbers))
    return points, shares


def write_csv(selection: Selection, folder: Path) -> Path:
    """Columns launch, stratum, multiplier, warp_instructions: the estimate is the sum of multiplier x cycles."""
    path = _fresh(folder, "selection.csv")
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("launch", "stratum", "multiplier", "warp_instructions"))
        for unit, multiplier in zip(selection.units.tolist(), selection.multipliers.tolist(), strict=True):
            rows.writerow((unit, selection.strata[unit], f"{multiplier:.9g}", f"{selection.instructions[unit]:.0f}"))
    return path


def _fresh(folder: Path, name: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder / name
