"""What of a design point the occupancy model looks at."""

from functools import lru_cache
from itertools import count
from math import ceil

import numpy as np

from abstim.engine.design_point import touching
from abstim.engine.rules import DISPATCH_CYCLES, RETIRE_CYCLES, SECTORS
from abstim.gpu.config import Gpu
from abstim.gpu.spec import POLICIES
from abstim.occupancy_vector import records as rec
from abstim.occupancy_vector.cache_walk import lines_of
from abstim.occupancy_vector.items import groups_of, nominal_shape, shape_of, units_of
from abstim.occupancy_vector.lanes import block_slots, shape_of_lanes
from functional.arrays import Float64
from functional.jit.machine_code import Held, Native
from functional.traces.trace import SECTOR_BYTES
from precharacterize.table import UNITS

BESIDE_COLLECTORS = 2  # instructions that wait for a unit and hold no collector: one issued, one dispatched
OTHER_PART = 0.5  # of the lines that miss L2, where it has two parts, lie in the one that was not asked


def reading(gpu: Gpu) -> tuple:
    """What of a GPU decides the items of a launch."""
    spec = gpu.spec
    return (
        gpu.pipeline, spec.coalescing, spec.l1d_bypass, POLICIES[spec.scheduler].in_turn, spec.issues_per_turn,
        spec.fetches_per_cycle > 1,
        spec.schedulers_per_sm, spec.sub_cores, spec.register_file_ports,
        *(getattr(spec, f"{kind}_units") for kind in UNITS if kind != "mem"),
        spec.result_bus_width, spec.perfect_memory, gpu.params.atomic_latency_cycles,
        gpu.params.l1_miss_extra_cycles,
    )  # fmt: skip


# Of Spec, what the cache walk does not look at, or at no more of than how many thread blocks an SM holds and what
# `walking` says of the scheduler and the collectors
NOT_WALKED = frozenset(
    {"name", "core_clock_hz", "perfect_memory", "packet_header_bytes", "flit_bytes", "fetches_per_cycle",
     "result_bus_width", "register_banks", "dram_burst_cycles", "dram_row_to_row_cycles", "dram_row_cycle_cycles",
     "scheduler", "issues_per_turn", "register_file_ports", "shared_collectors", "sub_cores", "lsu_units",
     "crossbar_repeats", "l2_reply_sectors", "max_threads_per_sm", "max_warps_per_sm", "max_blocks_per_sm",
     "registers_per_sm", "register_allocation_granularity", "shared_bytes_per_sm"}
    | {f"{kind}_{what}" for kind in UNITS for what in ("units", "collectors")}
)  # fmt: skip


# Where lines lie in L1D, and in a slice of L2: all the same where none leaves that would be missed
IN_L1D, IN_L2 = ([f"{name}_{what}" for what in ("sets", "ways", "index")] for name in ("l1d", "l2"))
_NOT_COMPARED = NOT_WALKED.union(IN_L1D, IN_L2)


def walking(gpu: Gpu) -> tuple:
    """What of a GPU decides which level answers each access, beside how many thread blocks it holds and `in_caches`."""
    spec = gpu.spec
    own: tuple = ()
    if not spec.perfect_memory:
        own = *(getattr(spec, n) for n in spec.__slots__ if n not in _NOT_COMPARED), waiting_of(gpu)
        own += (POLICIES[spec.scheduler].by_slot,)
    return (spec.sm_count, *touching(gpu), *walk_cutting(gpu), *own)


def in_caches(gpu: Gpu) -> tuple:
    """IN_L1D and IN_L2 of a GPU, in this order smaller for larger caches; nothing where none is walked."""
    spec = gpu.spec
    if spec.perfect_memory:
        return ()
    sizes = -spec.l1d_sets * spec.l1d_ways, -spec.l2_sets * spec.l2_ways
    return tuple((n, *(getattr(spec, name) for name in own)) for n, own in zip(sizes, (IN_L1D, IN_L2), strict=True))


def walk_cutting(gpu: Gpu) -> tuple:
    """What of a GPU decides the items that the cache walk goes through, if it goes through any."""
    spec, pipeline = gpu.spec, gpu.pipeline
    fetch = pipeline.instructions_per_fetch, pipeline.fetch_line_instructions
    return (spec.perfect_memory, spec.l1d_bypass, *fetch, *(own.unit for _, own in pipeline.operations))


def queue_of(gpu: Gpu, kind: str) -> int:
    """Instructions that can wait in front of a kind of unit of one group of schedulers."""
    return collectors_of(gpu, kind) + BESIDE_COLLECTORS


def waiting_of(gpu: Gpu) -> int:
    """Memory instructions of an SM that can wait for the load/store unit."""
    return queue_of(gpu, "mem") * groups_of(gpu)


