"""Launches side by side as one: their programs and traces one behind the other, their thread blocks handed out as
kernel_queue.py says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from abstim.engine.initial_state import Beside, new_kernels
from abstim.engine.kept_caches import Caches
from abstim.engine.simulation import WINDOW_CYCLES, WINDOWS, EngineResult, LaunchInputs, Simulation
from abstim.engine.state import POSTED
from functional.arrays import Int64
from functional.errors import InputError
from functional.traces.trace import concatenate
from precharacterize import LatencyTable

if TYPE_CHECKING:
    from abstim.gpu.config import Gpu

_MOST_BASIC_BLOCKS = 1 << 16  # that a trace can tell apart


@dataclass(frozen=True)
class Kernel:
    """A launch among others; without `inputs`, what only takes time: a copy.

    `needs`: what a thread block takes of an SM (engine.state.RESOURCES); `shared_bytes` of all on an SM at most;
    `awaits`: those before it, by position, that must be over; `delay_cycles` from then to its first thread block, or to
    the end of a copy; of a `programmatic` one of them, from when that could begin, and not before all of its thread
    blocks have let this one begin, or ended. Of several that may begin those of higher `priority` do."""

    inputs: LaunchInputs | None
    needs: tuple[int, ...] = (0, 0, 0, 0, 0)
    shared_bytes: int = 0
    awaits: tuple[int, ...] = ()
    delay_cycles: int = 0
    priority: int = 0
    programmatic: int = -1


@dataclass(frozen=True)
class SideBySide:
    """Of launches side by side: cycles from the beginning of the first to the first thread block of each and to its
    end, and all of them together; the log of issues that was asked for, and the table of the code it is of."""

    starts: Int64[np.ndarray, " kernel"]
    ends: Int64[np.ndarray, " kernel"]
    whole: EngineResult
    log: np.ndarray
    table: LatencyTable


def simulate_side_by_side(
    kernels: Sequence[Kernel], gpu: Gpu, caches: Caches | None = None, threads: int = 1, log_rows: int = 0
) -> SideBySide:
    """Time them on a design point; the arguments behind as of `simulate_point`, and of `Simulation.run`. Raises
    InputError for what the engine cannot time."""
    (inputs, beside), most = _joined(kernels, gpu, caches or Caches()), gpu.spec.max_blocks_per_sm
    launch = Simulation(
        inputs, gpu, most, caches=caches, windows=WINDOWS, window_cycles=WINDOW_CYCLES, threads=threads, beside=beside
    )
    log = launch.run(np.arange(len(launch.blocks)), drain=True, log_rows=log_rows)
    if caches is not None:
        launch.leave(caches)
    rows, starts = launch.kernels, launch.kernels["ready"].copy()
    for k in np.flatnonzero(rows["first_block"] < rows["stop"]):
        starts[k] = launch.blocks["dispatch_cycle"][rows["first_block"][k] : rows["stop"][k]].min()
    return SideBySide(starts, rows["end"].copy(), launch.result(), log, inputs.table)


def _joined(kernels: Sequence[Kernel], gpu: Gpu, caches: Caches) -> tuple[LaunchInputs, Beside]:
    if len(kernels) > POSTED:
        raise InputError(f"{len(kernels):,} kernels side by side, more than {POSTED:,}; --serial times one by one")
    there = [kernel.inputs for kernel in kernels if kernel.inputs is not None]
    tables = [caches.placed(x.table, x.module, gpu.pipeline.fetch_line_instructions) for x in there]
    table, first_basic_blocks = _joined_tables(tables)
    traces = [
        replace(one.trace, blocks=one.trace.blocks + np.uint16(first_basic_blocks[own]))
        for one, own in zip(there, tables, strict=True)
    ]
    rows, block, warp = new_kernels(len(kernels)), 0, 0
    orders = list[np.ndarray]()
    for row, kernel in zip(rows, kernels, strict=True):
        row["next"] = row["first_block"] = row["stop"] = block
        row["first_warp"], row["needs"] = warp, kernel.needs
        row["delay_cycles"], row["priority"] = kernel.delay_cycles, kernel.priority
        row["programmatic"] = kernel.programmatic
        if kernel.inputs is not None:
            trace = kernel.inputs.trace
            row["warps_per_block"], row["registers"] = trace.warps_per_block, kernel.inputs.registers
            row["cluster_blocks"], order = kernel.inputs.cluster_blocks, kernel.inputs.order
            orders.append(block + (np.arange(len(trace.thread_blocks)) if order is None else order))
            block, warp = block + len(trace.thread_blocks), warp + len(trace.block_offsets) - 1
            row["stop"] = block
    counts = np.cumsum([0, *(len(kernel.awaits) for kernel in kernels)])
    rows["awaits_at"], rows["awaits_end"] = counts[:-1], counts[1:]
    awaited = np.array([k for kernel in kernels for k in kernel.awaits], np.int64)
    spec = gpu.spec
    shared_bytes = min(spec.shared_bytes_per_sm, sum(kernel.shared_bytes for kernel in kernels))
    # Beside what is kept, if an SM held as many as it can
    each = -(-shared_bytes // spec.max_blocks_per_sm) - spec.shared_bytes_kept_per_block
    together = concatenate(traces, 0), each, 0, int(rows["cluster_blocks"].max()), np.concatenate(orders)
    return LaunchInputs(table, *together), Beside(rows, awaited, warp)


def _joined_tables(tables: Sequence[LatencyTable]) -> tuple[LatencyTable, dict[LatencyTable, int]]:
    """One table of the code of all, and where the basic blocks of each begin in it. Raises InputError for too many."""
    each, first, instruction = list(dict.fromkeys(tables)), dict[LatencyTable, int](), 0
    moved: list[LatencyTable] = []
    for table in each:
        first[table] = sum(len(other.block_start) for other in moved)
        starts = {name: getattr(table, name) + instruction for name in ("block_start", "block_stop")}
        moved.append(replace(table, **starts))
        instruction += len(table.unit)
    if (count := sum(len(table.block_start) for table in moved)) > _MOST_BASIC_BLOCKS:
        most = f"the engine tells {_MOST_BASIC_BLOCKS:,} apart"
        raise InputError(f"kernels side by side have {count:,} basic blocks, {most}; --serial times one by one")
    joined: dict[str, Any] = {"key": "", "register_count": max(table.register_count for table in each)}
    for name in (field.name for field in fields(LatencyTable) if field.name not in joined):
        joined[name] = _stacked([getattr(table, name) for table in moved])
    return LatencyTable(**joined), first


def _stacked(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Rows one below the other, padded by -1 to the same width."""
    if arrays[0].ndim == 1:
        return np.concatenate(arrays)
    width = max(array.shape[1] for array in arrays)
    return np.concatenate([np.pad(a, ((0, 0), (0, width - a.shape[1])), constant_values=-1) for a in arrays])
