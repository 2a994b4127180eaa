"""Everything the analytic model needs of a launch, in one record, by one compiled look at its trace."""

from __future__ import annotations

from bisect import bisect_right
from collections import namedtuple
from math import log
from operator import lt
from threading import local
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from abstim.analytic import lone_warp
from abstim.analytic.block_path import BlockPath
from abstim.analytic.line_sample import WANTED_SHIFT, Lines
from abstim.analytic.lone_warp import CLASSES, LATENCIES, LONG_CYCLES, Kinds, Reading, Records, TimedCode, Walking
from abstim.analytic.look import LEADER, MOST_SMS, RESIDENT_NODES, SM_NODES, WORK, Looked, Read, Scratch, Walk, look
from abstim.analytic.reuse_distance import DISTANCE_BINS, ROWS, reuse_of
from abstim.engine.design_point import caches_machine, streams_of
from abstim.gpu.config import Gpu
from abstim.gpu.spec import INSTRUCTION_CLASSES
from functional.arrays import Float
from functional.jit.machine_code import Held
from functional.launches.launch import Launch
from functional.traces.line_record import ALL_SECTORS
from functional.traces.trace import Trace
from precharacterize import LatencyTable
from precharacterize.classify import Kind, latency_class

if TYPE_CHECKING:
    from functional.programs.program import Program

MOST_INSTRUCTIONS = 4_000_000  # warp instructions looked at; of a longer launch the first thread blocks stand for all
LEAST_WALKED = 1 << 12  # of them, of those walked one by one
MOST_PHASES = 1 << 12  # of warps that are walked, from barrier to barrier
LEAST_LINES = 1 << 8  # whose uses are looked at

_SHAPE = "thread_blocks", "warps_per_block", "registers_per_thread", "shared_bytes", "l1d_bypass"
# Paths are counts of LATENCIES, the longest with long loads: of a thread block's longest warp, mean over blocks; of the
# longest block; what the first block's is longer by if the first use of a line of code or constants is a miss
_PATHS = "path", "longest_path", "cold_path"
SUMMARY = np.dtype([
    *((name, "f8") for name in (*WORK, *_SHAPE)),
    ("by_class", "f8", CLASSES),  # instructions on arithmetic units
    *((name, "f8", len(LATENCIES)) for name in _PATHS),
    ("imbalance", "f8", MOST_SMS),  # instructions of the busiest of 1, 2, ... SMs over those of mean blocks
    ("sm_nodes", "f8", len(SM_NODES)), ("resident_nodes", "f8", len(RESIDENT_NODES)),  # what `misses` are taken for
    ("crowds", "f8", (len(SM_NODES), len(RESIDENT_NODES))),  # sectors asked for of each turn's most wanted line
    ("jams", "f8", (len(SM_NODES), len(RESIDENT_NODES))),  # times that DRAM is waited for until all have one line
    ("misses", "f4", (len(SM_NODES), len(RESIDENT_NODES), ROWS, DISTANCE_BINS)),  # tables of reuse_distance.fill_table
])  # fmt: skip
Summary = namedtuple("Summary", list(SUMMARY.names or ()))  # type: ignore[misc]  # the same as arrays, for JAX


class Nodes(NamedTuple):
    """SM counts, and numbers of thread blocks an SM holds, for which reuse distances are taken, where they are `used`;
    from which SM count on, and up to which, the imbalance is looked at."""

    sms: tuple[int, ...] = SM_NODES
    residents: tuple[int, ...] = RESIDENT_NODES
    dealt: tuple[int, int] = (1, MOST_SMS)
    used: tuple[tuple[int, ...], ...] = ((1,) * len(RESIDENT_NODES),) * len(SM_NODES)


EVERYWHERE = Nodes()


def nodes_near(sm_count: int, resident: int) -> Nodes:
    """Those between which a GPU lies with so many SMs, and thread blocks on each."""

    def beside(nodes: tuple[int, ...], value: int) -> tuple[int, ...]:
        k = min(max(1, bisect_right(nodes, value)), len(nodes) - 1)
        return nodes[k - 1 : k + 1]

    def part(nodes: tuple[int, ...], value: int) -> float:
        return log(min(max(value, nodes[0]), nodes[1]) / nodes[0]) / log(nodes[1] / nodes[0])

    first, sms, residents = min(sm_count, MOST_SMS - 1), beside(SM_NODES, sm_count), beside(RESIDENT_NODES, resident)
    before = int(part(sms, sm_count) < part(residents, resident))  # see model.corner
    return Nodes(sms, residents, (first, first + 1), ((1, before), (1 - before, 1)))


_of_thread = local()


