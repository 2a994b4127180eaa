"""A target opened for sampling: launches executed and timed only where a method asks for it, and what that took."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from threading import Lock
from time import perf_counter

import numpy as np

from abstim.engine.inputs import LaunchInputs
from abstim.engine.kept_caches import Caches
from abstim.engine.simulation import Simulation
from abstim.engine.warming import warm
from abstim.gpu.config import Gpu
from abstim.progress import Progress, silent
from abstim.session.run import launch_occupancy
from abstim.study.sample.functional import EngineFunctional
from abstim.study.sample.simulator import EngineSimulator
from abstim.study.sample.thread_blocks import ThreadBlocks
from abstim.study.sample.warm_up import EMPTY, EmptyCaches, WarmUp
from abstim.target.execution import default_budget, latency_table
from abstim.target.workloads.dependence import signatures
from abstim.target.workloads.lazy_launches import execute_launch
from functional.case import Case
from functional.default_executor import default_executor
from functional.launch import Launch
from functional.trace import Trace
from precharacterize import LatencyTable
from sampling.photon import Analysis
from sampling.statistics import t_quantile


@dataclass(frozen=True)
class Measured:
    """A launch simulated in full: the engine's counters, and the seconds that executing and timing it took."""

    cycles: int
    instructions: float  # of warps
    execute_seconds: float
    time_seconds: float
    counters: Mapping[str, int]


