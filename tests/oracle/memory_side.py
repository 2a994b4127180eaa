"""Rule 11, its memory side: switch, slices, channels, one cycle after the other; literal, and as slow as that is."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

from abstim.gpu.config import Gpu
from abstim.gpu.spec import Spec
from oracle.address_map import Map
from oracle.switch import UNITS, Switch

READ, WRITE, ATOMIC = 0, 1, 2
EVERY_WORD = 0xFFFFFFFF  # of a line, as bits


@dataclass(eq=False)
class Request:
    """A packet, one of its sectors, or the dirty sectors of a line on their way to DRAM (`number` -1)."""

    number: int
    sm: int
    line: int
    sectors: tuple[int, ...]
    kind: int
    flits: int = 1
    ready: int = 0
    from_dram: bool = False
    near: int = 0  # the slice that was asked,
    home: int = -1  # and that where the line lies; -1: not drawn yet
    placed_as: int = -1  # the line whose slice it goes to
    answered: bool = True  # somebody waits for it
    bursts: int = 0
    added: int = 0
    words: int = EVERY_WORD  # that a store writes of the line
    direct: bool = False  # of an instruction, not of a cache that fetches
    constant: bool = False
    beside: bool = False  # comes with another sector; nobody waits for it
    done: int | None = None  # when it was answered, and
    followers: list[Request] = field(default_factory=list)  # reads that are answered with it


@dataclass
class Traffic:
    """Sectors so far."""

    l2_accesses: int = 0
    l2_misses: int = 0
    dram_reads: int = 0
    dram_writes: int = 0


@dataclass(eq=False)
class Line:
    number: int
    used: int = 0
    valid: set[int] = field(default_factory=set)
    dirty: set[int] = field(default_factory=set)
    words: int = 0  # written since it came
    waiting: dict[int, list[Request]] = field(default_factory=dict)  # by sector on its way


class Slice:
    """Queues, tags and miss registers of one L2 slice."""

    def __init__(self, gpu: Gpu, where: Map, number: int, back: Switch, traffic: Traffic) -> None:
        self.gpu, self.spec, self.where, self.number, self.back = gpu, gpu.spec, where, number, back
        self.traffic = traffic
        self.sector = round(gpu.params.l2_sector_cycles * 64)
        self.written = round(gpu.params.l2_write_cycles * 64)
        self.atomic = round(gpu.params.l2_atomic_cycles * 64)
        self.fp64_atomic = round(gpu.params.l2_fp64_atomic_cycles * 64)
        self.others: list[Slice] = []
        self.delayed: deque[Request] = deque()
        self.crossing: deque[Request] = deque()  # from the other part of L2
        self.afar: deque[Request] = deque()  # atomics of the other part's SMs
        self.asking: deque[Request] = deque()
        self.missing: deque[Request] = deque()
        self.to_dram: deque[Request] = deque()
        self.from_dram: deque[Request] = deque()
        self.filled: deque[Request] = deque()
        self.replies: deque[Request] = deque()
        self.latest: dict[int, Request] = {}
        self.way_there = max(1, gpu.params.l2_request_cycles - 3)
        self.sets: dict[int, list[Line]] = {}
        self.port_free = self.uses = 0
        self.now = 0
        self.last_unanswered: dict[int, int] = {}  # when the last request of an SM for which nobody waits was done
        self.registers = {True: 0, False: 0}  # in use: of lines that lie here, of those of the other part
        self.full = False  # at the end of the cycle before

    def idle(self) -> bool:
        """Has it nothing to do, in this cycle or a later one?"""
        before = self.delayed or self.crossing or self.afar or self.asking
        return not (before or self.missing or self.from_dram or self.filled or self.replies)

    def cycle(self, time: int) -> None:
        spec, self.now = self.spec, time
        for _ in range(spec.l2_reply_sectors):
            if self.replies and self.back.flits(self.number) < spec.inject_queue_flits + spec.crossbar_queue_flits:
                first = self.replies.popleft()
                first.flits = 1
                self.back.inputs[self.number].append((first, first.sm, time))
        if self.filled and len(self.replies) < spec.l2_queue:
            self._reply(self.filled.popleft())
        if self.from_dram:
            self._fill(self.from_dram.popleft())
        if self.missing and len(self.to_dram) < spec.l2_queue:
            first = self.missing.popleft()
            home = self.number if first.number < 0 else first.home
            if home == self.number:
                self.to_dram.append(first)
            else:
                first.ready = time + max(1, self.gpu.params.l2_partition_cycles)
                self.others[home].crossing.append(first)
        often = max(1, -(-64 // max(1, self.sector)))
        for _ in range(often):
            if not self._answer(time):
                break
        turns = often
        while turns and self.delayed and self.delayed[0].ready <= time:
            if self._coalesce(self.delayed[0], time):
                self.delayed.popleft()
            elif len(self.asking) < spec.l2_queue:
                self.asking.append(self.delayed.popleft())
                turns -= 1
            else:
                break
        self.full = len(self.asking) > spec.l2_queue - 4

    def _reply(self, request: Request) -> None:
        """To the SM, if somebody there waits, or to the part of L2 that asked."""
        if request.near == self.number:
            if request.answered:
                self.replies.append(request)
                request.done = self.now
                for each in request.followers:
                    self._pass_link_by(each, request.from_dram)
            else:
                self.last_unanswered[request.sm] = self.now
        else:
            self.others[request.near].from_dram.append(request)

    def _coalesce(self, read: Request, time: int) -> bool:
        """Does it get the answer to the latest read of its sector, as far as that is known by its number?"""
        if not self.spec.l2_coalesces or read.kind != READ or not read.answered:
            return False
        place = (4 * read.line + read.sectors[0] + 1) % 256
        first = self.latest.get(place)
        if first is read:
            return False  # it found no room in the queue before
        alike = first is not None and (first.line, first.sectors) == (read.line, read.sectors)
        if first is None or not alike or (first.done is not None and first.done + self.way_there <= time):
            self.latest[place] = read
            return False
        if first.done is None:
            first.followers.insert(0, read)
        else:
            self._pass_link_by(read, False)
        return True

    def _pass_link_by(self, request: Request, from_dram: bool) -> None:
        request.from_dram, request.flits, free = from_dram, 1, self.back.output_free
        free[request.sm] = max(UNITS * self.now, free[request.sm]) + UNITS // self.back.width
        self.back.outputs[request.sm].append((request, -(-free[request.sm] // UNITS), self.number))

    def _known_by(self, request: Request) -> int:
        """On a Fermi both sectors of a constant line, of 64 B, are known by the first."""
        sector, spec = request.sectors[0], self.spec
        halves = request.constant and spec.coalescing == "fermi" and spec.const_line_bytes == 64
        return sector // 2 * 2 if halves else sector

    def _fill(self, request: Request) -> None:
        sector = request.sectors[0]
        line = self._line(request.line)
        assert line is not None
        line.valid.add(sector)
        self.registers[request.home == self.number] -= 1
        for each in line.waiting.pop(self._known_by(request)):
            if each.kind == ATOMIC:
                line.dirty.add(sector)
            if not each.beside:
                self.filled.append(each)

    def _set(self, number: int) -> list[Line]:
        return self.sets.setdefault(self.where.set_of(number), [])

    def _line(self, number: int) -> Line | None:
        return next((line for line in self._set(number) if line.number == number), None)

    def _answer(self, time: int) -> bool:
        """The older of those at the head of the two queues; if the SM's must wait, the other part's."""
        if len(self.to_dram) >= self.spec.l2_queue or len(self.replies) >= self.spec.l2_queue:
            return False
        if self.port_free >= 64 * (time + 1):
            return False
        others = min((q for q in (self.crossing, self.afar) if q), key=lambda q: q[0].ready, default=self.crossing)
        came = bool(others) and others[0].ready < time
        asked = bool(self.asking) and not (came and others[0].ready < self.asking[0].ready)
        if asked and self._meets_tags(self.asking, time):
            return True
        return came and self._meets_tags(others, time)

    def _meets_tags(self, queue: deque[Request], time: int) -> bool:
        request = queue[0]
        sector, line = request.sectors[0], self._line(request.line)
        accepted = self._write if request.kind == WRITE else self._read
        if not accepted(request, sector, line, time):
            return False
        queue.popleft()
        line = self._line(request.line)
        assert line is not None
        self.uses += 1
        line.used = self.uses
        return True

    def _count(self, request: Request, missed: bool) -> None:
        """An access; one of the other part of L2 has been counted there."""
        if request.near == self.number:
            self.traffic.l2_accesses += 1
            self.traffic.l2_misses += missed

    def _occupy(self, units: int, time: int) -> None:
        self.port_free = max(self.port_free, 64 * time) + units

    def _idle_ways(self, number: int) -> int:
        """Of a line's set: those that are unused, and those for which nothing is on its way."""
        lines = self._set(number)
        return self.spec.l2_ways - len(lines) + sum(not line.waiting for line in lines)

    def _room(self, number: int, time: int) -> Line | None:
        """A line for `number`, that of another one if need be."""
        lines = self._set(number)
        if len(lines) == self.spec.l2_ways:
            free = [line for line in lines if not line.waiting]
            if not free:
                return None
            oldest = min(free, key=lambda line: line.used)
            if oldest.dirty:
                self._evict(oldest, time)
            lines.remove(oldest)
        lines.append(Line(number))
        return lines[-1]

    def _evict(self, line: Line, time: int) -> None:
        """What was written of a line goes to DRAM."""
        self.missing.append(Request(-1, -1, line.number, tuple(line.dirty), WRITE))
        self._occupy(len(line.dirty) * self.sector, time)
        self.traffic.dram_writes += len(line.dirty)

    def _write(self, request: Request, sector: int, line: Line | None, time: int) -> bool:
        missed = False
        if line is not None and sector in line.valid | line.dirty:
            self._occupy(self.written or self.sector, time)
        else:
            if len(self.missing) >= self.spec.l2_miss_queue:
                return False
            line = line or self._room(request.line, time)
            if line is None:
                return False
            missed = sector not in line.waiting
            if self.spec.coalescing == "fermi" and request.words.bit_count() == 8:  # it takes the sector for whole
                line.valid.add(sector)
            self._occupy(self.written, time)
        self._count(request, missed)
        line.words |= request.words & 255 << 8 * sector
        if line.words >> 8 * sector & 255 == 255:
            line.valid.add(sector)
        line.dirty.add(sector)
        self._clean(line, time)
        self._reply(request)
        return True

    def _clean(self, written: Line, time: int) -> None:
        """The oldest of too many lines written goes to DRAM, if there is room; `written` is the youngest."""
        dirty = [line for line in self._set(written.number) if line.dirty]
        if 0 < self.spec.l2_dirty_ways < len(dirty) and len(self.missing) < self.spec.l2_miss_queue:
            oldest = min(dirty, key=lambda line: (line is written, line.used))
            self._evict(oldest, time)
            oldest.dirty = set()

    def _read(self, request: Request, sector: int, line: Line | None, time: int) -> bool:
        if line is not None and sector in line.valid:
            atomic = max(self.atomic, request.added * self.fp64_atomic)
            self._occupy(atomic if request.kind == ATOMIC else self.sector, time)
            if request.kind == ATOMIC:
                line.dirty.add(sector)
            self._count(request, False)
            self._reply(request)
            return True
        known = self._known_by(request)
        answered = [r for r in self.filled if (r.line, self._known_by(r)) == (request.line, known)]
        for joined in [line.waiting.get(known), answered if known != sector else None] if line is not None else []:
            if joined:
                if len(joined) >= self.spec.l2_mshr_merges:
                    return False
                first = known != sector and len(joined) == 1 and known not in line.valid
                self._count(request, joined is not answered and first)
                (self.filled if joined is answered else joined).append(request)
                return True
        here = request.home == self.number
        if len(self.missing) + 1 >= max(self.spec.l2_miss_queue, 2) or self.registers[here] >= self.spec.l2_mshrs:
            return False
        if not here and not (line and line.waiting) and self._idle_ways(request.line) < 2:
            return False
        line = line or self._room(request.line, time)
        if line is None:
            return False
        line.waiting[known] = [request]
        self.registers[here] += 1
        request.from_dram = True
        self._count(request, known == sector)
        self.traffic.dram_reads += here
        self.missing.append(request)
        if here and fetches_pairs(self.spec):
            self._bring(request, sector ^ 1, line)
        return True

    def _bring(self, request: Request, other: int, line: Line) -> None:
        """The sector beside one that comes from DRAM comes, too, if it is not there and there is room."""
        there = other in line.valid | line.dirty or other in line.waiting
        full = len(self.missing) + 1 >= max(self.spec.l2_miss_queue, 2) or self.registers[True] >= self.spec.l2_mshrs
        if there or full:
            return
        beside = replace(request, sectors=(other,), kind=READ, near=self.number, beside=True, followers=[])
        line.waiting[other] = [beside]
        self.registers[True] += 1
        self.traffic.dram_reads += 1
        self.missing.append(beside)


