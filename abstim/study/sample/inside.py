"""How a launch that was chosen is simulated: in full, or itself sampled."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter

import numpy as np

import sampling
from abstim.gpu.config import refuse_machine_code
from abstim.progress import in_parallel
from abstim.study.sample.counts import EngineFunctional, by_thread_block
from abstim.study.sample.sampled_program import Finished, SampledProgram, kept_analyses
from abstim.study.sample.simulator import EngineSimulator
from sampling import Estimate, Part
from sampling.estimate import combine, exact, weighted_counters

COUNTS = "sampling inside a launch counts"  # what refuses machine code
Inside = Callable[[SampledProgram, int], Estimate]


def full(program: SampledProgram, number: int) -> Estimate:
    """Everything."""
    return program.once(number, "full", partial(program.simulated, number)).estimate


def analysis_share(program: SampledProgram) -> float:
    """Of the warps, for Photon: its 1 %; all where they are executed anyway."""
    return 1.0 if program.launches.in_full else sampling.Photon().analysis_share


def photon(program: SampledProgram, number: int) -> Estimate:
    """Until warps or basic blocks have settled."""
    simulator = program.simulator(number, basic_blocks=True)
    method = sampling.Photon(kernel=None, analysis_share=analysis_share(program))
    return method.launch(simulator, EngineFunctional(simulator.thread_blocks))


def photon_of_program(program: SampledProgram, aim: object, name: str) -> Estimate:
    """Launches too, by what their warps execute. Raises InputError for a GPU timed from machine code."""
    share = analysis_share(program)
    refuse_machine_code(program.gpu, COUNTS)

    def launches() -> Iterator[tuple[EngineSimulator, EngineFunctional]]:
        for number in range(len(program)):
            program.progress("sample", number, len(program))
            simulator = program.simulator(number, basic_blocks=True)
            yield simulator, EngineFunctional(simulator.thread_blocks)
            program.launches.drop(number)

    with kept_analyses(program.case, share, program.keeps) as analyses:
        program.earlier_analyses = dict(analyses)
        return sampling.Photon(analysis_share=share).program(launches(), analyses)


def pkp(program: SampledProgram, number: int) -> Estimate:
    """Until instructions a cycle have settled."""
    return sampling.Pkp().launch(program.simulator(number))


def pkp_cycles(program: SampledProgram, number: int) -> Estimate:
    """As PKA's text says: the deviation over 3,000 single cycles, a wave finished, and time in proportion to blocks."""
    return sampling.Pkp(in_flight=False).launch(program.simulator(number, window_cycles=1))


def tbpoint(program: SampledProgram, number: int) -> Estimate:
    """One stretch of every region of like thread blocks; all of them are executed beforehand."""
    trace = program.launches.trace(number)
    requests, issued, _ = by_thread_block(trace)
    order = np.argsort(trace.thread_blocks)
    return sampling.IntraLaunch(times=3).launch(program.simulator(number), requests[order], issued[order])


def once(name: str, inside: Inside) -> Inside:
    """What it finds of a launch is kept, and found again. Raises InputError for a GPU timed from machine code."""

    def found(program: SampledProgram, number: int) -> Finished:
        refuse_machine_code(program.gpu, COUNTS)
        started = perf_counter()
        estimate = inside(program, number)
        trace, history = program.launches.thread_blocks(number).trace, program.simulators[number].history
        executed, took = 0.0 if trace is None else float(trace.warp_instructions.sum()), perf_counter() - started
        return Finished(estimate=estimate, executed_instructions=executed, time_seconds=took, history=history)

    return lambda program, number: program.once(number, name, partial(found, program, number)).estimate


_SAMPLED: dict[str, Inside] = {"photon": photon, "pkp": pkp, "pkp-cycles": pkp_cycles, "tbpoint": tbpoint}
INSIDE: dict[str, Inside] = {"full": full} | {name: once(name, way) for name, way in _SAMPLED.items()}


def every_launch(estimates: Sequence[Estimate]) -> Estimate:
    """The program's cycles from those of all launches."""
    weights = [sum(part.instructions for part in estimate.parts) for estimate in estimates]
    if any(estimate.basis != "exact" for estimate in estimates):
        return combine("every launch", estimates, weights)
    cycles = tuple(estimate.total for estimate in estimates)
    units, done = len(cycles), sum(cycles)
    part = Part(name=f"{units} launches", how="detailed", instructions=sum(weights), cycles=done, units=units)
    whole = exact("full", part.cycles, (part,), weighted_counters(estimates, [1.0] * len(cycles)))
    return replace(whole, unit_cycles=cycles)


def simulate(program: SampledProgram, launches: Sequence[int], inside: Inside) -> list[Estimate]:
    """Chosen launches, in ascending order; as many at once as there are cores, if none can decide what another does."""

    def one(place: int) -> Estimate:
        estimate = inside(program, launches[place])
        program.launches.drop(launches[place])
        return estimate

    threads = 1 if program.warm_up.in_order or program.launches.signatures is None else None
    return in_parallel(one, len(launches), lambda n, of: program.progress("simulate", n, of), threads)
