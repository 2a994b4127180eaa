"""A launch on a design point, as lanes: what the session knows in the engine's terms."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from abstim.engine.design_point import touching
from abstim.engine.rules import DISPATCH_CYCLES, RETIRE_CYCLES
from abstim.gpu.config import Gpu
from abstim.gpu.spec import POLICIES
from abstim.occupancy_vector.cache_walk import Found, Late, access_words, none_late, walk_caches
from abstim.occupancy_vector.items import (
    Items,
    Warps,
    cut_for_walk,
    groups_of,
    instructions_of_warps,
    lane_items_of,
    terms_of,
    units_of,
)
from abstim.occupancy_vector.lanes import block_slots, deal
from abstim.occupancy_vector.records import DOUBLE, NUMBERS, POOLS, SFU, TENSOR, TICKS, Lanes, Layout, Streams
from functional.traces.trace import SECTOR_BYTES, Trace
from precharacterize import LatencyTable
from precharacterize.table import UNITS

if TYPE_CHECKING:
    from jaxtyping import Float64, Int32, Int64

STORE_CONTROL = 0.5  # of a packet's header, what a sector of a store carries on average: segments of two
BESIDE_COLLECTORS = 2  # instructions that wait for a unit and hold no collector: one issued, one dispatched
OTHER_PART = 0.5  # of the lines that miss L2, where it has two parts, lie in the one that was not asked


class Prepared(NamedTuple):
    """A launch as a GPU's pipeline and fetch see it: the same for all GPUs that agree in `reading`."""

    items: Items
    lane_items: np.ndarray
    terms: np.ndarray
    specials: tuple[bool, ...]  # which of SFU, DOUBLE, TENSOR it uses
    pools: tuple[bool, ...]
    digest: bytes  # of all items


def reading(gpu: Gpu) -> tuple:
    """What of a GPU decides the items of a launch."""
    spec = gpu.spec
    return (
        gpu.pipeline, spec.coalescing, spec.l1d_bypass, POLICIES[spec.scheduler].in_turn, spec.issues_per_turn,
        spec.schedulers_per_sm, spec.sub_cores, spec.register_file_ports,
        *(getattr(spec, f"{kind}_units") for kind in UNITS if kind != "mem"),
        spec.result_bus_width, gpu.params.atomic_latency_cycles,
    )  # fmt: skip


def prepared_of(items: Items) -> Prepared:
    """A launch's items with what lanes need beside them."""
    rows = items.rows
    units = set(np.unique(rows["unit"]).tolist())
    pools = tuple(bool(rows[name].any()) for name in POOLS)
    digest = blake2b(rows.tobytes() + items.offsets.tobytes(), digest_size=16).digest()
    specials = tuple(unit in units for unit in (SFU, DOUBLE, TENSOR))
    return Prepared(items, lane_items_of(rows), terms_of(rows), specials, pools, digest)


# Of Spec, what the cache walk does not look at, beside what decides `reading`
_NOT_WALKED = frozenset(
    {"name", "core_clock_hz", "perfect_memory", "packet_header_bytes", "flit_bytes", "fetches_per_cycle",
     "result_bus_width", "register_banks"}
    | {f"{kind}_units" for kind in UNITS} | {f"{kind}_collectors" for kind in UNITS if kind != "mem"}
)  # fmt: skip


def walking(gpu: Gpu, residents: int, shared_bytes: int) -> tuple:
    """What of a GPU decides which level answers each access."""
    spec = gpu.spec
    own = () if spec.perfect_memory else tuple(getattr(spec, n) for n in spec.__slots__ if n not in _NOT_WALKED)
    fetch = gpu.pipeline.instructions_per_fetch, gpu.pipeline.fetch_line_instructions
    return (spec.perfect_memory, spec.sm_count, *touching(gpu), *fetch, residents, shared_bytes, *own)


class Demand(NamedTuple):
    """What each SM asks of what all share."""

    sectors: Int64[np.ndarray, " lane"]  # of L2
    dram_sectors: Int64[np.ndarray, " lane"]


class Walked(NamedTuple):
    """What the caches of a design point answered, as its lanes read it."""

    accesses: np.ndarray
    late: Late
    dealt: list[np.ndarray]
    found: Found | None  # None: perfect memory
    first: np.ndarray  # of each SM: where its thread blocks begin and end among those of all SMs
    stop: np.ndarray
    kinds: list[bytes]  # of each SM: what its thread blocks are, without their items; equal ones do the same
    demand: Demand
    fills: Fills


