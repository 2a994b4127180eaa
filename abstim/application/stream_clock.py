"""The clock that events read: when the GPU would have done what a program told its streams to do.

Kernels, copies to the device and copies from it go on beside each other where streams allow it. Kernels that may run
side by side are timed together (`time_together`), or, if that is not wanted, one at a time, in the order of
submission, each taking what it takes alone. The program's own time on the host counts as none, but what it
submits after waiting begins after what it waited for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from math import ceil
from typing import TypeVar

from abstim.engine.kept_caches import Caches
from abstim.engine.side_by_side import Kernel, simulate_side_by_side
from abstim.gpu.config import Gpu
from abstim.session.side_by_side import Overlap, StreamedLaunch
from functional.execution.computer import default_threads
from functional.launches.launch import Launch
from functional.traces.trace import SECTOR_BYTES, Trace

# The host's link, one for all GPUs: PCI Express 4.0 (its base specification: 16 GT/s a lane, 128 bits of 130; a packet
# of 256 bytes has 24 more of framing, sequence number, header and check) with 16 lanes. No machine was measured.
LANES, TRANSFERS_PER_SECOND, CODED_SHARE, PAYLOAD_SHARE = 16, 16e9, 128 / 130, 256 / (256 + 24)
LINK_BYTES_PER_SECOND = LANES * TRANSFERS_PER_SECOND / 8 * CODED_SHARE * PAYLOAD_SHARE  # 28.8e9
COPY_SECONDS = 5e-6  # what starting a copy takes: a round figure, of no source
PICOSECONDS = 10**12
KERNELS, WITHIN_DEVICE, TO_DEVICE, FROM_DEVICE = "kernels", "within device", "to device", "from device"
_LINK = {1: TO_DEVICE, 2: FROM_DEVICE}
DEFAULT_STREAM = 0
Result = TypeVar("Result")
MOST_OPEN, MOST_OPEN_BYTES = 1 << 10, 1 << 30  # operations that are timed together, and their traces


def dram_seconds(gpu: Gpu, read_bytes: float, written_bytes: float) -> float:
    """That all channels together take: a burst brings a sector, and writes as many as it has room for."""
    bursts = read_bytes / SECTOR_BYTES + written_bytes / gpu.spec.dram_burst_bytes
    return bursts * gpu.params.dram_sector_cycles / (gpu.spec.dram_channels * gpu.spec.core_clock_hz)


@dataclass(eq=False)
class Operation:
    """What a stream was told to do. Times are picoseconds since the program's start: `start` and `end` as it came,
    `serial_end` if kernels had run one at a time; -1: not known yet."""

    engine: str
    stream: int
    after: frozenset[Operation]  # what it waits for: nothing else, if kernels run side by side
    before_on_engine: Operation | None  # what its engine did last; of kernels and copies within the device, either
    seconds: Future[float]  # that it takes by itself
    launch: Launch | None = None  # of a kernel that may run beside others,
    trace: Trace | None = None  # and what it did, until it is timed
    priority: int = 0
    programmatic: Operation | None = None  # the kernel that lets it be launched while it runs
    start: int = -1
    end: int = -1
    serial_end: int = -1

    @property
    def picoseconds(self) -> int:
        """That it takes by itself; waits until that is known."""
        return round(self.seconds.result() * PICOSECONDS)


def answered(value: Result) -> Future[Result]:
    """A future whose result is there."""
    future: Future[Result] = Future()
    future.set_result(value)
    return future


Moment = frozenset[Operation]  # when all of them are done
Beside = Callable[[Sequence[Operation]], bool]  # gives operations their times, if kernels among them overlap; do they?


def latest(moment: Iterable[Operation], end: Callable[[Operation], int] = lambda one: one.end) -> int:
    """When that was."""
    return max(map(end, moment), default=0)


def pruned(moment: Moment) -> Moment:
    """The same without what others of it have waited for, and without operations that ended before others."""
    ended = [one for one in moment if one.serial_end >= 0]
    last = {max(ended, key=lambda one: one.end), max(ended, key=lambda one: one.serial_end)} if ended else set()
    return moment.difference(ended, *(one.after for one in moment)) | last


@dataclass
class StreamClock:
    """Stream 0 is CUDA's default stream: it waits for all others but the independent ones, and they for it. `beside`
    times kernels side by side; None: they run one at a time. `run` does tasks in the order in which they come."""

    gpu: Gpu
    beside: Beside | None = None
    run: Callable[[Callable[[], None]], Future[None]] = field(default_factory=lambda: ThreadPoolExecutor(1).submit)
    busy: dict[str, int] = field(default_factory=dict)  # time that each engine has worked
    kernels_waited: int = 0  # for kernels of other streams, beside which a GPU might have run them
    kernels: list[Operation] = field(default_factory=list)  # in the order of submission
    serial_end: int = 0  # when all was done, if kernels had run one at a time
    _last: dict[str, Operation] = field(default_factory=dict)  # by engine
    _ready: dict[int, Moment] = field(default_factory=dict)  # when what was submitted to a stream is done
    _independent: set[int] = field(default_factory=set)
    _priorities: dict[int, int] = field(default_factory=dict)  # of all streams that the program made
    _events: dict[int, Moment] = field(default_factory=dict)
    _host: Moment = frozenset()
    _open: list[Operation] = field(default_factory=list)  # that may still get company
    _open_bytes: int = 0
    _programmatic: bool = False  # has a kernel been launched while the one before it ran?
    _closed: list[Future[None]] = field(default_factory=list)  # parts whose times are being found
    is_overlapping: bool = False  # have any kernels been timed side by side?

    @property
    def may_overlap(self) -> bool:
        """Has the program streams on which kernels may run side by side?"""
        return self.beside is not None and (len(self._priorities) > 0 or self._programmatic)

    def new_process(self) -> None:
        """Streams and events are numbered anew: another process of the program has come."""
        self.settle()
        for known in (self._independent, self._events, self._priorities):
            known.clear()

    def stream(self, number: int, independent: bool, priority: int = 0) -> None:
        """A stream that is new."""
        self._priorities[number] = priority - (1 << 64 if priority >> 63 else 0)
        if independent:
            self._independent.add(number)

    def kernel(
        self, stream: int, seconds: Future[float], launch: Launch | None = None, trace: Trace | None = None,
        programmatic: bool = False,
    ) -> None:  # fmt: skip
        """A launch; how long it takes may become known later. With its `trace` it may run beside others;
        `programmatic`: it is launched while the kernel before it on its stream runs."""
        self._programmatic |= programmatic
        before = self._ready.get(stream, frozenset())
        given = (launch, trace) if self.beside is not None and trace is not None else (None, None)
        self.kernels.append(self._submit(KERNELS, stream, seconds, *given))
        if programmatic and len(before) == 1:
            self.kernels[-1].programmatic = next((one for one in before if one.engine == KERNELS), None)
        self._open_bytes += trace.nbytes if trace is not None else 0
        if not self.may_overlap or self._open_bytes > MOST_OPEN_BYTES or len(self._open) >= MOST_OPEN:
            self._close()

    def transfer(self, stream: int, size_bytes: int, direction: int) -> None:
        """A copy (from the device: direction & 2, to it: & 1) or, direction 4, a fill. On the default stream the
        program waits for it."""
        if direction in _LINK:
            engine, taken = _LINK[direction], COPY_SECONDS + size_bytes / LINK_BYTES_PER_SECOND
        elif direction:
            read_bytes = 0 if direction == 4 else size_bytes
            engine, taken = WITHIN_DEVICE, dram_seconds(self.gpu, read_bytes, size_bytes)
        else:
            return
        self._submit(engine, stream, answered(taken))
        if stream == DEFAULT_STREAM:
            self.synchronize(stream, False)

    def record(self, event: int, stream: int) -> None:
        """An event: the moment when all before it in the stream is done."""
        self._events[event] = self._start(stream)

    def wait(self, event: int, stream: int) -> None:
        """What follows in a stream begins after an event."""
        self._ready[stream] = self._start(stream) | self._events.get(event, frozenset())

    def synchronize(self, stream: int, everything: bool) -> None:
        """The program waits, for a stream or all."""
        self._host = pruned(self._start(stream).union(*(self._ready.values() if everything else ())))
        if everything:  # whatever comes now begins after all of it
            self._close()

    def finish(self, event: int) -> None:
        """The program waits for an event."""
        self._host = pruned(self._host | self._events.get(event, frozenset()))

    def elapsed(self, start: int, end: int) -> int:
        """Picoseconds between two events that were recorded."""
        self.settle()
        return latest(self._events.get(end, ())) - latest(self._events.get(start, ()))

    def settle(self) -> int:
        """Wait until all times are known. Returns when everything is done."""
        self._close()
        for part in self._closed:
            part.result()
        self._closed.clear()
        return latest(self._host.union(*self._ready.values()))

    def overlap(self) -> Overlap | None:
        """All kernels over time, in the GPU's cycles, if any were timed side by side."""
        end, hz = self.settle(), self.gpu.spec.core_clock_hz
        if not self.is_overlapping:
            return None
        rows = [(one.start, one.end, one.picoseconds) for one in self.kernels]
        names = [(one.launch.program.name if one.launch else "-", str(one.stream)) for one in self.kernels]
        whole, serial, *times = (round(time * hz / PICOSECONDS) for time in (end, self.serial_end, *chain(*rows)))
        launches = [StreamedLaunch(k, *name, *times[3 * k : 3 * k + 3]) for k, name in enumerate(names)]
        return Overlap(whole, serial, launches)

    def _start(self, stream: int) -> Moment:
        """The earliest for what comes next in a stream."""
        if stream in self._independent:
            before = [self._ready.get(stream, frozenset())]
        elif stream == DEFAULT_STREAM:
            before = [done for other, done in self._ready.items() if other not in self._independent]
        else:
            before = [self._ready.get(other, frozenset()) for other in (stream, DEFAULT_STREAM)]
        return pruned(self._host.union(*before))

    def _submit(
        self, engine: str, stream: int, seconds: Future[float], launch: Launch | None = None, trace: Trace | None = None
    ) -> Operation:
        lane, after = KERNELS if engine == WITHIN_DEVICE else engine, self._start(stream)
        if engine == WITHIN_DEVICE and self.beside is not None:  # each has all of DRAM: one waits for the other
            after |= {self._last[engine]} if engine in self._last else frozenset()
        priority = self._priorities.get(stream, 0)
        one = Operation(engine, stream, after, self._last.get(lane), seconds, launch, trace, priority)
        self._last |= {lane: one, engine: one}
        self._ready[stream] = frozenset({one})
        self._open.append(one)
        return one

    def _close(self) -> None:
        """What was submitted gets no more company: its times can be found."""
        operations, self._open, self._open_bytes = self._open, [], 0
        waiting = self.may_overlap or (self._closed and not self._closed[-1].done())
        if not waiting and all(one.seconds.done() for one in operations):  # handing them over would take longer
            self._find_times(operations)
        elif operations:
            self._closed.append(self.run(lambda: self._find_times(operations)))

    def _find_times(self, operations: Sequence[Operation]) -> None:
        if self.beside is not None and self.may_overlap:
            self.is_overlapping |= self.beside(operations)
        for one in operations:
            one.trace = None
            self._follow(one)

    def _follow(self, one: Operation) -> None:
        """The times of an operation, those of all before it known."""
        taken, last = one.picoseconds, one.before_on_engine
        ready = latest(one.after)
        if one.end < 0:
            side_by_side = self.beside is not None and one.engine not in _LINK.values()
            one.start = ready if last is None or side_by_side else max(ready, last.end)
            one.end = one.start + taken
            if one.engine == KERNELS:
                self.kernels_waited += one.start - ready
        serial = latest(one.after, lambda other: other.serial_end)
        one.serial_end = max(serial, last.serial_end if last is not None else 0) + taken
        self.serial_end = max(self.serial_end, one.serial_end)
        self.busy[one.engine] = self.busy.get(one.engine, 0) + taken
        one.before_on_engine, one.programmatic, one.after = None, None, frozenset()  # which hold all that was before


