"""A target opened for sampling: launches executed and timed only where a method asks for it, and what that took."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from abstim.config import Gpu
from abstim.engine.inputs import LaunchInputs
from abstim.engine.launch import Launch
from abstim.progress import Progress, silent
from abstim.sampled.functional import EngineFunctional
from abstim.sampled.simulator import EngineSimulator
from abstim.sampled.thread_blocks import ThreadBlocks
from abstim.simulate import occupancies, registers_of
from abstim.workload import latency_table
from functional.case import Case
from functional.executor import default_executor
from functional.trace import Trace
from precharacterize import LatencyTable
from sampling.statistics import t_quantile


@dataclass(frozen=True)
class Measured:
    """A launch simulated in full, and the wall-clock seconds that took."""

    cycles: int
    seconds: float


class SampledProgram:
    """`traces`: an execution there is already. Without one, launches are executed as they are asked for.

    A launch reads what those before it wrote. So before one is opened, those before it are executed to their end,
    unless `partial`, where what a method skips is not executed at all: right where values decide no control flow and
    no address (neural networks, stencils), wrong elsewhere. `seconds` adds up wall-clock time by stage.
    """

    def __init__(
        self, case: Case, gpu: Gpu, *, traces: Sequence[Trace] = (), partial: bool = False,
        instruction_budget: int | None = None, progress: Progress = silent,
    ) -> None:  # fmt: skip
        self.case, self.gpu, self.partial, self.progress = case, gpu, partial, progress
        self.budget = instruction_budget
        self.blocks_per_sm = [o.blocks_per_sm for o in occupancies(case, registers_of(case), gpu)]
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.measured: dict[int, Measured] = {}  # may be shared with another program on the same launches
        self.asked: set[int] = set()  # which of them this one asked for
        self.simulators: list[EngineSimulator] = []
        self._tables: dict[str, LatencyTable] = {}
        self.given = bool(traces)
        self._memory = None if traces else case.memory.copy()
        self._executor = None if traces else default_executor()
        self._opened = [
            ThreadBlocks(launch, None, None, trace, spent=self._spent)
            for launch, trace in zip(case.launches, traces, strict=False)
        ]

    def __len__(self) -> int:
        return len(self.case.launches)

    def _spent(self, stage: str, seconds: float) -> None:
        self.seconds[stage] += seconds

    def thread_blocks(self, number: int, keep: bool = True) -> ThreadBlocks:
        """A launch, ready to be executed. `keep`: the traces of those before it, if they must be finished first."""
        while len(self._opened) <= number:
            if self._opened and not self.partial:
                self._opened[-1].finish(keep)
            launch = self.case.launches[len(self._opened)]
            self._opened.append(
                ThreadBlocks(launch, self._memory, self._executor, instruction_budget=self.budget, spent=self._spent)
            )
        return self._opened[number]

    def trace(self, number: int) -> Trace:
        """A whole launch, executed."""
        blocks = self.thread_blocks(number)
        blocks.finish()
        assert blocks.trace is not None
        return blocks.trace

    def table(self, number: int) -> LatencyTable:
        """The latency table of a launch's program."""
        program = self.case.launches[number].program
        if program.name not in self._tables:
            self._tables[program.name] = latency_table(program, self.gpu)
        return self._tables[program.name]

    def simulator(self, number: int, basic_blocks: bool = False, keep: bool = True) -> EngineSimulator:
        """A launch to be stepped."""
        simulator = EngineSimulator(
            self.thread_blocks(number, keep), self.gpu, self.table(number), self.blocks_per_sm[number],
            self.name(number), basic_blocks,
        )  # fmt: skip
        self.simulators.append(simulator)
        return simulator

    def name(self, number: int) -> str:
        """For people."""
        launch = self.case.launches[number]
        return f"{number} {launch.program.name}" + (f" ({launch.label})" if launch.label else "")

    def online(self) -> Iterator[tuple[EngineSimulator, EngineFunctional]]:
        """Launches in order, as Photon takes them; traces are dropped once their launch is done."""
        for number in range(len(self)):
            self.progress("sample", number, len(self))
            simulator = self.simulator(number, basic_blocks=True, keep=False)
            yield simulator, EngineFunctional(simulator.thread_blocks)
            self.drop(number)

    def drop(self, number: int) -> None:
        """Forget a launch's trace, having executed what later ones need of it."""
        blocks = self._opened[number]
        if self._executor is not None and number + 1 < len(self):
            if not self.partial:
                blocks.finish(keep=False)
            blocks.trace = None

    def measure(self, number: int) -> Measured:
        """Simulate a launch in full, once."""
        if number not in self.measured:
            trace, table = self.trace(number), self.table(number)
            order = self._opened[number].at(np.arange(self.case.launches[number].thread_blocks))
            started = perf_counter()
            inputs = LaunchInputs(table, trace, self.case.launches[number].shared_bytes)
            launch = Launch(inputs, self.gpu, self.blocks_per_sm[number])
            launch.run(order, drain=True)
            self.measured[number] = Measured(launch.result().cycles, perf_counter() - started)
        self.asked.add(number)
        return self.measured[number]

    def prepare(self) -> None:
        """Compile or load the engine, characterise, import SciPy, so that no method's time holds them."""
        for number in range(len(self)):
            self.table(number)
        none = np.zeros(0, np.int64)
        offsets = np.zeros(1, np.int64)
        empty = Trace(
            none, 1, none.astype(np.uint16), none.astype(np.uint32), none.astype(np.uint32), none.astype(np.uint8),
            offsets, offsets, offsets, none, none,
        )  # fmt: skip
        Launch(LaunchInputs(self.table(0), empty), self.gpu, 1).run(none, drain=True)
        t_quantile(10.0)

    @property
    def executed_fraction(self) -> float:
        """Share of the thread blocks that was executed, by the warp instructions a block of their launch has."""
        return _share([(b.ever, b.launch.thread_blocks, b.mean_instructions) for b in self._opened], len(self))


def _share(rows: list[tuple[int, int, float]], launches: int) -> float:
    done = sum(executed * each for executed, _, each in rows)
    whole = sum(blocks * each for _, blocks, each in rows)
    return done / whole if whole and len(rows) == launches else 1.0