def fetches_pairs(spec: Spec) -> bool:
    """Does a miss bring two sectors?"""
    return spec.l2_fetch_bytes == 64 and spec.coalescing != "fermi"


@dataclass(eq=False)
class Bank:
    row: int = -1  # none is open
    served: int = -2
    request: Request | None = None
    waiting: list[Request] = field(default_factory=list)
    read: int = 0  # no earlier: this and so on
    write: int = 0
    close: int = 0
    open: int = 0


class Channel:
    """One DRAM channel; times are cycles of its clock."""

    def __init__(self, gpu: Gpu, where: Map, slices: list[Slice]) -> None:
        spec, params = gpu.spec, gpu.params
        self.spec, self.where, self.slices = spec, where, slices
        length = params.dram_sector_cycles / spec.dram_burst_cycles
        self.half = max(1, round(params.dram_activate_cycles / 2 / length))
        self.delay = max(0, round(params.dram_latency_cycles - spec.dram_read_cycles * length) - 4)
        self.delayed: deque[Request] = deque()
        self.writes: deque[Request] = deque()  # that wait to be a batch
        self.bursts: deque[tuple[Request, int]] = deque()
        self.back: deque[Request] = deque()
        self.banks = [Bank() for _ in range(spec.dram_banks)]
        self.group_burst, self.group_close = [0] * spec.dram_bank_groups, [0] * spec.dram_bank_groups
        self.burst = self.row = self.read = self.write = self.turn = self.last = self.draining = 0
        self.pending = self.serving = 0  # requests that wait for their bank, and banks that have one

    def idle(self) -> bool:
        """Has it nothing to do, in this cycle or a later one?"""
        busy = self.serving or self.pending or self.draining or self.delayed or self.bursts or self.back
        return not busy and not any(each.to_dram for each in self.slices)

    def cycle(self, now: int, time: int) -> None:
        """Cycle `now`, in core cycle `time`."""
        if self.back:
            target = next(s for s in self.slices if s.number == self.back[0].home)
            if len(target.from_dram) < self.spec.l2_queue:
                target.from_dram.append(self.back.popleft())
        if self.bursts and self.bursts[0][1] <= now:
            request, _ = self.bursts.popleft()
            if request.number >= 0:
                self.back.append(request)
        self._choose()
        self._command(now)
        self._accept(time)
        if self.pending < self.spec.dram_queue:
            self._admit(time)

    def _admit(self, time: int) -> None:
        batch = self.spec.dram_write_batch
        if self.draining:
            self.draining -= 1
            self._wait(self.writes.popleft())
        elif self.delayed and self.delayed[0].ready <= time:
            request = self.delayed.popleft()
            if batch and request.number < 0:
                self.writes.append(request)
                self.draining = batch if len(self.writes) == batch else 0
            else:
                self._wait(request)

    def _wait(self, request: Request) -> None:
        self.banks[self.where.bank_and_row(request.line)[0]].waiting.append(request)
        self.pending += 1

    def _in_turn(self) -> list[int]:
        return [*range(self.turn, len(self.banks)), *range(self.turn)]

    def _choose(self) -> None:
        for b in self._in_turn():
            bank = self.banks[b]
            if bank.request is None and bank.waiting:
                same = [r for r in bank.waiting if self.where.bank_and_row(r.line)[1] == bank.served]
                bank.request = (same or bank.waiting)[0]
                bank.waiting.remove(bank.request)
                bank.served = self.where.bank_and_row(bank.request.line)[1]
                self.pending, self.serving = self.pending - 1, self.serving + 1
                self.turn = (self.turn + 1) % len(self.banks)
                return

    def _command(self, now: int) -> None:
        burst = row = False
        for b in self._in_turn():
            bank, one = self.banks[b], not self.spec.dram_two_commands
            if bank.request is None:
                continue
            if bank.row == bank.served:
                if not burst and not (one and row) and self._may_burst(b, bank, now):
                    self._begin_burst(b, bank, now)
                    burst = True
            elif not row and not (one and burst) and self._row_command(b, bank, now):
                row = True

    def _may_burst(self, b: int, bank: Bank, now: int) -> bool:
        free = max(self.burst, self.group_burst[b % self.spec.dram_bank_groups])
        assert bank.request is not None
        writes = bank.request.number < 0
        return now >= (max(free, bank.write, self.write) if writes else max(free, bank.read, self.read))

    def _begin_burst(self, b: int, bank: Bank, now: int) -> None:
        spec, group, request = self.spec, b % self.spec.dram_bank_groups, bank.request
        assert request is not None
        self.burst, self.group_burst[group] = now + spec.dram_burst_cycles, now + spec.dram_group_burst_cycles
        if request.number < 0:
            written = spec.dram_write_cycles + spec.dram_burst_cycles
            self.read = max(self.read, now + written + spec.dram_write_to_read_cycles)
            bank.close = max(bank.close, now + written + spec.dram_write_recovery_cycles)
            request.bursts += 1
            if request.bursts * spec.dram_burst_bytes < 32 * len(request.sectors):
                return
            self.bursts.append((request, now + spec.dram_write_cycles))
        else:
            between = spec.dram_read_cycles + spec.dram_burst_cycles + 2 - spec.dram_write_cycles
            self.write = now + max(0, between)
            bank.close = max(bank.close, now + spec.dram_burst_cycles)
            self.group_close[group] = now + spec.dram_read_to_precharge_cycles
            self.bursts.append((request, now + spec.dram_read_cycles))
        bank.request, self.serving = None, self.serving - 1

    def _row_command(self, b: int, bank: Bank, now: int) -> bool:
        spec = self.spec
        if bank.row < 0:
            if now < max(self.row, bank.open):
                return False
            bank.row = bank.served
            self.row = now + spec.dram_row_to_row_cycles
            bank.read, bank.write = now + self.half, now + max(0, self.half - spec.dram_write_cycles - 1)
            bank.close = max(bank.close, now + spec.dram_row_active_cycles)
            bank.open = max(bank.open, now + spec.dram_row_cycle_cycles)
        else:
            if now < max(bank.close, self.group_close[b % spec.dram_bank_groups]):
                return False
            bank.row = -1
            bank.open = max(bank.open, now + self.half)
        self.turn = (b + 1) % len(self.banks)
        return True

    def _accept(self, time: int) -> None:
        if self.spec.dram_requests and len(self.delayed) + self.pending >= self.spec.dram_requests:
            return
        for k in range(len(self.slices)):
            part = (self.last + 1 + k) % len(self.slices)
            if self.slices[part].to_dram:
                request = self.slices[part].to_dram.popleft()
                request.ready = time + self.delay
                self.delayed.append(request)
                self.last = part
                return


