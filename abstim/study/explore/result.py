"""The result of a sweep: a row a point in the order of the grid, and how much the time depends on each varied key."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from abstim.brief import Brief
from abstim.extras import need
from abstim.study.explore.estimated import EstimatedTargets
from abstim.study.explore.expressions import Expression
from abstim.study.explore.jobs import Work
from abstim.study.explore.points import Points
from abstim.study.explore.search import front
from functional.arrays import Bool, Float, Int64
from functional.keep.folder import check_output, write_output


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """`elasticity`: per cent of time for one per cent more of the key (None for words and for values of 0).

    `swing`: time at the key's worst value over time at its `best`; exactly 1 if the key alone never matters."""

    key: str
    elasticity: float | None
    swing: float
    best: object


def of_columns(columns: Mapping[str, np.ndarray], seconds: Float[np.ndarray, " point"]) -> list[Sensitivity]:
    """Of varied keys: least squares of log time on the logarithms of all numeric keys, and on words, together.

    A key's swing is between geometric means over its values, after what the fit says of the other keys is taken off.
    Of a key that has one value on all these points nothing is known: it is left out."""
    logs, columns = np.log(seconds), {key: column for key, column in columns.items() if len(np.unique(column)) > 1}
    parts = {key: _regressors(column) for key, column in columns.items()}
    design = np.concatenate([*parts.values(), np.ones((len(logs), 1))], 1)
    fitted = np.linalg.lstsq(design, logs, rcond=None)[0]
    found, first = [], 0
    for key, part in parts.items():
        own = fitted[first : first + part.shape[1]]
        first += part.shape[1]
        slope = float(own[0]) if columns[key].dtype.kind in "if" and part.shape[1] == 1 else None
        if _never_matters(columns, key, logs):
            found.append(Sensitivity(key, None if slope is None else 0.0, 1.0, columns[key][0].item()))
            continue
        values, group = np.unique(columns[key], return_inverse=True)
        means = np.bincount(group, logs - design @ fitted + part @ own) / np.bincount(group)
        swing = float(np.exp(means.max() - means.min()))
        found.append(Sensitivity(key, slope, swing, values[means.argmin()].item()))
    return found


def _regressors(values: np.ndarray) -> Float[np.ndarray, "point regressor"]:
    """The logarithm of positive numbers; for anything else a column for each value but the first."""
    if values.dtype.kind in "if" and values.min() > 0:
        return np.log(values)[:, None]
    return np.stack([np.zeros(len(values)), *((values == v).astype(float) for v in np.unique(values)[1:])], 1)[:, 1:]


def _never_matters(columns: Mapping[str, np.ndarray], key: str, logs: np.ndarray) -> bool:
    """Whether points that differ in the key alone all take the same time, and half of the points have such others."""
    group = np.zeros(len(logs), np.int64)
    for other, column in columns.items():
        if other != key:  # after each column numbered anew, so that numbers stay small
            values, place = np.unique(column, return_inverse=True)
            group = np.unique(group * len(values) + place, return_inverse=True)[1]
    counts = np.bincount(group)
    low, high = np.full(len(counts), np.inf), np.full(len(counts), -np.inf)
    np.minimum.at(low, group, logs)
    np.maximum.at(high, group, logs)
    return bool((low == high).all() and (counts[group] > 1).mean() >= 0.5)


FORMATS = (".parquet", ".csv", ".json")


def measures(
    targets: Sequence[str], points: Points, cycles: Float[np.ndarray, "point target"]
) -> dict[str, np.ndarray]:
    """Columns of what was found: cycles and seconds, of each target and as geometric means if there are several."""
    seconds = cycles / points.values("core_clock_hz").astype(float)[:, None]
    columns: dict[str, np.ndarray] = {}
    if len(targets) > 1:
        for t, target in enumerate(targets):
            columns[f"cycles_{target}"], columns[f"seconds_{target}"] = cycles[:, t], seconds[:, t]
        cycles, seconds = (np.exp(np.log(values).mean(1))[:, None] for values in (cycles, seconds))
    return columns | {"cycles": cycles[:, 0], "seconds": seconds[:, 0]}


def values_of(
    objectives: Sequence[Expression], targets: Sequence[str], points: Points, cycles: Float[np.ndarray, "point target"]
) -> Float[np.ndarray, "point objective"]:
    """Every objective at every point, from predicted or measured cycles. What it may name `time` is the seconds."""
    found = measures(targets, points, cycles)
    found["time"] = found["seconds"]
    return np.stack([points.evaluate(objective, found).astype(float) for objective in objectives], 1)


