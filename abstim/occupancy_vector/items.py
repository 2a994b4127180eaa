"""A launch as items, and items as the words that the lanes read (docs/occupancy-vector.md, "Items")."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, Int64

from abstim.gpu.config import Gpu
from abstim.occupancy_vector.item_kernel import (
    CODE,
    ITEM,
    POOLED,
    POOLS,
    REGISTER,
    SPECIAL,
    WARP,
    Code,
    Shape,
    cut_warps,
)
from functional.errors import InputError
from functional.trace import Trace
from precharacterize import LatencyTable
from precharacterize.parameters import UNITS
from precharacterize.unit_chain import cycles_an_instruction

WORK_A_CYCLE = 16  # an item's work for a pool is counted in 16ths of a cycle
MOST_INSTRUCTIONS = 2_000_000  # cut at once: items take five times the room of their words

# Fields of a word, from the lowest bit up: (name, bits). The last word is what caches and conflicts did.
WORDS = (
    (("cycles", 4), ("front", 6), ("next", 11), ("after_next", 11)),
    (("unit", 3), ("unit_offset", 4), ("far", 1), ("near", 1), ("wait_far", 3), ("wait_near", 2), ("barrier", 1),
     ("exit", 1), ("drain", 12), ("fetches", 2), ("fetch_level", 2)),
    (("sp", 10), ("int", 10), ("latency", 12)),
    (("occupies", 10), ("level", 2), ("sectors", 8), ("dram_sectors", 8), ("access", 3)),
)  # fmt: skip
LEVEL_FIELDS = ("level", "sectors", "dram_sectors", "fetch_level")  # of a word, which caches decide
LOADS, RESULTS = 4, 2  # far and near results a warp remembers; a wait for all but more of them waits for these


class Items(NamedTuple):
    """Items of a launch's warps, those of warp w from offsets[w] on."""

    rows: np.ndarray  # ITEM
    offsets: Int64[np.ndarray, " warp_plus_1"]


def cut(table: LatencyTable, trace: Trace, gpu: Gpu) -> Items:
    """The items of every warp of a trace on a GPU's pipeline."""
    shape, instructions = shape_of(gpu), _instructions(table, trace, gpu)
    code = Code(
        instructions, table.waits, table.writes, table.block_start, table.block_stop, trace.blocks,
        trace.block_offsets, trace.records, trace.record_offsets, trace.conflicts, trace.conflict_offsets,
    )  # fmt: skip
    warps = len(trace.warp_instructions)
    ends = np.cumsum(trace.warp_instructions)
    rows, offsets, first = [], [np.zeros(1, np.int64)], 0
    registers, wait = np.zeros(table.register_count, REGISTER), np.zeros(2, np.int64)
    free, scratch = np.zeros(16, np.int64), np.zeros(1, WARP)
    while first < warps:
        before = ends[first - 1] if first else 0
        stop = max(first + 1, int(np.searchsorted(ends, before + MOST_INSTRUCTIONS, "right")))
        found, own = np.zeros(int(ends[stop - 1] - before) + 1, ITEM), np.zeros(stop - first + 1, np.int64)
        cut_warps(code, shape, first, stop, found, own, registers, free, wait, scratch)
        rows.append(found[: own[-1]].copy())
        offsets.append(offsets[-1][-1] + own[1:])
        first = stop
    return Items(np.concatenate([np.zeros(0, ITEM), *rows]), np.concatenate(offsets))


def shape_of(gpu: Gpu) -> Shape:
    """What of a GPU cuts items, beside its latency table."""
    spec, params, pipeline = gpu.spec, gpu.params, gpu.pipeline

    def one(value: int) -> np.ndarray:
        return np.array([value], np.int64)

    return Shape(
        fetch_width=one(pipeline.instructions_per_fetch),
        fetch_line=one(pipeline.fetch_line_instructions),
        by_sector=one(spec.coalescing == "sector"),
        l1d_banks=one(spec.l1d_banks),
        single=one(spec.scheduler in ("lrr", "two_level")),
        dual_issue=one(spec.issues_per_turn > 1),
        bypass=one(spec.l1d_bypass),
        latency=np.array(
            [pipeline.shared_cycles, pipeline.const_hit_cycles, pipeline.global_hit_cycles,
             params.atomic_latency_cycles], np.int64,
        ),
    )  # fmt: skip


