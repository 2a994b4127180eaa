"""The issue log of a run in columns: what was before what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from abstim.engine.simulation import Simulation
from abstim.gpu.config import Gpu
from abstim.gradient.evaluate import barrier_releases, buffered_before, last_writers
from precharacterize import LatencyTable
from precharacterize.classify import Kind

if TYPE_CHECKING:
    from jaxtyping import Bool, Int64

NONE = -1  # no such issue
OWN = ("l1d_misses", "l2_accesses", "dram_reads")  # counted by the log, of each issue


@dataclass(frozen=True)
class Issues:
    """Every issue in the order the engine made them; times in cycles, other issues by position."""

    time: Int64[np.ndarray, " issue"]
    start: Int64[np.ndarray, " issue"]
    result: Int64[np.ndarray, " issue"]
    sm: Int64[np.ndarray, " issue"]
    warp: Int64[np.ndarray, " issue"]  # position in the trace
    instruction: Int64[np.ndarray, " issue"]
    kind: Int64[np.ndarray, " issue"]
    before_in_warp: Int64[np.ndarray, " issue"]
    last_in_warp: Bool[np.ndarray, " issue"]
    front_end_gap: Int64[np.ndarray, " issue"]  # cycles; 0: the warp's first issue
    released_by: Int64[np.ndarray, " issue"]  # the issue that let the warp out of a barrier
    writers: Int64[np.ndarray, "issue register"]  # of the registers it waits for
    misses: dict[str, Int64[np.ndarray, " issue"]]  # of this issue alone, by counter
    lines_missed: Int64[np.ndarray, " issue"]  # by the SM's L1I since the warp's issue before


def issues_of(log: np.ndarray, launch: Simulation) -> Issues:
    """Read a complete log."""
    c = {name: np.ascontiguousarray(log[name]) for name in log.dtype.names or ()}
    table, warps = launch.inputs.table, len(launch.warps)
    before = earlier(c["warp"])
    last = np.ones(len(log), bool)
    last[before[before >= 0]] = False
    kind = table.kind[c["instruction"]].astype(np.int64)
    return Issues(
        time=c["cycle"], start=c["start_cycle"], result=c["result_cycle"], sm=c["sm"], warp=c["warp"],
        instruction=c["instruction"], kind=kind, before_in_warp=before, last_in_warp=last,
        front_end_gap=_front_end(c, before, table, launch.machine, warps),
        released_by=_releases(c["warp"], last, kind, before, int(launch.machine["warps_per_block"]), launch.room),
        writers=_writers(c, table, warps),
        lines_missed=np.where(before >= 0, c["l1i_misses"] - c["l1i_misses"][before], 0),
        misses={name: c[name] for name in OWN},
    )  # fmt: skip


def earlier(group: Int64[np.ndarray, " issue"], back: int = 1) -> Int64[np.ndarray, " issue"]:
    """The issue of the same group `back` places before each; NONE if there are not so many."""
    order = np.argsort(group, kind="stable")
    found = np.full(len(group), NONE)
    reach = max(0, len(order) - back)
    same = group[order[back:]] == group[order[:reach]]
    found[order[back:]] = np.where(same, order[:reach], NONE)
    return found


def latest_result(issues: Issues, among, group, time) -> Int64[np.ndarray, " issue"]:
    """The issue of `among`, in the same group, whose result came last by `time`; NONE if none had."""
    k = np.flatnonzero(among)
    if not len(k):
        return np.full(len(time), NONE)
    span = int(issues.result.max()) + 1
    key = group[k] * span + issues.result[k]
    order = np.argsort(key, kind="stable")
    place = np.searchsorted(key[order], group * span + time, "right") - 1
    found = k[order[np.maximum(place, 0)]]
    return np.where((place >= 0) & (group[found] == group), found, NONE)


def ports_of(issues: Issues, table: LatencyTable, gpu: Gpu, slot: Int64[np.ndarray, " issue"]):
    """Group number of each issue's port, and of its scheduler."""
    scheduler = slot % gpu.spec.schedulers_per_sm
    unit = table.unit[issues.instruction].astype(np.int64)
    own = scheduler if gpu.spec.sub_cores else 0
    return (issues.sm * 64 + unit) * 64 + own, issues.sm * 64 + scheduler


def _front_end(c, before, table, m, warps):
    gaps = np.empty(len(before), np.int64)
    exits = table.kind == Kind.EXIT
    buffered_before(
        c["warp"], before, c["instruction"], table.pcs.astype(np.int64), exits, int(m["fetch_width"]),
        int(m["fetch_line"]), np.zeros(warps, np.int64), gaps,
    )  # fmt: skip
    return gaps


def _releases(warp, last, kind, before, warps_per_block, blocks):
    found, barrier = np.empty(len(warp), np.int64), (kind == Kind.BARRIER) & ~last
    scratch = np.zeros(blocks, np.int64), np.full(blocks, warps_per_block), np.full(blocks, NONE)
    barrier_releases(warp, last.astype(np.int64), barrier.astype(np.int64), warps_per_block, *scratch, found)
    return np.where((before >= 0) & barrier[before], found, NONE)


def _writers(c, table, warps):
    waits = np.ascontiguousarray(table.waits, np.int64)
    found = np.empty((len(c["warp"]), waits.shape[1]), np.int64)
    writer = np.full((warps, max(1, table.register_count)), NONE)
    last_writers(c["warp"], c["instruction"], waits, np.ascontiguousarray(table.writes, np.int64), writer, found)
    return found
