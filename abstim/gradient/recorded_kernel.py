"""A target's kernels as functions of latencies by the detailed engine: launches run once, kept as networks of events.

Every warp instruction is three events: its issue, the start on its unit, its result; every warp has one more, the cycle
it is gone. An event is as late as the latest of the events it waited for, each plus a *term* of the parameters and a
frozen remainder. Who waited for whom is frozen at the base point; how long is not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from abstim.engine.simulation import Simulation
from abstim.gpu.config import Gpu
from abstim.gpu.spec import INSTRUCTION_CLASSES
from abstim.gradient.events import latest
from abstim.gradient.parameter_vector import gpu_at, terms, values_of
from abstim.gradient.timed_kernel import TimedKernel
from abstim.gradient.waits import Network, network_of
from functional.errors import InputError
from functional.launches.launch import Launch
from precharacterize.build import kinds_of
from precharacterize.classify import latency_class
from precharacterize.synchronisation import NONE, barriers_of, copies_of, splits_blocks

if TYPE_CHECKING:
    from jaxtyping import Float64, Int64


@dataclass(frozen=True)
class Recording:
    """A launch at a base point: exactly the engine's cycles there, a max-plus function of the parameters around it."""

    cycles: int
    base: Float64[np.ndarray, " parameter"]
    terms: Float64[np.ndarray, "term parameter"]
    network: Network

    @property
    def nbytes(self) -> int:
        """Memory it takes."""
        return sum(value.nbytes for value in vars(self.network).values() if isinstance(value, np.ndarray))

    def evaluate(self, values: Float64[np.ndarray, " parameter"]) -> tuple[float, Float64[np.ndarray, " parameter"]]:
        """Cycles at `values` (order of PARAMETERS), and their gradient.

        Where several chains of events end in the same cycle the gradient is that of one of them.
        """
        net = self.network
        change = self.terms @ (values - self.base)
        shift, via = np.zeros(len(net.order)), np.full(len(net.order), -1, np.int32)
        counts = np.zeros(len(self.terms))
        latest(net.order, net.first, net.parent, net.slack, net.term, net.scale, change, shift, via, counts)
        return self.cycles + float(shift[net.final]), counts @ self.terms


def record_launch(simulation: Simulation, latency_class: Int64[np.ndarray, " instr"]) -> Recording:
    """Run a launch and keep its events. `latency_class`: an instruction's place in INSTRUCTION_CLASSES."""
    inputs, gpu = simulation.inputs, simulation.gpu
    issues = int(inputs.trace.warp_instructions.sum())
    positions = np.arange(len(inputs.trace.thread_blocks))
    log = simulation.run(positions, drain=True, log_rows=issues)
    network = network_of(log, simulation, gpu, latency_class)
    return Recording(simulation.result().cycles, values_of(gpu), terms(gpu.spec.perfect_memory), network)


RECORDINGS_BYTES = 1 << 30  # kept of one target


class RecordedKernel(TimedKernel):
    """By the detailed engine, whose runs are recorded. Recordings of the latest base points are kept, up to
    `keep_bytes`."""

    def __init__(self, *arguments: Any, keep_bytes: int = RECORDINGS_BYTES, **named: Any) -> None:
        super().__init__(*arguments, **named)
        for number in self.launches:
            launch = self.session.case.launches[number]
            kinds = kinds_of(launch.program)
            if splits_blocks(barriers_of(launch.program.instructions, kinds), kinds, launch.warps_per_block):
                self._refuse(launch, "barriers for a part of a thread block")
            if any(copies_of(i) != NONE for i in launch.program.instructions):
                self._refuse(launch, "asynchronous copies")
        self._kept: dict[tuple[float, ...], tuple[Recording, ...]] = {}
        self._keep_bytes = keep_bytes

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
        program = self.session.launch(number).program
        classes = np.array([INSTRUCTION_CLASSES.index(latency_class(i)) for i in program.instructions], np.int64)
        return record_launch(self.session.simulation(number, gpu), classes)
