"""Jobs on a dask.distributed cluster: workers may come and go; what they leave undone is given out again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from abstim.extras import need
from abstim.study.explore.jobs import Chunk, Job, Planner, Results, engine_digest, time_chunk
from functional.errors import InputError

if TYPE_CHECKING:
    from abstim.engine.simulation import LaunchInputs
    from abstim.gpu.config import Gpu

CONNECT_SECONDS = 10
FAILURES = 5  # rounds in a row without a single result, after which the cluster is given up


def run_on_cluster(planner: Planner, jobs: Sequence[Job], address: str) -> Iterator[Results]:
    """Results of all jobs, a chunk at a time, in whatever order they are done.

    Each worker thread runs a chunk. Raises InputError if there is no such cluster, if a worker has another version of
    abstim, or if nothing comes back any more.
    """
    with _connected(address) as client:
        missing = planner.chunks(jobs, sum(client.nthreads().values()))
        failures, error = 0, ""
        while missing:
            before = len(missing)
            for chunk, outcome in _round(client, planner, list(missing)):
                if isinstance(outcome, str):
                    error = outcome
                else:
                    missing.remove(chunk)
                    yield outcome
            failures = 0 if len(missing) < before else failures + 1
            if failures == FAILURES:
                raise InputError(f"--cluster {address}: {len(missing)} batches failed {FAILURES} times: {error}")


@contextmanager
def _connected(address: str) -> Iterator[Any]:
    need("distributed")
    import dask
    from distributed import Client

    dask.config.set({"distributed.admin.large-graph-warning-threshold": "1TB"})  # traces are large
    try:
        client = Client(address, timeout=CONNECT_SECONDS)
    except (OSError, ValueError, TimeoutError) as error:
        raise InputError(f"--cluster {address}: no scheduler answers there ({error})") from None
    try:
        client.wait_for_workers(1, timeout=CONNECT_SECONDS)
        yield client
    except TimeoutError:
        raise InputError(f"--cluster {address}: the scheduler has no workers") from None
    finally:
        client.close(timeout=5)


def _round(client: Any, planner: Planner, missing: Sequence[Chunk]) -> Iterator[tuple[Chunk, Results | str]]:
    """Every chunk once: its results, or why there are none."""
    from distributed import as_completed

    sent: dict[tuple[int, int, int], Any] = {}  # kept until the round is over
    chunk_of = {}
    for chunk in missing:
        inputs = planner.inputs(chunk[0])
        launch = (chunk[0].target, chunk[0].launch, id(inputs.table))
        if launch not in sent:  # a task, not scattered data: the scheduler makes it again if its worker dies
            sent[launch] = client.submit(given, inputs, pure=False)
        gpus, blocks = [job.gpu for job in chunk], [job.blocks_per_sm for job in chunk]
        future = client.submit(on_worker, engine_digest(), sent[launch], gpus, blocks, pure=False)
        chunk_of[future] = chunk
    for future in as_completed(list(chunk_of)):
        yield chunk_of[future], _outcome(future, chunk_of[future])


def _outcome(future: Any, chunk: Chunk) -> Results | str:
    try:
        cycles = future.result()
    except InputError:
        raise
    except Exception as error:  # the worker is gone, with the data or the result: another round
        return f"{type(error).__name__}: {error}"
    return [(job.key, found) for job, found in zip(chunk, cycles, strict=True)]


def given(inputs: LaunchInputs) -> LaunchInputs:
    """Its argument."""
    return inputs


def on_worker(version: str, inputs: LaunchInputs, gpus: Sequence[Gpu], blocks_per_sm: Sequence[int]) -> list[int]:
    """`time_chunk`, if this worker's engine is that of the sweep."""
    if version != engine_digest():
        raise InputError("a worker of the cluster runs another version of abstim; install the same on all")
    return time_chunk(inputs, gpus, blocks_per_sm)
