"""The occupancy model: every launch of a session by its warps' occupancy vectors, on every GPU at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from abstim.engine.unsupported import refuse_unsupported
from abstim.gpu.config import Gpu
from abstim.occupancy_vector.design_points import Prepared, Walked, lanes_of, prepare, reading, walk, walking
from abstim.occupancy_vector.item_kernel import MEMORY
from abstim.occupancy_vector.lane_state import TICKS
from abstim.occupancy_vector.lanes import Lanes, cycles_of, joined, run
from abstim.progress import Progress, silent
from abstim.session.result import LaunchResult, RunResult, launch_facts, run_result
from abstim.session.session import Session
from functional.errors import InputError
from functional.trace import SECTOR_BYTES

if TYPE_CHECKING:
    from functional.launch import Launch
    from functional.trace import Trace

LATENCY = "latency"  # what limits a launch when no resource is busy
BOUNDS = ("instruction issue", "load/store unit", "L2", "DRAM")
BUSY = 0.6  # of the launch: from here on a resource is named as what limits it


@dataclass(frozen=True, slots=True, kw_only=True)
class OccupancyLaunch(LaunchResult):
    """As of the detailed engine, without issue slots. `bounds_cycles`: what each of BOUNDS alone is busy, on the mean
    SM; `limit` is one of them, or LATENCY, of which the launch is all."""

    bounds_cycles: dict[str, float]


def refuse(gpus: Sequence[Gpu], flush: str) -> None:
    """Raises InputError for what this model cannot do."""
    if flush != "all":
        raise InputError("the occupancy model starts each launch with empty caches; use --model detailed")


def time(session: Session, gpus: Sequence[Gpu], flush: str = "all", progress: Progress = silent) -> list[RunResult]:
    """Time every launch on every GPU, the lanes of all GPUs together. Raises InputError for a thread block that an SM
    cannot hold, or a launch that lanes cannot."""
    refuse(gpus, flush)
    found: list[list[LaunchResult]] = [[] for _ in gpus]
    seconds = 0.0
    for number, launch, trace in session.each():
        progress(f"time {session.case.name}", number, len(session))
        started, before = perf_counter(), session.prepared_seconds
        for k, row in enumerate(launch_on(session, number, launch, trace, gpus)):
            found[k].append(row)
        seconds += perf_counter() - started - (session.prepared_seconds - before)
    return [run_result(session, gpu, rows, seconds) for gpu, rows in zip(gpus, found, strict=True)]


def launch_on(
    session: Session, number: int, launch: Launch, trace: Trace, gpus: Sequence[Gpu]
) -> list[OccupancyLaunch]:
    """One launch on every GPU. Deterministic; a GPU's result does not depend on the others."""
    prepared: dict[tuple, Prepared] = {}
    walked: dict[tuple, Walked] = {}
    parts, own = [], []
    for gpu in gpus:
        residents, read = session.blocks_per_sm(number, gpu), reading(gpu)
        refuse_unsupported(gpu, session.table(number, gpu), trace.warps_per_block, residents)
        if read not in prepared:
            prepared[read] = prepare(session, number, trace, gpu)
        key = (read, gpu.spec.sm_count, residents, walking(gpu, residents, launch.shared_bytes))
        if key not in walked:
            walked[key] = walk(prepared[read], gpu, residents, launch.shared_bytes)
        own.append((prepared[read], walked[key]))
        parts.append(lanes_of(*own[-1], gpu, residents))
    ends = run_parts(parts)
    return [
        _result(session, number, launch, trace, gpu, *own[k], parts[k], ends[k]) for k, gpu in enumerate(gpus)
    ]  # fmt: skip


def run_parts(parts: Sequence[Lanes]) -> list[int]:
    """Cycles of each part, whose lanes are the SMs of a design point; those of one layout are run together."""
    cycles = [0] * len(parts)
    for layout in dict.fromkeys(part.layout for part in parts):
        numbers = [k for k, part in enumerate(parts) if part.layout == layout]
        found = cycles_of(run(joined([parts[k] for k in numbers])).end)
        stops = np.cumsum([len(parts[k].first) for k in numbers])
        for k, mine in zip(numbers, np.split(found, stops[:-1]), strict=True):
            cycles[k] = int(mine.max())
    return cycles


def _result(
    session: Session, number: int, launch: Launch, trace: Trace, gpu: Gpu, prepared: Prepared, walked: Walked,
    lanes: Lanes, cycles: int,
) -> OccupancyLaunch:  # fmt: skip
    spec, found = gpu.spec, walked.found
    resident = session.blocks_per_sm(number, gpu) * trace.warps_per_block
    sectors = int(found.levels["sectors"].sum()) if found else 0
    read = int(found.levels["dram_sectors"].sum()) if found else 0
    bounds = _bounds(prepared, lanes, spec.schedulers_per_sm, sectors, read)
    limit = max(BOUNDS, key=bounds.__getitem__)
    if bounds[limit] < BUSY * cycles:
        limit = LATENCY
        bounds[LATENCY] = float(cycles)
    return OccupancyLaunch(
        **launch_facts(session, number, launch, trace, gpu, cycles + gpu.params.launch_latency_cycles),
        occupancy=min(1.0, resident / spec.max_warps_per_sm),
        issue_slots={},
        issue_slots_per_sm={},
        caches={"l2_accesses": sectors, "dram_reads": read},
        memory={"l2_bytes": SECTOR_BYTES * sectors, "dram_read_bytes": SECTOR_BYTES * read},
        windows={},
        limit=limit,
        bounds_cycles=bounds,
    )


def _bounds(prepared: Prepared, lanes: Lanes, schedulers: int, sectors: int, read: int) -> dict[str, float]:
    """What each resource is busy on the mean SM, by BOUNDS."""
    rows, count = prepared.items.rows, len(lanes.first)
    machine = lanes.machine
    values = (
        rows["cycles"].sum() / (count * schedulers),
        rows["occupies"][rows["unit"] == MEMORY].sum() / count,
        sectors * float(machine.l2_sector[0]) / TICKS / count,
        read * float(machine.dram_sector[0]) / TICKS / count,
    )
    return {name: float(value) for name, value in zip(BOUNDS, values, strict=True)}
