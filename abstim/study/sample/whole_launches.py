"""How a launch that a method chose is timed where it is timed whole: by the engine, or by a faster model."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Protocol

import numpy as np

from abstim.engine.kept_caches import Caches
from abstim.engine.warming import warm
from abstim.models import DETAILED, model_named
from abstim.session.warm_up import EMPTY
from abstim.study.sample.measured import Measured
from functional.traces.trace import Trace
from sampling.statistics import t_quantile

if TYPE_CHECKING:
    from abstim.study.sample.sampled_program import SampledProgram


class WholeLaunches(Protocol):
    """What times whole launches."""

    model: str  # one of abstim.models.MODELS

    def prepare(self, program: SampledProgram) -> None:
        """Compile, load and import, so that no method's time holds it."""
        ...

    def measure(self, program: SampledProgram, number: int) -> Measured:
        """One launch, executed and timed."""
        ...


class ByEngine:
    """In detail, from the caches that the program's warm-up leaves."""

    model = DETAILED

    def prepare(self, program: SampledProgram) -> None:
        """See WholeLaunches."""
        session, gpu = program.session, program.gpu
        none = np.zeros(0, np.int64)
        offsets = np.zeros(1, np.int64)
        empty = Trace(
            none, 1, none.astype(np.uint16), none.astype(np.uint32), none.astype(np.uint32), none.astype(np.uint8),
            offsets, offsets, offsets, none, none,
        )  # fmt: skip
        session.simulation(0, gpu, empty).run(none, drain=True)
        if program.warm_up.name != EMPTY:
            warm(session.inputs(0, gpu, empty), gpu, 1, Caches())
        t_quantile(10.0)

    def measure(self, program: SampledProgram, number: int) -> Measured:
        """See WholeLaunches."""
        session, gpu, warm_up = program.session, program.gpu, program.warm_up
        trace, blocks = program.launches.trace(number), program.launches.thread_blocks(number)
        session.table(number, gpu)  # characterising is not timing
        started = perf_counter()
        simulation = session.simulation(number, gpu, trace, warm_up.before(session, number, gpu))
        simulation.run(blocks.at(np.arange(blocks.launch.thread_blocks)), drain=True)
        warm_up.after(simulation)
        took = perf_counter() - started
        result, instructions = simulation.result(), float(trace.warp_instructions.sum())
        return Measured(result.cycles, instructions, blocks.seconds, took, result.counters)


class ByModel:
    """By a model that knows launches as a whole; its launches have cycles and no counters."""

    def __init__(self, model: str) -> None:
        self.model, self._module = model, model_named(model)

    def prepare(self, program: SampledProgram) -> None:
        """See WholeLaunches; what there is to load is loaded with the first launch."""
        t_quantile(10.0)

    def measure(self, program: SampledProgram, number: int) -> Measured:
        """See WholeLaunches."""
        blocks, trace = program.launches.thread_blocks(number), program.launches.trace(number)
        program.session.table(number, program.gpu)
        started = perf_counter()
        row = self._module.launch_on(program.session, number, [program.gpu])[0]
        took = perf_counter() - started
        return Measured(row.cycles, float(trace.warp_instructions.sum()), blocks.seconds, took, {})


def whole_launches(model: str) -> WholeLaunches:
    """By name. Raises InputError for a model that there is not."""
    return ByEngine() if model == DETAILED else ByModel(model)
