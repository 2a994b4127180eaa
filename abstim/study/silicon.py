"""Predicted against measured time on hardware: a table of kernels, whose programs lie in a folder the user names."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np

from abstim.gpu.config import load_gpu
from abstim.models import run
from abstim.progress import Progress, silent
from functional.errors import InputError

COLUMNS = ("target", "gpu", "core_clock_hz", "flush", "time_ns", "class")


@dataclass(frozen=True, slots=True)
class MeasuredTime:
    """A row: a target's launches took `time_ns` together on a GPU at a core clock, its caches flushed or not.

    `target` is a suite benchmark, or the path of a `launches.json` in the user's folder.
    """

    target: str
    gpu: str
    core_clock_hz: float
    flush: str
    time_ns: float
    kind: str  # the table's column "class"


@dataclass(frozen=True, slots=True)
class TimedKernel:
    """A row and what is predicted of it. `ratio` = predicted / measured."""

    measured: MeasuredTime
    predicted_ns: float
    timed_code: str
    machine_code_share: float

    @property
    def ratio(self) -> float:
        """Predicted over measured time."""
        return self.predicted_ns / self.measured.time_ns


@dataclass(frozen=True, slots=True)
class TimeErrors:
    """Some kernels together. Errors are |ratio - 1|; `bias` is the geometric mean of the ratios, `rank_correlation`
    Spearman's, None of fewer than three."""

    name: str
    kernels: int
    mean_error: float
    median_error: float
    error_90: float
    bias: float
    rank_correlation: float | None


def read_measured_times(path: Path) -> list[MeasuredTime]:
    """The table. Raises InputError for a missing column, or a row that is not what it must be."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from None
    missing = [c for c in COLUMNS if rows and c not in rows[0]]
    if missing or not rows:
        raise InputError(f"{path}: {'no rows' if not rows else 'no column ' + ', '.join(missing)}")
    return [_row(row, f"{path}: row {n}") for n, row in enumerate(rows, 2)]


def _row(row: dict[str, str], where: str) -> MeasuredTime:
    try:
        clock, time = float(row["core_clock_hz"]), float(row["time_ns"])
    except (TypeError, ValueError):
        raise InputError(f"{where}: core_clock_hz and time_ns must be numbers") from None
    if not (0 < time < float("inf") and 0 < clock < float("inf")):
        raise InputError(f"{where}: core_clock_hz and time_ns must be above 0")
    return MeasuredTime(row["target"], row["gpu"], clock, row["flush"], time, row["class"])


def compare_times(rows: Sequence[MeasuredTime], programs: Path, progress: Progress = silent) -> Iterator[TimedKernel]:
    """Each row, timed by the detailed engine. Raises InputError for a target or GPU that is not there."""
    for number, row in enumerate(rows):
        gpu = load_gpu(row.gpu, [f"core_clock_hz={row.core_clock_hz:.0f}"])
        target = programs / row.target if row.target.endswith(".json") else row.target
        result = run(str(target), gpu=gpu, flush=row.flush)
        launches = result.launches
        share = sum(x.machine_code_share * x.warp_instructions for x in launches)
        share /= max(1, sum(x.warp_instructions for x in launches))
        progress("time", number, len(rows))
        yield TimedKernel(row, 1e9 * result.totals["seconds"], launches[0].timed_code, share)


def summarise(found: Sequence[TimedKernel]) -> list[TimeErrors]:
    """All of them, then by GPU, then by class."""
    groups: dict[str, list[TimedKernel]] = {"all": list(found)}
    for kernel in found:
        groups.setdefault(f"GPU {kernel.measured.gpu}", []).append(kernel)
    for kernel in found:
        groups.setdefault(f"class {kernel.measured.kind}", []).append(kernel)
    return [_errors(name, kernels) for name, kernels in groups.items()]


def _errors(name: str, kernels: Sequence[TimedKernel]) -> TimeErrors:
    ratios = np.array([k.ratio for k in kernels])
    errors = np.abs(ratios - 1)
    bias = exp(sum(map(log, ratios.tolist())) / len(ratios))
    middle, high = (float(np.quantile(errors, q)) for q in (0.5, 0.9))
    return TimeErrors(name, len(kernels), float(errors.mean()), middle, high, bias, _rank_correlation(kernels))


def _rank_correlation(kernels: Sequence[TimedKernel]) -> float | None:
    from scipy.stats import spearmanr

    if len(kernels) < 3:
        return None
    return float(spearmanr([k.measured.time_ns for k in kernels], [k.predicted_ns for k in kernels])[0])


def to_json(found: Sequence[TimedKernel]) -> dict[str, Any]:
    """Everything, as what `json.dumps` takes."""
    kernels = [asdict(k.measured) | {"predicted_ns": k.predicted_ns, "ratio": k.ratio} for k in found]
    return {"kind": "silicon", "kernels": kernels, "summaries": [asdict(s) for s in summarise(found)]}
