"""Which launches to simulate next, until the sum of all is known as well as was asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from sampling.auto.kernel_sample import KernelSample, ProgramWork, by_kernel, total_interval
from sampling.estimate import Estimate, Part, around, worst
from sampling.statistics import CONFIDENCE, t_quantile

FIRST = 3  # kinds of launches of a kernel of which one is simulated before anything is predicted from them
AT_ONCE = 0.1  # of the launches simulated so far, how many are added between two looks at the error


@dataclass(eq=False)
class LaunchSampling:
    """Two-phase sampling over launches with a regression estimator.

    A launch of FIRST kinds of every kernel is simulated; then, AT_ONCE more at a time, launches of the kernel in
    which a unit of cost takes most off the variance, until half the interval is at most `error` of the total, or
    everything was simulated. What is left is predicted from the work of each launch (`predict`).
    """

    error: float = 0.02
    confidence: float = CONFIDENCE
    seed: int = 0
    name = "auto"
    history: list[tuple[int, float]] = field(default_factory=list)  # launches simulated, relative half-width

    def program(self, work: ProgramWork, measure: Callable[[Sequence[int]], Sequence[Estimate]]) -> Estimate:
        """`measure` simulates launches, given by number."""
        kernels = by_kernel(work, np.random.default_rng(self.seed))
        asked = [(kernel, place) for kernel in kernels for place in kernel.choose(FIRST)]
        while asked:
            rows = [int(kernel.rows[place]) for kernel, place in asked]
            for (kernel, place), estimate in zip(asked, measure(rows), strict=True):
                kernel.add(place, estimate)
            total, half = total_interval(kernels, self.confidence)
            self.history.append((sum(len(kernel.sample) for kernel in kernels), half / total))
            asked = [] if half <= self.error * total else self._next(kernels)
        return estimate_of(self, kernels, work)

    def _next(self, kernels: list[KernelSample]) -> list[tuple[KernelSample, int]]:
        open_ones = [kernel for kernel in kernels if not kernel.done]
        if not open_ones:
            return []
        best = max(open_ones, key=_gain)
        count = max(1, int(AT_ONCE * sum(len(kernel.sample) for kernel in kernels)))
        return [(best, place) for place in best.choose(count)]


def estimate_of(method: LaunchSampling, kernels: list[KernelSample], work: ProgramWork) -> Estimate:
    """Of a program's cycles, from samples of its kernels' launches; what was left out is said by its work."""
    total, half = total_interval(kernels, method.confidence)
    cycles, share = np.zeros(len(work.kernels)), np.zeros(len(work.kernels))
    inner: list[Estimate] = []
    for kernel in kernels:
        cycles[kernel.rows] = kernel.predicted().cycles
        share[kernel.rows[kernel.sample]] = [estimate.detailed_fraction for estimate in kernel.estimates]
        inner += kernel.estimates
    left = share == 0.0
    parts = [part for estimate in inner for part in estimate.parts]
    if left.any():
        of = float(work.instructions[left].sum())
        parts.append(
            Part(name=f"{left.sum():,} launches", how="predicted", instructions=of, cycles=float(cycles[left].sum()))
        )
    done = float(np.dot(share, work.instructions) / work.instructions.sum())
    return around(
        method.name,
        total,
        half / t_quantile(math.inf),
        confidence=method.confidence,
        basis="sampled" if left.any() else worst(inner),
        parts=tuple(parts),
        unit_cycles=tuple(cycles.tolist()),
        detailed_fraction=min(round(done, 12), 1.0),
    )


def _gain(kernel: KernelSample) -> float:
    """Variance that a unit of cost takes off, roughly: a launch more in `n` takes an n-th off."""
    left = np.ones(len(kernel.rows), bool)
    left[kernel.sample] = False
    return kernel.predicted().variance / len(kernel.sample) / float(kernel.cost[left].mean())
