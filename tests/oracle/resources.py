"""What an SM shares among its warps: fetch server, caches, response path, register banks, ports (rules 3 to 6)."""

from __future__ import annotations

from dataclasses import dataclass, field

from abstim.gpu.config import Gpu


def first_unbooked(booked: set[int], time: int) -> int:
    """The first cycle >= `time` that nobody has booked; books it."""
    while time in booked:
        time += 1
    booked.add(time)
    return time


class Cache:
    """Tags with least-recently-used replacement. Every line knows the cycle in which it is filled."""

    def __init__(self, sets: int, ways: int, hashed: bool = False) -> None:
        self.sets: list[dict[int, int]] = [{} for _ in range(sets)]  # line -> fill cycle; least recently used first
        self.ways, self.hashed = ways, hashed
        self.accesses = self.misses = 0

    def _set_of(self, line: int) -> dict[int, int]:
        index = line
        if self.hashed:
            bits = [(line >> b) & 1 for b in (6, 7, 8, 10, 12)]
            index ^= sum(bit << k for k, bit in enumerate(bits))
        return self.sets[index % len(self.sets)]

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

    def evict(self, line: int) -> bool:
        """Throw a line out; False if it was not there."""
        return self._set_of(line).pop(line, None) is not None


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
    """L1I and the width of a fetch (rule 6)."""

    def __init__(self, gpu: Gpu) -> None:
        self.l1i = Cache(gpu.spec.l1i_sets, gpu.spec.l1i_ways)
        self.line = gpu.pipeline.fetch_line_instructions
        self.width = gpu.pipeline.instructions_per_fetch
        self.miss_cycles = int(gpu.params.l1i_miss_extra_cycles)

    def look_up(self, pc: int, time: int) -> int:
        """Cycle in which the line of `pc`, looked up at `time`, is there."""
        line = pc // self.line
        self.l1i.accesses += 1
        filled = self.l1i.touch(line)
        if filled is None:
            self.l1i.misses += 1
            filled = time + self.miss_cycles
            self.l1i.allocate(line, filled)
        return max(time, filled)

    def pair(self, pc: int) -> int:
        """Instructions that a fetch of `pc` brings."""
        return min(self.width, self.line - pc % self.line)


@dataclass
class Unit:
    """An execution unit: free again in a cycle, results due in cycles."""

    free: int = 0
    due: set[int] = field(default_factory=set)


class Port:
    """One issue port: dispatch registers, operand collectors, units (rule 3)."""

    def __init__(self, width: int, collectors: int, units: int) -> None:
        self.width = width
        self.releases = [0] * collectors
        self.allocations = [0] * width  # at least `width` entries, the latest last
        self.starts = [0] * width
        self.units = [Unit() for _ in range(units)]

    def has_dispatch_register(self, time: int) -> bool:
        """Can an instruction issue to this port at `time`?"""
        return self.allocations[-self.width] <= time

    def allocate(self, time: int) -> int:
        """Cycle in which an instruction issued at `time` has an operand collector (not yet taken)."""
        allocated = max(time + 1, min(self.releases))
        return max(allocated, self.allocations[-1] + 1) if self.width == 1 else allocated

    def take(self, allocated: int, dispatched: int, start: int) -> None:
        """An instruction went through: it held the first free collector until its dispatch."""
        self.releases[self.releases.index(min(self.releases))] = dispatched
        self.allocations.append(allocated)
        self.starts.append(start)
