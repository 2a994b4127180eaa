"""One launch, run once by the engine and kept as a network of events whose times can be recomputed.

Every warp instruction is three events: its issue, the start on its unit, its result; every warp has one more, the cycle
it is gone. An event is as late as the latest of the events it waited for, each plus a *term* of the parameters and a
frozen remainder. Who waited for whom is frozen at the base point; how long is not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from abstim.engine.simulation import Simulation
from abstim.gradient.evaluate import latest
from abstim.gradient.event_network import Network
from abstim.gradient.parameter_vector import terms, values_of
from abstim.gradient.waits import network_of

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
