"""What the engine has to do for a set of points: every piece of work once, named by all that the engine reads.

Two points that look the same to the engine are one job: SMs that get no block, latencies of instructions the kernel
does not have, limits that do not bind, L2 and DRAM behind perfect memory. A job's key is a hash of its inputs, so it
also says what an earlier sweep has done already.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from abstim.gpu.config import Gpu
from abstim.session.session import Session
from functional.keep.kept import key

if TYPE_CHECKING:
    from abstim.engine.simulation import LaunchInputs


@dataclass(frozen=True)
class Job:
    """One launch of one target on one machine."""

    key: bytes
    target: int
    launch: int
    gpu: Gpu
    blocks_per_sm: int


@dataclass
class Planner:
    """Turns points into jobs. `sessions` are the targets, executed."""

    sessions: Sequence[Session]
    _digests: dict[tuple[int, int, int], bytes] = field(default_factory=dict, repr=False)

    def jobs(self, target: int, gpu: Gpu) -> Iterator[Job]:
        """One job a launch of a target. Raises InputError for a point on which one of them cannot run."""
        from abstim.engine.design_point import refuse_unsupported

        session, machines = self.sessions[target], dict[tuple[int, ...], np.ndarray]()
        limits = [session.blocks_per_sm(launch, gpu) for launch in range(len(session))]
        gpu = replace(gpu, settings={}, labels={})  # sources of values are of no use to an engine, and large
        for launch, blocks in enumerate(limits):
            inputs = session.inputs(launch, gpu)
            refuse_unsupported(gpu, inputs.table, inputs.trace.warps_per_block, blocks)
            shape = (id(inputs.table), inputs.trace.warps_per_block, blocks, inputs.shared_bytes)
            if shape not in machines:
                machines[shape] = _machine(inputs, gpu, blocks)
            digest = hashlib.blake2b(self._digest(target, launch, inputs), digest_size=16)
            digest.update(_effective(machines[shape], len(inputs.trace.thread_blocks)))
            digest.update(int(gpu.params.launch_latency_cycles).to_bytes(8, "little"))
            yield Job(digest.digest(), target, launch, gpu, blocks)

    @property
    def version(self) -> str:
        """Of the model: another one gives other cycles."""
        return engine_digest()

    def inputs(self, job: Job) -> LaunchInputs:
        """What the engine needs for a job, besides the machine."""
        return self.sessions[job.target].inputs(job.launch, job.gpu)

    def _digest(self, target: int, launch: int, inputs: LaunchInputs) -> bytes:
        """Of a launch as the engine reads it; equal for launches that do the same on the same addresses."""
        key = (target, launch, id(inputs.table))  # a session keeps its tables
        if key not in self._digests:
            self._digests[key] = _inputs_digest(inputs)
        return self._digests[key]


def engine_digest() -> str:
    """Of the model, and of the sources that decide what it computes from its inputs."""
    return key(("abstim.engine.simulation",), "detailed")[:16]  # another model of the same sources has other results


def _inputs_digest(inputs: LaunchInputs) -> bytes:
    from abstim.engine.design_point import code_of, streams_of

    code, operands = code_of(inputs.table)
    digest = hashlib.blake2b(f"{engine_digest()}:{inputs.table.register_count}".encode(), digest_size=32)
    streams, offsets = streams_of(inputs.trace, inputs.table, operands)
    for array in (code, *streams, *offsets, np.array([inputs.trace.warps_per_block])):
        digest.update(f"{array.dtype}:{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data.cast("B") if array.size else b"")
    return digest.digest()


def _machine(inputs: LaunchInputs, gpu: Gpu, blocks_per_sm: int) -> np.ndarray:
    """The engine's record of a GPU, without what cannot change a launch's cycles there."""
    from abstim.engine.design_point import machine_of, memory_values

    machine = machine_of(gpu, inputs.trace.warps_per_block, blocks_per_sm, inputs.table, inputs.shared_bytes)
    machine["ring"] = 0  # where bookings lie, not what they are
    if gpu.spec.perfect_memory:
        for name in memory_values(gpu).keys() - {"perfect"}:
            machine[name] = 0
    if gpu.spec.scheduler != "two_level":
        machine["active_warps"] = 0
        used = min(gpu.spec.max_warps_per_sm, blocks_per_sm * inputs.trace.warps_per_block)
        machine["warp_slots"], mask = used, (1 << used) - 1
        machine["scheduler_slots"] = [int(slots) & mask for slots in machine["scheduler_slots"]]
    return machine


def _effective(machine: np.ndarray, thread_blocks: int) -> bytes:
    """Of SMs beyond one a thread block nobody gets one: they change no cycle of the others."""
    record = machine.copy()
    record["sm_count"] = min(int(record["sm_count"]), max(1, thread_blocks))
    return record.tobytes()