@dataclass(frozen=True, repr=False)
class Exploration(Brief):
    """The points of a sweep and their cycles. `reasons`: why a point has none for some target ("" if it has all)."""

    gpu: str
    targets: tuple[str, ...]
    objectives: tuple[Expression, ...]
    points: Points
    cycles: Int64[np.ndarray, "point target"]  # negative: none
    reasons: list[str]
    predicted_cycles: Float[np.ndarray, "point target"] | None  # by the screen, if there was one
    work: Work
    candidates: int  # points looked at, those that only the screen has seen included
    sensitivity: list[Sensitivity] = field(default_factory=list)
    sampled: EstimatedTargets | None = None  # the intervals, where cycles are estimates
    note: str = ""  # what keeps the times from being what they should be

    @property
    def timed(self) -> Bool[np.ndarray, " point"]:
        """Points on which every target ran."""
        return np.asarray((self.cycles > 0).all(1))

    @property
    def memory_model(self) -> str:
        """Of the GPU, unless it varies."""
        return "varied" if "perfect_memory" in self.points.columns else self.points.space.gpu.memory_model

    def objective_values(self) -> Float[np.ndarray, "timed objective"]:
        """Every objective at every timed point."""
        cycles = self.cycles[self.timed].astype(float)
        return values_of(self.objectives, self.targets, self.points.where(self.timed), cycles)

    def pareto(self) -> Int64[np.ndarray, " front"]:
        """Rows of the Pareto front, ascending by the first objective."""
        values, rows = self.objective_values(), np.flatnonzero(self.timed)
        best = np.flatnonzero(front(values))
        return rows[best[np.lexsort(values[best].T[::-1])]]

    def best(self) -> Int64[np.ndarray, " row"]:
        """Rows that are worth a look, of equal ones the first: the Pareto front, or all by the one objective; where
        some were timed and others estimated from them, those that were and that no estimate is better than."""
        values = self.objective_values()
        all_of = np.flatnonzero(self.timed)
        rows = self.pareto() if len(self.objectives) > 1 else all_of[np.argsort(values[:, 0], kind="stable")]
        if self.sampled is not None and len(self.objectives) == 1:
            settled = self.sampled.settled(len(self.points))[all_of]
            limit = values[~settled].min(initial=np.inf)
            rows = rows[np.isin(rows, all_of[settled & (values[:, 0] <= limit)])]
        _, first = np.unique(values[np.searchsorted(all_of, rows)], axis=0, return_index=True)
        return rows[np.sort(first)]

    def table(self, rows: Any = None) -> dict[str, list[Any]]:
        """Columns, one entry a point, or of some `rows`: its number in the grid, varied keys, defined names, results,
        and what failed."""
        chosen = slice(None) if rows is None else np.asarray(rows, np.int64)
        return {name: _with_gaps(values[chosen], name in self.whole) for name, values in self.columns().items()}

    def columns(self) -> dict[str, np.ndarray]:
        """The same as arrays: NaN where a target, or one of several, could not run."""
        points, timed = self.points, self.timed
        columns: dict[str, np.ndarray] = {"point": points.positions, **points.columns}
        columns |= {name: points.values(name) for name in points.space.defines}
        columns |= measures(self.targets, points, np.where(self.cycles > 0, self.cycles, np.nan))
        if self.predicted_cycles is not None:
            columns["screened_seconds"] = measures(self.targets, points, self.predicted_cycles)["seconds"]
        if self.sampled is not None:
            clock_hz = points.values("core_clock_hz").astype(float)
            columns |= self.sampled.columns(clock_hz, points.space.gpu.spec.core_clock_hz)
        for number, objective in enumerate(self.objectives):  # those that are no column yet, named by their text
            if objective.text not in (*columns, "time"):
                columns[objective.text] = np.full(len(points), np.nan)
                columns[objective.text][timed] = self.objective_values()[:, number]
        if len(self.objectives) > 1:
            columns["pareto"] = np.isin(np.arange(len(points)), self.pareto())
        return columns | {"error": np.array(self.reasons, object)}

    @property
    def whole(self) -> tuple[str, ...]:
        """Columns of whole cycles: not those of geometric means."""
        return tuple(f"cycles_{target}" for target in self.targets) if len(self.targets) > 1 else ("cycles",)

    def to_json(self) -> dict[str, Any]:
        """Everything, as what `json.dumps` takes."""
        return {
            "kind": "explore", "gpu": self.gpu, "memory_model": self.memory_model, "note": self.note,
            "targets": list(self.targets), "objectives": [objective.text for objective in self.objectives],
            "candidates": self.candidates, "rows": _rows(self.table()),
            "pareto": self.points.positions[self.pareto()].tolist() if self.timed.any() else [],
            "sensitivity": [asdict(one) for one in self.sensitivity], "work": asdict(self.work),
        }  # fmt: skip

    def save(self, path: Path) -> None:
        """Write the table; the format is the ending's. The same sweep gives the same bytes.

        Raises InputError if the file cannot be written; what was there before is then still there."""
        save_table(path, self.columns(), self.whole)


def save_table(path: Path, columns: dict[str, np.ndarray], whole: Sequence[str]) -> None:
    """Write columns, NaN where there is nothing, those that are `whole` as whole numbers. Errors as of `save`."""
    if path.suffix == ".json":
        table = {name: _with_gaps(values, name in whole) for name, values in columns.items()}
        write_output(path, (json.dumps(_rows(table), indent=1) + "\n").encode())
        return
    import pyarrow
    from pyarrow import csv, parquet

    arrays = {name: pyarrow.array(values, from_pandas=True) for name, values in columns.items()}
    arrays |= {name: arrays[name].cast(pyarrow.int64()) for name in whole}
    file = BytesIO()
    (csv.write_csv if path.suffix == ".csv" else parquet.write_table)(pyarrow.table(arrays), file)
    write_output(path, file.getvalue())


def check_format(path: Path) -> None:
    """Raises InputError for a file that `save_table` cannot write."""
    check_output(path, *FORMATS)
    if path.suffix != ".json":
        need("pyarrow")


def _rows(table: dict[str, list[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]


def _with_gaps(values: np.ndarray, whole: bool) -> list[Any]:
    if values.dtype.kind != "f":
        return values.tolist()
    return [None if value != value else int(value) if whole else value for value in values.tolist()]
