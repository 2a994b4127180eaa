"""The interval model: a basic block too rare to have been timed, from the latencies of its instructions. Figure 9."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from sampling.protocol import BlockCode

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Float64

DEFAULT_LATENCY_CYCLES = 20.0  # of a class that nobody gives an initial value: about an ALU pipeline


def interval_cycles(
    code: BlockCode,
    latency_cycles: Float64[np.ndarray, " class"],
    initial_cycles: Float64[np.ndarray, " class"] | None = None,
) -> float:
    """Cycles from a block's first issue to the next block's, for a warp alone.

    One issue a cycle; an instruction waits for the results of its sources. A class without an observed latency (NaN)
    takes its initial value, that of the cache or ALU it uses (`initial_cycles`).
    """
    retire: list[float] = []
    issue = -1.0
    for kind, sources in zip(code.classes.tolist(), code.sources, strict=True):
        issue = max([issue + 1.0, *(retire[source] for source in sources)])
        retire.append(issue + _latency(kind, latency_cycles, initial_cycles))
    return issue + 1.0


def _latency(kind: int, observed: np.ndarray, initial: np.ndarray | None) -> float:
    for table in (observed, initial):
        if table is not None and kind < len(table) and not math.isnan(table[kind]):
            return float(table[kind])
    return DEFAULT_LATENCY_CYCLES
