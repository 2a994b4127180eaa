"""The rules of docs/occupancy-vector.md ("A step", "Memory"), one lane and one item at a time."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import numpy as np

from abstim.occupancy_vector.records import ACCESS_WORD, NUMBERS, PARTS, RECENT

CYCLE, NEVER = 64, 1 << 30
MEMORY, SFU, DOUBLE, TENSOR = 1, 2, 3, 4
LOAD, STORE, ATOMIC, CODE = 1, 2, 3, 4
IN_CYCLES = {"cycles", "front", "next", "after_next", "unit_offset", "drain", "latency", "occupies", "fetch_by"}


def decode(row) -> dict[str, int]:
    """An item, times and work in ticks."""
    scales = {name: CYCLE if name in IN_CYCLES else CYCLE // 16 if name in ("sp", "int") else 1
              for name in row.dtype.names}  # fmt: skip
    return {name: int(row[name]) * scale for name, scale in scales.items()}


def fields(word, layout) -> dict[str, int]:
    """A word's fields."""
    found, value = {}, int(word) & 0xFFFFFFFF
    for name, bits in layout:
        found[name] = value & ((1 << bits) - 1)
        value >>= bits
    return found


def decode_access(word) -> dict[str, int]:
    """An access; the time it holds the load/store unit in ticks."""
    found = fields(word, ACCESS_WORD)
    return found | {"occupies": found["occupies"] * CYCLE}


def portion(time, part):
    return time * (part + 1) // PARTS


@dataclass
class Warp:
    position: int
    access: int
    late: int
    ready: int
    block: int
    number: int  # of its thread block
    floor: int = 0
    drain: int = 0
    at_barrier: bool = False
    loads: list[int] = field(default_factory=lambda: [0] * 16)
    results: list[int] = field(default_factory=lambda: [0] * 16)


