"""Points by the occupancy model: what of it is a job, and jobs on this machine."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields, replace
from threading import local
from typing import TYPE_CHECKING, Any

import numpy as np

from abstim.gpu.config import Gpu
from abstim.session.session import Session
from abstim.study.explore.jobs import Job
from abstim.study.explore.local import Results, as_completed
from functional.keep import kept
from precharacterize.build_timed import encode

if TYPE_CHECKING:
    from precharacterize.timed_code import TimedCode

CHUNK_POINTS = 64  # timed together: what they share is made once, and so many are lost when a sweep is killed
_MODULES = ("abstim.occupancy_vector.occupancy_model", "abstim.occupancy_vector.lane_kernel",
            "abstim.occupancy_vector.walk_kernel", "abstim.occupancy_vector.item_kernel")  # fmt: skip


@dataclass
class OccupancyPlanner:
    """Turns points into jobs of the occupancy model. `sessions` are the targets, executed."""

    sessions: Sequence[Session]
    _digests: dict[tuple[int, int, int], bytes] = field(default_factory=dict, repr=False)

    @property
    def version(self) -> str:
        """Of the model: another one gives other cycles."""
        return kept.key(_MODULES, "occupancy")[:16]

    def jobs(self, target: int, gpu: Gpu) -> Iterator[Job]:
        """One job a launch of a target. Raises InputError for a point on which one of them cannot run."""
        from abstim.engine.design_point import refuse_unsupported

        session = self.sessions[target]
        limits = [session.blocks_per_sm(launch, gpu) for launch in range(len(session))]
        bare = replace(gpu, spec=replace(gpu.spec, name=""), settings={}, labels={})
        point = repr((bare.spec, bare.params, bare.pipeline)).encode()
        for launch, blocks in enumerate(limits):
            inputs = session.inputs(launch, gpu)
            refuse_unsupported(gpu, inputs.table, inputs.trace.warps_per_block, blocks)
            own = self._digest(target, launch, session.timed_code(launch, gpu)) + point
            own += blocks.to_bytes(4, "little")  # by the kernel's registers too
            digest = hashlib.blake2b(own, digest_size=16)
            yield Job(digest.digest(), target, launch, bare, blocks)

    def _digest(self, target: int, launch: int, code: TimedCode | None) -> bytes:
        """Of a launch's program and trace, of what is timed in place of the program, and of the model."""
        key = (target, launch, id(code))  # a session keeps its timed code
        if key not in self._digests:
            session = self.sessions[target]
            own, trace = session.launch(launch), session.traces.trace(launch)
            what = (self.version, own.program.digest, own.program.name, own.shared_bytes, trace.warps_per_block)
            digest = hashlib.blake2b(repr(what).encode())
            for array in (getattr(trace, f.name) for f in fields(trace) if f.name != "warps_per_block"):
                digest.update(f"{array.dtype}:{array.shape}".encode())
                digest.update(np.ascontiguousarray(array).data.cast("B") if array.size else b"")
            if code:
                digest.update(encode(code))
            self._digests[key] = digest.digest()
        return self._digests[key]


def run_occupancy(planner: Any, jobs: Sequence[Job]) -> Iterator[Results]:
    """Results of all jobs, a chunk of the points of a launch at a time, one thread a CPU."""
    workers = os.cpu_count() or 1

    own = local()  # a launch is for one thread at a time; chunks of the same one follow each other

    def one(chunk: list[Job]) -> Results:
        from abstim.occupancy_vector.occupancy_model import TimedLaunch

        session, number = planner.sessions[chunk[0].target], chunk[0].launch
        if getattr(own, "of", None) != (session, number):
            own.of, own.timed = (session, number), TimedLaunch(session, number)
        timed = own.timed
        points = [timed.design_point(job.gpu) for job in chunk]
        return [(job.key, found.cycles) for job, found in zip(chunk, timed.times(points, 1), strict=True)]

    groups: dict[tuple[int, int], list[Job]] = {}
    for job in jobs:
        groups.setdefault((job.target, job.launch), []).append(job)
    chunks = [
        jobs_of[k : k + CHUNK_POINTS] for jobs_of in groups.values() for k in range(0, len(jobs_of), CHUNK_POINTS)
    ]
    with ThreadPoolExecutor(workers) as pool:
        try:
            yield from as_completed({pool.submit(one, chunk) for chunk in chunks})
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # nothing new is started after an interrupt
            raise