def walk(table: LatencyTable, trace: Trace, warps: Warps, gpu: Gpu, residents: int, shared_bytes: int) -> Walked:
    """Deal the thread blocks and, with real memory, walk the caches."""
    lengths = instructions_of_warps(table, trace).reshape(-1, trace.warps_per_block).sum(1)
    return walk_dealt(table, trace, warps, gpu, residents, shared_bytes, deal(lengths, gpu.spec.sm_count, residents))


def walk_dealt(
    table: LatencyTable, trace: Trace, warps: Warps, gpu: Gpu, residents: int, shared_bytes: int,
    dealt: list[np.ndarray],
) -> Walked:  # fmt: skip
    """The same for thread blocks that have been dealt."""
    found, late = None, none_late(len(trace.warp_instructions))
    if not gpu.spec.perfect_memory:
        items = cut_for_walk(table, trace, warps, gpu)
        waiting = queue_of(gpu, "mem") * groups_of(gpu)
        found = walk_caches(table, trace, warps, items, gpu, residents, shared_bytes, dealt, waiting)
        late = found.late
    words, per_block = access_words(warps, found.answers if found else None), trace.warps_per_block
    fills = fills_of(found, words, late, warps, per_block, dealt) if found else no_fills(len(words), len(late.begins))
    ends = np.cumsum([len(own) for own in dealt])
    return Walked(
        words, late, dealt, found, np.append(0, ends[:-1]).astype(np.int32), ends.astype(np.int32),
        _kinds(words, late, fills, warps, per_block, dealt), demand_of(found, warps, per_block, dealt), fills,
    )  # fmt: skip


class Fills(NamedTuple):
    """Accesses that wait for the same data, numbered from 1 on in the order in which their SMs come to them."""

    accesses: Int32[np.ndarray, " access"]  # as of Streams.fills
    late: Int32[np.ndarray, " late"]  # late instruction lines, numbered behind those
    words: Int32[np.ndarray, " fill"]  # words of those that asked
    behind: Int32[np.ndarray, " fill"]  # as of Streams
    trips: Int32[np.ndarray, " fill"]


def no_fills(accesses: int, lines: int) -> Fills:
    """Every access and every line hits."""
    return Fills(*(np.zeros(count, np.int32) for count in (accesses, lines, 1, 1, 1)))


def fills_of(
    found: Found, words: np.ndarray, late: Late, warps: Warps, warps_per_block: int, dealt: list[np.ndarray]
) -> Fills:
    """Who waits for the same data, as the walk had it."""
    turn = np.empty(len(warps.paths), np.int64)  # of each warp, among those of all SMs one after the other
    turn[(np.concatenate(dealt)[:, None] * warps_per_block + np.arange(warps_per_block)).ravel()] = np.arange(len(turn))
    answers = found.answers
    asks, behind = answers["sectors"] > 0, answers["behind"] - 1
    waits_for = np.where(answers["waits_for"] > 0, answers["waits_for"] - 1, behind)
    askers = np.where(asks, -1, waits_for)
    followed = asks & ((behind >= 0) | (answers["trips"] > 0))
    followed[askers[askers >= 0]] = followed[behind[behind >= 0]] = True
    askers = np.where(followed, np.arange(len(answers)), askers)
    accesses, first = _numbered(askers, np.repeat(turn, np.diff(warps.offsets)))
    lines, second = _numbered(late.askers, np.repeat(turn, np.diff(np.append(late.offsets, len(late.begins)))))
    none = np.zeros(len(second), np.int32)
    return Fills(
        np.where(~followed & (behind >= 0), -accesses, accesses),
        np.where(lines > 0, lines + len(first), 0).astype(np.int32),
        np.concatenate([[0], words[first], late.answers[second]]).astype(np.int32),
        np.concatenate([[0], np.where(behind[first] >= 0, accesses[behind[first]], 0), none]).astype(np.int32),
        np.concatenate([[0], answers["trips"][first], none]).astype(np.int32),
    )


