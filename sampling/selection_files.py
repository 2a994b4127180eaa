"""A selection as files for the user's own simulator or profiler: a reduced kernelslist.g, SimPoint's two files, Nsight
Compute's kernel ids, CSV, and JSON, which alone holds all that an estimate from their times takes."""

import json
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sampling.selection import SamplingError, Selection, text_of

_KERNEL = re.compile(r"kernel-(\d+)\.traceg")


def write_kernelslist(selection: Selection, source: Path, folder: Path) -> Path:
    """Accel-Sim's list with the selected launches only; copies between host and device stay. Returns the file. Raises
    SamplingError where the list holds another number of launches than the selection was made from."""
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
    chosen = (column[selection.units].tolist() for column in (selection.strata, selection.instructions))
    rows = zip(selection.units.tolist(), *chosen, selection.multipliers.tolist(), strict=True)
    lines = [f"{unit},{stratum},{multiplier:.9g},{count:.0f}\n" for unit, stratum, count, multiplier in rows]
    return _write(folder / "selection.csv", "".join(["launch,stratum,multiplier,warp_instructions\n", *lines]))


def write_kernel_ids(selection: Selection, kernels: Sequence[str], folder: Path) -> Path:
    """`--kernel-id ::NAME:N` of Nsight Compute, one a selected launch: the Nth of its kernel. `kernels`: by launch."""
    chosen, seen, lines = set(selection.units.tolist()), defaultdict[str, int](int), []
    for number, kernel in enumerate(kernels):
        seen[kernel] += 1
        if number in chosen:
            lines.append(f"--kernel-id ::{kernel}:{seen[kernel]}\n")
    return _write(folder / "ncu-kernel-ids.txt", "".join(lines))


_INTEGERS, _NUMBERS = ("units", "strata"), ("size", "instructions", "spread")


def write_json(selection: Selection, method: str, target: str, folder: Path) -> Path:
    """Everything, for `read_json`. `method`: by what name it was asked for; `target`: of what."""
    columns = {name: getattr(selection, name) for name in (*_INTEGERS, *_NUMBERS)}
    known: dict[str, Any] = {"kind": "selection", "method": method, "target": target}
    known |= {"bias": float(selection.bias), "in_a_row": selection.in_a_row}
    lists = {name: None if column is None else np.asarray(column).tolist() for name, column in columns.items()}
    return _write(folder / "selection.json", json.dumps(known | lists) + "\n")


def read_json(path: Path) -> tuple[Selection, str, str]:
    """What `write_json` wrote: the selection, its method and its target. Raises SamplingError for anything else."""
    text = text_of(path)
    try:
        data = json.loads(text)
        columns: dict[str, Any] = {name: np.array(data[name], np.int64) for name in _INTEGERS}
        columns |= {name: None if data[name] is None else np.array(data[name], float) for name in _NUMBERS}
        columns |= {"bias": float(data["bias"]), "in_a_row": bool(data.get("in_a_row"))}
        selection = Selection(method=str(data["method"]), **columns)
        _check(selection)
        return selection, str(data["method"]), str(data["target"])
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise SamplingError(f"{path}: no selection.json of `abstim sample --select-only` ({error})") from None


def _check(selection: Selection) -> None:
    count = len(selection.strata)
    columns = [column for column in (selection.size, selection.instructions) if len(column) == count]
    if len(columns) < 2 or not all((np.isfinite(column) & (column > 0)).all() for column in columns):
        raise ValueError("sizes and instructions are positive numbers, one a launch")
    if not 0 <= selection.bias < np.inf or (np.diff(selection.units) <= 0).any() or selection.units[0] < 0:
        raise ValueError("launches ascend, and the bias is no negative number")
    spread = np.zeros(1) if selection.spread is None else selection.spread
    if not (np.isfinite(spread) & (spread >= 0)).all() or len(spread) not in (1, int(selection.strata.max()) + 1):
        raise ValueError("a spread is no negative number, one a stratum")


def _write(path: Path, text: str) -> Path:
    """Others see the file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text)
    temporary.replace(path)
    return path
