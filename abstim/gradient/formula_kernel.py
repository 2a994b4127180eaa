"""A target's kernels by the formula, as functions of latencies."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from abstim.analytic.model import analytic_cycles, as_arrays
from abstim.analytic.point import Point, points_of
from abstim.analytic.predictions import summary_of
from abstim.gpu.spec import INSTRUCTION_CLASSES
from abstim.gradient.parameter_vector import refuse_times
from abstim.gradient.timed_kernel import Slopes, TimedKernel
from abstim.occupancy_vector.kept_programs import kept_programs
from functional.arrays import Float, Float64

cycles_with_slopes = jax.jit(jax.value_and_grad(analytic_cycles, argnums=1))


class FormulaKernel(TimedKernel):
    """By the formula, whose summaries of launches are those of the GPU's own values."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        refuse_times(self.names)  # a point of the formula is in cycles
        self._own: Any = as_arrays(points_of([self.gpu])[0])
        summaries = (summary_of(self.session, number, self.gpu) for number in self.launches)
        self._summaries = [as_arrays(summary) for summary in summaries]

    def cycles(self, values: Float[jax.Array, " name"]) -> Float[jax.Array, ""]:
        """Cycles of all launches."""
        point = self._point(values)
        return jnp.stack([analytic_cycles(summary, point) for summary in self._summaries]).sum()

    def with_own_slopes(self, values: Float64[np.ndarray, " name"]) -> Slopes:
        self.base(values)  # refuses what is no number of cycles
        cycles, slopes = [], []
        with kept_programs():
            point = self._point(jnp.asarray(values, jnp.float32))
            for summary in self._summaries:
                found, slope = cycles_with_slopes(summary, point)
                cycles.append(float(found))
                slopes.append([self._of(slope, name) for name in self.names])
        return np.array(cycles), np.array(slopes)

    def engine_cycles(self, values: Float64[np.ndarray, " name"]) -> Float64[np.ndarray, " launch"]:
        return self.with_own_slopes(values)[0]

    def _point(self, values: Float[jax.Array, " name"]) -> Point:
        point = self._own
        for k, name in enumerate(self.names):
            section, _, key = name.rpartition(".")
            if section:
                moved = jnp.asarray(getattr(point, section)).at[INSTRUCTION_CLASSES.index(key)].set(values[k])
                point = point._replace(**{section: moved})
            elif name in Point._fields:
                point = point._replace(**{name: values[k]})
        return point

    @staticmethod
    def _of(slopes: Point, name: str) -> float:
        """What a gradient has of a parameter; 0 for what the formula does not look at."""
        section, _, key = name.rpartition(".")
        if section:
            return float(getattr(slopes, section)[INSTRUCTION_CLASSES.index(key)])
        return float(getattr(slopes, name, 0.0))
