"""GPU, table and trace in the flat form the engine reads."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from abstim.config import Gpu
from abstim.engine.compiled.layout import (
    BUCKETS,
    CODE,
    GTO,
    LRR,
    MACHINE,
    MEM,
    OLDEST,
    RESPONSES,
    SFU,
    SP,
    TWO_LEVEL,
    UNITS_A_CYCLE_LOG2,
    Offsets,
    Streams,
)  # fmt: skip
from functional.trace import LINE_BYTES, Trace
from precharacterize import LatencyTable

MOST_TRANSACTIONS = 128  # of one warp instruction: 32 lanes, a record each, 4 sectors
POLICIES = {"gto": GTO, "lrr": LRR, "oldest": OLDEST, "two_level": TWO_LEVEL}


def machine_of(gpu: Gpu, warps_per_block: int, blocks_per_sm: int, table: LatencyTable) -> np.ndarray:
    """The numbers of a design point for a launch: a 0-dimensional MACHINE record."""
    spec, params, pipeline = gpu.spec, gpu.params, gpu.pipeline
    m = np.zeros(1, MACHINE)[0]
    for name in (
        "sm_count", "l1i_sets", "l1i_ways", "const_sets", "const_ways", "const_line_bytes", "l1d_sets", "l1d_ways",
    ):  # fmt: skip
        m[name] = getattr(spec, name)
    values = {
        "schedulers": spec.schedulers_per_sm, "policy": POLICIES[spec.scheduler],
        "active_warps": spec.two_level_active_warps, "warp_slots": spec.max_warps_per_sm,
        "warps_per_block": warps_per_block, "blocks_per_sm": blocks_per_sm,
        "result_bus": spec.result_bus_width, "banks": spec.register_banks,
        "fetch_width": pipeline.instructions_per_fetch, "fetch_line": pipeline.fetch_line_instructions,
        "fetch_line_log2": pipeline.fetch_line_instructions.bit_length() - 1,
        "l1d_hashed": spec.l1d_index == "hash", "sector_coalescing": spec.coalescing == "sector",
        "shared_cycles": pipeline.shared_cycles, "const_cycles": pipeline.const_hit_cycles,
        "l1d_cycles": params.l1d_latency_cycles, "miss_cycles": params.l1_miss_extra_cycles,
        "atomic_cycles": params.atomic_latency_cycles,
        "l1i_miss_cycles": params.l1i_miss_extra_cycles, "register_count": table.register_count,
        "ring": ring_cycles(gpu, table),
        "port_width": (spec.sp_port_width, spec.sfu_port_width, spec.mem_port_width),
        "collectors": (spec.sp_collectors, spec.sfu_collectors, spec.mem_collectors),
        "first_unit": np.cumsum([0, spec.sp_units, spec.sfu_units, spec.lsu_units]),
    }  # fmt: skip
    for name, value in (values | memory_values(gpu)).items():
        m[name] = value
    for s in range(spec.schedulers_per_sm):
        m["scheduler_slots"][s] = sum(1 << w for w in range(s, spec.max_warps_per_sm, spec.schedulers_per_sm))
    _lay_out_heap(m)
    _lay_out_far(m)
    return m


def memory_values(gpu: Gpu) -> dict[str, int]:
    """What lies behind the first-level caches; service times in units of 1 / 64 cycle."""
    spec, params = gpu.spec, gpu.params

    def units(cycles: float) -> int:
        return round(cycles * (1 << UNITS_A_CYCLE_LOG2))

    return {
        "perfect": spec.perfect_memory, "l1i_mshrs": spec.l1i_mshrs, "const_mshrs": spec.const_mshrs,
        "mshr_merges": spec.l1d_mshr_merges, "miss_queue": spec.l1d_miss_queue,
        "flit_bytes": spec.flit_bytes, "packet_bytes": spec.packet_header_bytes,
        "channels": spec.dram_channels, "slices_per_channel": spec.l2_slices_per_channel,
        "interleave_log2": (spec.channel_interleave_bytes // LINE_BYTES).bit_length() - 1,
        "l2_sets": spec.l2_sets, "l2_ways": spec.l2_ways, "dram_banks": spec.dram_banks,
        "request_cycles": params.l2_request_cycles, "l2_reply_cycles": params.l2_reply_cycles,
        "dram_cycles": params.dram_latency_cycles, "dram_reply_cycles": params.dram_reply_cycles,
        "activate_cycles": params.dram_activate_cycles, "l2_sector_units": units(params.l2_sector_cycles),
        "l2_atomic_units": units(params.l2_atomic_cycles), "dram_sector_units": units(params.dram_sector_cycles),
    }  # fmt: skip


def ring_cycles(gpu: Gpu, table: LatencyTable) -> int:
    """A power of two above the number of cycles that a booking can lie ahead of the clock.

    In front of a unit wait at most what its port's collectors and registers hold, each for its time on the unit.
    """
    spec, params = gpu.spec, gpu.params
    slots = {
        SP: spec.sp_collectors + 3 * spec.sp_port_width,
        SFU: spec.sfu_collectors + 3 * spec.sfu_port_width,
        MEM: spec.mem_collectors + 3 * spec.mem_port_width,
    }
    busy = {port: int(table.initiation_cycles[table.unit == port].max(initial=1)) for port in (SP, SFU)}
    busy[MEM] = MOST_TRANSACTIONS
    memory = params.l1d_latency_cycles + params.l1_miss_extra_cycles + params.atomic_latency_cycles
    memory += gpu.pipeline.shared_cycles + gpu.pipeline.const_hit_cycles
    operands = table.read_banks.shape[1] * max(slots.values())
    ahead = sum(slots[p] * busy[p] for p in slots) + int(table.latency_cycles.max()) + memory + operands + 64
    return 1 << int(ahead).bit_length()


def _lay_out_heap(m: np.ndarray) -> None:
    """Set the `*_at` offsets, in words, and the heap's size."""
    sizes = {
        "registers_at": m["warp_slots"] * m["register_count"],
        "results_at": m["first_unit"][3] * m["ring"],
        "bus_at": m["result_bus"] * m["ring"],
        "bank_at": m["banks"] * m["ring"],
        "l1i_at": 4 * m["l1i_sets"] * m["l1i_ways"],
        "const_at": 4 * m["const_sets"] * m["const_ways"],
        "responses_at": 0 if m["perfect"] else RESPONSES,
        "l1d_at": 4 * m["l1d_sets"] * m["l1d_ways"],
    }
    m["heap_words"] = _lay_out(m, sizes)


