"""What the memory hierarchy did in a launch, and what kept the launch from being faster; the launch in the units
of hardware: TFLOP/s, GB/s, and shares of what the GPU could do at most."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import hypot
from statistics import NormalDist

import numpy as np
from msgspec import Struct

from abstim.engine import LaunchInputs
from abstim.gpu.config import Gpu
from abstim.gpu.spec import Params, Spec
from abstim.session.memory_accesses import atomic_transactions, transactions_of
from functional.arrays import Int64
from functional.programs.program import Program
from functional.traces.trace import LINE_BYTES, SECTOR_BYTES, Trace
from precharacterize.classify import Kind, ptx_operations_of
from precharacterize.table import UNITS

# Execution units (precharacterize.table.UNITS) as limits
UNIT_LIMITS = ("ALUs", "SFUs", "load/store unit", "ALUs", "FP64 units", "tensor units")
ISSUE, MEMORY, SHARED = "instruction issue", "memory latency", "shared memory latency"
ARITHMETIC, CONFLICTS = "instruction latency", "bank conflicts"
_OF_ONE_UNIT = ("load/store unit", CONFLICTS)  # whose times add up


def memory_use(counters: Mapping[str, float], cycles: float, spec: Spec, params: Params) -> dict[str, float]:
    """Hit rates (of transactions; NaN-free: a cache nobody asked has none), traffic in bytes, and use of capacity.

    `l2_use` and `dram_use` are busy time over all time of all slices or channels, from 0 to 1. A channel reads a sector
    in a burst, and writes as many as a burst has room for (docs/timing-rules.md, rule 11)."""
    seconds = cycles / spec.core_clock_hz
    slices = spec.dram_channels * spec.l2_slices_per_channel
    dram_sectors = counters["dram_reads"] + counters["dram_writes"]
    bursts = counters["dram_reads"] + counters["dram_writes"] * SECTOR_BYTES / spec.dram_burst_bytes
    found = {
        f"{cache}_hit_rate": 1 - counters[f"{cache}_misses"] / counters[f"{cache}_accesses"]
        for cache in ("l1d", "l1t", "const", "l1i", "l2")
        if counters[f"{cache}_accesses"]
    }
    return found | {
        "launch_latency_share": params.launch_latency_cycles / cycles,
        "l2_bytes": counters["l2_accesses"] * SECTOR_BYTES, "dram_read_bytes": counters["dram_reads"] * SECTOR_BYTES,
        "dram_write_bytes": counters["dram_writes"] * SECTOR_BYTES,
        "l2_bytes_per_second": counters["l2_accesses"] * SECTOR_BYTES / seconds,
        "dram_bytes_per_second": dram_sectors * SECTOR_BYTES / seconds,
        "l2_use": counters["l2_accesses"] * params.l2_sector_cycles / (slices * cycles),
        "dram_use": bursts * params.dram_sector_cycles / (spec.dram_channels * cycles),
    }  # fmt: skip


def atomic_use(inputs: LaunchInputs, gpu: Gpu, cycles: float) -> float:
    """Share of a launch in which the L2 slice with the most atomics serves them, one after the other; 0 without any."""
    lines, counts = atomic_transactions(inputs)
    if not len(lines) or gpu.spec.perfect_memory:
        return 0.0
    place = lines // max(1, gpu.spec.slice_interleave_bytes // LINE_BYTES)
    most = np.bincount(np.unique(place, return_inverse=True)[1], counts).max()
    return float(most) * max(1.0, gpu.params.l2_atomic_cycles) / cycles


def executions(inputs: LaunchInputs) -> Int64[np.ndarray, " instr"]:
    """How often warps execute each instruction of what is timed."""
    table = inputs.table
    blocks = np.bincount(inputs.trace.blocks, minlength=len(table.block_start))
    found = np.zeros(len(table.kind) + 1, np.int64)
    np.add.at(found, table.block_start, blocks)
    np.add.at(found, table.block_stop, -blocks)
    return np.cumsum(found)[:-1]


def unit_use(inputs: LaunchInputs, gpu: Gpu, active_cycles: int) -> dict[str, float]:
    """Busy time of all units of a kind, and of shared memory with passes after the first, over all time of SMs that
    have work."""
    counts, table = executions(inputs), inputs.table
    busy = np.bincount(table.unit, counts * np.maximum(1, table.initiation_cycles), minlength=len(UNITS))
    found: dict[str, float] = {}
    for unit, name, cycles in zip(UNITS, UNIT_LIMITS, busy.tolist(), strict=True):
        units = getattr(gpu.spec, f"{unit}_units", 1)
        found[name] = max(found.get(name, 0.0), cycles / max(1, units * active_cycles))
    passes = inputs.trace.conflicts
    return found | {CONFLICTS: (int(passes.sum()) - int(np.count_nonzero(passes))) / max(1, active_cycles)}


def halved_share(inputs: LaunchInputs) -> float:
    """What share of the passes after the first half as many passes an access would save: all of two, half of many."""
    passes = inputs.trace.conflicts
    return int((passes // 2).sum()) / max(1, int(passes.sum()) - int(np.count_nonzero(passes)))


FEW_WAIT = 0.5  # of the lines: below, a store counts as one transaction, since to count them takes as long as a trace


def waiting_lines(inputs: LaunchInputs, gpu: Gpu, counters: Mapping[str, float], active_cycles: int) -> float:
    """How many lines of L1D wait for what they miss, of those that can before one more finds its set full of them.

    The mean number is rate times latency (Little 1961). Places are Poisson's: one of the sets is full half of the time
    when each has the mean that Wilson and Hilferty (1931) give for that tail."""
    spec, counts, misses = gpu.spec, executions(inputs), counters["l1d_misses"]
    full, tail = spec.l1d_ways + 1, NormalDist().inv_cdf(1 - 0.5 ** (1 / spec.l1d_sets))
    room = spec.l1d_sets * full * (1 - 1 / (9 * full) + tail / (3 * full**0.5)) ** 3
    share = beyond_l1(gpu, counters) / max(1, active_cycles) / room
    at_most = (misses - int(counts[inputs.table.kind == Kind.GLOBAL_STORE].sum())) * share
    if at_most < FEW_WAIT:
        return max(0.0, at_most)
    return max(0.0, (misses - transactions_of(inputs, Kind.GLOBAL_STORE)) * share)


def lone_warp(inputs: LaunchInputs, gpu: Gpu, counters: Mapping[str, float], code_waits: float) -> dict[str, float]:
    """Cycles that the mean warp would take if no other warp were there, by what it takes them for; ISSUE: to issue.

    Loads take as long as the mean one does, by the hit rates, one after the other. `code_waits`: how often warps waited
    for a line of code that was not in their SM; it comes from DRAM the first time."""
    counts, kind, params = executions(inputs), inputs.table.kind, gpu.params
    shared = (kind >= Kind.SHARED_LOAD) & (kind <= Kind.SHARED_ATOMIC)
    loads = (kind == Kind.GLOBAL_LOAD) | (kind == Kind.TEXTURE_LOAD) | (kind == Kind.L2_LOAD)
    constant = (kind == Kind.PARAM_LOAD) | (kind == Kind.CONST_LOAD)
    beyond = beyond_l1(gpu, counters)
    atomic, code = beyond, params.l2_request_cycles + params.l2_reply_cycles + params.dram_latency_cycles
    if gpu.spec.perfect_memory:
        atomic, code = params.atomic_latency_cycles, 0
    memory = counts[loads].sum() * (params.l1d_latency_cycles + miss_rate(counters, "l1d") * beyond)
    memory += counts[kind == Kind.GLOBAL_ATOMIC].sum() * atomic + code_waits * code
    issue = np.maximum(1, inputs.table.stall_cycles)  # what machine code waits whatever its latencies are
    cycles = {
        ISSUE: (counts * issue).sum(),
        MEMORY: memory + counts[constant].sum() * params.const_latency_cycles,
        SHARED: counts[shared].sum() * params.shared_latency_cycles,
        ARITHMETIC: (counts * np.maximum(0, inputs.table.gap_cycles - issue))[kind < Kind.PARAM_LOAD].sum(),
    }
    return {name: float(value) / (len(inputs.trace.block_offsets) - 1) for name, value in cycles.items()}


def beyond_l1(gpu: Gpu, counters: Mapping[str, float]) -> float:
    """Cycles that a load takes longer if it is not in L1D, where nobody is before it."""
    params = gpu.params
    if gpu.spec.perfect_memory:
        return params.l1_miss_extra_cycles
    in_dram = params.dram_latency_cycles + params.dram_reply_cycles
    return params.l2_request_cycles + params.l2_reply_cycles + miss_rate(counters, "l2") * in_dram


def miss_rate(counters: Mapping[str, float], cache: str) -> float:
    """Of a cache's transactions; 0 of one that nobody asked."""
    return counters[f"{cache}_misses"] / max(1.0, counters[f"{cache}_accesses"])


