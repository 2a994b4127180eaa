"""The job queue of a sweep: work of a model for a set of points, each piece once, looked up in a store or run.

Two points that look the same to a model are one job: SMs that get no block, latencies of instructions the kernel
does not have, limits that do not bind, L2 and DRAM behind perfect memory. A job's key is a hash of all that the model
reads, so whichever sweep asks for it next has its cycles. The store is one SQLite file a version of a model. Every
batch is a transaction: a sweep that is killed loses the batches in flight and nothing else."""

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b, sha256
from pathlib import Path
from threading import local
from time import perf_counter

import numpy as np

from abstim.brief import grouped
from abstim.engine import simulate_point
from abstim.engine.design_point import code_of, machine_of, refuse_unsupported, streams_of
from abstim.engine.simulation import LaunchInputs
from abstim.engine.state import REAL_MEMORY, record
from abstim.gpu.config import Gpu, not_looked_at
from abstim.progress import Progress
from abstim.session.session import Session, likeness_of
from abstim.study.explore.points import Points
from abstim.study.explore.search import FAILED
from functional.arrays import Int64
from functional.errors import InputError, note
from functional.keep.folder import cache_dir, make_folder
from functional.keep.kept import key
from functional.traces.line_record import in_local
from precharacterize.table import encoded

CHUNK_WARP_INSTRUCTIONS = 1_000_000  # a few tenths of a second: lost at most when a sweep is killed
CHUNK_POINTS = 64  # of the occupancy model: what they share is made once


@dataclass(frozen=True)
class Job:
    """One launch of one target on one machine."""

    key: bytes
    target: int
    launch: int
    gpu: Gpu
    blocks_per_sm: int


Chunk = tuple[Job, ...]
Results = list[tuple[bytes, int]]  # job key, cycles
Reader = Callable[[int, int, "LaunchInputs", int], bytes]  # of a target, a launch, its inputs, thread blocks an SM


