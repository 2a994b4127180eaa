"""GPU, table and trace in the flat form that the engine reads, and what of them it refuses."""

from dataclasses import fields
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np

from abstim.engine import state
from abstim.engine.accesses import ALL_WORDS, WARP_LANES
from abstim.engine.behind_sms import L2_LINE
from abstim.engine.initial_state import Sizes, sizes_of
from abstim.engine.rules import SECTORS, UNITS_A_CYCLE, WINDOW_CYCLES
from abstim.engine.scoreboard import origins
from abstim.engine.state import MACHINE, MEM, NEVER, PORTS, Offsets, Streams
from abstim.gpu.config import Gpu
from abstim.gpu.occupancy import demands_of
from abstim.gpu.spec import NUMBER_OF_POLICY, POLICIES, Params, Spec
from functional.arrays import UInt32
from functional.errors import InputError
from functional.execution.computer import memory_bytes
from functional.jit.marked import Known
from functional.traces.line_record import BANK_BYTES, BANKS, BARRIERS
from functional.traces.trace import LINE_BYTES, SECTOR_BYTES, Trace
from precharacterize import LatencyTable, PipelineParameters
from precharacterize.synchronisation import BULK, COMMITS, ELSEWHERE, FILLS, LAST_PRODUCT, NONE, starts
from precharacterize.table import UNITS

_TAG_BYTES = 24  # of a line: its tag, its last use, when it is there
LIMITS = {
    "max_warps_per_sm": state.SLOTS, "max_blocks_per_sm": state.SLOTS, "schedulers_per_sm": state.SCHEDULERS,
    "shared_collectors": state.COLLECTORS,
    **{f"{kind}_port_width": state.PORT_WIDTH for kind in UNITS},
    **{f"{kind}_collectors": state.COLLECTORS for kind in ("sp", "sfu", "mem")},
}  # fmt: skip


@lru_cache(128)
def refuse_unsupported(gpu: Gpu, table: LatencyTable, warps_per_block: int, blocks_per_sm: int) -> None:
    """Raises InputError, one line, for a GPU that cannot run the program of `table`, or is too large for the engine;
    or for more resident warps than the SM has slots."""
    spec = gpu.spec
    if (needed := cache_bytes(spec)) > (there := memory_bytes()):
        raise InputError(
            f"{spec.name}: not enough memory: its caches take {needed / 2**30:.3g} GiB of this computer's "
            f"{there / 2**30:.3g} GiB"
        )
    for name, most in LIMITS.items():
        if getattr(spec, name) > most:
            raise InputError(f"{spec.name}: {name} = {getattr(spec, name)}; the engine knows {most} at most")
    if sum(units_of(spec).values()) > state.UNITS:
        raise InputError(
            f"{spec.name}: {sum(units_of(spec).values())} execution units; the engine knows {state.UNITS} an SM at most"
        )
    refuse_without_units(spec, table)
    if warps_per_block * blocks_per_sm > spec.max_warps_per_sm:
        raise InputError(
            f"{spec.name}: {blocks_per_sm} thread blocks of {warps_per_block} warps do not fit into "
            f"max_warps_per_sm = {spec.max_warps_per_sm}"
        )


@lru_cache(128)
def refuse_without_units(spec: Spec, table: LatencyTable) -> None:
    """Raises InputError for a program that needs a unit which an SM, or one of its sub-cores, has not."""
    count = units_of(spec)
    for number in sorted(set(table.unit.tolist())):  # `np.unique` would load masked arrays
        kind = UNITS[number]
        sharers = spec.schedulers_per_sm if spec.sub_cores and kind != "mem" else 1
        if count[kind] < sharers:
            missing = f"{count[kind]} for {sharers} sub-cores" if count[kind] else "none"
            raise InputError(
                f"{spec.name}: the program needs {kind} units, and the SM has {missing}; set {kind}_units, or [unit]"
            )


def units_of(spec: Spec) -> dict[str, int]:
    """Execution units of an SM by kind."""
    return {kind: getattr(spec, "lsu_units" if kind == "mem" else f"{kind}_units") for kind in UNITS}


