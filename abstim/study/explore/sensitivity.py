"""How much the time depends on each varied key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from abstim.study.explore.points import Points


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """`elasticity`: per cent of time for one per cent more of the key (None for words and for values of 0).

    `swing`: time at the key's worst value over time at its `best`; exactly 1 if the key alone never changes the time.
    """

    key: str
    elasticity: float | None
    swing: float
    best: object


# The seam: anything that turns points and their seconds into one Sensitivity a key.
Analysis = Callable[[Points, Float[np.ndarray, " point"]], list[Sensitivity]]


def by_regression(points: Points, seconds: Float[np.ndarray, " point"]) -> list[Sensitivity]:
    """From the sweep itself (`of_columns`)."""
    return of_columns({axis.key: points.columns[axis.key] for axis in points.space.axes}, seconds)


def of_columns(columns: Mapping[str, np.ndarray], seconds: Float[np.ndarray, " point"]) -> list[Sensitivity]:
    """Of varied keys: least squares of log time on the logarithms of all numeric keys, and on words, together.

    A key's swing is between geometric means over its values, after what the fit says of the other keys is taken off.
    """
    logs = np.log(seconds)
    parts = {key: _regressors(column) for key, column in columns.items()}
    design = np.concatenate([*parts.values(), np.ones((len(logs), 1))], 1)
    fitted = np.linalg.lstsq(design, logs, rcond=None)[0]
    found, first = [], 0
    for key, part in parts.items():
        own = fitted[first : first + part.shape[1]]
        first += part.shape[1]
        if _never_matters(columns, key, logs):
            found.append(Sensitivity(key, 0.0, 1.0, columns[key][0].item()))
            continue
        slope = float(own[0]) if columns[key].dtype.kind in "if" and part.shape[1] == 1 else None
        found.append(_sensitivity(key, columns[key], logs - design @ fitted + part @ own, slope))
    return found


def _regressors(values: np.ndarray) -> Float[np.ndarray, "point regressor"]:
    """The logarithm of positive numbers; for anything else a column for each value but the first."""
    if values.dtype.kind in "if" and values.min() > 0:
        return np.log(values)[:, None]
    return np.stack([np.zeros(len(values)), *((values == v).astype(float) for v in np.unique(values)[1:])], 1)[:, 1:]


def _never_matters(columns: Mapping[str, np.ndarray], key: str, logs: np.ndarray) -> bool:
    """Whether points that differ in this key alone all take the same time, and half of the points have such others."""
    others = [np.unique(column, return_inverse=True)[1] for other, column in columns.items() if other != key]
    rows = np.stack([*others, np.zeros(len(logs), np.int64)], 1)
    group, counts = np.unique(rows, axis=0, return_inverse=True, return_counts=True)[1:]
    low, high = np.full(len(counts), np.inf), np.full(len(counts), -np.inf)
    np.minimum.at(low, group, logs)
    np.maximum.at(high, group, logs)
    return bool((low == high).all() and (counts[group] > 1).mean() >= 0.5)


def _sensitivity(key: str, column: np.ndarray, logs: np.ndarray, slope: float | None) -> Sensitivity:
    values, group = np.unique(column, return_inverse=True)
    means = np.bincount(group, logs) / np.bincount(group)
    return Sensitivity(key, slope, float(np.exp(means.max() - means.min())), values[means.argmin()].item())
