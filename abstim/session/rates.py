"""A launch in the units of hardware: TFLOP/s, GB/s, and shares of what the GPU could do at most."""

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from abstim.gpu.config import Gpu
from functional.arrays import Int64
from functional.programs.program import Program
from functional.traces.trace import SECTOR_BYTES, Trace
from precharacterize.classify import ptx_operations_of

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
