"""A target's kernels as functions of latencies, on the host: recordings by base point, the latest ones kept."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

from abstim.gpu.config import Gpu, refuse_machine_code
from abstim.gpu.spec import INSTRUCTION_CLASSES
from abstim.gradient.parameter_vector import gpu_at
from abstim.gradient.timed_kernel import TimedKernel
from abstim.session.session import Session
from functional.errors import InputError
from functional.launches.launch import Launch
from precharacterize.build import kinds_of
from precharacterize.classify import latency_class
from precharacterize.synchronisation import NONE, barriers_of, copies_of, splits_blocks

if TYPE_CHECKING:
    from jaxtyping import Float64

    from abstim.gradient.recording import Recording
    from abstim.targets.resolve import Target

RECORDINGS_BYTES = 1 << 30  # kept of one target


class RecordedKernel(TimedKernel):
    """By the detailed engine, whose runs are recorded. Recordings of the latest base points are kept, up to
    `keep_bytes`."""

    def __init__(
        self,
        target: Target | Session,
        names: Sequence[str],
        gpu: str | Gpu = "gtx480",
        launches: Sequence[int] | None = None,
        keep_bytes: int = RECORDINGS_BYTES,
    ) -> None:
        super().__init__(target, names, gpu, launches)
        refuse_machine_code(self.gpu, "kernel_time differentiates the times of")
        for number in self.launches:
            launch = self.session.case.launches[number]
            kinds = kinds_of(launch.program)
            if splits_blocks(barriers_of(launch.program.instructions, kinds), kinds, launch.warps_per_block):
                self._refuse(launch, "barriers for a part of a thread block")
            if any(copies_of(i) != NONE for i in launch.program.instructions):
                self._refuse(launch, "asynchronous copies")
        self._kept: dict[tuple[float, ...], tuple[Recording, ...]] = {}
        self._lock, self._keep_bytes = Lock(), keep_bytes

    @staticmethod
    def _refuse(launch: Launch, what: str) -> None:
        raise InputError(f"kernel '{launch.program.name}' has {what}; kernel_time has no derivative of those")

    def by_launch(
        self, values: Float64[np.ndarray, " name"]
    ) -> tuple[Float64[np.ndarray, " launch"], Float64[np.ndarray, "launch name"]]:
        """The same for each launch."""
        cycles, gradients = [], []
        for recording in self.recordings(values):
            at = recording.base.copy()
            at[self._columns] = values
            one, slope = recording.evaluate(at)
            cycles.append(one)
            gradients.append(slope[self._columns])
        return np.array(cycles), np.array(gradients)

    def engine_cycles(self, values: Float64[np.ndarray, " name"]) -> Float64[np.ndarray, " launch"]:
        """What the engine itself says at the base point of some values, without a recording."""
        gpu = gpu_at(self.gpu, self.base(values))
        found = [self.session.simulate(number, gpu).cycles for number in self.launches]
        return np.array(found, float)

    def recordings(self, values: Float64[np.ndarray, " name"]) -> tuple[Recording, ...]:
        """The launches at the base point of some values: run by the engine, unless kept."""
        base = self.base(values)
        key = tuple(base.values())
        with self._lock:
            found = self._kept.pop(key, None)
            if found is None:
                gpu = gpu_at(self.gpu, base)
                found = tuple(self._record(number, gpu) for number in self.launches)
            self._kept[key] = found
            while self._kept and sum(r.nbytes for kept in self._kept.values() for r in kept) > self._keep_bytes:
                del self._kept[next(iter(self._kept))]
        return found

    def _record(self, number: int, gpu: Gpu) -> Recording:
        from abstim.gradient.recording import record_launch

        program = self.session.launch(number).program
        classes = np.array([INSTRUCTION_CLASSES.index(latency_class(i)) for i in program.instructions], np.int64)
        return record_launch(self.session.simulation(number, gpu), classes)
