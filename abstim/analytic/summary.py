"""Everything the analytic model needs of a launch, as a handful of small arrays of fixed shape."""

from __future__ import annotations

from bisect import bisect_right
from functools import cache, lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from abstim.analytic import lone_warp
from abstim.analytic.line_use import LineUse, line_use
from abstim.analytic.lone_warp import LATENCIES, Accessing, Kinds, Reading, walk_blocks
from abstim.analytic.reuse_distance import Launch as Accesses
from abstim.analytic.reuse_distance import distances, histograms, miss_curves, write_curve
from abstim.engine.design_point import caches_machine, streams_of
from abstim.gpu.config import Gpu
from abstim.gpu.spec import INSTRUCTION_CLASSES
from functional.jit.machine_code import compiled
from functional.launches.launch import Launch
from functional.traces.trace import Trace
from precharacterize import LatencyTable
from precharacterize.classify import Kind, latency_class

if TYPE_CHECKING:
    from jaxtyping import Float, Int64, UInt8

    from functional.programs.program import Program

SM_NODES = (2, 7, 23, 79)  # SM counts (no multiples of a usual grid width) and thread blocks an SM
RESIDENT_NODES = (1, 2, 4, 8, 16, 32)  # for which reuse distances are taken
MOST_SMS = 128  # for which the imbalance between SMs is looked at
MOST_INSTRUCTIONS = 4_000_000  # warp instructions looked at; of a longer launch the first thread blocks stand for all
MOST_WALKED = 1 << 17  # of them, that are walked; thread blocks far apart stand for the others
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
    sm_nodes: Float[np.ndarray, " sm"]  # what they were taken for: SMs,
    resident_nodes: Float[np.ndarray, " resident"]  # and thread blocks on each


class Nodes(NamedTuple):
    """SM counts, and numbers of thread blocks an SM holds, for which reuse distances are taken."""

    sms: tuple[int, ...] = SM_NODES
    residents: tuple[int, ...] = RESIDENT_NODES


EVERYWHERE = Nodes()


def nodes_near(sm_count: int, resident: int) -> Nodes:
    """Those between which a GPU lies with so many SMs, and thread blocks on each."""

    def beside(nodes: tuple[int, ...], value: int) -> tuple[int, ...]:
        k = min(max(1, bisect_right(nodes, value)), len(nodes) - 1)
        return nodes[k - 1 : k + 1]

    return Nodes(beside(SM_NODES, sm_count), beside(RESIDENT_NODES, resident))


def summarize(
    launch: Launch, table: LatencyTable, trace: Trace, registers_per_thread: int, gpu: Gpu, nodes: Nodes = EVERYWHERE
) -> Summary:
    """Look at a launch once. Of `gpu` it takes what belongs to the trace's reading: coalescing, fetch width, L1I line,
    and the latencies at which the longest paths are searched. Deterministic."""
    a_block = trace.warp_instructions.reshape(-1, trace.warps_per_block).sum(1)
    blocks = max(1, int((np.cumsum(a_block) <= MOST_INSTRUCTIONS).sum()))
    walker = _Walker(launch, table, trace, gpu)
    longest = trace.warp_instructions.reshape(-1, trace.warps_per_block).max(1)[:blocks]  # warp of each block
    spread = _spread(a_block[:blocks])
    warm = walker.walk(spread | (np.arange(blocks) == longest.argmax()), cold=False)
    cold = walker.walk(np.ones(1, np.int64), cold=True)
    use = line_use(trace.records[: len(warm.actions)], warm.actions, warm.transactions)
    l1_misses, l2_misses, write_misses = _miss_curves(trace, blocks, warm, use, nodes)
    return Summary(
        work=_work(trace, use, blocks, warm.asked, walker.by_class()),
        thread_blocks=float(len(trace.thread_blocks)),
        warps_per_block=float(trace.warps_per_block),
        registers_per_thread=float(registers_per_thread),
        shared_bytes=float(launch.shared_bytes),
        # of blocks spread evenly; the others' longest warps are longer by as much as they have more instructions
        path=warm.paths[:, spread[warm.chosen] > 0].mean(1) * (longest.mean() / longest[spread > 0].mean()),
        longest_path=warm.paths[np.arange(2), warm.longest],
        cold_path=cold.paths[:, 0],
        warm_path=warm.paths[:, 0],
        imbalance=_imbalance(a_block),
        l1_misses=l1_misses,
        l2_misses=l2_misses,
        write_misses=write_misses,
        sm_nodes=np.array(nodes.sms, float),
        resident_nodes=np.array(nodes.residents, float),
    )


