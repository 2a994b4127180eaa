"""One launch on many design points, on the back end that fits."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from abstim.config import Gpu
from abstim.engine.inputs import EngineResult, LaunchInputs

if TYPE_CHECKING:
    from abstim.engine.caches import Caches


def simulate(
    inputs: LaunchInputs,
    points: Sequence[Gpu],
    blocks_per_sm: Sequence[int],
    backend: str = "compiled",
    caches: Sequence[Caches] | None = None,
    progress: Callable[[int], None] = lambda done: None,
    threads: int | None = None,
) -> list[EngineResult]:
    """Time a launch on every design point; `blocks_per_sm[k]` is the occupancy of `points[k]`.

    Back ends: `compiled` (machine code, threads over design points) and `array` (one JAX program over all SMs of all
    points). Both follow one list of rules and agree to the cycle. `progress` is told how many points are done.
    """
    if backend == "array":
        from abstim.engine.array import simulate_points

        return simulate_points(inputs, points, blocks_per_sm, progress)
    from abstim.engine.point import simulate_point

    def one(k: int) -> EngineResult:
        return simulate_point(inputs, points[k], blocks_per_sm[k], caches[k] if caches else None)

    if len(points) == 1 or threads == 1:
        return [one(k) for k in range(len(points))]
    results = []
    with ThreadPoolExecutor(threads or os.cpu_count()) as pool:
        for result in pool.map(one, range(len(points))):
            results.append(result)
            progress(len(results))
    return results