def collectors_of(gpu: Gpu, kind: str) -> int:
    """Operand collectors that instructions for a kind of unit of one group of schedulers can take."""
    return max(1, (gpu.spec.shared_collectors or getattr(gpu.spec, f"{kind}_collectors")) // groups_of(gpu))


def layout_of(gpu: Gpu, warps_per_block: int, residents: int, lane_items: np.ndarray | None = None) -> rec.Layout:
    """The arrays' shape; of LANE_ITEMs, if they are given, which units they need."""
    spec, needs = gpu.spec, 0 if lane_items is None else int(np.bitwise_or.reduce(lane_items["needs"]))
    return rec.Layout(
        schedulers=spec.schedulers_per_sm,
        blocks=block_slots(residents),
        warps=warps_per_block,
        sub_cores=spec.sub_cores,
        priority=not POLICIES[spec.scheduler].in_turn,
        perfect_memory=spec.perfect_memory,
        memory_queue=queue_of(gpu, "mem"),
        holding=collectors_of(gpu, "mem") if spec.shared_collectors else 0,
        specials=tuple(
            bool(needs >> (unit - rec.MEMORY) & 1) for unit in (rec.SFU, rec.DOUBLE, rec.TENSOR)
        ),  # those it uses
        pools=tuple(bool(needs >> (rec.NEEDS_POOL + k) & 1) for k in range(len(rec.POOLS))),
    )


def numbers_of(gpu: Gpu) -> Float64[np.ndarray, " number"]:
    """NUMBERS, in cycles; 0 for those that each lane has of its own."""
    spec, params = gpu.spec, gpu.params
    reply, packet = 1 / spec.l2_reply_sectors, 1 if spec.coalescing == "sector" else SECTORS
    cycles = {
        "request": params.l2_request_cycles,
        "l2_reply": params.l2_reply_cycles,
        "reply_sector": reply,
        "store_reply": 0.0 if spec.posted_stores else reply,
        "load_sector": 1 / packet,
        "store_sector": ceil((spec.packet_header_bytes + SECTOR_BYTES * packet) / spec.flit_bytes) / packet,
        "fetch": 1 / spec.fetches_per_cycle,
        "pool_slack": queue_of(gpu, "sp") / units_of(gpu, "sp"),
        "special_slack": queue_of(gpu, "sfu") * gpu.pipeline.operation("sfu").initiation_cycles,
        "block_launch": params.block_launch_cycles,
        "first_issue": DISPATCH_CYCLES - (spec.fetches_per_cycle > 1),
        "retire": RETIRE_CYCLES,
    }
    return np.array([cycles.get(name, 0.0) for name in rec.NUMBERS], np.float64)


def servers_of(gpu: Gpu) -> np.ndarray:
    """SHARED_BY_LANES: one element."""
    spec, params = gpu.spec, gpu.params
    found = np.zeros(1, rec.SHARED_BY_LANES)
    dram_cycle = params.dram_sector_cycles / spec.dram_burst_cycles
    found[0] = (
        spec.dram_channels * spec.l2_slices_per_channel, spec.dram_channels, not spec.crossbar_output_queues,
        max(params.l2_sector_cycles, 1 / spec.l2_reply_sectors), params.l2_atomic_cycles, params.dram_sector_cycles,
        max(spec.dram_row_to_row_cycles, spec.dram_row_cycle_cycles / spec.dram_banks) * dram_cycle,
        params.dram_latency_cycles + params.dram_reply_cycles - params.l2_reply_cycles, params.dram_activate_cycles,
        params.l2_partition_cycles * OTHER_PART if spec.l2_partitions > 1 else 0.0, params.dispatch_interval_cycles,
    )  # fmt: skip
    return found


_count = count()


@lru_cache(1 << 12)
def numbered(key: tuple) -> int:
    """One number for all keys that are equal, which are long."""
    return next(_count)


class Reading:
    """What of a GPU the model looks at, worked out once."""

    def __init__(self, gpu: Gpu) -> None:
        passing = gpu.spec.l1d_bypass, gpu.spec.posted_stores, gpu.spec.perfect_memory
        self.gpu, self.items, self.walked_items = gpu, numbered(reading(gpu)), numbered(walk_cutting(gpu))
        self.touching, self.caches = numbered((*touching(gpu), *passing)), numbered(walking(gpu))
        self.in_caches, self.waiting = in_caches(gpu), waiting_of(gpu)
        sizes = "sm_count", "dram_channels", "l2_slices_per_channel", "dram_banks", "l1d_mshrs"
        self.behind, self.lines = (*(getattr(gpu.spec, n) for n in sizes), self.waiting), lines_of(gpu)  # of caches
        self._shapes = shape_of(gpu), nominal_shape(gpu)
        self._numbers = numbers_of(gpu), servers_of(gpu)
        self._held: dict[tuple[int, int], Held] = {}

    def held(self, warps_per_block: int, residents: int) -> Held:
        """OnGpu, of launches with so many warps a thread block, and so many of those an SM."""
        key = warps_per_block, residents
        if key not in self._held:
            shape = shape_of_lanes(layout_of(self.gpu, warps_per_block, residents), residents)
            self._held[key] = Held(rec.OnGpu(*self._shapes, shape, *self._numbers))
        return self._held[key]


@lru_cache(1 << 11)  # points of a sweep, whose launches come one after the other
def reading_of(gpu: Gpu) -> Reading:
    """`Reading`, once a GPU."""
    return Reading(gpu)


number_lanes = Native("abstim.occupancy_vector.launch_kernel", "number_lanes")


def machine_of_lanes(gpu: Gpu, found: np.ndarray, told: np.ndarray) -> Float64[np.ndarray, "lane number"]:
    """NUMBERS of each lane of a design point, in cycles. `found`: a FOUND; `told`: what each SM asks of what all share,
    a TOLD_SM."""
    numbers = np.empty((len(told), len(rec.NUMBERS)))
    number_lanes(reading_of(gpu).held(1, 1), found[0], told, sharing_of(len(told)), numbers)
    return numbers


def sharing_of(sm_count: int) -> rec.Sharing:
    """Scratch for so many SMs."""
    whole, real = ([np.zeros(sm_count, kind) for _ in range(2)] for kind in (np.int64, np.float64))
    return rec.Sharing(*whole, *real)