def _spread(instructions: Int64[np.ndarray, " tb"]) -> Int64[np.ndarray, " tb"]:
    """1 for as many thread blocks as MOST_WALKED allows, spread evenly, the first among them."""
    count = len(instructions)
    few = max(1, min(count, count * MOST_WALKED // int(instructions.sum())))
    found = np.zeros(count, np.int64)
    found[np.arange(few) * count // few] = 1
    return found


class _Walked(NamedTuple):
    chosen: Int64[np.ndarray, " chosen"]  # thread blocks
    paths: Float[np.ndarray, "walk chosen latency"]
    longest: Int64[np.ndarray, " walk"]
    batches: Int64[np.ndarray, "batch 2"]
    actions: UInt8[np.ndarray, " record"]
    transactions: UInt8[np.ndarray, " record"]
    asked: Float[np.ndarray, " work"]  # by all warps walked, an instruction


class _Walker:
    """The arguments of `walk_blocks`, made once: two walks, with short loads and with long ones."""

    def __init__(self, launch: Launch, table: LatencyTable, trace: Trace, gpu: Gpu) -> None:
        self.trace, self.table = trace, table
        base, pipeline = base_latencies(gpu), gpu.pipeline
        machine = np.array([caches_machine(gpu, trace.warps_per_block, 1)])
        by_sector, self._fetch_line = int(gpu.spec.coalescing != "fermi"), pipeline.fetch_line_instructions
        reading = Reading(pipeline.instructions_per_fetch, pipeline.fetch_line_instructions, by_sector, machine)
        self.read, self.code = (*streams_of(trace, table), reading), _code(launch.program, table, gpu)
        missing = np.isin(LATENCIES, ("load", "store", "atomic", "fetch_miss", "const_miss"))
        self.latencies = np.stack([base, base + LONG_CYCLES * missing])

    def by_class(self) -> Float[np.ndarray, " instruction_class"]:
        """How many instructions of each class all warps execute on arithmetic units."""
        table, code = self.table, self.code
        executed = np.zeros(len(code), np.int64)
        times = np.bincount(self.trace.blocks, minlength=len(table.block_start)).tolist()
        for start, stop, count in zip(table.block_start.tolist(), table.block_stop.tolist(), times, strict=True):
            executed[start:stop] += count
        executed *= (code["kind"] < Kind.PARAM_LOAD) & (code["kind"] != Kind.FENCE)
        return np.bincount(code["latency"], executed * code["times"], len(LATENCIES))[: len(INSTRUCTION_CLASSES)]

    def walk(self, chosen: Int64[np.ndarray, " tb"], cold: bool) -> _Walked:
        """The first thread blocks, of which those chosen are walked."""
        trace, table, warps = self.trace, self.table, self.trace.warps_per_block
        own = trace.warp_instructions[: len(chosen) * warps]
        most, room = int(own.max()) + 1, int(trace.record_offsets[len(own)])
        actions, transactions = np.zeros((2, room), np.uint8)
        walked, walks = np.flatnonzero(chosen), len(self.latencies)
        count, kind = len(walked) * warps, np.zeros((len(walked), warps), np.int64)
        kinds = Kinds(
            np.empty(count, np.uint64), np.zeros(1 << (2 * count).bit_length(), np.int64), np.empty((count, walks)),
            np.empty((count, walks, len(LATENCIES))), np.empty((count, 3)), np.empty((count, 2), np.int64),
            np.empty((room + 1, 2), np.int64),
        )  # fmt: skip
        lines = np.zeros(int(table.pcs.max(initial=0)) // self._fetch_line + 1, np.int8)
        registers, constants = np.zeros(table.register_count, np.int64), np.zeros(most, np.int64)
        walk_blocks(
            self.code, _accessing(table), table.waits, table.writes, self.read, chosen, warps, self.latencies, cold,
            (actions, transactions), kinds, kind.ravel(), (np.zeros(most, lone_warp.NODE), registers, lines, constants),
        )  # fmt: skip
        ends = kinds.ends[kind]
        best = ends.argmax(1)
        longest = np.take_along_axis(kind, best, 1)  # the kind of each block's longest warp, by walk
        asked = kinds.work[kind.ravel()].sum(0) / own.reshape(-1, warps)[walked].sum()
        batches = _batches(kinds, longest[:, -1], trace.record_offsets[walked * warps + best[:, -1]])
        paths = kinds.paths[longest.T, np.arange(walks)[:, None]]
        return _Walked(walked, paths, ends.max(1).argmax(0), batches, actions, transactions, asked)


def _batches(
    kinds: Kinds, chosen: Int64[np.ndarray, " warp"], first: Int64[np.ndarray, " warp"]
) -> Int64[np.ndarray, "batch 2"]:
    """Those of warps of some kinds, as ranges of line records, of which the warps' first are given."""
    begin, stop = kinds.batches[chosen].T
    counts = stop - begin
    places = np.arange(counts.sum()) + np.repeat(begin - np.cumsum(counts) + counts, counts)
    return kinds.ranges[places] + np.repeat(first, counts)[:, None]


@lru_cache(64)
def _accessing(table: LatencyTable) -> Accessing:
    """The memory instructions of each basic block."""
    memory = [np.flatnonzero(table.kind[a:b] >= Kind.PARAM_LOAD) + a
              for a, b in zip(table.block_start.tolist(), table.block_stop.tolist(), strict=True)]  # fmt: skip
    return Accessing(np.cumsum([0, *map(len, memory)]), np.concatenate(memory).astype(np.int64))


def base_latencies(gpu: Gpu) -> Float[np.ndarray, " latency"]:
    """Of a GPU whose first-level caches always hit, in the order of LATENCIES."""
    params, const = gpu.params, gpu.params.const_latency_cycles
    beyond = {
        "shared": params.shared_latency_cycles, "const": const, "load": params.l1d_latency_cycles,
        "store": params.l1d_latency_cycles, "atomic": params.atomic_latency_cycles, "const_miss": const, "one": 1,
    }  # fmt: skip
    own = {name: gpu.pipeline.operation(name).latency_cycles for name in INSTRUCTION_CLASSES}
    return np.array([(own | beyond).get(name, 0) for name in LATENCIES], float)


def _code(program: Program, table: LatencyTable, gpu: Gpu) -> np.ndarray:
    latency, code = base_latencies(gpu), np.zeros(len(table.unit), lone_warp.CODE)
    pairs = zip(program.instructions, table.kind.tolist(), strict=True)
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


def _work(trace: Trace, use: LineUse, blocks: int, asked: np.ndarray, by_class: np.ndarray) -> Work:
    """`asked`: by a mean instruction; `use`: of the first `blocks`, which stand for all."""
    count, instructions = len(trace.thread_blocks), float(trace.warp_instructions.sum())
    fetches, accesses, cycles = (asked * instructions).tolist()
    alike = ("lookups", "lines", "load_sectors", "stores", "store_lines", "store_sectors", "atomics")
    return Work(
        instructions=instructions,
        by_class=by_class,
        fetches=fetches,
        accesses=accesses,
        access_cycles=cycles,
        line_sectors=use.sums["line_sectors"] / max(1, use.sums["loaded"]),
        hottest_atomics=use.sums["hottest"] * count / blocks,
        **{name: use.sums[name] * count / blocks for name in alike},
    )


def _imbalance(instructions: Int64[np.ndarray, " tb"]) -> Float[np.ndarray, " sm_count"]:
    """With thread blocks dealt out in turn, as they are as long as every SM has room."""
    if instructions.min() == instructions.max():
        return np.ones(MOST_SMS)
    busiest, dealt = np.zeros((2, MOST_SMS), np.int64)
    busiest_sms(instructions, dealt, busiest)
    return busiest / (-(-len(instructions) // np.arange(1, MOST_SMS + 1)) * instructions.mean())


@compiled
def busiest_sms(instructions, dealt, busiest):
    """Instructions of the busiest of 1, 2, ... SMs; `dealt` is scratch."""
    for n in range(len(busiest)):
        dealt[: n + 1] = 0
        sm = most = 0
        for block in range(len(instructions)):
            dealt[sm] += instructions[block]
            most = max(most, dealt[sm])
            sm = sm + 1 if sm < n else 0
        busiest[n] = most


def _miss_curves(
    trace: Trace, blocks: int, walked: _Walked, use: LineUse, nodes: Nodes
) -> list[Float[np.ndarray, ...]]:
    """`Summary.l1_misses`, `l2_misses` and `write_misses`."""
    warps = trace.warps_per_block
    first_record = trace.record_offsets[: blocks * warps + 1]
    launch = Accesses(trace.records[: first_record[-1]], walked.actions, use.ids, first_record)

    @cache
    def curves(sm_count: int, resident: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        found = distances(launch, use.lines, warps, sm_count, resident)
        counts = histograms(found, launch, walked.batches)
        first, both = zip(*(miss_curves(pairs) for pairs in counts[:2]), strict=True)
        return np.array(first), np.array(both), write_curve(counts.writes)

    most = max(1, min(64 // warps, -(-blocks // SM_NODES[0])))
    # An SM without a thread block changes nothing, nor does room on an SM for more than it gets
    busy = {s: min(s, blocks) for s in nodes.sms}
    found = [[curves(busy[s], min(b, most, -(-blocks // busy[s]))) for b in nodes.residents] for s in nodes.sms]
    l1, l2, write = (np.array([[own[k] for own in row] for row in found], np.float32) for k in range(3))
    return [np.moveaxis(l1, 2, 0), np.moveaxis(l2, 2, 0), write]
