"""Everything the analytic model needs of a launch, in one record, by one compiled look at its trace."""

from __future__ import annotations

from bisect import bisect_right
from collections import namedtuple
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from abstim.analytic import lone_warp
from abstim.analytic.lone_warp import CLASSES, LATENCIES, LOOK_UP, NOTHING, WRITE, Kinds, Reading, Records, TimedCode
from abstim.analytic.lone_warp import Walking, number_of, read_warp, walk_kind
from abstim.analytic.reuse_distance import DISTANCE_BINS, ROWS, SPREAD, fill_table, reuse_of, use_caches
from abstim.engine.accesses import fermi, line_of, mixed, more_follow, sectors_in, sectors_of
from abstim.engine.design_point import caches_machine, streams_of
from abstim.gpu.config import Gpu
from abstim.gpu.spec import INSTRUCTION_CLASSES
from functional.jit.machine_code import compiled
from functional.jit.marked import jit
from functional.launches.launch import Launch
from functional.traces.trace import Trace
from precharacterize import LatencyTable
from precharacterize.classify import Kind, latency_class

if TYPE_CHECKING:
    from jaxtyping import Float, Int32, Int64, UInt8, UInt32

    from functional.programs.program import Program

SM_NODES = (2, 7, 23, 79)  # SM counts (no multiples of a usual grid width) and thread blocks an SM
RESIDENT_NODES = (1, 2, 4, 8, 16, 32)  # for which reuse distances are taken
MOST_SMS = 128  # for which the imbalance between SMs is looked at
MOST_INSTRUCTIONS = 4_000_000  # warp instructions looked at; of a longer launch the first thread blocks stand for all
MOST_WALKED = 1 << 17  # of them, that are walked; thread blocks far apart stand for the others
MOST_COUNTED = 1 << 12  # lines whose use is looked at, some of a launch's: those stand for all (Waldspurger, FAST 2015)
MOST_MEASURED = 1 << 17  # uses of lines whose distances in L1D are asked for, those of some SMs
MOST_WAITED = 1 << 17  # line records of batches of loads
LONG_CYCLES = 400.0  # of a load and a miss in the second of the two walks
WALKS = 2

# What a launch asks of the units, all thread blocks together
WORK = (
    "instructions",  # warp instructions
    "results",  # of them, those on arithmetic units
    "fetches", "accesses",  # instructions on the load/store unit
    "access_cycles",  # it is busy
    "lookups",  # transactions that look up L1D
    "lines",  # the same, an instruction's transactions on one line counted once
    "load_sectors",  # that those use
    "line_sectors",  # of a line, that any uses
    "stores",  # transactions
    "store_lines", "store_sectors", "atomics", "hottest_atomics",  # on one line
)  # fmt: skip
_SHAPE = "thread_blocks", "warps_per_block", "registers_per_thread", "shared_bytes"
# Paths are counts of LATENCIES, the longest with short and with long loads: of a thread block's longest warp, mean over
# blocks; of the longest block; of the first, first use of a line a miss; the same without
_PATHS = "path", "longest_path", "cold_path", "warm_path"
SUMMARY = np.dtype([
    *((name, "f8") for name in (*WORK, *_SHAPE)),
    ("by_class", "f8", CLASSES),  # instructions on arithmetic units
    *((name, "f8", (WALKS, len(LATENCIES))) for name in _PATHS),
    ("imbalance", "f8", MOST_SMS),  # instructions of the busiest of 1, 2, ... SMs over those of mean blocks
    ("sm_nodes", "f8", len(SM_NODES)), ("resident_nodes", "f8", len(RESIDENT_NODES)),  # what `misses` are taken for
    ("misses", "f4", (len(SM_NODES), len(RESIDENT_NODES), ROWS, DISTANCE_BINS)),  # tables of reuse_distance.fill_table
])  # fmt: skip
Summary = namedtuple("Summary", SUMMARY.names)  # the same as arrays, for JAX


