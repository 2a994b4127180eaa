"""A target's kernels as functions of latencies by the detailed engine, whose derivatives are its own differences."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from abstim.engine.rules import UNITS_A_CYCLE
from abstim.gradient.parameter_vector import gpu_at, is_whole
from abstim.gradient.timed_kernel import TimedKernel
from abstim.progress import in_parallel
from functional.errors import InputError

if TYPE_CHECKING:
    from jaxtyping import Float64

BESIDE = 0.1  # a slope is that of the mean over so large a part of a value to either side
MOST_KEPT = 1 << 16  # points whose cycles are kept


class DetailedKernel(TimedKernel):
    """By the detailed engine.

    At whole cycles (64ths of one for service times) it is exactly what the engine says. In between it is linear. The
    derivative to a parameter is the difference between BESIDE more and BESIDE less of it, a step of the grid at least:
    a schedule turns with single cycles, so a slope at a point would say little of what a designer can change.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._kept: dict[tuple[float, ...], Float64[np.ndarray, " launch"]] = {}

    def by_launch(
        self, values: Float64[np.ndarray, " name"]
    ) -> tuple[Float64[np.ndarray, " launch"], Float64[np.ndarray, "launch name"]]:
        """Cycles of each launch, and their gradient."""
        return self._beside(values, self.names)

    def at(self, values: Float64[np.ndarray, " name"]) -> float:
        """Cycles of all launches."""
        base = self.base(values)
        moved = [name for name, value in zip(self.names, values, strict=True) if value != base[name]]
        return float(self._beside(values, moved)[0].sum())

    def engine_cycles(self, values: Float64[np.ndarray, " name"]) -> Float64[np.ndarray, " launch"]:
        """What the engine says at the base point of some values."""
        return self._cycles(self.base(values))

    def _beside(
        self, values: Float64[np.ndarray, " name"], names: Sequence[str]
    ) -> tuple[Float64[np.ndarray, " launch"], Float64[np.ndarray, "launch name"]]:
        """Cycles of each launch, and their gradient; that to others than `names` is 0."""
        base = self.base(values)
        points = [base] + [point for name in names for point in self._points_beside(base, name)]
        found = iter(in_parallel(lambda k: self._cycles(points[k]), len(points), os.cpu_count() or 1))
        cycles, slopes = next(found), np.zeros((len(self.launches), len(self.names)))
        for name in names:
            (less, more), low, high = self._points_beside(base, name), next(found), next(found)
            slopes[:, self.names.index(name)] = (high - low) / max(more[name] - less[name], 1 / UNITS_A_CYCLE)
        moved = np.asarray(values, float) - np.array(list(base.values()), float)
        return cycles + slopes @ moved, slopes

    def _points_beside(self, base: Mapping[str, int | float], name: str) -> list[dict[str, int | float]]:
        """A base point with less of a parameter, and with more of it; where the GPU does not accept that, with its own
        value."""
        value, units = base[name], 1 if is_whole(name) else UNITS_A_CYCLE
        step = max(1, round(BESIDE * value * units)) / units
        points = [{**base, name: type(value)(value + sign * step)} for sign in (-1, 1)]
        for k, point in enumerate(points):
            try:
                gpu_at(self.gpu, point)
            except InputError:
                points[k] = dict(base)
        return points

    def _cycles(self, base: Mapping[str, int | float]) -> Float64[np.ndarray, " launch"]:
        key = tuple(base.values())
        if key not in self._kept:
            gpu = gpu_at(self.gpu, base)
            if len(self._kept) == MOST_KEPT:
                self._kept.clear()
            self._kept[key] = np.array([self.session.simulate(n, gpu).cycles for n in self.launches], float)
        return self._kept[key]
