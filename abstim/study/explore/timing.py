"""Cycles of points: planned as jobs, looked up in the store, the rest run, results kept as they come."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from abstim.gpu.config import Gpu
from abstim.progress import Progress
from abstim.session.session import Session
from abstim.study.explore.jobs import Job
from abstim.study.explore.kept_cycles import Store
from abstim.study.explore.local import Results
from abstim.study.explore.points import Points
from abstim.study.explore.screen import FAILED
from functional.errors import InputError

if TYPE_CHECKING:
    from jaxtyping import Int64


class JobPlanner(Protocol):
    """Turns points into jobs of a model."""

    sessions: Sequence[Session]

    @property
    def version(self) -> str:
        """Of the model: another one gives other cycles."""
        ...

    def jobs(self, target: int, gpu: Gpu) -> Iterator[Job]:
        """One job a launch of a target. Raises InputError for a point on which one of them cannot run."""
        ...


Run = Callable[[Any, Sequence[Job]], Iterator[Results]]  # of a planner's jobs
PLANNED_POINTS = 4096  # planned at a time, so that the first results of a large sweep are not long in coming


@dataclass
class Work:
    """What a sweep took. Represented instructions are those the points stand for, stepped those the engine walked."""

    points: int = 0
    jobs: int = 0  # different launches on different machines
    known: int = 0  # of them, done by earlier sweeps
    represented_thread_instructions: int = 0
    stepped_thread_instructions: int = 0
    seconds: float = 0.0  # planning and timing; executing the targets is not in it


@dataclass
class Timer:
    """Times points; what it has timed once it knows."""

    planner: JobPlanner
    run: Run
    store: Store
    progress: Progress
    work: Work = field(default_factory=Work)
    _cycles: dict[bytes, int] = field(default_factory=dict, repr=False)

    def __call__(self, points: Points) -> tuple[Int64[np.ndarray, "point target"], list[str]]:
        """Cycles, `FAILED` where a target cannot run, and the reasons ("" for points on which every target runs)."""
        found = np.full((len(points), len(self.planner.sessions)), FAILED, np.int64)
        reasons: list[str] = []
        for first in range(0, len(points), PLANNED_POINTS):
            some = range(first, min(first + PLANNED_POINTS, len(points)))
            gpus = [gpu_or_reason(points, k) for k in some]
            cycles, why = self.launch_cycles(gpus, partial(self._report, some, len(points)))
            for k, of_targets in zip(some, cycles, strict=True):
                for target, launches in of_targets.items():
                    found[k, target] = launches.sum()
            reasons += why
        self._account(found)
        return found, reasons

    def launch_cycles(
        self, gpus: Sequence[Gpu | str], report: Callable[[float], None] = lambda part: None
    ) -> tuple[list[dict[int, Int64[np.ndarray, " launch"]]], list[str]]:
        """For each GPU the cycles of every launch of the targets that run on it, by target, and the reasons. In place
        of a GPU there may be the reason why there is none. `report` is told which part of all is done."""
        started = perf_counter()
        jobs: dict[bytes, Job] = {}
        planned = [self._plan(gpu, range(len(self.planner.sessions)), jobs) for gpu in gpus]
        self._look_up_or_run(list(jobs.values()), report)
        found = [
            {target: np.array([self._cycles[key] for key in launches], np.int64) for target, launches in keys.items()}
            for keys, _ in planned
        ]
        self.work.seconds += perf_counter() - started
        return found, [reason for _, reason in planned]

    def target_cycles(
        self, pairs: Sequence[tuple[int, Gpu]]
    ) -> tuple[list[Int64[np.ndarray, " launch"]], list[str]]:  # fmt: skip
        """The same of some targets, each on a GPU of its own: cycles of every launch, none where it cannot run."""
        started = perf_counter()
        jobs: dict[bytes, Job] = {}
        planned = [self._plan(gpu, [target], jobs) for target, gpu in pairs]
        self._look_up_or_run(list(jobs.values()), partial(self._report, range(len(pairs)), len(pairs)))
        found = [np.array([self._cycles[key] for launches in keys.values() for key in launches]) for keys, _ in planned]
        self.work.seconds += perf_counter() - started
        return found, [reason for _, reason in planned]

    def _report(self, some: range, points: int, part: float) -> None:
        """Tell how many of `points` are done: those before `some`, and `part` of these."""
        self.progress("explore, points", some.start + int(part * len(some)), points)

    def _plan(
        self, gpu: Gpu | str, targets: Sequence[int], jobs: dict[bytes, Job]
    ) -> tuple[dict[int, list[bytes]], str]:
        """Job keys of each of these targets that can run on a GPU; new jobs go into `jobs`."""
        if isinstance(gpu, str):
            return {}, gpu
        keys: dict[int, list[bytes]] = {}
        reasons = []
        for target in targets:
            try:
                keys[target] = [jobs.setdefault(job.key, job).key for job in self.planner.jobs(target, gpu)]
            except InputError as error:
                reasons.append(str(error))
        return keys, "; ".join(reasons)

    def _look_up_or_run(self, jobs: list[Job], report: Callable[[float], None]) -> None:
        """Put the cycles of all jobs into `_cycles`."""
        new = [job for job in jobs if job.key not in self._cycles]
        known = self.store.known([job.key for job in new])
        missing = [job for job in new if job.key not in known]
        self._cycles |= known
        done = len(jobs) - len(missing)
        report(done / max(1, len(jobs)))
        for results in self.run(self.planner, missing) if missing else ():
            self.store.add(results)
            self._cycles |= results
            done += len(results)
            report(done / len(jobs))
        self.work.jobs += len(new)
        self.work.known += len(known)
        self.work.stepped_thread_instructions += sum(self._instructions(job.target, job.launch) for job in missing)

    def _instructions(self, target: int, launch: int) -> int:
        return int(self.planner.sessions[target].traces.trace(launch).thread_instructions.sum())

    def _account(self, found: np.ndarray) -> None:
        self.work.points += len(found)
        for target, session in enumerate(self.planner.sessions):
            each = sum(self._instructions(target, launch) for launch in range(len(session.case.launches)))
            self.work.represented_thread_instructions += each * int((found[:, target] != FAILED).sum())


def gpu_or_reason(points: Points, k: int) -> Gpu | str:
    """Point `k` as a GPU, or why it is none."""
    if points.reasons[k]:
        return str(points.reasons[k])
    try:
        return points.gpu(k)
    except InputError as error:
        return str(error)