@dataclass
class Planner:
    """Turns points into jobs of the detailed model, and times them. `sessions` are the targets, executed."""

    sessions: Sequence[Session]
    _digests: dict[tuple[int, int, int], bytes] = field(default_factory=dict, repr=False)

    @staticmethod
    def refuse(points: Points) -> None:
        """Raises InputError for varied keys that the model does not look at."""

    @staticmethod
    def version() -> str:
        """Of the model, and of the sources that decide what it computes from its inputs."""
        return key(("abstim.engine.simulation",), "detailed")[:16]

    def jobs(self, target: int, gpu: Gpu, launches: Sequence[int] | None = None) -> Iterator[Job]:
        """One job a launch of a target, or of some `launches`. Raises InputError for a point on which one of them
        cannot run."""
        session = self.sessions[target]
        limits = {n: session.blocks_per_sm(n, gpu) for n in (range(len(session)) if launches is None else launches)}
        bare = replace(gpu, settings={}, labels={})  # sources of values are of no use to a model, and large
        read = self._reader(bare)
        for launch, blocks in limits.items():
            inputs = session.inputs(launch, gpu)
            refuse_unsupported(gpu, inputs.table, inputs.trace.warps_per_block, blocks)
            digest = blake2b(read(target, launch, inputs, blocks), digest_size=16)
            yield Job(digest.digest(), target, launch, bare, blocks)

    @staticmethod
    def cycles(session: Session, number: int, gpus: Sequence[Gpu], blocks_per_sm: Sequence[int]) -> list[int]:
        """Of a launch on GPUs with one latency table, on one thread."""
        inputs = session.inputs(number, gpus[0])
        return [simulate_point(inputs, gpu, n).cycles for gpu, n in zip(gpus, blocks_per_sm, strict=True)]

    def chunks(self, jobs: Sequence[Job], workers: int) -> list[Chunk]:
        """Jobs that share trace and latency table together, few enough that every worker gets several chunks."""
        chunks = list[Chunk]()
        for group in map(self._in_order, grouped(jobs, self._group).values()):
            size = self._chunk_size(group, workers)
            chunks += [tuple(group[k : k + size]) for k in range(0, len(group), size)]
        return chunks

    def time(self, chunk: Chunk) -> list[int]:
        """Cycles of its jobs, on one thread."""
        first, gpus, blocks = chunk[0], [job.gpu for job in chunk], [job.blocks_per_sm for job in chunk]
        return self.cycles(self.sessions[first.target], first.launch, gpus, blocks)

    def _reader(self, gpu: Gpu) -> Reader:
        machines: dict[tuple[int, ...], np.ndarray] = {}

        def read(target: int, launch: int, inputs: LaunchInputs, blocks: int) -> bytes:
            shape = (id(inputs.table), inputs.trace.warps_per_block, blocks, inputs.shared_bytes)
            if shape not in machines:
                machines[shape] = _machine(inputs, gpu, blocks)
            own = self._digest((target, launch, id(inputs.table)), lambda: _inputs_digest(inputs))
            latency = int(gpu.params.launch_latency_cycles).to_bytes(8, "little")
            machine = machines[shape].copy()
            if not own[-1]:  # of SMs beyond one a thread block nobody gets one, nor notices it but in local memory
                machine["local_places"] = 0
                machine["sm_count"] = min(int(machine["sm_count"]), max(1, len(inputs.trace.thread_blocks)))
            return own + machine.tobytes() + latency

        return read

    def _group(self, job: Job) -> tuple[int, ...]:
        table = self.sessions[job.target].inputs(job.launch, job.gpu).table
        return job.target, job.launch, id(table), job.gpu.spec.posted_stores  # which decides what of a trace is timed

    @staticmethod
    def _in_order(group: list[Job]) -> list[Job]:
        """In which they are best timed."""
        return group

    def _chunk_size(self, group: Sequence[Job], workers: int) -> int:
        first = group[0]
        trace = self.sessions[first.target].inputs(first.launch, first.gpu).trace
        instructions = max(1, int(trace.warp_instructions.sum()))
        return max(1, min(CHUNK_WARP_INSTRUCTIONS // instructions, len(group) // (4 * workers)))

    def _digest(self, place: tuple[int, int, int], make: Callable[[], bytes]) -> bytes:
        """Of a launch as the model reads it; a session keeps its tables and timed code, of which `place` has the id."""
        if place not in self._digests:
            self._digests[place] = make()
        return self._digests[place]


_OF_THREAD = local()  # a launch each: they walk side by side


@dataclass
class OccupancyPlanner(Planner):
    """The same of the occupancy model."""

    @staticmethod
    def refuse(points: Points) -> None:
        """Raises InputError for varied keys that the model does not look at."""
        from abstim.occupancy_vector.occupancy_model import UNREAD

        if ignored := [key for key in points.columns if key in UNREAD]:
            raise InputError(not_looked_at(f"--vary {ignored[0]}", "occupancy"))

    @staticmethod
    def version() -> str:
        """Of the model and its sources: another one gives other cycles."""
        return key(("abstim.occupancy_vector.timed_launch",), "occupancy")[:16]

    @staticmethod
    def cycles(session: Session, number: int, gpus: Sequence[Gpu], blocks_per_sm: Sequence[int]) -> list[int]:
        """Of a launch on any GPUs, on one thread."""
        from abstim.occupancy_vector.timed_launch import TimedLaunch

        if getattr(_OF_THREAD, "of", None) != (session, number):  # chunks of the same launch follow each other
            _OF_THREAD.of, _OF_THREAD.timed = (session, number), TimedLaunch(session, number)
        points = [_OF_THREAD.timed.design_point(gpu) for gpu in gpus]
        return [found.cycles for found in _OF_THREAD.timed.times(points, 1)]

    def _reader(self, gpu: Gpu) -> Reader:
        point = repr((replace(gpu.spec, name=""), gpu.params, gpu.pipeline)).encode()

        def read(target: int, launch: int, inputs: LaunchInputs, blocks: int) -> bytes:
            code = self.sessions[target].timed_code(launch, gpu)
            own = self._digest((target, launch, id(code)), lambda: self._launch_digest(target, launch, gpu))
            return own + point + blocks.to_bytes(4, "little")  # by the kernel's registers too

        return read

    def _group(self, job: Job) -> tuple[int, ...]:
        return job.target, job.launch

    @staticmethod
    def _in_order(group: list[Job]) -> list[Job]:
        """Those whose caches answer alike are side by side, whatever was varied first, since few walks are kept; those
        with the largest caches first, whose walk may be the others', too."""
        from abstim.occupancy_vector.design_points import in_caches, walking

        alike = grouped(group, lambda job: (walking(job.gpu), job.blocks_per_sm))
        return [job for jobs in alike.values() for job in sorted(jobs, key=lambda job: in_caches(job.gpu))]

    def _chunk_size(self, group: Sequence[Job], workers: int) -> int:
        return CHUNK_POINTS

    def _launch_digest(self, target: int, launch: int, gpu: Gpu) -> bytes:
        """Of a launch, of what is timed in place of its program, and of the model."""
        session = self.sessions[target]
        alike = likeness_of(session.launch(launch), session.traces.trace(launch))
        code = session.timed_code(launch, gpu)
        return bytes.fromhex(key((), self.version(), alike, encoded(code) if code else ""))


def run_local(planner: Planner, jobs: Sequence[Job]) -> Iterator[Results]:
    """Results of all jobs, a chunk at a time, in whatever order they are done. One thread a CPU."""
    workers = os.cpu_count() or 1

    def one(chunk: Chunk) -> Results:
        return [(job.key, cycles) for job, cycles in zip(chunk, planner.time(chunk), strict=True)]

    with ThreadPoolExecutor(workers) as pool:
        try:
            for future in as_completed([pool.submit(one, chunk) for chunk in planner.chunks(jobs, workers)]):
                yield future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # nothing new is started after an interrupt
            raise


def _inputs_digest(inputs: LaunchInputs) -> bytes:
    """Of a launch as the engine reads it; equal for launches that do the same on the same addresses. Its last byte says
    whether any of them is in local memory."""
    code, operands = code_of(inputs.table)
    streams, offsets = streams_of(inputs.trace, inputs.table, operands)
    shape = Planner.version(), inputs.table.register_count, inputs.trace.warps_per_block
    return bytes.fromhex(key((), *shape, code, *streams, *offsets)) + bytes([int(in_local(inputs.trace.records).any())])


def _machine(inputs: LaunchInputs, gpu: Gpu, blocks_per_sm: int) -> np.ndarray:
    """The engine's record of a GPU, without what cannot change a launch's cycles there."""
    machine = machine_of(gpu, inputs.trace.warps_per_block, blocks_per_sm, inputs.table, inputs.shared_bytes)
    machine["ring"] = 0  # where bookings lie, not what they are
    if gpu.spec.perfect_memory:
        for name in record(*REAL_MEMORY).names or ():
            machine[name] = 0
    if gpu.spec.scheduler != "two_level":
        machine["two_level_active_warps"] = 0
        used = min(gpu.spec.max_warps_per_sm, blocks_per_sm * inputs.trace.warps_per_block)
        machine["max_warps_per_sm"], mask = used, (1 << used) - 1
        machine["scheduler_slots"] = [int(slots) & mask for slots in machine["scheduler_slots"]]
    return machine


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
