"""Which points of a space to time: all, a random sample, a Latin hypercube, or a climb through the models.

On each rung of a climb, after each round, the ratio of the better model to the quicker one is fitted over the varied
keys and corrects the quicker one for the next round: where they disagree most decides what is looked at."""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from abstim.study.explore.expressions import Expression
from abstim.study.explore.points import Points, Space
from functional.arrays import Bool, Float, Int64
from functional.errors import InputError, refuse

MOST_POINTS = 1_000_000  # of one design
STRATEGIES = ("grid", "random", "latin")
Positions = Int64[np.ndarray, " point"]


def design(space: Space, strategy: str, count: int | None, seed: int, constraints: Sequence[Expression]) -> Points:
    """The points of a strategy that keep every constraint, in the order of the grid.

    `count`: points wanted of `random` and `latin` (before the constraints for `latin`). Raises InputError for an
    unknown strategy, a grid of more than `MOST_POINTS`, and if no point is left."""
    if strategy not in STRATEGIES:
        raise InputError(f"no strategy {strategy!r}; there are {', '.join(STRATEGIES)} and multi-fidelity")
    points = space.at(_positions(space, strategy, count, seed, bool(constraints)))
    points = _refuse_impossible(points).where(allowed(points, constraints))
    if strategy == "random" and count is not None and len(points) > count:
        points = points.where(_sample(len(points), count, seed))
    if not len(points):
        raise InputError("no point keeps every --constraint")
    return points


def allowed(points: Points, constraints: Sequence[Expression]) -> Bool[np.ndarray, " point"]:
    """Which points keep every constraint."""
    keep = np.ones(len(points), bool)
    for constraint in constraints:
        keep &= points.evaluate(constraint).astype(bool)
    return keep


def _refuse_impossible(points: Points) -> Points:
    """Raises InputError for a value that no point can have; a point that cannot be stays, with its reason."""
    if len(points) and (points.reasons != "").all():
        raise InputError(f"--vary: {points.reasons[0]}")
    failing = points.reasons != ""
    for axis in points.space.axes if failing.any() else ():
        column = points.columns[axis.key]
        for value in np.setdiff1d(column[failing], column[~failing]):
            raise InputError(f"--vary: {points.reasons[np.flatnonzero(column == value)[0]]}")
    return points


def _positions(space: Space, strategy: str, count: int | None, seed: int, constrained: bool) -> Positions:
    """Of a grid all; of `random` different points, all equally likely, and as many as there may be if some will be
    thrown away again; of `latin` one for each of `count` strata of every axis' range (scipy's LatinHypercube)."""
    refuse(seed < 0, f"seed {seed} is below 0")
    if strategy == "grid" and space.size > MOST_POINTS:
        raise InputError(
            f"a grid of {space.size:,} points is more than {MOST_POINTS:,}; "
            "take --strategy random, latin or multi-fidelity with --points"
        )
    if strategy == "grid":
        return np.arange(space.size)
    if count is None:
        raise InputError(f"--strategy {strategy} needs --points")
    if strategy == "random":
        return _sample(space.size, MOST_POINTS if constrained else count, seed)
    from scipy.stats import qmc

    unit = qmc.LatinHypercube(len(space.axes), rng=np.random.default_rng(seed)).random(count)
    position = np.zeros(count, np.int64)
    for axis, coordinate in zip(space.axes, unit.T, strict=True):
        position = position * len(axis.values) + (coordinate * len(axis.values)).astype(np.int64)
    return np.unique(position)


def _sample(size: int, count: int, seed: int) -> Positions:
    if count >= size:
        return np.arange(size)
    return np.sort(np.array(random.Random(seed).sample(range(size), count), np.int64))


Values = Float[np.ndarray, "point objective"]


def front(values: Values) -> Bool[np.ndarray, " point"]:
    """True for the points that no other is at least as good as in every objective and better in one."""
    best = np.zeros(len(values), bool)
    order = _sorted(values)
    for k in order[_layer(values[order])]:
        best |= (values == values[k]).all(1)
    return best


def ranked(values: Values, count: int) -> Int64[np.ndarray, " chosen"]:
    """The `count` best points: front after front, each taken away before the next; a last front in even spacing.

    Of points that are equal in every objective one comes in each front."""
    order, chosen = _sorted(values), [np.zeros(0, np.int64)]
    if values.shape[1] == 1:
        return order[:count]
    wanted = min(count, len(values))
    while wanted:
        layer = _layer(values[order])
        best = order[layer]
        if len(best) > wanted:
            best = best[np.linspace(0, len(best) - 1, wanted).round().astype(np.int64)]
        chosen.append(best)
        wanted -= len(best)
        order = np.delete(order, layer)
    return np.concatenate(chosen)


