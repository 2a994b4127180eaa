"""A launch on a design point, as lanes: what the session knows in the engine's terms."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from abstim.gpu.config import Gpu
from abstim.occupancy_vector.cache_walk import Found, Late, access_words, none_late, walk_caches
from abstim.occupancy_vector.item_records import DOUBLE, POOLS, SFU, TENSOR
from abstim.occupancy_vector.items import Items, Warps, cut, cut_for_walk, lane_items_of, terms_of, touching, units_of
from abstim.occupancy_vector.lane_records import NUMBERS, TICKS, Lanes, Layout, Streams
from abstim.occupancy_vector.lanes import block_slots, deal
from functional.trace import SECTOR_BYTES, Trace
from precharacterize import LatencyTable
from precharacterize.parameters import UNITS

if TYPE_CHECKING:
    from jaxtyping import Float64, Int64

HEAD_OF_LINE = 2 - 2**0.5  # of a switch's bandwidth passes where inputs are queues (Karol, Hluchyj, Morgan 1987)
STORE_CONTROL = 0.5  # of a packet's header, what a sector of a store carries on average: segments of two
BESIDE_COLLECTORS = 2  # instructions that wait for a unit and hold no collector: one issued, one dispatched


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
        gpu.pipeline, spec.coalescing, spec.l1d_bypass, spec.scheduler in ("lrr", "two_level"), spec.issues_per_turn,
        spec.schedulers_per_sm, spec.sub_cores, spec.register_file_ports,
        *(getattr(spec, f"{kind}_units") for kind in UNITS if kind != "mem"),
        spec.result_bus_width, gpu.params.atomic_latency_cycles,
    )  # fmt: skip


def prepare(table: LatencyTable, trace: Trace, warps: Warps, gpu: Gpu) -> Prepared:
    """Cut a launch into items."""
    return prepared_of(cut(table, trace, warps, gpu))


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
     "result_bus_width", "register_banks", "shared_collectors"}
    | {f"{kind}_{what}" for kind in UNITS for what in ("units", "collectors")}
)  # fmt: skip


def walking(gpu: Gpu, residents: int, shared_bytes: int) -> tuple:
    """What of a GPU decides which level answers each access."""
    spec = gpu.spec
    own = () if spec.perfect_memory else tuple(getattr(spec, n) for n in spec.__slots__ if n not in _NOT_WALKED)
    fetch = gpu.pipeline.instructions_per_fetch, gpu.pipeline.fetch_line_instructions
    return (spec.perfect_memory, spec.sm_count, *touching(gpu), *fetch, residents, shared_bytes, *own)


class Walked(NamedTuple):
    """What the caches of a design point answered, as its lanes read it."""

    accesses: np.ndarray
    late: Late
    dealt: list[np.ndarray]
    found: Found | None  # None: perfect memory
    first: np.ndarray  # of each SM: where its thread blocks begin and end among those of all SMs
    stop: np.ndarray
    kinds: list[bytes]  # of each SM: what its thread blocks are, without their items; equal ones do the same


def walk(table: LatencyTable, trace: Trace, warps: Warps, gpu: Gpu, residents: int, shared_bytes: int) -> Walked:
    """Deal the thread blocks and, with real memory, walk the caches."""
    per_block = trace.warp_instructions.reshape(-1, trace.warps_per_block).sum(1)
    dealt = deal(per_block, gpu.spec.sm_count, residents)
    found, late = None, none_late(len(trace.warp_instructions))
    if not gpu.spec.perfect_memory:
        items = cut_for_walk(table, trace, warps, gpu)
        found = walk_caches(table, trace, warps, items, gpu, residents, shared_bytes, dealt)
        late = found.late
    words = access_words(warps, found.answers if found else None)
    blocks, ends = (
        _kinds(words, late, warps, trace.warps_per_block, bool(found)),
        np.cumsum([len(own) for own in dealt]),
    )
    return Walked(
        words, late, dealt, found, np.append(0, ends[:-1]).astype(np.int32), ends.astype(np.int32),
        [blake2b(b"".join(blocks[b] for b in own), digest_size=16).digest() for own in dealt],
    )  # fmt: skip


def _kinds(words: np.ndarray, late: Late, warps: Warps, warps_per_block: int, real: bool) -> list[bytes]:
    """A digest of each thread block's accesses, paths and late lines."""
    found, offsets = [], warps.offsets
    late_stops = np.append(late.offsets[1:], len(late.begins))
    for first in range(0, len(warps.paths), warps_per_block):
        stop = first + warps_per_block
        digest = blake2b(words[offsets[first] : offsets[stop]].tobytes(), digest_size=16)
        digest.update(warps.paths[first:stop].tobytes())
        if real:
            own = slice(late.offsets[first], late_stops[stop - 1])
            digest.update(late.begins[own].tobytes() + late.answers[own].tobytes())
        found.append(digest.digest())
    return found


