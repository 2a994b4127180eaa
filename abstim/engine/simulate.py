"""One launch on many design points."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from abstim.engine.inputs import EngineResult, LaunchInputs
from abstim.engine.kept_caches import Caches
from abstim.engine.simulation import Simulation
from abstim.gpu.config import Gpu

WINDOWS, WINDOW_CYCLES = 1 << 14, 64  # a million cycles; of longer launches no history is kept


def simulate(
    inputs: LaunchInputs,
    points: Sequence[Gpu],
    blocks_per_sm: Sequence[int],
    caches: Sequence[Caches] | None = None,
    threads: int | None = None,
) -> list[EngineResult]:
    """Time a launch on every design point, on as many threads as there are CPUs; `blocks_per_sm[k]` is the occupancy of
    `points[k]`, `caches[k]` what it finds there (see `simulate_point`)."""

    def one(k: int) -> EngineResult:
        return simulate_point(inputs, points[k], blocks_per_sm[k], caches[k] if caches else None)

    if len(points) == 1 or threads == 1:
        return [one(k) for k in range(len(points))]
    with ThreadPoolExecutor(threads or os.cpu_count()) as pool:
        return list(pool.map(one, range(len(points))))


def simulate_point(inputs: LaunchInputs, gpu: Gpu, blocks_per_sm: int, caches: Caches | None = None) -> EngineResult:
    """Cycles of a launch on one design point, which finds `caches` as they were left (None: empty) and leaves them as
    they are after it. Releases the interpreter lock while it runs."""
    launch = Simulation(inputs, gpu, blocks_per_sm, caches=caches, windows=WINDOWS, window_cycles=WINDOW_CYCLES)
    launch.run(np.arange(len(inputs.trace.thread_blocks)), drain=True)
    if caches is not None:
        launch.leave(caches)
    return launch.result()
