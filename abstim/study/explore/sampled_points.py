"""What a sweep from a sample finds: every point with its interval, and the ratio of any two."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sampling.auto.interpolation import PairCycles
from sampling.auto.launches import TimedSelection, ratio
from sampling.statistics import t_quantile

if TYPE_CHECKING:
    from jaxtyping import Float64, Int64


@dataclass(frozen=True, eq=False)
class SampledPoints:
    """One target on the GPU that is varied and on all design points, in this order: `selections`. `read`: chosen
    launches on them. `work`: of all that was timed, in instructions over the target's own."""

    selections: list[TimedSelection]
    read: PairCycles
    work: float

    @property
    def cycles(self) -> Float64[np.ndarray, " point"]:
        """Estimated."""
        return np.array([point.total for point in self.selections[1:]])

    @property
    def half_widths(self) -> Float64[np.ndarray, " point"]:
        """Half of each interval, relative."""
        return np.array([point.half_width / point.total for point in self.selections[1:]])

    @property
    def speed_ups(self) -> Float64[np.ndarray, "point 2"]:
        """In cycles over the GPU that is varied, and half of each interval."""
        return np.array([self.speed_up(row) for row in range(len(self.selections) - 1)]).reshape(-1, 2)

    def speed_up(self, row: int, over: int = -1) -> tuple[float, float]:
        """Cycles on a point (-1: the GPU that is varied) over those on another, and half of the interval."""
        a, b = over + 1, row + 1
        error = math.hypot(self.read.of_ratios[a], self.read.of_ratios[b]) if a != b else 0.0
        half = error and error * t_quantile(self.read.degrees, self.selections[0].confidence)
        return ratio(self.selections[a], self.selections[b], half)


@dataclass(frozen=True, eq=False)
class SampledTargets:
    """What was estimated, a target each; `rows`: the points of the sweep they have; `names` of the targets."""

    names: tuple[str, ...]
    found: list[SampledPoints]
    rows: Int64[np.ndarray, " timed"]

    def columns(
        self, clock_hz: Float64[np.ndarray, " point"], base_hz: float
    ) -> dict[str, Float64[np.ndarray, " point"]]:
        """Half of each interval of cycles, relative; how many times faster than the GPU that is varied a point is in
        time, and half of that interval. NaN where nothing was timed; of several targets geometric means."""
        halves = np.stack([points.half_widths for points in self.found])
        columns = {f"cycles_{name}_half_width": half for name, half in zip(self.names, halves, strict=True)}
        ratios = np.stack([points.speed_ups for points in self.found])
        speed_up = np.exp(np.log(ratios[..., 0]).mean(0)) * clock_hz[self.rows] / base_hz
        relative = ratios[..., 1] / ratios[..., 0]
        columns = {} if len(self.found) == 1 else columns
        columns |= {"cycles_half_width": of_mean(halves), "speed_up": speed_up}
        columns |= {"speed_up_half_width": of_mean(relative) * speed_up}
        return {name: self._spread(values, len(clock_hz)) for name, values in columns.items()}

    def _spread(self, values: Float64[np.ndarray, " timed"], points: int) -> Float64[np.ndarray, " point"]:
        found = np.full(points, np.nan)
        found[self.rows] = values
        return found


def of_mean(halves: Float64[np.ndarray, "target point"]) -> Float64[np.ndarray, " point"]:
    """Relative half-width of a geometric mean of independent estimates."""
    return np.sqrt((halves**2).sum(0)) / len(halves)