def layout_of(prepared: Prepared, warps_per_block: int, gpu: Gpu, residents: int) -> Layout:
    """The arrays' shape."""
    spec = gpu.spec
    return Layout(
        schedulers=spec.schedulers_per_sm,
        blocks=block_slots(residents),
        warps=warps_per_block,
        sub_cores=spec.sub_cores,
        priority=spec.scheduler in ("gto", "oldest"),
        perfect_memory=spec.perfect_memory,
        specials=prepared.specials,
        pools=prepared.pools,
    )


def queue_of(gpu: Gpu, kind: str) -> int:
    """Instructions that can wait in front of a kind of unit of one group of schedulers."""
    spec = gpu.spec
    groups = spec.schedulers_per_sm if spec.sub_cores else 1
    collectors = spec.shared_collectors or getattr(spec, f"{kind}_collectors")
    return max(1, collectors // groups) + BESIDE_COLLECTORS


def machine_of_lanes(gpu: Gpu, found: Found | None, lanes: int) -> Int64[np.ndarray, " number"]:
    """A design point's NUMBERS, in ticks."""
    return np.round(numbers_of(gpu, found, lanes) * TICKS).astype(np.int64)


def numbers_of(gpu: Gpu, found: Found | None, lanes: int) -> Float64[np.ndarray, " number"]:
    """A design point's NUMBERS, in cycles; `lanes`: its SMs that have work."""
    spec, params = gpu.spec, gpu.params
    slices = spec.dram_channels * spec.l2_slices_per_channel
    rows_a_sector = found.rows_a_sector if found else 0.0
    # the busiest slice keeps the others waiting; where it is none, the switch loses what its queues' heads block
    slowdown = max(found.imbalance if found else 1.0, 1.0 if spec.crossbar_repeats else 1 / HEAD_OF_LINE)
    share, channel_share = lanes * slowdown / slices, lanes / spec.dram_channels
    cycles = {
        "request": params.l2_request_cycles,
        "l2_sector": params.l2_sector_cycles * share,
        "l2_reply": params.l2_reply_cycles,
        "l2_atomic": params.l2_atomic_cycles * share,
        "dram_sector": params.dram_sector_cycles * channel_share,
        "dram_latency": max(0.0, params.dram_latency_cycles + params.dram_reply_cycles - params.l2_reply_cycles
                            + rows_a_sector * params.dram_activate_cycles),
        "reply_sector": 1.0,
        "store_sector": (spec.packet_header_bytes * STORE_CONTROL + SECTOR_BYTES) / spec.flit_bytes,
        "fetch": 1 / spec.fetches_per_cycle,
        "pool_slack": queue_of(gpu, "sp") / units_of(gpu, "sp"),
        "special_slack": queue_of(gpu, "sfu") * gpu.pipeline.operation("sfu").initiation_cycles,
    }  # fmt: skip
    return np.array([cycles[name] for name in NUMBERS])


def lanes_of(prepared: Prepared, walked: Walked, warps: Warps, warps_per_block: int, gpu: Gpu, residents: int) -> Lanes:
    """The SMs of a design point that have work."""
    streams = Streams(
        items=prepared.items.rows,
        lane_items=prepared.lane_items,
        terms=prepared.terms,
        starts=prepared.items.offsets[warps.paths],
        accesses=walked.accesses,
        access_starts=warps.offsets[:-1],
        late_starts=walked.late.offsets,
        late_begins=walked.late.begins,
        late_answers=walked.late.answers,
        dealt=np.concatenate(walked.dealt).astype(np.int32),
    )
    return Lanes(
        layout_of(prepared, warps_per_block, gpu, residents), machine_of_lanes(gpu, walked.found, len(walked.dealt)),
        residents, streams, walked.first, walked.stop, [prepared.digest + kinds for kinds in walked.kinds],
    )  # fmt: skip
