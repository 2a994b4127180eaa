"""GATSim's Algorithm 1 ("Kernel timing computation") as printed: a setting of this engine (docs/occupancy-vector.md).

One thread block at a time on an SM, dealt in turn; one scheduler; an instruction an item, whose successor waits for the
pre-characterised distance from issue to issue alone. No unit, barrier or cache is looked at.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from abstim.gpu.config import Gpu
from abstim.occupancy_vector.cache_walk import FOUND, TOLD_SM
from abstim.occupancy_vector.design_points import layout_of, machine_of_lanes
from abstim.occupancy_vector.lanes import cycles_of, run
from abstim.occupancy_vector.records import ITEM, NUMBER, TICKS, Items, Lanes, Streams
from abstim.session.session import Session
from functional.errors import InputError
from functional.traces.line_record import without_phases
from functional.traces.trace import Trace
from precharacterize import LatencyTable
from tests.given_items import items_of

POLICIES = ("lrr", "oldest")


def algorithm_1_cycles(session: Session, number: int, gpu: Gpu) -> int:
    """Cycles of a launch on a GPU, launch latency excluded. Raises InputError for a scheduler the algorithm lacks."""
    table, trace = session.table(number, gpu), without_phases(session.traces.trace(number))
    return int(cycles_of(run(algorithm_1_lanes(table, trace, gpu)).end).max())


def algorithm_1_lanes(table: LatencyTable, trace: Trace, gpu: Gpu) -> Lanes:
    """The lanes of Algorithm 1 on the SMs of a GPU, by its scheduler, `lrr` or `oldest`."""
    policy = gpu.spec.scheduler
    if policy not in POLICIES:
        raise InputError(f"Algorithm 1 schedules by {' or '.join(POLICIES)}, not by {policy}")
    bare = replace(gpu, spec=replace(gpu.spec, perfect_memory=True, schedulers_per_sm=1, sub_cores=False))
    blocks, sm_count = len(trace.thread_blocks), gpu.spec.sm_count
    dealt = [np.arange(s, blocks, sm_count, dtype=np.int32) for s in range(min(sm_count, blocks))]
    items = gap_items(table, trace)
    starts = items.offsets[:-1].reshape(-1, trace.warps_per_block)
    if policy == "lrr":  # lanes begin behind the first warp, the algorithm with it
        starts = np.roll(starts, 1, axis=1)
    none, whole = np.zeros(starts.size, np.int32), np.zeros(starts.size, np.int64)
    streams = Streams(
        items.rows, items.lane_items, items.terms, starts.ravel(), whole, np.concatenate(dealt), *[none] * 10
    )
    layout = layout_of(bare, trace.warps_per_block, 1, items.lane_items)._replace(
        priority=policy == "oldest", holding=0
    )
    evenly = np.array([(1, 1, 0, 1, 0)], FOUND)
    machine = np.round(machine_of_lanes(bare, evenly, np.zeros(len(dealt), TOLD_SM)) * TICKS).astype(np.int64)
    machine[:, [NUMBER.block_launch, NUMBER.first_issue, NUMBER.retire]] = 0
    machine[:, NUMBER.dispatch] = TICKS
    stop = np.cumsum([len(own) for own in dealt], dtype=np.int32)
    return Lanes(layout, machine, 1, streams, np.append(0, stop[:-1]).astype(np.int32), stop)


def gap_items(table: LatencyTable, trace: Trace) -> Items:
    """Every instruction of a warp an item: the next issues `gap_cycles` later."""
    paths = [_instructions(table, trace, warp) for warp in range(len(trace.warp_instructions))]
    offsets = np.cumsum([0, *map(len, paths)])
    rows = np.zeros(offsets[-1], ITEM)
    gaps = table.gap_cycles[np.concatenate(paths)]
    rows["cycles"] = rows["front"] = 1
    rows["next"], rows["drain"] = gaps, np.maximum(0, gaps - 1)  # the last cycle of a gap is the one before the next
    rows["exit"][offsets[1:] - 1] = 1
    rows["next"][offsets[1:] - 1] = 0
    return items_of(rows, offsets)


def _instructions(table: LatencyTable, trace: Trace, warp: int) -> np.ndarray:
    """Rows of the table in the order in which a warp executes them."""
    own = trace.blocks[trace.block_offsets[warp] : trace.block_offsets[warp + 1]]
    return np.concatenate([np.arange(table.block_start[b], table.block_stop[b]) for b in own.tolist()])
