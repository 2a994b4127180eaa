"""A launch on a design point, as lanes: what the session knows in the engine's terms."""

from __future__ import annotations

from functools import cached_property
from hashlib import blake2b
from math import ceil
from typing import Any, NamedTuple

import numpy as np

from abstim.engine.design_point import touching
from abstim.engine.rules import DISPATCH_CYCLES, RETIRE_CYCLES, SECTORS
from abstim.gpu.config import Gpu
from abstim.gpu.spec import POLICIES
from abstim.occupancy_vector.cache_walk import Found, Told, told_of, walk_caches, walk_of
from abstim.occupancy_vector.items import Items, Warps, groups_of, instructions_of_warps, units_of
from abstim.occupancy_vector.lanes import block_slots, deal
from abstim.occupancy_vector.records import (
    DOUBLE,
    MEMORY,
    NEEDS_POOL,
    NUMBERS,
    POOLS,
    SFU,
    TENSOR,
    TICKS,
    Lanes,
    Layout,
    Streams,
)
from functional.arrays import Float64, Int32, Int64
from functional.traces.trace import SECTOR_BYTES, Trace
from precharacterize import LatencyTable
from precharacterize.table import UNITS

BESIDE_COLLECTORS = 2  # instructions that wait for a unit and hold no collector: one issued, one dispatched
OTHER_PART = 0.5  # of the lines that miss L2, where it has two parts, lie in the one that was not asked


class Prepared:
    """A launch as a GPU's pipeline and fetch see it: the same for all GPUs that agree in `reading`."""

    def __init__(self, items: Items) -> None:
        self.items = items
        needs = int(np.bitwise_or.reduce(items.lane_items["needs"]))
        self.specials = tuple(bool(needs >> (unit - MEMORY) & 1) for unit in (SFU, DOUBLE, TENSOR))  # those it uses
        self.pools = tuple(bool(needs >> (NEEDS_POOL + k) & 1) for k in range(len(POOLS)))

    @cached_property
    def digest(self) -> bytes:
        """Of all items."""
        found = blake2b(self.items.lane_items.tobytes(), digest_size=16)
        for array in (self.items.terms, self.items.offsets):
            found.update(array.tobytes())
        return found.digest()


def reading(gpu: Gpu) -> tuple:
    """What of a GPU decides the items of a launch."""
    spec = gpu.spec
    return (
        gpu.pipeline, spec.coalescing, spec.l1d_bypass, POLICIES[spec.scheduler].in_turn, spec.issues_per_turn,
        spec.schedulers_per_sm, spec.sub_cores, spec.register_file_ports,
        *(getattr(spec, f"{kind}_units") for kind in UNITS if kind != "mem"),
        spec.result_bus_width, spec.perfect_memory, gpu.params.atomic_latency_cycles,
    )  # fmt: skip


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


def walk_cutting(gpu: Gpu) -> tuple:
    """What of a GPU decides the items that the cache walk goes through."""
    return gpu.spec.l1d_bypass, gpu.pipeline.instructions_per_fetch, gpu.pipeline.fetch_line_instructions


class Walked(NamedTuple):
    """A launch, dealt and walked through the caches of a design point."""

    dealt: Int32[np.ndarray, " position"]  # thread blocks, those of an SM one after the other
    told: Told
    found: Found

    @property
    def kinds(self) -> list[bytes]:
        """Of each SM what its thread blocks are, without their items; equal ones do the same."""
        return [own.tobytes() for own in np.stack([self.told.sms[name] for name in ("hash", "other_hash")], 1)]


def walk(
    table: LatencyTable, trace: Trace, warps: Warps, items: Items | None, gpu: Gpu, residents: int, shared_bytes: int,
    dealt: list[np.ndarray] | None = None,
) -> Walked:  # fmt: skip
    """Deal the thread blocks, if they are not, and, with real memory, walk the caches. `items`: of `cut_for_walk`."""
    if dealt is None:
        lengths = instructions_of_warps(table, trace).reshape(-1, trace.warps_per_block).sum(1)
        dealt = deal(lengths, gpu.spec.sm_count, residents)
    own, found = walk_of(trace, warps, items, gpu, residents, shared_bytes, dealt), Found()
    if items is not None:
        waiting = queue_of(gpu, "mem") * groups_of(gpu)
        found = walk_caches(own, gpu, dealt, residents * trace.warps_per_block, waiting)
    return Walked(own.dealt, told_of(own, dealt), found)


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
    if asked.min() == asked.max():
        return np.full(len(asked), float(len(asked)) if asked[0] else 1.0)
    order = np.argsort(asked, kind="stable")
    work = asked[order].astype(float)
    done = np.cumsum(np.diff(work, prepend=0.0) * np.arange(len(work), 0, -1))
    found = np.ones(len(work))
    found[order] = np.divide(done, work, out=np.ones(len(work)), where=work > 0)
    return found


