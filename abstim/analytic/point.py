"""A design point as floats: what the analytic model can be differentiated by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Float

from abstim.gpu.config import Gpu
from abstim.gpu.spec import ALUS, INSTRUCTION_CLASSES

Value = Float[Array, "*point"]


class Point(NamedTuple):
    """A GPU, or `n` of them (a leading axis everywhere). Names and units are those of `Spec` and `Params`."""

    latency_cycles: Float[Array, "*point instruction_class"]
    initiation_cycles: Float[Array, "*point instruction_class"]
    on_unit: Float[Array, "*point alu instruction_class"]  # 1: the class runs on this kind of unit (ALUS)
    perfect_memory: Value  # 1 or 0
    sm_count: Value
    core_clock_hz: Value
    max_threads_per_sm: Value
    max_warps_per_sm: Value
    max_blocks_per_sm: Value
    registers_per_sm: Value
    register_allocation_granularity: Value
    shared_bytes_per_sm: Value
    schedulers_per_sm: Value
    sp_units: Value
    sfu_units: Value
    int_units: Value
    dp_units: Value
    tensor_units: Value
    lsu_units: Value
    l1d_banks: Value
    perfect_instruction_cache: Value  # 1 or 0
    perfect_constant_cache: Value
    fetches_per_cycle: Value
    sp_port_width: Value
    sfu_port_width: Value
    int_port_width: Value
    dp_port_width: Value
    tensor_port_width: Value
    mem_port_width: Value
    result_bus_width: Value
    l1d_sets: Value
    l1d_ways: Value
    l2_sets: Value
    l2_ways: Value
    l2_slices_per_channel: Value
    dram_channels: Value
    flit_bytes: Value
    packet_header_bytes: Value
    shared_latency_cycles: Value
    l1d_latency_cycles: Value
    const_latency_cycles: Value
    l1_miss_extra_cycles: Value
    atomic_latency_cycles: Value
    l1i_miss_extra_cycles: Value
    l2_request_cycles: Value
    l2_reply_cycles: Value
    l2_sector_cycles: Value
    l2_atomic_cycles: Value
    dram_latency_cycles: Value
    dram_reply_cycles: Value
    dram_activate_cycles: Value
    dram_sector_cycles: Value
    launch_latency_cycles: Value


def points_of(gpus: Sequence[Gpu]) -> Point:
    """`n` GPUs as one Point of float32 arrays, `n` rows each."""
    rows = [_values(gpu) for gpu in gpus]
    return Point(*(np.array(column, np.float32) for column in zip(*rows, strict=True)))


def _values(gpu: Gpu) -> list:
    operations = [gpu.pipeline.operation(name) for name in INSTRUCTION_CLASSES]
    classes = [
        [o.latency_cycles for o in operations],
        [o.initiation_cycles for o in operations],
        [[o.unit == unit for o in operations] for unit in ALUS],
    ]
    spec, params = gpu.spec, gpu.params
    names = Point._fields[3:]
    return [*classes, *(float(getattr(spec if hasattr(spec, name) else params, name)) for name in names)]