def _lay_out_far(m: np.ndarray) -> None:
    """The same for what the SMs share: one word if memory is perfect."""
    slices = m["channels"] * m["slices_per_channel"]
    m["l2_lines"] = slices * m["l2_sets"] * m["l2_ways"]
    sizes = {
        "l2_at": 4 * m["l2_lines"],
        "slices_at": 2 * BUCKETS * slices,
        "channels_at": 2 * BUCKETS * m["channels"],
        "rows_at": m["channels"] * m["dram_banks"],
        "uses_at": 1,
    }
    m["far_words"] = 1 if m["perfect"] else _lay_out(m, sizes)


def _lay_out(m: np.ndarray, sizes: dict[str, int]) -> int:
    """Set each offset after the one before it; returns where the last ends."""
    used = 0
    for name, words in sizes.items():
        m[name] = used
        used += int(words)
    return used


@lru_cache(maxsize=64)
def code_of(table: LatencyTable) -> tuple[np.ndarray, np.ndarray]:
    """The latency table as CODE records, one an instruction, and the operands they point into."""
    code = np.zeros(len(table.unit), CODE)
    code["unit"], code["kind"], code["pc"] = table.unit, table.kind, table.pcs
    code["latency"], code["initiation"] = table.latency_cycles, table.initiation_cycles
    code["access_bytes"] = table.access_bytes
    groups = {"waits": table.waits, "writes": table.writes, "reads": table.read_banks, "long": table.long_waits}
    operands: list[int] = []
    for i, row in enumerate(code):
        for name, rows in groups.items():
            row[f"{name}_at"] = len(operands)
            operands += [int(r) for r in rows[i] if r >= 0]
            row[f"{name}_end"] = len(operands)
        row["write_banks_at"] = len(operands)
        operands += table.write_banks[i, : int((table.writes[i] >= 0).sum())].tolist()
    return code, np.array(operands, np.int16)


def streams_of(trace: Trace, table: LatencyTable, operands: np.ndarray) -> tuple[Streams, Offsets]:
    """The trace and the program's blocks as the engine reads them."""
    streams = Streams(trace.blocks, trace.records, trace.conflicts, table.block_start, table.block_stop, operands)
    return streams, Offsets(trace.block_offsets, trace.record_offsets, trace.conflict_offsets)