def overlapping(operations: Sequence[Operation]) -> bool:
    """May any two kernels of these run side by side, or one be launched while another runs?"""
    if {one.programmatic for one in operations} & set(operations):
        return True
    before: dict[Operation, set[Operation]] = {}  # kernels
    kernels = 0
    for one in operations:
        known = [before[other] | ({other} if other.launch else set()) for other in one.after if other in before]
        before[one] = set().union(*known)
        if one.launch is not None:
            if len(before[one]) < kernels:
                return True
            kernels += 1
    return False


def time_together(
    operations: Sequence[Operation],
    kernel_of: Callable[[Operation, Sequence[int], int], Kernel],
    gpu: Gpu,
    caches: Caches | None,
) -> None:
    """Give operations their start and end; the end of what others wait for from before is known. `kernel_of` makes a
    kernel of one that has a launch, of the places of what it waits for, and of the one that lets it be launched while
    it runs (-1: none does). Caches are left as they are after all."""
    places: dict[Operation, int] = {}
    kernels: list[Kernel] = []
    cycle = PICOSECONDS / gpu.spec.core_clock_hz
    befores = [  # one engine does all copies in one direction
        (*one.after, *([one.before_on_engine] if one.before_on_engine and one.engine in _LINK.values() else ()))
        for one in operations
    ]
    ready = [latest(other for other in before if other.end >= 0) for before in befores]
    for one, before, from_outside in zip(operations, befores, ready, strict=True):
        awaits = [places[other] for other in before if other in places]
        if from_outside > min(ready):
            awaits.append(len(kernels))
            kernels.append(Kernel(None, delay_cycles=ceil((from_outside - min(ready)) / cycle)))
        places[one] = len(kernels)
        if one.launch is None:
            kernels.append(Kernel(None, awaits=tuple(awaits), delay_cycles=ceil(one.picoseconds / cycle)))
        else:
            kernels.append(kernel_of(one, awaits, places.get(one.programmatic, -1) if one.programmatic else -1))
    timed = simulate_side_by_side(kernels, gpu, caches, default_threads())
    for one, place in places.items():
        one.end = min(ready) + round(timed.ends[place] * cycle)
        one.start = min(ready) + round(timed.starts[place] * cycle) if one.launch else one.end - one.picoseconds
