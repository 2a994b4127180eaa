"""The profile of a program's launches before any is timed: from all of its traces or, where launches can be executed
alone, from a few thread blocks of one launch of each kind."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np

from abstim.gpu.config import Gpu
from abstim.study.sample import counts
from abstim.study.sample.sampled_program import SampledProgram
from functional.arrays import Int64
from functional.programs.dependence import trace_inputs
from functional.programs.program import Program
from functional.traces.line_record import line_of, with_places
from functional.traces.trace import Trace
from precharacterize.classify import kinds_of
from sampling import Profile
from sampling.nsight import LightProfile, features, padded
from sampling.statistics import coefficient_of_variation, numbered

Row = dict[str, float | np.ndarray]


Count = TypeVar("Count", float, np.ndarray)


@dataclass(frozen=True)
class SomeBlocks:
    """Pieces of one launch: traces, and how many thread blocks each of a trace's stands for (of the first: itself)."""

    thread_blocks: int  # of the launch
    pieces: tuple[tuple[Trace, float], ...]

    @property
    def all_of_it(self) -> bool:
        """Every thread block was executed: no weight is above 1."""
        return self.count == self.thread_blocks

    @property
    def count(self) -> int:
        """Thread blocks that were executed."""
        return sum(len(trace.thread_blocks) for trace, _ in self.pieces)

    def total(self, of: Callable[[Trace], Count]) -> Count:
        """A sum over the launch's thread blocks, from that over a trace's."""
        return sum((of(trace) * weight for trace, weight in self.pieces[1:]), start=of(self.pieces[0][0]))

    def each(self, of: Callable[[Trace], np.ndarray]) -> np.ndarray:
        """Values of the thread blocks that were executed."""
        return np.concatenate([of(trace) for trace, _ in self.pieces])

    def lines(self) -> float:
        """Distinct cache lines in global and local memory that the launch touches. They grow with the thread blocks not
        executed as they did over the last half of those that were."""
        *before, inner = [_lines(trace) for trace, _ in self.pieces]
        distinct = len(np.unique(np.concatenate([*before, inner])))
        if self.all_of_it:
            return float(distinct)
        last = self.pieces[-1][0]
        half = np.arange(0, len(last.thread_blocks), 2)
        fewer = len(np.unique(np.concatenate([*before, _lines(counts.part_of(last, half))])))
        growth = (distinct - fewer) / max(len(last.thread_blocks) - len(half), 1)
        return distinct + growth * (self.thread_blocks - self.count)


def execute_some(run: Callable[[list[int]], Trace], thread_blocks: int, most: int) -> SomeBlocks:
    """About `most` thread blocks at most: the first, the last, and of those between some, evenly, for all of them."""
    if thread_blocks <= most:
        return SomeBlocks(thread_blocks, ((run(list(range(thread_blocks))), 1.0),))
    between = np.unique(np.linspace(1, thread_blocks - 2, most - 2).astype(np.int64))
    share = (thread_blocks - 2) / len(between)
    return SomeBlocks(thread_blocks, ((run([0, thread_blocks - 1]), 1.0), (run(between.tolist()), share)))


def _lines(trace: Trace) -> np.ndarray:
    return line_of(with_places(trace)[counts.in_memory(trace.records)])


PROFILED_BLOCKS = 16  # thread blocks a launch of which not all need to be executed


def profile_of(program: SampledProgram) -> Profile:
    """`cycles` are those of `expected_cycles`, which nobody has simulated."""
    case, gpu = program.case, program.gpu
    rows, kind = of_each_kind(program, lambda number, some: row(case.launches[number].program, some, gpu))
    launches = [(each.program.name, each.thread_blocks, each.threads_per_block) for each in case.launches]
    names, thread_blocks, threads_per_block = zip(*launches, strict=True)
    kernels = numbered(names)
    columns = {name: np.array([row[name] for row in rows])[kind] for name in rows[0] if name != "basic_blocks"}
    # each kernel's basic blocks have their own columns
    first, vectors = np.unique(kind, return_index=True)[1], [np.asarray(row["basic_blocks"]) for row in rows]
    widths = np.zeros(int(kernels.max()) + 1, np.int64)
    widths[kernels[first]] = [len(vector) for vector in vectors]
    starts, basic_blocks = np.cumsum(widths) - widths, np.zeros((len(rows), int(widths.sum())))
    for place, (kernel, vector) in enumerate(zip(kernels[first].tolist(), vectors, strict=True)):
        basic_blocks[place, starts[kernel] : starts[kernel] + len(vector)] = vector
    return Profile(
        kernels=kernels, thread_blocks=np.array(thread_blocks), threads_per_block=np.array(threads_per_block),
        basic_blocks=basic_blocks[kind],
        features=features(columns),
        **{name: columns[name] for name in _COLUMNS},
    )  # fmt: skip