def cache_bytes(spec: Spec) -> int:
    """What the engine holds of the caches' lines, by far the most of its state; L2 only if memory is not perfect."""
    tags = sum(getattr(spec, f"{cache}_sets") * getattr(spec, f"{cache}_ways") for cache in ("l1i", "const", "l1t"))
    l1d = spec.l1d_sets * spec.l1d_ways * (_TAG_BYTES + state.L1D_LINE.itemsize)
    slices = 0 if spec.perfect_memory else spec.dram_channels * spec.l2_slices_per_channel
    l2 = slices * spec.l2_sets * spec.l2_ways * (_TAG_BYTES + L2_LINE.itemsize)
    return spec.sm_count * (tags * (_TAG_BYTES + state.TAG_LINE.itemsize) + l1d) + l2


MOST_COPIED_BYTES = 228 << 10  # by one instruction: the largest shared memory of any GPU
MOST_COPIED_TRANSACTIONS = MOST_COPIED_BYTES // SECTOR_BYTES + MOST_COPIED_BYTES // LINE_BYTES
MOST_TRANSACTIONS = 32 * SECTORS  # of one warp instruction: 32 lanes, a record each
# Cycles that a request, a reply, a read of DRAM take from queue to queue where nothing is in their way
REQUEST_STATIONS, REPLY_STATIONS, DRAM_STATIONS = 3, 5, 4
# Primitive polynomials over GF(2) by degree, for pseudo-randomly interleaved memory (Rau, ISCA 1991)
POLYNOMIALS = (0b1, 0b11, 0b111, 0b1011, 0b10011, 0b100101, 0b1000011, 0b10000011, 0b100011101, 0b1000010001,
               0b10000001001, 0b100000000101, 0b1000001010011)  # fmt: skip


# Fields of a part of a GPU that the engine takes as they are
AS_THEY_ARE: dict[type, list[str]] = {
    kind: [f.name for f in fields(kind) if f.name in (MACHINE.names or ())]
    for kind in (Spec, Params, PipelineParameters)
}


def machine_of(
    gpu: Gpu, warps_per_block: int, blocks_per_sm: int, table: LatencyTable, shared_bytes: int = 0,
    side_by_side: bool = False, cluster_blocks: int = 1,
) -> np.ndarray:  # fmt: skip
    """The numbers of a design point for a launch, or several `side_by_side`: a 0-dimensional MACHINE record.

    `shared_bytes` a thread block: where one memory serves as L1D and as shared memory, L1D gets what is left."""
    spec, m = gpu.spec, caches_machine(gpu, warps_per_block, blocks_per_sm, shared_bytes).reshape(()).copy()
    there, banked = demands_of(spec, (1, 1, 1), 0, 0), (table.read_banks >= 0).any() or (table.write_banks >= 0).any()
    values: dict[str, Any] = {
        "side_by_side": side_by_side, "cluster_blocks": cluster_blocks,
        "capacity": [side_by_side * n for n in (blocks_per_sm, *(there[name][1] for name in state.RESOURCES[1:]))],
        "register_count": table.register_count, "ring": ring_cycles(gpu, table),
        "register_banks": gpu.spec.register_banks * banked,
        "copying_warps": spec.max_warps_per_sm * int((table.copies != NONE).any()),
        # places for phases of the `mbarrier`s of a thread block; none for a program without
        "phase_rows": BARRIERS * state.PHASE_RING * int(np.isin(table.copies, range(COMMITS, LAST_PRODUCT)).any()),
    }  # fmt: skip
    for name, value in values.items():
        m[name] = value
    return m


@lru_cache(maxsize=128)
def caches_machine(gpu: Gpu, warps_per_block: int, blocks_per_sm: int, shared_bytes: int = 0) -> np.ndarray:
    """What of `machine_of` looks at no program, which is all that accesses and caches need: a MACHINE that is not to be
    written to, one element."""
    m = numbers_of(gpu).copy()
    m["warps_per_block"], m["blocks_per_sm"] = warps_per_block, blocks_per_sm
    m["local_places"] = gpu.spec.sm_count * (warps_per_block * blocks_per_sm or gpu.spec.max_warps_per_sm)
    m["l1d_ways"] = l1d_ways(gpu, (shared_bytes + gpu.spec.shared_bytes_kept_per_block) * blocks_per_sm)
    return m.reshape(1)


