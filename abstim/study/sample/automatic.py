"""`--method auto` on the engine: the work of every launch, then as much simulation as the error asked for takes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from abstim.engine.design_point import numbers_of
from abstim.gpu.config import Gpu
from abstim.models import DETAILED, MODELS, model_named
from abstim.progress import in_parallel
from abstim.session.result import timed_facts
from abstim.session.warm_up import EMPTY
from abstim.study.sample.counts import ON_LINES
from abstim.study.sample.inside import INSIDE, full, simulate
from abstim.study.sample.profiling import PROFILED_BLOCKS, SomeBlocks, data_decide, kinds_of_launches, of_each_kind
from abstim.study.sample.sampled_program import SampledProgram
from abstim.study.sample.work import EACH_BLOCK, EACH_LINES, WORK, BlockWork, block_work, dram_cycles, slow_code, summed
from functional.arrays import Bool, Float64, Int64
from functional.errors import InputError, refuse
from functional.launches.launch import Pointer
from functional.programs.program import Program
from functional.traces.line_record import in_phases, more_follow
from functional.traces.trace import Trace, offsets_of
from precharacterize.classify import Kind, kinds_of
from precharacterize.synchronisation import NONE, barriers_of
from sampling import Estimate, Part
from sampling.auto.iterations import SHARES, IterationSampling, Timed, uneven
from sampling.auto.launches import LaunchSampling, ProgramWork
from sampling.auto.segments import SegmentSampling, cut_into_segments, has_giants
from sampling.auto.steady import SteadySampling, equal_blocks
from sampling.statistics import CONFIDENCE, numbered

MOST_RUNS = 8  # stretches of a warp's life that are kept: it may have phases
SHORTEST_RUN = 4  # iterations of the shortest of them, at the smallest share
BARRIER = "bar"


@dataclass(frozen=True, eq=False)
class Iterations:
    """Of every event of a trace: which iteration of its warp's loop it belongs to, of how many.

    Where there are barriers, an iteration begins with the one that is passed most often: warps of a thread block must
    go on meeting at the same ones. 0 is what comes before the first, the last one includes what comes after it.
    Elsewhere each event is one: nothing else need stay together."""

    number: Int64[np.ndarray, " event"]
    count: Int64[np.ndarray, " event"]

    def kept(self, share: float, smallest: float) -> Bool[np.ndarray, " event"]:
        """Events of about `share` of the iterations: first, last, and as many runs as for the `smallest` share."""
        runs = np.clip((smallest * self.count / SHORTEST_RUN).astype(np.int64), 1, MOST_RUNS)
        inside = (self.number * runs) % self.count < share * self.count
        return inside | (self.number == 0) | (self.number == self.count - 1)


def iterations_of(program: Program, trace: Trace) -> Iterations:
    """See `Iterations`."""
    lengths = np.diff(trace.block_offsets)
    passed = np.bincount(trace.blocks, minlength=len(program.blocks)) * (_barriers(program) > 0)
    if not passed.any():
        place = np.arange(len(trace.blocks)) - np.repeat(trace.block_offsets[:-1], lengths)
        return Iterations(place, np.repeat(lengths, lengths))
    begun = offsets_of(trace.blocks == int(np.argmax(passed)))
    at = begun[trace.block_offsets]
    return Iterations(begun[1:] - np.repeat(at[:-1], lengths), np.repeat(np.diff(at) + 1, lengths))


def thinned(program: Program, trace: Trace, kept: Bool[np.ndarray, " event"]) -> Trace | None:
    """The trace of these events alone. None where warps of a thread block would wait at different barriers, and for
    programs whose barriers are not for all warps of a thread block, or for more, or are `mbarrier`s."""
    kinds = kinds_of(program)
    whole_blocks = set(barriers_of(program.instructions, kinds)) <= {NONE, 0}
    if not (whole_blocks and _meet(program, trace, kept)) or in_phases(trace.records).any():
        return None
    counted = [np.array(program.in_blocks(np.isin(kinds, list(of)))) for of in (ON_LINES, _SHARED)]
    accesses, conflicts = (np.repeat(kept, of_block[trace.blocks]) for of_block in counted)
    last = np.flatnonzero(more_follow(trace.records) == 0)
    records = np.repeat(accesses, np.diff(last, prepend=-1))
    issued = np.array([block.stop - block.start for block in program.blocks])[trace.blocks] * kept
    counts = np.diff(offsets_of(issued)[trace.block_offsets])
    share = counts / np.maximum(trace.warp_instructions, 1)
    return replace(
        trace.keeping(records, trace.records[records]),
        blocks=trace.blocks[kept],
        masks=trace.masks[kept],
        conflicts=trace.conflicts[conflicts],
        block_offsets=offsets_of(kept)[trace.block_offsets],
        conflict_offsets=offsets_of(conflicts)[trace.conflict_offsets],
        warp_instructions=counts,
        thread_instructions=np.rint(trace.thread_instructions * share).astype(np.int64),
    )


_SHARED = frozenset(kind for kind in Kind if kind.name.startswith("SHARED"))


def _barriers(program: Program) -> Int64[np.ndarray, " basic_block"]:
    return np.array(program.in_blocks([instruction.opcode.startswith(BARRIER) for instruction in program.instructions]))


def _meet(program: Program, trace: Trace, kept: Bool[np.ndarray, " event"]) -> bool:
    """Do warps of a thread block that passed as many barriers before still do so?"""
    barriers = _barriers(program)[trace.blocks]
    if not barriers.any():
        return True
    offsets = [offsets_of(column)[trace.block_offsets] for column in (barriers, barriers * kept)]
    all_of, those = (np.diff(own).reshape(-1, trace.warps_per_block) for own in offsets)
    return bool(((all_of == all_of[:, :1]) & (those == those[:, :1])).all())


# Quick estimates of launches, to which auto fits cycles besides their work: by other methods and models, on one SM.
#
# One SM with the thread blocks that it would get of a launch costs one `sm_count`-th. Where thread blocks do alike and
# memory does not decide, it says a launch's cycles to a few per cent, since each SM does the same at the same time (Liu
# and others, Scale-Model Architectural Simulation, ISPASS 2022; SeyyedAghaei and others, GPU Scale-Model Simulation,
# HPCA 2024). L2 and DRAM are whole, and that SM's alone: with bandwidth cut down like the SMs, data that all of them
# share are read anew for one, and convolutions were up to 1.9 times too long. No such estimate is the truth: launches
# are simulated in full besides, and the fit takes away what it is off by, or gives it no share.

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
        found[number] = not waits and not data_decide(launch.program, program.launches.slow_paths)
    return found


def large(program: SampledProgram, instructions: Float64[np.ndarray, " launch"]) -> Bool[np.ndarray, " launch"]:
    """Launches of so many warp instructions that chance evens out."""
    return np.asarray(instructions >= program.gpu.spec.sm_count * LARGE_INSTRUCTIONS)


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
    report = partial(program.progress, "one SM")
    simulated = in_parallel(lambda place: _on_one_sm(program, first[place]), len(first), report)
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


def with_control(program: SampledProgram, work: ProgramWork, name: str) -> tuple[ProgramWork, float]:
    """The work with a column more, and the share of all instructions that was simulated in detail for it. Of launches
    with equal traces one is estimated."""
    kind = kinds_of_launches(program)
    found: list[Timed] = []
    for number in np.unique(kind, return_index=True)[1].tolist():  # in their order, which numbers kinds
        program.progress("control", number, len(program))
        if name in _WAYS:
            own = INSIDE[name](program, number)
            found.append(Timed(own.detailed_fraction * sum(part.instructions for part in own.parts), own.total))
        else:
            row = model_named(name).launch_on(program.session, number, [program.gpu])[0]
            found.append(Timed(0.0, float(row.cycles)))
        program.launches.drop(number)
    column = np.array([quick.cycles for quick in found])[kind]
    spent = sum(quick.instructions for quick in found) / float(work.instructions.sum())
    return replace(work, columns=np.column_stack([work.columns, column])), spent


REQUEST_COST = 2.0  # of simulating a memory request, where a warp instruction is 1
LAUNCH_COST = 1000.0
CHEAP = 200_000  # warp instructions of a launch of which all thread blocks are executed, to know its edges


@dataclass(frozen=True)
class Aim:
    """What a sample is to reach: half of the interval, at this confidence, is at most `error` of the cycles. `control`:
    a quick estimate, of CONTROLS, that cycles of launches are fitted to besides their work. Raises InputError for what
    none can."""

    error: float = 0.02
    confidence: float = CONFIDENCE
    control: str = ""
    seed: int = 0  # of what is chosen at random, by any method

    def __post_init__(self) -> None:
        refuse(self.control not in ("", *CONTROLS), f"--control {self.control}: there are {', '.join(CONTROLS)}")
        if not 0.0 < self.error < 1.0:
            said = f"an error of {100 * self.error:.4g} %"
            raise InputError(f"{said} cannot be aimed at; give more than 0 % and less than 100 %")
        if not 0.5 <= self.confidence < 1.0:
            raise InputError(f"a confidence of {self.confidence:.4g} is none to aim at; give 50 % or more, below 100 %")


def automatic(program: SampledProgram, aim: Aim, name: str = "auto") -> Estimate:
    """Launches are chosen; of long ones, segments. Raises InputError for a program whose launches must come in turn."""
    check_turn(program)
    work, on_one_sm = with_one_sm(program, work_of(program))
    spent = sum(part.instructions for part in on_one_sm) / float(work.instructions.sum())
    if aim.control:
        work, more = with_control(program, work, aim.control)
        spent += more
    found = choose(program, work, aim)[0]
    fraction = min(found.detailed_fraction + spent, 1.0)
    executed = program.executed_instructions / float(work.instructions.sum())
    return replace(
        found, parts=(*found.parts, *on_one_sm), detailed_fraction=fraction,
        functional_fraction=1.0 if program.launches.given else min(max(fraction, executed), 1.0),
    )  # fmt: skip


def check_turn(program: SampledProgram) -> None:
    """Raises InputError for a program whose launches must come in turn."""
    in_turn = program.warm_up.in_order or not (program.launches.given or program.launches.signatures is not None)
    what_to_do = "which this program or warm-up does not allow; --method stem"
    refuse(in_turn, f"auto goes back to earlier launches, {what_to_do}")


def choose(program: SampledProgram, work: ProgramWork, aim: Aim) -> tuple[Estimate, dict[int, Estimate]]:
    """The estimate, and the launches that it was made of, in the order in which they were chosen."""
    chosen: dict[int, Estimate] = {}

    def measure(rows: Sequence[int]) -> list[Estimate]:
        ascending = sorted(rows)
        estimates = dict(zip(ascending, simulate(program, ascending, partial(_launch, aim=aim)), strict=True))
        chosen.update({row: estimates[row] for row in rows})
        return [estimates[row] for row in rows]

    return LaunchSampling(error=aim.error, confidence=aim.confidence, seed=aim.seed).program(work, measure), chosen


def _launch(program: SampledProgram, number: int, aim: Aim) -> Estimate:
    """A chosen launch: from its first waves, from segments or from iterations where that pays, else in full. Of machine
    code nothing but the first: segments and iterations are told by PTX instructions. A launch of clusters is whole."""
    launch = program.session.launch(number)
    if "full" in program.part(number).found or launch.cluster.total > 1:
        return full(program, number)
    shape, steady = program.shape(number), SteadySampling(error=aim.error, confidence=aim.confidence)
    many_waves = cut_into_segments(shape) is not None
    iterations = IterationSampling(error=aim.error, confidence=aim.confidence)
    found = None
    if steady.worth_trying(shape) and (sum_of := _equal_blocks(program, number)) is not None:
        simulator, part = program.simulator(number), program.part(number)
        found = steady.launch(simulator, sum_of, part.steady)
        if (seen := simulator.thread_blocks.trace) is not None:
            part.timed_shares = timed_facts(program.session, number, seen, program.gpu).get("timed_shares", {})
    if found is None and program.gpu.spec.timed_code == "ptx" and (many_waves or iterations.worth_trying):
        blocks = _work_of_blocks(program, number, program.launches.trace(number))
        order = np.argsort(program.launches.trace(number).thread_blocks)
        columns, longest = blocks.columns[order], blocks.path_instructions[order]
        if many_waves and not has_giants(longest, shape):
            sampling = SegmentSampling(error=aim.error, confidence=aim.confidence)
            found = sampling.launch(program.simulator(number), columns, longest, program.part(number).segments)
        elif not many_waves and not uneven(longest):
            trace = program.launches.trace(number)
            all_of = iterations_of(launch.program, trace)

            def timed(share: float) -> Timed | None:  # a share of its iterations; None where warps no longer meet
                what, kept = f"{share} of the iterations", partial(all_of.kept, share, SHARES[0])
                return program.timed(number, what, program.gpu, lambda: thinned(launch.program, trace, kept()))

            latency = float(program.gpu.params.launch_latency_cycles)
            found = iterations.launch(float(columns[:, 0].sum()), latency, timed)
    return found or full(program, number)


def _work_of_blocks(program: SampledProgram, number: int, trace: Trace) -> BlockWork:
    kernel, resident = program.session.launch(number).program, program.session.blocks_per_sm(number, program.gpu)
    return block_work([trace], program.gpu, slow_code(kernel, program.launches.slow_paths), resident)[0]


def _equal_blocks(program: SampledProgram, number: int) -> float | None:
    """Warp instructions of a launch whose thread blocks do the same, by some of them; None where data decide."""
    launches, launch = program.launches, program.session.launch(number)
    all_of = launches.signatures is None or data_decide(launch.program, launches.slow_paths)
    if all_of:
        trace = launches.trace(number)
    else:
        blocks = np.unique(np.linspace(0, launch.thread_blocks - 1, PROFILED_BLOCKS).astype(int))
        trace = launches.look_at(number, blocks.tolist())
    columns = _work_of_blocks(program, number, trace).columns
    wave_blocks = program.shape(number).wave_blocks if all_of else 1
    alike = equal_blocks(columns[:, EACH_BLOCK], columns[:, EACH_LINES], wave_blocks)
    return float(columns[:, 0].mean()) * launch.thread_blocks if alike else None


def work_of(program: SampledProgram) -> ProgramWork:
    """A row a launch; of launches with equal traces one is executed, and of regular ones PROFILED_BLOCKS."""
    return work_on(program, [program.gpu])[0]


def work_on(program: SampledProgram, gpus: Sequence[Gpu]) -> list[ProgramWork]:
    """`work_of` on several GPUs from one execution. Raises InputError for a thread block that does not fit."""
    rows, kind = of_each_kind(program, lambda number, some: _rows(program, number, some, gpus), CHEAP)
    names = [launch.program.name for launch in program.case.launches]
    kernels = np.unique(names, return_inverse=True)[1].reshape(-1)
    columns = [np.array([each[k] for each in rows])[kind] for k in range(len(gpus))]
    # launches of one kind last as long, too, but where the launch before decides what they find in the caches
    alike = regular(program, large(program, columns[0][:, 1]) & (program.warm_up.name == EMPTY))
    alone = kind.max() + 1 + np.arange(len(kind))
    kinds = np.unique(np.where(alike, kind, alone), return_inverse=True)[1].reshape(-1)
    # equal for launches whose arguments, but for where buffers are, are the same
    given = numbered(tuple(a for a in x.arguments if not isinstance(a, Pointer)) for x in program.case.launches)
    return [
        ProgramWork(
            kernels=kernels, kinds=kinds, columns=each, given=given, instructions=each[:, 1],
            cost=each[:, 1] + REQUEST_COST * each[:, 2] + LAUNCH_COST,
        )
        for each in columns
    ]  # fmt: skip


def _rows(program: SampledProgram, number: int, executed: SomeBlocks, gpus: Sequence[Gpu]) -> list[np.ndarray]:
    session, pieces = program.session, [trace for trace, _ in executed.pieces]
    slow = slow_code(session.launch(number).program, program.launches.slow_paths)
    counted: dict[bytes, list[BlockWork]] = {}
    found = []
    for gpu in gpus:
        resident = session.blocks_per_sm(number, gpu)
        caches = numbers_of(gpu).tobytes() + bytes([resident])
        if caches not in counted:
            counted[caches] = block_work(pieces, gpu, slow, resident)
        found.append(summed(counted[caches], executed, resident * gpu.spec.sm_count))
    return found
