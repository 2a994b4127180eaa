"""A selection as files for the user's own simulator: a reduced kernelslist.g, SimPoint's two files, or CSV."""

from __future__ import annotations

import csv
import io
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
    return _write(folder / "kernelslist.g", "".join(line + "\n" for place, line in enumerate(lines) if place in keep))


def write_simpoints(selection: Selection, folder: Path) -> tuple[Path, Path]:
    """SimPoint 3's formats: `unit cluster` a line, and `weight cluster` a line, weights summing to 1."""
    weights = selection.multipliers * selection.instructions[selection.units]
    weights = weights / weights.sum()
    numbers = list(enumerate(selection.units.tolist()))
    points = "".join(f"{unit} {number}\n" for number, unit in numbers)
    shares = "".join(f"{weights[number]:.9g} {number}\n" for number, _ in numbers)
    return _write(folder / "launches.simpoints", points), _write(folder / "launches.weights", shares)


def write_csv(selection: Selection, folder: Path) -> Path:
    """Columns launch, stratum, multiplier, warp_instructions: the estimate is the sum of multiplier x cycles."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(("launch", "stratum", "multiplier", "warp_instructions"))
    for unit, multiplier in zip(selection.units.tolist(), selection.multipliers.tolist(), strict=True):
        rows.writerow((unit, selection.strata[unit], f"{multiplier:.9g}", f"{selection.instructions[unit]:.0f}"))
    return _write(folder / "selection.csv", text.getvalue())


def _write(path: Path, text: str) -> Path:
    """Others see the file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text)
    temporary.replace(path)
    return path