def _numbered(
    keys: Int64[np.ndarray, " member"], turns: Int64[np.ndarray, " member"]
) -> tuple[Int32[np.ndarray, " member"], Int64[np.ndarray, " fill"]]:
    """(numbers from 1 on, keys in their order): keys as numbers, in the order of the turn in which they come first;
    0 for a negative key."""
    used = np.flatnonzero(keys >= 0)
    used = used[np.argsort(turns[used], kind="stable")]
    unique, first, inverse = np.unique(keys[used], return_index=True, return_inverse=True)
    order = np.argsort(first)
    numbers = np.empty(len(order), np.int32)
    numbers[order] = np.arange(1, len(order) + 1)
    found = np.zeros(len(keys), np.int32)
    found[used] = numbers[inverse]
    return found, unique[order]


def demand_of(found: Found | None, warps: Warps, warps_per_block: int, dealt: list[np.ndarray]) -> Demand:
    """The sectors of each SM's thread blocks; with perfect memory none."""
    if found is None:
        return Demand(*np.zeros((2, len(dealt)), np.int64))
    first = warps.offsets[:-1:warps_per_block]
    columns = []
    for name in Demand._fields:
        before = np.append(0, np.cumsum(found.answers[name], dtype=np.int64))
        of_block = np.diff(before[np.append(first, len(found.answers))])
        columns.append(np.array([of_block[own].sum() for own in dealt], np.int64))
    return Demand(*columns)


def _kinds(
    words: np.ndarray, late: Late, fills: Fills, warps: Warps, warps_per_block: int, dealt: list[np.ndarray]
) -> list[bytes]:
    """A digest of each SM's accesses, paths and late lines, in order; fills count by which of the SM's they are."""
    found, late_stops = [], np.append(late.offsets[1:], len(late.begins))
    offsets, late_offsets = warps.offsets[::warps_per_block], np.append(late.offsets[::warps_per_block], late_stops[-1])
    for own in dealt:
        digest = blake2b(warps.paths.reshape(-1, warps_per_block)[own].tobytes(), digest_size=16)
        accesses, lines = _ranges(offsets, own), _ranges(late_offsets, own)
        digest.update(words[accesses].tobytes() + late.begins[lines].tobytes())
        for ids in (fills.accesses[accesses], fills.late[lines]):
            used = np.abs(ids[ids != 0])
            first = int(used[0]) - 1 if len(used) else 0
            behind = fills.behind[used]
            digest.update((ids - np.sign(ids) * first).tobytes() + (behind - first * (behind > 0)).tobytes())
            digest.update(fills.words[used].tobytes() + fills.trips[used].tobytes())
        found.append(digest.digest())
    return found


def _ranges(
    offsets: Int64[np.ndarray, " block_plus_1"], chosen: Int64[np.ndarray, " own"]
) -> Int64[np.ndarray, " element"]:
    """The elements of some thread blocks, those of a block from offsets[block] on."""
    return np.concatenate([np.arange(offsets[block], offsets[block + 1]) for block in chosen.tolist()])


def layout_of(prepared: Prepared, warps_per_block: int, gpu: Gpu, residents: int) -> Layout:
    """The arrays' shape."""
    spec = gpu.spec
    return Layout(
        schedulers=spec.schedulers_per_sm,
        blocks=block_slots(residents),
        warps=warps_per_block,
        sub_cores=spec.sub_cores,
        priority=not POLICIES[spec.scheduler].in_turn,
        perfect_memory=spec.perfect_memory,
        memory_queue=queue_of(gpu, "mem"),
        holding=collectors_of(gpu, "mem") if spec.shared_collectors else 0,
        specials=prepared.specials,
        pools=prepared.pools,
    )


def queue_of(gpu: Gpu, kind: str) -> int:
    """Instructions that can wait in front of a kind of unit of one group of schedulers."""
    return collectors_of(gpu, kind) + BESIDE_COLLECTORS


