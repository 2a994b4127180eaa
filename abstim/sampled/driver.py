"""The driver: a target sampled by one method, or by all of them beside the full simulation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from abstim import trace_cache
from abstim.config import Gpu
from abstim.progress import Progress, silent
from abstim.sampled.methods import METHODS, Known, Method, method_named
from abstim.sampled.profile import profile_of
from abstim.sampled.program import SampledProgram
from abstim.sampled.result import Comparison, SampleResult
from abstim.sampled.store import MeasuredStore
from abstim.simulate import _gpu
from abstim.target import open_target
from abstim.workload import execute
from abstim.workloads.streamed import StreamedCase
from functional.errors import InputError
from sampling import Estimate, Profile, SamplingError

if TYPE_CHECKING:
    from abstim.target import Target


def sample(
    target: Target,
    gpu: str | Gpu = "gtx480",
    method: str = "",
    overrides: Sequence[str] = (),
    *,
    known: Known | None = None,
    partial: bool = False,
    instruction_budget: int | None = None,
    progress: Progress = silent,
) -> SampleResult:
    """A target's cycles by one method of `METHODS` (default: photon; of targets with many launches, stem).

    Launches simulated in full are kept on disk: an interrupted sample goes on where it was.
    `known`: a profile made elsewhere. `partial`: what is skipped is not executed either, though later launches might
    read it (`SampledProgram`). Raises InputError for anything a user got wrong.
    """
    point, case = _gpu(gpu, overrides), open_target(target)
    if isinstance(case, StreamedCase):
        from abstim.sampled.streamed import DEFAULT, sample_streamed  # it builds on what this package offers

        if known is not None:
            raise InputError(f"{case.name} makes its own profile; leave out --profile and --light-profile")
        return sample_streamed(case, point, method or DEFAULT, progress)
    chosen = method_named(method or "photon")
    if chosen.online and known is not None:
        raise InputError(f"{method} looks at each launch itself; leave out the profile")
    if chosen.online:
        kept = trace_cache.load(trace_cache.execution_key(case, type(None).__name__))
        traces = kept.traces if kept else ()
    else:
        traces = execute(case, None, instruction_budget, progress).execution.traces
    program = SampledProgram(
        case, point, traces=traces, partial=partial, instruction_budget=instruction_budget, progress=progress
    )
    program.prepare()
    store = MeasuredStore(case, point)
    program.measured = store.load()
    try:
        return run_method(chosen, program, known)
    finally:  # after an interrupt too
        store.save(program.measured)


def run_method(
    method: Method,
    program: SampledProgram,
    known: Known | None = None,
    already: Mapping[str, float] = MappingProxyType({}),
) -> SampleResult:
    """One method on a program. `already`: seconds that others have spent on what it would have needed itself."""
    started, measured = perf_counter(), set(program.measured)
    try:
        if known is None and not method.online:
            known = Known(profile_of(program))
        _check(known, program)
        estimate = method.run(program, known)
    except SamplingError as error:
        raise InputError(f"{method.name}: {error}") from None
    wall = perf_counter() - started
    spent: dict[str, float] = {stage: program.seconds[stage] for stage in ("execute", "time")}
    fresh = sum(program.measured[number].seconds for number in program.asked - measured)
    analyse = max(wall - spent["execute"] - spent["time"] - fresh, 0.0)
    spent["time"] += sum(program.measured[number].seconds for number in program.asked)
    return SampleResult(
        target=program.case.name,
        gpu=program.gpu.name,
        method=method.name,
        estimate=replace(estimate, functional_fraction=_executed(method, program, estimate)),
        seconds={stage: seconds + already.get(stage, 0.0) for stage, seconds in (spent | {"analyse": analyse}).items()},
        stability=tuple(tuple(simulator.history) for simulator in program.simulators if simulator.history),
    )


def _executed(method: Method, program: SampledProgram, estimate: Estimate) -> float:
    """Share of the work that the method had executed, whether anybody else executed more of it or not."""
    if not method.online:
        return 1.0
    return estimate.functional_fraction if program.given else program.executed_fraction


def _check(known: Known | None, program: SampledProgram) -> None:
    if known is None:
        return
    rows = len(known.profile) if known.light is None else len(known.light.names)
    if rows != len(program):
        raise InputError(f"the profile has {rows} launches, {program.case.name} has {len(program)}")


def compare(
    target: Target,
    gpu: str | Gpu = "gtx480",
    methods: Sequence[str] = (),
    overrides: Sequence[str] = (),
    *,
    partial: bool = False,
    instruction_budget: int | None = None,
    progress: Progress = silent,
) -> Comparison:
    """All methods beside the full simulation, executed and timed anew on one core, so that seconds compare."""
    point, case = _gpu(gpu, overrides), open_target(target)
    if isinstance(case, StreamedCase):
        from abstim.sampled.streamed import compare_streamed

        return compare_streamed(case, point, methods, progress)
    chosen = [method_named(name) for name in methods or tuple(METHODS)]
    options: dict[str, Any] = {"instruction_budget": instruction_budget, "progress": progress}
    whole = SampledProgram(case, point, **options)
    whole.prepare()
    full = run_method(METHODS["full"], whole, Known(_all_equal(whole)))
    traces = [whole.trace(number) for number in range(len(whole))]
    started = perf_counter()
    known = Known(profile_of(whole))
    already = {"execute": whole.seconds["execute"], "analyse": perf_counter() - started}
    found = []
    for method in chosen:
        if method.name == "full":
            continue
        program = SampledProgram(case, point, traces=() if method.online else traces, partial=partial, **options)
        program.measured = whole.measured
        found.append(run_method(method, program, None if method.online else known, {} if method.online else already))
    cycles = [whole.measured[number].cycles for number in range(len(whole))]
    return Comparison(full=full, results=found, cycles=cycles)


def _all_equal(program: SampledProgram) -> Profile:
    """Enough of a profile to simulate everything."""
    return Profile(
        instructions=np.array([float(program.trace(n).warp_instructions.sum()) for n in range(len(program))])
    )
