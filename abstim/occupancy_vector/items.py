"""A launch as items, and items as the words that the lanes read (docs/occupancy-vector.md, "Items")."""

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from abstim.engine.design_point import caches_machine, written_words
from abstim.engine.rules import ALLOCATE_CYCLES, DECODE_CYCLES, READ_STEPS, START_CYCLES
from abstim.gpu.config import Gpu
from abstim.gpu.spec import INSTRUCTION_CLASSES, POLICIES
from abstim.occupancy_vector import records as rec
from abstim.occupancy_vector.lent import Lent
from functional.arrays import Bool, Int64
from functional.errors import InputError
from functional.jit.machine_code import Held, Native
from functional.traces.trace import Trace
from precharacterize import LatencyTable
from precharacterize.bounds import cycles_an_instruction
from precharacterize.synchronisation import splits_blocks
from precharacterize.table import UNITS

_KERNEL = "abstim.occupancy_vector.item_kernel"
measure, sort_warps, cut_into = (Native(_KERNEL, name) for name in ("measure", "sort_warps", "cut_into"))

# Whose cycles an item has in it: an instruction class's latency, or one of the load/store unit's
MEMORY_LATENCIES = ("shared", "const", "l1d", "atomic", "l1d_miss")  # by SHARED, CONST, HIT, ATOMIC_LATENCY, MISS
LATENCIES = ("none", *INSTRUCTION_CLASSES, *MEMORY_LATENCIES)


class Sorted(NamedTuple):
    """Warps of a launch, sorted by path."""

    lent: Lent  # Warps
    traced: Held  # Traced
    warps: int  # COUNTS
    accesses: int
    instructions: int
    longest: int
    distinct: int
    paths: int

    @property
    def value(self) -> rec.Warps:
        """Of each."""
        return self.lent.value  # type: ignore[no-any-return]


_WARPS = rec.ACCESS, *[np.int64] * 4, np.uint64, *[np.int64] * 2
_ITEMS = rec.ITEM, rec.LANE_ITEM, np.int32, np.int64, np.int64


def warps_of(table: LatencyTable, trace: Trace, gpu: Gpu, traced: Held | None = None) -> Sorted:
    """Read the accesses of a trace, which may be `traced` before, and sort its warps by path: the same for all GPUs of
    one `touching`. Raises InputError for a program whose barriers are for a part of a thread block's warps."""
    if _splits_blocks(table, trace.warps_per_block):
        raise InputError(
            "the kernel has barriers for a part of a thread block, and the occupancy model knows those of a whole one; "
            "use --model detailed"
        )
    code, traced, count = code_of(table, gpu), traced or as_read(trace), len(trace.warp_instructions)
    counts, blocks, places = np.zeros(1, rec.COUNTS), len(table.block_start), 2 << count.bit_length()
    sizes = count, count + 1, count, count, count, blocks, places
    room = Lent(rec.Warps, _WARPS, (0, *sizes))
    measure(code, traced, room.held, counts)
    room.fit((int(counts["accesses"][0]) + 1, *sizes))
    sort_warps(code, traced, room.held, caches_machine(gpu, trace.warps_per_block, 1), counts)
    found = Sorted(room, traced, *counts[0].item())
    room.rows[rec.Warps._fields.index("leaders"), 1] = found.paths
    return found


@lru_cache(128)
def _splits_blocks(table: LatencyTable, warps_per_block: int) -> bool:
    return splits_blocks(table.barrier.tolist(), table.kind.tolist(), warps_per_block)


def cut(
    table: LatencyTable, warps: Sorted, gpu: Gpu, latency_of: Int64[np.ndarray, " instr"] | None = None,
    chosen: Bool[np.ndarray, " instr"] | None = None,
) -> Lent:  # fmt: skip
    """The Items of every path of a launch on a GPU's pipeline, with `rows`. `latency_of`: each instruction's class, an
    index of LATENCIES, for who asks whose latencies an item has in it; `chosen`: the number of these instructions of a
    pool is to stand in place of their work. Raises InputError for an item that lanes cannot hold."""
    code = code_of(table, gpu, work_a_cycle(table, warps, gpu)).value
    rows = code.instructions.copy()
    if latency_of is not None:
        rows["latency_of"] = latency_of
    if chosen is not None:
        rows["work"] = chosen
    lent, scratch = empty_items(warps, keep=True), new_cutting(table.register_count, warps.longest)
    cut_into(code, warps.traced, rows, shape_of(gpu), warps.lent.held, lent.held, scratch)
    count = int(lent.value.offsets[-1])
    lent.fit((count, count, count * len(rec.TERMS), warps.paths + 1, warps.warps))
    if scratch.misfits[0] and chosen is None:
        check_fit(lent.value.rows)
    return lent


def empty_items(warps: Sorted, keep: bool = False, timed: bool = True) -> Lent:
    """Room for the Items of all paths; their `rows` if they are to be kept, what lanes read if they are `timed`. Memory
    is touched as far as there are items."""
    most = warps.distinct
    sizes = most * keep, most, most * timed * len(rec.TERMS), warps.paths + 1, warps.warps * timed
    return Lent(rec.Items, _ITEMS, sizes)


