"""What the memory hierarchy did in a launch, and what kept the launch from being faster."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from abstim.engine import LaunchInputs
from abstim.gpu.config import Gpu
from abstim.gpu.spec import Params, Spec
from abstim.session.memory_accesses import atomic_transactions
from functional.trace import LINE_BYTES, SECTOR_BYTES

BUSY = 0.6  # of its capacity: from here on a shared resource, not a latency, is named as the limit
# An idle scheduler cycle's reason (abstim.session.result.SLOT_REASONS) as a limit
LATENCIES = {
    "no_ready_warp": "instruction latency",
    "unit_busy": "execution units",
    "barrier": "barriers",
    "memory": "memory latency",
    "empty": "too few thread blocks",
}


def memory_use(counters: Mapping[str, float], cycles: float, spec: Spec, params: Params) -> dict[str, float]:
    """Hit rates (of transactions; NaN-free: a cache nobody asked has none), traffic in bytes, and use of capacity.

    `l2_use` and `dram_use` are busy time over all time of all slices or channels, from 0 to 1.
    """
    seconds = cycles / spec.core_clock_hz
    slices = spec.dram_channels * spec.l2_slices_per_channel
    dram_sectors = counters["dram_reads"] + counters["dram_writes"]
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
        "dram_use": dram_sectors * params.dram_sector_cycles / (spec.dram_channels * cycles),
    }


def atomic_use(inputs: LaunchInputs, gpu: Gpu, cycles: float) -> float:
    """Share of a launch in which the L2 slice with the most atomics serves them, one after the other; 0 without any."""
    lines, counts = atomic_transactions(inputs)
    if not len(lines) or gpu.spec.perfect_memory:
        return 0.0
    place = lines // max(1, gpu.spec.slice_interleave_bytes // LINE_BYTES)
    most = np.bincount(np.unique(place, return_inverse=True)[1], counts).max()
    return float(most) * max(1.0, gpu.params.l2_atomic_cycles) / cycles


def limit_of(issue_slots: Mapping[str, int], memory: Mapping[str, float]) -> str:
    """An estimate: the busiest shared resource if one is busy; otherwise what most idle scheduler cycles waited for."""
    total = max(1, sum(issue_slots.values()))
    busy = {
        "launch latency": memory["launch_latency_share"],
        "atomics": memory["atomic_use"],
        "DRAM bandwidth": memory["dram_use"],
        "L2 bandwidth": memory["l2_use"],
        "instruction issue": issue_slots["issued"] / total,
    }
    name = max(busy, key=busy.__getitem__)
    if busy[name] >= BUSY:
        return name
    return LATENCIES[max(LATENCIES, key=issue_slots.__getitem__)]
