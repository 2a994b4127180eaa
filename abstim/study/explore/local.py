"""Jobs on this machine. Jobs that share a launch go to the engine together, a chunk of them in one call."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import islice
from typing import TYPE_CHECKING

from abstim.study.explore.jobs import Job, Planner

if TYPE_CHECKING:
    from abstim.engine.simulation import LaunchInputs
    from abstim.gpu.config import Gpu

CHUNK_WARP_INSTRUCTIONS = 1_000_000  # a few tenths of a second: lost at most when a sweep is killed
Chunk = tuple[Job, ...]
Results = list[tuple[bytes, int]]  # job key, cycles


def chunks(planner: Planner, jobs: Sequence[Job], workers: int) -> list[Chunk]:
    """Jobs that share trace and latency table together, few enough that every worker gets several chunks."""
    groups: dict[tuple[int, int, int], list[Job]] = {}
    for job in jobs:
        groups.setdefault((job.target, job.launch, id(planner.inputs(job).table)), []).append(job)
    found = []
    for group in groups.values():
        size = _chunk_size(planner.inputs(group[0]), len(group), workers)
        iterator = iter(group)
        while chunk := tuple(islice(iterator, size)):
            found.append(chunk)
    return found


def _chunk_size(inputs: LaunchInputs, jobs: int, workers: int) -> int:
    instructions = max(1, int(inputs.trace.warp_instructions.sum()))
    return max(1, min(CHUNK_WARP_INSTRUCTIONS // instructions, jobs // (4 * workers)))


def time_chunk(inputs: LaunchInputs, gpus: Sequence[Gpu], blocks_per_sm: Sequence[int]) -> list[int]:
    """Cycles of a launch on each GPU, on one thread."""
    from abstim.engine import simulate

    return [result.cycles for result in simulate(inputs, gpus, blocks_per_sm, threads=1)]


def run_local(planner: Planner, jobs: Sequence[Job]) -> Iterator[Results]:
    """Results of all jobs, a chunk at a time, in whatever order they are done. One thread a CPU."""
    workers = os.cpu_count() or 1

    def one(chunk: Chunk) -> Results:
        cycles = time_chunk(planner.inputs(chunk[0]), [job.gpu for job in chunk], [job.blocks_per_sm for job in chunk])
        return [(job.key, found) for job, found in zip(chunk, cycles, strict=True)]

    with ThreadPoolExecutor(workers) as pool:
        try:
            yield from as_completed({pool.submit(one, chunk) for chunk in chunks(planner, jobs, workers)})
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # nothing new is started after an interrupt
            raise


def as_completed(waiting: Iterable[Future[Results]]) -> Iterator[Results]:
    """What futures find, as they are done."""
    waiting = set(waiting)
    while waiting:
        done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
        yield [result for future in done for result in future.result()]