def new_cutting(registers: int, longest: int) -> rec.Cutting:
    """What items are cut with, of a program with so many registers, and paths of at most so many instructions."""
    return rec.Cutting(
        np.empty(rec.MOST_MARKS, rec.WARP), np.empty((rec.MOST_MARKS, registers), rec.REGISTER),
        np.empty(rec.MOST_MARKS * rec.OPEN_ITEMS, rec.ITEM), np.zeros(2, np.int64), np.empty(longest, rec.ITEM),
        np.zeros(1, np.int64),
    )  # fmt: skip


def check_fit(rows: np.ndarray) -> None:
    """Raises InputError for the first field of some ITEMs that is more than LANE_ITEM, or TERMS, hold."""
    for name in rec.TERMS:
        check_field(name, rows[name], 25)
    for name in rec.LANE_ITEM.names or ():
        if name in (rec.ITEM.names or ()) and name not in rec.TERMS:
            check_field(name, rows[name], 8 * rec.LANE_ITEM[name].itemsize)


def shape_of(gpu: Gpu) -> rec.Shape:
    """What of a GPU cuts items, beside its latency table."""
    spec, pipeline = gpu.spec, gpu.pipeline
    hit = pipeline.global_hit_cycles
    miss = hit + spec.perfect_memory * gpu.params.l1_miss_extra_cycles  # with real memory lanes say what it takes
    of = [LATENCIES.index(name) for name in MEMORY_LATENCIES]
    passing = gpu.params.atomic_latency_cycles
    if not spec.perfect_memory:  # what passes L1D by leaves as it starts
        passing, of[rec.ATOMIC_LATENCY] = 0, LATENCIES.index("none")
    return rec.Shape(
        fetch_width=pipeline.instructions_per_fetch,
        fetch_line=pipeline.fetch_line_instructions,
        decode=DECODE_CYCLES - (spec.fetches_per_cycle > 1),  # what all but the last bring can issue a cycle earlier
        single=int(POLICIES[spec.scheduler].in_turn),
        dual_issue=int(spec.issues_per_turn > 1),
        bypass=int(spec.l1d_bypass),
        perfect=int(spec.perfect_memory),
        timed=1,
        latency=np.array([pipeline.shared_cycles, pipeline.const_hit_cycles, hit, passing, miss], np.int64),
        latency_of=np.array(of, np.int64),
    )