def as_arrays(summary: np.ndarray) -> Summary:
    """One SUMMARY as JAX takes it."""
    return Summary(*(np.asarray(summary[name]) for name in SUMMARY.names))


class Nodes(NamedTuple):
    """SM counts, and numbers of thread blocks an SM holds, for which reuse distances are taken; from which SM count on,
    and up to which, the imbalance is looked at."""

    sms: tuple[int, ...] = SM_NODES
    residents: tuple[int, ...] = RESIDENT_NODES
    dealt: tuple[int, int] = (1, MOST_SMS)


EVERYWHERE = Nodes()


def nodes_near(sm_count: int, resident: int) -> Nodes:
    """Those between which a GPU lies with so many SMs, and thread blocks on each."""

    def beside(nodes: tuple[int, ...], value: int) -> tuple[int, ...]:
        k = min(max(1, bisect_right(nodes, value)), len(nodes) - 1)
        return nodes[k - 1 : k + 1]

    first = min(sm_count, MOST_SMS - 1)
    return Nodes(beside(SM_NODES, sm_count), beside(RESIDENT_NODES, resident), (first, first + 1))


class Looked(NamedTuple):
    """A launch as it is looked at: instructions of its warps, and warps of a thread block; for which `sms`, `residents`
    and SM counts `dealt`, see Nodes. The others are scratch: instructions of each thread block; whether it is walked (1:
    one of those spread evenly, 2: the one with the longest warp); kinds of the warps walked; how often each basic block
    is executed; instructions of SMs; batches of loads."""

    warp_instructions: Int64[np.ndarray, " warp"]
    sms: Int64[np.ndarray, " sm"]
    residents: Int64[np.ndarray, " resident"]
    dealt: Int64[np.ndarray, " 2"]
    instructions: Int64[np.ndarray, " tb"]
    chosen: UInt8[np.ndarray, " tb"]
    kind_of_warp: Int64[np.ndarray, " warp"]
    executed: Int64[np.ndarray, " block"]
    of_sms: Int64[np.ndarray, " sm"]
    batches: Int64[np.ndarray, "batch 2"]
    warps: int


class Lines(NamedTuple):
    """Scratch: numbers of the lines of records, by a hash map; sectors of each that loads touch, atomics on it, and its
    number, + 1, among those whose uses are looked at (0: none); how many uses are before each record."""

    ids: Int32[np.ndarray, " record"]
    before: Int32[np.ndarray, " record_plus_1"]
    table: Int32[np.ndarray, " place"]
    keys: UInt32[np.ndarray, " line"]
    touched: UInt8[np.ndarray, " line"]
    updates: Int32[np.ndarray, " line"]
    looked_at: Int32[np.ndarray, " line"]


class Walk(NamedTuple):
    """What walks find, and their scratch."""

    done: Records
    kinds: Kinds
    walking: Walking


