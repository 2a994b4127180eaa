"""Baselines over the units of a full simulation, which is cut into pieces of equally many warp instructions.

They cost all of it: only how few units they need says anything. Their intervals are ideal, too: the spread is that of
all units. A launch's last ones hold far more cycles than others, and a sample of a tenth may not meet them."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np

import sampling
from abstim.engine.simulation import Simulation
from abstim.study.sample.sampled_program import SampledProgram, name_of
from functional.arrays import Int64
from functional.errors import InputError
from functional.keep.kept import Kept, decode_arrays, encode_arrays
from functional.programs.program import Program
from sampling import Estimate, Profile
from sampling.selection import profiled_spread
from sampling.statistics import t_quantile

UNITS = 1000  # of a program, unless that makes them shorter or longer than
LEAST_INSTRUCTIONS, MOST_INSTRUCTIONS = 1_000, 1_000_000  # TBPoint's are the longest
STEP_ROWS = 1 << 20  # issues that are logged at a time, about
MOST_ROWS = 1 << 26  # the longest log that memory must hold: 11 words a row


@dataclass(frozen=True, eq=False, kw_only=True)
class Units:
    """Units in chronological order, over the launches as if they were one stream; the last one may be shorter. A unit
    ends with the cycle in which its last instruction issues, the last one with the program: all `cycles` together are
    exactly those of the full simulation. `seconds`: what that took, its log included."""

    instructions: Int64[np.ndarray, " unit"]
    cycles: Int64[np.ndarray, " unit"]
    basic_blocks: Int64[np.ndarray, "unit basic_block"]  # warp instructions; every kernel has columns of its own
    seconds: float

    @property
    def profile(self) -> Profile:
        """As what `sampling` chooses from."""
        return Profile(
            instructions=self.instructions.astype(float),
            basic_blocks=self.basic_blocks.astype(float),
            cycles=self.cycles.astype(float),
        )


class Cutter:
    """Takes a stream of issues in the order of their cycles, and counts them by unit and basic block."""

    def __init__(self, instructions: int, each: int, basic_blocks: int) -> None:
        self.each, self.taken = each, 0
        units = -(-instructions // each)
        self.instructions = np.full(units, each)
        self.instructions[-1] -= units * each - instructions
        self.ends = np.zeros(units, np.int64)  # cycles
        self.counts = np.zeros((units, basic_blocks), np.int64)

    def add(self, cycles: Int64[np.ndarray, " issue"], blocks: Int64[np.ndarray, " issue"]) -> None:
        """Issues after those added before: the cycle that each ends in, and its basic block."""
        places = self.taken + np.arange(len(cycles))
        self.taken += len(cycles)
        units, width = places // self.each, self.counts.shape[1]
        if len(places):
            first = int(units[0])
            found = np.bincount((units - first) * width + blocks, minlength=(int(units[-1]) - first + 1) * width)
            self.counts[first : int(units[-1]) + 1] += found.reshape(-1, width)
            np.maximum.at(self.ends, units, cycles)

    def units(self, total_cycles: int, seconds: float) -> Units:
        """What was cut from all of it."""
        assert self.taken == self.instructions.sum(), "every issue is in the log"
        self.ends[-1] = total_cycles
        cycles = np.diff(self.ends, prepend=0)
        return Units(instructions=self.instructions, cycles=cycles, basic_blocks=self.counts, seconds=seconds)


def unit_instructions(instructions: int) -> int:
    """Warp instructions a unit, for a program of so many."""
    return min(max(instructions // UNITS, LEAST_INSTRUCTIONS), MOST_INSTRUCTIONS)


def simulate_units(program: SampledProgram, each: int = 0) -> Units:
    """Simulate every launch in full, and cut. `each`: warp instructions a unit (0: `unit_instructions`). The log is
    read piece by piece; at most what the GPU has in flight is held (InputError where that is too much)."""
    started = perf_counter()
    numbers = range(len(program))
    whole = sum(int(program.launches.trace(number).warp_instructions.sum()) for number in numbers)
    columns, width = _columns([launch.program for launch in program.case.launches])
    cutter, total = Cutter(whole, each or unit_instructions(whole), width), 0
    for number in numbers:
        program.progress("log", number, len(program))
        blocks = program.launches.thread_blocks(number)
        launch = program.session.simulation(number, program.gpu, program.launches.trace(number))
        order = blocks.at(np.arange(blocks.launch.thread_blocks))
        begin = total + int(program.gpu.params.launch_latency_cycles)
        for cycles, instructions in issues(launch, order, program.name(number)):
            cutter.add(begin + cycles + 1, columns[_of(blocks.launch.program)][instructions])
        total += launch.result().cycles
    return cutter.units(total, perf_counter() - started)


def issues(
    launch: Simulation, order: Int64[np.ndarray, " tb"], name: str, step_rows: int = STEP_ROWS
) -> Iterator[tuple[Int64[np.ndarray, " issue"], Int64[np.ndarray, " issue"]]]:
    """Run a launch; cycle and instruction of every issue, in order of cycle, then SM, in pieces. SMs run ahead of each
    other, but all have come as far as the last dispatch when a step returns."""
    trace = launch.inputs.trace
    sizes = trace.warp_instructions.reshape(-1, trace.warps_per_block).sum(1)[order]
    unissued, pending = 0, np.zeros((0, 3), np.int64)
    for step in (*_steps(sizes, step_rows), slice(len(order), None)):
        unissued += int(sizes[step].sum())
        if unissued > MOST_ROWS:
            raise InputError(f"{name}: {unissued:,} warp instructions in flight are too many for a log to be cut")
        last = step.start == len(order)
        rows = launch.run(order[step], drain=last, log_rows=unissued)
        log = np.stack([rows["cycle"], rows["sm"], rows["instruction"]], axis=1)
        unissued -= len(log)
        pending = np.concatenate([pending, log])
        final = pending[:, 0] <= launch.clock_cycles if not last else np.ones(len(pending), bool)
        done, pending = pending[final], pending[~final]
        done = done[np.lexsort((done[:, 1], done[:, 0]))]
        yield done[:, 0], done[:, 2]


def _steps(sizes: Int64[np.ndarray, " tb"], most: int) -> Iterator[slice]:
    """Runs of thread blocks with at most so many instructions together, or a single one."""
    ends, start = np.cumsum(sizes), 0
    while start < len(sizes):
        before = ends[start] - sizes[start]
        stop = max(int(np.searchsorted(ends, before + most, "right")), start + 1)
        yield slice(start, stop)
        start = stop


def _of(program: Program) -> tuple[str, str]:
    return program.digest, program.name


def _columns(programs: Sequence[Program]) -> tuple[dict[tuple[str, str], Int64[np.ndarray, " instruction"]], int]:
    """For each kernel the column of every instruction's basic block, and how many columns there are."""
    found: dict[tuple[str, str], Int64[np.ndarray, " instruction"]] = {}
    width = 0
    for program in programs:
        if _of(program) not in found:
            own = found[_of(program)] = np.zeros(len(program.instructions), np.int64)
            for number, block in enumerate(program.blocks):
                own[block.start : block.stop] = width + number
            width += len(program.blocks)
    return found, width