class MemorySide:
    """All of it. `replies[number]`: the cycles in which each sector of a request is due; `inbox[sm]`: with the cycles,
    those that the SM has not taken."""

    def __init__(self, gpu: Gpu) -> None:
        spec, self.gpu = gpu.spec, gpu
        self.where = Map(gpu)
        self.there = Switch(gpu, spec.sm_count, self.where.slices)
        self.back = Switch(gpu, self.where.slices, spec.sm_count, spec.l2_reply_sectors)
        self.traffic = Traffic()
        self.slices = [Slice(gpu, self.where, n, self.back, self.traffic) for n in range(self.where.slices)]
        for each in self.slices:
            each.others = self.slices
        part = spec.l2_slices_per_channel
        self.channels = [
            Channel(gpu, self.where, self.slices[h * part : (h + 1) * part]) for h in range(spec.dram_channels)
        ]
        self.delay = max(1, gpu.params.l2_request_cycles - 3)  # of a packet's sectors in front of their slice
        self.fence_cycles = max(gpu.params.fence_cycles, self.delay + max(0, gpu.params.l2_reply_cycles - 5))
        self.length = max(1, round(gpu.params.dram_sector_cycles / spec.dram_burst_cycles * 65536))
        self.replies: dict[int, list[int]] = {}
        self.inbox: list[deque[tuple[int, Request]]] = [deque() for _ in range(spec.sm_count)]
        self.reply_free = [0] * spec.sm_count  # in units
        self.fetched: list[list[tuple[int, int]]] = [[] for _ in range(spec.sm_count)]  # lines that draw a slice, when
        self.time = self.channel_time = 0

    def idle(self) -> bool:
        """Is nothing on its way?"""
        switches = (queue for switch in (self.there, self.back) for queue in (*switch.inputs, *switch.outputs))
        return not any(switches) and all(each.idle() for each in (*self.slices, *self.channels))

    def end_of(self, sm: int) -> int:
        """When the SM would know of the last of its requests for which nobody waits."""
        last = max(each.last_unanswered.get(sm, 0) for each in self.slices)
        return last + max(0, self.gpu.params.l2_reply_cycles - 5) if last else 0

    def ask(
        self, time: int, sm: int, line: int, sectors: tuple[int, ...], kind: int, flits: int, answered: bool = True,
        added: int = 0, words: int = EVERY_WORD, direct: bool = False, instead: int | None = None,
        constant: bool = False,
    ) -> int:  # fmt: skip
        """A request sent at `time`; returns its number. `added`: lanes that add to doubles of each of its sectors;
        `instead`: a line to whose slice it goes."""
        number = len(self.replies)
        self.replies[number] = []
        home = near = -1
        if self.gpu.spec.l2_slice_index != "random":
            home = self.where.slice_of(line if instead is None else instead)
            near = self.where.near(line, sm) if kind == READ else home
        packet = Request(number, sm, line, sectors, kind, flits, near=near, answered=answered, added=added)
        packet.words, packet.direct, packet.home, packet.constant = words, direct, home, constant
        packet.placed_as = line if instead is None else instead
        self.there.inputs[sm].append((packet, near, time + 1))
        return number

    def _draw(self) -> None:
        """Slices of what has left the SMs and has none, SM by SM, data first."""
        for sm, packets in enumerate(self.there.inputs):
            for k, (packet, _, start) in enumerate(packets):
                if packet.home < 0 and start <= self.time:
                    packet.home = packet.near = self.where.slice_of(packet.placed_as)
                    packets[k] = packet, packet.near, start
            while self.fetched[sm] and self.fetched[sm][0][0] <= self.time:
                self.where.slice_of(self.fetched[sm].pop(0)[1])

    def cycle(self) -> None:
        """One core cycle."""
        self._draw()
        time, params = self.time, self.gpu.params
        for sm, out in enumerate(self.back.outputs):
            for _ in range(self.gpu.spec.l2_reply_sectors):
                if out and out[0][1] <= time:
                    request, _, _ = out.popleft()
                    extra = params.dram_reply_cycles - 6 if request.from_dram else params.l2_reply_cycles - 5
                    free = max((time + 1 + max(0, extra)) * UNITS, self.reply_free[sm])
                    self.reply_free[sm] = free + UNITS // self.gpu.spec.l2_reply_sectors
                    self.replies[request.number].append(free // UNITS)
                    self.inbox[sm].append((free // UNITS, request))
        while self.channel_time * self.length <= time * 65536:
            for channel in self.channels:
                if not channel.idle():
                    channel.cycle(self.channel_time, time)
            self.channel_time += 1
        for n, each in enumerate(self.slices):
            out = self.there.outputs[n]
            if out and out[0][1] <= time and not each.full:
                self._arrive(each, out.popleft()[0], time)
        for each in self.slices:
            if not each.idle():
                each.cycle(time)
        self.there.cycle(time)
        self.back.cycle(time)
        self.time += 1

    def _arrive(self, target: Slice, packet: Request, time: int) -> None:
        ready = time + self.delay
        for sector in sorted(packet.sectors):
            each = replace(packet, sectors=(sector,), ready=ready, followers=[])
            if self.gpu.spec.coalescing == "fermi":  # as the reference splits its packets
                each.words &= sum(255 << 8 * s for s in packet.sectors if s <= sector)
                each.line += packet.direct and set(packet.sectors) == {2, 3}
            if self.where.is_from_afar(packet.sm, target.number) and packet.kind == ATOMIC:
                each.ready += max(1, self.gpu.params.l2_partition_cycles)
                target.afar.append(each)
            else:
                target.delayed.append(each)
