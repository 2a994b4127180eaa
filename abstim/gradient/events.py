"""The issue log of a run in columns: who came before whom, and the compiled loops over a recording's events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from abstim.engine.rules import DECODE_CYCLES
from abstim.engine.simulation import Simulation
from abstim.gpu.config import Gpu
from functional.jit.machine_code import compiled
from precharacterize import LatencyTable
from precharacterize.classify import Kind

if TYPE_CHECKING:
    from jaxtyping import Bool, Int64


@compiled
def latest(order, first, parent, slack, term, scale, change, shift, via, counts):
    """How much later every event is than at the base point, and what the last of them waited for.

    Event n waits for the edges `first[n]` .. `first[n + 1]` - 1; `change[j]` is by how much term j differs from the
    base point. Fills `shift` and `via` (the binding edge, -1: none), adds to `counts` each term on the binding chain.
    """
    for n in order:
        for e in range(first[n], first[n + 1]):
            later = shift[parent[e]] - slack[e] + scale[e] * change[term[e]]
            if via[n] < 0 or later > shift[n]:
                shift[n] = later
                via[n] = e
    n = order[-1]
    while via[n] >= 0:
        counts[term[via[n]]] += scale[via[n]]
        n = parent[via[n]]


@compiled
def last_writers(warp, instruction, waits, writes, writer, found):
    """The issue that wrote each register an issue waits for; -1: nobody. `writer` is scratch, a row a warp, all -1."""
    for k in range(len(warp)):
        w, i = warp[k], instruction[k]
        for c in range(waits.shape[1]):
            found[k, c] = writer[w, waits[i, c]] if waits[i, c] >= 0 else -1
        for c in range(writes.shape[1]):
            if writes[i, c] >= 0:
                writer[w, writes[i, c]] = k


@compiled
def buffered_before(warp, previous, instruction, pcs, exits, width, line, buffered, found):
    """Gap of the front end before each issue: 1 from the buffer, 2 after a fetch, 3 or 4 after a flush; 0 for a warp's
    first (docs/timing-rules.md, rule 7). `buffered` is scratch, one a warp."""
    for k in range(len(warp)):
        w, i = warp[k], instruction[k]
        gap = 0
        if previous[k] >= 0:
            before = instruction[previous[k]]
            gap = 1 if buffered[w] > 0 else DECODE_CYCLES
            if i != before + 1:
                gap = DECODE_CYCLES if exits[before] else gap + DECODE_CYCLES
        if gap != 1:
            buffered[w] = min(width, line - (pcs[i] & (line - 1)))
        buffered[w] -= 1
        found[k] = gap


@compiled
def barrier_releases(warp, last, barrier, warps_per_block, waiting, running, released, found):
    """The issue that completed the latest barrier of each issue's thread block; -1: none yet.

    `waiting` (0), `running` (warps a block) and `released` (-1) are scratch, one a thread block.
    """
    for k in range(len(warp)):
        b = warp[k] // warps_per_block
        found[k] = released[b]
        waiting[b] += barrier[k]
        running[b] -= last[k]
        if waiting[b] > 0 and waiting[b] == running[b]:
            waiting[b] = 0
            released[b] = k


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
        c["warp"], before, c["instruction"], table.pcs.astype(np.int64), exits, int(m["instructions_per_fetch"]),
        int(m["fetch_line_instructions"]), np.zeros(warps, np.int64), gaps,
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