def touching(gpu: Gpu) -> tuple:
    """What of a GPU decides how long an access holds the load/store unit."""
    spec = gpu.spec
    caches = spec.coalescing, spec.l1d_banks, spec.l1d_dense_banks, spec.const_line_bytes, spec.perfect_constant_cache
    constants = gpu.params.const_access_cycles, gpu.params.const_address_cycles
    return *caches, spec.shared_bytes_per_cycle, spec.load_store_lanes, *constants


@lru_cache(maxsize=128)
def numbers_of(gpu: Gpu) -> np.ndarray:
    """The numbers of a design point that no launch decides: a 0-dimensional MACHINE record, the others 0."""
    m, spec = np.zeros((), MACHINE), gpu.spec
    parts = (gpu.spec, gpu.params, gpu.pipeline)  # the last counts where several say it
    as_they_are = {name: getattr(part, name) for part in parts for name in AS_THEY_ARE[type(part)]}
    for name, value in (as_they_are | core_values(gpu) | memory_values(gpu)).items():
        m[name] = value
    for s in range(spec.schedulers_per_sm):
        m["scheduler_slots"][s] = sum(1 << w for w in range(s, spec.max_warps_per_sm, spec.schedulers_per_sm))
    m["scheduler_of"] = np.arange(len(m["scheduler_of"])) % spec.schedulers_per_sm
    _lay_out_ports(m, gpu)
    return m


def l1d_ways(gpu: Gpu, shared_bytes: int) -> int:
    """Ways L1D has when an SM's thread blocks take `shared_bytes` of a memory that serves as both.

    The smallest of `shared_options_kib` that holds them is taken from `l1d_ways`, which is all of it; without options
    L1D has all its ways always (GPGPU-Sim 4.2, adaptive_cache_config)."""
    spec = gpu.spec
    if not spec.shared_options_kib:
        return spec.l1d_ways
    options = [int(kib) * 1024 for kib in spec.shared_options_kib.split(",")]
    taken = next((size for size in options if size >= shared_bytes), options[-1])
    return max(1, int(spec.l1d_ways * (1 - taken / spec.unified_l1d_bytes) + 0.5))


