"""A launch on one design point with the compiled engine."""

from __future__ import annotations

import numpy as np

from abstim.config import Gpu
from abstim.engine.compiled.grid import run_grid
from abstim.engine.compiled.layout import (
    CONST_ACCESSES, CONST_MISSES, EMPTY, L1D_ACCESSES, L1D_MISSES, L1I_ACCESSES, L1I_MISSES, LAST_EXIT,
    RESIDENT_WARP_CYCLES, SmState, new_state,
)  # fmt: skip
from abstim.engine.inputs import EngineResult, LaunchInputs
from abstim.engine.machine import code_of, machine_of, streams_of

COUNTER_NAMES = {
    "l1d_accesses": L1D_ACCESSES, "l1d_misses": L1D_MISSES, "const_accesses": CONST_ACCESSES,
    "const_misses": CONST_MISSES, "l1i_accesses": L1I_ACCESSES, "l1i_misses": L1I_MISSES,
}  # fmt: skip


def simulate_point(inputs: LaunchInputs, gpu: Gpu, blocks_per_sm: int) -> EngineResult:
    """Cycles of a launch on one design point. Releases the interpreter lock while it runs."""
    machine = machine_of(gpu, inputs.trace.warps_per_block, blocks_per_sm)
    state = new_state(machine, inputs.table.register_count)
    code, streams = code_of(inputs.table), streams_of(inputs.trace)
    run_grid(state, machine, machine._replace(more_blocks=False), code, streams)
    return result_of(state, machine.schedulers, int(gpu.params.launch_latency_cycles))


def result_of(state: SmState, schedulers: int, launch_latency_cycles: int) -> EngineResult:
    """Read a finished state. Scheduler cycles nobody booked (before, after and without warps) are empty ones."""
    sm_cycles = state.now[:, LAST_EXIT] + 1 + launch_latency_cycles
    cycles = int(sm_cycles.max())
    slots = state.slots.copy()
    slots[:, EMPTY] += cycles * schedulers - slots.sum(1)
    totals = state.counters.sum(0)
    return EngineResult(
        cycles=cycles,
        sm_cycles=sm_cycles,
        issue_slots=slots,
        resident_warp_cycles=np.asarray(state.counters[:, RESIDENT_WARP_CYCLES]),
        counters={name: int(totals[k]) for name, k in COUNTER_NAMES.items()},
    )