def machine_of_lanes(gpu: Gpu, found: Found, sms: np.ndarray) -> Int64[np.ndarray, "lane number"]:
    """NUMBERS of each lane of a design point, in ticks. `sms`: what each SM asks of what all share, a TOLD_SM."""
    return np.round(numbers_of(gpu, found, sms) * TICKS).astype(np.int64)


def numbers_of(gpu: Gpu, found: Found, sms: np.ndarray) -> Float64[np.ndarray, "lane number"]:
    """NUMBERS of each lane of a design point, in cycles."""
    spec, params = gpu.spec, gpu.params
    slices = spec.dram_channels * spec.l2_slices_per_channel
    asking = sharers(sms["sectors"])
    share = asking * found.slice_imbalance / slices
    reply = 1 / spec.l2_reply_sectors
    runs, singles = _switch_cycles(gpu, asking)
    channel_share = sharers(sms["dram_sectors"]) * found.channel_imbalance / spec.dram_channels
    other_part = params.l2_partition_cycles * OTHER_PART if spec.l2_partitions > 1 else 0.0
    packet = 1 if spec.coalescing == "sector" else SECTORS
    lanes = len(sms)
    cycles: dict[str, Any] = {
        "request": params.l2_request_cycles,
        "l2_sector": np.maximum(_l2_sector_cycles(gpu, found) * share, runs),
        "l2_store": np.maximum(_l2_sector_cycles(gpu, found) * share, singles),
        "l2_atomic": np.maximum(params.l2_atomic_cycles * share, singles),
        "l2_reply": params.l2_reply_cycles,
        "dram_sector": params.dram_sector_cycles * channel_share,
        "dram_latency": max(0.0, params.dram_latency_cycles + params.dram_reply_cycles - params.l2_reply_cycles
                            + found.rows_a_sector * params.dram_activate_cycles + other_part),
        "reply_sector": reply,
        "store_reply": 0.0 if spec.posted_stores else reply,
        "load_sector": 1 / packet,
        "store_sector": ceil((spec.packet_header_bytes + SECTOR_BYTES * packet) / spec.flit_bytes) / packet,
        "fetch": 1 / spec.fetches_per_cycle,
        "pool_slack": queue_of(gpu, "sp") / units_of(gpu, "sp"),
        "special_slack": queue_of(gpu, "sfu") * gpu.pipeline.operation("sfu").initiation_cycles,
        "block_launch": params.block_launch_cycles,
        "dispatch": max(1.0, params.dispatch_interval_cycles * lanes),
        "first_issue": DISPATCH_CYCLES,
        "retire": RETIRE_CYCLES,
    }  # fmt: skip
    numbers = np.empty((lanes, len(NUMBERS)))
    for k, name in enumerate(NUMBERS):
        numbers[:, k] = cycles[name]
    return numbers


def _switch_cycles(gpu: Gpu, asking: Float64[np.ndarray, " lane"]) -> tuple[Any, Any]:
    """Cycles of an SM for a sector of a line, and for a single one, where all send as fast as the switch takes them.

    Where it queues at its m inputs, h = (m - 1) / n packets of other SMs stand in the mean at each of n outputs, which
    serve them in turns: those of a line before as many others, single ones, of a load r an output, after
    r + r^2 / (2 - 2 r) = h (Karol, Hluchyj, Morgan 1987)."""
    spec = gpu.spec
    heads = np.maximum(0.0, asking - 1) / (spec.dram_channels * spec.l2_slices_per_channel)
    return (0.0, 0.0) if spec.crossbar_output_queues else (1 + heads, (1 + heads + np.sqrt(1 + heads * heads)) / 2)


def _l2_sector_cycles(gpu: Gpu, found: Found) -> float:
    """Of a slice for a sector, on average: one that misses takes a turn at the tags, no port; all are replied to."""
    port = max(gpu.params.l2_sector_cycles, 1 / gpu.spec.l2_reply_sectors)
    return found.port_share * port + (1 - found.port_share) * min(1.0, port)


def lanes_of(prepared: Prepared, walked: Walked, warps: Warps, warps_per_block: int, gpu: Gpu, residents: int) -> Lanes:
    """The SMs of a design point that have work."""
    told, items = walked.told, prepared.items
    streams = Streams(
        items=items.rows,
        lane_items=items.lane_items,
        terms=items.terms,
        starts=items.offsets[warps.paths],
        access_starts=warps.offsets[:-1],
        dealt=walked.dealt,
        **{name: getattr(told, name) for name in Told._fields if name != "sms"},
    )
    first, stop = (told.sms[name].astype(np.int32) for name in ("first", "stop"))
    return Lanes(
        layout_of(prepared, warps_per_block, gpu, residents), machine_of_lanes(gpu, walked.found, told.sms),
        residents, streams, first, stop, walked.kinds, lambda: prepared.digest,
        int(np.diff(items.offsets)[warps.paths].sum()),
    )  # fmt: skip
