"""Everything the analytic model needs of a launch, as a handful of small arrays of fixed shape."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container
from functools import cache
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from abstim.analytic import lone_warp
from abstim.analytic.lone_warp import LATENCIES, Reading, walk_blocks
from abstim.analytic.reuse_distance import distances, histogram, largest_in, miss_curves, write_curve
from abstim.engine.accesses import fermi_segment
from abstim.engine.design_point import machine_of, streams_of
from abstim.engine.rules import SECTORS
from abstim.gpu.config import Gpu
from abstim.gpu.spec import INSTRUCTION_CLASSES
from functional.launches.launch import Launch
from functional.traces.line_record import line_of, sectors_of
from functional.traces.trace import Trace
from precharacterize import LatencyTable
from precharacterize.classify import Kind, latency_class

if TYPE_CHECKING:
    from jaxtyping import Float, Int64

SM_NODES = (2, 7, 23, 79)  # SM counts (no multiples of a usual grid width) and thread blocks an SM
RESIDENT_NODES = (1, 2, 4, 8, 16, 32)  # for which reuse distances are taken
MOST_SMS = 128  # for which the imbalance between SMs is looked at
MOST_INSTRUCTIONS = 4_000_000  # warp instructions looked at; of a longer launch the first thread blocks stand for all
LONG_CYCLES = 400.0  # of a load and a miss in the second of the two walks


class Work(NamedTuple):
    """What a launch asks of the units, all thread blocks together."""

    instructions: float  # warp instructions
    by_class: Float[np.ndarray, " instruction_class"]  # of them, those on arithmetic units
    fetches: float
    accesses: float  # instructions on the load/store unit
    access_cycles: float  # it is busy
    lookups: float  # transactions that look up L1D
    lines: float  # the same, an instruction's transactions on one line counted once
    load_sectors: float  # that those use
    line_sectors: float  # of a line, that any uses
    stores: float  # transactions
    store_lines: float
    store_sectors: float
    atomics: float
    hottest_atomics: float  # on one line


class Summary(NamedTuple):
    """One launch. Paths are counts of LATENCIES: rows are those longest with short and with long loads."""

    work: Work
    thread_blocks: float
    warps_per_block: float
    registers_per_thread: float
    shared_bytes: float
    path: Float[np.ndarray, "walk latency"]  # of a thread block's longest warp, mean over blocks
    longest_path: Float[np.ndarray, "walk latency"]  # of the longest thread block
    cold_path: Float[np.ndarray, "walk latency"]  # of the first thread block, first use of a line a miss
    warm_path: Float[np.ndarray, "walk latency"]  # the same without
    imbalance: Float[np.ndarray, " sm_count"]  # instructions of the busiest of 1, 2, ... SMs over those of mean blocks
    # Miss ratios: of L1D, and of L1D and L2 both; first of line accesses, then of critical batches of loads
    l1_misses: Float[np.ndarray, "who sm resident ways size"]
    l2_misses: Float[np.ndarray, "who sm resident l1_size ways size"]
    write_misses: Float[np.ndarray, "sm resident ways size"]  # of L2, of written sectors


Nodes = Container[tuple[int, int]]  # of SM_NODES and RESIDENT_NODES, pairs


def nodes_near(sm_count: int, resident: int) -> set[tuple[int, int]]:
    """Nodes between which a GPU lies with so many SMs, and thread blocks on each."""

    def beside(nodes: tuple[int, ...], value: int) -> tuple[int, ...]:
        k = min(max(1, bisect_right(nodes, value)), len(nodes) - 1)
        return nodes[k - 1 : k + 1]

    return set(product(beside(SM_NODES, sm_count), beside(RESIDENT_NODES, resident)))


def summarize(
    launch: Launch, table: LatencyTable, trace: Trace, registers_per_thread: int, gpu: Gpu, nodes: Nodes | None = None
) -> Summary:
    """Look at a launch once. Of `gpu` it takes what belongs to the trace's reading: coalescing, fetch width, L1I line,
    and the latencies at which the longest paths are searched. Reuse distances are those of `nodes` (None: of all);
    others have that of one of them in their place. Deterministic."""
    a_block = trace.warp_instructions.reshape(-1, trace.warps_per_block).sum(1)
    blocks = max(1, int((np.cumsum(a_block) <= MOST_INSTRUCTIONS).sum()))
    scale = len(trace.thread_blocks) / blocks
    walker = _Walker(launch, table, trace, gpu)
    short, long = walker.latencies(0.0), walker.latencies(LONG_CYCLES)
    near, far = walker.walk(0, blocks, short, cold=False), walker.walk(0, blocks, long, cold=False)
    l1_misses, l2_misses, write_misses = _miss_curves(trace, blocks, far, nodes)
    longest = [w.paths[w.longest] for w in (near, far)]
    first = [[walker.walk(0, 1, lat, cold).paths[0] for lat in (short, long)] for cold in (True, False)]
    return Summary(
        work=_work(trace, far, scale),
        thread_blocks=float(len(trace.thread_blocks)),
        warps_per_block=float(trace.warps_per_block),
        registers_per_thread=float(registers_per_thread),
        shared_bytes=float(launch.shared_bytes),
        path=np.stack([w.paths.mean(0) for w in (near, far)]),
        longest_path=np.stack(longest),
        cold_path=np.stack(first[0]),
        warm_path=np.stack(first[1]),
        imbalance=_imbalance(trace),
        l1_misses=l1_misses,
        l2_misses=l2_misses,
        write_misses=write_misses,
    )


class _Walked(NamedTuple):
    paths: np.ndarray
    longest: int
    batches: np.ndarray
    actions: np.ndarray
    transactions: np.ndarray
    by_class: np.ndarray
    totals: np.ndarray


class _Walker:
    """The arguments of `walk_blocks`, made once."""

    def __init__(self, launch: Launch, table: LatencyTable, trace: Trace, gpu: Gpu) -> None:
        self.trace, self.table, self.gpu = trace, table, gpu
        self.base = base_latencies(gpu)
        pipeline = gpu.pipeline
        machine = np.array([machine_of(gpu, trace.warps_per_block, 1, table)])
        by_sector = int(gpu.spec.coalescing != "fermi")
        reading = Reading(pipeline.instructions_per_fetch, pipeline.fetch_line_instructions, by_sector, machine)
        self.read = (*streams_of(trace, table), reading)
        self.code = _code(launch, table, self.base, gpu)

    def latencies(self, beyond_cycles: float) -> np.ndarray:
        """Those of the GPU, what misses that many cycles longer."""
        missing = ("load", "store", "atomic", "fetch_miss", "const_miss")
        return self.base + beyond_cycles * np.isin(LATENCIES, missing)

    def walk(self, first: int, stop: int, latency: np.ndarray, cold: bool) -> _Walked:
        trace, table = self.trace, self.table
        warps = trace.warps_per_block
        own = slice(first * warps, stop * warps)
        most = int(trace.warp_instructions[own].max())
        records = np.zeros((2, len(trace.records)), np.uint8)
        paths = np.zeros((stop - first, len(LATENCIES)))
        room = int(trace.record_offsets[stop * warps] - trace.record_offsets[first * warps]) + 1
        batches = np.zeros((room, 2), np.int64)
        by_class, totals = np.zeros(len(INSTRUCTION_CLASSES)), np.zeros(3)
        nodes, result = np.zeros((2, most + 1), lone_warp.NODE), np.zeros(2, np.int64)
        writer, constants = np.zeros(table.register_count, np.int64), np.zeros(most + 1, np.int64)
        lines = np.zeros(int(table.pcs.max(initial=0)) // self.gpu.pipeline.fetch_line_instructions + 1, np.int8)
        walk_blocks(
            self.code, table.waits, table.writes, self.read, first, stop, warps, latency, cold, tuple(records),
            paths, batches, (by_class, totals), (nodes, writer, lines, constants), result,
        )  # fmt: skip
        longest, found = result.tolist()
        return _Walked(paths, longest - first, batches[:found], records[0], records[1], by_class, totals)


def base_latencies(gpu: Gpu) -> Float[np.ndarray, " latency"]:
    """Of a GPU whose first-level caches always hit, in the order of LATENCIES."""
    params, const = gpu.params, gpu.params.const_latency_cycles
    beyond = {
        "shared": params.shared_latency_cycles, "const": const, "load": params.l1d_latency_cycles,
        "store": params.l1d_latency_cycles, "atomic": params.atomic_latency_cycles, "const_miss": const, "one": 1,
    }  # fmt: skip
    own = {name: gpu.pipeline.operation(name).latency_cycles for name in INSTRUCTION_CLASSES}
    return np.array([(own | beyond).get(name, 0) for name in LATENCIES], float)


def _code(launch: Launch, table: LatencyTable, latency: np.ndarray, gpu: Gpu) -> np.ndarray:
    code = np.zeros(len(table.unit), lone_warp.CODE)
    kinds = table.kind.tolist()
    pairs = zip(launch.program.instructions, kinds, strict=True)
    code["latency"] = [_latency_of(latency_class(instruction), kind) for instruction, kind in pairs]
    code["fixed"] = table.result_cycles - latency[code["latency"]]
    code["kind"], code["pc"], code["bytes"] = table.kind, table.pcs, table.access_bytes
    held = np.zeros(len(LATENCIES))
    held[: len(INSTRUCTION_CLASSES)] = [gpu.pipeline.operation(n).initiation_cycles for n in INSTRUCTION_CLASSES]
    held = held[code["latency"]]
    code["times"] = np.where(held > 0, table.initiation_cycles // np.maximum(held, 1), 1).clip(1)
    return code


def _latency_of(name: str, kind: int) -> int:
    """Position in LATENCIES of an instruction whose accesses all hit."""
    if kind >= Kind.GLOBAL_LOAD:
        return lone_warp.LOAD
    if kind >= Kind.SHARED_LOAD:
        return lone_warp.SHARED
    if kind >= Kind.PARAM_LOAD:
        return lone_warp.CONST
    return INSTRUCTION_CLASSES.index(name if name in INSTRUCTION_CLASSES else "other")


def _work(trace: Trace, walked: _Walked, scale: float) -> Work:
    actions, transactions = walked.actions, walked.transactions.astype(np.int64)
    store_sectors = _segment_sectors(trace.records[actions == lone_warp.WRITE]).sum()
    fetches, accesses, cycles = walked.totals * scale
    hottest = np.unique(line_of(trace.records[actions == lone_warp.UPDATE]), return_counts=True)[1].max(initial=0)
    return Work(
        instructions=float(trace.warp_instructions.sum()),
        by_class=walked.by_class * scale,
        fetches=fetches,
        accesses=accesses,
        access_cycles=cycles,
        lookups=transactions[actions == lone_warp.LOOK_UP].sum() * scale,
        lines=(actions == lone_warp.LOOK_UP).sum() * scale,
        load_sectors=np.bitwise_count(sectors_of(trace.records[actions == lone_warp.LOOK_UP])).sum() * scale,
        line_sectors=_line_sectors(trace.records[actions == lone_warp.LOOK_UP]),
        stores=transactions[actions == lone_warp.WRITE].sum() * scale,
        store_lines=(actions == lone_warp.WRITE).sum() * scale,
        store_sectors=store_sectors * scale,
        atomics=transactions[actions == lone_warp.UPDATE].sum() * scale,
        hottest_atomics=int(hottest) * scale,
    )


def _line_sectors(records: np.ndarray) -> float:
    """Sectors of each line, in the mean, that any of some records names."""
    lines, sectors = line_of(records), sectors_of(records)
    used = sum(len(np.unique(lines[(sectors >> k) & 1 > 0])) for k in range(SECTORS))
    return used / max(1, len(np.unique(lines)))


def _imbalance(trace: Trace) -> Float[np.ndarray, " sm_count"]:
    """With thread blocks dealt out in turn, as they are as long as every SM has room."""
    a_block = trace.warp_instructions.reshape(-1, trace.warps_per_block).sum(1)
    numbers = np.arange(len(a_block))
    busiest = [np.bincount(numbers % count, a_block).max() for count in range(1, MOST_SMS + 1)]
    share = np.ceil(len(a_block) / np.arange(1, MOST_SMS + 1)) * a_block.mean()
    return np.array(busiest) / share


def _segment_sectors(records: np.ndarray) -> Int64[np.ndarray, " record"]:
    """Sectors of the segments that records of stores send on."""
    return np.bitwise_count(fermi_segment(sectors_of(records))).astype(np.int64)


def _miss_curves(trace: Trace, blocks: int, walked: _Walked, nodes: Nodes | None) -> list[np.ndarray]:
    """`Summary.l1_misses`, `l2_misses` and `write_misses`."""
    stop = trace.record_offsets[blocks * trace.warps_per_block]
    records, actions = trace.records[:stop], walked.actions[:stop]
    first_record = trace.record_offsets[: blocks * trace.warps_per_block + 1]
    used, written = actions != lone_warp.NOTHING, actions == lone_warp.WRITE
    ids = np.zeros(len(records), np.int64)
    lines, ids[used] = np.unique(line_of(records[used]), return_inverse=True)
    sectors = _segment_sectors(records[written])

    @cache
    def curves(sm_count: int, resident: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        l1, l1_wait, l2, l2_wait = distances(
            records, actions, first_record, ids, len(lines) + 1, trace.warps_per_block, sm_count, resident
        )
        waits = (largest_in(l1_wait, walked.batches), largest_in(l2_wait, walked.batches))
        first, both = zip(*(miss_curves(histogram(*pair)) for pair in ((l1, l2), waits)), strict=True)
        return np.array(first), np.array(both), write_curve(np.repeat(l2[written], sectors))

    most = max(1, min(64 // trace.warps_per_block, -(-blocks // SM_NODES[0])))
    # An SM without a thread block changes nothing, nor does room on an SM for more than it gets
    busy = {s: min(s, blocks) for s in SM_NODES}
    found = {
        (s, b): curves(busy[s], min(b, most, -(-blocks // busy[s])))
        for s, b in product(SM_NODES, RESIDENT_NODES)
        if nodes is None or (s, b) in nodes
    }
    some = next(iter(found.values()))
    l1, l2, write = (
        np.array([[found.get((s, b), some)[k] for b in RESIDENT_NODES] for s in SM_NODES]) for k in range(3)
    )
    return [np.moveaxis(l1, 2, 0), np.moveaxis(l2, 2, 0), write]
