"""The occupancy model: every launch of a session by its warps' occupancy vectors, on every GPU at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

from abstim.engine.unsupported import refuse_unsupported
from abstim.gpu.config import Gpu
from abstim.occupancy_vector.design_points import (
    Prepared,
    Walked,
    lanes_of,
    prepare,
    reading,
    walk,
    walking,
)
from abstim.occupancy_vector.items import Warps, touching, warps_of
from abstim.occupancy_vector.lane_records import ACCESS_WORD, DRAM_SECTOR, L2_SECTOR, TICKS, Lanes
from abstim.occupancy_vector.lanes import cycles_of, run
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
OCCUPIES_BITS = ACCESS_WORD[0][1]
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
    warps: dict[tuple, Warps] = {}
    parts, own = [], []
    for gpu in gpus:
        residents, table, touch = session.blocks_per_sm(number, gpu), session.table(number, gpu), touching(gpu)
        refuse_unsupported(gpu, table, trace.warps_per_block, residents)
        if touch not in warps:
            warps[touch] = warps_of(table, trace, gpu)
        read = reading(gpu)
        if read not in prepared:
            prepared[read] = prepare(table, trace, warps[touch], gpu)
        key = (touch, walking(gpu, residents, launch.shared_bytes))
        if key not in walked:
            walked[key] = walk(table, trace, warps[touch], gpu, residents, launch.shared_bytes)
        own.append((prepared[read], walked[key], warps[touch]))
        parts.append(lanes_of(*own[-1], trace.warps_per_block, gpu, residents))
    ends = [int(cycles_of(outcome.end).max()) for outcome in run(parts)]
    return [_result(session, number, launch, trace, gpu, *own[k], parts[k], ends[k]) for k, gpu in enumerate(gpus)]


def _result(
    session: Session, number: int, launch: Launch, trace: Trace, gpu: Gpu, prepared: Prepared, walked: Walked,
    warps: Warps, lanes: Lanes, cycles: int,
) -> OccupancyLaunch:  # fmt: skip
    spec, found = gpu.spec, walked.found
    resident = session.blocks_per_sm(number, gpu) * trace.warps_per_block
    sectors = int(found.answers["sectors"].sum()) if found else 0
    read = int(found.answers["dram_sectors"].sum()) if found else 0
    issued = int(trace.warp_instructions.sum())
    bounds = _bounds(walked, lanes, issued, spec.schedulers_per_sm, sectors, read)
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


def _bounds(walked: Walked, lanes: Lanes, issued: int, schedulers: int, sectors: int, read: int) -> dict[str, float]:
    """What each resource is busy on the mean SM, by BOUNDS."""
    count, held = len(lanes.first), walked.accesses & ((1 << OCCUPIES_BITS) - 1)
    values = (
        issued / (count * schedulers),
        held.sum() / count,
        sectors * float(lanes.machine[L2_SECTOR]) / TICKS / count,
        read * float(lanes.machine[DRAM_SECTOR]) / TICKS / count,
    )
    return {name: float(value) for name, value in zip(BOUNDS, values, strict=True)}
