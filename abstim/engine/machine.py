"""GPU, table and trace in the flat form both back ends read."""

from __future__ import annotations

import numpy as np

from abstim.config import Gpu
from abstim.engine.compiled.layout import GTO, LRR, OLDEST, TWO_LEVEL, Code, Machine, Streams
from functional.trace import Trace
from precharacterize import LatencyTable

POLICIES = {"gto": GTO, "lrr": LRR, "oldest": OLDEST, "two_level": TWO_LEVEL}


def machine_of(gpu: Gpu, warps_per_block: int, blocks_per_sm: int) -> Machine:
    """The numbers of a design point for a launch whose blocks have `warps_per_block` warps."""
    spec, params, pipeline = gpu.spec, gpu.params, gpu.pipeline
    units = np.cumsum([0, spec.sp_units, spec.sfu_units, spec.lsu_units])
    return Machine(
        sm_count=spec.sm_count,
        schedulers=spec.schedulers_per_sm,
        policy=POLICIES[spec.scheduler],
        active_warps=spec.two_level_active_warps,
        warp_slots=spec.max_warps_per_sm,
        warp_slots_per_block=warps_per_block,
        blocks_per_sm=blocks_per_sm,
        port_width=np.array([spec.sp_port_width, spec.sfu_port_width, spec.mem_port_width], np.int64),
        collectors=np.array([spec.sp_collectors, spec.sfu_collectors, spec.mem_collectors], np.int64),
        first_unit=units.astype(np.int64),
        result_bus=spec.result_bus_width,
        banks=spec.register_banks,
        fetch_width=pipeline.instructions_per_fetch,
        fetch_line=pipeline.fetch_line_instructions,
        l1i=np.array([spec.l1i_sets, spec.l1i_ways, pipeline.fetch_line_instructions], np.int64),
        const=np.array([spec.const_sets, spec.const_ways, spec.const_line_bytes], np.int64),
        l1d=np.array([spec.l1d_sets, spec.l1d_ways, spec.l1d_index == "hash"], np.int64),
        sector_coalescing=spec.coalescing == "sector",
        shared_cycles=int(pipeline.shared_cycles),
        const_cycles=int(pipeline.const_hit_cycles),
        l1d_cycles=int(params.l1d_latency_cycles),
        miss_cycles=int(params.l1_miss_extra_cycles),
        l1i_miss_cycles=int(params.l1i_miss_extra_cycles),
        more_blocks=True,
    )


def code_of(table: LatencyTable) -> Code:
    """The latency table as the engine reads it."""

    def count(rows: np.ndarray) -> np.ndarray:
        return (rows >= 0).sum(1).astype(np.int64)

    writes = (table.writes >= 0).sum(1).astype(np.int64)
    return Code(
        unit=table.unit, kind=table.kind, latency=table.latency_cycles, initiation=table.initiation_cycles,
        access_bytes=table.access_bytes, pc=table.pcs,
        waits=table.waits, wait_count=count(table.waits), writes=table.writes, write_count=writes,
        long_waits=table.long_waits, reads=table.read_banks, read_count=count(table.read_banks),
        write_banks=table.write_banks, block_start=table.block_start, block_stop=table.block_stop,
    )  # fmt: skip


def streams_of(trace: Trace) -> Streams:
    """The trace as the engine reads it."""
    return Streams(
        blocks=trace.blocks, records=trace.records, conflicts=trace.conflicts,
        block_offsets=trace.block_offsets, record_offsets=trace.record_offsets, conflict_offsets=trace.conflict_offsets,
        warps_per_block=trace.warps_per_block, block_count=len(trace.thread_blocks),
    )  # fmt: skip