class Observed(Struct, frozen=True):
    """What a launch did: `lifetime_cycles` of the mean warp, what a `lone_warp` takes them for, how busy each resource
    was while SMs worked, the share of the launch that is its latency, and by how much twice the thread blocks an SM
    would make it fewer waves (1: not at all). `conflicts_saved`: see `halved_share`."""

    lifetime_cycles: float
    alone: Mapping[str, float]
    busy: Mapping[str, float]
    launch_share: float
    fewer_waves: float = 1.0
    conflicts_saved: float = 0.5


# What doubling a resource saved by counterfactuals, over what the sum of squares says: docs/results.md#limit-estimate
SAVED = dict.fromkeys((ISSUE, SHARED, ARITHMETIC), 0.5) | {"ALUs": 0.6, "SFUs": 0.6, "occupancy": 0.7}
SAVED |= {"DRAM bandwidth": 0.4, "L2 bandwidth": 0.1}
UNCLEAR = 0.7  # of the greatest gain: a second one from here on is named, too


def estimated_gains(found: Observed) -> dict[str, float]:
    """An estimate of what twice of each resource, alone, would save of a launch, greatest first.

    A warp lives as long as it would alone, or as the busiest resource takes for all that live with it, or, where both
    are near, longer: the root of the sum of the squares. What a launch takes is its latency and its warps' lives."""
    alone, lifetime = dict(found.alone), found.lifetime_cycles
    own = min(lifetime, alone.pop(ISSUE))
    waits = min(1.0, (lifetime - own) / max(1e-9, sum(alone.values())))  # a warp's loads overlap
    alone = {name: cycles * waits for name, cycles in alone.items()}
    lone, taken = own + sum(alone.values()), {name: busy * lifetime for name, busy in found.busy.items()}

    def life(lone: float, taken: Mapping[str, float]) -> float:
        unit = sum(taken.get(name, 0.0) for name in _OF_ONE_UNIT)
        return hypot(lone, unit, *(cycles for name, cycles in taken.items() if name not in _OF_ONE_UNIT))

    now = life(lone, taken)
    left = dict.fromkeys(taken, 0.5) | {CONFLICTS: 1 - found.conflicts_saved}
    then = {name: life(lone, taken | {name: cycles * left[name]}) for name, cycles in taken.items()}
    then |= {name: life(lone - cycles / 2, taken) for name, cycles in alone.items()}
    doubled = {name: 2 * cycles for name, cycles in taken.items()}
    then["occupancy"] = now if found.fewer_waves == 1 else found.fewer_waves * life(lone, doubled)
    rest = 1 - found.launch_share
    gains = {name: rest * SAVED.get(name, 1.0) * (1 - cycles / now) for name, cycles in then.items()}
    gains["launch latency"] = found.launch_share / 2
    return dict(sorted(gains.items(), key=lambda gain: -gain[1]))


