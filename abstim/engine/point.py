"""A launch on one design point with the compiled engine, as a whole."""

from __future__ import annotations

import numpy as np

from abstim.config import Gpu
from abstim.engine.caches import Caches
from abstim.engine.inputs import EngineResult, LaunchInputs
from abstim.engine.launch import Launch

WINDOWS, WINDOW_CYCLES = 1 << 14, 64  # a million cycles; of longer launches no history is kept


def simulate_point(inputs: LaunchInputs, gpu: Gpu, blocks_per_sm: int, caches: Caches | None = None) -> EngineResult:
    """Cycles of a launch on one design point, which finds `caches` as they were left (None: empty) and leaves them as
    they are after it. Releases the interpreter lock while it runs."""
    launch = Launch(inputs, gpu, blocks_per_sm, caches=caches, windows=WINDOWS, window_cycles=WINDOW_CYCLES)
    launch.run(np.arange(len(inputs.trace.thread_blocks)), drain=True)
    if caches is not None:
        launch.leave(caches)
    return launch.result()
