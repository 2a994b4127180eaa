"""The driver of a sweep: targets executed once, points chosen, timed, put together."""

import re
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from abstim.gpu.config import Gpu, nearest
from abstim.models import DETAILED, MODELS
from abstim.progress import Progress, silent
from abstim.session.result import target_note
from abstim.session.session import Session, open_session
from abstim.study.explore.cluster import Cluster
from abstim.study.explore.estimated import (
    EstimatedTargets,
    InterpolatedSweep,
    ReadPoints,
    SampledSweep,
    open_program,
    refused_by,
)
from abstim.study.explore.expressions import Expression
from abstim.study.explore.formula import FormulaTimer, analytic_screen, formula_cycles
from abstim.study.explore.jobs import OccupancyPlanner, Planner, Run, Store, Timer, Work, gpu_or_reason, run_local
from abstim.study.explore.points import Points, Space, parse_axes
from abstim.study.explore.result import Exploration, Sensitivity, measures, of_columns, values_of
from abstim.study.explore.search import FAILED, MOST_POINTS, Found, climb, design, front
from abstim.study.sample.automatic import Aim
from abstim.study.sample.sampled_program import SampledProgram
from abstim.targets.resolve import Target
from functional.errors import InputError

MULTI_FIDELITY = "multi-fidelity"
DEFAULT_COUNT = 64  # points that a multi-fidelity search times in detail
MOST_ON_FRONT = 64  # of a larger front, which is no longer a choice, evenly spaced members are timed
RESULT_NAMES = ("cycles", "seconds", "time")
_COLUMNS = (*RESULT_NAMES, "point", "screened_seconds", "found", "pareto", "error")  # of the table, beside keys
_COLUMNS_FROM = ("cycles_", "seconds_", "speed_up")  # and how others begin: of a target, of an interval
SWEPT: dict[str, type[Planner] | type[FormulaTimer]] = {  # a formula takes all points at once, without jobs
    DETAILED: Planner,
    "occupancy": OccupancyPlanner,
    "analytic": FormulaTimer,
}


@dataclass(frozen=True)
class Sweep:
    """What to explore, and how. `count`: points, of every strategy but the grid. `aim`: some of what is asked for is
    timed and the rest read off, to this error; with `sample` launches are chosen, too. `top`: best points that are
    timed in detail then."""

    space: Space
    constraints: Sequence[Expression] = ()
    objectives: Sequence[Expression] = field(default_factory=lambda: [Expression("seconds")])
    strategy: str = "grid"
    count: int | None = None
    seed: int = 0
    cluster: str = ""
    model: str = DETAILED
    aim: Aim | None = None
    sample: bool = False
    top: int = 10

    def __post_init__(self) -> None:
        if self.aim and (self.model != DETAILED or self.strategy == MULTI_FIDELITY):
            option = "--sample" if self.sample else "--error"
            raise InputError(f"{option} times by the detailed model; leave out --model and --strategy multi-fidelity")
        if self.model not in MODELS:
            raise InputError(f"no model {self.model!r}{nearest(self.model, MODELS)}")
        if self.strategy == MULTI_FIDELITY and self.model != DETAILED:
            raise InputError("--strategy multi-fidelity climbs through all models; leave --model out")
        if self.model == "analytic" and self.space.gpu.code_asked:
            raise InputError(f"the analytic model times PTX; leave out {self.space.gpu.code_asked}")
        if self.count is not None and self.count < 1:
            raise InputError(f"--points {self.count} is not a whole number above 0")
        if self.count is not None and self.strategy == "grid":
            raise InputError("--points: the grid has all its points; take --strategy random, latin or multi-fidelity")
        if taken := [name for name in self.space.defines if name in _COLUMNS or name.startswith(_COLUMNS_FROM)]:
            raise InputError(f"--define {taken[0]}: is the name of a result")