def units_of(gpu: Gpu, kind: str) -> int:
    """Units of a kind that one group of schedulers shares: a sub-core, or the SM."""
    return max(1, getattr(gpu.spec, f"{kind}_units") // groups_of(gpu))


def groups_of(gpu: Gpu) -> int:
    """Sets of units and collectors of an SM."""
    return gpu.spec.schedulers_per_sm if gpu.spec.sub_cores else 1


def nominal_shape(gpu: Gpu) -> rec.Shape:
    """The same where each instruction takes a cycle: whatever a GPU's latencies are."""
    own = shape_of(gpu)
    return own._replace(decode=DECODE_CYCLES, single=0, dual_issue=0, timed=0, latency=np.ones_like(own.latency))


@lru_cache(128)
def code_of(table: LatencyTable, gpu: Gpu, work_a_cycle: tuple[float, ...] = ()) -> Held:
    """A program as Code on a GPU; `work_a_cycle`: what is work for its pools."""
    rows = timed_rows(table, gpu).copy()
    for number, factor in enumerate(work_a_cycle):
        own = rows["pool"] == number
        rows["work"][own] = np.round(table.initiation_cycles[own] * factor)
    nominal, memory, offsets = _nominal_rows(table)
    return Held(
        rec.Code(rows, nominal, table.waits, table.writes, table.block_start, table.block_stop, memory, offsets)
    )


def as_read(trace: Trace) -> Held:
    """What warps execute: Traced."""
    records = trace.records, written_words(trace), trace.record_offsets
    return Held(rec.Traced(trace.blocks, trace.block_offsets, *records, trace.conflicts, trace.conflict_offsets))


@lru_cache(128)
def _nominal_rows(table: LatencyTable) -> tuple[np.ndarray, Int64[np.ndarray, " access"], Int64[np.ndarray, " block"]]:
    """The latency table as CODE where each instruction takes a cycle; memory instructions, those of a basic block one
    after the other, and where each block's begin."""
    rows = _rows(table)
    rows["initiation"] = rows["result"] = 1
    memory = table.unit == UNITS.index("mem")
    own = [
        start + np.flatnonzero(memory[start:stop])
        for start, stop in zip(table.block_start, table.block_stop, strict=True)
    ]
    return rows, np.concatenate(own), np.append(0, np.cumsum([len(places) for places in own]))


# Of each of UNITS: the special unit, or POOLED; which of POOLS, or -1
_SPECIALS = np.array([rec.SPECIAL.get(name, rec.POOLED) for name in UNITS])
_POOLS = np.array([rec.POOLS.index(name) if name in rec.POOLS else -1 for name in UNITS])


def _rows(table: LatencyTable) -> np.ndarray:
    """The latency table as CODE, without work for pools."""
    rows = np.zeros(len(table.unit), rec.CODE)
    rows["kind"], rows["pc"], rows["bytes"] = table.kind, table.pcs, table.access_bytes
    rows["initiation"], rows["result"] = table.initiation_cycles, table.result_cycles
    rows["writes"] = (table.writes >= 0).any(1)
    rows["stall"], rows["release"], rows["counted"] = table.stall_cycles, table.release, table.counted
    rows["unit"], rows["pool"] = _SPECIALS[table.unit], _POOLS[table.unit]
    return rows


@lru_cache(128)
def timed_rows(table: LatencyTable, gpu: Gpu) -> np.ndarray:
    """The same for all launches of a program: without work."""
    rows = _rows(table)
    units_by_kind = np.array([units_of(gpu, kind) if kind != "mem" else 1 for kind in UNITS])
    start = _start_delay(table, max(1, gpu.spec.register_banks // groups_of(gpu)), gpu.spec.register_file_ports)
    rows["result"] = table.result_cycles - _start_delay(table, gpu.pipeline.register_banks, 1) + start
    rows["late"] = np.maximum(0, start - rec.TO_UNIT_CYCLES)
    # of several units, one takes the next instruction while another is busy
    rows["initiation"] = np.maximum(1, table.initiation_cycles // units_by_kind[table.unit])
    return rows


def work_a_cycle(table: LatencyTable, warps: Sorted, gpu: Gpu) -> tuple[float, ...]:
    """What a cycle of initiation is as work for each of POOLS, in 1 / WORK_A_CYCLE cycles."""
    several = gpu.spec.schedulers_per_sm > 1
    executed = warps.lent.held.value.executed[: len(table.block_start)]
    return _work_a_cycle(table, gpu, executed.tobytes() if several else b"")


@lru_cache(1 << 10)
def _work_a_cycle(table: LatencyTable, gpu: Gpu, executed: bytes) -> tuple[float, ...]:
    """`executed`: how often each basic block is; b"": there is one scheduler."""
    units = [units_of(gpu, pool) for pool in rec.POOLS]
    if not executed:
        return tuple(rec.WORK_A_CYCLE / own for own in units)
    pools, blocks = _POOLS[table.unit], np.frombuffer(executed, np.int64)
    at = (np.bincount(edges, blocks, len(pools) + 1) for edges in (table.block_start, table.block_stop))
    often = np.cumsum(np.subtract(*at))[:-1].astype(np.int64)  # how often each instruction is
    crowds = (_crowding(table, np.where(pools == number, often, 0), own, gpu.spec.result_bus_width)
              for number, own in enumerate(units))  # fmt: skip
    return tuple(rec.WORK_A_CYCLE / own * crowd for own, crowd in zip(units, crowds, strict=True))


def _start_delay(table: LatencyTable, banks: int, steps: int) -> Int64[np.ndarray, " instr"]:
    """Cycles from issue to the start on the unit for a lone warp, where a bank serves an operand a step and a cycle has
    so many steps (docs/timing-rules.md, rule 13)."""
    numbers = table.read_banks
    at_bank = (numbers[:, :, None] % banks == np.arange(banks)) & (numbers >= 0)[:, :, None]
    return ALLOCATE_CYCLES + START_CYCLES + (at_bank.sum(1).max(1) + READ_STEPS) // steps


def _crowding(table: LatencyTable, executed: np.ndarray, units: int, result_bus: int) -> float:
    """How much longer the units of a pool take for the launch's instructions than their initiation alone says."""
    if not executed.any():
        return 1.0
    alone = float((executed * table.initiation_cycles).sum() / executed.sum()) / units
    shares = executed // np.gcd.reduce(executed)
    words = (np.ascontiguousarray(own, np.int64).tobytes()
             for own in (table.latency_cycles, table.initiation_cycles, shares))  # fmt: skip
    return max(1.0, _chain_cycles(*words, units, result_bus) / alone)


@lru_cache(1 << 10)
def _chain_cycles(latencies: bytes, initiations: bytes, executed: bytes, units: int, result_bus: int) -> float:
    """`cycles_an_instruction`, once for all design points that it is the same for."""
    own = [np.frombuffer(words, np.int64) for words in (latencies, initiations, executed)]
    return cycles_an_instruction(own[0], own[1], own[2], units, result_bus)


def check_field(name: str, values: np.ndarray, bits: int) -> None:
    """Raises InputError for a value that does not fit into so many bits."""
    if len(values) and (int(values.max()) >= 1 << bits or int(values.min()) < 0):
        raise InputError(
            f"the occupancy model holds {name} up to {(1 << bits) - 1}, and this launch needs {values.max()}; "
            "use --model detailed"
        )
