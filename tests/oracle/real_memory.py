"""Rule 11, the SM's part: caches whose lines are on their way, who waits for them, and the link to the memory side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from abstim.gpu.config import Gpu
from oracle.l1d import set_of
from oracle.memory_side import EVERY_WORD, READ, UNITS, WRITE, MemorySide, Request

CODE_LINE, CONST_LINE, PARAM_LINE = 0xF0000000 // 128, 0x100000000 // 128, 0x180000000 // 128  # where these begin
ALL = (0, 1, 2, 3)  # sectors of a line
MOST_ON_THEIR_WAY = 4096  # sectors; the oracle is not asked to come there
Then = Callable[[Request, int], None]  # what becomes of a sector's reply that is due in a cycle


class Link:
    """What an SM asks of the memory side: its way into the switch, and who each reply is for."""

    def __init__(self, gpu: Gpu, side: MemorySide, sm: int) -> None:
        self.spec, self.side, self.sm = gpu.spec, side, sm
        self.then: dict[int, Then] = {}
        self.last_sent, self.free, self.waiting_flits, self.coming = -1, 0, 0, 0

    def begin_window(self) -> None:
        """Flits in the SM's queue of the switch, now and, from now on, with what is sent."""
        self.waiting_flits = self.side.there.flits(self.sm)

    def _flits(self, kind: int, sectors: int) -> int:
        return 1 if kind == READ else -(-(32 * sectors + self.spec.packet_header_bytes) // self.spec.flit_bytes)

    def has_room(self, kind: int, sectors: int) -> bool:
        """May the SM ask in this window?"""
        most = self.spec.inject_queue_flits + self.spec.crossbar_queue_flits
        return self.waiting_flits + self._flits(kind, sectors) <= most

    def send(
        self, line: int, sectors: tuple[int, ...], kind: int, then: Then | None, time: int, added: int = 0,
        words: int = EVERY_WORD, direct: bool = False, instead: int | None = None, constant: bool = False,
    ) -> int:  # fmt: skip
        """Ask at `time` at the earliest; returns when. `then` None: nobody waits for it."""
        flits = self._flits(kind, len(sectors))
        sent = max(time, self.last_sent + 1, self.free + flits - self.spec.inject_queue_flits)
        self.last_sent, self.free = sent, max(sent, self.free) + flits
        self.waiting_flits += flits
        number = self.side.ask(
            sent, self.sm, line, sectors, kind, flits, then is not None, added, words, direct, instead, constant
        )
        if then is not None:
            self.then[number] = then
            self.coming += len(sectors)
        assert self.coming < MOST_ON_THEIR_WAY
        return sent

    def receive(self, time: int) -> None:
        """Replies that are due in this cycle."""
        inbox = self.side.inbox[self.sm]
        while inbox and inbox[0][0] <= time:
            _, request = inbox.popleft()
            self.coming -= 1
            self.then[request.number](request, time)  # later than due if nobody was on the SM


class Results:
    """Of those who wait for a line that came, one a cycle has its result, or as many as replies come."""

    def __init__(self, gpu: Gpu) -> None:
        self.free, self.units = 0, UNITS // gpu.spec.l2_reply_sectors

    def next(self, time: int) -> int:
        result = max((time + 2) * UNITS, self.free)
        self.free = result + self.units
        return result // UNITS


@dataclass(eq=False)
class Whole:
    """A line of a cache that fetches whole lines, or of what holds them."""

    number: int
    used: int = 0
    coming: int = 0  # sectors
    waiting: list = field(default_factory=list)


class Lines:
    """Such a cache: instructions, constants, textures."""

    def __init__(self, sets: int, ways: int) -> None:
        self.sets: list[list[Whole]] = [[] for _ in range(sets)]
        self.ways = ways
        self.accesses = self.misses = self.uses = 0

    def find(self, number: int) -> Whole | None:
        return next((line for line in self.sets[number % len(self.sets)] if line.number == number), None)

    def has_way(self, number: int) -> bool:
        """Is there a way for a line that is not there: one unused, or one for which nothing is on its way?"""
        here = self.sets[number % len(self.sets)]
        return len(here) < self.ways or any(not line.coming for line in here)

    def allocate(self, number: int, coming: int) -> Whole:
        here = self.sets[number % len(self.sets)]
        if len(here) == self.ways:
            here.remove(min((line for line in here if not line.coming), key=lambda line: line.used))
        here.append(Whole(number, coming=coming))
        self.misses += 1
        return here[-1]

    def use(self, line: Whole) -> None:
        self.accesses += 1
        self.uses += 1
        line.used = self.uses


@dataclass(eq=False)
class Sectored:
    """A line of L1D. Of a cache without sectors all who wait do so under 0."""

    number: int
    used: int = 0
    valid: set[int] = field(default_factory=set)
    coming: set[int] = field(default_factory=set)
    dirty: set[int] = field(default_factory=set)  # written to
    words: int = 0  # since it came
    waiting: dict[int, list] = field(default_factory=dict)


def written_throughout(line: Sectored, sectors: set[int], what) -> set[int]:
    """A store goes to sectors of a line: of those, the ones of which all words have been written since it came."""
    line.dirty |= sectors
    line.words |= what.words.get(line.number, EVERY_WORD) & sum(255 << 8 * s for s in sectors)
    return {s for s in sectors if line.words >> 8 * s & 255 == 255}


class L1d:
    """Tags, miss registers and miss queue. What says False has changed nothing."""

    def __init__(self, gpu: Gpu, ways: int, link: Link, results: Results) -> None:
        self.spec, self.ways, self.link, self.results = gpu.spec, ways, link, results
        self.sets: list[list[Sectored]] = [[] for _ in range(gpu.spec.l1d_sets)]
        self.queue: list[int] = []  # when each request that went through the miss queue leaves it
        self.accesses = self.misses = self.uses = self.registers = 0

    def _set(self, number: int) -> list[Sectored]:
        return self.sets[set_of(number, self.spec.l1d_sets, self.spec.l1d_index)]

    def _find(self, number: int) -> Sectored | None:
        return next((line for line in self._set(number) if line.number == number), None)

    def _use(self, line: Sectored) -> None:
        if self.spec.l1d_replacement == "lru":
            self._touch(line)

    def _touch(self, line: Sectored) -> None:
        self.uses += 1
        line.used = self.uses

    def _may_send(self, kind: int, sectors: int, spare: int, time: int) -> bool:
        """Has the miss queue room for one, and so many to spare, and the switch's?"""
        spare = min(spare, self.spec.l1d_miss_queue - 1)
        self.queue = [leaves for leaves in self.queue if leaves > time]
        return len(self.queue) + spare < self.spec.l1d_miss_queue and self.link.has_room(kind, sectors)

    def _send(
        self, line: int, sectors: set[int], kind: int, then: Then | None, time: int, words: int = EVERY_WORD,
        direct: bool = True, instead: int | None = None,
    ) -> None:  # fmt: skip
        sent = self.link.send(line, tuple(sorted(sectors)), kind, then, time + 1, 0, words, direct, instead)
        self.queue.append(sent)

    def _has_way(self, number: int) -> bool:
        """Is there a way for a line that is not there: one unused, or one for which nothing is on its way?"""
        here = self._set(number)
        return len(here) < self.ways or any(not line.coming for line in here)

    def _allocate(self, number: int, time: int) -> Sectored:
        """What was written of the line that leaves goes to L2."""
        here = self._set(number)
        if len(here) == self.ways:
            oldest = min((line for line in here if not line.coming), key=lambda line: line.used)
            if oldest.dirty and self.spec.l1d_write != "through":
                leaves = oldest.dirty if self.spec.l1d_sectored else set(ALL)
                instead = number if self.spec.l1d_write == "local_back" else None
                self._send(oldest.number, leaves, WRITE, None, time, oldest.words, instead=instead)
            here.remove(oldest)
        here.append(Sectored(number))
        self._touch(here[-1])
        return here[-1]

    # Loads

    def load(self, number: int, sectors: list[int], access, time: int) -> bool:
        """A load meets the tags."""
        wanted, line = set(sectors if self.spec.l1d_sectored else ALL), self._find(number)
        missing = wanted - line.valid if line else wanted
        if line and not missing:
            self._use(line)
            access.part(time, time)
        elif line and missing <= line.coming:
            keys = self._keys(missing)
            if any(len(line.waiting[key]) >= self.spec.l1d_mshr_merges for key in keys):
                return False
            self._use(line)
            self._wait(line, keys, access)
        elif not self._ask(number, line, missing, access, time):
            return False
        self.accesses += 1
        return True

    def load_below(self, number: int, sectors: list[int], access, time: int) -> bool:
        """A load that L1D may not answer."""
        if not self._may_send(READ, len(sectors), 0, time):
            return False
        access.waiting += len(sectors) - 1
        self._send(number, set(sectors), READ, lambda _, due: access.reply(self.results.next(due), due), time)
        self.accesses += 1
        self.misses += 1
        return True

    def _keys(self, sectors: set[int]) -> list[int]:
        return sorted(sectors) if self.spec.l1d_sectored else [0]

    def _wait(self, line: Sectored, keys: list[int], access) -> None:
        for key in keys:
            line.waiting.setdefault(key, []).append(access)
        access.waiting += len(keys) - 1

    def _ask(self, number: int, line: Sectored | None, missing: set[int], access, time: int) -> bool:
        absent = missing - line.coming if line else missing
        registers = len(absent) if self.spec.l1d_sectored else 1
        if self.registers and self.registers + registers > self.spec.l1d_mshrs:
            return False
        if not self._may_send(READ, len(absent), 1, time):
            return False
        if line is None:
            if not self._has_way(number):
                return False
            line = self._allocate(number, time)
        line.coming |= absent
        self.registers += registers
        self._wait(line, self._keys(missing), access)
        filled = line
        then = lambda request, due: self._fill(filled, request.sectors[0], due)  # noqa: E731
        self._send(number, absent, READ, then, time, direct=False)
        self._use(line)
        self.misses += 1
        return True

    def _fill(self, line: Sectored, sector: int, time: int) -> None:
        line.coming.discard(sector)
        line.valid.add(sector)
        if self.spec.l1d_sectored or not line.coming:
            self.registers -= 1
            for access in line.waiting.pop(sector if self.spec.l1d_sectored else 0):
                access.reply(self.results.next(time), time)

    # Stores

    def store(self, number: int, sectors: list[int], access, local: bool, time: int) -> bool:
        """A store meets the tags: rule 12's policies."""
        written, line = set(sectors), self._find(number)
        there = line is not None and written <= line.valid
        known = line is not None and (not self.spec.l1d_sectored or written <= line.valid | line.coming | line.dirty)
        evicts = self.spec.l1d_write in ("local_back", "evict")
        if local and there and evicts:
            self._keep(line, written, access, time)
        elif not self._may_send(WRITE, len(self._segment(written)), 0, time):
            return False
        elif evicts:
            if there and not line.coming:
                self._set(number).remove(line)
            self._go_on(number, written, access, time)
        elif not self._store_by_line(number, line, written, access, time):
            return False
        self.accesses += 1
        self.misses += not known
        return True

    def _store_by_line(self, number: int, line: Sectored | None, written: set[int], access, time: int) -> bool:
        if line is None and self.spec.l1d_write_allocate:
            if not self._has_way(number):
                return False
            line = self._allocate(number, time)
        if line is not None:
            if self.spec.l1d_write == "back":
                self._keep(line, written, access, time)
                return True
            if self.spec.l1d_write_allocate:
                line.valid |= written_throughout(line, written, access.what) - line.coming
            self._use(line)
        self._go_on(number, written, access, time)
        return True

    def _keep(self, line: Sectored, written: set[int], access, time: int) -> None:
        line.valid |= written_throughout(line, written, access.what)
        self._use(line)
        access.part(time, time)

    def _go_on(self, number: int, written: set[int], access, time: int) -> None:
        """To L2, which acknowledges each sector of the segment; nobody waits for that of a posted store."""
        sectors, words = self._segment(written), access.what.words.get(number, EVERY_WORD)
        if self.spec.posted_stores:
            self._send(number, sectors, WRITE, None, time, words)
            access.part(time, time)
            return
        access.waiting += len(sectors) - 1
        self._send(number, sectors, WRITE, lambda _, due: access.part(due, due), time, words)

    def _segment(self, sectors: set[int]) -> set[int]:
        """Those of the whole line if both its halves are touched and segments are Fermi's."""
        fermi = self.spec.coalescing == "fermi"
        return set(ALL) if fermi and sectors & {0, 1} and sectors & {2, 3} else sectors
