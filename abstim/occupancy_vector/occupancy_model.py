"""The occupancy model: every launch of a session by its warps' occupancy vectors, on every GPU at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from abstim.engine.design_point import refuse_unsupported, touching
from abstim.gpu.config import Gpu, refuse_unread
from abstim.occupancy_vector.design_points import (
    Prepared,
    Walked,
    lanes_of,
    reading,
    walk,
    walk_cutting,
    walking,
)
from abstim.occupancy_vector.items import Items, Warps, cut, cut_for_walk, warps_of
from abstim.occupancy_vector.lanes import cycles_of, run
from abstim.occupancy_vector.records import NUMBER, TICKS, Lanes
from abstim.progress import Progress, silent
from abstim.session.result import LaunchResult, RunResult, launch_facts, run_result, timed_facts
from abstim.session.session import Session
from functional.arrays import Float64, Int64
from functional.errors import InputError
from functional.traces.line_record import without_phases
from functional.traces.trace import SECTOR_BYTES
from precharacterize.table import UNITS
from precharacterize.tensor_work import refuse_commits

if TYPE_CHECKING:
    from abstim.engine.simulation import LaunchInputs

UNREAD = frozenset(
    {"two_level_active_warps", "l1i_mshrs",
     "const_mshrs", "l1d_miss_queue", "inject_queue_flits", "crossbar_queue_flits",
     "l2_mshrs", "l2_miss_queue", "l2_dirty_ways", "l2_queue", "dram_bank_groups", "dram_queue",
     "dram_requests", "dram_two_commands", "dram_burst_bytes", "dram_burst_cycles", "dram_group_burst_cycles",
     "dram_row_to_row_cycles", "dram_row_active_cycles", "dram_row_cycle_cycles", "dram_read_cycles",
     "dram_write_cycles", "dram_write_to_read_cycles", "dram_write_recovery_cycles", "dram_read_to_precharge_cycles",
     "l1_miss_extra_cycles", "l1i_miss_extra_cycles", "l2_fp64_atomic_cycles", "retry_cycles",
     "l1d_replacement", "l1t_sets", "l1t_ways"}
    | {f"{kind}_port_width" for kind in UNITS}
)  # fmt: skip
LATENCY = "latency"  # what limits a launch when no resource is busy
BOUNDS = ("instruction issue", "load/store unit", "L2", "DRAM")
MOST_KEPT = 64  # walks, and cuts, of a launch
Made = TypeVar("Made")
BUSY = 0.6  # of the launch: from here on a resource is named as what limits it


@dataclass(frozen=True, slots=True, kw_only=True)
class OccupancyLaunch(LaunchResult):
    """As of the detailed engine, without issue slots. `bounds_cycles`: what each of BOUNDS alone is busy, on the mean
    SM; `limit` is one of them, or LATENCY, of which the launch is all. `stepped_fraction`: of its work, what was not
    taken from SMs that do the same."""

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
    for number, _, _ in session.each():
        progress(f"time {session.case.name}", number, len(session))
        started, before = perf_counter(), session.prepared_seconds
        for k, row in enumerate(launch_on(session, number, gpus)):
            found[k].append(row)
        seconds += perf_counter() - started - (session.prepared_seconds - before)
    return [run_result(session, gpu, rows, seconds, model="occupancy") for gpu, rows in zip(gpus, found, strict=True)]


class TimedLaunch:
    """One launch on any GPUs; what several of them share is made once. `latency_of`: as of `items.cut`."""

    def __init__(self, session: Session, number: int, latency_of: Int64[np.ndarray, " instr"] | None = None) -> None:
        self.session, self.number, self.latency_of, self._lock = session, number, latency_of, Lock()
        self.launch, self.trace = session.launch(number), without_phases(session.traces.trace(number))
        self._warps: dict[tuple, Warps] = {}
        self._prepared: dict[tuple, Prepared] = {}
        self._for_walk: dict[tuple, Items] = {}
        self._walked: dict[tuple, Walked] = {}

    def design_point(self, gpu: Gpu) -> DesignPoint:
        """The launch on a GPU, ready to run. Raises InputError for a GPU that cannot run it."""
        session, number = self.session, self.number
        residents, inputs = session.blocks_per_sm(number, gpu), session.inputs(number, gpu, self.trace)
        table, trace = inputs.table, inputs.trace
        touch = (id(session.timed_code(number, gpu)), *touching(gpu))  # a session keeps its timed code
        refuse_unsupported(gpu, table, trace.warps_per_block, residents)
        shared = self.launch.shared_bytes
        refuse_commits(table, "occupancy")
        with self._lock:
            warps = _kept(self._warps, touch, lambda: warps_of(table, trace, gpu))
            prepared = _kept(
                self._prepared, (touch, reading(gpu)),
                lambda: Prepared(cut(table, trace, warps, gpu, self.latency_of, self.latency_of is not None)),
            )  # fmt: skip
            for_walk = None
            if not gpu.spec.perfect_memory:
                key = (touch, walk_cutting(gpu))
                for_walk = _kept(self._for_walk, key, lambda: cut_for_walk(table, trace, warps, gpu))
            walked = _kept(
                self._walked, (touch, walking(gpu, residents, shared)),
                lambda: walk(table, trace, warps, for_walk, gpu, residents, shared),
            )  # fmt: skip
        lanes = lanes_of(prepared, walked, warps, trace.warps_per_block, gpu, residents)
        return DesignPoint(gpu, residents, inputs, warps, prepared, walked, lanes, self.latency_of)

    def times(self, points: Sequence[DesignPoint], threads: int | None = None) -> list[Timed]:
        """The launch on design points of its own. Deterministic; cycles of a point do not depend on the others."""
        return [
            Timed(
                int(cycles_of(found.end).max()) + int(point.gpu.params.launch_latency_cycles),
                float(found.issued[found.stepped].sum() / found.issued.sum()),
            )
            for found, point in zip(run([point.lanes for point in points], threads), points, strict=True)
        ]


class Timed(NamedTuple):
    """`cycles`: launch latency included; `stepped`: share of its items that were issued for it, and not for an equal
    lane."""

    cycles: int
    stepped: float


class DesignPoint(NamedTuple):
    """A launch on a GPU."""

    gpu: Gpu
    residents: int  # thread blocks an SM holds
    inputs: LaunchInputs
    warps: Warps
    prepared: Prepared
    walked: Walked
    lanes: Lanes
    latency_of: Int64[np.ndarray, " instr"] | None


def _kept(known: dict[tuple, Made], key: tuple, make: Callable[[], Made]) -> Made:
    """What is kept under a key, made if it is not; the oldest makes room."""
    if key not in known:
        if len(known) == MOST_KEPT:
            del known[next(iter(known))]
        known[key] = make()
    return known[key]


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
    gpu, trace, sms, cycles = point.gpu, timed.trace, point.walked.told.sms, own.cycles
    resident = point.residents * trace.warps_per_block
    sectors, moved = int(sms["sectors"].sum()), int(sms["dram_sectors"].sum())  # read, and written back
    facts = timed_facts(timed.session, timed.number, trace, gpu)
    bounds = _bounds(point, facts.get("timed_instructions", int(trace.warp_instructions.sum())))
    limit = max(BOUNDS, key=bounds.__getitem__)
    if bounds[limit] < BUSY * cycles:
        limit = LATENCY
        bounds[LATENCY] = float(cycles)
    return OccupancyLaunch(
        **launch_facts(timed.session, timed.number, timed.launch, trace, gpu, cycles),
        **facts,
        occupancy=min(1.0, resident / gpu.spec.max_warps_per_sm),
        issue_slots={},
        issue_slots_per_sm={},
        caches={"l2_accesses": sectors, "dram_sectors": moved},
        memory={"l2_bytes": SECTOR_BYTES * sectors, "dram_bytes": SECTOR_BYTES * moved},
        windows={},
        limit=limit,
        bounds_cycles=bounds,
        stepped_fraction=own.stepped,
    )


def _bounds(point: DesignPoint, issued: int) -> dict[str, float]:
    """What each resource is busy on the mean SM, by BOUNDS."""
    lanes, sms = point.lanes, point.walked.told.sms
    count = len(lanes.first)
    values = (
        issued / (count * lanes.layout.schedulers),
        sms["held"].sum() / count,
        float(sms["sectors"] @ lanes.machine[:, NUMBER.l2_sector]) / TICKS / count,
        float(sms["dram_sectors"] @ lanes.machine[:, NUMBER.dram_sector]) / TICKS / count,
    )
    return {name: float(value) for name, value in zip(BOUNDS, values, strict=True)}