def _lay_out_ports(m: np.ndarray, gpu: Gpu) -> None:
    """Ports of kind k: k x groups .. (k + 1) x groups - 1; a group is a sub-core, or the whole SM."""
    spec = gpu.spec
    groups = spec.schedulers_per_sm if spec.sub_cores else 1
    count = units_of(spec)
    units = np.zeros(PORTS, np.int64)
    for kind, name in enumerate(UNITS):
        own = 1 if name == "mem" else groups  # one load/store unit serves all sub-cores
        units[kind * groups : kind * groups + own] = count[name] // own
        m["port_width"][kind] = max(1, getattr(spec, f"{name}_port_width") // groups)
        collectors = spec.shared_collectors or getattr(spec, f"{name}_collectors", 0)
        m["collectors"][kind] = max(1, collectors // groups)
    m["first_unit"][1:] = np.cumsum(units)


def core_values(gpu: Gpu) -> dict[str, Any]:
    """What an SM has, as far as it does not stand in the description as it is."""
    spec, params, pipeline = gpu.spec, gpu.params, gpu.pipeline
    return {
        "warp_banks": spec.register_banks // (spec.schedulers_per_sm if spec.sub_cores else 1),
        "policy": NUMBER_OF_POLICY[spec.scheduler], "walks_by_slot": POLICIES[spec.scheduler].by_slot,
        "fetch_line_log2": _log2(pipeline.fetch_line_instructions), "l1d_set_lines": spec.l1d_ways,
        "l1d_index": state.L1D_INDICES.index(spec.l1d_index), "l1d_residues": residues(_log2(spec.l1d_sets)),
        "l1d_write": state.L1D_WRITES.index(spec.l1d_write), "l1d_fifo": spec.l1d_replacement == "fifo",
        "coalesced_bytes": {"fermi": 0, "sector": SECTOR_BYTES, "line": LINE_BYTES}[spec.coalescing],
        "shared_pass_cycles": BANKS * BANK_BYTES // spec.shared_bytes_per_cycle,
        "lane_cycles": WARP_LANES // spec.load_store_lanes,
        "dispatch_interval_units": round(params.dispatch_interval_cycles * UNITS_A_CYCLE),
        "posted_stores": spec.posted_stores and not spec.perfect_memory,
        "partial_sectors": spec.partial_sectors and not spec.perfect_memory,
    }  # fmt: skip


def memory_values(gpu: Gpu) -> dict[str, Any]:
    """The same of what lies behind the first-level caches; service times in units of 1 / 64 cycle."""
    spec, params = gpu.spec, gpu.params
    port, atomic = (round(cycles * UNITS_A_CYCLE) for cycles in (params.l2_sector_cycles, params.l2_atomic_cycles))
    slices = (spec.dram_channels * spec.l2_slices_per_channel - 1).bit_length()
    sets, slice_delay = (spec.l2_sets - 1).bit_length(), max(1, params.l2_request_cycles - REQUEST_STATIONS)
    hit_delay = max(0, params.l2_reply_cycles - REPLY_STATIONS)
    slice_hash, l2_hash = slices if spec.l2_slice_index == "ipoly" else 0, sets if spec.l2_index == "ipoly" else 0
    return {
        "slice_random": spec.l2_slice_index == "random" and not spec.perfect_memory,
        "slice_spread": spec.l2_slice_index == "spread",
        "l2_partition": max(1, params.l2_partition_cycles), "dram_requests": spec.dram_requests or NEVER,
        "fetches_pairs": spec.l2_fetch_bytes > SECTOR_BYTES and spec.coalescing != "fermi",
        "interleave_log2": _log2(spec.channel_interleave_bytes // LINE_BYTES),
        "slice_log2": _log2(spec.slice_interleave_bytes // LINE_BYTES),
        "slice_hash_log2": slice_hash, "slice_residues": residues(slice_hash),
        "draw_terms": terms_before_draws(), "l2_hash_log2": l2_hash, "l2_residues": residues(l2_hash),
        "burst_sectors": spec.dram_burst_bytes // SECTOR_BYTES,
        "row_log2": _log2(spec.dram_row_bytes // LINE_BYTES),
        "bank_log2": _log2(spec.dram_row_bytes // 8 // LINE_BYTES),
        "l2_sector_units": port, "l2_atomic_units": atomic,
        "l2_write_units": round(params.l2_write_cycles * UNITS_A_CYCLE),
        "l2_fp64_atomic_units": round(params.l2_fp64_atomic_cycles * UNITS_A_CYCLE),
        "l2_turns": max(1, -(-UNITS_A_CYCLE // max(1, port))),
        "window_cycles": NEVER if spec.perfect_memory else max(1, min(WINDOW_CYCLES, slice_delay // 2)),
        # pure delays: what the parameters say less the stations that the memory side has of its own
        "slice_delay": slice_delay, "hit_delay": hit_delay,
        "fence_delay": max(params.fence_cycles, slice_delay + hit_delay),
        "miss_delay": max(0, params.dram_reply_cycles - REPLY_STATIONS - 1),
        **dram_values(gpu),
    }  # fmt: skip


def dram_values(gpu: Gpu) -> dict[str, int]:
    """DRAM's timing in cycles of the channels' clock: a sector takes `dram_burst_cycles` of them."""
    spec, params = gpu.spec, gpu.params
    cycle = max(2.0**-16, params.dram_sector_cycles / spec.dram_burst_cycles)  # core cycles
    half = max(1, round(params.dram_activate_cycles / 2 / cycle))  # closing a row, and opening one
    read, write, burst = spec.dram_read_cycles, spec.dram_write_cycles, spec.dram_burst_cycles
    return {
        "dram_cycle": max(1, round(cycle * (1 << 16))), "precharge": half, "row_to_read": half,
        "dram_delay": max(0, round(params.dram_latency_cycles - read * cycle) - DRAM_STATIONS),
        "row_to_write": max(0, half - write - 1), "read_to_write": max(0, read + burst + 2 - write),
        "write_to_read": write + burst + spec.dram_write_to_read_cycles,
        "write_to_precharge": write + burst + spec.dram_write_recovery_cycles,
    }  # fmt: skip


def _log2(value: int) -> int:
    return value.bit_length() - 1


def residues(degree: int) -> np.ndarray:
    """What bit i of a number contributes to an index of `degree` bits: x^(degree + i) modulo the polynomial."""
    found, value, polynomial = [], 1 << degree, POLYNOMIALS[degree]
    for _ in range(state.RESIDUES):
        value = value ^ polynomial if value >> degree else value
        found.append(value)
        value <<= 1
    return np.array(found, np.int64) if degree else np.zeros(state.RESIDUES, np.int64)


@cache
def terms_before_draws() -> list[int]:
    """The latest of the C library's generator, seed 1. Source: glibc, stdlib/random_r.c, TYPE_3."""
    terms = [1]
    while len(terms) < state.DRAW_TERMS:
        terms.append(16807 * terms[-1] % 0x7FFFFFFF)
    terms += terms[:3]
    for _ in range(310):  # which nobody is given
        terms.append((terms[-3] + terms[-state.DRAW_TERMS]) & 0xFFFFFFFF)
    return terms[-state.DRAW_TERMS :]


def ring_cycles(gpu: Gpu, table: LatencyTable) -> int:
    """A power of two above the number of cycles that a booking can lie ahead of the clock.

    In front of a unit wait at most what its port's collectors and registers hold, each for its time on the unit. Memory
    instructions book nothing where no register banks are known, and hold up no others where these have own
    collectors."""
    spec, params = gpu.spec, gpu.params
    waiting = {
        kind: (spec.shared_collectors or getattr(spec, f"{name}_collectors", 0))
        + 3 * getattr(spec, f"{name}_port_width")
        for kind, name in enumerate(UNITS)
    }
    bulk = np.isin(table.copies, (FILLS, starts(BULK))).any()
    busy = {kind: int(table.initiation_cycles[table.unit == kind].max(initial=1)) for kind in range(state.KINDS)} | {
        MEM: MOST_COPIED_TRANSACTIONS if bulk else MOST_TRANSACTIONS
    }
    alone = not spec.shared_collectors and max(table.read_banks.max(initial=-1), table.write_banks.max(initial=-1)) < 0
    memory = params.l1d_latency_cycles + params.l1_miss_extra_cycles + params.atomic_latency_cycles
    memory += gpu.pipeline.shared_cycles + gpu.pipeline.const_hit_cycles
    memory += params.cluster_cycles * int((table.copies == ELSEWHERE).any())
    used = [kind for kind in range(state.KINDS) if (not alone if kind == MEM else (table.unit == kind).any())]
    operands = table.read_banks.shape[1] * max(waiting.values())
    ahead = sum(waiting[kind] * busy[kind] for kind in used) + int(table.latency_cycles.max()) + operands + 64
    ahead += 0 if alone else memory
    return 1 << int(ahead).bit_length()


# What code is compiled for: kinds of GPUs and programs, and no sizes, which a sweep varies
KINDS_OF_SM = (
    "perfect_memory", "policy", "sub_cores", "issues_per_turn", "register_file_ports", "perfect_instruction_cache",
    "perfect_constant_cache", "l1d_index", "l1d_sectored", "l1d_banks", "l1d_dense_banks", "l1d_bypass", "l1d_write",
    "l1d_write_allocate", "l1d_fifo", "posted_stores", "shared_collectors", "side_by_side",
)  # fmt: skip
KINDS_OF_MEMORY = (
    "crossbar_repeats", "crossbar_output_queues", "l2_coalesces", "l2_partitions", "slice_random", "slice_spread",
    "dram_two_commands",
)  # fmt: skip
# What most programs have none of, and the value that says so
KINDS_OF_CODE = {
    "copies": NONE, "counted": 0, "release": NONE, "round_cycles": 0, "fp64_atomic": 0, "read_set": 0, "write_set": 0,
}  # fmt: skip
# Sizes that are the same for all GPUs, or nearly all
KNOWN_SIZES = (
    "unit_word", "register_word", "bank_word", "pair", "sector", "hint", "sought", "barrier", "word", "family", "group",
)  # fmt: skip
READ_ONLY = frozenset(
    {MACHINE, state.CODE} | {f"{kind.__name__}.{name}" for kind in (Streams, Offsets) for name in kind._fields}
)


class Prepared(NamedTuple):
    """What the engine is told of a program and a design point: numbers of the latter (a MACHINE) and what sizes they
    ask for, the program's CODE and operands, for what of both code is compiled, and the longest latency."""

    machine: np.ndarray
    sizes: Sizes
    code: np.ndarray
    operands: np.ndarray
    known: Known
    latency_cycles: int


@lru_cache(maxsize=128)
def prepared(
    gpu: Gpu, table: LatencyTable, warps_per_block: int, blocks_per_sm: int, shared_bytes: int, side_by_side: bool,
    cluster_blocks: int,
) -> Prepared:  # fmt: skip
    """Raises InputError for what the engine cannot time (`refuse_unsupported`)."""
    refuse_unsupported(gpu, table, warps_per_block, blocks_per_sm)
    machine = machine_of(gpu, warps_per_block, blocks_per_sm, table, shared_bytes, side_by_side, cluster_blocks)
    code, operands = code_of(table, int(machine["warp_banks"]))
    known, latency_cycles = known_of(machine, code), int(table.latency_cycles.max(initial=0))
    return Prepared(machine, sizes_of(machine), code, operands, known, latency_cycles)


def known_of(machine: np.ndarray, code: np.ndarray | None = None) -> Known:
    """What of a design point and a program code is compiled for."""
    kinds = KINDS_OF_SM + (() if machine["perfect_memory"] else KINDS_OF_MEMORY)
    gpu = {name: int(machine[name]) for name in kinds}
    program = {} if code is None else {name: no for name, no in KINDS_OF_CODE.items() if (code[name] == no).all()}
    there = dict(sizes_of(machine))
    sizes = {name: there[name] for name in KNOWN_SIZES}
    if there["sm_word"] == there["slice_word"] == 1:
        sizes |= dict.fromkeys(("input_word", "output_word"), 1)
    return Known(repr((gpu, program, sizes)), {MACHINE: gpu, state.CODE: program}, READ_ONLY, sizes=sizes)


@lru_cache(maxsize=64)
def code_of(table: LatencyTable, warp_banks: int = state.SLOTS) -> tuple[np.ndarray, np.ndarray]:
    """The latency table as CODE records, one an instruction, where so many register banks hold a warp's registers; and
    the operands that they point into."""
    code = np.zeros(len(table.unit), state.CODE)
    for name in code.dtype.names or ():
        if hasattr(table, name):
            code[name] = getattr(table, name)
    code["origin"] = origins(table.kind)
    operands: list[int] = []
    for i, row in enumerate(code):
        kinds = table.waits, table.writes, table.long_waits, table.read_banks, table.write_banks
        waits, writes, long, reads, written = ([int(r) for r in rows[i] if r >= 0] for rows in kinds)
        reads = [r % warp_banks for r in reads]
        again = [bank for k, bank in enumerate(reads) if bank in reads[:k]]
        others = waits[state.FIRST_WAITS :]
        for name, group in {"waits": others, "writes": writes, "long": long, "reads_again": again}.items():
            row[f"{name}_at"] = len(operands)
            operands += group
            row[f"{name}_end"] = len(operands)
        first = waits or [table.register_count]
        row["first_waits"] = (first + first[-1:] * state.FIRST_WAITS)[: state.FIRST_WAITS]
        row["read_set"] = sum({1 << bank for bank in reads})
        row["write_set"] = sum({1 << r % warp_banks for r in written})
    return code, np.array(operands, np.int32)


NO_OPERANDS = np.zeros(0, np.int32)


def written_words(trace: Trace) -> UInt32[np.ndarray, " record"]:
    """The words that stores write of the lines of records, up to the last that leaves out some of a sector."""
    words = np.full(int(trace.partial_at[-1]) + 1 if len(trace.partial_at) else 0, ALL_WORDS, np.uint32)
    words[trace.partial_at] = trace.partial_words
    return words


def streams_of(trace: Trace, table: LatencyTable, operands: np.ndarray = NO_OPERANDS) -> tuple[Streams, Offsets]:
    """The trace and the program's blocks as the engine reads them; `operands`: those of `code_of`."""
    taken = trace.blocks, trace.records, written_words(trace), trace.conflicts, trace.masks
    streams = Streams(*taken, table.block_start, table.block_stop, operands)
    return streams, Offsets(trace.block_offsets, trace.record_offsets, trace.conflict_offsets)
