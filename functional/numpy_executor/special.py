"""Special registers as values that broadcast to [warp, 32]."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from functional.launches.launch import Launch
    from functional.numpy_executor.chunk_state import Machine

_LANES = np.arange(32, dtype=np.uint32)[None, :]
_BIT = np.uint32(1) << _LANES
_MASKS = {"eq": _BIT, "lt": _BIT - 1, "le": (_BIT - 1) | _BIT, "gt": ~((_BIT - 1) | _BIT), "ge": ~(_BIT - 1)}
_CONSTANTS = {"WARP_SZ": 32, "%smid": 0, "%nsmid": 1, "%gridid": 0}
_IN_CLUSTER = frozenset({"%is_explicit_cluster", "%cluster_ctarank", "%cluster_nctarank"})
# Where the shared memory lies that is CUDA's own, and bytes of it; cooperative groups of several warps meet there
RESERVED_SHARED, RESERVED_SHARED_BYTES = "%reserved_smem_offset_1", 1024
_WIDE = frozenset({"%clock64", "%globaltimer", "%gridid", "%current_graph_exec"})
CLOCKS = frozenset({"%clock", "%clock_hi", "%clock64", "%globaltimer", "%globaltimer_lo", "%globaltimer_hi"})
_AXES = frozenset(
    {"%tid", "%ntid", "%ctaid", "%nctaid", "%clusterid", "%nclusterid", "%cluster_ctaid", "%cluster_nctaid"}
)


def special_type(name: str) -> str | None:
    """PTX type of a special register; None if it is not supported."""
    base, _, axis = name.partition(".")
    known = (
        name in _CONSTANTS
        or name in CLOCKS
        or name in _IN_CLUSTER
        or (base in _AXES and axis)
        or name in (RESERVED_SHARED, "%laneid", "%warpid", "%nwarpid", "%dynamic_smem_size", "%total_smem_size")
        or name.startswith(("%lanemask_", "%envreg"))
    )
    if name == "%is_explicit_cluster":
        return "pred"
    return ("u64" if name in _WIDE else "u32") if known else None


def reserved_shared_offset(launch: Launch) -> int:
    """It lies behind a thread block's own, static and dynamic."""
    return -(-launch.shared_bytes // 16) * 16


def special_values(machine: Machine, name: str) -> np.ndarray:
    """The value of a special register other than the clocks, (1 | warp, 1 | 32)."""
    base, _, axis = name.partition(".")
    if axis:
        return _coordinate(machine, base, "xyz".index(axis))
    if name in _IN_CLUSTER:
        return _in_cluster(machine, name)
    if name.startswith("%lanemask_"):
        return _MASKS[name[-2:]].astype(np.uint32)
    if name == RESERVED_SHARED:
        first = machine.clusters.first_address[machine.block_of_row].astype(np.uint32)[:, None]
        return first + np.uint32(reserved_shared_offset(machine.launch))
    if name == "%laneid":
        return _LANES.copy()
    if name == "%warpid":
        return (machine.all_rows % machine.warps_per_block).astype(np.uint32)[:, None]
    scalars = {
        **_CONSTANTS,
        "%nwarpid": machine.warps_per_block,
        "%dynamic_smem_size": machine.launch.dynamic_shared_bytes,
        "%total_smem_size": machine.launch.shared_bytes,
        # What CUDA's grid synchronisation reads there (cooperative_groups/details/driver_abi.h)
        "%envreg1": machine.launch.grid_workspace >> 32,
        "%envreg2": machine.launch.grid_workspace & 0xFFFFFFFF,
    }
    return np.full((1, 1), scalars.get(name, 0), np.uint64 if name in _WIDE else np.uint32)


def _in_cluster(machine: Machine, name: str) -> np.ndarray:
    launch, clusters = machine.launch, machine.clusters
    if name == "%is_explicit_cluster":
        asked = launch.requested_cluster is not None or "reqnctapercluster" in launch.program.directives
        return np.full((1, 1), asked)
    if name == "%cluster_nctarank":
        return np.full((1, 1), clusters.size, np.uint32)
    return clusters.rank[machine.block_of_row].astype(np.uint32)[:, None]


def _coordinate(machine: Machine, base: str, axis: int) -> np.ndarray:
    launch = machine.launch
    grid, cluster = launch.grid, launch.cluster
    extents = {"%ntid": launch.block, "%nctaid": grid, "%cluster_nctaid": cluster}.get(base)
    if extents is not None:
        return np.full((1, 1), extents[axis], np.uint32)
    if base == "%nclusterid":
        return np.full((1, 1), grid[axis] // cluster[axis], np.uint32)
    extents = launch.block if base == "%tid" else grid
    below = int(np.prod(extents[:axis], dtype=np.int64))
    if base == "%tid":
        linear = (32 * (machine.all_rows % machine.warps_per_block))[:, None] + _LANES
    elif extents[axis] == 1:
        return np.zeros((1, 1), np.uint32)
    else:
        linear = np.repeat(machine.thread_blocks, machine.warps_per_block)[:, None]
    along = linear // below % extents[axis]
    shown = {"%clusterid": along // cluster[axis], "%cluster_ctaid": along % cluster[axis]}.get(base, along)
    return shown.astype(np.uint32)


def clock(issued: np.ndarray, name: str) -> np.ndarray:
    """A monotone stand-in for a clock, (row, 1): the executor knows no time, so it shows the instructions that the
    warp has issued (int64 [row])."""
    wide = name in _WIDE
    value = issued >> 32 if name.endswith("_hi") else issued
    return value[:, None].astype(np.uint64) if wide else (value[:, None] & 0xFFFFFFFF).astype(np.uint32)
