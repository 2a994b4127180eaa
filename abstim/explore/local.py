"""Jobs on this machine. Jobs that share a launch go to the engine together, a chunk of them in one call."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import islice
from queue import SimpleQueue
from typing import TYPE_CHECKING

from abstim.explore.jobs import Job, Planner

if TYPE_CHECKING:
    from abstim.config import Gpu
    from abstim.engine.inputs import LaunchInputs

CHUNK_WARP_INSTRUCTIONS = 1_000_000  # a few tenths of a second: lost at most when a sweep is killed
ARRAY_POINTS = 256  # lanes of one array program
Chunk = tuple[Job, ...]
Place = Callable[[], AbstractContextManager[object]]
Results = list[tuple[bytes, int]]  # job key, cycles


def chunks(planner: Planner, jobs: Sequence[Job], backend: str, workers: int) -> list[Chunk]:
    """Jobs that share trace and latency table together, few enough that every worker gets several chunks."""
    groups: dict[tuple[int, int, int], list[Job]] = {}
    for job in jobs:
        groups.setdefault((job.target, job.launch, id(planner.inputs(job).table)), []).append(job)
    found = []
    for group in groups.values():
        if backend == "array":
            size = min(ARRAY_POINTS, -(-len(group) // workers))
        else:
            size = _chunk_size(planner.inputs(group[0]), len(group), workers)
        iterator = iter(group)
        while chunk := tuple(islice(iterator, size)):
            found.append(chunk)
    return found


def _chunk_size(inputs: LaunchInputs, jobs: int, workers: int) -> int:
    instructions = max(1, int(inputs.trace.warp_instructions.sum()))
    return max(1, min(CHUNK_WARP_INSTRUCTIONS // instructions, jobs // (4 * workers)))


def time_chunk(inputs: LaunchInputs, gpus: Sequence[Gpu], blocks_per_sm: Sequence[int], backend: str) -> list[int]:
    """Cycles of a launch on each GPU, on one thread."""
    from abstim.engine import simulate

    return [result.cycles for result in simulate(inputs, gpus, blocks_per_sm, backend=backend, threads=1)]


def run_local(planner: Planner, jobs: Sequence[Job], backend: str) -> Iterator[Results]:
    """Results of all jobs, a chunk at a time, in whatever order they are done. One thread a CPU, or a JAX device."""
    with _places(backend) as places:
        idle: SimpleQueue[Place] = SimpleQueue()
        for place in places:
            idle.put(place)

        def one(chunk: Chunk) -> Results:
            inputs, gpus = planner.inputs(chunk[0]), [job.gpu for job in chunk]
            place = idle.get()
            try:
                with place():
                    cycles = time_chunk(inputs, gpus, [job.blocks_per_sm for job in chunk], backend)
            finally:
                idle.put(place)
            return [(job.key, found) for job, found in zip(chunk, cycles, strict=True)]

        with ThreadPoolExecutor(len(places)) as pool:
            try:
                yield from _as_completed({pool.submit(one, c) for c in chunks(planner, jobs, backend, len(places))})
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)  # nothing new is started after an interrupt
                raise


@contextmanager
def _places(backend: str) -> Iterator[list[Place]]:
    """Where calls of the engine run side by side: what to enter around one."""
    if backend != "array":
        yield [nullcontext] * (os.cpu_count() or 1)
        return
    import jax

    from abstim.engine.array.run import persistent_programs

    with persistent_programs():  # once around all threads: it sets and resets what they share
        yield [partial(jax.default_device, device) for device in jax.local_devices()]


def _as_completed(waiting: Iterable[Future[Results]]) -> Iterator[Results]:
    waiting = set(waiting)
    while waiting:
        done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
        yield [result for future in done for result in future.result()]
