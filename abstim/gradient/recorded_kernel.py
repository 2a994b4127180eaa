"""A target's kernels as functions of latencies, on the host: recordings by base point, the latest ones kept."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float64

from abstim.gpu.config import Gpu, load_gpu, refuse_machine_code
from abstim.gpu.spec import INSTRUCTION_CLASSES
from abstim.gradient.parameter_vector import INDEX, base_values, check_names, gpu_at, values_of
from abstim.session.session import Session, open_session
from functional.errors import InputError
from precharacterize.classify import latency_class

if TYPE_CHECKING:
    from abstim.gradient.recording import Recording
    from abstim.target.resolve import Target

RECORDINGS_BYTES = 1 << 30  # kept of one target


class KernelTime:
    """Cycles of a target's launches, caches flushed before each, as a function of some parameters of a GPU.

    `launches`: positions in the target's list; all of them if None. Recordings of the latest base points are kept, up
    to `keep_bytes`.
    """

    def __init__(
        self,
        target: Target | Session,
        names: Sequence[str],
        gpu: str | Gpu = "gtx480",
        launches: Sequence[int] | None = None,
        keep_bytes: int = RECORDINGS_BYTES,
    ) -> None:
        self.names = check_names(names)
        self.gpu = load_gpu(gpu) if isinstance(gpu, str) else gpu
        refuse_machine_code(self.gpu, "kernel_time differentiates the times of")
        self.session = open_session(target, [self.gpu])
        case = self.session.case
        self.launches = tuple(range(len(case.launches)) if launches is None else launches)
        if not self.launches or not set(self.launches) <= set(range(len(case.launches))):
            raise InputError(f"{case.name} has launches 0 to {len(case.launches) - 1}, not {list(self.launches)}")
        self._columns = np.array([INDEX[name] for name in self.names])
        self._kept: dict[tuple[float, ...], tuple[Recording, ...]] = {}
        self._lock, self._keep_bytes = Lock(), keep_bytes

    def __call__(self, values: Float64[np.ndarray, " name"]) -> tuple[float, Float64[np.ndarray, " name"]]:
        """Cycles of all launches, and their gradient. Raises InputError for a value its parameter does not accept."""
        cycles, gradient = self.by_launch(values)
        return float(cycles.sum()), gradient.sum(0)

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

    def base(self, values: Float64[np.ndarray, " name"]) -> dict[str, int | float]:
        """The base point of some values."""
        return base_values(self.gpu, dict(zip(self.names, np.asarray(values, float).tolist(), strict=True)))

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

    def defaults(self) -> Float64[np.ndarray, " name"]:
        """The GPU's own values."""
        return values_of(self.gpu)[self._columns]
