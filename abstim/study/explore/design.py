"""Which points of a space to look at: all of them, a random sample, or a Latin hypercube."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Bool, Int64

from abstim.study.explore.expressions import Expression
from abstim.study.explore.points import Points, Space
from functional.errors import InputError

MOST_POINTS = 1_000_000  # of one design
Positions = Int64[np.ndarray, " point"]


def design(space: Space, strategy: str, count: int | None, seed: int, constraints: Sequence[Expression]) -> Points:
    """The points of a strategy that keep every constraint, in the order of the grid.

    `count`: points wanted of `random` and `latin` (before the constraints for `latin`). Raises InputError for an
    unknown strategy, a grid of more than `MOST_POINTS`, and if no point is left.
    """
    if strategy not in STRATEGIES:
        raise InputError(f"no strategy {strategy!r}; there are {', '.join(STRATEGIES)} and multi-fidelity")
    points = space.at(STRATEGIES[strategy](space, count, seed, bool(constraints)))
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


def _grid(space: Space, count: int | None, seed: int, constrained: bool) -> Positions:
    if space.size > MOST_POINTS:
        raise InputError(
            f"a grid of {space.size:,} points is more than {MOST_POINTS:,}; "
            "take --strategy random, latin or multi-fidelity with --points"
        )
    return np.arange(space.size)


def _random(space: Space, count: int | None, seed: int, constrained: bool) -> Positions:
    """Different points, all equally likely; as many as there may be if some will be thrown away again."""
    if count is None:
        raise InputError("--strategy random needs --points")
    return _sample(space.size, MOST_POINTS if constrained else count, seed)


def _latin(space: Space, count: int | None, seed: int, constrained: bool) -> Positions:
    """Every axis' range is cut into `count` strata and each is hit once (scipy's LatinHypercube)."""
    from scipy.stats import qmc

    if count is None:
        raise InputError("--strategy latin needs --points")
    unit = qmc.LatinHypercube(len(space.axes), rng=np.random.default_rng(seed)).random(count)
    position = np.zeros(count, np.int64)
    for axis, coordinate in zip(space.axes, unit.T, strict=True):
        position = position * len(axis.values) + (coordinate * len(axis.values)).astype(np.int64)
    return np.unique(position)


def _sample(size: int, count: int, seed: int) -> Positions:
    if count >= size:
        return np.arange(size)
    return np.sort(np.array(random.Random(seed).sample(range(size), count), np.int64))


STRATEGIES: dict[str, Callable[[Space, int | None, int, bool], Positions]] = {
    "grid": _grid,
    "random": _random,
    "latin": _latin,
}
