"""What the engine takes and gives."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from functional.traces.trace import Trace
from precharacterize import LatencyTable

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Int64

COUNTERS = (
    "l1d_accesses",
    "l1d_misses",
    "const_accesses",
    "const_misses",
    "l1i_accesses",
    "l1i_misses",
    "l2_accesses",
    "l2_misses",
    "dram_reads",
    "dram_writes",
    "l1t_accesses",
    "l1t_misses",
)


@dataclass(frozen=True)
class LaunchInputs:
    """One launch: what its program costs and what it did. The trace must hold every thread block, in launch order."""

    table: LatencyTable
    trace: Trace
    shared_bytes: int = 0  # static and dynamic, a thread block


@dataclass(frozen=True)
class EngineResult:
    """One launch on one design point.

    `cycles` counts from the launch to the cycle after the last warp has left, `sm_cycles` the same an SM;
    `issue_slots` are scheduler cycles by reason (abstim.session.result.SLOT_REASONS), cycles x schedulers in every row.
    """

    cycles: int
    sm_cycles: Int64[np.ndarray, " sm"]
    issue_slots: Int64[np.ndarray, "sm reason"]
    resident_warp_cycles: Int64[np.ndarray, " sm"]
    counters: dict[str, int]  # COUNTERS, all SMs together
    history: dict[str, Any] = field(default_factory=dict)  # over time: Simulation.history; {} if it was not kept