class SampledProgram:
    """`traces`: an execution there is already. Without one, launches are executed as they are asked for.

    Where no launch of the program decides what another does (`workloads.dependence`), each is executed alone, and
    `signatures` tell which are equal. Elsewhere a launch reads what those before it wrote: before one is opened, those
    before it are executed to their end, unless `partial`, where what a method skips is not executed at all: right where
    values decide no control flow and no address, wrong elsewhere. `keep`: traces, once executed; otherwise
    each is dropped with its launch. `warm_up`: what a launch finds in the caches. `seconds` adds up wall-clock time by
    stage, of all threads.
    """

    def __init__(
        self, case: Case, gpu: Gpu, *, traces: Sequence[Trace] = (), partial: bool = False, keep: bool = False,
        warm_up: WarmUp | None = None, instruction_budget: int | None = None, progress: Progress = silent,
    ) -> None:  # fmt: skip
        self.case, self.gpu, self.keep, self.progress = case, gpu, keep or bool(traces), progress
        self.warm_up: WarmUp = warm_up or EmptyCaches()
        self.budget = instruction_budget
        self.signatures = None if traces else signatures(case)
        self.alone = partial or self.signatures is not None
        self.given = bool(traces)
        self.measured: dict[int, Measured] = {}  # may be shared with another program on the same launches
        self.asked: set[int] = set()  # which of them this one asked for
        self.analyses: MutableMapping[int, Analysis] = {}  # may be kept from earlier runs
        self.simulators: dict[int, EngineSimulator] = {}  # of launches that are stepped
        self.executed_instructions, self.looked_instructions = 0.0, 0.0  # warp instructions; the latter by `look_at`
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._lock, self._executing = Lock(), Lock()
        self._finished = 0  # launches executed to their end, where that matters
        self._tables: dict[str, LatencyTable] = {}
        self._registers: dict = {}
        self._firsts: dict[str, int] = {}
        self._memory = None if traces else case.memory.copy()
        self._executor = default_executor()
        self._opened: dict[int, ThreadBlocks] = {
            number: ThreadBlocks(launch, self._run, trace)
            for number, (launch, trace) in enumerate(zip(case.launches, traces, strict=False))
        }

    def __len__(self) -> int:
        return len(self.case.launches)

    def _run(self, launch: Launch, thread_blocks: Sequence[int]) -> Trace:
        """One launch at a time: the executor itself uses every core."""
        assert self._memory is not None, "a complete trace has every thread block"
        budget = self.budget or default_budget(launch)
        with self._executing:
            started = perf_counter()
            if self.signatures is None:
                trace = self._executor.run(launch, self._memory, list(thread_blocks), budget)
            else:
                trace = execute_launch(self._executor, launch, self._memory, budget, list(thread_blocks))
            self.executed_instructions += float(trace.warp_instructions.sum())
            self.spent("execute", perf_counter() - started)
        return trace

    def spent(self, stage: str, seconds: float) -> None:
        """Add to a stage's seconds."""
        with self._lock:
            self._seconds[stage] += seconds

    @property
    def seconds(self) -> dict[str, float]:
        """What it took to execute and to time, here or, of launches that another program measured, there."""
        return {stage: self._seconds[stage] for stage in ("execute", "time")}

    def look_at(self, number: int, thread_blocks: Sequence[int]) -> Trace:
        """Execute some thread blocks of a launch that can be executed alone, and again later if need be."""
        trace = self._run(self.case.launches[number], thread_blocks)
        self.looked_instructions += float(trace.warp_instructions.sum())
        return trace

    def thread_blocks(self, number: int) -> ThreadBlocks:
        """A launch, ready to be executed."""
        if number not in self._opened:
            if not self.alone:  # it may read what those before it write
                for earlier in range(self._finished, number):
                    self._open(earlier).finish(self.keep)
                self._finished = number
            self._open(number)
        return self._opened[number]

    def _open(self, number: int) -> ThreadBlocks:
        with self._lock:
            if number not in self._opened:
                self._opened[number] = ThreadBlocks(self.case.launches[number], self._run)
        return self._opened[number]

    def trace(self, number: int) -> Trace:
        """A whole launch, executed."""
        blocks = self.thread_blocks(number)
        blocks.finish()
        assert blocks.trace is not None
        return blocks.trace

    def accesses(self, number: int) -> Trace:
        """A whole launch, to be walked for what it leaves in the caches."""
        if self.given or self.signatures is None:
            return self.trace(number)
        launch = self.case.launches[number]
        return self._run(launch, range(launch.thread_blocks))

    def first_launch_of(self, number: int) -> int:
        """The first launch of the same kernel."""
        if not self._firsts:
            for place, launch in enumerate(self.case.launches):
                self._firsts.setdefault(launch.program.name, place)
        return self._firsts[self.case.launches[number].program.name]

    def table(self, number: int) -> LatencyTable:
        """The latency table of a launch's program."""
        program = self.case.launches[number].program
        if program.name not in self._tables:
            self._tables[program.name] = latency_table(program, self.gpu)
        return self._tables[program.name]

    def blocks_per_sm(self, number: int) -> int:
        """Of a launch. Raises InputError for a thread block that an SM cannot hold."""
        launch = self.case.launches[number]
        name = launch.program.name
        if name not in self._registers:
            self._registers[name] = self.case.registers(launch)
        return launch_occupancy(launch, number, self._registers[name], self.gpu).blocks_per_sm

    def simulator(self, number: int, basic_blocks: bool = False) -> EngineSimulator:
        """A launch to be stepped."""
        simulator = EngineSimulator(
            self.thread_blocks(number), self.gpu, self.table(number), self.blocks_per_sm(number), self.name(number),
            basic_blocks, self.spent, lambda: self.warm_up.before(self, number),
        )  # fmt: skip
        self.simulators[number] = simulator
        return simulator

    def name(self, number: int) -> str:
        """For people."""
        launch = self.case.launches[number]
        return f"{number} {launch.program.name}" + (f" ({launch.label})" if launch.label else "")

    def online(self) -> Iterator[tuple[EngineSimulator, EngineFunctional]]:
        """Launches in order, as Photon takes them; traces are dropped once their launch is done."""
        for number in range(len(self)):
            self.progress("sample", number, len(self))
            simulator = self.simulator(number, basic_blocks=True)
            yield simulator, EngineFunctional(simulator.thread_blocks)
            self.drop(number)

    def drop(self, number: int) -> None:
        """Forget a launch's trace, having executed what later ones need of it."""
        if self.keep or number not in self._opened:
            return
        if not self.alone and number + 1 < len(self):
            self._opened[number].finish(keep=False)
        self._opened[number].trace = None

    def measure(self, number: int) -> Measured:
        """Simulate a launch in full, once."""
        known = self.measured.get(number)
        if known is not None:
            if number not in self.asked:
                self.spent("execute", known.execute_seconds)
                self.spent("time", known.time_seconds)
        else:
            self.measured[number] = self._measure(number)
        self.asked.add(number)
        return self.measured[number]

    def _measure(self, number: int) -> Measured:
        trace, table = self.trace(number), self.table(number)
        order = self._opened[number].at(np.arange(self.case.launches[number].thread_blocks))
        started = perf_counter()
        inputs = LaunchInputs(table, trace, self.case.launches[number].shared_bytes)
        launch = Simulation(inputs, self.gpu, self.blocks_per_sm(number), caches=self.warm_up.before(self, number))
        launch.run(order, drain=True)
        self.warm_up.after(launch)
        took = perf_counter() - started
        self.spent("time", took)
        executing, instructions = self._opened[number].seconds, float(trace.warp_instructions.sum())
        result = launch.result()
        return Measured(result.cycles, instructions, executing, took, result.counters)

    def prepare(self) -> None:
        """Compile or load the engine, characterise, import SciPy, so that no method's time holds them."""
        none = np.zeros(0, np.int64)
        offsets = np.zeros(1, np.int64)
        empty = Trace(
            none, 1, none.astype(np.uint16), none.astype(np.uint32), none.astype(np.uint32), none.astype(np.uint8),
            offsets, offsets, offsets, none, none,
        )  # fmt: skip
        inputs = LaunchInputs(self.table(0), empty)
        Simulation(inputs, self.gpu, 1).run(none, drain=True)
        if self.warm_up.name != EMPTY:
            warm(inputs, self.gpu, 1, Caches())
        t_quantile(10.0)

    @property
    def executed_fraction(self) -> float:
        """Share of the thread blocks that was executed, by the warp instructions a block of their launch has."""
        if len(self._opened) < len(self):
            return 1.0
        whole = sum(blocks.mean_instructions * blocks.launch.thread_blocks for blocks in self._opened.values())
        return min(self.executed_instructions / whole, 1.0) if whole else 1.0
