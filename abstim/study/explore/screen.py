"""Multi-fidelity search: a formula looks at every candidate, the occupancy model at those the formula finds on the
front, the detailed one at those that the occupancy model finds there.

On each rung, after each round, the ratio of the better model to the quicker one is fitted over the varied keys and
corrects the quicker one for the next round: where they disagree most decides what is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from jaxtyping import Float, Int64

from abstim.gpu.config import Gpu
from abstim.gpu.spec import ALUS, INSTRUCTION_CLASSES
from abstim.session.session import Session
from abstim.study.explore.keys import DERIVED
from abstim.study.explore.pareto import ranked
from abstim.study.explore.points import Points
from functional.errors import InputError

ROUNDS = 4
MIDDLE = 16  # points by the occupancy model for each by the detailed one
FAILED = -1  # cycles of a point that could not be timed
RIDGE = 1e-2  # keeps the correction near the model where points are few


class Screen(Protocol):
    """A model quick enough for a million points."""

    def __call__(self, columns: Mapping[str, np.ndarray]) -> Float[np.ndarray, "point target"]:
        """Predicted cycles. `columns`: the varied keys of the GPU, as `--set` has them, one value a point each."""
        ...


ScreenMaker = Callable[[Sequence[Session], Gpu], Screen]  # the GPU has the values of all keys that are not varied
Objectives = Callable[[Points, Float[np.ndarray, "point target"]], Float[np.ndarray, "point objective"]]
# Cycles, negative where a target cannot run, and why
Timing = Callable[[Points], tuple[Int64[np.ndarray, "point target"], list[str]]]


class Found(NamedTuple):
    """The candidates that were timed, in their order."""

    points: Points
    cycles: Int64[np.ndarray, "point target"]
    reasons: list[str]
    predicted_cycles: Float[np.ndarray, "point target"] | None  # by the screen alone


def climb(points: Points, screen: Screen, middle: Timing, best: Timing, objectives: Objectives, count: int) -> Found:
    """The `count` candidates that seem to be on the front, by the best model: chosen from `MIDDLE` times as many by the
    middle one, those by the screen."""
    predicted = screen({key: values for key, values in points.columns.items() if key not in DERIVED})
    found = search(points, predicted, middle, objectives, min(len(points), MIDDLE * count))
    own = predicted[np.searchsorted(points.positions, found.points.positions)]
    # what the middle model cannot time, the best one may: there the screen stays
    last = search(found.points, np.where(found.cycles > 0, found.cycles, own), best, objectives, count)
    return last._replace(predicted_cycles=predicted[np.searchsorted(points.positions, last.points.positions)])


# Keys that decide how many thread blocks an SM holds (abstim.gpu.occupancy)
RESIDENCY = ("max_threads_per_sm", "max_warps_per_sm", "max_blocks_per_sm", "registers_per_sm", "shared_bytes_per_sm",
             "register_allocation_granularity")  # fmt: skip


def refuse_unknown(points: Points) -> None:
    """Raises InputError for a varied key that the analytic model does not look at: as a result, rather than as a guide
    for a better model, its cycles would be wrong."""
    from abstim.analytic.point import Point

    for key in (key for key in points.columns if key not in DERIVED):
        if "." not in key and key not in Point._fields:
            raise InputError(f"--vary {key}: the analytic model does not look at it; use --model occupancy or detailed")


def by_formula(sessions: Sequence[Session], gpu: Gpu, points: Points) -> Found:
    """Every point by the analytic model; a point on which a target cannot run has the reason."""
    reasons = np.where(points.reasons == "", _cannot_run(sessions, points), points.reasons)
    usable = reasons == ""
    cycles = np.full((len(points), len(sessions)), FAILED, np.int64)
    if usable.any():
        some = points.where(usable)
        screen = analytic_screen(sessions, gpu)
        cycles[usable] = np.ceil(screen({key: own for key, own in some.columns.items() if key not in DERIVED}))
    return Found(points, cycles, reasons.tolist(), None)


def _cannot_run(sessions: Sequence[Session], points: Points) -> np.ndarray:
    """Why a thread block does not fit ("": all do), looked up once for each combination of what decides it."""
    columns = [points.columns[key] for key in RESIDENCY if key in points.columns] or [np.zeros(len(points))]
    _, first, of = np.unique(np.stack(columns, -1), axis=0, return_index=True, return_inverse=True)
    reasons = np.full(len(first), "", object)
    for n, k in enumerate(first.tolist()):
        try:
            own = points.gpu(k)
            for session in sessions:
                for launch in range(len(session)):
                    session.blocks_per_sm(launch, own)
        except InputError as error:
            reasons[n] = str(error)
    return reasons[of.ravel()]


def search(points: Points, predicted: np.ndarray, time: Timing, objectives: Objectives, count: int) -> Found:
    """Time the `count` candidates that seem to be on the front by predicted cycles, a quarter of them in each round."""
    features, corrected = features_of(points), predicted
    usable = points.reasons == ""
    chosen, measured, reasons = np.zeros(0, np.int64), np.zeros((0, predicted.shape[1]), np.int64), list[str]()
    for step in range(1, ROUNDS + 1):
        left = np.setdiff1d(np.flatnonzero(usable), chosen, assume_unique=True)
        wanted = min(len(left), -(-count * step // ROUNDS) - len(chosen))
        if wanted <= 0:
            continue
        values = objectives(points.where(left), corrected[left])
        new = left[ranked(values, wanted)]
        cycles, why = time(points.where(new))
        chosen, measured, reasons = np.concatenate([chosen, new]), np.concatenate([measured, cycles]), reasons + why
        corrected = _corrected(features, predicted, chosen, measured)
    order = np.argsort(chosen)
    chosen = chosen[order]
    return Found(points.where(chosen), measured[order], [reasons[k] for k in order], predicted[chosen])


def _corrected(features: np.ndarray, predicted: np.ndarray, chosen: np.ndarray, measured: np.ndarray) -> np.ndarray:
    """The prediction times a fitted ratio, a target at a time."""
    corrected = predicted.copy()
    for target in range(predicted.shape[1]):
        good = measured[:, target] > 0
        if not good.any():
            continue
        x = features[chosen[good]]
        y = np.log(measured[good, target] / predicted[chosen[good], target])
        weights = np.linalg.solve(x.T @ x + RIDGE * np.eye(x.shape[1]), x.T @ (y - y.mean()))
        low, high = y.min() - 0.5, y.max() + 0.5  # a straight line is not to be trusted far outside
        corrected[:, target] *= np.exp(np.clip(y.mean() + features @ weights, low, high))
    return corrected


def features_of(points: Points) -> Float[np.ndarray, "point feature"]:
    """The varied keys from -1 to 1: logarithms of positive numbers, other numbers as they are, a column a word. The
    last column is 1."""
    columns = []
    for axis in points.space.axes:
        values = points.columns[axis.key]
        if values.dtype.kind in "if":
            columns.append(np.log(values) if values.min() > 0 else values.astype(float))
        else:
            columns += [(values == one).astype(float) for one in axis.values[1:]]
    scaled = [2 * (c - c.min()) / span - 1 for c in columns if (span := float(np.ptp(c))) > 0]
    return np.stack([*scaled, np.ones(len(points))], 1)


def analytic_screen(sessions: Sequence[Session], gpu: Gpu) -> Screen:
    """A screen of the targets around a GPU. Keys it does not know (policies, banks, ...) change nothing in it."""
    from abstim.analytic import points_of, predict_points, summaries

    base = points_of([gpu])
    launches = [summaries(session, gpu) for session in sessions]

    def screen(columns: Mapping[str, np.ndarray]) -> Float[np.ndarray, "point target"]:
        points = _points(base, columns)
        cycles = [sum(np.asarray(predict_points(s, points).cycles, float) for s in found) for found in launches]
        return np.stack(cycles, 1)

    return screen


def _points(base: Any, columns: Mapping[str, np.ndarray]) -> Any:
    """As many points as the columns have rows: the base with the columns put in."""
    count = len(next(iter(columns.values())))
    arrays = {name: np.repeat(column, count, 0) for name, column in base._asdict().items()}
    for key, values in columns.items():
        section, _, name = key.rpartition(".")
        if section == "unit":
            found = np.stack([values == unit for unit in ALUS], 1)
            arrays["on_unit"][:, :, INSTRUCTION_CLASSES.index(name)] = found
        elif section:
            arrays[section][:, INSTRUCTION_CLASSES.index(name)] = values
        elif key in arrays:
            arrays[key] = values.astype(np.float32)
    return type(base)(**arrays)
