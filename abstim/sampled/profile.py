"""What is known of a program's launches before any is timed: a `sampling.Profile` from its traces."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64

from abstim.config import Gpu
from abstim.sampled.counts import in_memory, sums
from abstim.sampled.features import basic_block_vector, by_thread_block, kinds_of, launch_counts
from abstim.sampled.program import SampledProgram
from functional.trace import Trace
from precharacterize import LatencyTable
from precharacterize.classify import Kind
from sampling import Profile
from sampling.pka import LightProfile
from sampling.pka.features import features
from sampling.statistics import coefficient_of_variation


def profile_of(program: SampledProgram) -> Profile:
    """Executes every launch. `cycles` are those of `expected_cycles`, which nobody has simulated."""
    numbers = range(len(program))
    rows = [_row(program, number) for number in numbers]
    columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    launches = program.case.launches
    names = [launch.program.name for launch in launches]
    programs = {launch.program.name: launch.program for launch in launches}
    known = {name: kinds_of(each) for name, each in programs.items()}
    counts = [launch_counts(launch.program, program.trace(n), known[names[n]]) for n, launch in enumerate(launches)]
    return Profile(
        kernels=np.unique(names, return_inverse=True)[1].reshape(-1),
        thread_blocks=np.array([launch.thread_blocks for launch in launches]),
        threads_per_block=np.array([launch.threads_per_block for launch in launches]),
        features=features({name: np.array([row[name] for row in counts]) for name in counts[0]}),
        basic_blocks=_basic_blocks(program, names),
        **columns,
    )


def light_profile_of(program: SampledProgram) -> LightProfile:
    """What a profiler gives at almost no cost: names and shapes; nothing is executed for it."""
    launches = program.case.launches
    shapes = np.array([[*launch.grid, *launch.block] for launch in launches], float)
    return LightProfile([launch.program.name for launch in launches], shapes)


def _row(program: SampledProgram, number: int) -> dict[str, float]:
    trace = program.trace(number)
    requests, issued, threads = by_thread_block(trace)
    return {
        "instructions": float(issued.sum()),
        "thread_instructions": float(threads.sum()),
        "memory_requests": float(requests.sum()),
        "block_size_variation": coefficient_of_variation(threads),
        "cycles": expected_cycles(trace, program.table(number), program.gpu, program.blocks_per_sm[number]),
    }


def _basic_blocks(program: SampledProgram, names: list[str]) -> Float64[np.ndarray, "launch basic_block"]:
    """Each kernel's basic blocks have their own columns."""
    widths = {launch.program.name: len(launch.program.blocks) for launch in program.case.launches}
    starts = dict(zip(widths, np.cumsum([0, *widths.values()])[:-1].tolist(), strict=True))
    found = np.zeros((len(names), sum(widths.values())))
    for number, name in enumerate(names):
        vector = basic_block_vector(program.case.launches[number].program, program.trace(number))
        found[number, starts[name] : starts[name] + len(vector)] = vector
    return found


def expected_cycles(trace: Trace, table: LatencyTable, gpu: Gpu, blocks_per_sm: int) -> float:
    """Roughly a launch's cycles: the largest of what issuing, fetching each line once, and waves of lone blocks take.

    It stands for the time a profiler would have measured, where none has: to tell long launches from short ones.
    """
    spec, params = gpu.spec, gpu.params
    blocks = len(trace.thread_blocks)
    issue = trace.warp_instructions.sum() / (min(spec.sm_count, blocks) * spec.schedulers_per_sm)
    lines = trace.records[in_memory(trace.records)] >> 5
    fetched = len(np.unique(lines))
    memory = 0.0 if spec.perfect_memory else fetched * 4 * params.dram_sector_cycles / spec.dram_channels
    alone = _lone_block_cycles(trace, table, gpu, fetched / max(len(lines), 1))
    slots = min(blocks_per_sm * spec.sm_count, blocks)
    return float(max(issue, memory, alone.max(), alone.sum() / slots, 1.0)) + params.launch_latency_cycles


def _lone_block_cycles(trace: Trace, table: LatencyTable, gpu: Gpu, missing: float) -> Float64[np.ndarray, " tb"]:
    """Cycles of each thread block's slowest warp by itself: loads of one basic block overlap, those of two do not.

    `missing`: share of the accesses that leave L1D.
    """
    params = gpu.params
    beyond = params.l1_miss_extra_cycles if gpu.spec.perfect_memory else (
        params.l2_request_cycles + params.l2_reply_cycles + params.dram_latency_cycles
    )  # fmt: skip
    loads = np.maximum.reduceat(table.kind == Kind.GLOBAL_LOAD, table.block_start)
    cycles = np.add.reduceat(table.gap_cycles, table.block_start) + loads * (
        params.l1d_latency_cycles + missing * beyond
    )
    warps = sums(cycles[trace.blocks], np.diff(trace.block_offsets))
    return warps.reshape(-1, trace.warps_per_block).max(1)
