"""Which pair of a point and a part to time next: the one that tells most about the sums of all points.

What a pair costs does not count: small launches are cheap, and would be taken first, but say little of large ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from sampling.auto.surface import Pair, Setting, Surface

if TYPE_CHECKING:
    from jaxtyping import Float64, Int64


class Choice:
    """Of pairs of some `points`; the parts of each surface are `rows` of all parts."""

    def __init__(
        self, surfaces: Sequence[Surface], rows: Sequence[Int64[np.ndarray, " part"]],
        points: Int64[np.ndarray, " point"], settings: Sequence[tuple[Setting, float]], timed: Iterable[Pair],
    ) -> None:  # fmt: skip
        self.rows, self.points = rows, points
        self.left = [_Left(surface, points, *each) for surface, each in zip(surfaces, settings, strict=True)]
        owner = {int(part): (k, place) for k, parts in enumerate(rows) for place, part in enumerate(parts)}
        at = {int(point): place for place, point in enumerate(points)}
        for point, part in timed:
            kernel, place = owner[part]
            if point in at:
                self.left[kernel].take(at[point], place)

    def next(self, kernel: int | None = None) -> Pair | None:
        """The best one, of one kernel or of all; none if all were timed."""
        kernels = range(len(self.left)) if kernel is None else (kernel,)
        best = {k: self.left[k].best() for k in kernels}
        found = max(best, key=lambda k: best[k][0])
        gain, point, part = best[found]
        if gain < 0.0:
            return None
        self.left[found].take(point, part)
        return int(self.points[point]), int(self.rows[found][part])


class _Left:
    """What is not known of one surface: `variance` of its pairs, `covariance` of each with the sums of points."""

    def __init__(
        self, surface: Surface, at: Int64[np.ndarray, " point"], setting: Setting, scale: float
    ) -> None:  # fmt: skip
        points, self.parts = surface.covariances(setting)
        self.points, self.nugget = points[np.ix_(at, at)], setting.nugget
        self.worth = scale**2
        with_parts = surface.shares[at] @ self.parts
        self.variance = np.diag(self.points)[:, None] * np.diag(self.parts)
        self.covariance = self.points[:, :, None] * with_parts[:, None, :]
        self.taken: list[Float64[np.ndarray, "point part"]] = []
        self.open = np.ones(self.variance.shape, bool)

    def best(self) -> tuple[float, int, int]:
        """By how much variance a pair takes off all sums; negative if none is left."""
        gain = (self.covariance**2).sum(0) / (np.maximum(self.variance, 0.0) + self.nugget) * self.worth
        gain = np.where(self.open, gain, -1.0)
        point, part = np.unravel_index(int(np.argmax(gain)), gain.shape)
        return float(gain[point, part]), int(point), int(part)

    def take(self, point: int, part: int) -> None:
        """A pair is known from now on: a step of Cholesky's decomposition."""
        told = self.points[point][:, None] * self.parts[part]
        for each in self.taken:
            told = told - each * each[point, part]
        told = told / math.sqrt(max(float(told[point, part]), 0.0) + self.nugget)
        with_sums = self.covariance[:, point, part] / math.sqrt(
            max(float(self.variance[point, part]), 0.0) + self.nugget
        )
        self.taken.append(told)
        self.variance -= told**2
        self.covariance -= with_sums[:, None, None] * told
        self.open[point, part] = False