def units_of(gpu: Gpu, kind: str) -> int:
    """Units of a kind that one group of schedulers shares: a sub-core, or the SM."""
    groups = gpu.spec.schedulers_per_sm if gpu.spec.sub_cores else 1
    return max(1, getattr(gpu.spec, f"{kind}_units") // groups)


def _instructions(table: LatencyTable, trace: Trace, gpu: Gpu) -> np.ndarray:
    """The latency table as CODE, with the work of an instruction for its pool."""
    rows = np.zeros(len(table.unit), CODE)
    names = np.array(UNITS)[table.unit]
    rows["kind"], rows["pc"], rows["bytes"] = table.kind, table.pcs, table.access_bytes
    rows["initiation"], rows["result"] = table.initiation_cycles, table.result_cycles
    rows["writes"] = (table.writes >= 0).any(1)
    rows["unit"] = [SPECIAL.get(name, POOLED) for name in names]
    rows["pool"] = [POOLS.index(name) if name in POOLS else -1 for name in names]
    executed = _executions(table, trace)
    for number, pool in enumerate(POOLS):
        own = rows["pool"] == number
        units = units_of(gpu, pool)
        crowding = 1.0
        if gpu.spec.schedulers_per_sm > 1 and not gpu.spec.sub_cores:
            crowding = _crowding(table, np.where(own, executed, 0), units, gpu.spec.result_bus_width)
        work = table.initiation_cycles * WORK_A_CYCLE / units * crowding
        rows["work"][own] = np.round(work[own])
    for name in set(names) - {"mem"}:  # of several units, one takes the next instruction while another is busy
        own = names == name
        rows["initiation"][own] = np.maximum(1, table.initiation_cycles[own] // units_of(gpu, name))
    return rows


def _executions(table: LatencyTable, trace: Trace) -> Int64[np.ndarray, " instr"]:
    """How often each instruction is executed."""
    blocks = np.bincount(trace.blocks, minlength=len(table.block_start))
    counts = np.zeros(len(table.unit), np.int64)
    for start, stop, times in zip(table.block_start, table.block_stop, blocks, strict=True):
        counts[start:stop] += times
    return counts


def _crowding(table: LatencyTable, executed: np.ndarray, units: int, result_bus: int) -> float:
    """How much longer the units of a pool take for the launch's instructions than their initiation alone says."""
    if not executed.any():
        return 1.0
    alone = float((executed * table.initiation_cycles).sum() / executed.sum()) / units
    crowded = cycles_an_instruction(table.latency_cycles, table.initiation_cycles, executed, units, result_bus)
    return max(1.0, crowded / alone)


def words_of(rows: np.ndarray, levels: np.ndarray | None = None) -> Int32[np.ndarray, "item word"]:
    """Items as WORDS. `levels`: what `cache_walk` found of each (None: every access hits).

    Raises InputError for an item that does not fit.
    """
    columns = {name: rows[name] for name in rows.dtype.fields or ()}
    if levels is not None:
        columns |= {name: levels[name] for name in LEVEL_FIELDS}
        # an item holds what the next one waits for
        columns["fetch_level"] = np.append(levels["fetch_level"][1:], 0) * (rows["exit"] == 0)
    found = np.zeros((len(rows), len(WORDS)), np.uint32)
    for word, fields in enumerate(WORDS):
        shift = 0
        for name, bits in fields:
            if name in columns:
                found[:, word] |= _checked(name, columns[name], bits) << np.uint32(shift)
            shift += bits
    return found.view(np.int32)


def _checked(name: str, values: np.ndarray, bits: int) -> np.ndarray:
    if name in ("wait_far", "wait_near"):
        values = np.minimum(values, LOADS if name == "wait_far" else RESULTS)
    if len(values) and (int(values.max()) >= 1 << bits or int(values.min()) < 0):
        raise InputError(
            f"the occupancy model holds {name} up to {(1 << bits) - 1}, and this launch needs {values.max()}; "
            "use --model detailed"
        )
    return values.astype(np.uint32)