class Sm:
    """One lane."""

    def __init__(self, layout, machine, residents, streams, first, stop) -> None:
        self.layout, self.machine, self.residents, self.streams = layout, machine, residents, streams
        self.items = {}
        self.next, self.stop = first, stop
        self.slots: list[Warp | None] = [None] * (layout.rows(layout.blocks) * layout.schedulers)
        self.clock, self.last = [0] * layout.schedulers, [0] * layout.schedulers
        self.drained = [-CYCLE] * layout.blocks
        self.starts = [[-CYCLE] * layout.memory_queue for _ in range(layout.groups)]
        self.special = {(unit, g): 0 for unit in (SFU, DOUBLE, TENSOR) for g in range(layout.groups)}
        self.pool = {(name, g): 0 for name in ("sp", "int") for g in range(layout.groups)}
        self.line_there = self.line_served = 0
        self.memory = self.fetch = self.l2 = self.dram = self.port = self.reply = 0
        self.asks = int(streams.turn_starts[first])
        self.recent = []  # when the latest loads that asked have what they asked for
        self.arrivals = {}  # by fill: when what it waits for is there
        self.dispatched, self.end, self.issued = -CYCLE, -CYCLE, 0

    def item(self, position):
        if position not in self.items:
            self.items[position] = decode(self.streams.items[position])
        return self.items[position]

    def run(self) -> int:
        self.refill()
        while any(self.slots):
            self.step()
            self.refill()
        return self.end

    def refill(self):
        for b in range(self.residents):
            slots = [b * self.layout.warps + k for k in range(self.layout.warps)]
            if any(self.slots[w] for w in slots) or self.next == self.stop:
                continue
            time = max(self.drained[b] + CYCLE, self.dispatched + self.machine["dispatch"])
            for k, w in enumerate(slots):
                number, own = int(self.streams.dealt[self.next]) * self.layout.warps + k, self.streams
                places = (own.starts[number], own.access_starts[number], own.late_starts[number])
                warp = self.slots[w] = Warp(*map(int, places), time + self.machine["first_issue"], b, self.next)
                warp.ready = max(warp.ready, self.with_code(warp, warp.ready))
            self.drained[b], self.dispatched = -CYCLE, time
            self.next += 1

    def with_code(self, warp, time):
        """When the instruction line of a warp's next item, fetched at `time`, is there."""
        if self.layout.perfect_memory or self.streams.late_begins[warp.late] > self.item(warp.position)["begins"]:
            return time
        warp.late += 1
        fill = int(self.streams.late_fills[warp.late - 1])
        if fill not in self.arrivals:
            self.arrivals[fill] = self.beyond_l1d(decode_access(self.streams.fill_words[fill]), CODE, time)
            self.line_there = self.arrivals[fill]
        there = self.arrivals[fill]
        if time < there:
            self.line_served = self.arrivals[fill] = there + self.machine["fetch"]
        return max(time, there)

    def earliest(self, warp, group):
        item = self.item(warp.position)
        time, unit = warp.ready, item["unit"]
        if unit == MEMORY:
            time = max(time, self.starts[group][-1])
        elif self.layout.holding:
            time = max(time, self.starts[group][self.layout.holding - 1] - 3 * CYCLE)
        if unit not in (0, MEMORY):
            time = max(time, self.special[unit, group] - self.machine["special_slack"])
        for name in ("sp", "int"):
            if item[name]:
                time = max(time, self.pool[name, group] - self.machine["pool_slack"] - 3 * CYCLE)
        return time

    def step(self):
        schedulers, rows = self.layout.schedulers, self.layout.rows(self.layout.blocks)
        can = []
        for s in range(schedulers):
            group = s if self.layout.sub_cores else 0
            own = [self.slots[k * schedulers + s] for k in range(rows)]
            can.append([NEVER if w is None or w.at_barrier else self.earliest(w, group) for w in own])
        first = [max(self.clock[s], min(can[s])) for s in range(schedulers)]
        now = min(first)
        for s in range(schedulers):
            if first[s] >= now + CYCLE or first[s] >= NEVER:
                continue
            self.issue(s, min((k for k in range(rows) if can[s][k] <= first[s]), key=partial(self.turn, s)), first[s])

    def turn(self, s, row):
        """Lower goes first."""
        if not self.layout.priority:
            return ((row - self.last[s] - 1) % self.layout.rows(self.layout.blocks),)
        return self.slots[row * self.layout.schedulers + s].number, row

    def issue(self, s, row, start):
        slot, group = row * self.layout.schedulers + s, s if self.layout.sub_cores else 0
        warp = self.slots[slot]
        item = self.item(warp.position)
        result, delay, arrive = 0, 0, start + item["unit_offset"] + 3 * CYCLE
        if item["unit"] == MEMORY:
            begin = max(arrive, self.memory)
            held = decode_access(self.streams.accesses[warp.access])["occupies"]
            here = result = begin + item["latency"] + held - CYCLE
            self.memory = begin + held
            if not self.layout.perfect_memory:
                result = self.answered(warp.access, item["access"], here)
            warp.access += 1
            self.starts[group] = [begin, *self.starts[group][:-1]]
        elif item["unit"]:
            begin = max(arrive, self.special[item["unit"], group])
            self.special[item["unit"], group] = begin + item["occupies"]
            result = begin + item["latency"]
        for name in ("sp", "int"):
            if item[name]:
                begin = max(start + 3 * CYCLE, self.pool[name, group])
                delay = max(delay, begin - start - 3 * CYCLE)
                self.pool[name, group] = begin + item[name]
        ready = start + item["front"]
        if item["fetches"]:
            cost, asked = self.machine["fetch"], start + item["fetch_by"]  # the last of them
            if self.line_there <= asked:
                asked = max(asked, self.line_served)
            ready += item["fetches"] * max(0, self.fetch - start)
            granted = max(asked, self.fetch + (item["fetches"] - 1) * cost)
            self.fetch = granted + cost
            ready = max(ready, granted + item["front"] - item["fetch_by"])
        fetched = ready
        if item["next"]:
            ready = max(ready, start + item["next"] + delay)
        ready = max(ready, warp.floor)
        warp.floor = start + item["after_next"] + delay if item["after_next"] else 0
        if item["far"]:
            warp.loads = [result, *warp.loads[:-1]]
        if item["near"]:
            warp.results = [result, *warp.results[:-1]]
        for name, times in (("wait_far", warp.loads), ("wait_near", warp.results)):
            ready = max([ready, *(time for n, time in enumerate(times) if item[name] >> n & 1)])
        warp.drain = max(warp.drain, result, start + item["drain"] if item["drain"] else 0)
        warp.position += 1
        warp.ready = ready if item["exit"] else max(ready, self.with_code(warp, fetched))
        self.clock[s], self.last[s], self.issued = start + item["cycles"], row, self.issued + 1
        self.meet(slot, item, start + item["cycles"])

    def meet(self, slot, item, time):
        warp = self.slots[slot]
        own = range(warp.block * self.layout.warps, (warp.block + 1) * self.layout.warps)
        if item["exit"]:
            drain = max(warp.drain, time - CYCLE + self.machine["retire"])
            self.drained[warp.block] = max(self.drained[warp.block], drain)
            self.slots[slot] = None
        elif item["barrier"]:
            warp.at_barrier = True
        else:
            return
        left = [self.slots[w] for w in own if self.slots[w]]
        if not left:
            self.end = max(self.end, self.drained[warp.block])
            self.drained[warp.block] += self.machine["block_launch"]
        elif all(w.at_barrier for w in left):
            for w in left:
                w.at_barrier, w.ready = False, max(w.ready, time)

    def answered(self, number, kind, here):
        fill = int(self.streams.fills[number])
        if not fill:
            return self.beyond_l1d(decode_access(self.streams.accesses[number]), kind, here)
        own = abs(fill)
        if own not in self.arrivals:
            self.ask(own, kind, here)
        elif fill < 0:
            self.memory += max(0, self.arrivals[own] - here)
        return max(here, self.arrivals[own])

    def ask(self, fill, kind, here):
        m, word = self.machine, decode_access(self.streams.fill_words[fill])
        early, back = divmod(int(self.streams.fill_behind[fill]), 128)
        behind = self.recent[-back] if 0 < back <= len(self.recent) else 0
        last = max(here, behind - portion(m["dram_latency"], early - 1))
        trip = m["request"] + m["l2_reply"] + CYCLE + (m["dram_latency"] if word["level"] == 2 else 0)
        trips = int(self.streams.fill_trips[fill]) * trip
        answer = self.beyond_l1d(word, kind, here)
        if self.streams.fill_behind[fill]:
            answer = max(answer, last + trip)
        self.memory += last - here + trips
        self.arrivals[fill] = answer + trips

    def beyond_l1d(self, asked, kind, here):
        m, sectors = self.machine, asked["sectors"]
        if not sectors:
            return here
        leaves, writes = max(self.port, here + CYCLE), kind in (STORE, ATOMIC)
        self.port = leaves + sectors * m["store_sector" if writes else "load_sector"]
        cost = m["l2_atomic" if kind == ATOMIC else "l2_sector"]
        answer = read = self.l2 = max(max(self.l2, leaves + m["request"]) + sectors * cost, self.port + m["request"])
        if asked["dram_sectors"]:
            self.dram = max(self.dram, self.l2) + asked["dram_sectors"] * m["dram_sector"]
            read = self.dram
        length = sectors * m["store_reply" if kind == STORE else "reply_sector"]
        self.reply = max(self.reply, answer - length) + length
        answer = (self.reply if kind == STORE else max(self.reply, read)) + m["l2_reply"]
        answer += portion(m["dram_latency"], asked["part"]) if asked["level"] == 2 else 0
        if kind in (LOAD, STORE):
            answer += int(self.streams.turns[self.asks]) * max(m["load_sector"], m["l2_sector"])
            self.asks += 1
        if kind == LOAD:
            self.recent = [*self.recent, answer][-RECENT:]
        return answer


def run(lanes) -> tuple[np.ndarray, np.ndarray]:
    """(end in ticks, items issued) of each lane."""
    found = []
    for numbers, first, stop in zip(lanes.machine.tolist(), lanes.first.tolist(), lanes.stop.tolist(), strict=True):
        sm = Sm(lanes.layout, dict(zip(NUMBERS, numbers, strict=True)), lanes.residents, lanes.streams, first, stop)
        found.append((sm.run(), sm.issued))
    return np.array([end for end, _ in found]), np.array([issued for _, issued in found])