@jit
def choose(looked):
    """Choose thread blocks to be walked; returns (how many are looked at, instructions of the longest warp of a mean
    one of those over that of the ones spread evenly)."""
    warps, total, blocks, most = looked.warps, 0, 0, 0
    for b in range(len(looked.instructions)):
        for w in range(b * warps, (b + 1) * warps):
            looked.instructions[b] += looked.warp_instructions[w]
        if total + looked.instructions[b] <= MOST_INSTRUCTIONS or b == 0:
            total, blocks = total + looked.instructions[b], b + 1
    few = max(1, min(blocks, blocks * MOST_WALKED // max(1, total)))
    for k in range(few):
        looked.chosen[k * blocks // few] = 1
    every = spread = longest = 0
    for b in range(blocks):
        own = 0
        for w in range(b * warps, (b + 1) * warps):
            own = max(own, looked.warp_instructions[w])
        every += own
        spread += own if looked.chosen[b] else 0
        if own > most:
            most, longest = own, b
    looked.chosen[longest] |= 2
    return blocks, every / blocks / (spread / few)


@jit
def add_lines(records, first, stop, done, lines, count, out):
    """Number the lines of records, and add up what those ask for; returns how many lines there are now."""
    for r in range(first, stop):
        action = done.actions[r]
        if action != NOTHING:
            line, sectors = line_of(records[r]), sectors_of(records[r])
            k = number_of(lines.table, lines.keys, line, mixed(np.uint64(0), line), count)
            count = max(count, k + 1)
            lines.ids[r] = k
            if action == LOOK_UP:
                out.lookups += done.transactions[r]
                out.lines += 1
                out.load_sectors += sectors_in(sectors)
                lines.touched[k] |= sectors
            elif action == WRITE:
                out.stores += done.transactions[r]
                out.store_lines += 1
                out.store_sectors += sectors_in(fermi(sectors))
            else:
                out.atomics += done.transactions[r]
                lines.updates[k] += 1
    return count


@jit
def walk_first(code, streams, offsets, reading, warps, walk, out):
    """The first thread block where nothing is in caches: its longest warp's paths."""
    kinds, before = walk.kinds, 0
    for w in range(warps):
        walk_kind(code, streams, offsets, reading, w, True, kinds, w, before, walk.walking, walk.done)
        before = kinds.batches[w, 1]
    for k in range(WALKS):
        best = 0
        for w in range(1, warps):
            best = w if kinds.ends[w, k] > kinds.ends[best, k] else best
        add_path(out.cold_path[k], kinds.paths[best, k], 1.0)


@jit
def walk_chosen(code, streams, offsets, reading, looked, blocks, lines, walk, out):
    """Read the records of the first thread blocks, and walk the warps of those chosen, each alone; returns how many
    lines there are."""
    count = number = begin = line_count = 0
    for block in range(blocks):
        for w in range(block * looked.warps, (block + 1) * looked.warps):
            digest = read_warp(code, streams, offsets, reading, w, walk.walking, walk.done)
            line_count = add_lines(
                streams.records, offsets.records[w], offsets.records[w + 1], walk.done, lines, line_count, out
            )
            if looked.chosen[block]:
                kind = number_of(walk.kinds.places, walk.kinds.digests, digest, digest, count)
                if kind == count:
                    walk_kind(
                        code, streams, offsets, reading, w, False, walk.kinds, kind, begin, walk.walking, walk.done
                    )
                    begin, count = walk.kinds.batches[kind, 1], count + 1
                looked.kind_of_warp[number] = kind
                number += 1
    return line_count


@jit
def longest_of(looked, kinds, first, walk):
    """Of a thread block's warps the first that takes longest."""
    best = first
    for n in range(first + 1, first + looked.warps):
        if kinds.ends[looked.kind_of_warp[n], walk] > kinds.ends[looked.kind_of_warp[best], walk]:
            best = n
    return best


@jit
def add_paths(looked, blocks, share, walk, kinds, out):
    """Paths of the thread blocks that were walked; `share`: by how much those of others are longer."""
    first = spread = 0
    longest = -1.0
    out.path[walk][:] = 0
    for block in range(blocks):
        if looked.chosen[block]:
            kind = looked.kind_of_warp[longest_of(looked, kinds, first, walk)]
            if block == 0:
                add_path(out.warm_path[walk], kinds.paths[kind, walk], 1.0)
            if looked.chosen[block] & 1:
                add_path(out.path[walk], kinds.paths[kind, walk], share)
                spread += 1
            if kinds.ends[kind, walk] > longest:
                longest = kinds.ends[kind, walk]
                out.longest_path[walk][:] = 0
                add_path(out.longest_path[walk], kinds.paths[kind, walk], 1.0)
            first += looked.warps
    for k in range(len(LATENCIES)):
        out.path[walk, k] /= spread


@jit
def add_path(to, path, times):
    """Add a path, so many times, to another."""
    for k in range(len(LATENCIES)):
        to[k] += path[k] * times


@jit
def add_work(looked, blocks, kinds, out):
    """What the warps walked ask of the units that all instructions share, as much for all others."""
    number = instructions = 0
    for block in range(blocks):
        if looked.chosen[block]:
            for w in range(block * looked.warps, (block + 1) * looked.warps):
                work = kinds.work[looked.kind_of_warp[number]]
                out.fetches += work[0]
                out.accesses += work[1]
                out.access_cycles += work[2]
                instructions += looked.warp_instructions[w]
                number += 1
    out.instructions = 0
    for block in range(len(looked.instructions)):
        out.instructions += looked.instructions[block]
    times = out.instructions / max(1, instructions)
    out.fetches *= times
    out.accesses *= times
    out.access_cycles *= times


@jit
def collect_batches(looked, blocks, offsets, kinds, step):
    """Every `step`-th batch of loads of the longest warps, as ranges of line records; returns (how many were collected,
    how many line records all have)."""
    first = count = kept = records = 0
    for block in range(blocks):
        if looked.chosen[block]:
            n = longest_of(looked, kinds, first, WALKS - 1)
            kind, start = looked.kind_of_warp[n], offsets.records[block * looked.warps + n - first]
            for k in range(kinds.batches[kind, 0], kinds.batches[kind, 1]):
                if count % step == 0 and kept < len(looked.batches):
                    looked.batches[kept, 0] = start + kinds.ranges[k, 0]
                    looked.batches[kept, 1] = start + kinds.ranges[k, 1]
                    kept += 1
                records += kinds.ranges[k, 1] - kinds.ranges[k, 0]
                count += 1
            first += looked.warps
    return kept, records


@jit
def look_at(lines, count, scale, looked, batches, done, uses):
    """Choose the lines whose uses are looked at: one of every `scale`, and those of `batches`; returns how many."""
    found = 0
    for k in range(count):
        if ((k * SPREAD) >> 20) % scale == 0:
            uses.counted[found] = 1
            found += 1
            lines.looked_at[k] = found
    for b in range(batches):
        for r in range(looked.batches[b, 0], looked.batches[b, 1]):
            k = lines.ids[r]
            if done.actions[r] != NOTHING and not lines.looked_at[k]:
                uses.counted[found] = 0
                found += 1
                lines.looked_at[k] = found
    return found


@jit
def collect_uses(records, offsets, looked, lines, done, uses):
    """The uses of the lines that are looked at, by warps; returns how many."""
    count, blocks = 0, uses.sizes[0].blocks
    for block in range(blocks):
        uses.lengths[block] = 1
        for w in range(block * looked.warps, (block + 1) * looked.warps):
            turn = asks = 0
            uses.first[w] = count
            for r in range(offsets.records[w], offsets.records[w + 1]):
                lines.before[r] = count
                if done.actions[r] != NOTHING:
                    asks = 1
                    if lines.looked_at[lines.ids[r]]:
                        uses.lines[count], uses.actions[count] = lines.looked_at[lines.ids[r]] - 1, done.actions[r]
                        uses.turns[count], uses.sectors[count] = turn, sectors_of(records[r])
                        count += 1
                if not more_follow(records[r]):
                    turn, asks = turn + asks, 0
            uses.lengths[block] = max(uses.lengths[block], turn)
    uses.first[blocks * looked.warps] = count
    lines.before[offsets.records[blocks * looked.warps]] = count
    return count


@jit
def fill_tables(looked, batches, reuse, out):
    """Tables of misses at all nodes. An SM without a thread block changes nothing, nor does room on an SM for more than
    it gets."""
    size = reuse.uses.sizes[0]
    blocks = size.blocks
    most = max(1, min(64 // looked.warps, (blocks + SM_NODES[0] - 1) // SM_NODES[0]))
    for s in range(len(looked.sms)):
        busy, held = min(looked.sms[s], blocks), 0
        for k in range(len(looked.residents)):
            before, held = held, min(looked.residents[k], min(most, (blocks + busy - 1) // busy))
            if held == before:
                copy_table(out.misses[s, k - 1], out.misses[s, k])
            elif s and busy == min(looked.sms[s - 1], blocks):
                copy_table(out.misses[s - 1, k], out.misses[s, k])
            else:
                measured = min(busy, max(1, busy * MOST_MEASURED // max(1, size.uses)))
                use_caches(reuse.uses, busy, held, measured, reuse.order, reuse.level, reuse.found)
                fill_table(reuse.uses, looked.batches[:batches], reuse.found, reuse.counts, out.misses[s, k])


@jit
def copy_table(table, to):
    """Of misses."""
    for row in range(ROWS):
        for k in range(DISTANCE_BINS):
            to[row, k] = table[row, k]


@jit
def deal(looked, out):
    """Instructions of the busiest SM over those of mean thread blocks, dealt out in turn, as they are as long as every
    SM has room."""
    total, count = 0, len(looked.instructions)
    for block in range(count):
        total += looked.instructions[block]
    for n in range(looked.dealt[0], looked.dealt[1] + 1):
        looked.of_sms[:n] = 0
        sm = most = 0
        for block in range(count):
            looked.of_sms[sm] += looked.instructions[block]
            most = max(most, looked.of_sms[sm])
            sm = sm + 1 if sm < n - 1 else 0
        out.imbalance[n - 1] = most / ((count + n - 1) // n * (total / count))


@jit
def count_classes(code, streams, looked, out):
    """Instructions on arithmetic units, of all warps, by class."""
    for event in range(len(streams.blocks)):
        looked.executed[streams.blocks[event]] += 1
    for block in range(len(looked.executed)):
        for i in range(streams.block_start[block], streams.block_stop[block]):
            row = code.rows[i]
            if row.kind < Kind.PARAM_LOAD and row.kind != Kind.FENCE and row.latency < CLASSES:
                out.by_class[row.latency] += looked.executed[block] * row.times
    for k in range(CLASSES):
        out.results += out.by_class[k]


@compiled
def look(code, streams, offsets, reading, looked, lines, walk, reuse, out):
    """Fill in a SUMMARY of a launch, but for its shape and nodes, of arrays that are 0."""
    blocks, share = choose(looked)
    count_classes(code, streams, looked, out)
    deal(looked, out)
    walk_first(code, streams, offsets, reading, looked.warps, walk, out)
    count = walk_chosen(code, streams, offsets, reading, looked, blocks, lines, walk, out)
    for k in range(WALKS):
        add_paths(looked, blocks, share, k, walk.kinds, out)
    add_work(looked, blocks, walk.kinds, out)
    loaded = 0
    for k in range(count):
        loaded += lines.touched[k] != 0
        out.line_sectors += sectors_in(lines.touched[k])
        out.hottest_atomics = max(out.hottest_atomics, lines.updates[k])
    out.line_sectors /= max(1, loaded)
    kept, records = collect_batches(looked, blocks, offsets, walk.kinds, 1)
    if records > MOST_WAITED:
        kept, records = collect_batches(looked, blocks, offsets, walk.kinds, records // MOST_WAITED + 1)
    scale = 1
    while scale * MOST_COUNTED < count:
        scale *= 2
    size = reuse.uses.sizes[0]
    size.scale, size.warps, size.blocks = scale, looked.warps, blocks
    size.lines = look_at(lines, count, scale, looked, kept, walk.done, reuse.uses)
    size.uses = collect_uses(streams.records, offsets, looked, lines, walk.done, reuse.uses)
    for b in range(kept):
        for end in (0, 1):
            looked.batches[b, end] = lines.before[looked.batches[b, end]]
    fill_tables(looked, kept, reuse, out)
    stand_for_all(len(looked.instructions) / blocks, out)


@jit
def stand_for_all(times, out):
    """So many times what the thread blocks that were looked at ask for."""
    out.lookups *= times
    out.lines *= times
    out.load_sectors *= times
    out.stores *= times
    out.store_lines *= times
    out.store_sectors *= times
    out.atomics *= times
    out.hottest_atomics *= times


def summarize(
    launch: Launch, table: LatencyTable, trace: Trace, registers_per_thread: int,
    timed: tuple[TimedCode, Reading], nodes: Nodes = EVERYWHERE,
) -> np.ndarray:  # fmt: skip
    """Look at a launch once: a SUMMARY. `timed`: what `timed_code` makes of its program. Deterministic."""
    out, (code, reading) = np.zeros((), SUMMARY), timed
    streams, offsets = streams_of(trace, table)
    records, blocks = len(trace.records), len(trace.thread_blocks)
    longest, warps = int(trace.warp_instructions.max()), len(trace.warp_instructions)
    looked = Looked(
        trace.warp_instructions, *(np.array(n, np.int64) for n in nodes), np.zeros(blocks, np.int64),
        np.zeros(blocks, np.uint8), np.empty(warps, np.int64), np.zeros(len(table.block_start), np.int64),
        np.empty(MOST_SMS, np.int64), np.empty((records + 1, 2), np.int64), trace.warps_per_block,
    )  # fmt: skip
    lines = Lines(
        np.empty(records, np.int32), np.empty(records + 1, np.int32),
        np.zeros(1 << (2 * records + 1).bit_length(), np.int32), np.empty(records, np.uint32),
        np.zeros(records, np.uint8), np.zeros(records, np.int32), np.zeros(records, np.int32),
    )  # fmt: skip
    kinds = Kinds(
        np.empty(warps, np.uint64), np.zeros(1 << (2 * warps).bit_length(), np.int64), np.empty((warps, WALKS)),
        np.empty((warps, WALKS, len(LATENCIES))), np.empty((warps, 3)), np.empty((warps, 2), np.int64),
        np.empty((records + 1, 2), np.int64),
    )  # fmt: skip
    walking = Walking(
        np.zeros(longest + 1, lone_warp.NODE), np.empty(table.register_count, np.int64),
        np.empty(int(table.pcs.max(initial=0)) // reading.fetch_line + 1, np.int8), np.empty(longest + 1, np.int64),
    )  # fmt: skip
    done = Records(*np.zeros((2, records), np.uint8))
    look(code, streams, offsets, reading, looked, lines, Walk(done, kinds, walking), reuse_of(records, warps, blocks), out)
    for name, value in (
        ("thread_blocks", blocks), ("warps_per_block", trace.warps_per_block),
        ("registers_per_thread", registers_per_thread), ("shared_bytes", launch.shared_bytes),
        ("sm_nodes", _padded(nodes.sms, SM_NODES)), ("resident_nodes", _padded(nodes.residents, RESIDENT_NODES)),
    ):  # fmt: skip
        out[name] = value
    return out


def _padded(nodes: tuple[int, ...], every: tuple[int, ...]) -> tuple[int, ...]:
    """As many as there may be; no number lies between equal ones."""
    return nodes + nodes[-1:] * (len(every) - len(nodes))


def timed_code(program: Program, table: LatencyTable, gpu: Gpu) -> tuple[TimedCode, Reading]:
    """What all launches of a program have in common. Of a GPU it takes what belongs to the trace's reading: coalescing,
    fetch width, L1I line, and the latencies at which the longest paths are searched: short loads, and long ones."""
    pipeline, base = gpu.pipeline, base_latencies(gpu)
    missing = np.isin(LATENCIES, ("load", "store", "atomic", "fetch_miss", "const_miss"))
    memory = [np.flatnonzero(table.kind[a:b] >= Kind.PARAM_LOAD) + a
              for a, b in zip(table.block_start.tolist(), table.block_stop.tolist(), strict=True)]  # fmt: skip
    code = TimedCode(
        _code(program, table, gpu), table.waits, table.writes, np.stack([base, base + LONG_CYCLES * missing]),
        np.cumsum([0, *map(len, memory)]), np.concatenate(memory).astype(np.int64),
    )  # fmt: skip
    machine, by_sector = np.array([caches_machine(gpu, 1, 1)]), int(gpu.spec.coalescing != "fermi")
    return code, Reading(pipeline.instructions_per_fetch, pipeline.fetch_line_instructions, by_sector, machine)


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
    held[:CLASSES] = [gpu.pipeline.operation(n).initiation_cycles for n in INSTRUCTION_CLASSES]
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
