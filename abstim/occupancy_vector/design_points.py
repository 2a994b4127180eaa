"""A launch on a design point, as lanes: what the session knows in the engine's terms."""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from abstim.gpu.config import Gpu
from abstim.occupancy_vector.cache_walk import Found, walk_caches
from abstim.occupancy_vector.item_kernel import DOUBLE, SFU, TENSOR
from abstim.occupancy_vector.items import Items, cut, units_of, words_of
from abstim.occupancy_vector.lane_state import TICKS, Layout, Machine, Streams
from abstim.occupancy_vector.lanes import Lanes, block_slots, deal
from abstim.session.session import Session
from functional.trace import SECTOR_BYTES, Trace
from precharacterize import LatencyTable
from precharacterize.parameters import UNITS

STORE_CONTROL = 0.5  # of a packet's header, what a sector of a store carries on average: segments of two
BESIDE_COLLECTORS = 2  # instructions that wait for a unit and hold no collector: one issued, one dispatched


class Prepared(NamedTuple):
    """A launch as a GPU's pipeline and fetch see it: the same for all GPUs that agree in `reading`."""

    table: LatencyTable
    trace: Trace
    items: Items


def reading(gpu: Gpu) -> tuple:
    """What of a GPU decides the items of a launch."""
    spec = gpu.spec
    return (
        gpu.pipeline, spec.coalescing, spec.l1d_banks, spec.l1d_bypass, spec.scheduler in ("lrr", "two_level"),
        spec.issues_per_turn, spec.schedulers_per_sm, spec.sub_cores,
        *(getattr(spec, f"{kind}_units") for kind in UNITS),
        spec.result_bus_width, gpu.params.atomic_latency_cycles,
    )  # fmt: skip


def prepare(session: Session, number: int, trace: Trace, gpu: Gpu) -> Prepared:
    """Cut a launch into items."""
    table = session.table(number, gpu)
    return Prepared(table, trace, cut(table, trace, gpu))


def walking(gpu: Gpu, residents: int, shared_bytes: int) -> tuple:
    """What of a GPU decides which level answers each access, beside `reading`."""
    spec = gpu.spec
    if spec.perfect_memory:
        return ()
    skipped = {"name", "perfect_memory", "core_clock_hz"}
    own = [name for name in spec.__slots__ if name not in skipped]
    return (*(getattr(spec, name) for name in own), residents, shared_bytes)


class Walked(NamedTuple):
    """A launch's items as words, with what the caches of a design point answered."""

    streams: Streams
    dealt: list[np.ndarray]
    found: Found | None  # None: perfect memory
    kinds: list[bytes]  # of each thread block: equal ones do the same


def walk(prepared: Prepared, gpu: Gpu, residents: int, shared_bytes: int) -> Walked:
    """Deal the thread blocks and, with real memory, walk the caches."""
    trace, items = prepared.trace, prepared.items
    per_block = trace.warp_instructions.reshape(-1, trace.warps_per_block).sum(1)
    dealt = deal(per_block, gpu.spec.sm_count, residents)
    found, first_levels = None, np.zeros(len(trace.warp_instructions), np.int32)
    if not gpu.spec.perfect_memory:
        found = walk_caches(
            prepared.table, items.rows, items.offsets, trace.records, trace.warps_per_block, gpu, residents,
            shared_bytes, dealt,
        )  # fmt: skip
        first_levels = found.first_level[:-1].astype(np.int32)
    words = words_of(items.rows, found.levels if found else None)
    streams = Streams(words, items.offsets[:-1].astype(np.int32), first_levels, np.concatenate(dealt).astype(np.int32))
    return Walked(streams, dealt, found, _kinds(words, items.offsets, first_levels, trace.warps_per_block))


def _kinds(words: np.ndarray, offsets: np.ndarray, first_levels: np.ndarray, warps: int) -> list[bytes]:
    """A digest of each thread block's items."""
    found = []
    for first in range(0, len(first_levels), warps):
        own = slice(offsets[first], offsets[first + warps])
        digest = blake2b(words[own].tobytes(), digest_size=16)
        digest.update((offsets[first : first + warps] - offsets[first]).tobytes())
        digest.update(first_levels[first : first + warps].tobytes())
        found.append(digest.digest())
    return found


def layout_of(prepared: Prepared, gpu: Gpu, residents: int) -> Layout:
    """The arrays' shape."""
    spec, units = gpu.spec, set(np.unique(prepared.items.rows["unit"]).tolist())
    rows = prepared.items.rows
    return Layout(
        schedulers=spec.schedulers_per_sm,
        blocks=block_slots(residents),
        warps=prepared.trace.warps_per_block,
        sub_cores=spec.sub_cores,
        priority=spec.scheduler in ("gto", "oldest"),
        perfect_memory=spec.perfect_memory,
        specials=tuple(unit in units for unit in (SFU, DOUBLE, TENSOR)),
        pools=(bool(rows["sp"].any()), bool(rows["int"].any())),
    )


def queue_of(gpu: Gpu, kind: str) -> int:
    """Instructions that can wait in front of a kind of unit of one group of schedulers."""
    spec = gpu.spec
    groups = spec.schedulers_per_sm if spec.sub_cores else 1
    collectors = spec.shared_collectors or getattr(spec, f"{kind}_collectors")
    return max(1, collectors // groups) + BESIDE_COLLECTORS


def machine_of_lanes(gpu: Gpu, found: Found | None, residents: int, lanes: int) -> Machine:
    """A design point's numbers for each of its lanes."""
    spec, params = gpu.spec, gpu.params
    slices = spec.dram_channels * spec.l2_slices_per_channel
    imbalance = found.imbalance if found else 1.0
    rows_a_sector = found.rows_a_sector if found else 0.0
    share, channel_share = lanes * imbalance / slices, lanes / spec.dram_channels
    cycles = {
        "request": params.l2_request_cycles,
        "l2_sector": params.l2_sector_cycles * share,
        "l2_reply": params.l2_reply_cycles,
        "l2_atomic": params.l2_atomic_cycles * share,
        "dram_sector": params.dram_sector_cycles * channel_share,
        "dram_latency": params.dram_latency_cycles + params.dram_reply_cycles
        + rows_a_sector * params.dram_activate_cycles,
        "reply_sector": 1.0,
        "store_sector": (spec.packet_header_bytes * STORE_CONTROL + SECTOR_BYTES) / spec.flit_bytes,
        "fetch": 1 / spec.fetches_per_cycle,
        "pool_slack": queue_of(gpu, "sp") / units_of(gpu, "sp"),
        "special_slack": queue_of(gpu, "sfu") * gpu.pipeline.operation("sfu").initiation_cycles,
    }  # fmt: skip
    ticks = {name: np.full(lanes, round(value * TICKS), np.int32) for name, value in cycles.items()}
    return Machine(**ticks, residents=np.full(lanes, residents, np.int32), warp_base=np.zeros(lanes, np.int32))


def lanes_of(prepared: Prepared, walked: Walked, gpu: Gpu, residents: int) -> Lanes:
    """The SMs of a design point that have work."""
    ends = np.cumsum([len(blocks) for blocks in walked.dealt]).astype(np.int32)
    machine = machine_of_lanes(gpu, walked.found, residents, len(walked.dealt))
    signatures = [b"".join(walked.kinds[block] for block in blocks) for blocks in walked.dealt]
    first = np.append(0, ends[:-1]).astype(np.int32)
    return Lanes(layout_of(prepared, gpu, residents), machine, walked.streams, first, ends, signatures)
