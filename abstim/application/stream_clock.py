"""The clock that events read: when the GPU would have done what a program told its streams to do.

Kernels run one at a time, in the order of submission, each taking what it takes alone: two that a GPU would run side by
side count one after the other. Copies to the device, copies from it, and kernels go on beside each other where streams
allow it. The program's own time on the host counts as none, but what it submits after waiting begins after what it
waited for."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from functional.traces.trace import SECTOR_BYTES

if TYPE_CHECKING:
    from abstim.gpu.config import Gpu

# The host's link, one for all GPUs: PCI Express 4.0 (its base specification: 16 GT/s a lane, 128 bits of 130; a packet
# of 256 bytes has 24 more of framing, sequence number, header and check) with 16 lanes. No machine was measured.
LANES, TRANSFERS_PER_SECOND, CODED_SHARE, PAYLOAD_SHARE = 16, 16e9, 128 / 130, 256 / (256 + 24)
LINK_BYTES_PER_SECOND = LANES * TRANSFERS_PER_SECOND / 8 * CODED_SHARE * PAYLOAD_SHARE  # 28.8e9
COPY_SECONDS = 5e-6  # what starting a copy takes: a round figure, of no source
PICOSECONDS = 10**12
KERNELS, TO_DEVICE, FROM_DEVICE = "kernels", "to device", "from device"
_ENGINES = {1: TO_DEVICE, 2: FROM_DEVICE}
DEFAULT_STREAM = 0


def dram_bytes_per_second(gpu: Gpu) -> float:
    """What all channels carry together."""
    cycles = max(gpu.params.dram_sector_cycles, 1e-9)
    return gpu.spec.dram_channels * SECTOR_BYTES * gpu.spec.core_clock_hz / cycles


@dataclass
class StreamClock:
    """All times in picoseconds since the program's start. Stream 0 is CUDA's default stream: it waits for all others
    but the independent ones, and they for it."""

    gpu: Gpu
    busy: dict[str, int] = field(default_factory=dict)  # time that each engine has worked
    kernels_waited: int = 0  # for kernels of other streams, beside which a GPU might have run them
    _free: dict[str, int] = field(default_factory=dict)  # when each engine can take something again
    _ready: dict[int, int] = field(default_factory=dict)  # when what was submitted to a stream is done
    _independent: set[int] = field(default_factory=set)
    _events: dict[int, int] = field(default_factory=dict)
    _host: int = 0
    _left: list[Callable[[], None]] = field(default_factory=list)  # whose time may not be known yet

    def new_process(self) -> None:
        """Streams and events are numbered anew: another process of the program has come."""
        self.settle()
        self._independent.clear()
        self._events.clear()

    def stream(self, number: int, independent: bool) -> None:
        """A stream that is new."""
        if independent:
            self._independent.add(number)

    def kernel(self, stream: int, seconds: Future[float]) -> None:
        """A launch; how long it takes may become known later."""
        self._left.append(lambda: self._occupy(KERNELS, stream, seconds.result()))

    def transfer(self, stream: int, size_bytes: int, direction: int) -> None:
        """A copy (from the device: direction & 2, to it: & 1) or, direction 4, a fill. On the default stream the
        program waits for it."""
        if direction in _ENGINES:
            engine, seconds = _ENGINES[direction], COPY_SECONDS + size_bytes / LINK_BYTES_PER_SECOND
        elif direction:
            accesses = 1 if direction == 4 else 2
            engine, seconds = KERNELS, accesses * size_bytes / dram_bytes_per_second(self.gpu)
        else:
            return
        self._left.append(lambda: self._occupy(engine, stream, seconds))
        if stream == DEFAULT_STREAM:
            self.synchronize(stream, False)

    def record(self, event: int, stream: int) -> None:
        """An event: the moment when all before it in the stream is done."""
        self._left.append(lambda: self._events.update({event: self._start(stream)}))

    def wait(self, event: int, stream: int) -> None:
        """What follows in a stream begins after an event."""
        self._left.append(lambda: self._done(stream, max(self._start(stream), self._events.get(event, 0))))

    def synchronize(self, stream: int, everything: bool) -> None:
        """The program waits, for a stream or all."""

        def host() -> None:
            done = max(self._ready.values(), default=0) if everything else self._start(stream)
            self._host = max(self._host, done)

        self._left.append(host)

    def elapsed(self, start: int, end: int) -> int:
        """Picoseconds between two events that were recorded."""
        self.settle()
        return self._events.get(end, 0) - self._events.get(start, 0)

    def settle(self) -> int:
        """Wait until all times are known. Returns when everything is done."""
        for operation in self._left:
            operation()
        self._left.clear()
        return max([self._host, *self._ready.values()])

    def seconds_since(self, picoseconds: int) -> float:
        """From a moment until everything is done."""
        return (self.settle() - picoseconds) / PICOSECONDS

    def _start(self, stream: int) -> int:
        """The earliest for what comes next in a stream."""
        if stream in self._independent:
            before = [self._ready.get(stream, 0)]
        elif stream == DEFAULT_STREAM:
            before = [done for other, done in self._ready.items() if other not in self._independent]
        else:
            before = [self._ready.get(stream, 0), self._ready.get(DEFAULT_STREAM, 0)]
        return max([self._host, *before])

    def _occupy(self, engine: str, stream: int, seconds: float) -> None:
        ready = self._start(stream)
        start = max(ready, self._free.get(engine, 0))
        if engine == KERNELS:
            self.kernels_waited += start - ready
        taken = round(seconds * PICOSECONDS)
        self.busy[engine] = self.busy.get(engine, 0) + taken
        self._free[engine] = start + taken
        self._done(stream, start + taken)

    def _done(self, stream: int, time: int) -> None:
        self._ready[stream] = time