def collectors_of(gpu: Gpu, kind: str) -> int:
    """Operand collectors that instructions for a kind of unit of one group of schedulers can take."""
    return max(1, (gpu.spec.shared_collectors or getattr(gpu.spec, f"{kind}_collectors")) // groups_of(gpu))


def sharers(asked: Int64[np.ndarray, " lane"]) -> Float64[np.ndarray, " lane"]:
    """How many SMs share a server with each, in the mean, until it has served what they ask: all alike, as long as they
    have work left (processor sharing)."""
    if not asked.any():
        return np.ones(len(asked))
    order = np.argsort(asked, kind="stable")
    work = asked[order].astype(float)
    done = np.cumsum(np.diff(work, prepend=0.0) * np.arange(len(work), 0, -1))
    found = np.ones(len(work))
    found[order] = np.divide(done, work, out=np.ones(len(work)), where=work > 0)
    return found


def machine_of_lanes(gpu: Gpu, found: Found | None, demand: Demand) -> Int64[np.ndarray, "lane number"]:
    """NUMBERS of each lane of a design point, in ticks."""
    return np.round(numbers_of(gpu, found, demand) * TICKS).astype(np.int64)


def numbers_of(gpu: Gpu, found: Found | None, demand: Demand) -> Float64[np.ndarray, "lane number"]:
    """NUMBERS of each lane of a design point, in cycles."""
    spec, params = gpu.spec, gpu.params
    slices = spec.dram_channels * spec.l2_slices_per_channel
    rows_a_sector = found.rows_a_sector if found else 0.0
    asking = sharers(demand.sectors)
    share = asking * (found.slice_imbalance if found else 1.0) / slices
    # Of a switch that queues at its m inputs, each line's packets in a row, m / n heads wait in the mean at each of n
    # outputs, which serve them in turns, of a load r: r / (1 - r) = m / n, so that m n / (m + n) packets pass a cycle
    # (Karol, Hluchyj, Morgan 1987, have r + r^2 / 2 (1 - r), of packets that come one by one).
    switch = 0.0 if spec.crossbar_repeats or spec.crossbar_output_queues else 1 + asking / slices
    channel_share = sharers(demand.dram_sectors) * (found.channel_imbalance if found else 1.0) / spec.dram_channels
    other_part = params.l2_partition_cycles * OTHER_PART if spec.l2_partitions > 1 else 0.0
    lanes = len(demand.sectors)
    cycles = {
        "request": params.l2_request_cycles,
        "l2_sector": np.maximum(_l2_sector_cycles(gpu, found) * share, switch),
        "l2_reply": params.l2_reply_cycles,
        "l2_atomic": params.l2_atomic_cycles * share,
        "dram_sector": params.dram_sector_cycles * channel_share,
        "dram_latency": max(0.0, params.dram_latency_cycles + params.dram_reply_cycles - params.l2_reply_cycles
                            + rows_a_sector * params.dram_activate_cycles + other_part),
        "reply_sector": 1.0,
        "store_sector": (spec.packet_header_bytes * STORE_CONTROL + SECTOR_BYTES) / spec.flit_bytes,
        "fetch": 1 / spec.fetches_per_cycle,
        "pool_slack": queue_of(gpu, "sp") / units_of(gpu, "sp"),
        "special_slack": queue_of(gpu, "sfu") * gpu.pipeline.operation("sfu").initiation_cycles,
        "block_launch": params.block_launch_cycles,
        "dispatch": max(1.0, params.dispatch_interval_cycles * lanes),
        "first_issue": DISPATCH_CYCLES,
        "retire": RETIRE_CYCLES,
    }  # fmt: skip
    return np.stack([np.broadcast_to(np.asarray(cycles[name], float), lanes) for name in NUMBERS], -1)


def _l2_sector_cycles(gpu: Gpu, found: Found | None) -> float:
    """Of a slice for a sector, on average: one that misses takes a turn at the tags, and not the port."""
    port = gpu.params.l2_sector_cycles
    share = found.port_share if found else 1.0
    return share * port + (1 - share) * min(1.0, port)


def lanes_of(prepared: Prepared, walked: Walked, warps: Warps, warps_per_block: int, gpu: Gpu, residents: int) -> Lanes:
    """The SMs of a design point that have work."""
    streams = Streams(
        items=prepared.items.rows,
        lane_items=prepared.lane_items,
        terms=prepared.terms,
        starts=prepared.items.offsets[warps.paths],
        accesses=walked.accesses,
        fills=walked.fills.accesses,
        access_starts=warps.offsets[:-1],
        late_starts=walked.late.offsets,
        late_begins=walked.late.begins,
        late_fills=walked.fills.late,
        fill_words=walked.fills.words,
        fill_behind=walked.fills.behind,
        fill_trips=walked.fills.trips,
        dealt=np.concatenate(walked.dealt).astype(np.int32),
    )
    return Lanes(
        layout_of(prepared, warps_per_block, gpu, residents), machine_of_lanes(gpu, walked.found, walked.demand),
        residents, streams, walked.first, walked.stop, [prepared.digest + kinds for kinds in walked.kinds],
    )  # fmt: skip
