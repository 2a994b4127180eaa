"""What launches take on one SM of a GPU, with the thread blocks that it would get of them: a scale model.

It costs one `sm_count`-th, and where thread blocks do alike and memory does not decide it says a launch's cycles to a
few per cent, since each SM does the same at the same time (Liu and others, Scale-Model Architectural Simulation,
ISPASS 2022; SeyyedAghaei and others, GPU Scale-Model Simulation, HPCA 2024). L2 and DRAM are whole, and that SM's
alone: with bandwidth cut down like the SMs, data that all of them share are read anew for one, and convolutions were up
to 1.9 times too long. So it is no truth: launches are simulated in full besides, which tell what it is off by.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from abstim.gpu.config import Gpu
from abstim.progress import in_parallel
from abstim.session.warm_up import EMPTY
from abstim.study.sample.profiling import kinds_of_launches
from abstim.study.sample.regular import large, regular
from abstim.study.sample.sampled_program import SampledProgram
from abstim.study.sample.work import WORK, dram_cycles
from sampling import Part
from sampling.auto import ProgramWork, Timed

if TYPE_CHECKING:
    from jaxtyping import Bool

MOST_COST = 0.05  # of simulating the whole program: beyond, it is no help but a burden
FEWEST = 6  # kinds of launches: fewer are simulated as soon


def with_one_sm(program: SampledProgram, work: ProgramWork) -> tuple[ProgramWork, tuple[Part, ...]]:
    """The work, and of launches that are large and regular what they take on one SM: whatever kernel they are of, they
    are predicted from each other. With what was simulated for it, which is none of the program's cycles; as it is, and
    nothing, where it would not pay."""
    kinds = kinds_of_launches(program)
    first = np.unique(kinds, return_index=True)[1]
    first = first[_wanted(program, work)[first]].tolist()
    if not _pays(program, work, first):
        return work, ()
    timed = dict(zip(kinds[first].tolist(), _simulated(program, first), strict=True))
    cycles = np.array([timed[kind].cycles if kind in timed else 0.0 for kind in kinds.tolist()])
    # Where DRAM takes as long for all SMs, it decides, and one SM alone tells nothing of it
    told = cycles > dram_cycles(work.columns[:, WORK.index("l2_misses")], program.gpu)
    one_sm = np.where(told, cycles + program.gpu.params.launch_latency_cycles, 0.0)
    kernels = np.where(told, work.kernels.max() + 1, work.kernels)
    return replace(work, one_sm=one_sm, kernels=kernels), tuple(
        Part(name=program.name(number), how="one SM", instructions=timed[kinds[number]].instructions, cycles=0.0)
        for number in first
    )


def one_sm_of(gpu: Gpu) -> Gpu:
    """The GPU with a single SM."""
    return replace(gpu, spec=replace(gpu.spec, sm_count=1))


def _wanted(program: SampledProgram, work: ProgramWork) -> Bool[np.ndarray, " launch"]:
    """Regular launches of kernels most of whose work is in large ones: a kernel's launches stay together."""
    squares, sums = (np.bincount(work.kernels, work.instructions**power) for power in (2, 1))
    typical = squares / np.maximum(sums, 1.0)
    return regular(program, large(program, typical[work.kernels]))


def _pays(program: SampledProgram, work: ProgramWork, first: list[int]) -> bool:
    """Whether it is possible, tells of enough launches, and costs little beside the whole."""
    cost = float(work.cost[first].sum()) / program.gpu.spec.sm_count
    return program.warm_up.name == EMPTY and len(first) >= FEWEST and cost <= MOST_COST * float(work.cost.sum())


def _simulated(program: SampledProgram, launches: list[int]) -> list[Timed]:
    """Each of them on one SM, as many at once as there are cores."""
    report = partial(program.progress, "one SM")
    return in_parallel(lambda place: _on_one_sm(program, launches[place]), len(launches), os.cpu_count() or 1, report)


def _on_one_sm(program: SampledProgram, number: int) -> Timed:
    part = program.part(number)
    if part.one_sm is None:
        gpu, blocks = program.gpu, program.session.launch(number).thread_blocks
        trace = program.launches.look_at(number, range(0, blocks, gpu.spec.sm_count))
        started = perf_counter()
        cycles = program.session.simulate(number, one_sm_of(gpu), trace).cycles - gpu.params.launch_latency_cycles
        program.spent("time", perf_counter() - started)
        part.one_sm = Timed(float(trace.warp_instructions.sum()), float(cycles))
    return part.one_sm
