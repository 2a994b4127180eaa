"""One SM, cycle by cycle (docs/timing-rules.md, rules 1 to 9)."""

from __future__ import annotations

from dataclasses import dataclass, field

from abstim.config import Gpu
from oracle.memory import RECORD_KINDS, SHARED_KINDS, Access, Memory
from oracle.policies import POLICIES
from oracle.program import Program, WarpStream
from oracle.resources import FrontEnd, Port, first_unbooked
from precharacterize.classify import Kind

SP, SFU, MEM = 0, 1, 2


@dataclass
class Warp:
    """A running warp: in a slot, with the rest of its stream. `next` is the instruction it issues next."""

    slot: int
    launch_order: int
    program: Program
    stream: WarpStream
    next: int
    buffered: int = 0  # instructions left in its fetch pair
    ready: int = 0
    wrong_path: bool = False
    at_barrier: bool = False
    complete: int = 0  # every result it has issued
    registers: dict[int, int] = field(default_factory=dict)  # register -> free cycle
    written_by: dict[int, Kind] = field(default_factory=dict)


@dataclass
class Block:
    """A resident thread block. `left` is the latest cycle in which one of its warps has left."""

    slot: int
    start: int
    warps: list[Warp]
    left: int = 0


class Sm:
    """State of an SM and its rules. `blocks` maps block slots to what runs in them."""

    def __init__(self, gpu: Gpu, program: Program, warps_per_block: int, blocks_per_sm: int) -> None:
        spec = gpu.spec
        self.gpu, self.program, self.warps_per_block = gpu, program, warps_per_block
        self.warps: dict[int, Warp] = {}  # by warp slot, those that have not exited
        self.blocks: dict[int, Block] = {}  # by block slot
        self.slot_free = [0] * blocks_per_sm  # cycle from which a block slot is free; unknown while in `blocks`
        self.last_dispatch, self.launched, self.last_exit, self.resident_warp_cycles = -1, 0, 0, 0
        slots = [list(range(s, spec.max_warps_per_sm, spec.schedulers_per_sm)) for s in range(spec.schedulers_per_sm)]
        self.schedulers = [POLICIES[spec.scheduler](s, spec.two_level_active_warps) for s in slots]
        self.front, self.memory = FrontEnd(gpu), Memory(gpu)
        self.ports = [
            Port(spec.sp_port_width, spec.sp_collectors, spec.sp_units),
            Port(spec.sfu_port_width, spec.sfu_collectors, spec.sfu_units),
            Port(spec.mem_port_width, spec.mem_collectors, 1),
        ]
        self.banks: list[set[int]] = [set() for _ in range(spec.register_banks)]
        self.due: dict[int, int] = {}  # cycle -> results due on the buses
        self.last_sp_start, self.issued = 0, 0

    # Rule 10

    def earliest_dispatch(self) -> int | None:
        """Cycle in which this SM can take a block; None as long as no slot's end is known."""
        known = [free for slot, free in enumerate(self.slot_free) if slot not in self.blocks]
        return max(min(known), self.last_dispatch + 1) if known else None

    def launch(self, streams: list[WarpStream], time: int) -> None:
        """Take a thread block at the end of cycle `time`."""
        slot = next(b for b, free in enumerate(self.slot_free) if b not in self.blocks and free <= time)
        block = Block(slot, time, [])
        self.blocks[slot], self.last_dispatch = block, time
        for k, stream in enumerate(streams):
            warp = Warp(slot * self.warps_per_block + k, self.launched, self.program, stream, stream.advance(None))
            self.launched += 1
            self.warps[warp.slot] = warp
            block.warps.append(warp)
            self.fetch_next(warp, time + 1)

    # Rules 1 and 2

    def cycle(self, time: int) -> None:
        """One cycle of all schedulers."""
        count = len(self.schedulers)
        for k in range(count):
            if self.warps:
                self.turn(self.schedulers[(time + k) % count], time)

    def turn(self, scheduler, time: int) -> None:
        """One cycle of one scheduler."""
        for slot in scheduler.order(self, time):
            warp = self.warps.get(slot)
            if warp is None or warp.at_barrier or warp.ready > time:
                continue
            if warp.wrong_path:
                warp.wrong_path = False
                self.fetch_next(warp, time)
            elif self.ports[self.program.unit(warp.next)].has_dispatch_register(time):
                scheduler.last = slot
                self.issue(warp, time)
                return

    # Rules 3 and 4

    def execute(self, warp: Warp, i: int, time: int) -> int:
        """Send instruction `i`, issued at `time`, down its port; returns its result cycle."""
        number = self.program.unit(i)
        port = self.ports[number]
        allocated = port.allocate(time)
        reads = [
            first_unbooked(self.banks[(register + warp.slot) % len(self.banks)], allocated + 1)
            for register in self.program.reads(i)
        ]
        operands = max(reads) + 1 if reads else allocated + 1
        dispatched = max(operands, port.starts[-port.width])
        if number == MEM:
            start, result = self.access(port, warp, i, dispatched + 1)
        else:
            earliest = max(dispatched + 1, self.last_sp_start) if number == SP else dispatched + 1
            start = self.start(port, earliest, self.program.latency(i), self.program.initiation(i))
            self.last_sp_start = start if number == SP else self.last_sp_start
            result = start + self.program.latency(i) + 2
        port.take(allocated, dispatched, start)
        for register in self.program.write_banks(i):
            self.banks[(register + warp.slot) % len(self.banks)].add(result)
        return result

    def start(self, port: Port, time: int, latency: int, initiation: int) -> int:
        """First cycle in which a result bus and a unit of the port are free for an instruction."""
        while True:
            if self.due.get(time + latency, 0) < self.gpu.spec.result_bus_width:
                for unit in port.units:
                    if unit.free <= time and time + latency not in unit.due:
                        unit.free = time + initiation
                        unit.due.add(time + latency)
                        self.due[time + latency] = self.due.get(time + latency, 0) + 1
                        return time
            time += 1

    def access(self, port: Port, warp: Warp, i: int, time: int) -> tuple[int, int]:
        """Start and result cycle of a memory instruction that can start from `time`."""
        kind, access_bytes = self.program.kind(i), self.program.access_bytes(i)
        if kind in SHARED_KINDS:
            access = Access(kind, access_bytes, [], warp.stream.conflict())
        else:
            access = Access(kind, access_bytes, warp.stream.records() if kind in RECORD_KINDS else [])
        start = max(time, port.units[0].free)
        port.units[0].free = start + self.memory.busy_cycles(access)
        return start, self.memory.result(access, start)

    # Rule 7

    def issue(self, warp: Warp, time: int) -> None:
        """Issue a warp's next instruction and find out when it can go on."""
        i, kind = warp.next, self.program.kind(warp.next)
        self.issued += 1
        result = self.execute(warp, i, time)
        for register in self.program.writes(i):
            warp.registers[register], warp.written_by[register] = result, kind
        warp.complete = max(warp.complete, result)
        following = warp.stream.advance(i)
        if following is None:
            self.exit(warp, time)
            return
        warp.next = following
        self.front_end(warp, i, kind, time)
        if kind == Kind.BARRIER:
            warp.at_barrier = True
            self.release_if_complete(warp, time)
        elif kind in (Kind.SHARED_ATOMIC, Kind.GLOBAL_ATOMIC):
            warp.ready = max(warp.ready, result - 1)
        elif kind == Kind.FENCE:
            warp.ready = max(warp.ready, warp.complete)

    def front_end(self, warp: Warp, i: int, kind: Kind, time: int) -> None:
        """Which instruction the front end brings after `i`, and when."""
        warp.buffered -= 1
        left = warp.buffered > 0
        if warp.next == i + 1:
            if left:
                self.wait_for_operands(warp, time + 1)
            else:
                self.fetch_next(warp, time)
        elif kind == Kind.EXIT:
            self.fetch_next(warp, time)
        else:
            warp.wrong_path = True
            warp.ready = time + 1 if left else self.front.fetch(self.program.pc(i) + 1, time) + 2

    def fetch_next(self, warp: Warp, time: int) -> None:
        """Fetch the warp's next instruction, requested at `time`."""
        pc = self.program.pc(warp.next)
        warp.buffered = self.front.pair(pc)
        self.wait_for_operands(warp, self.front.fetch(pc, time) + 2)

    def wait_for_operands(self, warp: Warp, front_end: int) -> None:
        """The warp is ready when the front end is and every register of its next instruction is free."""
        warp.ready = max([front_end, *(warp.registers.get(r, 0) for r in self.program.waits(warp.next))])

    # Rules 8 and 9

    def release_if_complete(self, warp: Warp, time: int) -> None:
        """Release the block of `warp` if all its running warps wait at the barrier."""
        running = [w for w in self._block_of(warp).warps if self.warps.get(w.slot) is w]
        if all(w.at_barrier for w in running):
            for w in running:
                w.at_barrier = False
                w.ready = max(w.ready, time)

    def exit(self, warp: Warp, time: int) -> None:
        """The warp has issued its last instruction at `time`."""
        block = self._block_of(warp)
        del self.warps[warp.slot]
        block.left = max(block.left, warp.complete, time + 6)
        self.last_exit = max(self.last_exit, block.left)
        if any(self.warps.get(w.slot) is w for w in block.warps):
            self.release_if_complete(warp, time)
            return
        self.slot_free[block.slot] = block.left
        self.resident_warp_cycles += self.warps_per_block * (block.left - block.start)
        del self.blocks[block.slot]

    def _block_of(self, warp: Warp) -> Block:
        return self.blocks[warp.slot // self.warps_per_block]
