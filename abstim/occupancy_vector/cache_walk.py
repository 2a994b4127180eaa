"""Which level answers each access: a walk of a launch's accesses through the tags of all caches, without timing.

SMs take turns of a stretch of nominal time; within it an SM's warps go on by the policy's order, each to the next
result it waits for (docs/occupancy-vector.md, "Cache walk"). Nominal latencies and items are the same for every GPU, so
that a walk serves all design points with the same caches, residency and dealing of thread blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from abstim.engine.design_point import machine_of
from abstim.gpu.config import Gpu
from abstim.occupancy_vector.items import Items, Warps, packed
from abstim.occupancy_vector.records import ACCESS_WORD, DRAM, FIRST, GONE, L2, LATE_WORD, PARTS, whole_numbers
from functional.jit.machine_code import Native
from functional.traces.trace import Trace
from precharacterize import LatencyTable

if TYPE_CHECKING:
    from jaxtyping import Int32, Int64

NOMINAL_CYCLES = np.array([40, 200, 400], np.int64)  # from an access to its answer, by level

# Of an access: nominal cycles to its answer beyond the first level (0: it hits), what it asks of L2, and of DRAM; which
# other access has asked for what it waits for, + 1 (0: none); which one's data it waits for before the tags take it,
# and how many times for data of its own
ANSWER = np.dtype(
    [
        ("wait", "i4"),
        ("way", "i4"),
        ("sectors", "i2"),
        ("dram_sectors", "i2"),
        ("waits_for", "i8"),
        ("behind", "i8"),
        ("trips", "i4"),
    ],
    align=True,
)
# `joined`: accesses that wait for it; `there`: nominal cycle it comes in
LINE = np.dtype(
    [("tag", "i8"), ("used", "i8"), ("there", "i8"), ("valid", "i2"), ("dirty", "i2"), ("joined", "i4"),
     ("asker", "i8")], align=True,
)  # fmt: skip
SERVERS = np.dtype([("l2", "f8"), ("dram", "f8")])  # an SM's shares
REGISTER = whole_numbers("there asker")  # of a miss: as of its line
SLOT = whole_numbers("item stop access fetch ready back age state")
SM = whole_numbers("clock last next stop memory_free started")
TOTALS = whole_numbers(
    "uses rows_opened dram_reads slice_sectors port_sectors channel_sectors busiest_slice busiest_channel"
)

walk_launch = Native("abstim.occupancy_vector.walk_kernel", "walk_launch")


class Caches(NamedTuple):
    """Lines of every cache: first levels by SM."""

    l1d: np.ndarray
    const: np.ndarray
    code: np.ndarray
    l2: np.ndarray
    registers: np.ndarray  # REGISTER, by SM: those of the latest misses
    servers: np.ndarray  # SERVERS, by SM: the nominal cycle each is free in
    shares: np.ndarray  # SERVERS: cycles a sector takes
    missed: np.ndarray  # by SM: misses so far
    starts: np.ndarray  # by SM: of the latest memory instructions, as many as can wait for the unit
    open_rows: np.ndarray
    slice_sectors: np.ndarray  # of the window
    channel_sectors: np.ndarray
    totals: np.ndarray
    code_found: np.ndarray  # ANSWER of the latest fetch: scratch


class Walk(NamedTuple):
    """What a walk is of, and what it finds."""

    machine: np.ndarray  # MACHINE, of the detailed engine: one element
    items: np.ndarray
    offsets: np.ndarray  # of a path's items
    paths: np.ndarray
    accesses: np.ndarray
    access_offsets: np.ndarray
    records: np.ndarray
    dealt: np.ndarray  # thread blocks, those of an SM one after the other
    nominal: np.ndarray
    answers: np.ndarray
    fetch_offsets: np.ndarray  # of a warp's items
    fetch_waits: np.ndarray  # nominal cycles each waits for its instruction line
    fetch_askers: np.ndarray  # which of them has asked for it, + 1


class Late(NamedTuple):
    """Instruction lines that miss: those of warp w from offsets[w] on, and an end mark."""

    offsets: Int32[np.ndarray, " warp"]
    begins: Int32[np.ndarray, " late"]  # instructions of the warp before it
    answers: Int32[np.ndarray, " late"]  # LATE_WORD
    askers: Int64[np.ndarray, " late"]  # which of them has asked for the line; -1: end marks


def levels_of(waits: Int64[np.ndarray, " access"]) -> dict[str, Int64[np.ndarray, " access"]]:
    """Nominal waits as `level`, the slowest level an answer comes from, and `part`, how much of the way there from the
    level before it takes: 0 .. PARTS - 1 for 1 / PARTS .. 1."""
    level = np.where(waits <= NOMINAL_CYCLES[FIRST], FIRST, np.where(waits <= NOMINAL_CYCLES[L2], L2, DRAM))
    before, own = NOMINAL_CYCLES[np.maximum(level - 1, FIRST)], NOMINAL_CYCLES[level]
    part = -(-(waits - before) * PARTS // np.maximum(1, own - before)) - 1
    return {"level": level, "part": np.where(level > FIRST, np.clip(part, 0, PARTS - 1), 0)}


def access_words(warps: Warps, answers: np.ndarray | None) -> Int32[np.ndarray, " access"]:
    """Accesses as ACCESS_WORD. `answers`: ANSWER of each (None: every access hits)."""
    columns = {"occupies": warps.accesses["cycles"][:-1]}
    if answers is not None:
        columns |= levels_of(answers["way"]) | {name: answers[name] for name in ("sectors", "dram_sectors")}
    return packed(columns, ACCESS_WORD)


NEVER_LATE = (1 << 31) - 1  # the end mark


class Found(NamedTuple):
    """What a walk found: ANSWER an access, late instruction lines, how evenly slices and rows served."""

    answers: np.ndarray
    late: Late
    slice_imbalance: float  # sectors of the busiest L2 slice of each window over those of the mean one
    channel_imbalance: float  # the same of DRAM channels
    rows_a_sector: float  # DRAM rows opened for each sector read
    port_share: float  # of the sectors asked of L2, how many take a slice's port: hits, and those that leave dirty


def walk_caches(
    table: LatencyTable, trace: Trace, warps: Warps, items: Items, gpu: Gpu, blocks_per_sm: int, shared_bytes: int,
    dealt: list[np.ndarray], waiting: int,
) -> Found:  # fmt: skip
    """Walk a launch through the caches of a GPU. `items`: those of `cut_for_walk`; `dealt`: blocks of each SM;
    `waiting`: memory instructions of an SM that can wait for the load/store unit."""
    m = machine_of(gpu, trace.warps_per_block, blocks_per_sm, table, shared_bytes)
    caches = _empty_caches(gpu, len(dealt), waiting)
    sms, slots = np.zeros(len(dealt), SM), np.zeros((len(dealt), blocks_per_sm * trace.warps_per_block), SLOT)
    ends = np.cumsum([len(blocks) for blocks in dealt])
    sms["stop"], sms["next"][1:] = ends, ends[:-1]
    slots["state"] = GONE
    fetch_offsets = np.append(0, np.cumsum(np.diff(items.offsets)[warps.paths]))
    answers, fetch_waits = np.zeros(len(warps.accesses), ANSWER), np.zeros(fetch_offsets[-1], np.uint16)
    fetch_askers = np.zeros(fetch_offsets[-1], np.int64)
    walk = Walk(
        np.array([m]), items.rows, items.offsets, warps.paths, warps.accesses, warps.offsets, trace.records,
        np.concatenate(dealt).astype(np.int64), NOMINAL_CYCLES, answers, fetch_offsets, fetch_waits, fetch_askers,
    )  # fmt: skip
    walk_launch(walk, caches, sms, slots)
    totals = caches.totals[0]
    rows_a_sector = int(totals["rows_opened"]) / max(1, int(totals["dram_reads"]))
    uneven = [
        int(totals[f"busiest_{name}"]) * len(counts) / max(1, int(totals[f"{name}_sectors"]))
        for name, counts in (("slice", caches.slice_sectors), ("channel", caches.channel_sectors))
    ]
    late = _late(items, warps, fetch_offsets, fetch_waits, fetch_askers)
    port_share = int(totals["port_sectors"]) / max(1, int(totals["slice_sectors"]))
    return Found(answers[:-1], late, max(1.0, uneven[0]), max(1.0, uneven[1]), rows_a_sector, port_share)


def _empty_caches(gpu: Gpu, sm_count: int, waiting: int) -> Caches:
    spec = gpu.spec
    slices = spec.dram_channels * spec.l2_slices_per_channel
    return Caches(
        l1d=np.zeros((sm_count, spec.l1d_sets * spec.l1d_ways), LINE),
        const=np.zeros((sm_count, spec.const_sets * spec.const_ways), LINE),
        code=np.zeros((sm_count, spec.l1i_sets * spec.l1i_ways), LINE),
        l2=np.zeros(slices * spec.l2_sets * spec.l2_ways, LINE),
        registers=np.zeros((sm_count, spec.l1d_mshrs), REGISTER),
        servers=np.zeros(sm_count, SERVERS),
        shares=np.array([(1 + sm_count / slices, sm_count / spec.dram_channels)], SERVERS),
        missed=np.zeros(sm_count, np.int64),
        starts=np.zeros((sm_count, waiting), np.int64),
        open_rows=np.zeros((spec.dram_channels, spec.dram_banks), np.int64),
        slice_sectors=np.zeros(slices, np.int64),
        channel_sectors=np.zeros(spec.dram_channels, np.int64),
        totals=np.zeros(1, TOTALS),
        code_found=np.zeros(1, ANSWER),
    )


def none_late(warps: int) -> Late:
    """Every instruction line hits."""
    return Late(np.zeros(warps, np.int32), np.array([NEVER_LATE], np.int32), np.zeros(1, np.int32), np.full(1, -1))


def _late(
    items: Items, warps: Warps, offsets: Int64[np.ndarray, " warp_plus_1"], waits: np.ndarray, askers: np.ndarray
) -> Late:
    missed = np.flatnonzero(waits)
    warp = np.searchsorted(offsets, missed, "right") - 1
    begins = items.rows["begins"][items.offsets[warps.paths[warp]] + missed - offsets[warp]]
    ends = np.searchsorted(missed, offsets[1:])
    count = np.arange(len(ends))
    places = np.arange(len(missed)) + np.searchsorted(ends, np.arange(len(missed)), "right")  # end marks among them
    asked_by = places[np.searchsorted(missed, askers[missed] - 1)]
    return Late(
        (np.append(0, ends[:-1]) + count).astype(np.int32),
        np.insert(begins, ends, NEVER_LATE).astype(np.int32),
        np.insert(packed(levels_of(waits[missed]), LATE_WORD), ends, FIRST).astype(np.int32),
        np.insert(asked_by, ends, -1),
    )
