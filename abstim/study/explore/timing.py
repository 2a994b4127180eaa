"""Cycles of points: planned as jobs, looked up in the store, the rest run, results kept as they come.

The store is one SQLite file a version of a model. Every batch is a transaction, so a sweep that is killed loses the
batches in flight and nothing else. Keys are hashes of all that the model reads (`jobs.py`): whichever sweep asks for a
job next has its cycles.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from time import perf_counter

import numpy as np

from abstim.gpu.config import Gpu
from abstim.progress import Progress
from abstim.session.session import Session
from abstim.study.explore.jobs import Job, Planner, Results
from abstim.study.explore.points import Points
from abstim.study.explore.search import FAILED
from functional.arrays import Int64
from functional.errors import InputError
from functional.keep.folder import cache_dir, make_folder
from functional.terminal import note

MOST_BYTES = 1 << 30  # of the file
_KEYS_A_QUERY = 500


def store_path(version: str) -> Path:
    """The file of a version of a model. It can be deleted at any time."""
    return cache_dir("explore") / f"{version}.sqlite"


class Store:
    """Job key -> cycles. A file that cannot be used costs time, not correctness: it is said on stderr."""

    def __init__(self, version: str) -> None:
        """Open or create the file of a version."""
        self._path = store_path(version)
        try:
            make_folder(self._path.parent)
            if self._path.is_file() and self._path.stat().st_size > MOST_BYTES:
                self._path.unlink()  # begun anew: there is no telling which rows are of use
            self._database = _open(self._path)
        except (OSError, sqlite3.DatabaseError) as error:
            self._replace(error)

    def known(self, keys: Sequence[bytes]) -> dict[bytes, int]:
        """Cycles of those jobs that are done."""
        found: dict[bytes, int] = {}
        try:
            for first in range(0, len(keys), _KEYS_A_QUERY):
                part = keys[first : first + _KEYS_A_QUERY]
                marks = ",".join("?" * len(part))
                rows = self._database.execute(f"SELECT * FROM checked WHERE key IN ({marks})", part)
                found |= {key: _checked(key, cycles, check_sum) for key, cycles, check_sum in rows}
        except sqlite3.DatabaseError as error:
            self._replace(error)
            return {}
        return found

    def add(self, results: Iterable[tuple[bytes, int]]) -> None:
        """Keep a batch, whole or not at all."""
        try:
            with self._database:
                rows = ((key, cycles, _check_sum(key, cycles)) for key, cycles in results)
                self._database.executemany("INSERT OR IGNORE INTO checked VALUES (?, ?, ?)", rows)
        except sqlite3.DatabaseError as error:
            self._replace(error)

    def close(self) -> None:
        """Give the file back."""
        self._database.close()

    def _replace(self, error: Exception) -> None:
        """Go on without the file: a damaged one is deleted, one that cannot be written is left alone."""
        if isinstance(error, (OSError, sqlite3.OperationalError)):
            note(f"cache: cannot keep results in {self._path}: {error}; a killed sweep will start again")
        else:
            note(f"cache: {self._path} is damaged ({error}) and deleted; its points are timed again")
            self._path.unlink(missing_ok=True)
        self._database = _open(Path(":memory:"))


def _check_sum(key: bytes, cycles: int) -> bytes:
    """SQLite does not tell when bits of a row change."""
    return sha256(key + str(cycles).encode()).digest()[:8]


def _checked(key: bytes, cycles: int, check_sum: bytes) -> int:
    """The cycles of a row. Raises DatabaseError if they are not those that were kept."""
    if not isinstance(key, bytes) or check_sum != _check_sum(key, cycles):
        raise sqlite3.DatabaseError("the checksum of a row differs")
    return cycles


def _open(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, timeout=60)
    try:
        database.execute("PRAGMA journal_mode = WAL")  # of several sweeps one can write while others read
        database.execute("PRAGMA synchronous = NORMAL")
        with database:
            database.execute(
                "CREATE TABLE IF NOT EXISTS checked "
                "(key BLOB PRIMARY KEY, cycles INTEGER NOT NULL, check_sum BLOB NOT NULL) WITHOUT ROWID"
            )
    except sqlite3.DatabaseError:
        database.close()
        raise
    return database


Run = Callable[[Planner, Sequence[Job]], Iterator[Results]]
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

    def count_points(self, cycles: Int64[np.ndarray, "point target"], sessions: Sequence[Session]) -> None:
        """These points are timed, as far as they are not FAILED."""
        self.points += len(cycles)
        self.represent(cycles, sessions)

    def represent(self, cycles: Int64[np.ndarray, "point target"], sessions: Sequence[Session]) -> None:
        """Points that are not FAILED stand for all instructions of their targets."""
        for target, session in enumerate(sessions):
            each = sum(thread_instructions(session, launch) for launch in range(len(session.case.launches)))
            self.represented_thread_instructions += each * int((cycles[:, target] != FAILED).sum())


def thread_instructions(session: Session, launch: int) -> int:
    """Of a launch."""
    return int(session.traces.trace(launch).thread_instructions.sum())


@dataclass
class Timer:
    """Times points; what it has timed once it knows."""

    planner: Planner
    run: Run
    store: Store
    progress: Progress
    work: Work = field(default_factory=Work)
    _cycles: dict[bytes, int] = field(default_factory=dict, repr=False)

    def __call__(self, points: Points) -> tuple[Int64[np.ndarray, "point target"], list[str]]:
        """Cycles, `FAILED` where a target cannot run, and the reasons ("" for points on which every target runs)."""
        targets = range(len(self.planner.sessions))
        found = np.full((len(points), len(targets)), FAILED, np.int64)
        reasons: list[str] = []
        for first in range(0, len(points), PLANNED_POINTS):
            some = range(first, min(first + PLANNED_POINTS, len(points)))
            gpus = [gpu_or_reason(points, k) for k in some]
            pairs = [(target, gpu, None) for gpu in gpus if isinstance(gpu, Gpu) for target in targets]
            rows = iter(self.timed(pairs, partial(self._report, some, len(points))))
            for k, gpu in zip(some, gpus, strict=True):
                of_targets = [next(rows) for _ in targets] if isinstance(gpu, Gpu) else []
                for target, (cycles, reason) in enumerate(of_targets):
                    found[k, target] = FAILED if reason else cycles.sum()
                reasons.append(gpu if isinstance(gpu, str) else "; ".join(why for _, why in of_targets if why))
        self.work.count_points(found, self.planner.sessions)
        return found, reasons

    def timed(
        self, pairs: Sequence[tuple[int, Gpu, Sequence[int] | None]], report: Callable[[float], None] | None = None
    ) -> list[tuple[Int64[np.ndarray, " launch"], str]]:
        """Of some targets, each on a GPU of its own: cycles of every launch, or of those named, or none and the reason.
        `report` is told which part of all is done."""
        started = perf_counter()
        jobs: dict[bytes, Job] = {}
        planned: list[tuple[list[bytes], str]] = []
        for pair in pairs:
            try:
                planned.append(([jobs.setdefault(job.key, job).key for job in self.planner.jobs(*pair)], ""))
            except InputError as error:
                planned.append(([], str(error)))
        self._look_up_or_run(list(jobs.values()), report or partial(self._report, range(len(pairs)), len(pairs)))
        found = [(np.array([self._cycles[key] for key in keys], np.int64), reason) for keys, reason in planned]
        self.work.seconds += perf_counter() - started
        return found

    def _report(self, some: range, points: int, part: float) -> None:
        """Tell how many of `points` are done: those before `some`, and `part` of these."""
        self.progress(getattr(self.run, "what", "explore, points"), some.start + int(part * len(some)), points)

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
        self.work.stepped_thread_instructions += sum(
            thread_instructions(self.planner.sessions[job.target], job.launch) for job in missing
        )


def gpu_or_reason(points: Points, k: int) -> Gpu | str:
    """Point `k` as a GPU, or why it is none."""
    if points.reasons[k]:
        return str(points.reasons[k])
    try:
        return points.gpu(k)
    except InputError as error:
        return str(error)