def sweep_of(
    gpu: Gpu, vary: Sequence[str], define: Sequence[str] = (), constraint: Sequence[str] = (),
    objective: Sequence[str] = (), **how: object,
) -> Sweep:  # fmt: skip
    """A sweep from texts as the command line has them. Raises InputError for any that is wrong."""
    defines = dict(definitions := [_definition(text) for text in define])
    if len(defines) < len(definitions):
        raise InputError("--define: give every name once")
    constraints = [Expression(text, f"--constraint {text}") for text in constraint]
    for one in (*constraints, *defines.values()):
        if early := one.names & set(RESULT_NAMES):
            raise InputError(f"{one.where}: {early.pop()} is known only after a point has been timed")
    objectives = [Expression(text, f"--objective {text}") for text in objective or ("seconds",)]
    return Sweep(Space(gpu, parse_axes(vary), defines), constraints, objectives, **how)  # type: ignore[arg-type]


def _definition(text: str) -> tuple[str, Expression]:
    name, equals, formula = text.partition("=")
    if not equals or not name.strip().isidentifier() or formula.startswith("="):
        raise InputError(f"--define {text}: write it as name=expression, as in area=sm_count*(4+schedulers_per_sm)")
    return name.strip(), Expression(formula, f"--define {text}")


def explore(targets: Sequence[Target], sweep: Sweep, *, progress: Progress = silent) -> Exploration:
    """Time targets on the points of a sweep. Raises InputError for anything a user got wrong.

    A point on which a target cannot run is a row with the reason. Results are kept as they come: after a kill the same
    call goes on where it was, and gives the same table."""
    sweep.space.refuse_idle()
    strategy, count, gpu = sweep.strategy, sweep.count, sweep.space.gpu
    if strategy == MULTI_FIDELITY:  # candidates
        strategy, count = "grid" if sweep.space.size <= MOST_POINTS else "random", MOST_POINTS
    points = design(sweep.space, strategy, count, sweep.seed, sweep.constraints)
    _check_objectives(sweep, points)
    SWEPT[sweep.model].refuse(points)
    programs = [open_program(target, gpu, progress) for target in targets] if sweep.sample else []
    sessions = [p.session for p in programs] or [open_session(target, progress=progress) for target in targets]
    run = SweepRun(sweep, points, sessions, progress)
    work, timed, sampled = run.estimated(sweep.aim, programs) if sweep.aim else run.timed()
    # what keeps the times of some targets from being those of machine code, where the GPU runs that
    notes = {s.case.name: target_note(s, gpu, sweep.model) for s in sessions}
    note = "; ".join(f"{name}: {said}" for name, said in notes.items() if said)
    sensitivity = _sensitivity(timed, run.names)
    return Exploration(
        gpu.name, run.names, tuple(sweep.objectives), *timed, work, len(points), sensitivity, sampled, note
    )