def of_each_kind(
    program: SampledProgram, row: Callable[[int, SomeBlocks], Any], cheap: float = 0.0
) -> tuple[list[Any], Int64[np.ndarray, " launch"]]:
    """A `row` of one launch of each kind, from thread blocks of it that are executed; the kind of every launch. All are
    executed where data decide what they do, and of a launch of less than `cheap` warp instructions."""
    kind, rows = kinds_of_launches(program), list[Any]()
    for number in range(len(program)):
        if kind[number] == len(rows):
            program.progress("profile", number, len(program))
            rows.append(row(number, _some_of(program, number, cheap)))
            program.launches.drop(number)
    return rows, kind


def _some_of(program: SampledProgram, number: int, cheap: float) -> SomeBlocks:
    launch, launches = program.case.launches[number], program.launches
    run, whole = partial(launches.look_at, number), launch.thread_blocks
    executed = launches.signatures is None  # elsewhere: its program need not be PTX
    most = whole if executed or data_decide(launch.program, launches.slow_paths) else PROFILED_BLOCKS
    if executed or (launches.keep and whole <= most):
        return SomeBlocks(whole, ((launches.trace(number), 1.0),))
    found = execute_some(run, whole, most)
    if not found.all_of_it and found.total(lambda trace: float(trace.warp_instructions.sum())) < cheap:
        return execute_some(run, whole, whole)
    return found


_COLUMNS = ("instructions", "thread_instructions", "memory_requests", "block_size_variation", "cycles")


def light_profile_of(program: SampledProgram) -> LightProfile:
    """What a profiler gives at almost no cost: names, shapes, and the whole numbers that a launch is given, which are
    the sizes of its tensors; nothing is executed for it."""
    launches = program.case.launches
    sizes = [[abs(float(a)) for a in launch.arguments if isinstance(a, int)] for launch in launches]
    shapes = np.array([[*launch.grid, *launch.block] for launch in launches], float)
    return LightProfile([launch.program.name for launch in launches], np.hstack([shapes, padded(sizes)]))


def kinds_of_launches(program: SampledProgram) -> Int64[np.ndarray, " launch"]:
    """Equal numbers for launches of which one row is enough."""
    if program.launches.signatures is None:
        return np.arange(len(program))
    return numbered(program.launches.signatures)


_DECIDED: dict[tuple[str, str, bool], bool] = {}  # of kernels of a module's text


def data_decide(kernel: Program, slow_paths: bool) -> bool:
    """Whether what a kernel's warps execute, `slow_paths` too, or where they read and write, may depend on what memory
    holds: then thread blocks of one launch may do different amounts of work."""
    key = kernel.digest, kernel.name, slow_paths
    if key not in _DECIDED:
        found = trace_inputs(kernel, slow_paths)
        _DECIDED[key] = found is None or bool(found.contents)
    return _DECIDED[key]


def row(program: Program, executed: SomeBlocks, gpu: Gpu) -> Row:
    """A launch in numbers: the columns of a Profile and PKA's twelve characteristics."""
    kinds = np.array(kinds_of(program))
    pieces = [(counts.launch_counts(program, trace, kinds), weight) for trace, weight in executed.pieces]
    found: Row = {name: sum(weight * own[name] for own, weight in pieces) for name in pieces[0][0]}
    threads = executed.each(lambda trace: counts.by_thread_block(trace)[2])
    return found | {
        "divergence_efficiency": found["thread_instructions"] / max(found["instructions"], 1.0),
        "block_size_variation": coefficient_of_variation(threads),
        "cycles": expected_cycles(executed, gpu),
        "basic_blocks": executed.total(lambda trace: counts.basic_block_vector(program, trace).astype(float)),
    }


def expected_cycles(executed: SomeBlocks, gpu: Gpu) -> float:
    """Roughly a launch's cycles: what issuing takes, and fetching each line once, one after the other.

    It stands for the time a profiler would have measured, where none has: to tell long launches from short ones. Waves
    of thread blocks and the latency of one are left out: they are steps, so that launches which grow alike would
    not look alike, and STEM's errors doubled."""
    spec, params = gpu.spec, gpu.params
    instructions = executed.total(lambda trace: float(trace.warp_instructions.sum()))
    issue = instructions / (min(spec.sm_count, executed.thread_blocks) * spec.schedulers_per_sm)
    fetched = 0.0 if spec.perfect_memory else executed.lines()
    return issue + fetched * 4 * params.dram_sector_cycles / spec.dram_channels + params.launch_latency_cycles