def limit_of(gains: Mapping[str, float]) -> str:
    """What limits a launch, by the estimate of what more of each thing would save."""
    (first, most), (second, next_most) = sorted(gains.items(), key=lambda gain: -gain[1])[:2]
    return first if next_most <= UNCLEAR * most else f"unclear between {first} and {second}"


FLOATS = ("fp32", "fp64", "tensor")
TRAFFIC = ("l2_bytes", "dram_bytes", "dram_read_bytes", "dram_write_bytes")
TENSOR_FLOP = 2 * 16 * 8 * 16  # of an `mma` of fp16, which the tensor unit's initiation is of


def block_operations(program: Program) -> Int64[np.ndarray, "block kind"]:
    """A thread's floating-point operations (FLOATS) in each basic block. A fused multiply-add is two."""
    own = (ptx_operations_of(instruction)._asdict() for instruction in program.instructions)
    found = np.array([[each[kind] for kind in FLOATS] for each in own]).reshape(-1, len(FLOATS))
    return np.array(program.in_blocks(found)).reshape(-1, len(FLOATS))


def work_of(trace: Trace, by_block: Int64[np.ndarray, "block kind"]) -> dict[str, int]:
    """Floating-point operations of a launch's PTX. Lanes that a guard on one instruction turns off count as well."""
    lanes = np.bincount(trace.blocks, np.bitwise_count(trace.masks), len(by_block))
    return {kind: int(lanes @ column) for kind, column in zip(FLOATS, by_block.T, strict=True)}


