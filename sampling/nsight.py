"""Launches as Nsight Compute and Nsight Systems measured them: counts, names, shapes and times."""

import csv
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import numpy as np

from sampling.arrays import Float64
from sampling.selection import Profile, SamplingError, text_of

# Our name -> Nsight Compute's metric. Counts are sums over a launch; loads and stores count warp instructions, the
# "coalesced" ones 32-byte sectors; divergence efficiency is thread instructions a warp instruction.
METRICS = {
    "coalesced_global_loads": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "coalesced_global_stores": "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    "coalesced_local_loads": "l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum",
    "global_loads": "smsp__inst_executed_op_global_ld.sum",
    "global_stores": "smsp__inst_executed_op_global_st.sum",
    "local_loads": "smsp__inst_executed_op_local_ld.sum",
    "shared_loads": "smsp__inst_executed_op_shared_ld.sum",
    "shared_stores": "smsp__inst_executed_op_shared_st.sum",
    "global_atomics": "smsp__sass_inst_executed_op_global_atom.sum",
    "instructions": "smsp__inst_executed.sum",
    "divergence_efficiency": "smsp__thread_inst_executed_per_inst_executed.ratio",
    "thread_blocks": "launch__grid_size",
}
_TIME = ("gpc__cycles_elapsed.max", "sm__cycles_elapsed.max", "gpu__time_duration.sum")
_UNIT = " unit"  # behind a metric's name: what it is in


def features(counts: Mapping[str, np.ndarray]) -> Float64[np.ndarray, "launch 12"]:
    """The matrix from a column a characteristic, by the names of METRICS. Raises SamplingError for a missing one."""
    missing = [name for name in METRICS if name not in counts]
    if missing:
        raise SamplingError(f"PKA needs twelve characteristics of every launch; missing: {', '.join(missing)}")
    return np.stack([np.asarray(counts[name], float) for name in METRICS], axis=1)


def read_nsight_compute(path: Path) -> Profile:
    """A profile from `ncu --csv`, wide (`--page raw`) or one row a metric. Raises SamplingError for a metric it lacks.
    `cycles` are elapsed cycles, or nanoseconds where only the duration was collected; None without either."""
    if not (launches := list(_launches(path))):
        raise SamplingError(f"{path}: no launches; is it the output of `ncu --csv`?")
    columns = {name: _column(launches, metric, path) for name, metric in METRICS.items()}
    time = next((metric for metric in _TIME if metric in launches[0]), None)
    names = [launch.get("Kernel Name", "") for launch in launches]
    return Profile(
        instructions=columns["instructions"],
        kernels=np.unique(names, return_inverse=True)[1].reshape(-1),
        thread_instructions=columns["instructions"] * columns["divergence_efficiency"],
        thread_blocks=columns["thread_blocks"].astype(np.int64),
        threads_per_block=np.array([_volume(launch.get("Block Size", "")) for launch in launches], np.int64),
        features=features(columns),
        cycles=None if time is None else _column(launches, time, path),
    )


def read_nsight_times(path: Path) -> tuple[str, Float64[np.ndarray, " launch"]]:
    """Unit (cycles, else nanoseconds) and time of every launch in `ncu --csv`. Raises SamplingError without them."""
    launches = list(_launches(path))
    time = next((metric for metric in _TIME if launches and metric in launches[0]), None)
    if time is None:
        raise SamplingError(f"{path}: no times of launches; collect one with `ncu --csv --metrics {_TIME[0]}`")
    return "cycles" if time.endswith("cycles_elapsed.max") else "nanoseconds", _column(launches, time, path)


def _launches(path: Path) -> Iterator[dict[str, str]]:
    """One dict a launch, whichever way the file is laid out."""
    rows = _rows(path, lambda line: line.replace('"', "").startswith("ID,"))
    if not rows or "Metric Name" not in rows[0]:
        units = {} if not rows or rows[0]["ID"] else {f"{name}{_UNIT}": unit for name, unit in rows[0].items()}
        yield from (row | units for row in rows if row.get("ID", "").strip().isdigit())  # the row of units has no ID
        return
    found: dict[str, dict[str, str]] = {}
    for row in rows:
        launch = found.setdefault(row["ID"], dict(row))
        launch[row["Metric Name"]] = row["Metric Value"]
        launch[row["Metric Name"] + _UNIT] = row.get("Metric Unit", "")
    yield from found.values()


