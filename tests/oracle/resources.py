"""What an SM shares among its warps: fetch server, caches, response path, register banks, ports (rules 3 to 6)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from abstim.gpu.config import Gpu

if TYPE_CHECKING:
    from oracle.load_store_unit import Pending
    from oracle.resident import Warp

MEM = 2  # place of the load/store unit among the kinds of units
NEVER = 1 << 60  # real memory: a cycle that is not known yet


def first_unbooked(booked: set[int], time: int) -> int:
    """The first cycle >= `time` that nobody has booked; books it."""
    while time in booked:
        time += 1
    booked.add(time)
    return time


class Cache:
    """Tags with least-recently-used replacement. Every line knows the cycle in which it is filled."""

    def __init__(self, sets: int, ways: int) -> None:
        self.sets: list[dict[int, int]] = [{} for _ in range(sets)]  # line -> fill cycle; least recently used first
        self.ways = ways
        self.accesses = self.misses = 0

    def _set_of(self, line: int) -> dict[int, int]:
        return self.sets[line % len(self.sets)]

    def touch(self, line: int) -> int | None:
        """The fill cycle of a line that is present, now the most recently used; None if it is not."""
        tags = self._set_of(line)
        if line not in tags:
            return None
        tags[line] = tags.pop(line)
        return tags[line]

    def allocate(self, line: int, filled: int) -> None:
        """Bring a line in, in place of the least recently used one if the set is full."""
        tags = self._set_of(line)
        if len(tags) == self.ways:
            del tags[next(iter(tags))]
        tags[line] = filled


class ResponsePath:
    """The FIFO through which one response a cycle comes to the SM."""

    def __init__(self) -> None:
        self.free = 0

    def out(self, time: int) -> int:
        """Cycle in which a response that is there at `time` comes out."""
        out = max(time, self.free)
        self.free = out + 1
        return out


class FrontEnd:
    """L1I, with perfect memory, and the width of a fetch (rule 6)."""

    def __init__(self, gpu: Gpu) -> None:
        self.l1i = Cache(gpu.spec.l1i_sets, gpu.spec.l1i_ways)
        self.line = gpu.pipeline.fetch_line_instructions
        self.width = gpu.pipeline.instructions_per_fetch
        self.miss_cycles, self.perfect = gpu.params.l1i_miss_extra_cycles, gpu.spec.perfect_instruction_cache

    def look_up(self, pc: int, time: int, warp: Warp) -> int | None:
        """Cycle in which the line of `pc`, looked up at `time` for a warp, is there."""
        if self.perfect:
            return time
        line = pc // self.line
        self.l1i.accesses += 1
        filled = self.l1i.touch(line)
        if filled is None:
            self.l1i.misses += 1
            filled = time + self.miss_cycles
            self.l1i.allocate(line, filled)
        return max(time, filled)

    def pair(self, pc: int) -> int:
        """Instructions that a fetch of `pc` brings: two at the end of a line, too."""
        return 2 if self.width == 2 else min(self.width, self.line - pc % self.line)


@dataclass
class Unit:
    """An execution unit: free again in a cycle, results due in cycles."""

    free: int = 0
    due: set[int] = field(default_factory=set)


class Port:
    """One issue port: dispatch registers and units (rule 3).

    `collectors`: the step in which each of its operand collectors is released. Other ports may share them.
    """

    def __init__(self, width: int, collectors: list[int], units: int) -> None:
        self.width, self.collectors = width, collectors
        self.allocations = [0] * width  # cycles; at least `width` entries, the latest last
        self.starts = [0] * width
        self.units = [Unit() for _ in range(units)]
        self.latest: Dispatch | None = None

    def has_dispatch_register(self, time: int) -> bool:
        """Can an instruction issue to this port at `time`?"""
        return self.allocations[-self.width] <= time

    def has_collector(self) -> bool:
        """Is it known of any collector when it is released?"""
        return min(self.collectors) < NEVER

    def collector_at(self, step: int) -> int:
        """The lowest collector that is free in a step."""
        return next(number for number, released in enumerate(self.collectors) if released <= step)


@dataclass(eq=False)
class Dispatch:
    """An arithmetic instruction that leaves a collector of its port for a unit, which it has held since."""

    warp: Warp
    i: int
    operands: int  # the step in which they are at hand
    number: int  # of the collector
    released: int = 0
    unit: Unit | None = None
    unit_free: int = 0  # before it came


@dataclass(eq=False)
class AtPort:
    """An instruction that waits at its port for an operand collector, and what the load/store unit has of it."""

    warp: Warp
    i: int
    kind: int
    port: Port
    place: int  # among the port's allocations
    pending: Pending | None = None


def ports_of(gpu: Gpu) -> list[list[Port]]:
    """Ports by scheduler, then by kind of unit: with sub-cores a scheduler has its own, else all have the same."""
    if not gpu.spec.sub_cores:
        return [_ports(gpu, 1)] * gpu.spec.schedulers_per_sm
    ports = [_ports(gpu, gpu.spec.schedulers_per_sm) for _ in range(gpu.spec.schedulers_per_sm)]
    for own in ports:  # one load/store unit serves all
        own[MEM].units = ports[0][MEM].units
    return ports


def _ports(gpu: Gpu, shares: int) -> list[Port]:
    spec = gpu.spec
    shared = [0] * (spec.shared_collectors // shares)
    ports = []
    for kind in ("sp", "sfu", "mem", "int", "dp", "tensor"):
        width = max(1, getattr(spec, f"{kind}_port_width") // shares)
        own = [0] * max(1, getattr(spec, f"{kind}_collectors", 0) // shares)  # int, dp and tensor only ever share
        units = 1 if kind == "mem" else getattr(spec, f"{kind}_units") // shares
        ports.append(Port(width, shared or own, units))
    return ports
