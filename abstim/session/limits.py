"""What the memory hierarchy did in a launch, and what kept the launch from being faster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from abstim.engine import LaunchInputs
from abstim.gpu.config import Gpu
from abstim.gpu.spec import Params, Spec
from abstim.session.memory_accesses import atomic_transactions
from functional.traces.trace import LINE_BYTES, SECTOR_BYTES
from precharacterize.classify import Kind
from precharacterize.table import UNITS

if TYPE_CHECKING:
    from jaxtyping import Int64

# Execution units (precharacterize.table.UNITS) as limits
UNIT_LIMITS = ("ALUs", "SFUs", "load/store unit", "ALUs", "FP64 units", "tensor units")
MEMORY, SHARED, ARITHMETIC = "memory latency", "shared memory latency", "instruction latency"
CONFLICTS = "bank conflicts"


def memory_use(counters: Mapping[str, float], cycles: float, spec: Spec, params: Params) -> dict[str, float]:
    """Hit rates (of transactions; NaN-free: a cache nobody asked has none), traffic in bytes, and use of capacity.

    `l2_use` and `dram_use` are busy time over all time of all slices or channels, from 0 to 1. A channel reads a sector
    in a burst, and writes as many as a burst has room for (docs/timing-rules.md, rule 11).
    """
    seconds = cycles / spec.core_clock_hz
    slices = spec.dram_channels * spec.l2_slices_per_channel
    dram_sectors = counters["dram_reads"] + counters["dram_writes"]
    bursts = counters["dram_reads"] + counters["dram_writes"] * SECTOR_BYTES / spec.dram_burst_bytes
    found = {
        f"{cache}_hit_rate": 1 - counters[f"{cache}_misses"] / counters[f"{cache}_accesses"]
        for cache in ("l1d", "l1t", "const", "l1i", "l2")
        if counters[f"{cache}_accesses"]
    }
    return found | {
        "launch_latency_share": params.launch_latency_cycles / cycles,
        "l2_bytes": counters["l2_accesses"] * SECTOR_BYTES,
        "dram_read_bytes": counters["dram_reads"] * SECTOR_BYTES,
        "dram_write_bytes": counters["dram_writes"] * SECTOR_BYTES,
        "l2_bytes_per_second": counters["l2_accesses"] * SECTOR_BYTES / seconds,
        "dram_bytes_per_second": dram_sectors * SECTOR_BYTES / seconds,
        "l2_use": counters["l2_accesses"] * params.l2_sector_cycles / (slices * cycles),
        "dram_use": bursts * params.dram_sector_cycles / (spec.dram_channels * cycles),
    }


def atomic_use(inputs: LaunchInputs, gpu: Gpu, cycles: float) -> float:
    """Share of a launch in which the L2 slice with the most atomics serves them, one after the other; 0 without any."""
    lines, counts = atomic_transactions(inputs)
    if not len(lines) or gpu.spec.perfect_memory:
        return 0.0
    place = lines // max(1, gpu.spec.slice_interleave_bytes // LINE_BYTES)
    most = np.bincount(np.unique(place, return_inverse=True)[1], counts).max()
    return float(most) * max(1.0, gpu.params.l2_atomic_cycles) / cycles


def executions(inputs: LaunchInputs) -> Int64[np.ndarray, " instr"]:
    """How often warps execute each instruction of what is timed."""
    table = inputs.table
    blocks = np.bincount(inputs.trace.blocks, minlength=len(table.block_start))
    found = np.zeros(len(table.kind) + 1, np.int64)
    np.add.at(found, table.block_start, blocks)
    np.add.at(found, table.block_stop, -blocks)
    return np.cumsum(found)[:-1]


def unit_use(inputs: LaunchInputs, gpu: Gpu, active_cycles: int) -> dict[str, float]:
    """Busy time of all units of a kind, and of shared memory with passes after the first, over all time of SMs that
    have work."""
    counts, table = executions(inputs), inputs.table
    busy = np.bincount(table.unit, counts * np.maximum(1, table.initiation_cycles), minlength=len(UNITS))
    found: dict[str, float] = {}
    for unit, name, cycles in zip(UNITS, UNIT_LIMITS, busy.tolist(), strict=True):
        units = getattr(gpu.spec, f"{unit}_units", 1)
        found[name] = max(found.get(name, 0.0), cycles / max(1, units * active_cycles))
    return found | {CONFLICTS: extra_passes(inputs) / max(1, active_cycles)}


def extra_passes(inputs: LaunchInputs) -> int:
    """Of shared memory, after the first of each access."""
    return int(inputs.trace.conflicts.sum()) - int(np.count_nonzero(inputs.trace.conflicts))


def known_waits(inputs: LaunchInputs, gpu: Gpu, code_waits: float) -> dict[str, float]:
    """Cycles that a lone warp waits between instructions, and for its loads if each hits: shares of their sum.

    `code_waits`: how often a warp waited for a line of code that was not in its SM; it comes from DRAM the first time.

    Which of them a warp waited for when none was ready, nobody noted.
    """
    counts, kind, params = executions(inputs), inputs.table.kind, gpu.params
    constant = (kind == Kind.PARAM_LOAD) | (kind == Kind.CONST_LOAD)
    shared, data = (kind >= Kind.SHARED_LOAD) & (kind <= Kind.SHARED_ATOMIC), kind >= Kind.GLOBAL_LOAD
    cycles = {
        MEMORY: counts[constant].sum() * params.const_latency_cycles
        + counts[data].sum() * params.l1d_latency_cycles
        + code_waits * (params.l2_request_cycles + params.dram_latency_cycles + params.l2_reply_cycles),
        SHARED: counts[shared].sum() * params.shared_latency_cycles,
        CONFLICTS: extra_passes(inputs),
        ARITHMETIC: (counts * np.maximum(0, inputs.table.gap_cycles - 1))[kind < Kind.PARAM_LOAD].sum(),
    }
    total = max(1.0, float(sum(cycles.values())))
    return {name: float(value) / total for name, value in cycles.items()}


def limit_of(
    issue_slots: Mapping[str, int], memory: Mapping[str, float], units: Mapping[str, float], waits: Mapping[str, float]
) -> str:
    """An estimate of what would save most if it were twice as fast.

    A latency saves half of what is waited for it, and so does the launch's; a resource that is busy for a share u of
    the time saves u^2 / 2, for the less it is used, the more is waited for something else. Schedulers without a warp
    say nothing: what they wait for is the work of the others.
    """
    working = max(1, sum(issue_slots.values()) - issue_slots["empty"])
    rest = 1 - memory["launch_latency_share"]
    share = {reason: rest * count / working for reason, count in issue_slots.items()}
    busiest = max(units, key=units.__getitem__)
    use = dict(units) | {
        "atomics": memory["atomic_use"], "DRAM bandwidth": memory["dram_use"], "L2 bandwidth": memory["l2_use"],
        "instruction issue": share["issued"],
    }  # fmt: skip
    gain = {name: rest * busy**2 / 2 for name, busy in use.items()}
    gain[busiest] = max(gain[busiest], share["unit_busy"] / 2)
    for name, part in waits.items():
        waited = share["no_ready_warp"] * part + (share["memory"] if name == MEMORY else 0)
        gain[name] = max(gain.get(name, 0.0), waited / 2)
    gain["launch latency"] = memory["launch_latency_share"] / 2
    return max(gain, key=gain.__getitem__)