def _rows(path: Path, is_header: Callable[[str], bool]) -> list[dict[str, str]]:
    """Rows after whatever the profiler printed before the header."""
    lines = text_of(path).splitlines()
    start = next((n for n, line in enumerate(lines) if is_header(line)), None)
    return [] if start is None else list(csv.DictReader(lines[start:]))


def _column(launches: list[dict[str, str]], metric: str, path: Path) -> Float64[np.ndarray, " launch"]:
    unit = _nanoseconds if metric == _TIME[-1] else lambda text: 1.0
    try:
        return np.array([_number(launch[metric]) * unit(launch.get(metric + _UNIT) or "ns") for launch in launches])
    except (KeyError, AttributeError):
        raise SamplingError(f"{path}: no metric {metric}; collect it with `ncu --metrics {metric},...`") from None
    except ValueError as error:
        raise SamplingError(f"{path}: {metric}: {error}") from None


def _number(text: str) -> float:
    """Commas stand between thousands. Raises ValueError for others, which some languages have for a point."""
    if "," in text and not re.fullmatch(r"\d{1,3}(,\d{3})+(\.\d+)?", text.strip()):
        raise ValueError(f"{text!r}: commas are read between thousands alone; run the profiler in English")
    return float(text.replace(",", ""))


def _nanoseconds(unit: str) -> float:
    """Of a unit, which profilers choose to suit the number: `ns`, `nsec`, `nsecond`. Raises ValueError for others."""
    if (short := re.fullmatch(r"([num]?)s(ec|econds?)?", unit.strip())) is None:
        raise ValueError(f"{unit!r} is no unit of time")
    return {"n": 1.0, "u": 1e3, "m": 1e6, "": 1e9}[short[1]]


def _volume(text: str) -> int:
    """`(16, 16, 1)` -> 256; 0 for anything else."""
    sides = [side.strip() for side in text.strip().strip("()").split(",")]
    return int(np.prod([int(side) for side in sides])) if all(side.isdigit() for side in sides) else 0


NAME_COLUMNS = 32  # a kernel's name is hashed into that many indicator columns
_GRID = ("GrdX", "GrdY", "GrdZ", "BlkX", "BlkY", "BlkZ")


@dataclass(frozen=True, eq=False)
class LightProfile:
    """What a profiler gives at almost no cost, one row a launch in order."""

    names: list[str]
    dimensions: Float64[np.ndarray, "launch d"]  # grid, block, and whatever else is known (tensor shapes)
    nanoseconds: Float64[np.ndarray, " launch"] | None = None

    def columns(self) -> Float64[np.ndarray, "launch column"]:
        """Name indicators and logarithms of the dimensions."""
        slots = np.array([zlib.crc32(name.encode()) % NAME_COLUMNS for name in self.names])
        return np.hstack([np.eye(NAME_COLUMNS)[slots], np.log1p(self.dimensions)])


def padded(rows: Sequence[Sequence[float]]) -> Float64[np.ndarray, "row most"]:
    """Rows of different lengths as one array, 0 behind the shorter ones."""
    return np.array(list(zip_longest(*rows, fillvalue=0.0)), float).reshape(-1, len(rows)).T


def read_nsight_systems(path: Path) -> LightProfile:
    """Kernels of `nsys stats --report cuda_gpu_trace --format csv`; copies, which have no grid, are left out. Columns
    that begin with "Tensor", which a framework's annotations may add, are dimensions too."""
    rows = [row for row in _rows(path, lambda line: "GrdX" in line and "Name" in line) if row["GrdX"]]
    if not rows:
        raise SamplingError(f"{path}: no kernels; make it with `nsys stats --report cuda_gpu_trace --format csv`")
    time = next((name for name in rows[0] if name.startswith("Duration")), None)
    try:
        dimensions = np.array([[float(row[side]) for side in _GRID] for row in rows])
        tensors = [name for name in rows[0] if name.lower().startswith("tensor")]  # such as `[8, 64, 112, 112]`
        found = [[[float(n) for n in re.findall(r"[\d.]+", row[name] or "")] for row in rows] for name in tensors]
        dimensions = np.hstack([dimensions, *map(padded, found)])
        unit = re.search(r"\((.*)\)", time or "")
        each = _nanoseconds(unit[1] if unit else "ns")
        spent = None if time is None else np.array([_number(row[time]) * each for row in rows])
    except (KeyError, ValueError) as error:
        raise SamplingError(f"{path}: a kernel's row has no usable {error}") from None
    return LightProfile([row["Name"] for row in rows], dimensions, spent)