def _sorted(values: Values) -> Int64[np.ndarray, " point"]:
    """Ascending by the first objective, then the second, ...: no point dominates one before it."""
    return np.lexsort(values.T[::-1])


def _layer(values: Values) -> Int64[np.ndarray, " front"]:
    """Positions, in sorted values, of the front; of equal points the first."""
    if values.shape[1] == 1:
        return np.arange(min(1, len(values)))
    if values.shape[1] == 2:
        before = np.concatenate([[np.inf], np.minimum.accumulate(values[:-1, 1])])
        return np.flatnonzero(values[:, 1] < before)
    chosen, left = [], np.arange(len(values))
    while len(left):
        k, left = left[0], left[1:]
        chosen.append(k)
        left = left[(values[left] < values[k]).any(1)]
    return np.array(chosen, np.int64)


ROUNDS = 4
MIDDLE = 16  # points by the occupancy model for each by the detailed one
FAILED = -1  # cycles of a point that could not be timed
RIDGE = 1e-2  # keeps the correction near the model where points are few

# Cycles by a model quick enough for a million points, by the GPU's varied keys, as `--set` has them, a value a point
Screen = Callable[[Mapping[str, np.ndarray]], Float[np.ndarray, "point target"]]
Objectives = Callable[[Points, Float[np.ndarray, "point target"]], Float[np.ndarray, "point objective"]]
# Cycles, negative where a target cannot run, and why
Cycles = Int64[np.ndarray, "point target"]
Timing = Callable[[Points], tuple[Cycles, list[str]]]


class Found(NamedTuple):
    """The candidates that were timed, in their order."""

    points: Points
    cycles: Int64[np.ndarray, "point target"]
    reasons: list[str]
    predicted_cycles: Float[np.ndarray, "point target"] | None  # by the screen alone


def climb(points: Points, screen: Screen, middle: Timing, best: Timing, objectives: Objectives, count: int) -> Found:
    """The `count` candidates that seem to be on the front, by the best model: chosen from `MIDDLE` times as many by the
    middle one, those by the screen."""
    predicted = screen(points.keys_of_gpu)
    found = search(points, predicted, middle, objectives, min(len(points), MIDDLE * count))
    own = predicted[np.searchsorted(points.positions, found.points.positions)]
    # what the middle model cannot time, the best one may: there the screen stays
    last = search(found.points, np.where(found.cycles > 0, found.cycles, own), best, objectives, count)
    return last._replace(predicted_cycles=predicted[np.searchsorted(points.positions, last.points.positions)])


def search(points: Points, predicted: np.ndarray, time: Timing, objectives: Objectives, count: int) -> Found:
    """Time the `count` candidates that seem to be on the front by predicted cycles, a quarter of them in each round."""
    features, corrected = np.column_stack([columns_at(points)[0], np.ones(len(points))]), predicted
    usable = points.reasons == ""
    chosen, measured, reasons = np.zeros(0, np.int64), np.zeros((0, predicted.shape[1]), np.int64), list[str]()
    for step in range(1, ROUNDS + 1):
        left = np.setdiff1d(np.flatnonzero(usable), chosen, assume_unique=True)
        wanted = min(len(left), -(-count * step // ROUNDS) - len(chosen))
        if wanted <= 0:
            continue
        new = left[ranked(objectives(points.where(left), corrected[left]), wanted)]
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


def columns_at(points: Points) -> tuple[Float[np.ndarray, "point feature"], Int64[np.ndarray, " feature"]]:
    """The varied keys from -1 to 1: logarithms of positive numbers, other numbers as they are, a column a word; and the
    number of the key that each column is of."""
    columns: list[tuple[int, np.ndarray]] = []
    for number, axis in enumerate(points.space.axes):
        values = points.columns[axis.key]
        if values.dtype.kind in "if":
            columns.append((number, np.log(values) if values.min() > 0 else values.astype(float)))
        else:
            columns += [(number, (values == one).astype(float)) for one in np.unique(values)]
    scaled = [(n, 2 * (c - c.min()) / span - 1) for n, c in columns if (span := float(np.ptp(c))) > 0]
    features = np.stack([c for _, c in scaled], 1) if scaled else np.zeros((len(points), 0))
    return features, np.array([n for n, _ in scaled], np.int64)
