"""The occupancy model: every launch of a session by its warps' occupancy vectors, on every GPU at once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from abstim.gpu.config import Gpu, refuse_unread
from abstim.occupancy_vector.timed_launch import DesignPoint, Timed, TimedLaunch
from abstim.progress import Progress, silent
from abstim.session.result import LaunchResult, RunResult, again, launch_facts, run_result, timed_facts
from abstim.session.session import Session
from functional.arrays import Float64
from functional.errors import InputError
from functional.traces.trace import SECTOR_BYTES
from precharacterize.table import UNITS

UNREAD = frozenset(
    {"two_level_active_warps", "l1i_mshrs", "gpcs", "cluster_cycles", "const_mshrs", "inject_queue_flits",
     "crossbar_queue_flits", "l2_mshrs", "l2_miss_queue", "l2_coalesces", "l2_dirty_ways", "l2_fetch_bytes", "l2_queue",
     "dram_bank_groups", "dram_write_batch", "dram_requests", "dram_two_commands", "dram_burst_bytes",
     "dram_group_burst_cycles", "dram_row_active_cycles", "dram_read_cycles", "dram_write_cycles",
     "dram_write_to_read_cycles", "dram_write_recovery_cycles", "dram_read_to_precharge_cycles",
     "l1i_miss_extra_cycles", "barrier_cycles", "barrier_warp_cycles", "fence_cycles", "l2_write_cycles",
     "l2_fp64_atomic_cycles", "retry_cycles", "l1d_replacement", "l1t_sets", "l1t_ways"}
    | {f"{kind}_port_width" for kind in UNITS}
)  # fmt: skip
LATENCY = "latency"  # what limits a launch when no resource is busy
BOUNDS = ("instruction issue", "load/store unit", "L2", "DRAM")
BUSY = 0.6  # of the launch: from here on a resource is named as what limits it


@dataclass(frozen=True, slots=True, kw_only=True)
class OccupancyLaunch(LaunchResult):
    """As of the detailed engine, without issue slots. `bounds_cycles`: what each of BOUNDS alone is busy, on the mean
    SM; `limit` is one of them, or LATENCY, of which the launch is all. `stepped_fraction`: of its work, what SMs do
    that may be the last to end."""

    bounds_cycles: dict[str, float]
    stepped_fraction: float


def refuse(gpus: Sequence[Gpu], flush: str) -> None:
    """Raises InputError for what this model cannot do."""
    if flush != "all":
        raise InputError("the occupancy model starts each launch with empty caches; use --model detailed")
    refuse_unread("occupancy", UNREAD, gpus)


def time(session: Session, gpus: Sequence[Gpu], flush: str = "all", progress: Progress = silent) -> list[RunResult]:
    """Time every launch on every GPU, the lanes of all GPUs together. Raises InputError for a thread block that an SM
    cannot hold, or a launch that lanes cannot."""
    refuse(gpus, flush)
    found: list[list[LaunchResult]] = [[] for _ in gpus]
    seconds = 0.0
    for number, launch, trace in session.each():
        progress(f"time {session.case.name}", number, len(session))
        started, before = perf_counter(), session.prepared_seconds
        first = session.first_alike(number, trace)
        own = [again(rows[first], launch, number) for rows in found if first < number]
        for rows, row in zip(found, own or launch_on(session, number, gpus), strict=True):
            rows.append(row)
        seconds += perf_counter() - started - (session.prepared_seconds - before)
    return [run_result(session, gpu, rows, seconds, model="occupancy") for gpu, rows in zip(gpus, found, strict=True)]


def launch_on(session: Session, number: int, gpus: Sequence[Gpu]) -> list[OccupancyLaunch]:
    """One launch on every GPU."""
    timed = TimedLaunch(session, number)
    points = [timed.design_point(gpu) for gpu in gpus]
    return [_result(timed, point, found) for point, found in zip(points, timed.times(points), strict=True)]


def cycles_on(session: Session, number: int, around: Gpu) -> Callable[[Sequence[Gpu]], Float64[np.ndarray, " gpu"]]:
    """Cycles of one launch as a function of GPUs, any of them."""
    timed = TimedLaunch(session, number)
    return lambda gpus: np.array([own.cycles for own in timed.times([timed.design_point(g) for g in gpus])], float)


def _result(timed: TimedLaunch, point: DesignPoint, own: Timed) -> OccupancyLaunch:
    gpu, trace, cycles = point.gpu, timed.trace, own.cycles
    facts = launch_facts(timed.session, timed.number, timed.launch, trace, gpu, cycles)
    facts |= timed_facts(timed.session, timed.number, trace, gpu)
    bounds = _bounds(point, own, facts.get("timed_instructions", facts["warp_instructions"]))
    limit = max(BOUNDS, key=bounds.__getitem__)
    if bounds[limit] < BUSY * cycles:
        limit = LATENCY
        bounds[LATENCY] = float(cycles)
    return OccupancyLaunch(
        **facts,
        occupancy=min(1.0, point.residents * trace.warps_per_block / gpu.spec.max_warps_per_sm),
        issue_slots={},
        issue_slots_per_sm={},
        caches={"l2_accesses": own.sectors, "dram_sectors": own.dram_sectors},  # read, and written back
        memory={"l2_bytes": SECTOR_BYTES * own.sectors, "dram_bytes": SECTOR_BYTES * own.dram_sectors},
        windows={},
        limit=limit,
        bounds_cycles=bounds,
        stepped_fraction=own.stepped,
    )


def _bounds(point: DesignPoint, own: Timed, issued: int) -> dict[str, float]:
    """What each resource is busy on the mean SM, by BOUNDS."""
    count = point.sm_count
    values = (
        issued / (count * point.gpu.spec.schedulers_per_sm), own.held_cycles / count, own.l2_cycles / count,
        own.dram_cycles / count,
    )  # fmt: skip
    return dict(zip(BOUNDS, values, strict=True))
