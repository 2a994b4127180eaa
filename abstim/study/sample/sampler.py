"""The driver: a target, or a CUDA program, sampled by one method, or by all of them beside the full simulation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from abstim.gpu.config import Gpu, gpu_of, known_error_of
from abstim.models import DETAILED, model_named
from abstim.progress import Progress, silent
from abstim.session.limits import memory_use
from abstim.session.result import FORMULA_TIMES_PTX, target_code_note, target_note, too_little_timed
from abstim.session.warm_up import EMPTY, KEPT, Flushed, WarmUp, warm_up_named
from abstim.study.sample.automatic import Aim
from abstim.study.sample.methods import METHODS, Known, Method, Needs, method_named
from abstim.study.sample.profiling import profile_of
from abstim.study.sample.sample_result import Comparison, SampleResult, by_kernel
from abstim.study.sample.sampled_program import InPart, SampledProgram, kept_parts
from abstim.targets.execution import execute, execution_key, kept_execution
from abstim.targets.resolve import Target, open_target
from functional.errors import InputError, refuse
from functional.launches.case import Case, StreamedCase
from functional.programs.dependence import signatures
from functional.traces.store import StoredCase
from functional.traces.trace import Trace
from sampling import Estimate, SamplingError
from sampling.estimate import bounded
from sampling.statistics import t_quantile

if TYPE_CHECKING:
    from abstim.application.run_application import ApplicationResult


MODELLED = "stem"  # the method where another model than the detailed one times whole launches, and none is named


def sample(
    target: Target, gpu: str | Gpu = "gtx480", method: str = "", overrides: Sequence[str] = (), *,
    model: str = DETAILED, inside: str = "", warm_up: str = "", known: Known | None = None, aim: Aim | None = None,
    partial: bool = False, seed: int | None = None, progress: Progress = silent,
) -> SampleResult:  # fmt: skip
    """A target's cycles by one method of `METHODS` (default: auto, which aims at an error).

    `model`: what times the launches that are chosen; all but the detailed one time them whole, so methods and `inside`
    that look into launches are refused, and STEM is the default. `inside`: how each launch that the method chooses is
    simulated, a name of `INSIDE`. What is simulated of launches is kept on disk: an interrupted sample goes on where it
    was, and so does one that aims at less error. `warm_up`: what each finds in the caches (`warm_up_named`; nothing by
    default). `known`: a profile made elsewhere. `aim`: the error that auto is to reach. `partial`: what is skipped is
    not executed either, though later launches might read it (`SampledProgram`). `seed`: of what is chosen at random.
    Raises InputError for anything a user got wrong."""
    point, case = gpu_of(gpu, overrides), open_target(target)
    alone = model != DETAILED or known is not None or _in_turn(case, point)  # one by one, or by a profile that is there
    chosen, before = method_named(method or (MODELLED if alone else "auto")).with_inside(inside), warm_up_named(warm_up)
    wrong = {  # what was given and this method has no use for
        f"{chosen.name} aims at no error; leave out --error and --confidence, or --method auto":
            aim and chosen.needs is not Needs.ANY_ORDER,
        f"{chosen.name} chooses nothing at random; leave out --seed": seed is not None and not chosen.random,
        f"{chosen.name} looks at each launch itself; leave out the profile":
            known is not None and chosen.needs is not Needs.PROFILE,
        f"seed {seed} is below 0": (seed or 0) < 0,
    }  # fmt: skip
    for why, so in wrong.items():
        refuse(so, why)
    _refuse(chosen, case, point, model, before, warm_up)
    program = opened(case, point, chosen.online, partial, warm_up=before, model=model, progress=progress)
    program.prepare()
    program.keeps = True
    with kept_parts(case, point, before.name, model) as program.in_part:
        return run_method(chosen, program, known, aim=replace(aim or Aim(), seed=seed or 0))


def _in_turn(case: Case, gpu: Gpu) -> bool:
    """Whether launches are there one after the other alone."""
    return isinstance(case, StreamedCase) and signatures(case, gpu.spec.timed_code != "ptx") is None


def why_not(method: Method, case: Case, gpu: Gpu, model: str, warm_up: WarmUp, said: str) -> str:
    """What a method cannot do, before anything is simulated; nothing where it can. `said`: the warm-up as given."""
    name, empty, streamed = method.name, warm_up.name == EMPTY, isinstance(case, StreamedCase)
    ideal, at_will = method.needs is Needs.FULL_SIMULATION, method.needs is Needs.ANY_ORDER
    wrong = {
        f"{gpu.name} has perfect memory, which leaves nothing to warm up; take a GPU with L2 and DRAM":
            not empty and gpu.spec.perfect_memory,
        "a perfect warm-up is a full simulation: --method full; others take a number of launches, or all":
            warm_up.name == KEPT and name != "full",
        f"{name} goes back to earlier launches, which must come in turn with --warm-up {said}":
            at_will and warm_up.in_order,
        f"{name} goes back to earlier launches, which this program or warm-up does not allow; --method stem":
            at_will and _in_turn(case, gpu),
        f"{name} needs all traces at once; those of {case.name} are made launch by launch": ideal and streamed,
        f"{name} starts each launch with empty caches; leave out --warm-up": ideal and not empty,
        f"the {model} model starts each launch with empty caches; leave out --warm-up": model != DETAILED and not empty,
        f"{name} looks into launches, which the {model} model times whole; --method {MODELLED} or pks, or --model "
        "detailed": model != DETAILED and method.inside != "full",
    }  # fmt: skip
    return next((why for why, so in wrong.items() if so), "")


def _refuse(method: Method, case: Case, gpu: Gpu, model: str, warm_up: WarmUp, said: str) -> None:
    """Raises InputError for what the method, or the model, cannot do."""
    if model != DETAILED:
        model_named(model).refuse([gpu], "all")
    refuse(why := why_not(method, case, gpu, model, warm_up, said), why)


def opened(case: Case, gpu: Gpu, online: bool, partial: bool = False, **options: Any) -> SampledProgram:
    """A case as a method wants it: with all of its traces, if a profile needs them and not each launch can be executed
    alone. `options`: of `SampledProgram`. Raises InputError for a thread block that an SM cannot hold."""
    if isinstance(case, StreamedCase):
        return SampledProgram(case, gpu, partial=partial, **options)
    progress = options.get("progress", silent)
    program = SampledProgram(case, gpu, traces=_recorded(case, progress), partial=partial, **options)
    program.session.check_fit([gpu])
    if program.launches.given or program.launches.signatures is not None:
        return program
    if not online or program.warm_up.name != EMPTY:
        return SampledProgram(case, gpu, traces=execute(case, progress=progress).traces, **options)
    kept = kept_execution(case, execution_key(case, type(None).__name__))
    return SampledProgram(case, gpu, traces=kept.traces, **options) if kept else program


def _recorded(case: Case, progress: Progress) -> tuple[Trace, ...]:
    """All traces of a target that was executed elsewhere, a trace store or directory; of others none."""
    return execute(case, progress=progress).traces if case.traces or isinstance(case, StoredCase) else ()


def run_method(
    method: Method, program: SampledProgram, known: Known | None = None,
    already: Mapping[str, float] = MappingProxyType({}), aim: Aim | None = None,
) -> SampleResult:  # fmt: skip
    """One method on a program. `already`: seconds that others have spent on what it would have needed itself."""
    started = perf_counter()
    try:
        if known is None and method.needs is Needs.PROFILE:
            known = Known(profile_of(program))
        rows = len(program) if known is None else len(known.light.names if known.light else known.profile)
        refuse(rows != len(program), f"the profile has {rows} launches, {program.case.name} has {len(program)}")
        stated = method.run(program, known, aim or Aim())
    except SamplingError as error:
        raise InputError(f"{method.name}: {error}") from None
    estimate, spent = bounded(stated, method.name), program.seconds
    spent["analyse"] = max(perf_counter() - started - sum(spent.values()), 0.0)
    gpu, counted = program.gpu, estimate.counters
    note = target_code_note(program.session, gpu, program.model)
    timed_code = {"": "", FORMULA_TIMES_PTX: "ptx"}.get(note, "hoisted")  # where it is not what the GPU asks for
    uses = memory_use(counted, estimate.total, gpu.spec, gpu.params) if counted and not gpu.spec.perfect_memory else {}
    return SampleResult(
        target=program.case.name,
        gpu=gpu.name,
        memory_model=gpu.memory_model,
        method=method.name,
        model=program.model,
        known_error=known_error_of(gpu, program.model, timed_code),
        estimate=replace(estimate, functional_fraction=_executed(method, program, known, estimate)),
        seconds={stage: seconds + already.get(stage, 0.0) for stage, seconds in spent.items()},
        memory=uses,
        earlier_seconds=program.earlier_seconds,
        own_half_width=stated.relative_half_width,
        kernels=by_kernel(program.kernels, estimate.unit_cycles or (estimate.total,)),
        assumes="" if estimate.basis == "exact" else method.assumes,
        notes=_notes(method, program, estimate),
        stability=program.stability(),
    )


def _notes(method: Method, program: SampledProgram, estimate: Estimate) -> tuple[str, ...]:
    asked = [(number, found.timed_shares) for (number, _), found in sorted(program.asked.items())]
    waves = [(number, part.timed_shares) for number, part in sorted(program.in_part.items())]
    shares = [(program.kernels[number], share) for number, share in asked + waves]
    notes = [target_note(program.session, program.gpu, program.model), too_little_timed(shares)]
    if method.name != "full" and estimate.detailed_fraction == 1.0 and not estimate.ideal:
        notes.append(f"everything was simulated in detail: {method.name} left nothing out of this program")
    if reordered := ", ".join(program.launches.reordered()):
        notes += [
            f"thread blocks of {reordered} may read what others of the same launch write, and were executed in "
            "another order than in a run: they may have done other work than there"
        ]
    return tuple(filter(None, notes))


def _executed(method: Method, program: SampledProgram, known: Known | None, estimate: Estimate) -> float:
    """Share of the work executed for the method, now or in a run that was kept, whoever else executed more of it."""
    chosen = estimate.functional_fraction
    if method.online:
        whole = sum(part.instructions for part in estimate.parts)
        return chosen if program.launches.given or estimate.ideal else min(program.executed_instructions / whole, 1.0)
    if method.needs is Needs.ANY_ORDER:
        return chosen
    if known is None or program.launches.signatures is None:
        return 1.0
    return min(chosen + program.launches.looked_instructions / float(known.profile.instructions.sum()), 1.0)


def compare(
    target: Target, gpu: str | Gpu = "gtx480", methods: Sequence[str] = (), overrides: Sequence[str] = (), *,
    model: str = DETAILED, inside: str = "", warm_up: str = "", partial: bool = False, progress: Progress = silent,
) -> Comparison:  # fmt: skip
    """All methods beside the full simulation, executed and timed anew, so that seconds compare. With a `warm_up` the
    full simulation keeps its caches between launches, and no method may use what another has measured."""
    point, case, before = gpu_of(gpu, overrides), open_target(target), warm_up_named(warm_up)
    asked = (case, point, model, before, warm_up)
    default = [m.name for m in METHODS.values() if not (inside and m.inside != "full") and not why_not(m, *asked)]
    names = methods or [name for name in default if name != "full"] or METHODS
    chosen = [method_named(name).with_inside(inside) for name in names]
    for method in chosen:
        _refuse(method, *asked)
    options: dict[str, Any] = {"progress": progress, "model": model}
    t_quantile(10.0)  # imports SciPy, so that no method's time holds it
    kept = Flushed("none") if before.name != EMPTY else None
    whole = SampledProgram(
        case, point, traces=_recorded(case, progress), keep=not isinstance(case, StreamedCase), warm_up=kept, **options
    )
    whole.prepare()
    full = run_method(METHODS["full"], whole)
    measured = [whole.asked[number, "full"] for number in range(len(whole))]
    found, profile = list[SampleResult](), cache(lambda: _profiled(whole))
    for method in chosen:
        if method is METHODS["full"]:
            continue
        found_alone = not whole.launches.given and (whole.launches.signatures is not None or method.online)
        traces = [] if found_alone else [whole.launches.trace(number) for number in range(len(whole))]
        as_alone = options | {"warm_up": warm_up_named(warm_up), "partial": partial and found_alone}
        program = SampledProgram(case, point, traces=traces, **as_alone)
        program.in_part = {} if kept else {n: InPart(found={"full": each}) for n, each in enumerate(measured)}
        without = method.needs is not Needs.PROFILE or whole.launches.signatures is not None
        known, already = (None, {}) if without else profile()
        found.append(run_method(method, program, known, already))
    return Comparison(full=full, results=found, cycles=[int(each.estimate.total) for each in measured])


def _profiled(whole: SampledProgram) -> tuple[Known, dict[str, float]]:
    """The profile from all traces, and the seconds that a method would have spent on it."""
    started = perf_counter()
    return Known(profile_of(whole)), {"execute": whole.seconds["execute"], "analyse": perf_counter() - started}


def sample_application(
    command: Sequence[str], gpus: Sequence[Gpu], method: str, *, model: str = "detailed", record: Path | None = None,
    **options: Any,
) -> tuple[ApplicationResult, list[SampleResult]]:  # fmt: skip
    """Run a program, keep what its kernels did, and estimate from a sample how long that takes: one result for each
    module with kernels that were launched, and each GPU.

    `record`: where traces are kept (default: nowhere, afterwards). `options` are those of `run_application`. A launch
    finds what those before it left in the caches, or nothing by a `flush` of "all". Raises InputError for a method
    that is not there, before anything runs."""
    from abstim.application.run_application import run_application

    method_named(method)
    with TemporaryDirectory(prefix="abstim-sample-") as scratch:
        folder = record or Path(scratch) / "traces"
        result = run_application(command, gpus, model=model, record=folder, timed=False, **options)
        stores = sorted(folder.glob("module-*"), key=lambda store: int(store.name.removeprefix("module-")))
        cold = options.get("flush") == "all"
        return result, [_of_module(str(store), gpu, method, model, cold) for store in stores for gpu in gpus]


_BEFORE = "3"  # launches whose accesses warm caches up: programs come back to their data after as many kernels
_COLD = "each launch was timed from empty caches; in the program it finds what those before it left"
_WARM = (
    f"each launch was timed with what the {_BEFORE} before it left in the caches; what L2 still holds of earlier ones "
    "counts as cold (`abstim app --record`, `abstim sample --warm-up N`)"
)


def _of_module(store: str, gpu: Gpu, method: str, model: str, cold: bool) -> SampleResult:
    """As the program itself is timed, caches kept, as far as the method can warm them up; what is left of that is
    said."""
    kept, case = model == DETAILED and not gpu.spec.perfect_memory and not cold, open_target(store)
    warms = kept and not why_not(method_named(method), case, gpu, model, warm_up_named(_BEFORE), _BEFORE)
    found = sample(store, gpu, method, model=model, warm_up=_BEFORE if warms else "")
    if not kept or len(case.launches) <= (1 + int(_BEFORE) if warms else 1):
        return found
    estimate = found.estimate  # of launches that find less than in the program, even where all were simulated
    estimate = replace(estimate, basis="model", low=0.0, high=math.inf) if estimate.basis == "exact" else estimate
    return replace(found, estimate=estimate, notes=(*found.notes, _WARM if warms else _COLD))
