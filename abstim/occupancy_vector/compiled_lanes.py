"""Lanes as machine code, one after the other on every core."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from abstim.occupancy_vector.lane_records import (
    BLOCK,
    LOADS,
    POOL_COUNT,
    PROGRESS,
    QUEUE,
    RESULTS,
    SERVERS,
    SHAPE,
    SLOT,
    SPECIALS,
    Lane,
    Lanes,
    Layout,
    Outcome,
)
from functional.disk.machine_code import Native

run_lanes = Native("abstim.occupancy_vector.lane_kernel", "run_lanes", "abstim: compiling the occupancy-vector engine")


def run_compiled(parts: Sequence[Lanes], threads: int | None = None) -> list[Outcome]:
    """Run every lane of every part. Deterministic: lanes know nothing of each other.

    `threads`: at most so many at once (None: one a core).
    """
    count = threads or os.cpu_count() or 1
    stopped = np.zeros(1, np.int64)
    found = [Outcome(np.zeros(len(part.first), np.int64), np.zeros(len(part.first), np.int64)) for part in parts]

    def task(k: int, own: slice) -> None:
        found[k].end[own], found[k].issued[own] = _run(parts[k], own, stopped)

    tasks = [(k, own) for k, part in enumerate(parts) for own in _shares(len(part.first), len(parts), count)]
    with ThreadPoolExecutor(count) as pool:
        try:
            list(pool.map(task, *zip(*tasks, strict=True)))
        except BaseException:
            stopped[0] = 1
            raise
    return found


def _shares(lanes: int, parts: int, threads: int) -> Iterator[slice]:
    """Lanes of a part that one call runs: all of them, but where there are too few parts for all threads."""
    size = lanes if parts >= 2 * threads else max(1, -(-lanes // (4 * threads)))
    for first in range(0, lanes, size):
        yield slice(first, min(lanes, first + size))


def _run(part: Lanes, own: slice, stopped: np.ndarray) -> Outcome:
    first, stop = part.first[own], part.stop[own]
    progress, ends = np.zeros(len(first), PROGRESS), np.zeros(len(first), np.int64)
    progress["next"], progress["stop"] = first, stop
    lane = new_lane(part.layout, part.residents)
    run_lanes(lane, part.streams, _shape(part), part.machine, progress, ends, stopped)
    return Outcome(ends, progress["issued"])


def _shape(part: Lanes) -> np.ndarray:
    layout, shape = part.layout, np.zeros(1, SHAPE)
    shape[0] = (
        layout.schedulers, layout.rows, layout.warps, part.residents, layout.sub_cores, layout.priority,
        layout.perfect_memory,
    )  # fmt: skip
    return shape


def new_lane(layout: Layout, residents: int) -> Lane:
    """The arrays of a lane's state, all zero."""
    slots, groups = layout.schedulers * layout.rows, layout.groups

    def times(count: int) -> np.ndarray:
        return np.zeros(count, np.int64)

    return Lane(
        ready=times(slots),
        due=np.zeros(slots, np.int64),
        units=np.zeros(slots, np.uint64),
        pools=np.zeros(slots, np.uint64),
        floor=times(slots),
        drain=times(slots),
        loads=times(slots * LOADS),
        results=times(slots * RESULTS),
        warps=np.zeros(slots, SLOT),
        clock=times(layout.schedulers),
        last=times(layout.schedulers),
        drained=times(residents),
        blocks=np.zeros(residents, BLOCK),
        memory_starts=times(QUEUE),
        special_free=times(SPECIALS * groups),
        pool_free=times(POOL_COUNT * groups),
        servers=times(SERVERS),
        begins=times(layout.schedulers),
        unit_bounds=np.zeros(2 + SPECIALS, np.int64),
        pool_bounds=np.zeros(1 << POOL_COUNT, np.int64),
        picked=np.zeros((layout.schedulers, 2), np.int64),
    )