@lru_cache(128)
def peaks(gpu: Gpu) -> dict[str, float]:
    """What a GPU's description allows at most, a second: fused multiply-adds, `mma` or `wgmma` of fp16, bytes."""
    spec, params = gpu.spec, gpu.params
    issued = spec.schedulers_per_sm * spec.issues_per_turn
    found = {}
    products = min("tensor", "wgmma", key=lambda name: gpu.pipeline.operation(name).initiation_cycles)
    for kind, name, flop in (("fp32", "fp32_mad", 64), ("fp64", "fp64_mad", 64), ("tensor", products, TENSOR_FLOP)):
        own = gpu.pipeline.operation(name)
        warps = min(issued, getattr(spec, f"{own.unit}_units") / own.initiation_cycles)
        if warps and (kind != "tensor" or spec.tensor_units):
            found[f"{kind}_flops"] = warps * flop * spec.sm_count * spec.core_clock_hz
    if not spec.perfect_memory:
        served = {
            "l2": (spec.dram_channels * spec.l2_slices_per_channel * SECTOR_BYTES, params.l2_sector_cycles),
            "dram": (spec.dram_channels * spec.dram_burst_bytes, params.dram_sector_cycles),  # a burst takes that long
        }
        found |= {f"{n}_bytes": moved * spec.core_clock_hz / cycles for n, (moved, cycles) in served.items() if cycles}
    return found


def dram_bytes(memory: Mapping[str, float]) -> float | None:
    """What a launch reads from DRAM and writes to it, together; None by a model that knows no writes (the formula)."""
    if "dram_write_bytes" in memory:
        return memory["dram_read_bytes"] + memory["dram_write_bytes"]
    return memory.get("dram_bytes")


def rates(
    work: Mapping[str, int], memory: Mapping[str, float], seconds: float, most: Mapping[str, float]
) -> dict[str, float]:
    """Of a launch, per second: `fp32_flops`, `fp64_flops`, `tensor_flops`, `l2_bytes`, `dram_bytes`, and each one's
    share of the GPU's peak (`..._share`), where there is one."""
    done = {f"{kind}_flops": float(count) for kind, count in work.items() if count}
    moved = {"l2_bytes": memory.get("l2_bytes"), "dram_bytes": dram_bytes(memory)}
    done |= {name: float(count) for name, count in moved.items() if count is not None}
    found = {name: count / seconds for name, count in done.items() if most.get(name) or name.endswith("flops")}
    return found | {f"{name}_share": rate / most[name] for name, rate in found.items() if name in most}


def grid_notes(name: str, blocks: int, blocks_per_sm: int, sm_count: int) -> Sequence[str]:
    """What a grid leaves idle: SMs without a thread block, or a last wave that is not full."""
    if blocks < sm_count:
        return [f"{name}: a grid of {blocks:,} on {sm_count:,} SMs: {sm_count - blocks:,} of them have nothing to do"]
    wave = blocks_per_sm * sm_count
    waves, last = divmod(blocks, wave)
    if not waves or not last:
        return []
    return [f"{name}: {blocks / wave:.3g} waves of {wave:,} thread blocks; the last fills {last / wave:.0%} of one"]
