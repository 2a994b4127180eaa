"""A launch on one design point with the compiled engine."""

from __future__ import annotations

import numpy as np

from abstim.config import Gpu
from abstim.engine.compiled.grid import run_grid
from abstim.engine.compiled.layout import EMPTY, new_state
from abstim.engine.inputs import COUNTERS, EngineResult, LaunchInputs
from abstim.engine.machine import code_of, machine_of, streams_of


def simulate_point(inputs: LaunchInputs, gpu: Gpu, blocks_per_sm: int) -> EngineResult:
    """Cycles of a launch on one design point. Releases the interpreter lock while it runs."""
    trace, table = inputs.trace, inputs.table
    machine = machine_of(gpu, trace.warps_per_block, blocks_per_sm, table, inputs.shared_bytes)
    sms, heaps = new_state(machine)
    code, operands = code_of(table)
    streams, offsets = streams_of(trace, table, operands)
    far = np.zeros(int(machine["far_words"]), np.int64)
    run_grid(sms, heaps, far, machine, code, streams, offsets, len(trace.thread_blocks))
    return result_of(sms, gpu.spec.schedulers_per_sm, int(gpu.params.launch_latency_cycles))


def result_of(sms: np.ndarray, schedulers: int, launch_latency_cycles: int) -> EngineResult:
    """Read finished SM records. Scheduler cycles nobody booked (before, between and after blocks) are empty ones."""
    sm_cycles = sms["last_exit"] + 1 + launch_latency_cycles
    cycles = int(sm_cycles.max())
    slots = sms["slots"].copy()
    slots[:, EMPTY] += cycles * schedulers - slots.sum(1)
    counters = {name: int(sms[name].sum()) for name in COUNTERS}
    return EngineResult(cycles, sm_cycles, slots, sms["resident_warp_cycles"].copy(), counters)
