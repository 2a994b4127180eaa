"""Which level answers each access: a walk of a launch's accesses through the tags of all caches, without timing.

SMs take turns of a stretch of nominal time; within it an SM's warps go on by the policy's order, each to the next
result it waits for (docs/occupancy-vector.md, "Cache walk"). Nominal latencies and items are the same for every GPU, so
that a walk serves all design points with the same caches, residency and dealing of thread blocks.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from abstim.engine.design_point import caches_machine
from abstim.gpu.config import Gpu
from abstim.occupancy_vector.items import Items, Warps, check_field
from abstim.occupancy_vector.records import GONE, ITEM, LANE_ITEM, MOST_BLOCKS, MOST_SLOTS, OCCUPIES_BITS, whole_numbers
from functional.arrays import Int32
from functional.jit.machine_code import Native
from functional.traces.trace import Trace

NOMINAL_CYCLES = np.array([40, 200, 400], np.int64)  # from an access to its answer, by level

# Of an access: nominal cycles to its answer beyond the first level (0: it hits), what it asks of L2, and of DRAM; which
# other access has asked for what it waits for, + 1 (0: none); which one's data it waits for before the tags take it,
# how many times for data of its own, and how many loads `back` that one asked (Streams.fill_behind); how many of the SM
# had asked before; the nominal cycles its own data are there in, and `until` which it waits for another one's
ANSWER = np.dtype([
    ("wait", "i4"), ("way", "i4"), ("sectors", "i2"), ("dram_sectors", "i2"), ("waits_for", "i4"), ("behind", "i4"),
    ("trips", "i2"), ("back", "i2"), ("number", "i4"), ("there", "i4"), ("until", "i4"),
], align=True)  # fmt: skip
# `joined`: accesses that wait for it (of L2 a byte of `asker` a sector); `there`: nominal cycle it comes in
LINE = np.dtype(
    [("tag", "i8"), ("used", "i8"), ("there", "i8"), ("valid", "i2"), ("dirty", "i2"), ("joined", "i4"),
     ("asker", "i8")], align=True,
)  # fmt: skip
SERVERS = np.dtype([("l2", "f8"), ("dram", "f8")])  # an SM's shares
PIPED = whole_numbers("stop taken")  # transactions up to its last one; when the tags have taken that
REGISTER = whole_numbers("there asker")  # of a miss: as of its line
SLOT = whole_numbers("item stop access fetch back state")
# `due`: the nominal cycle each slot's warp can go on in; `ready`: slots due by `clock`; `first`: when the next one is;
# `order`: thread-block slots, that of the oldest block first
SM = np.dtype([
    ("ready", "u8"), ("due", "i8", MOST_SLOTS), ("order", "i8", MOST_BLOCKS),
    *whole_numbers("clock first last next stop memory_free started piped entered tail asks").descr,
])  # fmt: skip
TOTALS = whole_numbers(
    "uses rows_opened dram_reads slice_sectors port_sectors channel_sectors busiest_slice busiest_channel"
)

walk_launch = Native("abstim.occupancy_vector.walk_kernel", "walk_launch")
tell = Native("abstim.occupancy_vector.answer_kernel", "tell")


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
    pipes: np.ndarray  # PIPED, by SM: the latest accesses on their way to the tags
    starts: np.ndarray  # by SM: of the latest memory instructions, as many as can wait for the unit
    open_rows: np.ndarray
    slice_sectors: np.ndarray  # of the window
    slice_free: np.ndarray  # nominal cycle up to which a slice takes nothing
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


# Of an SM: where its thread blocks begin and end in `dealt`; what they ask of L2 and DRAM, cycles they hold the
# load/store unit, and the most that one access does; its first fill, and its first one of an instruction line; hashes
# of all that its blocks are, but for their items
TOLD_SM = np.dtype([
    *((name, "i8") for name in ("first", "stop", "sectors", "dram_sectors", "held", "longest", "first_fill",
                                "first_line")), ("hash", "u8"), ("other_hash", "u8"),
])  # fmt: skip


class Told(NamedTuple):
    """What the caches of a design point answered, as its lanes read it: see `records.Streams`, and a TOLD_SM an SM."""

    accesses: Int32[np.ndarray, " access"]
    fills: Int32[np.ndarray, " access"]
    late_starts: Int32[np.ndarray, " warp"]
    late_begins: Int32[np.ndarray, " late"]
    late_fills: Int32[np.ndarray, " late"]
    fill_words: Int32[np.ndarray, " fill"]
    fill_behind: Int32[np.ndarray, " fill"]
    fill_trips: Int32[np.ndarray, " fill"]
    sms: np.ndarray


class Found(NamedTuple):
    """What a walk found of a launch as a whole: how evenly slices and rows served."""

    slice_imbalance: float = 1.0  # sectors of the busiest L2 slice of each window over those of the mean one
    channel_imbalance: float = 1.0  # the same of DRAM channels
    rows_a_sector: float = 0.0  # DRAM rows opened for each sector read
    port_share: float = 1.0  # of the sectors asked of L2, those that take a slice's port: hits, and what leaves dirty


def walk_of(
    trace: Trace, warps: Warps, items: Items | None, gpu: Gpu, blocks_per_sm: int, shared_bytes: int,
    dealt: list[np.ndarray],
) -> Walk:  # fmt: skip
    """A launch before its walk. `items`: those of `cut_for_walk`; None: it will be told that every access hits.
    `dealt`: blocks of each SM."""
    if items is None:
        offsets = np.zeros(len(warps.leaders) + 1, np.int64)
        items = Items(np.zeros(0, LANE_ITEM), np.zeros(0, np.int32), offsets, np.zeros(0, ITEM))
    fetch_offsets = np.append(0, np.cumsum(np.diff(items.offsets)[warps.paths]))
    return Walk(
        np.array([caches_machine(gpu, trace.warps_per_block, blocks_per_sm, shared_bytes)]),
        items.lane_items, items.offsets, warps.paths, warps.accesses, warps.offsets, trace.records,
        np.concatenate(dealt).astype(np.int32), NOMINAL_CYCLES, np.zeros(len(warps.accesses), ANSWER), fetch_offsets,
        np.zeros(fetch_offsets[-1], np.uint16), np.zeros(fetch_offsets[-1], np.int32),
    )  # fmt: skip


def walk_caches(walk: Walk, gpu: Gpu, dealt: list[np.ndarray], slots: int, waiting: int) -> Found:
    """Walk a launch through the caches of a GPU. `slots`: warps of an SM; `waiting`: memory instructions of an SM that
    can wait for the load/store unit."""
    caches = _empty_caches(gpu, len(dealt), waiting)
    sms, warps = np.zeros(len(dealt), SM), np.zeros((len(dealt), slots), SLOT)
    ends = np.cumsum([len(blocks) for blocks in dealt])
    sms["stop"], sms["next"][1:] = ends, ends[:-1]
    warps["state"] = GONE
    walk_launch(walk, caches, sms, warps)
    totals = dict(zip(TOTALS.names or (), caches.totals[0].tolist(), strict=True))
    uneven = [
        totals[f"busiest_{name}"] * len(counts) / max(1, totals[f"{name}_sectors"])
        for name, counts in (("slice", caches.slice_sectors), ("channel", caches.channel_sectors))
    ]
    rows_a_sector = totals["rows_opened"] / max(1, totals["dram_reads"])
    port_share = totals["port_sectors"] / max(1, totals["slice_sectors"])
    return Found(max(1.0, uneven[0]), max(1.0, uneven[1]), rows_a_sector, port_share)


def told_of(walk: Walk, dealt: list[np.ndarray]) -> Told:
    """What a walk found, as its lanes read it. Raises InputError for an access that a word does not hold."""
    accesses, fetches, count = len(walk.answers) - 1, len(walk.fetch_waits), len(walk.paths)
    sms = np.zeros(len(dealt), TOLD_SM)
    sms["stop"] = np.cumsum([len(own) for own in dealt])
    sms["first"][1:] = sms["stop"][:-1]
    sizes = accesses, accesses, count, *(fetches + count,) * 2, *(1 + accesses + fetches,) * 3
    columns = [np.empty(size, np.int32) for size in sizes]
    for column in columns[5:]:
        column[0] = 0  # no fill
    scratch = np.zeros(fetches, np.int32), np.zeros(accesses + 1, np.int32), np.zeros(accesses + 1, np.uint8)
    counts = np.zeros(2, np.int64)
    tell(walk, Told._make([*columns, sms]), scratch, counts)
    check_field("occupies", sms["longest"], OCCUPIES_BITS)
    lines, fills = counts.tolist()
    stops = (*sizes[:3], lines, lines, fills, fills, fills)
    return Told._make([*(column[:stop] for column, stop in zip(columns, stops, strict=True)), sms])


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
        pipes=np.zeros((sm_count, 2 * NOMINAL_CYCLES[0]), PIPED),
        starts=np.zeros((sm_count, waiting), np.int64),
        open_rows=np.zeros((spec.dram_channels, spec.dram_banks), np.int64),
        slice_sectors=np.zeros(slices, np.int64),
        slice_free=np.zeros(slices, np.int64),
        channel_sectors=np.zeros(spec.dram_channels, np.int64),
        totals=np.zeros(1, TOTALS),
        code_found=np.zeros(1, ANSWER),
    )