class SweepRun:
    """The points of a sweep and its targets, executed. Raises InputError for two targets of one name."""

    def __init__(self, sweep: Sweep, points: Points, sessions: Sequence[Session], progress: Progress) -> None:
        self.sweep, self.points, self.sessions, self.progress = sweep, points, sessions, progress
        names = [re.sub(r"\W", "_", session.case.name) for session in sessions]  # fit for columns and expressions
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise InputError(f"two targets are called {twice}")
        self.names = tuple(names)
        self.objectives = partial(values_of, sweep.objectives, self.names)
        self.cluster = Cluster(sweep.cluster) if sweep.cluster else None
        self.run: Run = self.cluster or run_local

    def timed(self) -> tuple[Work, Found, None]:
        """Every point by the sweep's model, or those that a climb finds."""
        sweep = self.sweep
        if sweep.strategy != MULTI_FIDELITY:
            with self._timer(sweep.model) as timer:
                return timer.work, Found(self.points, *timer(self.points), None), None
        screen = analytic_screen(self.sessions, sweep.space.gpu)
        with self._timer("occupancy") as middle, self._timer(DETAILED) as best:
            count = sweep.count or DEFAULT_COUNT
            return best.work, climb(self.points, screen, middle, best, self.objectives, count), None

    @contextmanager
    def _timer(self, model: str) -> Iterator[Timer | FormulaTimer]:
        """A model as what times points, and keeps what it finds."""
        kind = SWEPT[model]
        if issubclass(kind, Planner):
            with closing(Store(kind.version())) as store:
                yield Timer(kind(self.sessions), self.run, store, self.progress)
        else:
            formula = partial(self.cluster.formula, progress=self.progress) if self.cluster else formula_cycles
            yield kind(self.sessions, self.sweep.space.gpu, formula)

    def estimated(self, aim: Aim, programs: Sequence[SampledProgram]) -> tuple[Work, Found, EstimatedTargets | None]:
        """Every point from some that are timed: with launches that are chosen, where there are `programs`; else with
        all, and the best points timed."""
        refused = (self.points.of_alike(self.points.deciding, self._reason) != "") | (self.points.reasons != "")
        reasons = [self._reason(k) if refused[k] else "" for k in range(len(self.points))]
        rows = np.array([k for k, reason in enumerate(reasons) if not reason], np.int64)
        cycles, work = np.full((len(self.points), len(self.sessions)), FAILED, np.int64), Work(len(self.points))
        timed = Found(self.points, cycles, reasons, None)
        if not len(rows):
            return work, timed, None
        own = self.points.where(rows)
        with closing(Store(Planner.version())) as store:

            def timer_of(some: Sequence[Session]) -> Timer:
                return Timer(Planner(some), self.run, store, self.progress, work)

            on = own.after_first(), timer_of, aim
            if programs:
                found = [SampledSweep(program.session, *on).run(program) for program in programs]
            else:
                sweeps = [InterpolatedSweep(session, *on) for session in self.sessions]
                found = self._with_best([each.run() for each in sweeps], sweeps, own)
        cycles[rows] = np.stack([np.rint(each.cycles) for each in found], 1)
        if not programs:
            work.represent(cycles, self.sessions)
        return work, timed, EstimatedTargets(self.names, found, rows)

    def _reason(self, k: int) -> str:
        gpu = gpu_or_reason(self.points, k)
        return gpu if isinstance(gpu, str) else next(filter(None, (refused_by(s, gpu) for s in self.sessions)), "")

    def _with_best(
        self, found: list[ReadPoints], sweeps: Sequence[InterpolatedSweep], points: Points
    ) -> list[ReadPoints]:
        """With the best points timed in detail, until none is estimated better than so many; or those on the front,
        until they stay there."""
        while True:
            values = self.objectives(points, np.stack([np.rint(each.cycles) for each in found], 1))
            timed = np.all([each.detailed for each in found], axis=0)
            several, top = values.shape[1] > 1, self.sweep.top
            best = np.flatnonzero(front(values)) if several else np.lexsort((~timed, values[:, 0]))[:top]
            if several and len(best) > MOST_ON_FRONT:
                best = best[np.lexsort(values[best].T[::-1])][np.linspace(0, len(best) - 1, top).astype(np.int64)]
            open_rows = best[~timed[best]]
            if not len(open_rows):
                return found
            found = [own.more(each, open_rows) for own, each in zip(sweeps, found, strict=True)]


def _check_objectives(sweep: Sweep, points: Points) -> None:
    """Raises InputError for an objective that cannot be worked out, before minutes of timing."""
    one = points.where(np.arange(1))
    results = set().union(*(objective.names for objective in sweep.objectives))
    guesses = {name: np.ones(1) for name in results if name in RESULT_NAMES or name.startswith(("cycles_", "seconds_"))}
    for objective in sweep.objectives:
        one.evaluate(objective, guesses)


def _sensitivity(found: Found, targets: Sequence[str]) -> list[Sensitivity]:
    """Of the geometric mean over all targets, from the points on which all of them ran."""
    timed = np.asarray((found.cycles > 0).all(1))
    if timed.sum() < 2:
        return []
    points = found.points.where(timed)
    seconds = measures(targets, points, found.cycles[timed].astype(float))["seconds"]
    return of_columns({axis.key: points.columns[axis.key] for axis in points.space.axes}, seconds)
