"""One SM, cycle by cycle (docs/timing-rules.md, rules 1 to 9 and 13)."""

from __future__ import annotations

from collections import defaultdict
from functools import partial

from abstim.gpu.config import Gpu
from functional.traces.trace import LOCAL_LINES, LOCAL_WINDOW_LINE, PHASE_WINDOW_LINE
from oracle.code_fetch import CodeFetch
from oracle.l1d import ways_left
from oracle.load_store_unit import LoadStoreUnit
from oracle.memory import RECORD_KINDS, SHARED_KINDS, Access, Loop, Memory
from oracle.memory_side import MemorySide
from oracle.policies import POLICIES
from oracle.program import Program, WarpStream
from oracle.resident import Block, Copies, Later, Phase, Warp
from oracle.resources import MEM, NEVER, AtPort, Dispatch, FrontEnd, Port, first_unbooked, ports_of
from precharacterize import synchronisation as sync
from precharacterize.classify import Kind

SP = 0
IN_ORDER = (0, 1, 2, 5, 4, 3)  # SP, SFU, MEM, TENSOR, DP, INT: kinds as they come to shared collectors


class Sm:
    """State of an SM and its rules. `blocks` maps block slots to what runs in them; `side`: real memory."""

    def __init__(
        self, gpu: Gpu, program: Program, warps_per_block: int, blocks_per_sm: int, shared_bytes: int,
        number: int = 0, side: MemorySide | None = None,
    ) -> None:  # fmt: skip
        spec = gpu.spec
        self.gpu, self.program, self.warps_per_block, self.number = gpu, program, warps_per_block, number
        self.warps: dict[int, Warp] = {}  # by warp slot, those that are not gone
        self.blocks: dict[int, Block] = {}  # by block slot
        self.slot_free = [0] * blocks_per_sm  # cycle from which a block slot is free; unknown while in `blocks`
        self.last_dispatch, self.launched, self.last_exit, self.resident_warp_cycles = -1, 0, 0, 0
        slots = [list(range(s, spec.max_warps_per_sm, spec.schedulers_per_sm)) for s in range(spec.schedulers_per_sm)]
        self.schedulers = [POLICIES[spec.scheduler](s, spec.two_level_active_warps) for s in slots]
        ways = ways_left(gpu, shared_bytes * blocks_per_sm)
        self.side = side
        self.memory = Memory(gpu, ways) if side is None else LoadStoreUnit(gpu, self, number, ways, side)
        self.front = FrontEnd(gpu) if side is None else CodeFetch(gpu, self.memory.link)
        self.ports = ports_of(gpu)
        self.latest_allocation: dict[int, int] = {}  # kind of unit -> step, of all schedulers
        self.last_sp_start: dict[Port, int] = {}
        self.banks: list[set[int]] = [set() for _ in range(spec.register_banks)]  # booked steps
        self.due: dict[int, int] = {}  # cycle -> results due on the buses
        self.waits_at_ports, self.at_ports = bool(spec.shared_collectors and side), list[AtPort]()  # by age
        self.copying: list = []  # accesses that are `cp.async`, or wait for those before them
        self.later: list[Later] = []
        self.sent: list[tuple[int, int, int, int, int]] = []  # arrivals elsewhere: by whom, ranks on, where, and when
        self.accessed: Access | None = None  # by the instruction issued last
        self.issued, self.last_fetched, self.barrier_free = 0, 0, 0
        self.word_free: dict[int, dict[int, int]] = {}  # by block slot: when no loop changes each word any more

    # Rule 10

    def earliest_dispatch(self) -> int | None:
        """Cycle in which this SM can take a block; None as long as no slot's end is known."""
        known = [free for slot, free in enumerate(self.slot_free) if slot not in self.blocks]
        return max(min(known), self.last_dispatch + 1) if known else None

    def launch(self, streams: list[WarpStream], time: int, position: int, registers: int) -> None:
        """Take a thread block at the end of cycle `time`."""
        slot = next(b for b, free in enumerate(self.slot_free) if b not in self.blocks and free <= time)
        block = Block(slot, time, position)
        self.blocks[slot], self.last_dispatch = block, time
        for k, stream in enumerate(streams):
            warp = Warp(slot * self.warps_per_block + k, self.launched, self.program, stream, stream.advance(None))
            self.launched, warp.held = self.launched + 1, registers
            self.warps[warp.slot] = warp
            block.warps.append(warp)
            self.want(warp, self.program.pc(warp.next))

    def end(self) -> int:
        """Its last cycle: a launch is not over before L2 has posted stores."""
        posted = self.side and self.gpu.spec.posted_stores
        return max(self.last_exit, self.side.end_of(self.number)) if posted else self.last_exit

    # Rules 1 and 2

    def cycle(self, time: int) -> None:
        """One cycle of all schedulers, then of the fetch stage, which only decodes the last fetch later."""
        count = len(self.schedulers)
        if self.side:
            self.memory.cycle(time)
        for step in range(*(self.gpu.spec.register_file_ports * t for t in (time, time + 1))):
            while self.at_ports and any([self.leave_port(kind, step, time) for kind in IN_ORDER]):
                pass
        for k in range(count):
            self.turn(self.schedulers[(time - 1 + k) % count], time)
        for later in reversed(range(self.gpu.spec.fetches_per_cycle)):
            self.fetch_stage(time, time + 1 if later else time + 2)

    def turn(self, scheduler, time: int) -> None:
        """One cycle of one scheduler."""
        if not scheduler.has_a_turn(self, time):
            return
        for slot in scheduler.order(self, time):
            warp = self.warps.get(slot)
            if warp is None or not warp.can_be_visited(time):
                continue
            if warp.wrong_path:
                warp.wrong_path = False
                self.want(warp, self.program.pc(warp.next))
            elif self.can_issue(warp, time):
                first = self.program.unit(warp.next)
                self.issue(warp, time)
                if self.gpu.spec.issues_per_turn == 2 and self.goes_on(warp, first, time):
                    self.issue(warp, time)
                self.issued += 1
                scheduler.issued(slot)
                return

    def goes_on(self, warp: Warp, first: int, time: int) -> bool:
        """Rule 13: can the warp, which has just issued to a unit of kind `first`, issue once more in this turn?"""
        if not warp.running or warp.at_barrier or warp.wrong_path or warp.fetching is not None:
            return False
        return self.program.unit(warp.next) != first and self.can_issue(warp, time) and warp.waits_for_nothing(time)

    def can_issue(self, warp: Warp, time: int) -> bool:
        """Is there room for the warp's next instruction: at its port, and, unless it can wait there, a collector?"""
        port, i = self.port_of(warp, warp.next), warp.next
        waits = self.program.unit(i) == MEM or (self.waits_at_ports and self.program.copies(i) == sync.NONE)
        return port.has_dispatch_register(time) and (waits or port.has_collector())

    # Rules 3 and 4, in steps of the register file (rule 13)

    def port_of(self, warp: Warp, i: int) -> Port:
        """The port through which a warp reaches the unit of instruction `i`."""
        return self.ports[warp.slot % len(self.schedulers)][self.program.unit(i)]

    def bank_of(self, warp: Warp, register: int) -> set[int]:
        """The booked steps of the bank that holds a register of a warp."""
        if not self.gpu.spec.sub_cores:
            return self.banks[(register + warp.slot) % len(self.banks)]
        own = len(self.banks) // len(self.schedulers)
        return self.banks[warp.slot % len(self.schedulers) * own + (register + warp.slot) % own]

    def allocate(self, port: Port, kind: int, time: int) -> int:
        """Step in which an instruction issued at `time` has an operand collector (not yet taken)."""
        steps = self.gpu.spec.register_file_ports
        allocated = max(steps * (time + 1), min(port.collectors))
        if self.gpu.spec.shared_collectors:
            allocated = max(allocated, self.latest_allocation.get(kind, 0))
            self.latest_allocation[kind] = allocated
        elif port.width == 1:
            allocated = max(allocated, steps * (port.allocations[-1] + 1))
        return allocated

    def operands(self, warp: Warp, i: int, allocated: int) -> int:
        """Step in which the operands of an instruction are at hand, its collector taken in step `allocated`."""
        reads = [first_unbooked(self.bank_of(warp, register), allocated + 1) for register in self.program.reads(i)]
        return max(reads) + 1 if reads else allocated + 1

    def execute(self, warp: Warp, i: int, time: int) -> int:
        """Send instruction `i`, issued at `time`, down its port; returns its result cycle, NEVER if not known."""
        kind, port = self.program.unit(i), self.port_of(warp, i)
        if kind == MEM and self.side:
            return self.issue_access(warp, i, port, time)
        if self.waits_at_ports and self.program.copies(i) == sync.NONE and not self.is_next(port, kind, time):
            self.at_ports.append(AtPort(warp, i, kind, port, len(port.allocations)))
            port.allocations.append(NEVER)
            warp.outstanding += 1
            return NEVER
        return self.collected(warp, i, port, len(port.allocations), self.allocate(port, kind, time))

    def is_next(self, port: Port, kind: int, time: int) -> bool:
        """Does an instruction issued at `time` have a collector in the next cycle, while no other waits for it?"""
        if self.gpu.spec.issues_per_turn > 1:  # another one may come that is let in before it
            return False
        before = [w for w in self.at_ports if w.kind == kind or w.port.collectors is port.collectors]
        return not before and min(port.collectors) <= self.gpu.spec.register_file_ports * (time + 1)

    def leave_port(self, kind: int, step: int, time: int) -> bool:
        """The oldest of a kind that waits at a port has a collector in a step of cycle `time`, if one is free."""
        oldest = next((w for w in self.at_ports if w.kind == kind), None)
        if oldest is None or min(oldest.port.collectors) > step:
            return False
        self.at_ports.remove(oldest)
        if oldest.pending:
            self.memory.collected(oldest.pending, step, time)
            return True
        warp, i = oldest.warp, oldest.i
        result = self.collected(warp, i, oldest.port, oldest.place, step)
        self.known(warp, i, result)
        if warp.fenced and self.fence_over(warp) < NEVER:
            warp.fenced, warp.not_before = False, self.fence_over(warp)
        return True

    def collected(self, warp: Warp, i: int, port: Port, place: int, allocated: int) -> int:
        """The result of an instruction that has a collector from a step on, at a place among the allocations."""
        steps, kind = self.gpu.spec.register_file_ports, self.program.unit(i)
        operands, number = self.operands(warp, i, allocated), port.collector_at(allocated)
        port.allocations[place : place + 1] = [allocated // steps]
        if kind == MEM:
            released = max(operands, steps * port.starts[-port.width])
            start, result = self.access(port, warp, i, released // steps + 1)
            port.collectors[number] = released
            port.starts.append(start)
            return result
        mine, other = Dispatch(warp, i, operands, number), port.latest
        if not self.overtakes(mine, other, port, allocated):
            return self.dispatch(mine, port)
        self.undo(other, port)
        result = self.dispatch(mine, port)
        later = self.dispatch(other, port)
        other.warp.complete = max(other.warp.complete, later)
        other.warp.write(other.i, later)
        return result

    def overtakes(self, mine: Dispatch, other: Dispatch | None, port: Port, allocated: int) -> bool:
        """Rule 13: does an instruction leave its collector before the one that went to its port before it?"""
        if not self.waits_at_ports or port.width > 1 or other is None or other.released <= allocated:
            return False
        if {self.program.copies(mine.i), self.program.copies(other.i)} != {sync.NONE}:
            return False
        leaves = max(mine.operands, self.gpu.spec.register_file_ports * port.starts[-2])
        return (leaves, mine.number) < (other.released, other.number)

    def dispatch(self, what: Dispatch, port: Port) -> int:
        """An arithmetic instruction leaves its collector for a unit; returns its result."""
        steps, latency = self.gpu.spec.register_file_ports, self.program.latency(what.i)
        what.released = max(what.operands, steps * port.starts[-port.width])
        earliest = what.released // steps + 1
        if self.program.unit(what.i) == SP:
            earliest = max(earliest, self.last_sp_start.get(port, 0))
        start = self.start(port, earliest, latency, self.program.initiation(what.i), what)
        self.last_sp_start[port] = start
        port.starts.append(start)
        port.collectors[what.number], port.latest = what.released, what
        result = start + latency + self.program.result_offset(what.i)
        self.write_back(what.warp, what.i, result)
        return result

    def undo(self, what: Dispatch, port: Port) -> None:
        """It has not started, and gives back what it has booked."""
        due = port.starts.pop() + self.program.latency(what.i)
        self.last_sp_start[port] = port.starts[-1]
        what.unit.free = what.unit_free
        what.unit.due.discard(due)
        self.due[due] -= 1
        for register in self.program.write_banks(what.i):
            self.bank_of(what.warp, register).discard(
                self.gpu.spec.register_file_ports * (due + self.program.result_offset(what.i))
            )

    def write_back(self, warp: Warp, i: int, result: int) -> None:
        """A result is written to the register file."""
        for register in self.program.write_banks(i):
            self.bank_of(warp, register).add(self.gpu.spec.register_file_ports * result)

    def issue_access(self, warp: Warp, i: int, port: Port, time: int) -> int:
        """Real memory: a memory instruction goes to the load/store unit."""
        warp.outstanding += 1
        copies, family = self.program.copies(i), 0
        before = [p for p in self.copying if p.warp is warp and self.program.copies(p.i) == sync.COPY]
        if sync.starts_work(copies):
            family = sync.family_of(copies)
            warp.copies.setdefault(self.group(warp, family), Copies()).outstanding += 1
        pending = self.memory.new(warp, i, self.next_access(warp, i), port, time, self.group(warp, family))
        if copies in (sync.COPY, sync.MEETS_LATER):
            self.copying.append(pending)
        pending.products_done = self.done(warp, sync.PRODUCTS)
        if copies == sync.MEETS_LATER:
            self.later.append(Later(warp, pending.what, [*before, pending], self.done(warp, sync.COPIES)))
        self.memory.go(pending, time)
        return NEVER if pending.waiting else pending.result

    def done(self, warp: Warp, family: int) -> int:
        """When the work of a family is complete, as far as is known."""
        return max([0, *(c.complete for (_, f), c in warp.copies.items() if f == family)])

    def group(self, warp: Warp, family: int) -> tuple[int, int]:
        """The open group of a family."""
        return warp.group.get(family, 0), family

    def start(self, port: Port, time: int, latency: int, initiation: int, what: Dispatch) -> int:
        """First cycle in which a result bus and a unit of the port are free for an instruction."""
        while True:
            if self.due.get(time + latency, 0) < self.gpu.spec.result_bus_width:
                for unit in port.units:
                    if unit.free <= time and time + latency not in unit.due:
                        what.unit, what.unit_free = unit, unit.free
                        unit.free = time + initiation
                        unit.due.add(time + latency)
                        self.due[time + latency] = self.due.get(time + latency, 0) + 1
                        return time
            time += 1

    def access(self, port: Port, warp: Warp, i: int, time: int) -> tuple[int, int]:
        """Start and result cycle of a memory instruction that can start from `time`."""
        access = self.next_access(warp, i)
        start = max(time, port.units[0].free)
        port.units[0].free = start + self.memory.busy_cycles(access)
        self.memory.write = partial(self.write_back, warp, i)
        return start, self.memory.result(access, start)

    def next_access(self, warp: Warp, i: int) -> Access:
        """What the trace has of a memory instruction."""
        kind, access_bytes = self.program.kind(i), self.program.access_bytes(i)
        found = warp.stream.records() if kind in RECORD_KINDS else []
        records = [self._lies(r, warp.slot) for r, _ in found]
        conflicts = warp.stream.conflict() if kind in SHARED_KINDS else 0
        loop, lanes = None, warp.stream.mask.bit_count() if self.program.adds_doubles(i) else 0
        if self.program.round(i):
            free = self.word_free.setdefault(warp.slot // self.warps_per_block, defaultdict(int))
            loop = Loop(self.program.round(i), self.program.word(i), free, self.word_free)
        way = self.way if self.program.copies(i) == sync.ELSEWHERE else 0
        self.accessed = Access(self.gpu, kind, access_bytes, records, conflicts, loop, lanes, way)
        if self.gpu.spec.partial_sectors:
            self.accessed.words = {record >> 5: words for record, (_, words) in zip(records, found, strict=True)}
        return self.accessed

    def _lies(self, record: int, slot: int) -> int:
        """A record of local memory (rule 5): a word of all warps that there is room for, SM by SM, slot by slot."""
        word, rest = (record >> 5) - LOCAL_WINDOW_LINE, record & 31
        if word < 0 or (record >> 5) >= PHASE_WINDOW_LINE:
            return record
        sms, each = self.gpu.spec.sm_count, self.warps_per_block
        block_slot, in_block = divmod(slot, each)
        row = sms * len(self.slot_free) * each
        place = (block_slot * sms + self.number) * each + in_block
        return (LOCAL_WINDOW_LINE + (word * row + place) % LOCAL_LINES) << 5 | rest

    def complete(self, p) -> None:
        """Rule 11: all of a memory instruction is there, or will be at its result."""
        warp, i, result, copies = p.warp, p.i, p.result, self.program.copies(p.i)
        self.known(warp, i, result)
        if self.program.kind(i) in (Kind.SHARED_ATOMIC, Kind.GLOBAL_ATOMIC) and self.awaited(i, p.what):
            warp.not_before = result - 1
        if sync.starts_work(copies):
            group = warp.copies[p.group]
            group.outstanding, group.complete = group.outstanding - 1, max(group.complete, result)
        if warp.awaits and warp.copies_complete() < NEVER:
            warp.not_before, warp.awaits = warp.copies_complete(), []
        if copies == sync.MEETS:
            self.meet(warp, p.what, result)
        elif copies == sync.FILLS:
            self.arrive(warp, p.what, result, 0)
        elif copies == sync.COMMITS:
            self.arrive(warp, p.what, max(result, p.products_done), self.way)
        elif p in self.copying:
            self.copying.remove(p)
            self.count_copy(p, result)
        if warp.fenced and self.fence_over(warp) < NEVER:
            warp.fenced, warp.not_before = False, self.fence_over(warp)

    def awaited(self, i: int, access: Access) -> bool:
        """Does a warp wait for an atomic? If at an `mbarrier`, or with active lanes, of PTX or a loop of such."""
        holds = not self.program.counted(i) or self.program.round(i) > 0
        return self.program.copies(i) != sync.NONE or (not access.is_asleep and holds)

    def known(self, warp: Warp, i: int, result: int) -> None:
        """The result of an instruction that was on its way is known."""
        warp.outstanding -= 1
        warp.complete = max(warp.complete, result)
        warp.count(i, -1)
        warp.write(i, result)

    def fence_over(self, warp: Warp) -> int:
        """When a fence lets its warp go on; NEVER if that is not known."""
        if self.side and self.gpu.spec.posted_stores:
            return NEVER if warp.outstanding else warp.complete
        return max([0, *warp.registers.values()])

    def count_copy(self, p, result: int) -> None:
        """A `cp.async`, or an arrival that waits for some, is complete."""
        for later in [later for later in self.later if p in later.left]:
            later.left.remove(p)
            later.there = max(later.there, result)
            if not later.left:
                self.later.remove(later)
                self.arrive(later.warp, later.access, later.there, self.way)

    # Rule 8, phases of an `mbarrier`

    @property
    def way(self) -> int:
        """Cycles to another SM of a cluster."""
        return int(self.gpu.params.cluster_cycles)

    def meet(self, warp: Warp, access: Access, result: int) -> None:
        """An access at barriers is complete at `result`: its arrivals count, and its warp waits from then on."""
        self.arrive(warp, access, result, self.way)
        warp.at_phases = [phase for phase in access.phases if phase[2]]
        warp.meets_from = result - 1
        warp.not_before = max(warp.not_before, warp.meets_from, self.phases_over(warp))
        if warp.not_before < NEVER:
            warp.at_phases, warp.meets_from = [], warp.not_before

    def arrive(self, warp: Warp, access: Access, time: int, way: int) -> None:
        """The arrivals of an access: those in the own thread block at `time`, in others `way` cycles later."""
        block = self._block_of(warp)
        self.sent += [(block.position, *where, time + way) for where in access.elsewhere]
        self.arrive_in_phases(block, access.phases, time)

    def arrive_in_phases(self, block: Block, phases: list[tuple[int, int, int]], time: int) -> None:
        """Arrivals (those without a count) at `time`; whoever's phases are now known to be over goes on."""
        for barrier, number, count in phases:
            if not count:
                phase = block.phases.setdefault((barrier, number % 4), Phase(number))
                if phase.number != number and (phase.number - number) % 256 < 128:
                    continue  # long over
                if phase.number != number:
                    phase = block.phases[barrier, number % 4] = Phase(number)
                phase.arrived, phase.there = phase.arrived + 1, max(phase.there, time)
        if all(count for _, _, count in phases):
            return
        for other in block.warps:
            if other.at_phases and (over := self.phases_over(other)) < NEVER:
                other.not_before = other.meets_from = max(other.meets_from, over)
                other.at_phases = []

    def phases_over(self, warp: Warp) -> int:
        """When all is over that it waits for; NEVER: not known yet."""
        block = self._block_of(warp)
        return max([0, *(self._over(block.phases.get((b, n % 4)), n, count) for b, n, count in warp.at_phases)])

    def _over(self, phase: Phase | None, number: int, count: int) -> int:
        if phase is None or (phase.number == number and phase.arrived < count):
            return NEVER
        if phase.number == number:
            return phase.there
        return 0 if (phase.number - number) % 256 < 128 else NEVER

    # Rule 6

    def want(self, warp: Warp, pc: int) -> None:
        """The warp's buffer is empty: it wants a fetch of `pc`."""
        warp.fetching, warp.buffered = pc, 0

    def fetch_stage(self, time: int, front_end: int) -> None:
        """The fetch stage of one cycle, once; a pair it brings can issue from `front_end` on."""
        if all(w.fetching is None and w.running for w in self.warps.values()):  # nobody wants anything
            return
        back = [w for w in self.warps.values() if w.line_back is not None and w.line_back <= time]
        if back:
            self.deliver(min(back, key=lambda w: (w.line_back, w.slot)), front_end)
            return
        count = self.gpu.spec.max_warps_per_sm
        for slot in sorted(self.warps, key=lambda slot: (slot - self.last_fetched - 1) % count):
            warp = self.warps[slot]
            if warp.fetching is not None and warp.line_back is None:
                self.look_up(warp, time, front_end)
                return
            if not warp.running and not warp.outstanding and warp.complete <= time:
                self.gone(warp, time)

    def look_up(self, warp: Warp, time: int, front_end: int) -> None:
        """The warp's turn in the fetch stage."""
        there = self.front.look_up(warp.fetching, time, warp)
        if there is None:  # the line is not there and cannot be asked for
            return
        self.last_fetched = warp.slot
        if there <= time:
            self.deliver(warp, front_end)
        else:
            warp.line_back = there

    def deliver(self, warp: Warp, front_end: int) -> None:
        """The warp gets its pair."""
        warp.buffered, warp.front_end = self.front.pair(warp.fetching), front_end
        warp.fetching = warp.line_back = None

    # Rule 7

    def issue(self, warp: Warp, time: int) -> None:
        """Issue a warp's next instruction and find out when it can go on."""
        i, kind = warp.next, self.program.kind(warp.next)
        warp.count(i, 1)
        result = self.execute(warp, i, time)
        if result < NEVER and not (self.side and self.program.unit(i) == MEM):
            warp.count(i, -1)
        if result < NEVER or not self.program.counted(i):
            warp.write(i, result)
        warp.written_by |= dict.fromkeys(self.program.writes(i), kind)
        if self.program.release(i) >= 0:
            warp.hold(self.program.release(i), time + 11)
        if result < NEVER:
            warp.complete = max(warp.complete, result)
        following = warp.stream.advance(i)
        if following is None:
            self.exit(warp, time)
            self.follow_copies(warp, i, result, time)
            return
        stall = self.program.stall(i)
        warp.issued, warp.next, warp.not_before = i, following, time + stall if stall > 1 else 0
        if kind in (Kind.SHARED_ATOMIC, Kind.GLOBAL_ATOMIC):
            warp.not_before = result - 1 if self.awaited(i, self.accessed) else warp.not_before
        elif kind == Kind.FENCE:
            if self.side and self.gpu.spec.posted_stores:
                warp.complete = max(warp.complete, time + self.side.fence_cycles)
            warp.not_before = self.fence_over(warp)
            warp.fenced = warp.not_before == NEVER
        self.follow_copies(warp, i, result, time)
        self.follow(warp, i, kind, time)
        if kind == Kind.BARRIER:
            warp.at_barrier = True
            self.barrier_free = max(self.barrier_free, time) + self.gpu.params.barrier_warp_cycles
            self.release_if_complete(warp, time)

    def follow_copies(self, warp: Warp, i: int, result: int, time: int) -> None:
        """What an instruction does with groups of asynchronous work, at barriers, and with registers."""
        copies = self.program.copies(i)
        if copies == sync.ELSEWHERE:
            return
        if copies == sync.REGISTERS:
            self.change_registers(warp, self.program.word(i), time)
        elif copies < sync.LAST_PRODUCT:
            self.follow_phases(warp, copies, result, self.accessed)
        elif copies >= 0:
            family, allowed = divmod(copies, sync.WAITS)
            warp.awaits = [
                ((self.group(warp, family)[0] - age) % sync.GROUPS, family) for age in range(allowed, sync.GROUPS)
            ]
            warp.not_before = max(warp.not_before, warp.copies_complete())
            if warp.not_before < NEVER:
                warp.awaits = []
        elif copies != sync.NONE:
            group, family = self.group(warp, sync.family_of(copies))
            if sync.starts_work(copies) and (not self.side or self.program.unit(i) != MEM):
                work = warp.copies.setdefault((group, family), Copies())
                work.complete = max(work.complete, result)
            if sync.closes_group(copies) or copies == sync.LAST_PRODUCT:
                warp.group[family] = (group + 1) % sync.GROUPS

    def change_registers(self, warp: Warp, count: int, time: int) -> None:
        """The warp gives some back, and others take them; or it wants some, and has them or waits."""
        block = self._block_of(warp)
        if count < 0:
            block.spare, warp.held = block.spare + warp.held + count, -count
        else:
            warp.wants = count
        for other in block.warps:
            if other.wants and other.wants - other.held <= block.spare:
                block.spare, other.held, other.wants = block.spare - other.wants + other.held, other.wants, 0
                other.not_before = other.not_before if other is warp else time + 1
            elif other.wants:
                other.not_before = NEVER

    def follow_phases(self, warp: Warp, copies: int, result: int, access: Access) -> None:
        """With real memory what is not known yet is done in `complete`."""
        if self.side:
            if copies == sync.MEETS and result < NEVER:
                warp.not_before = NEVER if warp.at_phases else max(warp.not_before, warp.meets_from)
        elif copies == sync.MEETS:
            self.meet(warp, access, result)
        elif copies == sync.FILLS:
            self.arrive(warp, access, result, 0)
        else:
            done = self.done(warp, {sync.MEETS_LATER: sync.COPIES, sync.COMMITS: sync.PRODUCTS}[copies])
            self.arrive(warp, access, max(result, done), self.way)

    def follow(self, warp: Warp, i: int, kind: Kind, time: int) -> None:
        """What the front end does after `i`."""
        warp.buffered -= 1
        left = warp.buffered > 0
        sequential = warp.next == i + 1
        if sequential and left:
            warp.front_end = time + self.program.stall(i)
        elif sequential or kind == Kind.EXIT:
            self.want(warp, self.program.pc(warp.next))
        else:
            warp.wrong_path = True
            if left:
                warp.front_end = time + 1
            else:
                self.want(warp, self.program.pc(i) + 1)

    # Rules 8 and 9

    def release_if_complete(self, warp: Warp, time: int) -> None:
        """Release the block of `warp` if all its running warps wait at the barrier."""
        running = [w for w in self._block_of(warp).warps if w.running]
        if all(w.at_barrier for w in running):
            for w in running:
                w.at_barrier = False
                w.not_before = max(w.not_before, max(self.barrier_free, time) + self.gpu.params.barrier_cycles)

    def exit(self, warp: Warp, time: int) -> None:
        """The warp has issued its last instruction at `time`."""
        warp.running = False
        warp.complete = max(warp.complete, time + 6)
        self.release_if_complete(warp, time)

    def gone(self, warp: Warp, time: int) -> None:
        """The fetch stage has noticed that the warp has drained."""
        block = self._block_of(warp)
        del self.warps[warp.slot]
        self.last_exit = time
        self.resident_warp_cycles += time - block.start
        if not any(self.warps.get(w.slot) is w for w in block.warps):
            self.slot_free[block.slot] = time + self.gpu.params.block_launch_cycles
            del self.blocks[block.slot]

    def _block_of(self, warp: Warp) -> Block:
        return self.blocks[warp.slot // self.warps_per_block]