def _scratch(*sizes: int) -> Held:
    """Of this thread, with room for a launch: line records, warps, thread blocks; instructions of a warp, registers,
    lines of code."""
    held, room = getattr(_of_thread, "scratch", (None, (0,) * len(sizes)))
    if held is None or any(map(lt, room, sizes)):
        room = tuple(map(max, room, sizes))
        records, warps, _, longest, registers, code_lines = room
        places, bits = 1 << (2 * records).bit_length(), 32 - WANTED_SHIFT
        lines = Lines(
            np.empty(places, np.int32), np.empty(records, np.int64), np.empty(records, np.int32),
            np.empty(1 << bits - 3, np.uint8),
        )  # fmt: skip
        done = Records(*np.empty((2, records), np.uint8))
        read = Read(np.empty(warps, np.int32), np.empty(warps, LEADER), done, np.empty(records, np.int32))
        phases = warps + MOST_PHASES
        kinds = Kinds(
            np.empty((warps, 2), np.int64), np.empty((phases, 3)), np.empty(phases),
            np.empty((phases, len(LATENCIES))), np.empty((phases, 2), np.int64), np.empty((records + 1, 2), np.int64),
        )  # fmt: skip
        walking = Walking(
            np.empty(longest + 1, lone_warp.NODE), np.empty(registers, np.int64), np.empty(code_lines, np.int8),
            np.empty(longest + 2, np.int64), np.empty(longest + 1, np.int64),
        )  # fmt: skip
        path = BlockPath(np.empty(len(LATENCIES)), np.empty(1))
        held = Held(Scratch(lines, reuse_of(*room[:3]), read, Walk(kinds, walking), path))
        _of_thread.scratch = held, room
    held.value.reuse.uses.sizes["places"] = 1 << (2 * sizes[0]).bit_length()
    return held


def summarize(
    launch: Launch, table: LatencyTable, trace: Trace, registers_per_thread: int,
    timed: tuple[Held, Reading], nodes: Nodes = EVERYWHERE,
) -> np.ndarray:  # fmt: skip
    """Look at a launch once: a SUMMARY. `timed`: what `timed_code` makes of its program. Deterministic."""
    out, (code, reading) = np.zeros((), SUMMARY), timed
    streams, offsets = streams_of(trace, table)
    records, blocks = len(trace.records), len(trace.thread_blocks)
    longest, warps = int(trace.warp_instructions.max()), len(trace.warp_instructions)
    looked = Looked(
        trace.warp_instructions, np.array(nodes.sms), np.array(nodes.residents), np.array(nodes.dealt),
        np.array(nodes.used, np.uint8), np.zeros(blocks, np.int64), np.zeros(blocks, np.uint8),
        np.zeros(len(table.block_start), np.int64), np.empty(MOST_SMS, np.int64),
        np.empty((records + 1, 3), np.int32), trace.warps_per_block,
        MOST_INSTRUCTIONS, LEAST_WALKED, LEAST_LINES,
    )  # fmt: skip
    code_lines = int(table.pcs.max(initial=0)) // reading.fetch_line + 1
    scratch = _scratch(records, warps, blocks, longest, table.register_count, code_lines)
    look(code, streams, offsets, reading, looked, scratch, out)
    for name, value in (
        ("thread_blocks", blocks), ("warps_per_block", trace.warps_per_block),
        ("registers_per_thread", registers_per_thread), ("shared_bytes", launch.shared_bytes),
        ("l1d_bypass", reading.bypass),
        ("sm_nodes", _padded(nodes.sms, SM_NODES)), ("resident_nodes", _padded(nodes.residents, RESIDENT_NODES)),
    ):  # fmt: skip
        out[name] = value
    return out


def _padded(nodes: tuple[int, ...], every: tuple[int, ...]) -> tuple[int, ...]:
    """As many as there may be; no number lies between equal ones."""
    return nodes + nodes[-1:] * (len(every) - len(nodes))


def timed_code(program: Program, table: LatencyTable, gpu: Gpu) -> tuple[Held, Reading]:
    """What all launches of a program have in common. Of a GPU it takes what belongs to the trace's reading: coalescing,
    fetch width, L1I line, and the latencies at which the longest paths are searched."""
    pipeline, base = gpu.pipeline, base_latencies(gpu)
    missing = np.isin(LATENCIES, ("load", "store", "atomic", "fetch_miss", "const_miss"))
    rows = _code(program, table, gpu)
    steps = (table.kind >= Kind.PARAM_LOAD) | (rows["waits"] > 0)
    of_blocks = [np.flatnonzero(steps[a:b]) + a
                 for a, b in zip(table.block_start.tolist(), table.block_stop.tolist(), strict=True)]  # fmt: skip
    code = TimedCode(
        rows, table.waits, table.writes, base + LONG_CYCLES * missing,
        np.cumsum([0, *map(len, of_blocks)]), np.concatenate(of_blocks).astype(np.int64),
    )  # fmt: skip
    spec, fetched = gpu.spec, (pipeline.instructions_per_fetch, pipeline.fetch_line_instructions)
    besides = 0 if spec.l1d_sectored or spec.l1d_bypass else ALL_SECTORS
    drops = spec.l1d_write in ("local_back", "evict")
    merges = spec.l2_mshr_merges if spec.coalescing == "sector" and not spec.l2_coalesces else MOST_SMS
    taken = int(spec.coalescing != "fermi"), besides, int(drops), int(spec.l1d_bypass), merges
    return Held(code), Reading(*fetched, *taken, caches_machine(gpu, 1, 1))


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
    loaded = np.zeros(table.register_count + 1, bool)  # is a register by a load? The last one is none
    loaded[table.writes[table.kind >= Kind.GLOBAL_LOAD]] = True
    loaded[-1] = False
    code["waits"] = loaded[table.waits].any(1)
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
