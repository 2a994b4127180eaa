"""The driver: a target sampled by one method, or by all of them beside the full simulation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from abstim.gpu.config import Gpu, gpu_of
from abstim.models import DETAILED, known_error_of, model_named
from abstim.progress import Progress, silent
from abstim.session.limits import memory_use
from abstim.session.warm_up import EMPTY, KEPT, Flushed, WarmUp, warm_up_named
from abstim.study.sample.automatic import Aim
from abstim.study.sample.inside import INSIDE, analysis_share, inside_named
from abstim.study.sample.kept_parts import PartStore
from abstim.study.sample.kept_samples import AnalysisStore, MeasuredStore
from abstim.study.sample.methods import METHODS, Known, Method, method_named
from abstim.study.sample.profiling import profile_of
from abstim.study.sample.sample_result import Comparison, SampleResult, by_kernel
from abstim.study.sample.sampled_program import SampledProgram
from abstim.study.sample.whole_launches import WholeLaunches, whole_launches
from abstim.targets.execution import execute, execution_key, kept_execution
from abstim.targets.resolve import open_target
from abstim.targets.workloads.dependence import signatures
from abstim.targets.workloads.lazy_launches import StreamedCase
from functional.errors import InputError
from functional.launches.case import Case
from functional.trace_store import StoredCase
from functional.traces.trace import Trace
from sampling import Estimate, SamplingError
from sampling.bounds import bounded

if TYPE_CHECKING:
    from abstim.targets.resolve import Target

MODELLED = "stem"  # the method where another model than the detailed one times whole launches, and none is named


def sample(
    target: Target,
    gpu: str | Gpu = "gtx480",
    method: str = "",
    overrides: Sequence[str] = (),
    *,
    model: str = DETAILED,
    inside: str = "",
    warm_up: str = "",
    known: Known | None = None,
    aim: Aim | None = None,
    partial: bool = False,
    instruction_budget: int | None = None,
    progress: Progress = silent,
) -> SampleResult:
    """A target's cycles by one method of `METHODS` (default: auto, which aims at an error).

    `model`: what times the launches that are chosen; all but the detailed one time them whole, so methods and `inside`
    that look into launches are refused, and STEM is the default. `inside`: how each launch that the method chooses is
    simulated, a name of `INSIDE`. What is simulated of launches is kept on disk: an interrupted sample goes on where it
    was, and so does one that aims at less error. `warm_up`: what each finds in the caches (`warm_up_named`; nothing by
    default). `known`: a profile made elsewhere. `aim`: the error that auto is to reach. `partial`: what is skipped is
    not executed either, though later launches might read it (`SampledProgram`). Raises InputError for anything a user
    got wrong.
    """
    point, case = gpu_of(gpu, overrides), open_target(target)
    chosen = _chosen(method or _default_method(case, model, known), inside)
    chosen = chosen.aiming(aim) if aim else chosen
    if not chosen.profiled and known is not None:
        raise InputError(f"{chosen.name} looks at each launch itself; leave out the profile")
    before = _warm_up(warm_up, chosen, point)
    _check_ideal(chosen, case, before)
    _check_model(model, chosen, point, before)
    whole = whole_launches(model)
    program = opened(case, point, chosen.online, partial, instruction_budget, progress, before, whole)
    program.prepare()
    store, parts = MeasuredStore(case, point, before.name, model), PartStore(case, point, before.name, model)
    analyses = AnalysisStore(case, analysis_share(program))
    program.measured, program.in_part = store.load(), parts.load()
    program.analyses, program.loaded_analyses = analyses, analyses.loaded
    try:
        return run_method(chosen, program, known)
    finally:  # after an interrupt too
        store.save(program.measured)
        parts.save(program.in_part)
        analyses.save()


def _default_method(case: Case, model: str, known: Known | None) -> str:
    """auto, unless the model times launches alone, a profile is there to choose by, or launches must come in turn."""
    return MODELLED if model != DETAILED or known is not None or _in_turn(case) else "auto"


def _in_turn(case: Case) -> bool:
    """Whether launches are there one after the other alone."""
    return isinstance(case, StreamedCase) and signatures(case) is None


def _check_model(model: str, method: Method, gpu: Gpu, warm_up: WarmUp) -> None:
    """Raises InputError for what only the detailed model can do."""
    if model == DETAILED:
        return
    model_named(model).refuse([gpu], "all")
    if warm_up.name != EMPTY:
        raise InputError(f"the {model} model starts each launch with empty caches; leave out --warm-up")
    if method.ideal or method.inside is not INSIDE["full"] or (method.own and not method.profiled):
        raise InputError(
            f"{method.name} looks into launches, which the {model} model times whole; --method {MODELLED} or pks, "
            "or --model detailed"
        )


def _chosen(method: str, inside: str) -> Method:
    found = method_named(method)
    return found.with_inside(inside, inside_named(inside)) if inside else found


def _warm_up(name: str, method: Method, gpu: Gpu) -> WarmUp:
    """Raises InputError for a warm-up that the method or the GPU leaves nothing to do."""
    found = warm_up_named(name)
    if found.name != EMPTY and gpu.spec.perfect_memory:
        raise InputError(f"{gpu.name} has perfect memory, which leaves nothing to warm up; take a GPU with L2 and DRAM")
    if found.name == KEPT and method.name != "full":
        raise InputError(
            "a perfect warm-up is a full simulation: --method full; others take a number of launches, or all"
        )
    if found.in_order and method.aimed:
        raise InputError(f"{method.name} goes back to earlier launches, which must come in turn with --warm-up {name}")
    return found


def _check_ideal(method: Method, case: Case, warm_up: WarmUp) -> None:
    """Before anything is simulated. Raises InputError for what an ideal baseline cannot do."""
    if method.ideal and isinstance(case, StreamedCase):
        raise InputError(f"{method.name} needs all traces at once; those of {case.name} are made launch by launch")
    if method.ideal and warm_up.name != EMPTY:
        raise InputError(f"{method.name} starts each launch with empty caches; leave out --warm-up")


def opened(
    case: Case, gpu: Gpu, online: bool, partial: bool = False, instruction_budget: int | None = None,
    progress: Progress = silent, warm_up: WarmUp | None = None, whole: WholeLaunches | None = None, keep: bool = False,
) -> SampledProgram:  # fmt: skip
    """A case as a method wants it: with all of its traces, if a profile needs them and not each launch can be executed
    alone. Raises InputError for a thread block that an SM cannot hold."""
    options: dict[str, Any] = {"instruction_budget": instruction_budget, "progress": progress, "warm_up": warm_up,
                               "whole": whole, "keep": keep}  # fmt: skip
    partial_options = options | {"partial": partial}
    if isinstance(case, StreamedCase):
        return SampledProgram(case, gpu, **partial_options)
    program = SampledProgram(case, gpu, traces=_recorded(case, progress), **partial_options)
    program.session.check_fit([gpu])
    if program.launches.given or program.launches.signatures is not None:
        return program
    if not online or program.warm_up.name != EMPTY:
        traces = execute(case, None, instruction_budget, progress).traces
        return SampledProgram(case, gpu, traces=traces, **options)
    kept = kept_execution(case, execution_key(case, type(None).__name__))
    return SampledProgram(case, gpu, traces=kept.traces, **options) if kept else program


def _recorded(case: Case, progress: Progress) -> tuple[Trace, ...]:
    """All traces of a target that was executed elsewhere, a trace store or directory; of others none."""
    elsewhere = bool(case.traces) or isinstance(case, StoredCase)
    return execute(case, progress=progress).traces if elsewhere else ()


def run_method(
    method: Method,
    program: SampledProgram,
    known: Known | None = None,
    already: Mapping[str, float] = MappingProxyType({}),
) -> SampleResult:
    """One method on a program. `already`: seconds that others have spent on what it would have needed itself."""
    started = perf_counter()
    try:
        if known is None and method.profiled:
            known = Known(profile_of(program))
        _check(known, program)
        stated = method.estimate(program, known)
    except SamplingError as error:
        raise InputError(f"{method.name}: {error}") from None
    estimate, spent = bounded(stated, method.name), program.seconds
    spent["analyse"] = max(perf_counter() - started - sum(spent.values()), 0.0)
    return SampleResult(
        target=program.case.name,
        gpu=program.gpu.name,
        memory_model=program.gpu.memory_model,
        method=method.name,
        model=program.whole.model,
        known_error=known_error_of(program.whole.model, program.gpu),
        estimate=replace(estimate, functional_fraction=_executed(method, program, known, estimate)),
        seconds={stage: seconds + already.get(stage, 0.0) for stage, seconds in spent.items()},
        memory=_memory(estimate, program.gpu),
        own_half_width=stated.relative_half_width,
        kernels=by_kernel(program.kernels, estimate.unit_cycles or (estimate.total,)),
        notes=_notes(program),
        stability=program.stability(),
    )


def _notes(program: SampledProgram) -> tuple[str, ...]:
    reordered = ", ".join(program.launches.reordered())
    if not reordered:
        return ()
    return (f"thread blocks of {reordered} may read what others of the same launch write, and were executed in another "
            "order than in a run: they may have done other work than there",)  # fmt: skip


def _memory(estimate: Estimate, gpu: Gpu) -> dict[str, float]:
    if gpu.spec.perfect_memory or not estimate.counters:
        return {}
    return memory_use(estimate.counters, estimate.total, gpu.spec, gpu.params)


def _executed(method: Method, program: SampledProgram, known: Known | None, estimate: Estimate) -> float:
    """Share of the work that the method had executed, now or in a run whose results were kept, and whether anybody else
    executed more of it or not."""
    chosen = estimate.functional_fraction
    if method.online:
        whole = sum(part.instructions for part in estimate.parts)
        return chosen if program.launches.given or estimate.ideal else min(program.executed_instructions / whole, 1.0)
    if known is None or program.launches.signatures is None:
        return 1.0
    return min(chosen + program.launches.looked_instructions / float(known.profile.instructions.sum()), 1.0)


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
    model: str = DETAILED,
    inside: str = "",
    warm_up: str = "",
    partial: bool = False,
    instruction_budget: int | None = None,
    progress: Progress = silent,
) -> Comparison:
    """All methods beside the full simulation, executed and timed anew, so that seconds compare. With a `warm_up` the
    full simulation keeps its caches between launches, and no method may use what another has measured."""
    point, case = gpu_of(gpu, overrides), open_target(target)
    not_ideal = isinstance(case, StreamedCase) or warm_up_named(warm_up).name != EMPTY
    default = [n for n, method in METHODS.items() if not ((inside and method.own) or (not_ideal and method.ideal))]
    if warm_up_named(warm_up).in_order or _in_turn(case):
        default = [n for n in default if not METHODS[n].aimed]
    if model != DETAILED:
        default = [n for n in default if METHODS[n].inside is INSIDE["full"] and not METHODS[n].own]
    chosen = [_chosen(name, inside) for name in methods or default]
    options: dict[str, Any] = {"instruction_budget": instruction_budget, "progress": progress}
    before = [_warm_up(warm_up, method, point) for method in chosen]
    for method, start in zip(chosen, before, strict=True):
        _check_ideal(method, case, start)
        _check_model(model, method, point, start)
    options["whole"] = whole_launches(model)
    kept = Flushed("none") if warm_up_named(warm_up).name != EMPTY else None
    whole = SampledProgram(
        case, point, traces=_recorded(case, progress), keep=not isinstance(case, StreamedCase), warm_up=kept, **options
    )
    whole.prepare()
    full = run_method(METHODS["full"], whole)
    measured = [whole.measured[number] for number in range(len(whole))]
    ready = Prepared(whole)
    found = []
    for method, start in zip(chosen, before, strict=True):
        if method is METHODS["full"]:
            continue
        program = ready.open(method, partial, options | {"warm_up": start})
        program.measured = {} if kept else dict(enumerate(measured))
        known, already = ready.known(method)
        found.append(run_method(method, program, known, already))
    return Comparison(full=full, results=found, cycles=[each.cycles for each in measured])


class Prepared:
    """What methods would find out one after the other: traces where they need all, and the profile from them."""

    def __init__(self, whole: SampledProgram) -> None:
        self.whole = whole
        self._known: Known | None = None
        self._already: dict[str, float] = {}

    def open(self, method: Method, partial: bool, options: Mapping[str, Any]) -> SampledProgram:
        """The program as the method by itself would find it."""
        case, gpu = self.whole.case, self.whole.gpu
        if not self.whole.launches.given and (self.whole.launches.signatures is not None or method.online):
            return SampledProgram(case, gpu, partial=partial, **options)
        traces = [self.whole.launches.trace(number) for number in range(len(self.whole))]
        return SampledProgram(case, gpu, traces=traces, **options)

    def known(self, method: Method) -> tuple[Known | None, dict[str, float]]:
        """A profile, and the seconds it took; nothing where the method makes its own."""
        if not method.profiled or self.whole.launches.signatures is not None:
            return None, {}
        if self._known is None:
            started = perf_counter()
            self._known = Known(profile_of(self.whole))
            self._already = {"execute": self.whole.seconds["execute"], "analyse": perf_counter() - started}
        return self._known, self._already
