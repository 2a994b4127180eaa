"""Predicted against measured time on hardware: a table of kernels, whose programs lie in a folder the user names."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np

from abstim.brief import grouped
from abstim.gpu.config import domains, load_gpu
from abstim.gpu.spec import check
from abstim.models import run
from abstim.progress import Progress, silent
from abstim.session.result import LaunchResult
from abstim.study.validate import scatter
from functional.errors import InputError, refuse
from functional.files import number_in, table_rows
from sampling.statistics import spearman

COLUMNS = ("target", "gpu", "core_clock_hz", "flush", "time_ns", "class")
OPERATIONS = ("fp32", "fp64", "integer")  # optional columns, `_operations` behind each
SAME_WORK = 0.1  # of the operations: a kernel that differs by more was another one, whatever its time


@dataclass(frozen=True, slots=True)
class MeasuredTime:
    """A row: a launch of a target, or all of them together, took `time_ns` on a GPU at a core clock, its caches flushed
    or not. `target` is a suite benchmark, or the path in the user's folder of a `launches.json` or of a recorded trace.
    `operations` of all threads, by kind, where they were counted."""

    target: str
    gpu: str
    core_clock_hz: float
    flush: str
    time_ns: float
    kind: str  # the table's column "class"
    launch: int | None = None  # number in the target; None: all launches
    operations: dict[str, float] = field(default_factory=dict)

    @property
    def time_us(self) -> float:
        """In microseconds."""
        return self.time_ns / 1e3

    @property
    def name(self) -> str:
        """The target, and which of its launches."""
        return self.target if self.launch is None else f"{self.target} {self.launch}"


@dataclass(frozen=True, slots=True)
class TimedKernel:
    """A row and what is predicted of it. `ratio` = predicted / measured."""

    measured: MeasuredTime
    predicted_ns: float
    timed_code: str
    machine_code_share: float
    kernel: str = ""
    operations: dict[str, int] = field(default_factory=dict)

    @property
    def predicted_us(self) -> float:
        """In microseconds."""
        return self.predicted_ns / 1e3

    @property
    def ratio(self) -> float:
        """Predicted over measured time."""
        return self.predicted_ns / self.measured.time_ns

    @property
    def operations_error(self) -> float | None:
        """Differences of the three counts together, as a part of all that was measured; None where nothing was."""
        measured = self.measured.operations
        total = sum(measured.values())
        if not total or not self.operations:
            return None
        return sum(abs(self.operations[kind] - count) for kind, count in measured.items()) / total


@dataclass(frozen=True, slots=True)
class TimeErrors:
    """Kernels together: |ratio - 1|; `bias`: geometric mean of ratios; `rank_correlation`: None of fewer than three."""

    name: str
    kernels: int
    mean_error: float
    median_error: float
    error_90: float
    bias: float
    rank_correlation: float | None


def read_measured_times(path: Path) -> list[MeasuredTime]:
    """The table. Raises InputError for a missing column, a row that is not what it must be, and one that is there
    twice, and would count twice."""
    found = dict[tuple, MeasuredTime]()
    for where, text in table_rows(path, COLUMNS):
        row = _row(where, text)
        key = (row.name, row.gpu, row.core_clock_hz, row.flush)
        refuse(key in found, f"{where}: {row.name} on {row.gpu} is there twice; give one time, as their median")
        found[key] = row
    return list(found.values())


def _row(where: str, row: dict[str, str]) -> MeasuredTime:
    clock, time = (number_in(where, row, column) for column in ("core_clock_hz", "time_ns"))
    refuse(time <= 0, f"{where}: time_ns must be above 0")
    check("core_clock_hz", domains()["core_clock_hz"], clock, where)
    counted = {kind: f"{kind}_operations" for kind in OPERATIONS if row.get(f"{kind}_operations")}
    operations = {kind: number_in(where, row, column) for kind, column in counted.items()}
    launch = row.get("launch") or None
    refuse(launch is not None and not launch.isdecimal(), f"{where}: launch = {launch!r} is not the number of a launch")
    number = None if launch is None else int(launch)
    return MeasuredTime(row["target"], row["gpu"], clock, row["flush"], time, row["class"], number, operations)


def compare_times(
    rows: Sequence[MeasuredTime], programs: Path, progress: Progress = silent, timed_code: str = ""
) -> tuple[list[TimedKernel], list[str]]:
    """Each row, timed by the detailed engine; rows of one target on one GPU in one run. `timed_code`: as of `load_gpu`.
    And what was skipped, and why: a target or GPU that is not there, a launch that the target has not."""
    runs = grouped(rows, lambda row: (row.target, row.gpu, row.core_clock_hz, row.flush))
    found, skipped = list[TimedKernel](), list[str]()
    for number, ((target, gpu, clock, flush), own) in enumerate(runs.items()):
        progress(f"time {target}", number, len(runs))
        try:
            point = load_gpu(gpu, [f"core_clock_hz={clock:.0f}"], timed_code)
            launches = run(target_in(programs, target), point, flush=flush).launches
        except InputError as error:
            skipped.append(f"{target}: {error}")
            continue
        beyond = [row for row in own if row.launch is not None and row.launch >= len(launches)]
        skipped += [f"{row.name}: the target has {len(launches)} launches" for row in beyond]
        found += [_timed(row, launches) for row in own if row not in beyond]
    progress("time", len(runs), len(runs))
    refuse(not found, "; ".join(["nothing was compared", *skipped[:1]]))
    return found, skipped


def target_in(programs: Path, target: str) -> str:
    """What a row's target is: a path in a folder of programs, or a benchmark's name."""
    path = programs / target
    return str(path) if target.endswith(".json") or path.exists() else target


def _timed(row: MeasuredTime, launches: Sequence[LaunchResult]) -> TimedKernel:
    own = launches if row.launch is None else [launches[row.launch]]
    share = sum(x.machine_code_share * x.warp_instructions for x in own) / max(1, sum(x.warp_instructions for x in own))
    operations = {kind: sum(x.operations[kind] for x in own) for kind in OPERATIONS if own[0].operations}
    predicted_ns = 1e9 * sum(x.seconds for x in own)
    kernels = ", ".join(dict.fromkeys(x.kernel for x in own))
    return TimedKernel(row, predicted_ns, own[0].timed_code, share, kernels, operations)


def summarise(found: Sequence[TimedKernel]) -> list[TimeErrors]:
    """All of them, those that did the operations measured, then by GPU, then by class."""
    groups: dict[str, list[TimedKernel]] = {"all": list(found)}
    counted = [kernel for kernel in found if kernel.operations_error is not None]
    if counted:
        same = [kernel for kernel in counted if (kernel.operations_error or 0.0) <= SAME_WORK]
        groups[f"operations within {SAME_WORK:.0%}"] = same
    groups |= grouped(found, lambda kernel: f"GPU {kernel.measured.gpu}")
    groups |= grouped(found, lambda kernel: f"class {kernel.measured.kind}")
    return [_errors(name, kernels) for name, kernels in groups.items() if kernels]


def _errors(name: str, kernels: Sequence[TimedKernel]) -> TimeErrors:
    measured = np.array([k.measured.time_ns for k in kernels])
    predicted = np.array([k.predicted_ns for k in kernels])
    ratios = predicted / measured
    errors = np.abs(ratios - 1)
    bias = exp(sum(map(log, ratios.tolist())) / len(ratios))
    correlation = spearman(measured, predicted) if len(kernels) > 2 else None
    middle, high = (float(np.quantile(errors, q)) for q in (0.5, 0.9))
    return TimeErrors(name, len(kernels), float(errors.mean()), middle, high, bias, correlation)


def operations_median(found: Sequence[TimedKernel]) -> dict[str, tuple[float, int]]:
    """By kind of operation: median error of counts, and of how many kernels: those with a hundredth of that kind."""
    errors: dict[str, list[float]] = {kind: [] for kind in OPERATIONS}
    for kernel in found:
        total = sum(kernel.measured.operations.values())
        for kind, count in kernel.measured.operations.items():
            if kernel.operations and count > 0.01 * total:
                errors[kind].append(abs(kernel.operations[kind] / count - 1))
    return {kind: (float(np.median(own)), len(own)) for kind, own in errors.items() if own}


def plot(found: Sequence[TimedKernel], path: Path) -> None:
    """Predicted against measured time in us, a point a row, a colour a class."""
    groups = grouped(found, lambda kernel: kernel.measured.kind)
    points = {kind: [(k.measured.time_us, k.predicted_us) for k in own] for kind, own in groups.items()}
    scatter(points, path, "us, measured", "us, abstim")


def to_json(found: Sequence[TimedKernel], skipped: Sequence[str] = ()) -> dict[str, Any]:
    """Everything, as what `json.dumps` takes."""
    said = ("kernel", "timed_code", "predicted_ns", "ratio", "operations", "operations_error")
    names = {"operations": "predicted_operations"}
    kernels = [asdict(k.measured) | {names.get(name, name): getattr(k, name) for name in said} for k in found]
    medians = {kind: {"median": error, "kernels": n} for kind, (error, n) in operations_median(found).items()}
    summaries = [asdict(s) for s in summarise(found)]
    return {
        "kind": "silicon", "kernels": kernels, "summaries": summaries, "operations_errors": medians,
        "skipped": list(skipped),
    }  # fmt: skip