SHARE = 0.1  # of the units or instructions, as TBPoint takes of random ones
_SELECTED: dict[str, Callable[[Profile], Any]] = {
    "ideal-first": lambda units: sampling.FirstInstructions(SHARE * units.instructions.sum()),
    "ideal-random": lambda _: sampling.RandomUnits(SHARE),
    "ideal-systematic": lambda _: sampling.Systematic(SHARE),
    "ideal-simpoint": lambda _: sampling.SimPoint(),
}


def estimate(program: SampledProgram, aim: object, name: str) -> Estimate:
    """What a baseline, one of `METHODS`, says of a program whose traces memory can hold together."""
    units = units_of(program)
    program.spent("time", float(units.seconds))
    return from_units(name, units.profile)


def from_units(name: str, units: Profile) -> Estimate:
    """The estimate of a baseline from units whose `cycles` are all known."""
    assert units.cycles is not None
    selection = replace(_SELECTED[name](units).select(units), unit="units")
    found = selection.estimate(units.cycles[selection.units].tolist())
    # the standard error of a sample as large drawn at random from each stratum, whose spread is known
    strata = selection.strata
    chosen, members = np.bincount(strata[selection.units]), np.bincount(strata)
    spread = profiled_spread(units.cycles, selection.size, strata) * np.bincount(strata, units.cycles)
    error = float(np.sqrt(np.sum((1.0 - chosen / members) / chosen * spread**2)))
    half = t_quantile(math.inf) * max(error, found.standard_error)
    return replace(
        found, low=max(found.total - half, 0.0), high=found.total + half, basis="model" if half else "exact",
        functional_fraction=1.0, ideal=True, unit_cycles=(),
    )  # fmt: skip


def units_of(program: SampledProgram) -> Units:
    """Units of a program, simulated once: they are kept on disk."""
    return Kept("units").load_or_make(
        name_of(("abstim.study.sample.ideal",), program.case, program.gpu),
        lambda: simulate_units(program),
        lambda content: Units(**decode_arrays(content)),  # type: ignore[arg-type]
        lambda units: encode_arrays({name: np.asarray(column) for name, column in vars(units).items()}),
    )
