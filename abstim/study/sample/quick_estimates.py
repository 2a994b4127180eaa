"""Quick estimates of launches, to which auto fits cycles besides their work: by other methods and models, on one SM.

One SM with the thread blocks that it would get of a launch costs one `sm_count`-th. Where thread blocks do alike and
memory does not decide, it says a launch's cycles to a few per cent, since each SM does the same at the same time (Liu
and others, Scale-Model Architectural Simulation, ISPASS 2022; SeyyedAghaei and others, GPU Scale-Model Simulation, HPCA
2024). L2 and DRAM are whole, and that SM's alone: with bandwidth cut down like the SMs, data that all of them share are
read anew for one, and convolutions were up to 1.9 times too long. No such estimate is the truth: launches are simulated
in full besides, and the fit takes away what it is off by, or gives it no share.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial

import numpy as np

from abstim.models import DETAILED, MODELS, model_named
from abstim.progress import in_parallel
from abstim.session.warm_up import EMPTY
from abstim.study.sample.inside import INSIDE
from abstim.study.sample.profiling import data_decide, kinds_of_launches
from abstim.study.sample.sampled_program import SampledProgram
from abstim.study.sample.work import WORK, dram_cycles
from functional.arrays import Bool, Float64, Int64
from sampling import Part
from sampling.auto.iterations import Timed
from sampling.auto.launches import ProgramWork

# Warp instructions an SM. Of six kinds of launches of ResNet-152, five each, those of so many lasted as long as each
# other within 0.2 to 0.5 % on the GTX 480 and 0.2 to 1.2 % on the RTX 3070 (standard deviations), smaller ones within
# 0.3 to 2 % and 0.4 to 6 %
LARGE_INSTRUCTIONS = 20_000


def regular(program: SampledProgram, asked: Bool[np.ndarray, " launch"]) -> Bool[np.ndarray, " launch"]:
    """Those `asked` for whose thread blocks do alike, whatever the data, and wait for no other thread block."""
    found = asked & (program.launches.signatures is not None)
    for number in np.flatnonzero(found).tolist():  # a stream makes each launch as it is looked at
        launch = program.case.launches[number]
        waits = launch.cluster.total > 1 or bool(launch.grid_workspace)
        found[number] = not waits and not data_decide(launch.program)
    return found


def large(program: SampledProgram, instructions: Float64[np.ndarray, " launch"]) -> Bool[np.ndarray, " launch"]:
    """Launches of so many warp instructions that chance evens out."""
    return np.asarray(instructions >= program.gpu.spec.sm_count * LARGE_INSTRUCTIONS)


def lasting_alike(
    program: SampledProgram, kinds: Int64[np.ndarray, " launch"], instructions: Float64[np.ndarray, " launch"]
) -> Int64[np.ndarray, " launch"]:
    """Equal where launches of one of the `kinds`, which do the same, last as long too: not where the launch before
    decides what they find in the caches."""
    alike = regular(program, large(program, instructions) & (program.warm_up.name == EMPTY))
    own = kinds.max() + 1 + np.arange(len(kinds))
    return np.unique(np.where(alike, kinds, own), return_inverse=True)[1].reshape(-1)


MOST_COST = 0.05  # of simulating the whole program: beyond, it is no help but a burden
FEWEST = 6  # kinds of launches: fewer are simulated as soon


def with_one_sm(program: SampledProgram, work: ProgramWork) -> tuple[ProgramWork, tuple[Part, ...]]:
    """The work, and of launches that are large and regular what they take on one SM: whatever kernel they are of, they
    are predicted from each other. With what was simulated for it, which is none of the program's cycles; as it is, and
    nothing, where it would not pay."""
    kinds = kinds_of_launches(program)
    first = np.unique(kinds, return_index=True)[1]
    # regular launches of kernels most of whose work is in large ones: a kernel's launches stay together
    squares, sums = (np.bincount(work.kernels, work.instructions**power) for power in (2, 1))
    typical = squares / np.maximum(sums, 1.0)
    first = first[regular(program, large(program, typical[work.kernels]))[first]].tolist()
    cost = float(work.cost[first].sum()) / program.gpu.spec.sm_count
    few_or_dear = len(first) < FEWEST or cost > MOST_COST * float(work.cost.sum())
    if program.warm_up.name != EMPTY or few_or_dear:
        return work, ()
    report, cores = partial(program.progress, "one SM"), os.cpu_count() or 1
    simulated = in_parallel(lambda place: _on_one_sm(program, first[place]), len(first), cores, report)
    timed = dict(zip(kinds[first].tolist(), simulated, strict=True))
    cycles = np.array([timed[kind].cycles if kind in timed else 0.0 for kind in kinds.tolist()])
    # Where DRAM takes as long for all SMs, it decides, and one SM alone tells nothing of it
    told = cycles > dram_cycles(work.columns[:, WORK.index("l2_misses")], program.gpu)
    one_sm = np.where(told, cycles + program.gpu.params.launch_latency_cycles, 0.0)
    kernels = np.where(told, work.kernels.max() + 1, work.kernels)
    return replace(work, one_sm=one_sm, kernels=kernels), tuple(
        Part(name=program.name(number), how="one SM", instructions=timed[kinds[number]].instructions, cycles=0.0)
        for number in first
    )


def _on_one_sm(program: SampledProgram, number: int) -> Timed:
    gpu, blocks = program.gpu, program.session.launch(number).thread_blocks
    one = replace(gpu, spec=replace(gpu.spec, sm_count=1))
    cut = partial(program.launches.look_at, number, range(0, blocks, gpu.spec.sm_count))
    found = program.timed(number, "one SM", one, cut)
    assert found is not None
    return found


_WAYS = ("photon", "pkp", "tbpoint")  # of INSIDE
CONTROLS = (*_WAYS, *(name for name in MODELS if name != DETAILED))


def _quick(program: SampledProgram, number: int, name: str) -> Timed:
    """An estimate of a launch, and the warp instructions that were simulated in detail for it."""
    if name not in _WAYS:
        return Timed(0.0, float(model_named(name).launch_on(program.session, number, [program.gpu])[0].cycles))
    found = INSIDE[name](program, number)
    return Timed(found.detailed_fraction * sum(part.instructions for part in found.parts), found.total)


def with_control(program: SampledProgram, work: ProgramWork, name: str) -> tuple[ProgramWork, float]:
    """The work with a column more, and the share of all instructions that was simulated for it. Of launches with
    equal traces one is estimated."""
    kind = kinds_of_launches(program)
    found: list[Timed] = []
    for number in np.unique(kind, return_index=True)[1].tolist():  # in their order, which numbers kinds
        program.progress("control", number, len(program))
        found.append(_quick(program, number, name))
        program.launches.drop(number)
    column = np.array([quick.cycles for quick in found])[kind]
    spent = sum(quick.instructions for quick in found) / float(work.instructions.sum())
    return replace(work, columns=np.column_stack([work.columns, column])), spent
