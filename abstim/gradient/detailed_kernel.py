"""A target's kernels as functions of latencies by the detailed engine, whose derivatives are its own differences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from abstim.gradient.parameter_vector import gpu_at
from abstim.gradient.timed_kernel import TimedKernel

if TYPE_CHECKING:
    from jaxtyping import Float64


class DetailedKernel(TimedKernel):
    """By the detailed engine, which it is exactly at whole cycles (64ths of one for service times); derivatives are of
    the mean over a box, whether asked for or not."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named | {"box": True})

    def engine_cycles(self, values: Float64[np.ndarray, " name"]) -> Float64[np.ndarray, " launch"]:
        """What the engine says at the base point of some values."""
        gpu = gpu_at(self.gpu, self.base(values))
        return np.array([self.session.simulate(n, gpu).cycles for n in self.launches], float)
