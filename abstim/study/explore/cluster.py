"""A sweep's work on the workers of a dask scheduler. They may join and die at any time; results are kept here."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from abstim.extras import need
from abstim.gpu.config import Gpu
from abstim.progress import Progress
from abstim.study.explore.formula import AT_ONCE, DifferentLaunches, formula_cycles
from abstim.study.explore.jobs import Chunk, Job, Planner, Results
from functional.arrays import Float
from functional.errors import InputError
from functional.keep.kept import key

CONNECT_SECONDS = 10
FAILURES = 5  # rounds in a row without a single result, after which the cluster is given up
Piece = TypeVar("Piece")
Made = TypeVar("Made")


@dataclass
class Cluster:
    """The workers of the scheduler at an address; `workers` there were when they were last asked for something.

    Raises InputError if there is no such cluster, if a worker has another version of abstim, or if nothing comes back
    any more."""

    address: str
    workers: int = 0

    @property
    def what(self) -> str:
        """What is being done, for people."""
        return f"explore, points on {self.workers} worker{'s' * (self.workers != 1)}"

    def __call__(self, planner: Planner, jobs: Sequence[Job]) -> Iterator[Results]:
        """Results of all jobs, a chunk at a time, in whatever order they are done. Each worker thread runs a chunk."""
        with self._connected() as client:
            sent: dict[tuple[int, int], Any] = {}  # tasks, not scattered data: made again if their worker dies

            def send(chunk: Chunk) -> Any:
                first, gpus = chunk[0], [job.gpu for job in chunk]
                place = first.target, first.launch
                if place not in sent:
                    alone = planner.sessions[first.target].alone(first.launch)
                    sent[place] = client.submit(given, alone, pure=False)
                blocks, own = [job.blocks_per_sm for job in chunk], planner.version
                return client.submit(on_worker, own(), own, planner.cycles, sent[place], 0, gpus, blocks, pure=False)

            chunks = planner.chunks(jobs, sum(client.nthreads().values()))
            for chunk, cycles in self._all_of(client, chunks, send):
                yield [(job.key, found) for job, found in zip(chunk, cycles, strict=True)]

    def formula(
        self, targets: Sequence[DifferentLaunches], gpu: Gpu, columns: Mapping[str, np.ndarray],
        rounded: Callable[[np.ndarray], np.ndarray], progress: Progress,
    ) -> Float[np.ndarray, "point target"]:  # fmt: skip
        """As of `formula_cycles`; `progress` is told how many points of how many are done."""
        count = len(next(iter(columns.values())))
        found, done = np.zeros((count, len(targets))), 0
        with self._connected() as client:
            threads = max(1, sum(client.nthreads().values()))
            size = max(1, min(AT_ONCE, -(-count // (4 * threads))))
            data, version = client.submit(given, targets, pure=False), formula_version()

            def send(some: slice) -> Any:
                own = {key: values[some] for key, values in columns.items()}
                about = version, formula_version, formula_cycles
                return client.submit(on_worker, *about, data, gpu, own, rounded, pure=False)

            pieces = [slice(first, min(first + size, count)) for first in range(0, count, size)]
            for some, cycles in self._all_of(client, pieces, send):
                found[some] = cycles
                done += len(cycles)
                progress(self.what, done, count)
        return found

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        need("distributed")
        import dask
        from distributed import Client

        dask.config.set({"distributed.admin.large-graph-warning-threshold": "1TB"})  # traces are large
        try:
            client = Client(self.address, timeout=CONNECT_SECONDS)
        except (OSError, ValueError, TimeoutError) as error:
            raise InputError(f"--cluster {self.address}: no scheduler answers there ({error})") from None
        try:
            client.wait_for_workers(1, timeout=CONNECT_SECONDS)
            yield client
        except TimeoutError:
            raise InputError(f"--cluster {self.address}: the scheduler has no workers") from None
        finally:
            client.close(timeout=5)

    def _all_of(
        self, client: Any, pieces: Sequence[Piece], send: Callable[[Piece], Any]
    ) -> Iterator[tuple[Piece, Any]]:
        """Every piece of work and its result; what a dead worker had is sent once more."""
        from distributed import as_completed

        missing, failures, error = list(pieces), 0, ""
        while missing:
            before, self.workers = len(missing), len(client.scheduler_info(n_workers=-1)["workers"])
            piece_of = {send(piece): piece for piece in missing}
            for future in as_completed(list(piece_of)):
                try:
                    result = future.result()
                except InputError:
                    raise
                except Exception as failed:  # the worker is gone, with the data or the result: another round
                    error = f"{type(failed).__name__}: {failed}"
                    continue
                missing.remove(piece_of[future])
                yield piece_of[future], result
            failures = 0 if len(missing) < before else failures + 1
            if failures == FAILURES:
                raise InputError(f"--cluster {self.address}: {len(missing)} batches failed {FAILURES} times: {error}")


def formula_version() -> str:
    """Of the sources of the formula."""
    return key(("abstim.analytic.predictions",), "analytic")[:16]


def given(data: Made) -> Made:
    """Its argument."""
    return data


def on_worker(version: str, own: Callable[[], str], work: Callable[..., Made], *arguments: Any) -> Made:
    """What `work` makes of these, if this worker's model is that of the sweep."""
    if version != own():
        raise InputError("a worker of the cluster runs another version of abstim; install the same on all")
    return work(*arguments)
