"""Rule 11: memory instructions with real memory, from the issue to the cycle in which all of each is known."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from abstim.gpu.config import Gpu
from functional.traces.trace import LOCAL_WINDOW_LINE, PARAM_WINDOW_LINE
from oracle.memory import CONST_KINDS, SHARED_KINDS, Access
from oracle.memory_side import ATOMIC, EVERY_WORD, READ, WRITE, MemorySide
from oracle.real_memory import ALL, CONST_LINE, PARAM_LINE, L1d, Lines, Link, Results, Whole
from oracle.resources import MEM, NEVER, AtPort, Port
from precharacterize.classify import Kind

if TYPE_CHECKING:
    from oracle.resident import Warp
    from oracle.sm import Sm


@dataclass(eq=False)
class Pending:
    """A memory instruction on its way. `waiting` counts what is not known of it, the instruction itself for one."""

    sm: Sm
    warp: Warp
    i: int
    what: Access
    port: Port
    issued: int
    place: int  # among the port's allocations
    group: tuple[int, int]  # of asynchronous work, and its family
    waiting: int = 1
    result: int = 0
    collector: int | None = None  # None: waits at the port for one
    left_collector: bool = False
    order: int = 0  # among all that have issued
    operands: int = 0
    start: int | None = None
    entry: int = 0  # no earlier does its next transaction enter
    last_entry: int = 0
    left: list = field(default_factory=list)  # transactions, or lines of the constant cache

    def part(self, result: int, time: int) -> None:
        """A part of it is there at `result`, which is known at `time`."""
        self.result = max(self.result, result)
        self.waiting -= 1
        if self.waiting == 0:
            self.sm.complete(self)

    def reply(self, result: int, time: int) -> None:
        """The same of a reply, which is written to the register file."""
        self.sm.write_back(self.warp, self.i, result)
        self.part(result, time)


@dataclass(eq=False)
class Transaction:
    """One in a pipe of L1D."""

    due: int
    line: int
    sectors: list[int]
    access: Pending


class LoadStoreUnit:
    """The unit, the pipes of L1D's banks, caches."""

    def __init__(self, gpu: Gpu, sm: Sm, number: int, ways: int, side: MemorySide) -> None:
        self.gpu, self.spec, self.sm = gpu, gpu.spec, sm
        self.link, self.results = Link(gpu, side, number), Results(gpu)
        self.l1d = L1d(gpu, ways, self.link, self.results)
        self.const = Lines(self.spec.const_sets, self.spec.const_ways)
        self.texture = Lines(self.spec.l1t_sets, self.spec.l1t_ways)
        self.consts_coming = self.free = self.issued = 0
        self.queue: deque[Pending] = deque()  # issued, and not through
        self.pipes: list[deque[Transaction]] = [deque() for _ in range(self.spec.l1d_banks)]
        self.entered = [-1] * self.spec.l1d_banks
        self.chosen: Pending | None = None
        self.overtake = self.spec.sub_cores and bool(self.spec.shared_collectors)
        self.overtake &= self.spec.mem_port_width // self.spec.schedulers_per_sm <= 1

    def cycle(self, time: int) -> None:
        """Before the schedulers: replies, tags, and what can go on."""
        self.link.receive(time)
        for pipe in self.pipes:
            if pipe and pipe[0].due <= time and self._meets_tags(pipe[0], time):
                pipe.popleft()
        self._go_on(time)

    # Issue, collector, start

    def new(self, warp: Warp, i: int, what: Access, port: Port, time: int, group: tuple[int, int]) -> Pending:
        """An instruction that is to come to its port."""
        return Pending(self.sm, warp, i, what, port, time, len(port.allocations), group)

    def go(self, pending: Pending, time: int) -> None:
        """It comes there, and as far as is known now."""
        self.issued += 1
        pending.order = self.issued
        self.queue.append(pending)
        pending.port.allocations.append(NEVER)
        if self.sm.waits_at_ports and not self.sm.is_next(pending.port, MEM, time):
            self.sm.at_ports.append(AtPort(pending.warp, pending.i, MEM, pending.port, pending.place, pending))
        elif min(pending.port.collectors) < NEVER:
            self._leave_port(pending)
        self._go_on(time)

    def collected(self, p: Pending, step: int, time: int) -> None:
        """An instruction that has waited has a collector in a step of cycle `time`."""
        self._collect(p, step)
        self._go_on(time)

    def _leave_port(self, p: Pending) -> None:
        p.port.allocations[p.place] = p.issued
        self._collect(p, self.sm.allocate(p.port, MEM, p.issued))

    def _collect(self, p: Pending, allocated: int) -> None:
        p.collector = p.port.collector_at(allocated)
        p.operands = self.sm.operands(p.warp, p.i, allocated)
        p.port.allocations[p.place] = allocated // self.spec.register_file_ports
        p.port.collectors[p.collector] = NEVER
        self._leave_collectors(p.port)

    def _leave_collectors(self, port: Port) -> None:
        """Those leave that have a place on the way to the unit, where as many are as the port is wide. Of a sub-core it
        is the first that is free to, of several the one in the lowest collector."""
        steps = self.spec.register_file_ports
        if self.overtake:
            there = [p for p in self.queue if p.port is port and p.start is None and p.collector is not None]
            if there and not any(p.left_collector for p in there):
                first = min(there, key=lambda p: (max(p.operands, steps * port.starts[-1]), p.collector))
                first.left_collector = True
                port.collectors[first.collector] = max(first.operands, steps * port.starts[-1])
            return
        unstarted = [p for p in self.queue if p.port is port and p.start is None]
        for p, before in zip(unstarted, port.starts[-port.width :], strict=False):
            if p.collector is not None and not p.left_collector:
                p.left_collector = True
                port.collectors[p.collector] = max(p.operands, self.spec.register_file_ports * before)

    def _start(self, p: Pending) -> None:
        steps = self.spec.register_file_ports
        released = max(p.operands, steps * p.port.starts[-p.port.width])
        p.start = max(released // steps + 1, self.free)
        p.port.starts.append(p.start)
        self._leave_collectors(p.port)
        at_port = [q for q in self.queue if q.collector is None and q.port.collectors is p.port.collectors]
        if at_port and not self.sm.waits_at_ports:
            self._leave_port(at_port[0])

    # Through the unit

    def _choose(self, time: int) -> None:
        """Of those in front of the unit, one a sub-core, the one that has issued first is next, if none has begun."""
        there = [p for p in self.queue if p.left_collector and p.start is None]
        if not there or self.queue[0].start is not None:
            return
        steps = self.spec.register_file_ports
        start, _, first = min(
            (max(max(p.operands, steps * p.port.starts[-1]) // steps + 1, self.free), p.order, p) for p in there
        )
        if start <= time:
            self.queue.remove(first)
            self.queue.appendleft(first)
            self.chosen = first

    def _go_on(self, time: int) -> None:
        while self.queue:
            if self.overtake:
                self._choose(time)
                if self.queue[0] is not self.chosen:
                    return
            p = self.queue[0]
            if p.collector is None:
                return
            if p.start is None:
                self._start(p)
                if (busy := self._without_caches(p, time)) is not None:
                    self.free = p.start + busy
                    self.queue.popleft()
                    continue
                const = p.what.kind in CONST_KINDS
                p.left = p.what.const_lines() if const else p.what.transactions()
                p.entry = p.start + (self.gpu.pipeline.const_hit_cycles if const else 1)
            p.entry = max(p.entry, time)
            while p.left and self._enters(p, p.left[0], time):
                p.left.pop(0)
            if p.left:
                return
            least = max(32 // self.spec.load_store_lanes, p.what.passes * p.what.pass_cycles)
            least = p.what.const_busy() if p.what.kind in CONST_KINDS else least
            self.free = max(p.start + least, p.last_entry)
            self.queue.popleft()
            p.part(0, time)

    def _without_caches(self, p: Pending, time: int) -> int | None:
        """Cycles on the unit of what asks no cache, whose result is known; None for the rest."""
        what, start, shared = p.what, p.start, self.gpu.pipeline.shared_cycles
        if what.kind in SHARED_KINDS:
            busy, result = what.shared_busy(), what.shared_result(start)
        elif what.kind == Kind.FENCE or what.is_idle:
            busy, result = 1, start + 1
        elif what.passes == len(what.records):
            busy, result = what.held(what.passes), start + shared + what.late(what.passes)
        elif what.kind in CONST_KINDS and self.spec.perfect_constant_cache:
            busy, result = what.const_busy(), start + self.gpu.pipeline.const_hit_cycles
        else:
            return None
        if what.kind not in CONST_KINDS and result > start + 1:
            self.sm.write_back(p.warp, p.i, result)
        p.part(result, time)
        return busy

    def _enters(self, p: Pending, next_one, time: int) -> bool:
        if p.what.kind in CONST_KINDS:
            return self._looks_up_constant(p, next_one)
        line, sectors = next_one
        passes = self.spec.l1d_bypass and line < LOCAL_WINDOW_LINE and p.what.kind != Kind.TEXTURE_LOAD
        past = p.what.kind == Kind.L2_LOAD and not self.spec.posted_stores and line < LOCAL_WINDOW_LINE
        if p.what.kind == Kind.GLOBAL_ATOMIC or passes or past:
            return self._passes_by(p, line, sectors)
        bank = min(sectors) % p.what.banks()
        stages = self.gpu.params.l1d_latency_cycles
        if len(self.pipes[bank]) >= stages:
            return False
        p.entry = p.last_entry = self.entered[bank] = max(p.entry, self.entered[bank] + 1)
        self.pipes[bank].append(Transaction(p.entry + stages, line, sectors, p))
        p.waiting += 1
        return True

    def _passes_by(self, p: Pending, line: int, sectors: list[int]) -> bool:
        kind = {Kind.GLOBAL_ATOMIC: ATOMIC, Kind.GLOBAL_STORE: WRITE}.get(p.what.kind, READ)
        if not self.link.has_room(kind, len(sectors)):
            return False
        p.waiting += len(sectors)
        added = -(-p.what.lanes // sum(len(touched) for _, touched in p.what.records)) if p.what.lanes else 0
        p.last_entry = self.link.send(
            line, tuple(sectors), kind, lambda _, due: self._back(p, kind, due), p.entry, added,
            p.what.words.get(line, EVERY_WORD), direct=True,
        )  # fmt: skip
        p.entry = p.last_entry + 1
        return True

    def _back(self, p: Pending, kind: int, due: int) -> None:
        if kind == WRITE:
            p.part(due, due)
        else:
            p.reply(self.results.next(due), due)

    # Caches of whole lines

    def _looks_up_constant(self, p: Pending, number: int) -> bool:
        line, wide = self.const.find(number), self.spec.const_line_bytes == 128
        if line is None:
            sectors = ALL if wide else ALL[2 * (number % 2) : 2 * (number % 2) + 2]
            if self.consts_coming >= self.spec.const_mshrs or not self.link.has_room(READ, len(sectors)):
                return False
            if not self.const.has_way(number):
                return False
            line = self.const.allocate(number, len(sectors))
            self.consts_coming += 1
            there = number if wide else number // 2
            there += PARAM_LINE - PARAM_WINDOW_LINE if there >= PARAM_WINDOW_LINE else CONST_LINE
            filled = line
            then = lambda _, due: self._constant_comes(filled, due)  # noqa: E731
            self.link.send(there, sectors, READ, then, p.entry + 1, constant=True)
        self.const.use(line)
        p.result = max(p.result, p.entry)
        if line.coming:
            p.waiting += 1
            line.waiting.append(p)
        p.entry += self.gpu.params.const_access_cycles
        p.last_entry = p.entry - 1
        return True

    def _constant_comes(self, line: Whole, due: int) -> None:
        self.consts_coming -= self._sector_comes(line, due)

    def _sector_comes(self, line: Whole, due: int) -> bool:
        """Of the lines that come whole; with the last sector all who wait have it."""
        line.coming -= 1
        if line.coming:
            return False
        for p in line.waiting:
            p.reply(self.results.next(due), due)
        line.waiting = []
        return True

    def _looks_up_texture(self, p: Pending, number: int, time: int) -> bool:
        line = self.texture.find(number)
        if line is None:
            if not self.texture.has_way(number) or not self.link.has_room(READ, len(ALL)):
                return False
            line = self.texture.allocate(number, len(ALL))
            filled = line
            self.link.send(number, ALL, READ, lambda _, due: self._sector_comes(filled, due), time + 1)
        self.texture.use(line)
        if line.coming:
            line.waiting.append(p)
        else:
            p.part(time, time)
        return True

    def _meets_tags(self, stage: Transaction, time: int) -> bool:
        kind, local = stage.access.what.kind, stage.line >= LOCAL_WINDOW_LINE
        if kind == Kind.TEXTURE_LOAD:
            return self._looks_up_texture(stage.access, stage.line, time)
        if kind == Kind.GLOBAL_STORE:
            return self.l1d.store(stage.line, stage.sectors, stage.access, local, time)
        if kind == Kind.L2_LOAD and not local:
            return self.l1d.load_below(stage.line, stage.sectors, stage.access, time)
        return self.l1d.load(stage.line, stage.sectors, stage.access, time)
