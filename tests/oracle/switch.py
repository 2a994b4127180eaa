"""One direction of the switch between SMs and slices (rule 11), one cycle after the other; literal."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from abstim.gpu.config import Gpu

if TYPE_CHECKING:
    from oracle.memory_side import Request

UNITS = 64  # a cycle's; replies leave and come at a multiple of them


class Switch:
    """One direction: a queue an input, arbiters at the outputs."""

    def __init__(self, gpu: Gpu, inputs: int, outputs: int, width: int = 1) -> None:
        self.spec, self.width = gpu.spec, width  # flits a cycle of a link, with queues at the outputs
        self.inputs: list[deque[tuple[Request, int, int]]] = [deque() for _ in range(inputs)]  # packet, output, from
        self.outputs: list[deque[tuple[Request, int, int]]] = [deque() for _ in range(outputs)]  # packet, out in, input
        self.input_free, self.output_free, self.turn = [0] * inputs, [0] * outputs, [0] * outputs

    def flits(self, i: int) -> int:
        """Of an input's packets, as long as they take room that the next would need."""
        found = sum(packet.flits for packet, _, _ in self.inputs[i])
        if self.spec.crossbar_output_queues:
            found += sum(packet.flits for out in self.outputs for packet, _, brought in out if brought == i)
        return found

    def cycle(self, time: int) -> None:
        if not any(self.inputs):
            return
        if self.spec.crossbar_output_queues:
            self._to_outputs(time)
            return
        sent: set[int] = set()
        for o in range(len(self.outputs)):
            if self.output_free[o] > time or len(self.outputs[o]) >= self.spec.crossbar_queue_flits:
                continue
            for k in range(len(self.inputs)):
                i = (self.turn[o] + k) % len(self.inputs)
                if self._shows(i, o, time, sent):
                    self._take(i, o, time)
                    sent.add(i)
                    break

    def _shows(self, i: int, o: int, time: int, sent: set[int]) -> bool:
        """Is the first packet of input `i` for output `o`, and free to go?"""
        if not self.inputs[i] or (i in sent and not self.spec.crossbar_repeats):
            return False
        _, output, start = self.inputs[i][0]
        return output == o and start <= time and self.input_free[i] <= time

    def _take(self, i: int, o: int, time: int) -> None:
        packet, _, _ = self.inputs[i].popleft()
        self.turn[o] = (i + 1) % len(self.inputs)
        self.output_free[o] = time + packet.flits
        self.input_free[i] = time if self.spec.crossbar_repeats else time + packet.flits
        self.outputs[o].append((packet, time + packet.flits, i))

    def _to_outputs(self, time: int) -> None:
        for i, packets in enumerate(self.inputs):
            while packets and packets[0][2] <= time and self.input_free[i] < (time + 1) * UNITS:
                packet, o, _ = packets.popleft()
                start = max(time * UNITS, self.input_free[i])
                self.input_free[i] = start + packet.flits * UNITS // self.width
                self.output_free[o] = max(start, self.output_free[o]) + packet.flits * UNITS // self.width
                self.outputs[o].append((packet, -(-self.output_free[o] // UNITS), i))
