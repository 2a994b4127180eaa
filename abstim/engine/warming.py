"""Functional warming: what a launch leaves in the caches, without timing it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from abstim.engine.design_point import code_of, streams_of
from abstim.engine.inputs import LaunchInputs
from abstim.engine.kept_caches import Caches
from abstim.engine.simulation import Simulation
from abstim.gpu.config import Gpu
from functional.jit.machine_code import Native
from functional.traces.line_record import ALL_SECTORS, SECTOR_SHIFT, is_data, line_of

if TYPE_CHECKING:
    from jaxtyping import Int64

_walk = Native("abstim.engine.tag_walk", "walk")
_controllers = Native("abstim.engine.tag_walk", "controllers")
SECTOR_BITS = np.uint32(ALL_SECTORS << SECTOR_SHIFT)  # of a record


def warm(inputs: LaunchInputs, gpu: Gpu, blocks_per_sm: int, caches: Caches, share: float = 1.0) -> None:
    """Send the memory accesses and instruction lines of the last `share` of a launch's thread blocks through the tags.

    Each resident warp makes one memory access in turn, where in a launch their order is that of time. Releases the
    interpreter lock while it runs.
    """
    launch = Simulation(inputs, gpu, blocks_per_sm, caches=caches)
    code, operands = code_of(inputs.table)
    streams, offsets = streams_of(inputs.trace, inputs.table, operands)
    blocks = len(inputs.trace.thread_blocks)
    first = blocks - int(np.ceil(min(max(share, 0.0), 1.0) * blocks))
    _walk(launch.state, code, streams, offsets, first, blocks)
    launch.leave(caches)


def warm_code(inputs: LaunchInputs, gpu: Gpu, blocks_per_sm: int, caches: Caches) -> None:
    """Send what a launch's first wave reads of instructions and constants through the tags."""
    resident = blocks_per_sm * gpu.spec.sm_count / len(inputs.trace.thread_blocks)
    warm(without_data(inputs), gpu, blocks_per_sm, caches, resident)


def data(records: np.ndarray) -> np.ndarray:
    """Which records are of global or local memory, not of constants and parameters."""
    return is_data(line_of(records))


def without_data(inputs: LaunchInputs) -> LaunchInputs:
    """A launch that reads its instructions and constants only: no lane of its other accesses is active."""
    records = inputs.trace.records
    return replace(
        inputs, trace=replace(inputs.trace, records=np.where(data(records), records & ~SECTOR_BITS, records))
    )


def bank_loads(
    inputs: LaunchInputs, gpu: Gpu, blocks_per_sm: int, lines: Int64[np.ndarray, " line"]
) -> Int64[np.ndarray, "controller bank"]:
    """How many of some lines each bank of each memory controller holds."""
    machine = Simulation(inputs, gpu, blocks_per_sm).machine
    found = np.zeros((gpu.spec.dram_channels, gpu.spec.dram_banks), np.int64)
    _controllers(machine, lines.astype(np.int64), found)
    return found
