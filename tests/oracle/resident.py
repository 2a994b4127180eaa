"""What is resident on an SM: thread blocks and their warps, and what these wait for (docs/timing-rules.md, rules 7 to
10)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from oracle.memory import Access
from oracle.program import Program, WarpStream
from oracle.resources import NEVER
from precharacterize.classify import Kind


@dataclass
class Copies:
    """The asynchronous copies of a group: how many are not known to be complete, and when the others are."""

    outstanding: int = 0
    complete: int = 0


@dataclass
class Warp:
    """A resident warp: in a slot, with the rest of its stream. `next` is the instruction it issues next."""

    slot: int
    launch_order: int
    program: Program
    stream: WarpStream
    next: int
    fetching: int | None = None  # the pc it wants a fetch of, or whose line it waits for
    line_back: int | None = None  # when that line is there, after a miss
    buffered: int = 0  # instructions left in its fetch pair
    front_end: int = 0  # cycle in which the buffered one can issue
    wrong_path: bool = False
    issued: int = 0  # the instruction it issued last
    at_barrier: bool = False
    not_before: int = 0
    running: bool = True  # has not issued its last instruction
    complete: int = 0  # every result it has issued, as far as known
    outstanding: int = 0  # memory instructions of which it is not
    fenced: bool = False
    group: dict[int, int] = field(default_factory=dict)  # by family of asynchronous work, the one not closed
    copies: dict[tuple[int, int], Copies] = field(default_factory=dict)  # by group, modulo 16, and family
    awaits: list[tuple[int, int]] = field(default_factory=list)  # groups it waits for
    at_phases: list[tuple[int, int, int]] = field(default_factory=list)  # what it waits for at `mbarrier`s
    meets_from: int = 0  # and the access that waits is complete a cycle later
    held: int = 0  # registers a thread,
    wants: int = 0  # and those that it waits for
    registers: dict[int, int] = field(default_factory=dict)  # register -> free cycle
    written_by: dict[int, Kind] = field(default_factory=dict)
    coming: Counter[int] = field(default_factory=Counter)  # scoreboard of machine code -> results not known yet,
    latest: dict[int, int] = field(default_factory=dict)  # and the latest of those that are

    def write(self, i: int, result: int) -> None:
        """What instruction `i` writes is free at `result`; a scoreboard with the last that counts on it."""
        for register in self.program.writes(i):
            if self.program.counted(i):
                self.hold(register, result)
            else:
                self.registers[register] = result

    def count(self, i: int, number: int) -> None:
        """So many more results that count on a scoreboard are to come."""
        for register in self.program.writes(i) if self.program.counted(i) else []:
            self.coming[register] += number
            self.hold(register, 0)

    def hold(self, register: int, time: int) -> None:
        """A scoreboard is not free before `time`."""
        self.latest[register] = max(self.latest.get(register, 0), time)
        self.registers[register] = NEVER if self.coming[register] else self.latest[register]

    def copies_complete(self) -> int:
        """When the copies it waits for are complete; NEVER if that is not known."""
        found = [self.copies[g] for g in self.awaits if g in self.copies]
        return NEVER if any(c.outstanding for c in found) else max([0, *(c.complete for c in found)])

    def in_buffer(self) -> int:
        """The instruction its buffer begins with."""
        return min(self.issued + 1, len(self.program.table.unit) - 1) if self.wrong_path else self.next

    def can_be_visited(self, time: int) -> bool:
        """Is it running, not held, and `ready` by `time`?"""
        if self.front_end > time or not self.running or self.at_barrier or self.fetching is not None:
            return False
        return self.wrong_path or self.waits_for_nothing(time)

    def waits_for_nothing(self, time: int) -> bool:
        """Are *not before* and the registers of its next instruction past?"""
        if self.not_before > time:
            return False
        return all(self.registers.get(r, 0) <= time for r in self.program.waits(self.next))


@dataclass
class Phase:
    """The phase of an `mbarrier` that has its place of four: arrivals that are known, and the latest of them."""

    number: int
    arrived: int = 0
    there: int = 0


@dataclass
class Later:
    """Arrivals of a warp that wait for its `cp.async`: those of `left`, complete at `there` as far as is known."""

    warp: Warp
    access: Access
    left: list
    there: int


@dataclass
class Block:
    """A resident thread block: its slot, the cycle it came in, its place in the trace, its warps, phases of its
    barriers, registers that its warps have given back."""

    slot: int
    start: int
    position: int
    warps: list[Warp] = field(default_factory=list)
    spare: int = 0
    phases: dict[tuple[int, int], Phase] = field(default_factory=dict)  # by barrier and phase modulo 4
